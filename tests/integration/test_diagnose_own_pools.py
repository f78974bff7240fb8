"""Graphs of one pool that read what another one makes there, and one that writes over that between the two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PAIRS = """
class Pairs:
    def __init__(self):
        self.up, self.down = nn.Linear(6, 6).to(device), nn.Linear(6, 6).to(device)
        self.pool, self.kept, self.known = cuda.graph_pool_handle(), [], {}
        for n in (8, 4):
            self.capture(n)
    @torch.no_grad()
    def capture(self, n):
        x = torch.zeros(n, 6, device=device)
        pool = POOL
        self.down(self.up(x))
        first, second = cuda.CUDAGraph(), cuda.CUDAGraph()
        with cuda.graph(first, pool=pool):
            h = self.up(x)
        with cuda.graph(second, pool=pool):
            y = self.down(h)
        KEEP
        self.known[n] = x, y, first, second
    def __call__(self, a, b):
        results = []
        for x in (a, b):
            self.known[len(x)][0].copy_(x)
        ORDER
        return results
"""
CROSSED = """\
for x in (a, b):
            self.known[len(x)][2].replay()
        for x in (a, b):
            self.known[len(x)][3].replay()
            results.append(self.known[len(x)][1].clone())"""
IN_ORDER = """\
for x in (a, b):
            self.known[len(x)][2].replay()
            self.known[len(x)][3].replay()
            results.append(self.known[len(x)][1].clone())"""
IN_CALL = """
def run():
    pairs = Pairs()
    batches = [(torch.rand(8, 6, device=device), torch.rand(4, 6, device=device)) for _ in range(3)]
    return [[each.cpu() for each in pairs(*batch)] for batch in batches]
args = ()
"""
BEFORE = """
run = Pairs()
args = (torch.rand(8, 6, device=device), torch.rand(4, 6, device=device))
"""
LINES = """
x, w = torch.ones(4, 4, device=device), torch.rand(4, 4, device=device)
x @ w
made, other, reads = cuda.CUDAGraph(), cuda.CUDAGraph(), cuda.CUDAGraph()
with cuda.graph(made):
    a = x @ w
with cuda.graph(reads, pool=made.pool()):
    b = a.tanh().sum(0)
DEL
with cuda.graph(other, pool=made.pool()):
    c = (x * 3 - 1).exp() @ w
def run(t):
    x.copy_(t)
    for graph in (GRAPHS):
        graph.replay()
    return b + c.sum(0)
args = (torch.rand(4, 4, device=device),)
"""
SCRATCH = """
class Scratch:
    def __init__(self):
        self.x, self.w = torch.ones(4, 4, device=device), torch.rand(4, 4, device=device)
        self.a, self.b, self.c = (cuda.CUDAGraph() for _ in range(3))
        self.x @ self.w
        with cuda.graph(self.a):
            s = self.x @ self.w
        with cuda.graph(self.b, pool=self.a.pool()):
            LINE
            self.y = s.tanh() + 1
        del s
        with cuda.graph(self.c, pool=self.a.pool()):
            self.z = (self.x * 2).exp() @ self.w
    def __call__(self, t):
        self.x.copy_(t)
        for graph in (self.a, self.c, self.b):
            graph.replay()
        return self.y.clone()
"""
SCRATCH_IN_CALL = """
def run():
    scratch = Scratch()
    return [scratch(torch.rand(4, 4, device=device)).cpu() for _ in range(3)]
args = ()
"""


def _told(text: str, tmp_path: Path) -> Any:
    names = load(PRELUDE + text, tmp_path / "program.py")
    with quiet():
        return pgk.diagnose(names["run"], *names["args"])


def _pairs(rest: str, pool: str = "self.pool", keep: str = "pass", order: str = CROSSED) -> str:
    return PAIRS.replace("POOL", pool).replace("KEEP", keep).replace("ORDER", order) + rest


@pytest.mark.parametrize("rest", [IN_CALL, BEFORE])
def test_what_another_pair_writes_over_between_two_graphs_is_told(rest: str, tmp_path: Path) -> None:
    # GIVEN pairs of graphs in one pool, where what goes from one to the other of a pair lies where the next one's does,
    # captured in the call or ahead of it, and all the first ones replayed ahead of the second ones
    # WHEN it is diagnosed
    found = _told(_pairs(rest), tmp_path)
    # THEN the replay that writes over it is told, with pools of their own
    assert [(f.code, f.frame.text) for f in found.failures] == [("pool-order", "self.known[len(x)][2].replay()")]
    assert "a pool of its own for each" in found.failures[0].fix


@pytest.mark.parametrize("rest", [IN_CALL, BEFORE])
@pytest.mark.parametrize(
    "right",
    [{"order": IN_ORDER}, {"pool": "cuda.graph_pool_handle()"}, {"pool": "None"}, {"keep": "self.kept.append(h)"}],
    ids=["in order", "a pool for each pair", "as the fix has it", "kept"],
)
def test_pairs_whose_memory_stays_theirs_until_it_is_read_are_right(
    right: dict[str, str], rest: str, tmp_path: Path
) -> None:
    # GIVEN the same in the order of the captures, with a pool for each pair, or with what goes between them kept
    # WHEN it is diagnosed
    found = _told(_pairs(rest, **right), tmp_path)
    # THEN nothing is told
    assert not found.failures


@pytest.mark.parametrize(
    ("gone", "graphs", "told"),
    [
        ("del a", "made, other, reads", ["pool-order"]),
        ("del a", "made, reads, other", []),
        ("pass", "made, other, reads", []),
    ],
)
def test_a_third_graph_between_two_of_a_pool(gone: str, graphs: str, told: list[str], tmp_path: Path) -> None:
    # GIVEN a graph at the top of a file whose result is gone, and another one replayed between it and its reader
    # WHEN it is diagnosed
    found = _told(LINES.replace("DEL", gone).replace("GRAPHS", graphs), tmp_path)
    # THEN it is told where it writes over what is read behind it
    assert [f.code for f in found.failures] == told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("pass", ["pool-order"]),
        ("s[:1].zero_()", ["pool-order"]),
        ("s.zero_()", []),
        ("s.copy_(self.x)", []),
        ("torch.mul(self.x, 2, out=s)", []),
    ],
)
@pytest.mark.parametrize("before", [False, True])
def test_what_a_graph_writes_over_by_itself_is_not_read_as_others_left_it(
    before: bool, line: str, told: list[str], tmp_path: Path
) -> None:
    # GIVEN a graph that takes what another one has made, or its memory alone, with a third one replayed between the two
    rest = "run, args = Scratch(), (torch.rand(4, 4, device=device),)\n" if before else SCRATCH_IN_CALL
    # WHEN it is diagnosed
    found = _told(SCRATCH.replace("LINE", line) + rest, tmp_path)
    # THEN it is told where it reads what was there
    assert [f.code for f in found.failures] == told


TOWERS = """
class Graphed:
    def __init__(self, wide, pool):
        self.x = torch.zeros(4, 6, device=device)
        self.up, self.down = torch.rand(6, wide, device=device), torch.rand(wide, 6, device=device)
        torch.tanh(self.x @ self.up) @ self.down
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph, pool=pool):
            self.out = torch.tanh(torch.tanh(self.x @ self.up) @ self.down)
    def __call__(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.out
class Pair:
    def __init__(self):
        pool = cuda.graph_pool_handle()
        self.wide, self.narrow = Graphed(64, pool), Graphed(6, pool)
        self.seen = []
    def run(self, a, b):
        q = self.narrow(a)
        FIRST
        d = self.wide(b)
        LATER
        return (SEEN * d).sum()
run = Pair().run
args = (torch.rand(4, 6, device=device), torch.rand(4, 6, device=device))
"""


def _towers(first: str, later: str, seen: str, tmp_path: Path) -> list[str]:
    program = TOWERS.replace("FIRST", first).replace("LATER", later).replace("SEEN", seen)
    return sorted(f.code for f in _told(program, tmp_path).failures)


def test_a_result_that_is_kept_behind_the_replay_that_writes_over_it_has_both_words(tmp_path: Path) -> None:
    # GIVEN a step that keeps a result behind another graph's replay WHEN it is asked THEN a copy there is not enough
    assert _towers("pass", "self.seen.append(q)", "q", tmp_path) == ["output-alias", "pool-order"]
    # GIVEN one that keeps it ahead of that, and reads what it has kept WHEN THEN it is
    assert _towers("self.seen.append(q)", "pass", "self.seen[-1]", tmp_path) == ["output-alias"]
    # GIVEN one that takes a copy there WHEN THEN nothing is told
    assert _towers("q = q.clone(); self.seen.append(q)", "pass", "q", tmp_path) == []


BUCKETS = """
class Buckets:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).to(device)
        self.x, self.graph, self.out, self.pool = {}, {}, OUT, cuda.graph_pool_handle()
        for n in (32, 8):
            self.capture(n)
    @torch.no_grad()
    def capture(self, n):
        self.x[n], self.graph[n] = torch.zeros(n, 8, device=device), cuda.CUDAGraph()
        self.net(self.x[n])
        with cuda.graph(self.graph[n], pool=self.pool):
            KEEP
    def __call__(self, x):
        for n in (ORDER):
            self.x[n].copy_(x[:n])
            self.graph[n].replay()
        return READ
run, args = Buckets(), (torch.rand(32, 8, device=device),)
"""


@pytest.mark.parametrize(("order", "told"), [("8, 32", ["self.graph[n].replay()"]), ("32, 8", [])])
@pytest.mark.parametrize(
    ("out", "keep", "read"),
    [
        ("{}", "self.out[n] = self.net(self.x[n])", "self.out[32][:8] + self.out[8]"),
        ("{}", "self.out[n, 'y'] = self.net(self.x[n])", "self.out[32, 'y'][:8] + self.out[8, 'y']"),
        ("[]", "self.out.append(self.net(self.x[n]))", "self.out[0][:8] + self.out[1]"),
    ],
)
def test_results_of_before_that_lie_under_a_key_are_known(
    out: str, keep: str, read: str, order: str, told: list[str], tmp_path: Path
) -> None:
    # GIVEN graphs of one pool that were captured before, whose results lie in a table or a list, replayed in one call
    text = BUCKETS.replace("OUT", out).replace("KEEP", keep).replace("READ", read).replace("ORDER", order)
    # WHEN it is diagnosed
    found = _told(text, tmp_path)
    # THEN another order than that of the captures is told, at the replay that writes over a result
    assert [f.frame.text for f in found.failures if f.code == "pool-order"] == told
    assert len(found.failures) == len(told)
