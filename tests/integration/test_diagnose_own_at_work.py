"""Programs at work: a rate at which a step is captured anew, numbers in a list of results, simulators of modules."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
STEPPER = """
torch.manual_seed(0)
net = nn.Linear(4, 1).to(device)
opt = torch.optim.Adam(net.parameters(), lr=1e-2, capturable=True)
sched = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
class Stepper:
    def __init__(self):
        self.graph, self.rows, self.seen = None, torch.zeros(6, 4, device=device), 0
    def once(self, rows):
        opt.zero_grad(set_to_none=True)
        loss = net(rows).square().mean()
        loss.backward()
        opt.step()
        return loss.detach()
    def record(self):
        self.rate = opt.param_groups[0]["lr"]
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.loss = self.once(self.rows)
    def __call__(self, rows):
        self.rows.copy_(rows)
        self.seen += 1
        if self.seen <= 2:
            return self.once(self.rows)
        if TEST:
            self.record()
        self.graph.replay()
        return self.loss
stepper = Stepper()
def epoch(batches):
    losses = []
    for rows in batches:
        loss = stepper(rows) if len(rows) == 6 else stepper.once(rows)
        LOOP
    sched.step()
    return losses
def feed(i):
    g = torch.Generator().manual_seed(i)
    return ([torch.randn(n, 4, generator=g).to(device) for n in (6, 6, 6, 6, 3)],)
f, args = epoch, feed(0)
"""
AS_NUMBERS = "losses.append(loss.item())"
EITHER = """if detailed:
            losses.append(loss)
        else:
            losses.append(loss.item())"""
SOLVER = """
class Cavity(nn.Module):
    def __init__(self, lid):
        super().__init__()
        self.lap = nn.Conv2d(1, 1, 3, 1, 1, bias=False).to(device)
        self.u, self.lid, self.steps = torch.zeros(1, 1, 6, 6, device=device), lid, 0
        self.graph = None
        self.prepare()
    def kernel(self):
        self.u.copy_(self.u + 0.1 * self.lap(self.u))
        self.u[0, 0, -1, :] = self.lid
    def prepare(self):
        WARM
    def step(self):
        self.graph.replay()
        self.steps += 1
def f(lid):
    torch.manual_seed(0)
    cavity = Cavity(lid)
    for _ in range(4):
        cavity.step()
    return cavity.u.mean().item()
args = (0.5,)
"""
CAPTURE = """self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.kernel()"""
IN_NO_GRAD = f"""with torch.no_grad():
            for _ in range(3):
                self.kernel()
            {CAPTURE}"""
IN_TRY = f"""try:
            with torch.no_grad():
                for _ in range(3):
                    self.kernel()
        except RuntimeError:
            raise
        with torch.no_grad():
            {CAPTURE}"""
PUT_BACK = f"""with torch.no_grad():
            for _ in range(3):
                self.kernel()
            self.u.zero_()
            {CAPTURE}"""

NORMED = """
torch.manual_seed(0)
class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.shape, self.stage = nn.Linear(6, 4).to(device), None, torch.zeros(5, 6, device=device)
    def run(self, x):
        return F.silu(self.fc(x)).amin(1)
    @torch.no_grad()
    def forward(self, x):
        if self.shape != x.shape:
            self.shape, self.x = x.shape, torch.zeros_like(x)
            self.run(self.x)
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                INSIDE
                self.out = self.run(self.x)
        AHEAD
        self.graph.replay()
        return self.out.clone()
f, args = Normed(), (torch.randn(5, 6, device=device),)
CALLED
"""
COPY = "self.x.copy_(x)"

DECODER = """
torch.manual_seed(0)
class Decoder:
    def __init__(self):
        self.table, self.graph = torch.randn(12, 4).to(device), None
        self.angle, self.x = self.table[0:1].clone(), torch.zeros(1, 4, device=device)
    def compute(self):
        return torch.tanh(self.x * self.angle).sum()
    def step(self, x, at):
        self.x.copy_(x)
        if at > 0 and self.graph is None and self.wanted:
            self.compute()
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.compute()
        if TEST:
            if at > 4:
                self.angle = self.table[at : at + 1]
                return self.compute()
            self.angle.copy_(self.table[at : at + 1])
            self.graph.replay()
            return self.out
        self.angle = self.table[at + 0 : at + 1]
        return self.compute()
decoder = Decoder()
decoder.wanted = True
def f(x):
    return [decoder.step(x, at).item() for at in (1, 2, 5, 3)]
args = (torch.randn(1, 4, device=device),)
"""


def diagnosed(text: str, folder: Path) -> pgk.Report:
    """What is found of the program's own function."""
    names = load(PRELUDE + text, folder / "program.py")
    with quiet():
        return pgk.diagnose(names["f"], *names["args"])


@pytest.mark.parametrize("test", ["self.graph is None or self.rate != opt.param_groups[0]['lr']", "self.graph is None"])
def test_a_rate_at_which_a_step_is_captured_anew_is_no_problem(test: str, tmp_path: Path) -> None:
    # GIVEN a step whose optimizer has a number as its rate, which each epoch moves, captured anew then, or once
    text = STEPPER.replace("TEST", test).replace("LOOP", AS_NUMBERS)
    # WHEN an epoch is diagnosed
    found = diagnosed(text, tmp_path)
    # THEN the rate is told where a replay has the old one
    assert [f.code for f in found.failures] == ([] if "rate" in test else ["learning-rate-frozen"])


def test_numbers_in_a_list_that_has_results_too_are_no_results(tmp_path: Path) -> None:
    # GIVEN a list that gets a graph's result in one branch, and its number in the other
    test = "self.graph is None or self.rate != opt.param_groups[0]['lr']"
    text = (
        STEPPER.replace("TEST", test).replace("LOOP", EITHER).replace("epoch(batches)", "epoch(batches, detailed=True)")
    )
    # WHEN an epoch is diagnosed
    found = diagnosed(text, tmp_path)
    # THEN the line with the result is told alone
    assert [f.frame.text for f in found.failures if f.frame is not None] == ["losses.append(loss)"]


@pytest.mark.parametrize(("warm", "is_said"), [(IN_NO_GRAD, True), (IN_TRY, True), (PUT_BACK, False)])
def test_what_a_warm_up_in_a_block_has_moved_is_said(warm: str, is_said: bool, tmp_path: Path) -> None:
    # GIVEN a simulator that warms up in the block that captures, and counts its steps behind each replay
    # WHEN it is diagnosed
    found = diagnosed(SOLVER.replace("WARM", warm), tmp_path)
    # THEN its count is no problem, and what the warm-up has moved is said unless it is put back
    assert not found.failures
    assert any("has moved `self.u`" in note for note in found.notes) == is_said


@pytest.mark.parametrize("called", ["", "f(torch.randn(5, 6, device=device))"])
@pytest.mark.parametrize(
    ("inside", "ahead", "is_told"),
    [
        (COPY, COPY, True),
        ("pass", COPY, False),
        ("self.x.copy_(self.stage)", "self.stage.copy_(x)", False),
        ("self.x.copy_(self.stage)", "self.x.zero_(); self.stage.copy_(x)", False),
    ],
)
def test_a_copy_that_was_captured_writes_over_what_calls_copy(
    inside: str, ahead: str, is_told: bool, called: str, tmp_path: Path
) -> None:
    # GIVEN a module that copies its input within the capture, or ahead of it, and is called before, or not
    text = NORMED.replace("INSIDE", inside).replace("AHEAD", ahead).replace("CALLED", called)
    # WHEN it is diagnosed
    found = diagnosed(text, tmp_path)
    # THEN the captured copy is told, of an input of before as one that is gone
    assert [f.code for f in found.failures] == ([("freed" if called else "stale") + "-input"] if is_told else [])


@pytest.mark.parametrize("test", ["isinstance(self.graph, cuda.CUDAGraph)", "self.graph is not None", "self.graph"])
def test_a_line_for_calls_without_a_graph_is_not_told(test: str, tmp_path: Path) -> None:
    # GIVEN a buffer that a way beside the replay exchanges, and a way without any graph, too
    # WHEN the loop is diagnosed
    found = diagnosed(DECODER.replace("TEST", test), tmp_path)
    # THEN the way of calls that have a graph is told alone
    assert [f.frame.text for f in found.failures if f.frame is not None] == ["self.angle = self.table[at : at + 1]"]
