"""A gradient of what a step is given, which it reads: a graph adds to the one that a warm-up has left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import lines_of, rewritten, run, with_rounds

ATTACK = """
net = nn.Linear(6, 3).to(device).requires_grad_(False)
def f(x, y):
    x.requires_grad_(True)
    loss = F.cross_entropy(net(x), y.long())
    BACKWARD
    return RESULT
args = (torch.randn(4, 6, device=device), torch.zeros(4, device=device))
"""
READS = "(x + 0.1 * x.grad.sign()).detach()"
SOUND = {
    "it begins anew": ("x.grad = None; loss.backward()", READS),
    "it is asked for by itself": ("g, = torch.autograd.grad(loss, [x])", "(x + 0.1 * g.sign()).detach()"),
    "it is what the step trains": ("loss.backward(); x.data.sub_(x.grad)", "loss.detach()"),
    "nothing here reads it": ("loss.backward()", "loss.detach()"),
}


def test_a_gradient_of_what_is_given_begins_anew_in_the_graph(tmp_path: Path) -> None:
    # GIVEN the attack of a paper's code, which reads the gradient of its input
    text = ATTACK.replace("BACKWARD", "loss.backward()").replace("RESULT", READS)
    names = run(text, tmp_path)
    # WHEN it is diagnosed
    found: Any = pgk.diagnose(names["f"], *names["args"])
    # THEN its backward pass is told, with what makes the gradient in each replay
    assert [(f.code, f.frame.text.strip()) for f in found.failures] == [("gradients-accumulate", "loss.backward()")]
    assert "x.grad = None; loss.backward()" in found.failures[0].fix


@pytest.mark.sweep
def test_the_diff_has_that_line(tmp_path: Path) -> None:
    # GIVEN the same WHEN it is mended THEN the line stands ahead of the backward pass, and replays give eager's numbers
    fix = rewritten(ATTACK.replace("BACKWARD", "loss.backward()").replace("RESULT", READS), tmp_path)
    assert fix.complete
    assert "x.grad = None" in lines_of(fix)


@pytest.mark.parametrize("name", SOUND)
def test_a_gradient_that_no_graph_adds_to_is_none(name: str, tmp_path: Path) -> None:
    # GIVEN an attack that begins it anew, asks for it, trains by it, or leaves it WHEN diagnosed THEN nothing is told
    backward, result = SOUND[name]
    names = run(ATTACK.replace("BACKWARD", backward).replace("RESULT", result), tmp_path)
    assert not pgk.diagnose(names["f"], *names["args"])


ROUNDS = """
net = nn.Linear(6, 3).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
data = [(torch.randn(4, 6), torch.randint(0, 3, (4,))) for _ in range(4)]
loader = torch.utils.data.DataLoader(data, batch_size=None)
def noise_like(x):
    return torch.from_numpy(np.full(tuple(x.shape), 0.1, np.float32)).to(device).requires_grad_(True)
def train(net, opt, loader):
    total = 0.0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        noise = noise_like(x)
        F.cross_entropy(net(x + noise), y).backward()
        moved = (noise + 0.1 * noise.grad.sign()).detach()
        opt.zero_grad()
        loss = F.cross_entropy(net(x + moved), y)
        loss.backward()
        opt.step()
        total += loss.item()
    return total
def f():
    return train(net, opt, loader)
args = ()
"""


@pytest.mark.sweep
def test_a_round_begins_the_gradient_of_what_it_is_given_anew(tmp_path: Path) -> None:
    # GIVEN a loop whose rounds read the gradient of a noise that the host makes WHEN mended
    lines = ["noise.grad = None", "F.cross_entropy(net(x + noise), y).backward()"]
    # THEN the round that is cut out has that line, and gives eager's numbers
    with_rounds(ROUNDS, lines, tmp_path)
