"""Sample arguments of ``make_graphed_callables``: gradients that they do not ask for, and memory that they share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
TRAINED = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)
    def forward(self, x):
        return x + self.fc(x).tanh()
encoder, head = nn.Linear(4, 6).to(device), nn.Linear(6, 1).to(device)
first, second = Block().to(device), Block().to(device)
net = nn.ModuleList([encoder, head, first, second])
sample = torch.randn(3, 6, device=device)SAMPLE
first, second = cuda.make_graphed_callables((first, second), GIVEN)
def f(x):
    net.zero_grad()
    loss = head(second(first(encoder(x)))).square().mean()
    loss.backward()
    return loss.detach()
args = (torch.randn(3, 4, device=device),)
"""
LINE = "first, second = cuda.make_graphed_callables((first, second), {})"
SHARED, OWN = "((sample,), (sample,))", "((sample,), (sample.detach().clone().requires_grad_(),))"
LEARNS = "`sample.requires_grad_()` ahead of this line"
APART = "a sample of its own for each callable: `sample.detach().clone().requires_grad_()` in place of `sample`"


@pytest.mark.parametrize(
    ("learns", "given", "told"),
    [
        ("", OWN, {"graphed-arguments": LEARNS}),
        (".requires_grad_()", SHARED, {"graphed-sample-overwritten": APART}),
        ("", SHARED, {"graphed-arguments": LEARNS, "graphed-sample-overwritten": APART}),
        (".requires_grad_()", OWN, {}),
    ],
)
def test_samples_that_give_wrong_gradients_are_told_where_torch_graphs(
    learns: str, given: str, told: dict[str, str], tmp_path: Path
) -> None:
    # GIVEN two graphed blocks one behind the other, and a layer ahead of them that learns
    names = run(TRAINED.replace("SAMPLE", learns).replace("GIVEN", given), tmp_path)
    # WHEN
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN what is wrong with the samples is told at the line that gives them, and nothing where they are as they should
    assert {f.code for f in found} == told.keys()
    for failure in found:
        assert failure.frame is not None
        assert failure.frame.text == LINE.format(given)
        assert failure.fix.endswith(told[failure.code])


def test_a_shared_sample_is_nothing_to_tell_where_no_backward_pass_reads_it(tmp_path: Path) -> None:
    # GIVEN the same blocks, called without gradients
    text = TRAINED.replace("SAMPLE", "").replace("GIVEN", SHARED)
    text = text.replace("def f(x):", "@torch.no_grad()\ndef f(x):").replace("    loss.backward()\n", "")
    names = run(text, tmp_path)
    # WHEN / THEN
    assert not pgk.diagnose(names["f"], *names["args"]).failures


def test_a_shared_sample_is_nothing_to_tell_where_both_are_given_the_same(tmp_path: Path) -> None:
    # GIVEN two heads of one input, whose samples share memory
    text = TRAINED.replace("SAMPLE", ".requires_grad_()").replace("GIVEN", SHARED)
    text = text.replace("second(first(encoder(x)))", "first(h) + second(h)").replace(
        "    loss = ", "    h = encoder(x)\n    loss = "
    )
    names = run(text, tmp_path)
    # WHEN / THEN
    assert not pgk.diagnose(names["f"], *names["args"]).failures


def test_a_sample_that_the_line_makes_is_told_with_what_it_becomes(tmp_path: Path) -> None:
    # GIVEN one block behind a layer that learns, graphed with a sample that has no name
    made = "torch.zeros(3, 6, device=device)"
    text = TRAINED.replace(LINE.format("GIVEN"), f"first = cuda.make_graphed_callables(first, ({made},))")
    names = run(text.replace("SAMPLE", "").replace("GIVEN", SHARED), tmp_path)
    # WHEN
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN
    assert found.failure.fix.endswith(f"`{made}.requires_grad_()` for `{made}`")


GATED = """
GATE
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.gate = nn.Linear(6, 6), OWN
    def forward(self, x):
        return x + self.gate * self.fc(x)
blocks = [Block().to(device), Block().to(device)]
given = tuple((torch.zeros(3, 6, device=device, requires_grad=True),) for _ in blocks)
blocks = cuda.make_graphed_callables(tuple(blocks), given)
scales = [torch.full((), 0.5, device=device), torch.full((), 2.0, device=device)]
def f(x):
    h = x
    for block, scale in zip(blocks, scales):
        block.gate.copy_(scale)
        h = block(h)
    loss = h.square().mean()
    loss.backward()
    for block in blocks:
        block.zero_grad()
    return loss.detach()
args = (torch.randn(3, 6, device=device),)
"""


@pytest.mark.parametrize(("gate", "own", "told"), [("gate = torch.ones((), device=device)", "gate", 1), ("", "", 0)])
def test_a_tensor_for_all_that_a_backward_pass_reads_is_told_where_it_is_written_over(
    gate: str, own: str, told: int, tmp_path: Path
) -> None:
    # GIVEN graphed blocks that are scaled by a tensor, one for all or one for each
    names = run(GATED.replace("GATE", gate).replace("OWN", own or "torch.ones((), device=device)"), tmp_path)
    # WHEN
    found = pgk.diagnose(names["f"], *names["args"])
    # THEN the line that writes it between a call and its backward pass is told, where it is one for all
    assert [f.frame.text for f in found if f.frame is not None] == ["block.gate.copy_(scale)"] * told
    assert all("reads this memory" in f.message for f in found)
