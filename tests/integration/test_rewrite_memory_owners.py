"""Other memory that is given to a parameter behind a launch counts where the launch may read that, and is told so."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramgraph_kit.rewrite.memory_owners import MEMORY, OTHER_MEMORY
from tests.integration.rewritten import rewritten

AVERAGED = """
class Average:
    def __init__(self):
        self.n = 0
    def update(self, {names}):
        self.n += 1
        if self.n > 9:
            for {loop}:
                {line}
class Trainer:
    def __init__(self):
        self.net, self.slow = nn.Linear(8, 4).to(device), nn.Linear(8, 4).to(device)
        self.both = nn.ModuleList([{both}])
        self.own = [p.detach().clone() for p in self.net.parameters()]
        self.mine = list(self.net.parameters())
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.average, self.seen = Average(), []
    def step(self, x):
        loss = {reads}(x).pow(2).mean()
        self.note(loss.item())
        return loss.detach() * 2
    def note(self, value):
        self.seen.append(value)
        self.average.update({given})
f = Trainer().step
args = (torch.randn(6, 8, device=device),)
"""
PAIRS = {
    "names": "slow, net",
    "loop": "s, p in zip(slow.parameters(), net.parameters())",
    "line": "s.data = 0.9 * s.data + 0.1 * p.data",
}
ONE = {"names": "ps", "loop": "p in ps", "line": "p.data = p.data * 0.9"}
GROUPS = {"names": "opt", "loop": "p in opt.param_groups[0]['params']", "line": "p.data = p.data * 0.9"}


@pytest.mark.parametrize(
    ("lines", "reads", "given", "both"),
    [
        (PAIRS, "self.net", "self.slow, self.net", ""),
        (ONE, "self.net", "self.own", ""),
        (PAIRS | {"line": "s.data.copy_(0.9 * s.data + 0.1 * p.data)"}, "self.net", "self.net, self.slow", ""),
    ],
)
def test_memory_that_no_line_of_a_graph_reads_may_be_another_one(
    lines: dict[str, str], reads: str, given: str, both: str, tmp_path: Path
) -> None:
    # GIVEN an average whose memory is exchanged later than any trial comes to, or weights that are written in place
    text = AVERAGED.format(**lines, reads=reads, given=given, both=both)
    # WHEN a fix is asked for
    fix = rewritten(text, tmp_path)
    # THEN it is whole, and nothing is told that a graph would keep
    assert fix.complete, fix
    assert not fix.stale


@pytest.mark.parametrize(
    ("lines", "reads", "given", "both"),
    [
        (PAIRS, "self.net", "self.net, self.slow", ""),
        (PAIRS, "self.both[0]", "self.slow, self.net", "self.slow"),
        (ONE, "self.net", "self.mine", ""),
        (GROUPS, "self.net", "self.opt", ""),
    ],
)
def test_memory_that_a_graph_may_read_is_told_where_it_becomes_another_one(
    lines: dict[str, str], reads: str, given: str, both: str, tmp_path: Path
) -> None:
    # GIVEN the same with what the step reads: by the name itself, by another one, or through an optimizer
    text = AVERAGED.format(**lines, reads=reads, given=given, both=both)
    # WHEN a fix is asked for
    fix = rewritten(text, tmp_path)
    # THEN it is told without a name that nothing in the graph has
    assert not fix.complete, fix
    assert fix.stale == MEMORY
    assert OTHER_MEMORY in fix.verified
    assert "`data` gets" not in str(fix)


DECODED = """
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 8)
        self.register_buffer("place", {place})
        self.register_buffer("cache", torch.zeros(64, 8))
        self.seen = []
    @torch.no_grad()
    def decode(self, x):
        y = self.out(x)
        self.cache.index_copy_(0, self.place, y[None])
        total = self.cache.sum(0)
        self.seen.append(total.max().item())
        {moves}
        return total
decoder = Decoder().to(device)
f = decoder.decode
args = (torch.randn(8, device=device),)
"""


@pytest.mark.parametrize("place", ["torch.zeros(1, dtype=torch.long)", "begin()"])
def test_a_buffer_that_is_written_in_place_behind_a_launch_is_no_other_value(place: str, tmp_path: Path) -> None:
    # GIVEN a place in a cache that is counted in place, as a buffer that the text makes, or a helper
    text = "def begin():\n    return torch.zeros(1, dtype=torch.long)\n"
    text += DECODED.format(place=place, moves="self.place += 1")
    # WHEN a fix is asked for THEN it is whole
    fix = rewritten(text, tmp_path)
    assert fix.complete, fix
    assert "`place` gets another value" not in str(fix)
