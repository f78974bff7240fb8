"""Attributes that are None until a call gives them a tensor, and gradients that are None where a program raises."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
HEAD = "import torch\nfrom torch import nn\nimport paramgraph_kit as pgk\ncuda, device = pgk.cuda, pgk.device()\n"
SCALED = (
    HEAD
    + """
class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Linear(4, 1).to(device)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
        self.x, self.graph = torch.zeros(2, 4, device=device), None

    def backward(self):
        self.scaler.scale(self.net(self.x).pow(2).mean() / 2).backward()

    def capture(self):
        self.backward()
        self.opt.zero_grad(set_to_none=False)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.backward()

    def step(self, batches):
        for x in batches:
            self.x.copy_(x)
            if self.graph is None:
                self.capture()
            self.graph.replay()
        self.scaler.unscale_(self.opt)
        self.scaler.step(self.opt)
        self.scaler.update()
        self.opt.zero_grad(set_to_none=NONE)

data = torch.ones(3, 2, 2, 4)
def main():
    trainer = Trainer()
    for pair in data:
        trainer.step(pair)
    return [p.tolist() for p in trainer.net.parameters()]
"""
)


@pytest.mark.parametrize("none", [True, False])
def test_gradients_that_are_none_where_a_scaler_raises_are_told(none: bool, tmp_path: Path) -> None:
    # GIVEN gradients of two replays, which a line sets to None (or to zero) behind the step of a scaler
    names = load(SCALED.replace("NONE", str(none)), tmp_path / "program.py")
    # WHEN the program, whose scaler raises in its second step for want of gradients, is diagnosed
    found = pgk.diagnose(names["main"])
    # THEN that line is told, no sum over the replays is, and the exception is what comes of it
    told = [(f.code, f.frame.text if f.frame else "") for f in found.failures]
    assert told == [("gradients-rebound", "self.opt.zero_grad(set_to_none=True)")] * none, found
    assert any("it ends in AssertionError" in note for note in found.notes) == none


PIPELINE = (
    HEAD
    + """
class Pipeline:
    def __init__(self):
        self.net = nn.Linear(4, 4).to(device).requires_grad_(False)
        self.x, self.graph = torch.zeros(2, 4, device=device), None
        CONTEXT

    def capture(self):
        self.net(self.x)
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = self.net(self.x) + self.context

    def __call__(self, x, scale):
        self.context = scale * torch.ones(2, 4, device=device)
        self.x.copy_(x)
        if self.graph is None:
            self.capture()
        self.graph.replay()
        return self.y.clone()

def main():
    pipeline = Pipeline()
    return [pipeline(torch.ones(2, 4, device=device), i).tolist() for i in range(3)]
"""
)
COPY = "self.context.copy_(scale * torch.ones(2, 4, device=device))"


@pytest.mark.parametrize(
    ("begun", "is_none"),
    [
        ("self.context = None", True),
        ("self.context, self.calls = None, 0", True),
        ("self.context: torch.Tensor | None = None", True),
        ("self.context = torch.zeros(2, 4, device=device)", False),
    ],
)
def test_what_is_none_at_first_is_written_once_it_is_a_tensor(begun: str, is_none: bool, tmp_path: Path) -> None:
    # GIVEN an attribute that each call gives another tensor, and that its object begins with None, or with a tensor
    names = load(PIPELINE.replace("CONTEXT", begun), tmp_path / "program.py")
    # WHEN it is diagnosed
    found = pgk.diagnose(names["main"])
    # THEN the words write into it, and only once there is one
    (failure,) = found.failures
    assert failure.code == "stale-input"
    assert (f"`if self.context is not None: {COPY}`" in failure.fix) == is_none, failure.fix
    assert ("else this line as it is" in failure.fix) == is_none
    assert COPY in failure.fix
    # AND the program that follows them gives the numbers of an eager one
    line = "self.context = scale * torch.ones(2, 4, device=device)"
    mended = f"if self.context is not None: {COPY}\n        else: {line}" if is_none else COPY
    other = load(PIPELINE.replace("CONTEXT", begun).replace(line, mended), tmp_path / "mended.py")
    outs = torch.tensor(other["main"]())
    assert (outs[1] - outs[0]).allclose(torch.ones(2, 4))


OF_A_STEP = """
class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.net = torch.nn.Linear(8, 1).to(device)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler(torch.device(device).type, init_scale=8.0)
        self.x = torch.zeros(4, 8, device=device)
        self.graph = None

    def both(self):
        self.loss = self.net(self.x).square().mean()
        SCALED.backward()

    def capture(self):
        self.both()
        self.loss = None  # or the gradients would accumulate on the default stream, also in the capture
        self.opt.zero_grad()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.both()

    def step(self, x):
        self.x.copy_(x)
        if self.graph is None:
            self.capture()
        self.graph.replay()
        LEARN
        ZERO
        return self.loss.detach().clone()
"""
OF_STEPS = {
    "scaled": ("self.scaler.scale(self.loss)", "self.scaler.step(self.opt); self.scaler.update()"),
    "by hand": ("self.loss", "[p.data.sub_(p.grad, alpha=0.1) for p in self.net.parameters()]"),
}


@pytest.mark.parametrize("zero", ["self.opt.zero_grad()", "self.opt.zero_grad(set_to_none=False)"])
@pytest.mark.parametrize("form", OF_STEPS)
def test_a_step_that_raises_without_gradients_is_told_what_sets_them_to_none(
    form: str, zero: str, tmp_path: Path
) -> None:
    # GIVEN a step whose first call captures, and whose later ones raise where gradients are None
    scaled, learn = OF_STEPS[form]
    text = OF_A_STEP.replace("SCALED", scaled).replace("LEARN", learn).replace("ZERO", zero)
    trainer = load(HEAD + text, tmp_path / "program.py")["Trainer"]()
    # WHEN
    found = pgk.diagnose(trainer.step, torch.ones(4, 8, device=pgk.device()))
    # THEN the line that sets them is told, where it does
    told = [(f.code, f.frame.text) for f in found.failures if f.frame is not None]
    assert told == [("gradients-rebound", zero)] * ("False" not in zero), found
