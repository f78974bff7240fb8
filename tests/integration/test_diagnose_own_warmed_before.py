"""Warm-ups of captures of before, through helpers, of gradients, and with graphs in tables: what they move is said."""

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
TRAINER = """
class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Linear(6, 3).to(device)
        self.opt = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.graphs, self.held = {}, {}
    def one(self, x):
        self.opt.zero_grad(set_to_none=False)
        loss = self.model(x).square().mean()
        loss.backward()
        self.opt.step()
        return loss
    def settle(self, x):
        s = cuda.Stream()
        s.wait_stream(cuda.current_stream())
        with cuda.stream(s):
            for _ in range(3):
                self.one(x)
        cuda.current_stream().wait_stream(s)
    def build(self, key, x):
        buffer = x.clone()
        WARM
        BEHIND
        NEW
            loss = self.one(buffer)
        KEEP
        self.held[key] = buffer, loss
    def __call__(self, x):
        key = tuple(x.shape)
        if key not in self.graphs:
            self.build(key, x)
        buffer, loss = self.held[key]
        buffer.copy_(x)
        self.graphs[key].replay()
        return loss.clone()
f, args = Trainer(), (torch.randn(8, 6, device=device),)
f(*args)
"""
FUNCTIONS = """
torch.manual_seed(0)
average, total = torch.zeros(6, device=device), torch.zeros(6, device=device)
graphs = {}
def update(x):
    average.lerp_(x.mean(0), 0.1)
    return x + average
def settle(fn, *args, times=2):
    s = cuda.Stream()
    s.wait_stream(cuda.current_stream())
    with cuda.stream(s):
        for _ in range(times):
            fn(*args)
    cuda.current_stream().wait_stream(s)
def graphed(fn, x):
    static = x.clone()
    WARM
    BEHIND
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        out = fn(static)
    return g, static, out
def f(x):
    if x.shape not in graphs:
        graphs[x.shape] = graphed(update, x)
    g, static, out = graphs[x.shape]
    static.copy_(x)
    g.replay()
    return out.clone()
args = (torch.randn(8, 6, device=device),)
f(*args)
"""
GRADIENTS = """
class Accumulating:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Linear(6, 1).to(device)
        self.opt = torch.optim.SGD(self.net.parameters(), 0.1)
        self.x = torch.zeros(8, 6, device=device)
        for _ in range(2):
            self.work()
        BEHIND
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.loss = self.work()
    def work(self):
        loss = self.net(self.x + 1).square().mean()
        loss.backward()
        return loss
    def __call__(self, x):
        self.x.copy_(x)
        AHEAD
        self.graph.replay()
        self.opt.step()
        LATER
        return self.loss.clone()
f, args = Accumulating(), (torch.randn(8, 6, device=device),)
"""
ZERO = "self.opt.zero_grad(set_to_none=False)"


def _notes(text: str, tmp_path: Path) -> list[str]:
    names = load(PRELUDE + text, tmp_path / "program.py")
    with quiet():
        found = pgk.diagnose(names["f"], *names["args"])
    assert not found.failures, found
    return [note for note in found.notes if "warm-up" in note]


@pytest.mark.parametrize("warm", ["self.settle(buffer)", "for _ in range(3): self.one(buffer)"])
@pytest.mark.parametrize(
    ("new", "keep"),
    [
        ("g = cuda.CUDAGraph()\n        with cuda.graph(g):", "self.graphs[key] = g"),
        ("self.graphs[key] = g = cuda.CUDAGraph()\n        with cuda.graph(g):", "pass"),
        ("self.graphs[key] = cuda.CUDAGraph()\n        with cuda.graph(self.graphs[key]):", "pass"),
    ],
)
def test_weights_that_a_warm_up_of_a_graph_in_a_table_trains_are_said(
    warm: str, new: str, keep: str, tmp_path: Path
) -> None:
    # GIVEN a trainer with a graph for each shape, captured before, behind a warm-up in lines or through a method
    text = TRAINER.replace("WARM", warm).replace("NEW", new).replace("KEEP", keep).replace("BEHIND", "pass")
    # WHEN it is diagnosed
    notes = _notes(text, tmp_path)
    # THEN weights and state are said to stay moved
    assert ["`self.model`'s weights and `self.opt`'s state" in n for n in notes] == [True], notes


def test_weights_that_are_put_back_behind_such_a_warm_up_are_not_said(tmp_path: Path) -> None:
    # GIVEN the same with what puts both back
    back = (
        "kept = [p.detach().clone() for p in self.model.parameters()]\n        self.settle(buffer)\n        "
        "[p.data.copy_(k) for p, k in zip(self.model.parameters(), kept)]"
    )
    text = TRAINER.replace("WARM", back).replace("NEW", "g = cuda.CUDAGraph()\n        with cuda.graph(g):")
    text = text.replace("KEEP", "self.graphs[key] = g")
    text = text.replace("BEHIND", "[v.zero_() for state in self.opt.state.values() for v in state.values()]")
    # WHEN it is diagnosed
    # THEN nothing is said
    assert _notes(text, tmp_path) == []


@pytest.mark.parametrize("warm", ["settle(fn, static)", "for _ in range(2): fn(static)"])
@pytest.mark.parametrize("behind", ["pass", "average.zero_()"])
def test_a_state_that_the_warm_up_of_a_function_given_to_it_moves_is_said(
    behind: str, warm: str, tmp_path: Path
) -> None:
    # GIVEN a function that captures the function it is given, whose results another one keeps by shape
    text = FUNCTIONS.replace("WARM", warm).replace("BEHIND", behind)
    # WHEN it is diagnosed
    notes = _notes(text, tmp_path)
    # THEN the state is said where it stays moved
    assert ["has moved `average`" in n for n in notes] == [True][: behind == "pass"], notes


ALL = "average, total"


@pytest.mark.parametrize(
    ("behind", "said"),
    [
        (f"for t, old in zip(({ALL}), kept): t.copy_(old)", False),
        (f"[t.copy_(old) for t, old in zip([{ALL}], kept)]", False),
        ("for t, old in zip(both, kept): t.copy_(old)", False),
        ("for t, old in zip(states(), kept): t.copy_(old)", False),
        (f"for n, t in enumerate(({ALL})): t.copy_(kept[n])", False),
        (f"torch._foreach_copy_([{ALL}], kept)", False),
        ("for t, old in zip((total,), kept): t.copy_(old)", True),
        (f"for t, old in zip(({ALL}), kept): old.copy_(t)", True),
    ],
)
def test_states_that_a_loop_puts_back_one_by_one_are_not_said(behind: str, said: bool, tmp_path: Path) -> None:
    # GIVEN a warm-up that moves a state, and lines behind it that put several back, or others alone
    text = FUNCTIONS.replace("WARM", f"kept = [t.clone() for t in ({ALL})]\n    settle(fn, static)")
    text = text.replace("graphs = {}", f"graphs = {{}}\ndef states():\n    return [{ALL}]")
    if "both" in behind:
        text = text.replace("graphs = {}", f"graphs, both = {{}}, ({ALL})")
    # WHEN it is diagnosed
    notes = _notes(text.replace("BEHIND", behind), tmp_path)
    # THEN it is said where it stays moved
    assert ["has moved `average`" in n for n in notes] == [True][:said], notes


@pytest.mark.parametrize("behind", ["pass", "[p.zero_() for p in parts]"])
def test_a_list_of_averages_that_such_a_warm_up_moves_is_said(behind: str, tmp_path: Path) -> None:
    # GIVEN the same with a list of averages, which a loop goes on from
    text = FUNCTIONS.replace("average.lerp_(x.mean(0), 0.1)", "for p in parts: p.lerp_(x.mean(0), 0.1)")
    text = text.replace("graphs = {}", "graphs, parts = {}, [torch.zeros(6, device=device) for _ in range(2)]")
    # WHEN it is diagnosed
    notes = _notes(text.replace("WARM", "settle(fn, static)").replace("BEHIND", behind), tmp_path)
    # THEN the list is said where it stays moved
    assert ["has moved `parts`'s tensors" in n for n in notes] == [True][: behind == "pass"], notes


@pytest.mark.parametrize(
    ("behind", "ahead", "later", "said"),
    [
        ("pass", "pass", ZERO, True),
        ("pass", "pass", "[p.grad.zero_() for p in self.net.parameters()]", True),
        (ZERO, "pass", ZERO, False),
        ("pass", ZERO, "pass", False),
        ("[p.grad.zero_() for p in self.net.parameters()]", "pass", ZERO, False),
    ],
)
def test_gradients_that_a_warm_up_of_before_leaves_are_said(
    behind: str, ahead: str, later: str, said: bool, tmp_path: Path
) -> None:
    # GIVEN an object that captures its backward pass when it is made, behind a warm-up, and steps itself
    text = GRADIENTS.replace("BEHIND", behind).replace("AHEAD", ahead).replace("LATER", later)
    # WHEN it is diagnosed
    notes = _notes(text, tmp_path)
    # THEN the gradients are said that the first replay adds to, where nothing zeroes them ahead of it
    assert ["`self.net`'s gradients" in n and "(zero the gradients)" in n for n in notes] == [True][:said], notes
