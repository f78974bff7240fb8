"""Interactive figures of memory, from plain readings and events; plotly is imported when one is made.

A notebook stores each with a still picture beside it, for places that run no script: GitHub, nbconvert, a printed page.
Their colours are seen on light and on dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from paramgraph_kit.explore.charts import COLOURS, GREY, Line, line_chart, pool_chart
from paramgraph_kit.explore.names import bytes_text
from paramgraph_kit.explore.pools import PoolSeries, ReadingLike, pool_series, reserved_total
from paramgraph_kit.trace.errors import UnsupportedError
from paramgraph_kit.trace.model import PoolEvent, Source, Trace
from paramgraph_kit.trace.wording import one_line

_PLOTLY_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_LINES = dict.fromkeys(("gridcolor", "zerolinecolor"), "rgba(125,131,139,0.3)")  # to be seen on light and on dark
_WHICH = ("allocated", "reserved", "device")


def memory_growth(runs: Mapping[str, Sequence[ReadingLike]], source: Source, *, which: str = "reserved") -> Any:
    """Memory after every call, one line for each run, side by side on one axis.

    Args:
        runs: readings by the run's name: ``{"no graph": [...], "frozen graph": [...], "parameterized": [...]}``.
        source: where the numbers come from; shown under the title.
        which: ``"allocated"``, ``"reserved"`` or ``"device"``.

    Returns:
        A ``plotly.graph_objects.Figure``.

    Raises:
        UnsupportedError: plotly is missing, or ``which`` is unknown.

    Examples:
        >>> memory_growth({"eager": eager.readings, "parameterized": ours.readings}, source)  # doctest: +SKIP
    """
    if which not in _WHICH:
        raise UnsupportedError(f"memory_growth: unknown reading {which!r}; use {', '.join(_WHICH)}")
    figure = _figure(f"Memory {which}, after each call", source.label())
    for n, (name, readings) in enumerate(runs.items()):
        values = [int(getattr(reading, which)) for reading in readings]
        labels = [one_line(reading.label) for reading in readings]
        figure.add_scatter(
            x=list(range(len(values))),
            y=values,
            name=one_line(name),
            mode="lines+markers",
            line={"color": COLOURS[n % len(COLOURS)], "dash": _PLOTLY_DASHES[n % len(_PLOTLY_DASHES)], "shape": "hv"},
            marker={"symbol": n, "size": 7},
            customdata=[[label, bytes_text(value)] for label, value in zip(labels, values, strict=True)],
            hovertemplate="%{customdata[0]}: %{customdata[1]}",
        )
    figure.update_xaxes(title="reading")
    lines = [
        Line(one_line(name), [int(getattr(reading, which)) for reading in readings], colour=n)
        for n, (name, readings) in enumerate(runs.items())
    ]
    return _with_still(figure, lines, f"Memory {which}, after each call. {source.label()}")


def pool_timeline(events: Iterable[PoolEvent], source: Source) -> Any:
    """Every pool's envelope (reserved) with its live bytes inside, over allocator events.

    Returns:
        A ``plotly.graph_objects.Figure``.

    Raises:
        UnsupportedError: plotly is missing.

    Examples:
        >>> pool_timeline(trace.pool_events, trace.source)  # doctest: +SKIP
    """
    figure = _figure("Device memory by pool", source.label())
    series = pool_series(events)
    _add_pools(figure, series, [pool.name for pool in series])
    figure.update_xaxes(title="allocator event")
    figure._still = pool_chart(series, f"Device memory by pool. {source.label()}")
    return figure


def pool_comparison(steps: Mapping[str, Trace]) -> Any:
    """The pools of several traces side by side, on one axis of bytes: no graphs, graph trees, parameterized.

    Returns:
        A ``plotly.graph_objects.Figure``.

    Raises:
        UnsupportedError: plotly is missing.

    Examples:
        >>> pool_comparison({"graph trees": trees, "parameterized": ours})  # doctest: +SKIP
    """
    labels = dict.fromkeys(trace.source.label() for trace in steps.values())
    figure = _figure("Device memory by pool, side by side", "; ".join(labels))
    series = {name: pool_series(trace.pool_events) for name, trace in steps.items()}
    # One colour for one pool, wherever it is, and one entry of the legend.
    names = list(dict.fromkeys(pool.name for pools in series.values() for pool in pools))
    shown: set[str] = set()
    width = 1 / max(1, len(series))
    for n, (name, pools) in enumerate(series.items()):
        axis = "" if n == 0 else str(n + 1)
        _add_pools(figure, pools, names, xaxis=f"x{axis}", shown=shown)
        domain = [n * width, (n + 1) * width - (0.02 if n + 1 < len(series) else 0)]
        figure.update_layout({f"xaxis{axis}": {"domain": domain, "title": one_line(name), "anchor": "y", **_LINES}})
    lines = [Line(one_line(name), reserved_total(pools), colour=n) for n, (name, pools) in enumerate(series.items())]
    return _with_still(figure, lines, f"Reserved in all pools, over allocator events. {'; '.join(labels)}")


def _add_pools(
    figure: Any, series: Iterable[PoolSeries], names: Sequence[str], *, xaxis: str = "x", shown: set[str] | None = None
) -> None:
    """Envelope and live bytes of each pool; ``shown`` are the legend's entries so far, if they are shared."""
    for pool in series:
        n = names.index(pool.name)
        colour, dash = COLOURS[n % len(COLOURS)], _PLOTLY_DASHES[n % len(_PLOTLY_DASHES)]
        for what, values, fill in (("reserved", pool.reserved, None), ("live", pool.live, "tozeroy")):
            label = f"{one_line(pool.name)}, {what}"
            figure.add_scatter(
                x=pool.times,
                y=values,
                xaxis=xaxis,
                name=label,
                legendgroup=label,
                showlegend=shown is None or label not in shown,
                mode="lines",
                fill=fill,
                line={"color": colour, "dash": dash, "shape": "hv", "width": 0.5 if fill else 2},
                customdata=[
                    [bytes_text(value), "" if call is None else f", call {call}"]
                    for value, call in zip(values, pool.calls, strict=True)
                ],
                hovertemplate="event %{x}: %{customdata[0]}%{customdata[1]}",
            )
            if shown is not None:
                shown.add(label)


def _figure(title: str, source: str) -> Any:
    figure = _figure_class()()
    figure.update_layout(
        title={"text": title, "subtitle": {"text": source.replace("<", "&lt;")}},
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",  # the notebook's own, light or dark
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": GREY},
        hovermode="x unified",
        hoverlabel={"bgcolor": "#ffffff", "font": {"color": "#1f2328"}},
        height=420,
    )
    figure.update_xaxes(**_LINES)
    # SI units on the axis; the hover text has exact binary ones.
    figure.update_yaxes(title="bytes", rangemode="tozero", tickformat="~s", **_LINES)
    return figure


def _with_still(figure: Any, lines: Sequence[Line], title: str) -> Any:
    figure._still = line_chart(lines, title, title)
    return figure


@cache
def _figure_class() -> Any:
    """Plotly's figure, which shows and stores a still picture beside itself."""
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise UnsupportedError("figures need plotly; pip install paramgraph_kit[lab]") from None

    class Figure(go.Figure):  # type: ignore[misc]  # plotly is not imported for types
        """Interactive where its script runs, and a picture elsewhere."""

        _still = ""
        _ipython_display_ = None  # which would show one form only
        _repr_html_ = None  # which would fetch a script

        def _repr_mimebundle_(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            bundle: dict[str, Any] = super()._repr_mimebundle_(*args, **kwargs)
            still = {"image/svg+xml": self._still} if self._still else {}
            return {**bundle, **still, "text/plain": f"Figure({self.layout.title.text!r})"}

    return Figure
