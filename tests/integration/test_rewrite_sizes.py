"""Sizes that are read from data: no tensor can be one, so what to take in its place is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import Fixed, lines_of, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

GRAPH = """
lin = nn.Linear(4, 4).to(device)
args = (torch.randn(6, 4, device=device), torch.tensor([[0, 1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 0, 3]], device=device))
@torch.no_grad()
def f(x, edge_index):
    src, dst = edge_index
    n = {read}
    {made}
    return out.index_add_(0, dst, lin(x)[src])
"""


@pytest.mark.parametrize("read", ["int(edge_index.max()) + 1", "dst.max().item() + 1"])
@pytest.mark.parametrize(
    "made",
    [
        "out = torch.zeros(n, 4, device=device)",
        "out = x.new_zeros(n, 4)",
        "out = torch.bincount(dst, minlength=n)[:, None].repeat(1, 4).float()",
        "out = F.one_hot(dst, n).T[:, :4].float().contiguous()",
        "rows = n * 4; out = torch.zeros(rows, device=device).view(-1, 4)",
    ],
    ids=["zeros", "new_zeros", "bincount", "one_hot", "product"],
)
def test_a_size_of_data_stays_a_number_and_its_shape_is_told(fixed: Fixed, read: str, made: str) -> None:
    # GIVEN as many nodes as the edges name, by which something is made WHEN rewritten
    found = fixed(GRAPH.format(read=read, made=made))
    # THEN no tensor takes the place of the number, and the shape that has it is told
    assert not any(line.startswith("n =") for line in lines_of(found)), found
    assert "`n = x.shape[0]`" in str(found)
    assert "tensor-bound" not in str(found)


def test_a_size_that_a_helper_may_be_given_is_told_so(fixed: Fixed) -> None:
    # GIVEN a helper that reads a size where it is given none WHEN rewritten
    found = fixed("""
args = (torch.randn(6, 4, device=device), torch.tensor([0, 1, 2, 2, 1, 0], device=device))
def scatter(src, index, dim_size=None):
    if dim_size is None:
        dim_size = int(index.max()) + 1
    return src.new_zeros(dim_size, src.size(1)).index_add_(0, index, src)
def f(x, batch):
    return scatter(x * 2, batch)
""")
    # THEN it is told to give it one, and where
    assert not found.diff
    assert "give `scatter` its `dim_size`, line 17, `scatter(x * 2, batch)`" in str(found)


def test_a_number_by_which_a_tensor_is_scaled_is_no_size_of_its_parts(fixed: Fixed) -> None:
    # GIVEN a tensor that is scaled by what is read, and a part of it whose ends are others WHEN rewritten
    found = fixed("""
args = (torch.randn(8, 4, device=device),)
@torch.no_grad()
def f(x):
    s = x.abs().max().item()
    y = x / s
    return y[: len(y) // 2]
""")
    # THEN the number stays on the device
    assert found.complete, found
    assert lines_of(found) == ["s = x.abs().max().detach()"]


def test_a_size_of_data_and_numbers_of_the_function_s_is_told_as_one(fixed: Fixed) -> None:
    # GIVEN / WHEN / THEN
    found = fixed("""
args = (torch.randn(8, 4, device=device), torch.tensor([2, 3, 3], device=device))
def f(x, lengths):
    n = int(lengths.max())
    width = 2
    end = n + width
    return torch.zeros(end, device=x.device)
""")
    assert not found.complete
    assert "`n` decides a size by way of `end`" in str(found)


def test_a_bucket_that_the_host_finds_by_a_length_is_told_to_be_found_before_the_launch(fixed: Fixed) -> None:
    # GIVEN a batch that is padded to the smallest of some sizes WHEN rewritten
    found = fixed("""
sizes, net = [4, 8, 16], nn.Linear(3, 2).to(device)
args = (torch.randn(2, 6, 3, device=device), torch.tensor([5, 2], device=device))
@torch.no_grad()
def f(x, lengths):
    longest = int(lengths.max())
    size = next(n for n in sizes if n >= longest)
    padded = torch.zeros(2, size, 3, device=device)
    padded[:, : min(size, 6)] = x[:, :size]
    return net(padded)
""")
    # THEN the length stays a number, which is told to be read before, with a graph for each size
    assert "longest = lengths.max().detach()" not in lines_of(found)
    told = str(found)
    assert "do `longest = int(lengths.max())` before the launch" in told
    assert "capture one graph for each `size` that comes" in told


def test_a_size_that_is_made_of_a_counter_is_told_with_its_own_name(tmp_path: Path) -> None:
    # GIVEN a stream whose window is cut by a number that is made of how much has come
    text = """
class Stream:
    def __init__(self):
        self.offset, self.cache = 0, torch.zeros(6, 4, device=device)
    def step(self, x):
        k = torch.cat([self.cache, x])
        valid = min(self.offset + 2, 8)
        out = k[-valid:].softmax(0).sum(0)
        self.cache.copy_(k[-6:])
        self.offset += 2
        return out
stream = Stream()
f = stream.step
args = (torch.randn(2, 4, device=device),)
"""
    names = run(text, tmp_path)
    # WHEN it is diagnosed THEN no tensor is advised, which cuts nothing, and the line that is cut says so, too
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    wanted = "find `valid` before each launch, and give it to the step as a number among its arguments"
    assert any(wanted in failure.fix for failure in found if failure.code == "size-frozen")
    assert wanted in str(found.fix)


def test_what_a_table_of_the_cpu_is_picked_by_is_not_all_of_a_copy(tmp_path: Path) -> None:
    # GIVEN a search that goes on with what the host has looked up, in tables of the CPU
    text = """
vectors = torch.randn(20, 4)
lists = {c: torch.arange(5) * 4 + c for c in range(4)}
centroids = torch.randn(4, 4, device=device)
args = (torch.randn(4, device=device),)
def f(q):
    cells = (centroids @ q).topk(2).indices
    ids = torch.cat([lists[c] for c in cells.tolist()])
    found = vectors[ids].to(q.device)
    best = (found @ q).topk(3)
    return ids.to(q.device)[best.indices], best.values
"""
    names = run(text, tmp_path)
    # WHEN it is diagnosed THEN nothing says that `ids` on the device would be enough, or that only the result has it
    said = {f.frame.line: f.fix for f in pgk.diagnose(names["f"], *names["args"]) if f.frame}
    assert "makes `ids` on the device" not in said[18]
    assert "leave it out of the result" not in said[17]
