"""Words for rates that callers of an optimizer of the user's own set, gradients zeroed at times, and what begins."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.integration.rewritten import run

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
AHEAD_LOOKING = """
class Ahead:
    def __init__(self, inner):
        self.inner = inner
    @property
    def param_groups(self):
        return self.inner.param_groups
    def step(self):
        self.inner.step()
net = nn.Linear(4, 1).to(device)
opt = Ahead(torch.optim.SGD(net.parameters(), lr=RATE))
def step(it, x):
    for g in opt.param_groups:
        SET
    loss = net(x).square().mean()
    net.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
f, args = step, (0, torch.ones(3, 4, device=device))
"""
AT_TIMES = """
net, n = nn.Linear(4, 1).to(device), 0
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def f(x):
    global n
    loss = net(x).square().mean()
    loss.backward()
    n += 1
    if n % 2 == 0:
        opt.step()
        opt.zero_grad(NONE)
    return loss.detach()
args = (torch.ones(3, 4, device=device),)
"""
BALANCED = """
net, weights = nn.Linear(4, 2).to(device), [1.0, 1.0]
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def f(x):
    global weights
    losses = [each.square().mean() for each in net(x).unbind(1)]
    loss = sum(w * each for w, each in zip(WEIGHTS, losses))
    net.zero_grad()
    loss.backward()
    opt.step()
    values = [each.item() for each in losses]
    total = sum(values)
    weights = [2 * each / total for each in values]
    return loss.detach()
args = (torch.ones(3, 4, device=device),)
"""
PLATEAU = """
net, best = nn.Linear(4, 1).to(device), 9.0
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def f(x):
    global best
    loss = net(x).square().mean()
    net.zero_grad()
    loss.backward()
    opt.step()
    now = loss.item()
    if now > best - 1e-3:
        for g in opt.param_groups:
            g["lr"] *= 0.5
    best = min(best, now)
    return loss.detach()
args = (torch.ones(3, 4, device=device),)
"""
SNAPSHOT = """
net = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
class Trainer:
    def __init__(self):
        self.old = {k: p.detach().clone() for k, p in net.named_parameters()}
    def step(self, x):
        loss = net(x).square().mean() + sum((self.old[k] - p).square().sum() for k, p in net.named_parameters())
        net.zero_grad()
        loss.backward()
        opt.step()
        TAKEN
        return loss.detach()
f, args = Trainer().step, (torch.ones(3, 4, device=device),)
"""
BEGINS = """
class Agent:
    def __init__(self):
        self.weights = torch.ones(4, device=device)
        self.alpha = START
    def step(self, x):
        loss = (self.weights * x).sum() + self.alpha * x.mean()
        self.weights.mul_(0.9)
        self.alpha = self.weights.mean().item()
        return loss.clone()
agent = Agent()
agent.step(torch.ones(4, device=device))
f, args = agent.step, (torch.ones(4, device=device),)
"""


def _told(text: str, folder: Path, code: str) -> list[str]:
    names = run(text, folder)
    found = pgk.diagnose(names["f"], *names["args"])
    return [each.fix.partition("after   ")[2] for each in found.failures if each.code == code]


def test_a_rate_that_the_caller_of_an_own_optimizer_sets_is_filled_at_its_line(tmp_path: Path) -> None:
    # GIVEN an optimizer that steps another one, whose rate a step of the same name sets WHEN diagnosed
    text = AHEAD_LOOKING.replace("RATE", "0.1").replace("SET", 'g["lr"] = 0.1 / (it + 1)')
    told = _told(text, tmp_path, "learning-rate-frozen")
    # THEN that line is filled before each launch, and it is not the step that goes there
    assert len(told) == 1, told
    assert '`g["lr"] = 0.1 / (it + 1)`, belongs before each launch' in told[0], told
    assert "`opt` has been made with `fused=True`" in told[0], told


@pytest.mark.sweep
def test_such_a_rate_in_a_tensor_is_none(tmp_path: Path) -> None:
    # GIVEN the same with a rate in a tensor, which the device moves WHEN diagnosed THEN no rate is told
    text = AHEAD_LOOKING.replace("lr=RATE", "lr=torch.tensor(0.1, device=device), fused=True")
    assert not _told(text.replace("SET", 'g["lr"].mul_(0.9)'), tmp_path, "learning-rate-frozen")


@pytest.mark.parametrize("way", ["", pytest.param("set_to_none=False", marks=pytest.mark.sweep)])
def test_gradients_zeroed_at_times_behind_a_launch_keep_their_memory(tmp_path: Path, way: str) -> None:
    # GIVEN a step that adds up gradients and zeroes them in each second call WHEN diagnosed
    (told,) = _told(AT_TIMES.replace("NONE", way), tmp_path, "branch-frozen")
    # THEN behind the launch they are zeroed in place, as the graph adds to them
    assert told.startswith("the same behind each launch"), told
    assert ("with `opt.zero_grad(set_to_none=False)` at line" in told) == (not way), told


@pytest.mark.parametrize("start", ["self.weights.mean().item()", pytest.param("0.5", marks=pytest.mark.sweep)])
def test_a_number_that_stays_on_the_device_begins_as_its_line_has_it(tmp_path: Path, start: str) -> None:
    # GIVEN a number that each step reads from the device, which has moved by now WHEN diagnosed
    (told,) = _told(BEGINS.replace("START", start), tmp_path, "sync-item")
    # THEN the words have what it begins with
    assert f"`self.alpha = torch.tensor({start}, dtype=torch.float64" in told, told


@pytest.mark.sweep
def test_a_rate_that_is_scaled_is_written_behind_the_launch(tmp_path: Path) -> None:
    # GIVEN a step that halves its rate where the loss stays WHEN diagnosed
    (told,) = _told(PLATEAU, tmp_path, "learning-rate-frozen")
    # THEN that line goes behind the launch, where it writes the tensor in place
    assert '`g["lr"] *= 0.5`, belongs behind each launch' in told, told
    assert "`opt` has been made with `fused=True`" in told, told


def test_a_dictionary_of_tensors_is_written_entry_by_entry(tmp_path: Path) -> None:
    # GIVEN a step that keeps a snapshot of its weights in a dictionary, and reads the last one WHEN diagnosed
    taken = "{k: p.detach().clone() for k, p in net.named_parameters()}"
    (told,) = _told(SNAPSHOT.replace("TAKEN", f"self.old = {taken}"), tmp_path, "stale-input")
    # THEN each of its tensors is written, as a dictionary has no copy_()
    assert f"`for key, new in {taken}.items(): self.old[key].copy_(new)`" in told, told


@pytest.mark.sweep
def test_entries_that_are_written_in_place_are_none(tmp_path: Path) -> None:
    # GIVEN the same as these words have it WHEN diagnosed THEN nothing is told
    taken = "for k, p in net.named_parameters(): self.old[k].copy_(p.detach())"
    assert not _told(SNAPSHOT.replace("TAKEN", taken), tmp_path, "stale-input")


@pytest.mark.parametrize("read", ["weights", pytest.param("(1.0, 2.0)", marks=pytest.mark.sweep)])
def test_numbers_that_go_behind_the_launch_come_back_in_a_tensor(tmp_path: Path, read: str) -> None:
    # GIVEN a step that weighs its losses by numbers which it computes of those that it has read WHEN diagnosed
    (told,) = _told(BALANCED.replace("WEIGHTS", read), tmp_path, "host-counter")
    # THEN what goes behind the launch is given to the next one, where the graph reads it
    assert told.startswith("goes behind each launch, with line"), told
    assert ("`weights_in.copy_(torch.tensor(weights))`, and there `weights_in`" in told) == (read == "weights"), told
