"""Which of several lines is told that write to one attribute is the same in each process."""

from __future__ import annotations

from paramgraph_kit.doctor.observe.source_lines import in_order, written_at
from paramgraph_kit.doctor.restore.holder import Change


class Cache:
    def __init__(self) -> None:
        self.rows = 0

    def put(self, many: int) -> None:
        self.rows = self.rows + many

    def take(self, many: int) -> None:
        self.rows = self.rows - many

    def clear(self) -> None:
        self.rows = self.rows * 0


def test_functions_of_a_set_stand_as_in_their_file() -> None:
    # GIVEN functions that ran, in sets and lists of several orders
    put, take, clear = (each.__code__ for each in (Cache.put, Cache.take, Cache.clear))
    # WHEN they are ordered THEN sets are as the file is, and a list stays as it is
    assert in_order({clear, put, take}) == in_order(frozenset((take, clear, put))) == [put, take, clear]
    assert in_order([clear, put]) == [clear, put]
    # WHEN the line is looked for that changed what all of them write THEN it is the first one's
    frame = written_at(Change("attribute", "rows", 2, 3, "Cache"), {clear, take, put})
    assert frame is not None
    assert frame.line == put.co_firstlineno + 1
