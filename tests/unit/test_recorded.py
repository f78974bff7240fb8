"""The shipped recordings: complete, small, from a GPU, and of use where there is no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import paramgraph_kit as pgk
from paramgraph_kit.trace import Origin, Trace, TraceError
from scripts.record.command import MOST_BYTES
from scripts.record.recordings import RECORDINGS

WITHOUT_TORCH = """
import sys

sys.modules["torch"] = sys.modules["cuda"] = None  # whoever imports them now gets an ImportError
import paramgraph_kit as pgk

print(pgk.recorded)
for name, trace in pgk.recorded.items():
    view = pgk.explore(trace)
    assert view.text().startswith(trace.title), name
    assert "NVIDIA" in view.text(), name
    if trace.captures:
        assert view.graph(collapse=True).svg(), name
    if trace.pool_events:
        assert view.memory_figure().data, name
    assert view.to_html(sys.argv[1]).stat().st_size > 60_000, name
steps = {name: pgk.recorded[f"llama-{name}"] for name in ("no-graphs", "graph-trees", "paramgraph")}
print(pgk.explore(steps).memory())
print(pgk.explore(steps).changes())
"""


def test_they_load_and_draw_without_torch(tmp_path: Path) -> None:
    # GIVEN a process in which importing torch fails WHEN every recording is listed, drawn and written as a page
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path / "page.html")],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    # THEN all of it works
    assert done.stderr == ""
    assert all(name in done.stdout for name in pgk.recorded)
    assert "graph-trees: 1." in done.stdout  # GiB reserved


def test_they_are_what_the_recorder_makes_and_small() -> None:
    # GIVEN the names that the recorder knows WHEN compared with what is shipped THEN nothing else is there
    assert set(pgk.recorded) <= set(RECORDINGS)
    assert len(pgk.recorded) >= 10
    assert sum(file.stat().st_size for file in pgk.recorded._files.values()) <= MOST_BYTES


@pytest.mark.parametrize("name", list(pgk.recorded))
def test_each_names_its_machine_and_was_live(name: str) -> None:
    # GIVEN one recording WHEN loaded THEN it says on what and when it was recorded, and holds something
    trace = pgk.recorded[name]
    source = trace.source
    assert source.origin is Origin.RECORDED
    assert source.device.startswith("NVIDIA ")
    assert all((source.driver, source.torch, source.python, source.date))
    assert source.label().startswith("recorded: NVIDIA ")
    assert trace.captures or trace.failures or trace.pool_events


def test_what_parameterized_launch_is_for_is_in_them() -> None:
    # GIVEN the training step under trees and under ours WHEN counted THEN ours has the same numbers, copies nothing,
    # and at rest holds no memory that the step without graphs does not
    trees, ours, none = (pgk.recorded[f"llama-{name}"] for name in ("graph-trees", "paramgraph", "no-graphs"))
    assert all(proof.equal for proof in (*trees.proofs, *ours.proofs))
    assert sum(launch.bytes_copied for launch in ours.launches) == 0 < sum(x.bytes_copied for x in trees.launches)
    at_rest = {id(trace): _reserved_at_the_end(trace) for trace in (trees, ours, none)}
    assert at_rest[id(ours)] <= at_rest[id(none)] < at_rest[id(trees)] / 4


def _reserved_at_the_end(trace: Trace) -> int:
    from paramgraph_kit.explore.pools import pool_series, reserved_total

    return reserved_total(pool_series(trace.pool_events))[-1]


def test_a_wrong_name_is_one_line_with_the_right_ones() -> None:
    with pytest.raises(TraceError) as caught:
        _ = pgk.recorded["lama"]
    assert str(caught.value).startswith("there is no recording 'lama'; there are: ")
    assert "llama-paramgraph" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_each_look_is_a_trace_of_its_own() -> None:
    # GIVEN a recording that somebody changes WHEN asked for again THEN it is as it was
    pgk.recorded["failures"].failures.clear()
    assert pgk.recorded["failures"].failures
    assert repr(pgk.recorded).startswith("<paramgraph_kit.recorded: failures, ")
