"""One object over one trace: every view as text, picture, figure or page."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paramgraph_kit.explore import figures, text
from paramgraph_kit.explore.charts import pool_chart
from paramgraph_kit.explore.page import to_html
from paramgraph_kit.explore.picture import Picture, draw
from paramgraph_kit.explore.pools import pool_series
from paramgraph_kit.trace.errors import TraceError, UnsupportedError
from paramgraph_kit.trace.model import Capture, Trace


@dataclass(frozen=True, slots=True, repr=False)
class View:
    """A text that displays as itself, with a chart beside it where there is one."""

    text: str
    svg: str = ""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"View({len(self.text.splitlines())} lines)"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle = {"text/plain": self.text}
        return {"image/svg+xml": self.svg, **bundle} if self.svg else bundle


class Explorer:
    """All views of a trace; displays as the first graph's picture with the summary as text."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def __repr__(self) -> str:
        return f"Explorer({self.trace!r})"

    def text(self) -> str:
        """Everything as plain text, the same for the same trace."""
        trace = self.trace
        parts = [text.summary(trace)]
        if trace.partitions:
            parts.append(text.partitions(trace.partitions))
        parts += [text.graph(capture) for capture in trace.captures]
        if trace.failures:
            parts.append(text.failures(trace.failures))
        if trace.pool_events:
            parts.append(text.pools(trace.pool_events))
        return "\n\n".join(parts)

    def partitions(self) -> View:
        """What is graphed, what is not, and why."""
        return View(self._headed(text.partitions(self.trace.partitions)))

    def graph(self, capture: int = 0, *, allocations: bool = False, collapse: bool | None = None) -> Picture:
        """The picture of the ``capture``-th captured graph; see ``draw``."""
        return draw(self._capture(capture), self.trace.source, allocations=allocations, collapse=collapse)

    def words(self, node: int, capture: int = 0) -> View:
        """The parameter words of one node, by its index."""
        found = self._capture(capture)
        for item in found.nodes:
            if item.index == node:
                return View(text.words(found, item))
        raise TraceError(f"words: capture {found.id} has no node {node}; its nodes are 0 to {len(found.nodes) - 1}")

    def failures(self) -> View:
        """Every failure: line, cause and fix."""
        return View(text.failures(self.trace.failures))

    def memory(self) -> View:
        """Pools over time, as bars and as a chart."""
        says = text.pools(self.trace.pool_events)
        series = pool_series(self.trace.pool_events)
        return View(self._headed(says), pool_chart(series, says) if series else "")

    def memory_figure(self) -> Any:
        """Pools over time as an interactive plotly figure; needs plotly."""
        return figures.pool_timeline(self.trace.pool_events, self.trace.source)

    def to_html(self, path: str | os.PathLike[str], *, title: str | None = None) -> Path:
        """Everything as one self-contained page."""
        return to_html(self.trace, path, title=title)

    def _headed(self, body: str) -> str:
        return f"{self.trace.source.label()}\n{body}"

    def _capture(self, position: int) -> Capture:
        captures = self.trace.captures
        if not 0 <= position < len(captures):
            hint = f"use 0 to {len(captures) - 1}" if captures else "this trace has no captures, see .partitions()"
            raise TraceError(f"graph({position}): no such capture; {hint}")
        return captures[position]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle = {"text/plain": text.summary(self.trace)}
        if self.trace.captures:
            try:
                bundle["image/png"] = base64.b64encode(self.graph().png()).decode()
            except UnsupportedError as error:
                bundle["text/plain"] += f"\n({error})"
        return bundle


def explore(trace: Trace) -> Explorer:
    """Look at a trace: in a notebook it displays as a picture, in a terminal as text.

    >>> from paramgraph_kit.trace import Origin, Source
    >>> explore(Trace(Source(Origin.SIMULATED, "simulated device", "-", "2.13.0", "3.11", "2026-11-20"), "demo"))
    Explorer(Trace('demo', simulated: 0 partitions, 0 captures, 0 launches, 0 failures, 0 pool events))
    """
    return Explorer(trace)
