"""The live view's Python side: everything arrives, once, in order, not too often, and never in the way of the work."""

from __future__ import annotations

import builtins
import io
import json
import logging
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.explore import Explorer
from paramgraph_kit.trace import Launch, Trace, UnsupportedError, growing
from tests.unit import explore_sample as sample

pytest.importorskip("anywidget")
_widget = pytest.importorskip("paramgraph_kit.explore._widget")


def told(widget: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (widget._head + widget._tail).splitlines()]


def calls(widget: Any) -> list[int]:
    return [call for line in told(widget) for call in line.get("launches", {}).get("call", [])]


def followers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "paramgraph explorer"]


def test_a_complete_trace_is_sent_at_once_and_nobody_waits() -> None:
    # GIVEN a trace that is not being recorded WHEN shown THEN it is there, and no thread is
    widget = Explorer(sample.trace()).widget
    assert calls(widget) == list(range(24))
    assert followers() == []
    assert repr(widget) == "ExplorerWidget('Llama-like block, training')"


@pytest.mark.parametrize("smallest_tail", [_widget.SMALLEST_TAIL, 1])
def test_a_growing_trace_arrives_complete_and_at_most_ten_times_a_second(
    smallest_tail: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN an open view of a trace that is being recorded, whose tail becomes part of the head late, or soon
    monkeypatch.setattr(_widget, "SMALLEST_TAIL", smallest_tail)
    trace = Trace(sample.SOURCE, "grows")
    growing.begin(trace)
    widget = Explorer(trace).widget
    times: list[float] = []  # of messages to the browser: one may bring both, head and tail
    monkeypatch.setattr(widget.comm, "send", lambda *_, **__: times.append(time.monotonic()))

    # WHEN another thread launches as fast as it can for a second
    def work() -> None:
        stop = time.monotonic() + 1.2
        while time.monotonic() < stop:
            trace.launches.append(Launch(0, len(trace.launches), 1, 2))
            time.sleep(0.0005)

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    before = len(times)
    growing.end(trace)

    # THEN updates came while it ran, never faster than ten a second, and in the end every launch was told once
    assert 2 <= before <= 12
    gaps = [b - a for a, b in pairwise(times[:before])]
    assert min(gaps) > 0.09
    assert calls(widget) == list(range(len(trace.launches)))
    for thread in followers():
        thread.join(timeout=60)
    assert followers() == []


def test_what_was_sent_is_never_sent_again_until_the_tail_outgrows_the_head() -> None:
    # GIVEN a view that is told by hand
    trace = Trace(sample.SOURCE, "grows")
    explorer = Explorer(trace)
    widget = explorer.widget
    heads = 0
    # WHEN the trace grows in 300 pieces
    for n in range(300):
        trace.launches += [Launch(0, n * 50 + k, 1, 2) for k in range(50)]
        head = widget._head
        explorer.refresh()
        heads += widget._head != head
        # THEN head and tail together are always everything
        assert widget._head + widget._tail == widget._journal.whole()
    assert calls(widget) == list(range(15_000))
    # AND the head changed only a few times
    assert 1 <= heads <= 8


def test_a_watch_tells_an_open_view_before_its_block_has_ended() -> None:
    # GIVEN a compiled function and a view that is shown inside the block
    torch._dynamo.reset()
    double = pgk.compile(lambda x: x * 2)
    x = torch.ones(8).to(pgk.device())
    with pgk.watch("live") as trace, torch.no_grad():
        widget = pgk.explore(trace).widget
        # WHEN it runs
        for _ in range(4):
            double(x)
        deadline = time.monotonic() + 60
        while not calls(widget) and time.monotonic() < deadline:
            time.sleep(0.02)
        # THEN the view knows of it while the block still runs
        assert calls(widget)
        partitions = [line["partitions"] for line in told(widget) if "partitions" in line]
        assert partitions[-1]["rows"]["graphed"] == [True]
        double(x)
    # AND of all of it at the next statement
    assert len(calls(widget)) == len(trace.launches) == 4
    partitions = [line["partitions"] for line in told(widget) if "partitions" in line]
    assert partitions[-1]["rows"]["graphed"] == [True]


def test_a_view_that_cannot_be_told_does_not_break_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN an open view of a trace that then gets a value that cannot be sent, and a log
    logged = io.StringIO()
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(logged)])
    trace = Trace(sample.SOURCE, "grows")
    growing.begin(trace)
    widget = Explorer(trace).widget
    trace.launches.append(Launch(0, 0, 1, 2, cpu_us=float("nan")))
    # WHEN the recording ends THEN nothing is raised, and the log says why the view stopped
    growing.end(trace)
    assert "the explorer has stopped" in logged.getvalue()
    assert calls(widget) == []


def test_steps_are_compared_again_when_a_trace_has_grown() -> None:
    # GIVEN two steps, of which the second is empty
    trace = Trace(sample.SOURCE, "second")
    explorer = Explorer({"first": sample.trace(), "second": trace})
    widget = explorer.widget
    # WHEN it gets launches
    trace.launches += sample.trace().launches
    explorer.refresh()
    # THEN the comparison that was told last counts them
    facts = {fact["name"]: fact["values"] for fact in told(widget)[-1]["comparison"]["facts"]}
    assert facts["launches"] == ["24", "24"]


def test_the_view_and_the_step_are_set_and_checked() -> None:
    # GIVEN a widget WHEN its view is set THEN only to one that exists
    import traitlets

    widget = Explorer(sample.trace()).widget
    widget.view = "memory"
    with pytest.raises(traitlets.TraitError):
        widget.view = "everything"
    assert widget.view == "memory"


def test_without_anywidget_there_is_text_and_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN no anywidget
    import sys

    real = builtins.__import__

    def fail(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "anywidget":
            raise ImportError("no anywidget", name="anywidget")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", fail)
    monkeypatch.delitem(sys.modules, "paramgraph_kit.explore._widget")
    explorer = Explorer(sample.trace())
    # WHEN shown THEN there is text, and asking for the live view says what is missing
    assert "view+json" not in "".join(explorer._repr_mimebundle_())
    with pytest.raises(UnsupportedError, match=r"^the live view needs anywidget; pip install paramgraph_kit\[lab\]$"):
        _ = explorer.widget


def test_in_a_kernel_the_output_has_the_view_a_picture_and_text(tmp_path: Path) -> None:
    # GIVEN a notebook that shows a trace twice
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    from paramgraph_kit.trace import save

    save(sample.trace(), tmp_path / "a.pgtrace")
    cell = "import paramgraph_kit as pgk\nview = pgk.explore(pgk.load('a.pgtrace'))\nview"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell), nbformat.v4.new_code_cell("view")])
    # WHEN a kernel runs it
    client = nbclient.NotebookClient(notebook, store_widget_state=False, resources={"metadata": {"path": tmp_path}})
    client.execute()
    # THEN each output has the live view, and what is shown where no kernel runs
    outputs = [cell.outputs[0]["data"] for cell in notebook.cells]
    models = {data["application/vnd.jupyter.widget-view+json"]["model_id"] for data in outputs}
    assert len(models) == 1
    assert all("partitions  3 of 4 graphed" in data["text/plain"] for data in outputs)
    assert "widgets" not in notebook.metadata


def test_the_magic_shows_a_running_cell_and_keeps_its_end(tmp_path: Path) -> None:
    # GIVEN a notebook that watches a cell which fails at its end
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    lines = [
        "%%paramgraph watch -o trace --title magic",
        "from paramgraph_kit.trace import Launch",
        "print('in the cell')",
        "trace.launches += [Launch(0, call, 0, 0) for call in range(7)]",
        "1 / 0",
    ]
    sources = ["%load_ext paramgraph_kit", "\n".join(lines)]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    # WHEN a kernel runs it
    options = {"store_widget_state": False, "allow_errors": True, "resources": {"metadata": {"path": tmp_path}}}
    nbclient.NotebookClient(notebook, **options).execute()
    # THEN the view came before what the cell printed, and what is kept is of the cell's end
    view, printed, error = notebook.cells[1].outputs
    assert "application/vnd.jupyter.widget-view+json" in view["data"]
    assert "launches    7" in view["data"]["text/plain"]
    assert printed["text"] == "in the cell\n"
    assert error["ename"] == "ZeroDivisionError"


def test_it_opens_on_a_view_that_was_asked_for_before_or_after() -> None:
    # GIVEN an explorer that is to open on a view WHEN the widget is made, or is there THEN it does
    view = Explorer(sample.trace()).open("timeline")
    assert view.widget.view == "timeline"
    assert view.open("memory").widget.view == "memory"
