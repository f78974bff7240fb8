"""One object over one trace, or several: every view live, as text, picture, figure or page."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from paramgraph_kit.explore import figures, text
from paramgraph_kit.explore.charts import pool_chart
from paramgraph_kit.explore.page import to_html
from paramgraph_kit.explore.picture import Picture, draw
from paramgraph_kit.explore.pools import pool_series
from paramgraph_kit.explore.steps import comparison
from paramgraph_kit.explore.stored import is_saved
from paramgraph_kit.explore.told import is_live
from paramgraph_kit.explore.view import VIEWS, View
from paramgraph_kit.trace.errors import TraceError, UnsupportedError
from paramgraph_kit.trace.model import Capture, Trace

MOST_STORED = 16  # vertices of the picture that a notebook keeps: about 30 KB


class Explorer:
    """All views of a trace, or of several as steps; in a notebook the live widget, elsewhere picture and text.

    Args:
        traces: one trace, or a mapping of names to traces: the steps of a story, of which the last is the result that
            ``partitions``, ``graph``, ``words`` and ``failures`` show; ``memory`` shows all.

    Raises:
        TraceError: a mapping without traces.

    Examples:
        >>> from paramgraph_kit.trace import Origin, Source
        >>> source = Source(Origin.SIMULATED, "simulated device", "-", "2.13.0", "3.11", "2026-11-20")
        >>> Explorer({"broken": Trace(source), "fixed": Trace(source)}).steps["fixed"]
        Trace('', simulated: 0 partitions, 0 captures, 0 launches, 0 failures, 0 pool events)
    """

    def __init__(self, traces: Trace | Mapping[str, Trace]) -> None:
        self.steps = {traces.title or "trace": traces} if isinstance(traces, Trace) else dict(traces)
        if not self.steps:
            raise TraceError("an explorer needs at least one trace; pass a trace, or {name: trace, ...}")
        self.trace = list(self.steps.values())[-1]
        self._widget: Any = None
        self._view = "auto"

    def __repr__(self) -> str:
        if len(self.steps) > 1:
            return f"Explorer({', '.join(map(repr, self.steps))})"
        return f"Explorer({self.trace!r})"

    @property
    def widget(self) -> Any:
        """The live view, made at the first use; it follows traces that are still being recorded.

        Raises:
            UnsupportedError: anywidget is missing.
        """
        if self._widget is None:
            try:
                module = import_module("paramgraph_kit.explore._widget")
            except ImportError as error:
                raise UnsupportedError(f"the live view needs {error.name}; pip install paramgraph_kit[lab]") from None
            self._widget = module.ExplorerWidget(self.steps, view=self._view)
        return self._widget

    def open(self, view: str) -> Explorer:
        """Open the live view on ``partitions``, ``graph``, ``failures``, ``memory`` or ``timeline``; gives itself.

        Raises:
            TraceError: there is no such view.
        """
        if view not in VIEWS:
            raise TraceError(f"open({view!r}): no such view; there are {', '.join(VIEWS[1:])}")
        self._view = view
        if self._widget is not None:
            self._widget.view = view
        return self

    def refresh(self) -> None:
        """Show what was added to the traces since; only for traces that ``watch`` does not record."""
        if self._widget is not None:
            self._widget.refresh()

    def text(self) -> str:
        """Everything as plain text, the same for the same trace."""
        if len(self.steps) > 1:
            parts = [f"{name}\n{Explorer(trace).text()}" for name, trace in self.steps.items()]
            return "\n\n".join([*parts, str(self.changes())])
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

    def changes(self) -> View:
        """What changed from step to step, counted in the traces."""
        compared = comparison(self.steps)
        return View(compared.text(), html=compared.html())

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
        return View(self._headed(text.failures(self.trace.failures)))

    def memory(self) -> View:
        """Pools over time, as bars and as a chart; those of several steps on one scale, without the chart."""
        if len(self.steps) > 1:
            labels = dict.fromkeys(trace.source.label() for trace in self.steps.values())
            return View("\n".join([*labels, text.pools_side_by_side(self.steps)]))
        says = text.pools(self.trace.pool_events)
        series = pool_series(self.trace.pool_events)
        return View(self._headed(says), pool_chart(series, says) if series else "")

    def memory_figure(self) -> Any:
        """Pools over time as an interactive plotly figure, those of several steps side by side; needs plotly."""
        if len(self.steps) > 1:
            return figures.pool_comparison(self.steps)
        return figures.pool_timeline(self.trace.pool_events, self.trace.source)

    def to_html(self, path: str | os.PathLike[str], *, title: str | None = None) -> Path:
        """Everything as one self-contained page, with the same live view where scripts may run."""
        return to_html(self.steps if len(self.steps) > 1 else self.trace, path, title=title)

    def _small_picture(self) -> Picture:
        """What stands for the live view where no kernel runs: layers collapsed, and small enough for a notebook."""
        capture = self._capture(0)
        return draw(capture, self.trace.source, collapse=len(capture.nodes) > MOST_STORED, most=MOST_STORED)

    def _headed(self, body: str) -> str:
        return f"{self.trace.source.label()}\n{body}"

    def _capture(self, position: int) -> Capture:
        captures = self.trace.captures
        if position not in range(len(captures)):
            hint = f"use 0 to {len(captures) - 1}" if captures else "this trace has no captures, see .partitions()"
            raise TraceError(f"graph({position!r}): no such capture; {hint}")
        return captures[position]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        summaries = [text.summary(trace) for trace in self.steps.values()]
        if len(self.steps) > 1:
            summaries = [f"{name}: {summary}" for name, summary in zip(self.steps, summaries, strict=True)]
            summaries.append(str(self.changes()))
        bundle: dict[str, Any] = {"text/plain": "\n\n".join(summaries)}
        if self.trace.captures:
            try:
                bundle["image/png"] = base64.b64encode(self._small_picture().png(small=True)).decode()
            except UnsupportedError as error:
                bundle["text/plain"] += f"\n({error})"
        if len(self.steps) > 1 and (table := self.changes().html):
            bundle["text/html"] = f"<div>{table}{self._last_picture(bundle.pop('image/png', ''))}</div>"
        return {**bundle, **self._live()}

    def _last_picture(self, png: str) -> str:
        """The picture of the last step, as HTML that needs no other file."""
        name = escape(list(self.steps)[-1], quote=True)
        return f'<p>{name}:</p><img src="data:image/png;base64,{png}" alt="the graph of {name}">' if png else ""

    def _ipython_display_(self) -> None:
        if not (self.is_live() and is_saved()):
            raise NotImplementedError  # IPython then asks for the bundle
        self._show()

    def _show(self) -> Any:
        """Display the live view; what this returns displays another bundle in its place."""
        return import_module("paramgraph_kit.explore._widget").Shown(self._repr_mimebundle_())

    def is_live(self) -> bool:
        """Whether it displays as the live view: where a notebook's kernel runs and anywidget is installed."""
        return is_live()

    def _live(self) -> dict[str, Any]:
        if not self.is_live():
            return {}
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        return {"application/vnd.jupyter.widget-view+json": view}


def explore(trace: Trace | Mapping[str, Trace]) -> Explorer:
    """Look at a trace: in a notebook it displays as the live view, in a terminal as text.

    >>> from paramgraph_kit.trace import Origin, Source
    >>> explore(Trace(Source(Origin.SIMULATED, "simulated device", "-", "2.13.0", "3.11", "2026-11-20"), "demo"))
    Explorer(Trace('demo', simulated: 0 partitions, 0 captures, 0 launches, 0 failures, 0 pool events))
    """
    return Explorer(trace)
