"""What a function sets before a part, and only the lines ahead of each launch read: one graph is enough for that."""

from __future__ import annotations

from pathlib import Path

from tests.integration.rewritten import launched

PAGED = """
torch.manual_seed(0)
wq, wk = torch.randn(4, 4, device=device), torch.randn(4, 4, device=device)
class Paged:
    def __init__(self):
        self.k = torch.zeros(12, 4, device=device)
        self.free, self.table, self.n = [4, 2, 5, 0, 3, 1], [], 0
    @torch.no_grad()
    def step(self, x):
        if self.n % 2 == 0:
            if len(self.table) == 3:
                self.free.append(self.table.pop(0))
                self.n -= 2
            self.table.append(self.free.pop(0))
        slot = self.table[self.n // 2] * 2 + self.n % 2
        self.k[slot] = x @ wk
        slots = [b * 2 + j for b in self.table for j in range(2)]
        at = torch.tensor(slots + [0] * (6 - len(slots)), device=device)
        there = torch.arange(6, device=device) <= self.n
        weights = (self.k[at] @ (x @ wq)).masked_fill(~there, -1e9).softmax(0)
        y = {read}
        self.n += 1
        return y
paged = Paged()
f = paged.step
args = (torch.randn(4, device=device),)
"""


def test_a_table_that_fills_a_part_is_no_reason_to_capture_it_anew(tmp_path: Path) -> None:
    # GIVEN a paged cache whose table the host sets before the part, of which a tensor is made
    # WHEN it is rewritten THEN what fills that tensor reads the table, and the graph does not
    fix = launched(PAGED.format(read="weights @ self.k[at]"), tmp_path)
    assert fix.alone, fix
    assert "for each call anew" not in str(fix)


def test_a_table_that_a_part_asks_for_itself_is_not_shared_by_its_launches(tmp_path: Path) -> None:
    # GIVEN the same, where the part itself asks how long the table is WHEN it is rewritten
    fix = launched(PAGED.format(read="weights @ self.k[at] * len(self.table)"), tmp_path)
    # THEN no graph keeps that for all calls without a word
    assert not fix.alone or "for each call anew" in str(fix) or "its graph keeps" in str(fix), fix
