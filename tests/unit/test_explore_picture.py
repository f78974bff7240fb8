"""Pictures, figures and the page: complete, labelled, escaped, small, and without graphviz or plotly an honest line."""

from __future__ import annotations

import base64
import builtins
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paramgraph_kit.explore import draw, explore, memory_growth, page, pool_timeline, to_html
from paramgraph_kit.explore.bundle import front_end, script_hash
from paramgraph_kit.explore.charts import byte_ticks, line_chart, thin
from paramgraph_kit.explore.figures import pool_comparison
from paramgraph_kit.explore.view import View
from paramgraph_kit.trace import Capture, Node, NodeKind, Origin, Source, Trace, TraceError, UnsupportedError
from tests.unit import explore_sample as sample

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="the program dot of graphviz is not installed")
LIVE = Source(Origin.LIVE, "NVIDIA H200", "580.159.04", "2.11.0", "3.12", "2026-11-20")


def chain(count: int, kinds: int) -> Capture:
    nodes = tuple(Node(n, NodeKind.KERNEL, f"kernel_{n % kinds}") for n in range(count))
    return Capture(0, 0, nodes, tuple((n, n + 1) for n in range(count - 1)), ())


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    real = builtins.__import__

    def fail(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == package:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fail)


def test_dot_has_every_node_edge_word_and_the_source() -> None:
    # GIVEN the sample WHEN drawn
    capture = sample.capture()
    picture = draw(capture, LIVE)
    # THEN every node and edge is there, families are words, and the title says live
    assert len(re.findall(r"^  n\d+ \[", picture.dot, re.MULTILINE)) == len(capture.nodes)
    assert len(re.findall(r"^  n\d+ -> n\d+", picture.dot, re.MULTILINE)) == len(capture.edges)
    assert "live: NVIDIA H200, driver 580.159.04" in picture.dot
    assert "\\nmatmul" in picture.dot
    assert picture.families == ("fill", "reduction", "matmul", "attention", "fused", "kernel", "copy")
    assert draw(capture, LIVE).dot == picture.dot


def test_above_the_limit_runs_collapse_and_the_title_says_so() -> None:
    # GIVEN 400 nodes that repeat WHEN drawn
    picture = draw(chain(400, 4), sample.SOURCE)
    # THEN four vertices stand for them, with no edge backwards
    assert picture.title == "capture 0, 400 nodes, collapsed: 400 nodes as 4"
    assert "kernel x100" in picture.dot
    assert sorted(re.findall(r"n\d -> n\d", picture.dot)) == ["n0 -> n1", "n1 -> n2", "n2 -> n3"]


def test_what_cannot_collapse_is_cut_and_counted() -> None:
    # GIVEN 400 different nodes WHEN drawn THEN 300, and the title counts the rest
    picture = draw(chain(400, 400), sample.SOURCE)
    assert len(re.findall(r"^  n\d+ \[", picture.dot, re.MULTILINE)) == 300
    assert picture.title.endswith("100 more not drawn")


def test_allocations_are_drawn_on_request_and_only_where_they_fit() -> None:
    # GIVEN the sample WHEN drawn with memory THEN roles are words; too many are left out, and counted
    with_memory = draw(sample.capture(), sample.SOURCE, allocations=True)
    assert with_memory.dot.count('class="memory"') == 9
    assert "workspace, 256.0 KiB" in with_memory.dot
    assert draw(sample.capture(), sample.SOURCE).dot.count('class="memory"') == 0
    assert "9 allocations not drawn" in draw(sample.capture(), sample.SOURCE, allocations=True, most=25).title


@needs_dot
def test_pictures_render_and_hostile_names_stay_text(tmp_path: Path) -> None:
    # GIVEN names with markup, quotes, backslashes and entities WHEN rendered
    picture = explore(sample.trace()).graph()
    svg = picture.svg()
    # THEN it is well-formed, without a script element, and the name is shown as it is
    root = ET.fromstring(svg)
    assert not [e for e in root.iter() if e.tag.endswith("script")]
    assert any((e.text or "") == 'copy_kernel<"a\\b&amp;">' for e in root.iter() if e.tag.endswith("text"))
    # AND every form can be saved
    assert picture.save(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert picture.save(tmp_path / "a.svg").read_text().startswith("<?xml")
    assert picture.save(tmp_path / "a.dot").read_text().startswith("digraph")
    assert picture.save(tmp_path / "a.txt").read_text().startswith("capture 0")


@needs_dot
@pytest.mark.parametrize("make", [lambda e: e, lambda e: e.graph()])
def test_a_notebook_gets_png_and_text(make: Any) -> None:
    # GIVEN an explorer and a picture WHEN a notebook asks for them THEN PNG with a text that does not change
    bundle = make(explore(sample.trace()))._repr_mimebundle_()
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert bundle["text/plain"] == make(explore(sample.trace()))._repr_mimebundle_()["text/plain"]


@needs_dot
def test_a_picture_has_the_colour_of_its_surroundings_behind_it() -> None:
    # GIVEN a picture WHEN drawn THEN the page is seen through it; what is stored small, on white, has a palette
    picture = explore(sample.trace()).graph()
    kinds = [png[25] for png in (picture.png(), picture.png(small=True))]  # the type of colours in a PNG's header
    assert kinds[0] == 6
    assert kinds[1] in (3, 6)  # a graphviz without gd has no palette
    # AND what is written beside the vertices is neither black nor white
    assert 'fontcolor="#767d86"' in picture.dot


def test_unknown_endings_are_refused(tmp_path: Path) -> None:
    # GIVEN a picture WHEN saved under another ending THEN the error names those that work
    with pytest.raises(UnsupportedError, match=r"a\.gif: unknown picture type; end the name in \.svg, \.png"):
        explore(sample.trace()).graph().save(tmp_path / "a.gif")


def test_without_the_graphviz_package_the_text_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN no graphviz package WHEN a picture is asked for
    without(monkeypatch, "graphviz")
    picture = explore(sample.trace()).graph()
    # THEN one line names the command, and a notebook still gets the text
    with pytest.raises(
        UnsupportedError, match=r"^a picture .* needs the graphviz package; pip install paramgraph_kit\[lab\]$"
    ):
        picture.svg()
    bundle = picture._repr_mimebundle_()
    assert list(bundle) == ["text/plain"]
    assert "pip install paramgraph_kit[lab]" in bundle["text/plain"]
    assert "pip install paramgraph_kit[lab]" in page(sample.trace())


def test_without_the_dot_program_the_text_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN the package but no program WHEN a picture is asked for THEN one line names it
    pytest.importorskip("graphviz")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnsupportedError, match=r"^a picture .* needs the program dot of graphviz; install it"):
        explore(sample.trace()).graph().png()


def test_without_plotly_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN no plotly WHEN a figure is asked for THEN one line names the command
    without(monkeypatch, "plotly")
    with pytest.raises(UnsupportedError, match=r"^figures need plotly; pip install paramgraph_kit\[lab\]$"):
        explore(sample.trace()).memory_figure()


@dataclass
class Reading:
    label: str
    allocated: int
    reserved: int
    device: int


def test_memory_growth_draws_runs_side_by_side() -> None:
    # GIVEN three runs WHEN drawn
    pytest.importorskip("plotly")
    runs = {
        name: [Reading(f"call {n}", 1 << 20, (1 + n * grows) << 20, 3 << 20) for n in range(5)]
        for name, grows in (("no graph", 0), ("frozen graph", 3), ("parameterized", 0))
    }
    figure = memory_growth(runs, LIVE)
    # THEN each has its line, dash and marker, the values are as given, and the source is named
    assert [line.name for line in figure.data] == ["no graph", "frozen graph", "parameterized"]
    assert list(figure.data[1].y) == [(1 + n * 3) << 20 for n in range(5)]
    assert len({line.line.dash for line in figure.data}) == 3
    assert len({line.marker.symbol for line in figure.data}) == 3
    assert "live: NVIDIA H200" in figure.layout.title.subtitle.text
    with pytest.raises(UnsupportedError, match="unknown reading 'rss'; use allocated, reserved, device"):
        memory_growth(runs, LIVE, which="rss")


def test_pool_timeline_has_envelope_and_live_bytes() -> None:
    # GIVEN two pools WHEN drawn THEN each has an envelope and an area inside it
    pytest.importorskip("plotly")
    figure = pool_timeline(sample.pool_events(), sample.SOURCE)
    assert [line.name for line in figure.data] == [
        "default, reserved",
        "default, live",
        "graph trees, reserved",
        "graph trees, live",
    ]
    assert max(figure.data[2].y) == 100 << 20
    assert all(live <= held for live, held in zip(figure.data[1].y, figure.data[0].y, strict=True))


@needs_dot
def test_the_page_is_self_contained_complete_and_small(tmp_path: Path) -> None:
    # GIVEN the sample WHEN written as a page
    whole = to_html(sample.trace(), tmp_path / "a.html").read_text()
    # THEN nothing is fetched, only the live view's own script may run, and the rest is complete without it
    html, _, script = whole.partition('<script type="module">')
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src '{script_hash()}'" in html
    assert "<script" not in html
    assert script == f"{front_end()}</script></body></html>\n"
    # AND every picture has a text, both themes are there, and it is small
    assert "alert(&quot;x&quot;)" in html
    assert not re.search(r'(?:src|href)="|url\(|@import', html.replace("xlink:href", ""))
    assert html.count('role="img"') == html.count("aria-label=")
    assert "prefers-color-scheme: dark" in html
    assert "torch 2.13.0" in html
    assert len(html.encode()) < 60_000
    for heading in ("Partitions", "Captured graphs", "Launches", "Failures", "Memory"):
        assert f"<h2>{heading}</h2>" in html
    # AND the same trace gives the same page
    assert page(sample.trace()) == whole


def test_every_text_of_a_page_is_escaped() -> None:
    # GIVEN markup in every field of a trace that a user or a kernel may fill
    from tests.unit.trace_samples import Maker

    class Hostile(Maker):
        def text(self) -> str:
            return sample.HOSTILE + "\"'<img src=x onerror=y>&"

    traces = (Hostile(seed).trace(sample.SOURCE) for seed in range(99))
    trace = next(t for t in traces if t.captures and t.partitions and t.failures and t.pool_events)
    # WHEN written THEN no element of theirs exists
    html = page(trace)
    written, script = html.split('<script type="module">')
    assert "<script" not in written
    assert "<img" not in written
    assert script == f"{front_end()}</script></body></html>\n"


@needs_dot
def test_a_big_trace_stays_below_the_limit() -> None:
    # GIVEN four captures of 2,000 nodes WHEN written THEN the page stays small and says what it left out
    from tests.unit.trace_samples import realistic

    trace = realistic()
    trace.captures = trace.captures * 4
    html = page(trace)
    assert len(html.encode()) < 1_000_000
    assert "Shown as text, to keep this page small." in html
    assert re.search(r"collapsed: 2,000 nodes as \d+, \d+ more not drawn", html)


def test_an_empty_trace_has_a_page(tmp_path: Path) -> None:
    # GIVEN nothing WHEN written THEN a page with the source and no sections; a missing folder is named
    html = page(Trace(sample.SOURCE))
    assert "<h2>" not in html
    assert "simulated: simulated device" in html
    with pytest.raises(TraceError, match=r"x\.html: cannot be written"):
        to_html(Trace(sample.SOURCE), tmp_path / "none" / "x.html")


@needs_dot
def test_each_view_is_a_picture_too(tmp_path: Path) -> None:
    # GIVEN every view of a trace with markup in its names WHEN saved by an ending THEN it is that
    explorer = explore(sample.trace())
    views = [explorer.partitions(), explorer.failures(), explorer.memory(), explorer.words(3), explorer.changes()]
    for number, view in enumerate(views):
        picture = view.save(tmp_path / f"{number}.png").read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert view.png() == picture  # the same each time
        assert view.save(tmp_path / f"{number}.txt").read_text() == f"{view}\n"
    assert explorer.memory().save(tmp_path / "chart.svg").read_text().startswith("<svg")
    with pytest.raises(UnsupportedError, match=r"a\.svg: unknown type of this view; end the name in \.txt, \.png$"):
        explorer.partitions().save(tmp_path / "a.svg")
    # and a long one says how much is missing
    long = View("\n".join(str(n) for n in range(1000)))
    assert len(long.png()) < 100_000


@needs_dot
def test_what_a_notebook_keeps_of_an_explorer_is_small() -> None:
    # GIVEN a capture of 10,000 nodes WHEN displayed where no kernel runs
    explorer = explore(Trace(LIVE, captures=[chain(10_000, 100)]))
    bundle = explorer._repr_mimebundle_()
    # THEN there is text, and a picture of its layers that fits into a notebook
    assert "10,000 nodes" in bundle["text/plain"]
    picture = base64.b64decode(bundle["image/png"])
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 60_000
    assert set(bundle) == {"text/plain", "image/png"}


def test_charts_keep_peaks_and_cover_the_top() -> None:
    # GIVEN one spike in many values WHEN thinned THEN it stays; ticks reach the top
    assert max(thin([0] * 5000 + [7] + [0] * 5000)) == 7
    assert byte_ticks(100 << 20)[-1] >= 100 << 20
    assert byte_ticks(0) == [0, 1, 2]
    assert "<text" in line_chart([], "empty", "nothing")


def test_explore_imports_neither_torch_nor_plotly_nor_graphviz() -> None:
    # GIVEN a fresh interpreter WHEN explore is imported THEN nothing heavy comes along
    code = (
        "import sys, paramgraph_kit.explore.explorer;"
        "print([m for m in ('torch', 'plotly', 'graphviz', 'cuda', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_figure_is_stored_with_a_still_picture_and_follows_the_theme() -> None:
    # GIVEN each kind of figure
    pytest.importorskip("plotly")
    readings = {"no graph": [Reading(f"call {n}", 1 << 20, n << 20, 3 << 20) for n in range(3)]}
    steps = {"one": sample.trace(), "two": sample.trace()}
    for figure in (
        memory_growth(readings, LIVE),
        pool_timeline(sample.pool_events(), sample.SOURCE),
        pool_comparison(steps),
    ):
        # WHEN a notebook shows it
        bundle = figure._repr_mimebundle_()
        # THEN there is a picture beside it, which says what it shows and where it comes from
        svg = bundle["image/svg+xml"]
        assert svg.startswith("<svg")
        assert "aria-label=" in svg
        assert any(where in svg for where in ("NVIDIA H200", "simulated device"))
        # AND its background is the notebook's, whichever theme that has
        assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
        axes = [figure.layout[name] for name in figure.to_plotly_json()["layout"] if name[1:5] == "axis"]
        assert {axis.gridcolor for axis in axes} == {axis.zerolinecolor for axis in axes} == {"rgba(125,131,139,0.3)"}
        assert figure._ipython_display_ is None
        # AND nothing of it is fetched, nor its data written out as text
        assert figure._repr_html_ is None
        assert bundle["text/plain"] == f"Figure({figure.layout.title.text!r})"
