"""What a grading says: one line that is right or not yet, a bar for each limit, and the picture of the graph."""

from __future__ import annotations

import base64
import sys
from dataclasses import dataclass, field
from typing import Any

from paramgraph_kit.explore import explore
from paramgraph_kit.trace import Trace
from paramgraph_kit.trace.errors import UnsupportedError

WIDTH = 24  # characters of a bar
MOST = 24  # nodes that are drawn one by one
BYTES = frozenset(("memory", "copied a call"))


@dataclass(frozen=True, slots=True)
class Limit:
    """One measured value, and what it may be at most."""

    name: str
    value: int
    most: int

    @property
    def met(self) -> bool:
        """Whether the value is within the limit."""
        return self.value <= self.most

    def bar(self) -> str:
        """Value and limit side by side, to one scale."""
        top = max(self.value, self.most, 1)
        filled, mark = round(self.value / top * WIDTH), round(self.most / top * WIDTH)
        cells = ["█" if n < filled else "·" for n in range(WIDTH + 1)]
        cells[mark] = "│"
        state = "met" if self.met else "over"
        return (
            f"{self.name:<16}{self._text(self.value):>12}  {''.join(cells)}  at most {self._text(self.most)}: {state}"
        )

    def _text(self, value: int) -> str:
        return f"{value / 1024:,.0f} KiB" if self.name in BYTES else str(value)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer is right; in a notebook with the picture of what was captured."""

    number: int
    title: str
    wrong: str = ""  # why it is no answer, whatever was measured
    limits: tuple[Limit, ...] = ()
    trace: Trace | None = field(default=None, repr=False)

    @property
    def solved(self) -> bool:
        """Whether results are right and both limits are met."""
        return not self.wrong and bool(self.limits) and all(limit.met for limit in self.limits)

    def __str__(self) -> str:
        over = [limit.name for limit in self.limits if not limit.met]
        why = self.wrong or f"results are right, over the limit: {', '.join(over)}"
        state = "right: results and both limits" if self.solved else f"not yet: {why}"
        return "\n".join([f"puzzle {self.number}, {self.title}", state, *(limit.bar() for limit in self.limits)])

    def __repr__(self) -> str:
        return f"Verdict({self.number}, {self.title!r}, {'right' if self.solved else 'not yet'})"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self), **self._picture()}

    def _ipython_display_(self) -> None:
        # Two outputs: a notebook shows the richest type of each, and beside a picture no text.
        display: Any = sys.modules["IPython.display"].display  # IPython is who asks
        display({"text/plain": str(self)}, raw=True)
        if picture := self._picture():
            display(picture, raw=True)

    def _picture(self) -> dict[str, str]:
        if self.trace is None or not self.trace.captures:
            return {}
        many = len(self.trace.captures[0].nodes) > MOST
        try:
            picture = explore(self.trace).graph(collapse=many).png()
        except UnsupportedError:  # no graphviz
            return {}
        return {"image/png": base64.b64encode(picture).decode()}
