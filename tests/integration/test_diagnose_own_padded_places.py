"""Rows behind a shorter input whose numbers are places: a graph writes what it makes of them there."""

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
PAGED = """
class Paged:
    def __init__(self, slots=32, dim=8, most=8):
        torch.manual_seed(0)
        self.w = torch.randn(dim, dim, device=device)
        self.cache = torch.zeros(SIZE, dim, device=device)
        self.x = torch.zeros(most, dim, device=device)
        self.slots = torch.full((most,), PAD, dtype=torch.long, device=device)
        self.step()
        self.cache.zero_()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.out = self.step()
    def step(self):
        WRITE
        return torch.softmax(self.x @ self.cacheREAD.t(), -1) @ self.cacheREAD
    def execute(self, x, slots):
        n = len(x)
        self.x.zero_()
        self.x[:n].copy_(x)
        FILL
        self.graph.replay()
        return self.out[:n].clone()
execute = Paged().execute
args = (torch.randn(4, 8, device=device), torch.tensor([FIRST, 3, 7, 12], device=device))
"""
TABLE = """
def make(most=8, dim=6, users=16):
    torch.manual_seed(0)
    table = torch.zeros(SIZE, dim, device=device)
    ids = torch.zeros(most, dtype=torch.long, device=device)
    feats = torch.zeros(most, dim, device=device)
    mix = torch.randn(dim, dim, device=device)
    def body():
        new = torch.tanh(table[ids] + feats @ mix)
        table[ids] = new
        return new
    body()
    table.zero_()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        result = body()
    held = table, mix
    def serve(some, batch):
        count = batch.shape[0]
        ids[count:] = 0
        ids[:count] = some
        feats.zero_()
        feats[:count] = batch
        held; graph.replay()
        return result[:count].clone()
    return serve
execute = make()
args = (torch.tensor([1, 4, 2], device=device), torch.randn(3, 6, device=device))
"""
COUNTS = """
class Counts:
    def __init__(self, bins=10, most=16):
        self.bins = torch.zeros(bins, device=device)
        self.ids = torch.zeros(most, dtype=torch.long, device=device)
        self.by = torch.BY(most, device=device)
        self.run()
        self.bins.zero_()
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.run()
    def run(self):
        self.bins.index_add_(0, self.ids, self.by)
    def execute(self, ids):
        n = ids.numel()
        self.ids.zero_()
        self.ids[:n].copy_(ids)
        COUNTED
        self.graph.replay()
        return self.bins.clone()
execute = Counts().execute
args = (torch.tensor([1, 4, 3, 9], device=device),)
"""
LAYERS = """
class Layer(nn.Module):
    def __init__(self, dim, slots):
        super().__init__()
        self.key = nn.Linear(dim, dim, bias=False)
        self.register_buffer("keys", torch.zeros(1, slots, dim))
    def forward(self, h, where):
        self.keys[0, where] = self.key(h)
        return h + torch.softmax(h @ self.keys[0].t(), -1) @ self.keys[0]
torch.manual_seed(1)
net = nn.ModuleList(Layer(8, 24) for _ in range(2)).to(device)
hidden, where = torch.zeros(6, 8, device=device), torch.zeros(6, dtype=torch.long, device=device)
def run(h, at):
    for layer in net:
        h = layer(h, at)
    return h
with torch.no_grad():
    run(hidden, where)
    for layer in net:
        layer.keys.zero_()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        result = run(hidden, where)
def execute(h, at):
    rows = h.size(0)
    hidden.zero_()
    where.zero_()
    hidden[:rows].copy_(h)
    where[:rows].copy_(at)
    graph.replay()
    return result[:rows].clone()
args = (torch.randn(4, 8, device=device), torch.tensor([2, 3, 7, 9], device=device))
"""
COPY = "self.cache.index_copy_(0, self.slots, self.x @ self.w)"
PUT = "self.cache[self.slots] = self.x @ self.w"
SCATTER = "self.cache.scatter_(0, self.slots[:, None].expand(-1, 8), self.x @ self.w)"
FILL = "self.slots[:n].copy_(slots)"
ZEROED = f"{FILL}; self.slots[n:].zero_()"


def diagnosed(text: str, folder: Path, **parts: object) -> list[tuple[str, str, str, str]]:
    for name, part in parts.items():
        text = text.replace(name, str(part))
    names = load(PRELUDE + text, folder / "program.py")
    found = pgk.diagnose(names["execute"], *names["args"]).failures
    return [(f.code, f.frame.text if f.frame else "", f.message, f.fix) for f in found]


@pytest.mark.parametrize("first", [0, 5])
@pytest.mark.parametrize("fill", [FILL, ZEROED, f"self.slots.zero_(); {FILL}"])
@pytest.mark.parametrize("write", [COPY, PUT, SCATTER])
def test_a_place_that_rows_behind_write_is_told(write: str, fill: str, first: int, tmp_path: Path) -> None:
    # GIVEN a paged cache whose shorter batches leave zeros in the slots, and the first slot is used by a row of this
    # batch, or by others
    # WHEN diagnosed
    found = diagnosed(PAGED, tmp_path, SIZE="slots", PAD=0, WRITE=write, READ="", FILL=fill, FIRST=first)
    # THEN the line that fills the slots is told, with a place of their own, and no zeros
    assert [(code, line) for code, line, _, _ in found] == [("size-frozen", fill)]
    assert "to place 0 of self.cache" in found[0][2]
    assert "self.slots[n:].fill_(self.cache.size(0) - 1)" in found[0][3]


@pytest.mark.parametrize("write", [COPY, PUT, SCATTER])
def test_a_place_of_their_own_is_no_problem(write: str, tmp_path: Path) -> None:
    # GIVEN the same with one more place, which the rows behind write and nothing reads
    fill = "self.slots.fill_(len(self.cache) - 1); self.slots[:n].copy_(slots)"
    # WHEN diagnosed
    found = diagnosed(PAGED, tmp_path, SIZE="slots + 1", PAD="slots", WRITE=write, READ="[:-1]", FILL=fill, FIRST=0)
    # THEN
    assert not found


@pytest.mark.parametrize(("size", "problems"), [("users", 1), ("users + 1", 0)])
def test_a_place_that_no_result_shows_is_told_unless_there_is_one_more(
    size: str, problems: int, tmp_path: Path
) -> None:
    # GIVEN a table of which a batch reads its own rows alone, with a place more or not
    # WHEN diagnosed
    found = diagnosed(TABLE, tmp_path, SIZE=size)
    # THEN
    assert [line for _, line, _, _ in found] == ["ids[:count] = some"] * problems
    assert all("wrong where that place is ever one of a real row" in said for _, _, said, _ in found)


@pytest.mark.parametrize(
    ("by", "counted", "problems"), [("ones", "pass", 1), ("zeros", "self.by.zero_(); self.by[:n] = 1.0", 0)]
)
def test_what_adds_nothing_is_no_problem(by: str, counted: str, problems: int, tmp_path: Path) -> None:
    # GIVEN counts to which the rows behind add one each, or nothing
    # WHEN diagnosed
    found = diagnosed(COUNTS, tmp_path, BY=by, COUNTED=counted)
    # THEN
    assert [line for _, line, _, _ in found] == ["self.ids[:n].copy_(ids)"] * problems


def test_a_place_in_a_layers_buffer_is_told_with_its_dimension(tmp_path: Path) -> None:
    # GIVEN layers that write to buffers of their own
    # WHEN diagnosed
    found = diagnosed(LAYERS, tmp_path)
    # THEN
    assert [line for _, line, _, _ in found] == ["where[:rows].copy_(at)"]
    assert "where[rows:].fill_(self.keys.size(1) - 1)" in found[0][3]
