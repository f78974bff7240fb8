"""Notes, while a capture is under way, which line of the user's records which nodes."""

from __future__ import annotations

import sys
from typing import Any

from paramgraph_kit.doctor.observe.places import Place, Places
from paramgraph_kit.driver.api import Driver
from paramgraph_kit.driver.lines import Marks
from paramgraph_kit.driver.torch_names import torch_name

_Mode: Any = torch_name("TorchDispatchMode")


class Lines(_Mode):  # type: ignore[misc]  # torch leaves it untyped
    """Looks at the graph after every operation of this thread; work that no operation shows has no line."""

    supports_higher_order_operators = True

    def __init__(self, target: Driver) -> None:
        super().__init__()
        self._places = Places(sys._getframe().f_code)
        self._count = target.recorded_nodes
        self._marks: list[tuple[int, Place]] = []
        self._seen = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        count = self._count()
        if count > self._seen:
            self._seen = count
            self._marks.append((count, self._places.here()))
        return result

    def marks(self) -> Marks:
        """What ``driver.lines`` keeps."""
        return [(count, place.frame()) for count, place in self._marks]
