"""What changed between traces: counted, marked, and silent about what no trace knows."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from paramgraph_kit.explore import Explorer
from paramgraph_kit.explore.page import page
from paramgraph_kit.explore.steps import NOTHING, comparison
from paramgraph_kit.explore.stored import picture
from paramgraph_kit.trace import PoolAction, PoolEvent, Trace
from tests.unit import explore_sample as sample


def default_only(events: list[PoolEvent]) -> list[PoolEvent]:
    return [event for event in events if event.pool == "default"]


def story() -> dict[str, Trace]:
    whole = sample.trace()
    broken = Trace(sample.SOURCE, "broken", failures=whole.failures)
    trees = Trace(sample.SOURCE, "trees", whole.partitions, whole.captures, [], [], whole.pool_events)
    ours = Trace(
        sample.SOURCE, "ours", whole.partitions, whole.captures, whole.launches, [], default_only(whole.pool_events)
    )
    return {"broken": broken, "graph trees": trees, "parameterized": ours}


def test_every_figure_is_counted_in_the_traces() -> None:
    # GIVEN a story of three steps WHEN compared
    facts = {fact.name: fact for fact in comparison(story()).facts}
    # THEN the figures are those of the traces
    assert facts["failures"].values == ("1: A value was read back to the CPU", "none", "none")
    assert facts["private pools, peak"].values == (NOTHING, "100.0 MiB in 1 pool", "0 B")
    assert facts["bytes copied at launch"].values == (NOTHING, NOTHING, "0 B")
    assert facts["graph nodes"].values == (NOTHING, "21", "21")
    assert facts["same kernels as before"].values == (NOTHING, NOTHING, "all 20 of 20")
    # AND what changed is marked, against the last step that knew it
    assert facts["failures"].changed == (False, True, False)
    assert facts["private pools, peak"].changed == (False, False, True)


def test_memory_of_an_earlier_step_is_not_this_one_s() -> None:
    # GIVEN a recording that begins with two segments of an earlier step, and takes one more
    def event(time: int, address: int, size: int, action: PoolAction = PoolAction.SEGMENT_ALLOC) -> PoolEvent:
        return PoolEvent(time, "default", action, address, size)

    before = [event(0, 0, 4 << 20), event(0, 8 << 20, 2 << 20), event(0, 0, 1 << 20, PoolAction.ALLOC)]
    later = Trace(sample.SOURCE, "later", pool_events=[*before, event(1, 16 << 20, 2 << 20)])
    # WHEN compared with another THEN what was there is told apart
    facts = {fact.name: fact.values[1] for fact in comparison({"first": Trace(sample.SOURCE), "later": later}).facts}
    assert [facts[name] for name in ("reserved in all pools, peak", "at the end", "from before")] == [
        "8.0 MiB",
        "8.0 MiB",
        "6.0 MiB",
    ]
    assert [facts[name] for name in ("live in the default pool, peak", "live from before")] == ["1.0 MiB", "1.0 MiB"]


def test_what_no_trace_knows_is_left_out() -> None:
    # GIVEN traces without anything WHEN compared THEN nothing is claimed, not even that nothing failed
    empty = {"a": Trace(sample.SOURCE), "b": Trace(sample.SOURCE)}
    assert comparison(empty).facts == ()
    assert str(Explorer(empty).changes()) == ""


def test_the_table_as_text_is_no_wider_than_a_notebook() -> None:
    # GIVEN five steps, two with failures of long names
    steps = {name: Trace(sample.SOURCE) for name in ("eager", "captured", "frozen")}
    long = replace(sample.trace().failures[0], title="Python branched on a value that is on the GPU, and went on")
    steps |= {name: replace(sample.trace(), failures=[long]) for name in ("broken", "diagnosed")}
    # WHEN compared as text THEN long figures take several lines, each in its column
    lines = comparison(steps).text().splitlines()
    assert max(map(len, lines)) < 150
    row = next(n for n, line in enumerate(lines) if line.startswith("failures"))
    at = lines[row].index("1: Python branched")
    assert lines[row + 1][at:].startswith("that is on the GPU") or lines[row + 1][at:].startswith("value that")
    assert lines[row + 1][: at - 2].strip() == ""


def test_an_explorer_of_steps_says_what_changed() -> None:
    # GIVEN the story WHEN shown as text THEN each step and the table are there, the same each time
    explorer = Explorer(story())
    assert repr(explorer) == "Explorer('broken', 'graph trees', 'parameterized')"
    written = explorer.text()
    assert written == Explorer(story()).text()
    assert "private pools, peak" in written
    assert "100.0 MiB in 1 pool" in written
    assert str(explorer.changes()) in explorer._repr_mimebundle_()["text/plain"]
    # AND a notebook shows the table as a table, bold where something changed
    table = explorer.changes()._repr_mimebundle_()["text/html"]
    assert "<th>failures</th><td>1: A value was read back to the CPU</td><td><b>none</b></td><td>none</td>" in table
    # AND the single views are those of the last step
    assert explorer.trace.title == "ours"


def test_what_is_stored_of_several_steps_is_their_table_too() -> None:
    # GIVEN the story WHEN a notebook keeps it THEN every column is there, where only HTML is shown, and the picture
    bundle = Explorer(story())._repr_mimebundle_()
    assert Explorer(story()).changes().html in bundle["text/html"]
    assert "image/png" not in bundle  # which GitHub and nbconvert would show without the table
    if shutil.which("dot"):
        assert 'alt="the graph of parameterized"' in bundle["text/html"]
    assert bundle["text/html"] in picture(bundle)["text/html"]
    # AND of one trace it is the picture, or the text
    assert "text/html" not in Explorer(story()["broken"])._repr_mimebundle_()


def test_a_page_of_steps_is_called_by_them_and_says_whose_figures_stand_on_top() -> None:
    # GIVEN the story WHEN its page is made THEN it has the names of its steps, and the figures that of the last one
    whole = page(story())
    assert "<h1>broken → graph trees → parameterized</h1>" in whole
    assert "<dt>last of 3 steps</dt><dd>parameterized</dd>" in whole
    # AND a page of one trace has its title, and nothing of steps
    alone = page(story()["parameterized"])
    assert "<h1>ours</h1>" in alone
    assert "last of" not in alone
    assert "<h1>mine</h1>" in page(story(), title="mine")


def test_memory_of_the_steps_is_drawn_side_by_side_on_one_axis() -> None:
    # GIVEN the story, of which two steps know their memory WHEN drawn
    pytest.importorskip("plotly")
    figure = Explorer(story()).memory_figure()
    # THEN each step has an axis of its own for events, all share the one of bytes, and a pool has one colour
    assert [figure.layout[axis].title.text for axis in ("xaxis", "xaxis2", "xaxis3")] == list(story())
    assert {line.yaxis for line in figure.data} <= {None, "y"}
    pools = [(line.name, line.xaxis, line.showlegend) for line in figure.data]
    assert pools == [
        ("default, reserved", "x2", True),
        ("default, live", "x2", True),
        ("graph trees, reserved", "x2", True),
        ("graph trees, live", "x2", True),
        ("default, reserved", "x3", False),
        ("default, live", "x3", False),
    ]
    assert figure.data[0].line.color == figure.data[4].line.color
    assert max(figure.data[2].y) == 100 << 20
