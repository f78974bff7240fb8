"""Records that a step appends: their last entry tells whether they are tensors where they were numbers."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from paramgraph_kit.doctor.restore.holder import Holder
from paramgraph_kit.rewrite.kinds import _named, _path


@pytest.mark.parametrize(
    ("records", "named"),
    [
        (deque([0.5, 0.25], maxlen=50), {"self.last[-1]": 0.25}),
        ([*range(9)], {"self.last[-1]": 8}),
        ([3, 4], {"self.last[0]": 3, "self.last[1]": 4}),
        (deque(), {}),
    ],
)
def test_the_last_of_many_records_is_looked_at(records: Any, named: dict[str, Any]) -> None:
    # GIVEN a container of an object's WHEN its entries are named THEN of records the last one is, and of a few each
    holder = Holder("container", "self.last", records)
    assert {_path(holder, name): value for name, value in _named(holder, records)} == named
