"""Gradients that a warm-up leaves, to which a captured step adds, and a zero_grad() that no replay sees."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
FUNCTION = """
def main():
    torch.manual_seed(0)
    net, x = nn.Linear(4, 1).to(device), torch.zeros(3, 4, device=device)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    kept = [p.detach().clone() for p in net.parameters()]
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(3):
            opt.zero_grad()
            net(x).square().mean().backward()
            opt.step()
    cuda.current_stream().wait_stream(side)
    with torch.no_grad():
        for p, k in zip(net.parameters(), kept):
            p.copy_(k)
    AHEAD
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        WITHIN
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
    losses = []
    for i in range(4):
        x.fill_(1.0 + i)
        BEFORE
        g.replay()
        losses.append(loss.detach().clone())
        BEHIND
    return torch.stack(losses)
"""
OBJECT = """
class Loop:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Linear(4, 1).to(device)
        self.optim = torch.optim.Adam(self.net.parameters(), lr=0.1, capturable=True)
        self.rows, self.recorded = torch.zeros(3, 4, device=device), None

    def learn(self):
        WITHIN
        loss = self.net(self.rows).abs().mean()
        loss.backward()
        self.optim.step()
        return loss.detach()

    def record(self):
        state = {k: v.clone() for k, v in self.net.state_dict().items()}
        for _ in range(2):
            self.learn()
            self.optim.zero_grad()
        self.learn()
        self.net.load_state_dict(state)
        for s in self.optim.state.values():
            for v in s.values():
                v.zero_()
        AHEAD
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            self.out = self.learn()
        self.recorded = graph

    def clear(self):
        BEFORE

    def __call__(self, rows):
        if self.recorded is None:
            self.record()
        self.rows.copy_(rows)
        self.clear()
        self.recorded.replay()
        BEHIND
        return self.out.clone()

def main():
    loop, found = Loop(), []
    for i in range(4):
        found.append(loop(torch.full((3, 4), 1.0 + i, device=device)))
    return torch.stack(found)
"""
ADDS = "gradients-accumulate"
NULLS = "gradients-rebound"
# where zero_grad() stands: ahead of the capture, within, ahead of each replay, behind it; and what is told
WAYS = {
    "none ahead of each replay": ("pass", "pass", "OPT.zero_grad()", "pass", True),
    "none behind each replay": ("pass", "pass", "pass", "OPT.zero_grad(set_to_none=True)", True),
    "by hand": ("pass", "pass", "for p in NET.parameters(): p.grad = None", "pass", True),
    "nowhere": ("pass", "pass", "pass", "pass", True),
    "zeros ahead of each replay": ("pass", "pass", "OPT.zero_grad(set_to_none=False)", "pass", False),
    "in the graph": ("pass", "OPT.zero_grad()", "pass", "pass", False),
    "in the graph and outside": ("pass", "OPT.zero_grad()", "OPT.zero_grad()", "pass", False),
    "none at the capture": ("OPT.zero_grad()", "pass", "pass", "pass", False),
    "none at the capture and outside": ("OPT.zero_grad()", "pass", "OPT.zero_grad()", "pass", False),
}
PROGRAMS = {"a function": (FUNCTION, "opt", "net"), "an object": (OBJECT, "self.optim", "self.net")}


@pytest.mark.parametrize("form", PROGRAMS)
@pytest.mark.parametrize("way", WAYS)
def test_a_captured_step_that_adds_to_what_a_warm_up_left_is_told(way: str, form: str, tmp_path: Path) -> None:
    # GIVEN a graph of a whole training step, whose warm-up leaves gradients, or whose lines clear them somewhere
    text, opt, net = PROGRAMS[form]
    *lines, wrong = WAYS[way]
    for place, line in zip(("AHEAD", "WITHIN", "BEFORE", "BEHIND"), lines, strict=True):
        text = text.replace(place, str(line).replace("OPT", opt).replace("NET", net))
    names = load(PRELUDE + text, tmp_path / "program.py")
    # WHEN
    found = pgk.diagnose(names["main"])
    # THEN only where nothing clears the tensors that the graph adds to, it is told what does
    told = [f.code for f in found.failures]
    assert (told in ([ADDS], [NULLS])) if wrong else not told, found


@pytest.mark.parametrize("calls", [0, 2])
@pytest.mark.parametrize("way", WAYS)
def test_an_object_whose_graph_adds_to_what_is_none_by_now_is_told(way: str, calls: int, tmp_path: Path) -> None:
    # GIVEN the same object, which captures in its first call, called already or not
    *lines, wrong = WAYS[way]
    text = OBJECT
    for place, line in zip(("AHEAD", "WITHIN", "BEFORE", "BEHIND"), lines, strict=True):
        text = text.replace(place, str(line).replace("OPT", "self.optim").replace("NET", "self.net"))
    loop, rows = load(PRELUDE + text, tmp_path / "program.py")["Loop"](), torch.ones(3, 4, device=pgk.device())
    for i in range(calls):
        loop(rows + i)
    # WHEN its call is diagnosed
    found = pgk.diagnose(loop, rows)
    # THEN the same is told
    told = [f.code for f in found.failures]
    assert (told in ([ADDS], [NULLS])) if wrong else not told, found
