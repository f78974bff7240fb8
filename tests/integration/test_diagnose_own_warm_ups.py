"""What warm-ups leave moved: statistics, weights and random numbers, of programs seen and of captures of before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.driver.sim.libraries import forget
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]


def _notes(text: str, tmp_path: Path) -> list[str]:
    names = load(PRELUDE + text, tmp_path / "program.py")
    with quiet():
        found = pgk.diagnose(names["f"], *names["args"])
    assert not found.failures, found
    return [n for n in found.notes if "warm-up" in n or "make_graphed_callables" in n]


NORM = """
net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to(device)
sample = torch.randn(16, 6, device=device)
AHEAD
graphed = cuda.make_graphed_callables(net, (sample,))
BEHIND
def f(x):
    return graphed(x).sum()
args = (torch.randn(16, 6, device=device),)
"""
AS_A_PROGRAM = """
def f():
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to(device)
    AHEAD
    graphed = cuda.make_graphed_callables(net, (torch.randn(16, 6, device=device),))
    BEHIND
    for i in range(3):
        y = graphed(torch.randn(16, 6, device=device))
    return y.sum().cpu()
args = ()
"""
BACK = {
    ("pass", "pass"): True,
    ("kept = [b.clone() for b in net.buffers()]", "[b.copy_(k) for b, k in zip(net.buffers(), kept)]"): False,
    ("kept = {k: v.clone() for k, v in net.state_dict().items()}", "net.load_state_dict(kept)"): False,
    ("pass", "net[1].reset_running_stats()"): False,
    ("net.eval()", "pass"): False,
}


@pytest.mark.parametrize("around", BACK)
@pytest.mark.parametrize("text", [NORM, AS_A_PROGRAM])
def test_statistics_that_torchs_own_warm_up_moves_are_said(text: str, around: tuple[str, str], tmp_path: Path) -> None:
    # GIVEN a module with statistics that torch graphs, which runs it ahead of its capture
    # WHEN it is diagnosed, with what puts them back or without
    notes = _notes(text.replace("AHEAD", around[0]).replace("BEHIND", around[1]), tmp_path)
    # THEN they are said with lines that put them back, where nothing does
    assert len(notes) == BACK[around], notes
    assert all("`1.running_mean`, `1.running_var`, `1.num_batches_tracked`" in n for n in notes)
    assert all("`kept = [b.clone() for b in net.buffers()]` comes ahead of that line" in n for n in notes)


@pytest.mark.parametrize("text", [NORM, AS_A_PROGRAM])
def test_random_numbers_that_torchs_own_warm_up_draws_are_said(text: str, tmp_path: Path) -> None:
    # GIVEN a module with dropout that torch graphs
    text = text.replace("nn.BatchNorm1d(8)", "nn.Dropout(0.5)")
    state = "state = cuda.get_rng_state()", "cuda.set_rng_state(state)"
    # WHEN it is diagnosed, as it is, and with the generator put back
    moved = _notes(text.replace("AHEAD", "pass").replace("BEHIND", "pass"), tmp_path)
    kept = _notes(text.replace("AHEAD", state[0]).replace("BEHIND", state[1]), tmp_path)
    # THEN only the first is said to draw others
    assert ["draws from the default generator" in n for n in moved] == [True]
    assert "`torch.cuda.set_rng_state(state)` behind it" in moved[0]
    assert not kept


TRAINER = """
import copy
class Trainer:
    def __init__(self):
        self.model = nn.Linear(6, 3).to(device)
        self.opt = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.x = torch.zeros(8, 6, device=device)
        self.graph = None
        EARLY
    def one(self):
        self.opt.zero_grad(set_to_none=True)
        loss = self.model(self.x).square().mean()
        loss.backward()
        self.opt.step()
        return loss
    def capture(self):
        AHEAD
        s = cuda.Stream()
        s.wait_stream(cuda.current_stream())
        with cuda.stream(s):
            for _ in range(3):
                self.one()
        cuda.current_stream().wait_stream(s)
        BEHIND
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.loss = self.one()
    def __call__(self, x):
        self.x.copy_(x)
        if self.graph is None:
            self.capture()
        self.graph.replay()
        return self.loss.clone()
f = Trainer()
args = (torch.randn(8, 6, device=device),)
"""
ZEROS = "[v.zero_() for state in self.opt.state.values() for v in state.values()]"


@pytest.mark.parametrize("early", ["pass", "self.capture()"])
@pytest.mark.parametrize("sound", [False, True])
def test_weights_that_a_warm_up_trains_are_said(sound: bool, early: str, tmp_path: Path) -> None:
    # GIVEN a trainer that captures in its first call, or when it is made, behind a warm-up with its optimizer
    behind = f"self.model.load_state_dict(kept); {ZEROS}" if sound else "pass"
    text = TRAINER.replace("EARLY", early).replace("BEHIND", behind)
    # WHEN it is diagnosed, with what puts the weights back or without
    notes = _notes(text.replace("AHEAD", "kept = copy.deepcopy(self.model.state_dict())"), tmp_path)
    # THEN weights and state are said where they stay moved
    assert ["`self.model`'s weights and `self.opt`'s state" in n for n in notes] == [True][: not sound], notes


DRAWING = """
class Sampler:
    def __init__(self):
        self.x, self.graph = torch.zeros(4, 6, device=device), None
        EARLY
    def work(self):
        return self.x + torch.randn_like(self.x)
    def capture(self):
        state = cuda.get_rng_state()
        for _ in range(3):
            self.work()
        BEHIND
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = self.work()
    def __call__(self, x):
        self.x.copy_(x)
        if self.graph is None:
            self.capture()
        self.graph.replay()
        return self.out.clone()
f, args = Sampler(), (torch.randn(4, 6, device=device),)
"""


@pytest.mark.parametrize("early", ["pass", "self.capture()"])
@pytest.mark.parametrize("behind", ["pass", "cuda.set_rng_state(state)"])
def test_a_warm_up_that_moves_the_default_generator_is_said(early: str, behind: str, tmp_path: Path) -> None:
    # GIVEN a sampler that draws from the default generator, and so does its warm-up
    # WHEN it is diagnosed
    notes = _notes(DRAWING.replace("EARLY", early).replace("BEHIND", behind), tmp_path)
    # THEN that is said where nothing puts it back
    assert ["draws from the default generator" in n for n in notes] == [True][: behind == "pass"], notes


CELL = """
class Cell:
    def __init__(self):
        self.x, self.h = torch.zeros(4, device=device), torch.ones(4, device=device)
        self.out = torch.zeros(4, device=device)
        for _ in range(3):
            self.work()
        BEHIND
        self.g = cuda.CUDAGraph()
        with cuda.graph(self.g):
            self.work()
    def work(self):
        new = torch.tanh(self.h + self.x)
        self.h.copy_(new)
        self.out.copy_(self.h * 2)
    def __call__(self, x):
        self.x.copy_(x)
        self.g.replay()
        return self.out.clone()
f, args = Cell(), (torch.randn(4, device=device),)
"""


@pytest.mark.parametrize("behind", ["pass", "self.h.fill_(1)"])
def test_a_state_that_the_warm_up_of_a_capture_of_before_moves_is_said(behind: str, tmp_path: Path) -> None:
    # GIVEN a cell that captures when it is made, behind calls that move its state and fill its result
    # WHEN it is diagnosed
    notes = _notes(CELL.replace("BEHIND", behind), tmp_path)
    # THEN the state is said where it stays moved, and the result never
    assert ["has moved `self.h`, and nothing" in n for n in notes] == [True][: behind == "pass"], notes


DECODING = """
def f():
    cache, total = torch.zeros(6, 4, device=device), torch.zeros(4, device=device)
    at, x = torch.zeros(1, dtype=torch.long, device=device), torch.ones(1, 4, device=device)
    def decode():
        cache.index_copy_(0, at, x)
        total.copy_(cache.sum(0))
        MOVES
    for _ in range(2):
        decode()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        decode()
    for i in range(3):
        x.fill_(float(i))
        g.replay()
    return total.cpu()
args = ()
"""


@pytest.mark.parametrize("moves", ["at.add_(1)", "pass"])
def test_a_cache_that_a_warm_up_fills_is_said_where_its_place_moves(moves: str, tmp_path: Path) -> None:
    # GIVEN decoding that writes to a cache at a place of the device's, which may move on
    # WHEN it is diagnosed
    notes = _notes(DECODING.replace("MOVES", moves), tmp_path)
    # THEN the cache is said with the place, and not where each replay writes to the same one
    assert ["has moved `at` and `cache`, and nothing" in n for n in notes] == [True][: moves != "pass"], notes


COLD = """
def f():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1)).to(device)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    h, out, x = (torch.zeros(8, n, device=device) for n in (1, 1, 4))
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        opt.zero_grad(set_to_none=True)
        y = net(x)
        h.lerp_(y.detach(), 0.1)
        out.copy_(h)
        y.square().mean().backward()
        opt.step()
    g.replay()
    return out.cpu()
"""


def test_the_words_for_a_cold_library_put_back_variables_that_the_capture_moves(tmp_path: Path) -> None:
    # GIVEN a process that has used no library yet, and a program whose capture moves a variable of its function
    names = load(PRELUDE + COLD, tmp_path / "program.py")
    pgk.device()
    forget()
    # WHEN it is diagnosed
    with quiet():
        told = next(f for f in pgk.diagnose(names["f"]).failures if f.code == "cold-library")
    # THEN its words keep that, and no result, and put it back beside weights and statistics
    assert "kept = [t.detach().clone() for t in (h,)]; " in told.fix
    assert "put back what that moves (`h`, `[t.detach().copy_(k) for t, k in zip((h,), kept)]`, the weights" in told.fix
    assert "rng = torch.cuda.get_rng_state(); s = " in told.fix
    assert "the default generator, `torch.cuda.set_rng_state(rng)`)" in told.fix


THIRD = """
class Phased:
    def __init__(self):
        self.w, self.h = torch.eye(4, device=device), torch.zeros(2, 4, device=device)
        self.x, self.side, self.graph = None, None, None
    def work(self):
        self.h.add_(SUM)
        return self.h * 2
    def __call__(self, x):
        if self.x is None:
            self.x = x.clone()
            return x * 2
        self.x.copy_(x)
        if self.side is None:
            self.side = cuda.Stream()
            return x * 2
        if self.graph is None:
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.out = self.work()
        self.graph.replay()
        return self.out.clone()
f, args = Phased(), (torch.randn(2, 4, device=device),)
"""
SUMS = {
    "self.x.sum().item()": ("sync-item", ""),
    "self.x @ self.w": ("cold-library", "(`self.h`, `[t.detach().copy_(k) for t, k in zip((self.h,), kept)]`); then"),
}


@pytest.mark.parametrize("added", SUMS)
def test_a_capture_that_fails_in_the_third_call_is_told_alone(added: str, tmp_path: Path) -> None:
    # GIVEN a step whose first calls make what it needs, without a count, and whose third captures in vain
    names = load(PRELUDE + THIRD.replace("SUM", added), tmp_path / "program.py")
    pgk.device()
    forget()
    # WHEN it is diagnosed
    with quiet():
        found = pgk.diagnose(names["f"], *names["args"])
    # THEN what the capture refuses is told, and nothing of the calls ahead of it
    code, words = SUMS[added]
    assert [f.code for f in found.failures] == [code]
    assert words in found.failures[0].fix


STEPS = """
def f():
    x, h, g = torch.zeros(4, device=device), torch.zeros(4, device=device), None
    def work():
        h.mul_(0.9).add_(x).add_(torch.randn_like(x))
    s = cuda.Stream()
    for i in range(6):
        x.fill_(float(i))
        if i < 3:
            s.wait_stream(cuda.current_stream())
            with cuda.stream(s):
                work()
            cuda.current_stream().wait_stream(s)
        else:
            if g is None:
                g = cuda.CUDAGraph()
                with cuda.graph(g):
                    work()
            g.replay()
    return h.cpu()
args = ()
"""


def test_first_steps_of_the_programs_own_are_no_warm_up(tmp_path: Path) -> None:
    # GIVEN a program whose first rounds take their steps on a side stream, and whose fourth captures
    # WHEN it is diagnosed THEN nothing is said of what they move: eager code has it moved, too
    assert not _notes(STEPS, tmp_path)


def test_a_step_on_a_side_stream_that_waits_for_nothing_is_told_with_the_name_that_its_caller_has(
    tmp_path: Path,
) -> None:
    # GIVEN the same whose side stream does not wait for what fills the input
    names = load(
        PRELUDE + STEPS.replace("            s.wait_stream(cuda.current_stream())\n", ""), tmp_path / "program.py"
    )
    # WHEN it is diagnosed THEN the stream has to wait around the line that calls this, which has its name
    (told,) = pgk.diagnose(names["f"], *names["args"]).failures
    assert told.code == "work-elsewhere"
    line = next(
        i
        for i, each in enumerate((tmp_path / "program.py").read_text().split("\n"), 1)
        if "with cuda.stream(s)" in each
    )
    words = f"the `with` around line {line + 1}, which calls this: s.wait_stream(cuda.current_stream())"
    assert words in told.fix


SERVED = """
class Cache:
    def __init__(self, module):
        self.module, self.table = module, {}
    def __call__(self, x):
        if x.shape not in self.table:
            static, side = x.clone(), cuda.Stream()
            AHEAD
            with cuda.stream(side), torch.no_grad():
                self.module(static)
            BEHIND
            graph = cuda.CUDAGraph()
            with cuda.graph(graph), torch.no_grad():
                out = self.module(static)
            self.table[x.shape] = graph, static, out
        graph, static, out = self.table[x.shape]
        static.copy_(x)
        graph.replay()
        return out.clone()
f = Cache(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to(device))
args = (torch.randn(16, 6, device=device),)
"""


@pytest.mark.parametrize(
    ("ahead", "behind", "is_said"),
    [
        ("pass", "pass", True),
        pytest.param(
            "kept = {k: v.clone() for k, v in self.module.state_dict().items()}",
            "self.module.load_state_dict(kept)",
            False,
            marks=pytest.mark.sweep,
        ),
        pytest.param("self.module.eval()", "pass", False, marks=pytest.mark.sweep),
    ],
)
def test_a_warm_up_that_drops_what_the_capture_keeps_is_one(
    ahead: str, behind: str, is_said: bool, tmp_path: Path
) -> None:
    # GIVEN a table of graphs of one of torch's modules, whose warm-up calls it as the capture does, and keeps nothing
    # WHEN it is diagnosed THEN statistics that it moves are said, where nothing puts them back
    notes = _notes(SERVED.replace("AHEAD", ahead).replace("BEHIND", behind), tmp_path)
    assert [("buffers" in n) for n in notes] == [True] * is_said
