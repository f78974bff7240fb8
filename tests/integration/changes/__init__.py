"""Ways in which what code reads can change: each is (read, change) as in ``state_places``."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.changes import containers, functions, objects, outside, process, tensors
from tests.integration.state_places import Place

_TABLES = (objects, functions, containers, process, tensors, outside)
CHANGES: dict[str, Callable[[], Place]] = {
    name.removeprefix("of_"): value
    for table in _TABLES
    for name, value in vars(table).items()
    if name.startswith("of_")
}
# Each call answers otherwise, so that no two of them can be compared.
NEVER_THE_SAME = {
    *("generator", "counting", "iterator_of_a_list", "iterator_in_an_object", "own_random_numbers", "time", "caller"),
    *("own_numpy_numbers", "old_numpy_numbers", "own_generator", "random_bytes"),
}
