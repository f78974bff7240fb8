"""Trace files: exact round trips, clear errors, stable bytes, small size."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from paramgraph_kit import trace as t
from paramgraph_kit.trace import columns
from paramgraph_kit.trace import format as file_format
from tests.unit.trace_samples import SIMULATED, SOURCE, Maker, document, realistic, repack


@pytest.mark.parametrize("seed", range(40))
def test_every_field_round_trips(tmp_path: Path, seed: int) -> None:
    # GIVEN a random trace
    trace = Maker(seed).trace(SIMULATED)
    # WHEN it is saved and loaded
    again = t.load(t.save(trace, tmp_path / "x.pgtrace"))
    # THEN all is equal, to the type, but for the mark that it comes from a file
    assert again == dataclasses.replace(trace, source=t.recorded(SIMULATED))
    assert repr(again) == repr(trace)
    assert all(isinstance(e.action, t.PoolAction) for e in again.pool_events)


def test_the_schema_names_every_field_of_the_model_in_order() -> None:
    # GIVEN the schema WHEN compared with the dataclasses THEN no field is forgotten
    for cls, fields in columns.SCHEMA.items():
        assert list(fields) == [f.name for f in dataclasses.fields(cls)], cls.__name__
    assert [*file_format._TABLES] == [f.name for f in dataclasses.fields(t.Trace)][2:]
    assert [*file_format._SOURCE, "from_file"] == [f.name for f in dataclasses.fields(t.Source)]


def test_keys_are_in_one_order_whoever_wrote_them() -> None:
    # GIVEN a saved trace WHEN its text is read THEN the keys of each object are sorted
    def sorted_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert [key for key, _ in pairs] == sorted(key for key, _ in pairs)
        return dict(pairs)

    packed = file_format.dumps(realistic(20))
    json.loads(gzip.decompress(packed), object_pairs_hook=sorted_pairs)


def as_before(row: Any, version: int) -> Any:
    """A row of the model without what files of ``version`` cannot hold."""
    since = columns.SINCE.get(type(row), {})
    new = {f.name: f.default for f in dataclasses.fields(row) if since.get(f.name, 1) > version}
    nested = {
        f.name: tuple(as_before(each, version) for each in value)
        for f in dataclasses.fields(row)
        if isinstance(value := getattr(row, f.name), tuple) and value and dataclasses.is_dataclass(value[0])
    }
    return dataclasses.replace(row, **new, **nested)


def written_before(trace: t.Trace, version: int) -> dict[str, Any]:
    """The document that ``version`` would have written for a trace without anything new in it."""
    old = document(t.dumps(trace)) | {"version": version}
    tables = {
        t.Partition: old["partitions"],
        t.Node: old["captures"]["nodes"]["rows"],
        t.Allocation: old["captures"]["allocations"]["rows"],
        t.Launch: old["launches"],
        t.PoolEvent: old["pool_events"],
    }
    assert set(tables) == set(columns.SINCE)
    for cls, since in columns.SINCE.items():
        for name, first in since.items():
            if first > version:
                del tables[cls][name]
    if version < 2:
        del old["proofs"]
    return old


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_file_of_an_older_version_still_loads(seed: int, version: int) -> None:
    # GIVEN a trace as an older version wrote it, before traces could keep comparisons, or names, sources and addresses
    made = Maker(seed).trace(SIMULATED)
    rows: dict[str, Any] = {
        f.name: [as_before(row, version) for row in getattr(made, f.name)]
        for f in dataclasses.fields(made)
        if isinstance(getattr(made, f.name), list)
    }
    trace = dataclasses.replace(made, **(rows | ({"proofs": []} if version < 2 else {})))
    old = written_before(trace, version)
    # WHEN it is loaded THEN everything is there
    assert t.loads(repack(old)) == dataclasses.replace(trace, source=t.recorded(SIMULATED))
    # AND what that version did not have makes it no trace of that version
    new = document(t.dumps(trace))
    with pytest.raises(t.TraceError, match="unknown key"):
        t.loads(repack(old | ({"proofs": new["proofs"]} if version < 2 else {"launches": new["launches"]})))


def test_what_was_live_is_recorded_and_says_both() -> None:
    # GIVEN a live trace WHEN it goes through a file, twice
    once = t.loads(t.dumps(t.Trace(SOURCE)))
    twice = t.loads(t.dumps(once))
    # THEN it is a recording, and the label says that it was live
    assert once.source.origin is t.Origin.RECORDED
    assert once.source.label() == (
        "recorded: NVIDIA H200, driver 580.159.04, torch 2.11.0+cu130, 2026-11-20 (live when recorded)"
    )
    assert twice == once


def test_what_was_simulated_stays_simulated_and_says_that_it_is_a_recording() -> None:
    # GIVEN a simulated trace WHEN it goes through a file
    source = t.loads(t.dumps(t.Trace(SIMULATED))).source
    # THEN nobody can take it for a GPU's
    assert source.origin is t.Origin.SIMULATED
    assert source.label() == "simulated: simulated device, torch 2.13.0, 2026-11-20 (loaded from a recording)"


def test_bytes_are_deterministic(tmp_path: Path) -> None:
    # GIVEN one trace WHEN it is saved under two names, some time apart
    first = t.save(Maker(3).trace(SIMULATED), tmp_path / "a.pgtrace").read_bytes()
    second = t.save(Maker(3).trace(SIMULATED), tmp_path / "b.pgtrace").read_bytes()
    # THEN the bytes are the same and hold no time, and nothing else is left in the folder
    assert first == second
    assert first[4:8] == b"\0\0\0\0"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pgtrace", "b.pgtrace"]


def test_a_realistic_capture_is_small_and_fast() -> None:
    # GIVEN 2,000 nodes of 4-20 words and 800 allocations
    trace = realistic()
    packed = t.dumps(trace)
    # WHEN it is loaded
    start = time.process_time()
    again = t.loads(packed)
    seconds = time.process_time() - start
    # THEN size and time are within their limits
    assert len(packed) < 300_000
    assert seconds < 1.0
    assert again.captures == trace.captures


def test_strip_source_leaves_no_source_text_and_no_path() -> None:
    # GIVEN a trace with user code in frames and inside messages
    frame = t.Frame("/home/ada/secret/train.py", 12, "private_name", "loss = secret_sauce(x).item()")
    method = t.Frame("/home/ada/secret/train.py", 14, "Model.forward", "")
    trace = t.Trace(
        SOURCE,
        "run of /home/ada/secret",
        [
            t.Partition(
                0, "forward 0", False, ("aten.item",), reasons=(t.Reason("cpu-op", "cpu op in 'forward'", method),)
            )
        ],
        [t.Capture(0, 0, (t.Node(0, t.NodeKind.KERNEL, "triton_poi_fused_add_0", frame=frame),), (), ())],
        failures=[
            t.Failure(
                "sync",
                "t",
                'File "/opt/x/y.py", line 3: loss = secret_sauce(x).item()',
                frame,
                "in ~/notes/a.ipynb at 3 MB/s, called by private_name and in forward, not in a forward pass",
                "C:\\Users\\ada\\b.py or other.py",
            )
        ],
    )
    # WHEN saved with strip_source
    packed = t.dumps(trace, strip_source=True)
    text = gzip.decompress(packed).decode()
    # THEN none of it is in the file; lines, kernels and words stay
    for secret in ("ada", "secret", "private_name", "train", "notes", "ipynb", "opt", "other", "b.py"):
        assert secret not in text, secret
    again = t.loads(packed)
    assert again.captures[0].nodes[0].frame == t.Frame("<file 1>", 12)
    assert again.captures[0].nodes[0].name == "triton_poi_fused_add_0"
    assert again.failures[0].message == 'File "<stripped>", line 3: <stripped>'
    assert again.failures[0].cause == (
        "in <stripped> at 3 MB/s, called by <stripped> and in <stripped>, not in a forward pass"
    )
    assert (again.partitions[0].graph, again.partitions[0].reasons[0].message) == (
        "forward 0",
        "cpu op in '<stripped>'",
    )
    # AND without the option they are kept
    assert t.loads(t.dumps(trace)).failures == trace.failures


def test_ten_thousand_nodes_are_loaded_in_time(tmp_path: Path) -> None:
    # GIVEN the file of a graph with 10,000 nodes of five words each
    words = tuple(t.Word(8 * n, t.WordKind.SCALAR, value=n, evidence="same bytes in both captures") for n in range(5))
    nodes = tuple(t.Node(n, t.NodeKind.KERNEL, f"kernel_{n % 100}", words=words) for n in range(10_000))
    edges = tuple((n - 1, n) for n in range(1, len(nodes)))
    trace = t.Trace(SOURCE, captures=[t.Capture(0, 0, nodes, edges, ())])
    path = t.save(trace, tmp_path / "big.pgtrace")
    # WHEN loaded, the best of three for a machine that others use too THEN it is there within a second
    taken = []
    for _ in range(3):
        start = time.process_time()
        loaded = t.load(path)
        taken.append(time.process_time() - start)
    assert min(taken) < 1
    assert loaded.captures[0].nodes[-1].words == words


def test_a_pipe_or_a_link_is_written_to_and_stays_what_it_is(tmp_path: Path) -> None:
    # GIVEN a pipe that somebody reads, and a link to a file
    made, pipe, link, file = realistic(), tmp_path / "pipe", tmp_path / "latest.pgtrace", tmp_path / "monday.pgtrace"
    os.mkfifo(pipe)
    link.symlink_to(file)
    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(pipe.read_bytes)
        # WHEN a trace is saved there
        t.save(made, pipe)
        assert heard.result(10) == t.dumps(made)
    t.save(made, link)
    # THEN it went through them: neither is a file of its own now
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert file.read_bytes() == t.dumps(made)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("x" * 300, r"cannot be written \(File name too long\); choose another place$"),
        ("no/x", r"cannot be written \(No such file or directory\); choose a folder that exists$"),
        (".", r"cannot be written \(Is a directory\); add the name of a file$"),
        ("a\0b", r"^no file can be called '.*a\\x00b': leave out the null character$"),
    ],
)
def test_a_place_that_cannot_be_written_is_said_in_one_line(name: str, says: str, tmp_path: Path) -> None:
    # GIVEN such a place WHEN a trace is saved there THEN the error says why, and what to do
    with pytest.raises(t.ParamgraphError, match=says):
        t.save(realistic(), f"{tmp_path}/{name}")
    assert list(tmp_path.iterdir()) == []
