"""What the front end is told: every row once, in order, small, and nothing that a browser would get wrong."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from paramgraph_kit.explore.journal import Journal
from paramgraph_kit.explore.names import runs_of_nodes
from paramgraph_kit.trace import Capture, Launch, Node, NodeKind, Trace, TraceError, Word, WordKind
from tests.unit import explore_sample as sample


def lines(journal: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal.splitlines()]


def test_a_growing_trace_is_told_once_and_in_order() -> None:
    # GIVEN a trace that grows row by row, in the order in which a watch appends
    whole, trace = sample.trace(), Trace(sample.SOURCE, "grows")
    journal = Journal({"grows": trace})
    rng = random.Random(0)
    steps: list[Callable[[], None]] = [
        lambda: trace.partitions.extend(whole.partitions),
        lambda: trace.captures.extend(whole.captures),
        *(partial(trace.launches.append, launch) for launch in whole.launches),
        lambda: trace.failures.extend(whole.failures),
        *(partial(trace.pool_events.append, event) for event in whole.pool_events),
    ]

    # WHEN it is read at any moments
    for step in steps:
        step()
        if rng.random() < 0.3:
            journal.advance()
    journal.advance()

    # THEN all rows were told, none twice, and reading again tells nothing
    told = lines(journal.whole())
    assert [call for line in told for call in line.get("launches", {}).get("call", [])] == list(range(24))
    assert sum(len(line.get("pool_events", {}).get("time", [])) for line in told) == len(whole.pool_events)
    assert [at for line in told for at in line.get("partitions", {}).get("at", [])] == [0, 1, 2, 3]
    assert sum(len(line.get("captures", {}).get("id", [])) for line in told) == 1
    assert journal.advance() == b""


def test_a_partition_that_changes_is_told_again() -> None:
    # GIVEN a trace whose partitions are known
    trace = sample.trace()
    journal = Journal({"a": trace})
    journal.advance()
    # WHEN one of them is replaced, as a watch does at its end
    trace.partitions[1] = trace.partitions[2]
    # THEN that one is told, and only it
    (line,) = lines(journal.advance())
    assert line["partitions"]["at"] == [1]
    assert "captures" not in line


def test_every_index_points_into_what_was_told_before() -> None:
    # GIVEN the sample in two steps WHEN read line by line THEN strings and frames are there when they are referred to
    trace = sample.trace()
    journal = Journal({"a": trace, "b": sample.trace()})
    journal.advance()
    strings: list[str] = []
    frames = 0
    for line in lines(journal.whole()):
        strings += line.get("strings", [])
        frames += len(line.get("frames", {}).get("file", []))
        captures = line.get("captures")
        if captures:
            nodes = captures["nodes"]["rows"]
            assert max(nodes["name"]) < len(strings)
            assert max(at for at in nodes["frame"] if at is not None) < frames
            assert max(nodes["module"]) < len(strings)
    assert sample.HOSTILE in strings


def test_integers_that_a_browser_would_round_become_text() -> None:
    # GIVEN a scalar word of 64 bits
    words = (Word(0, WordKind.SCALAR, value=(1 << 63) + 1), Word(8, WordKind.SCALAR, value=1 << 52))
    trace = Trace(sample.SOURCE, captures=[Capture(0, 0, (Node(0, NodeKind.KERNEL, "k", words=words),), (), ())])
    # WHEN told
    journal = Journal({"a": trace})
    journal.advance()
    # THEN it is hexadecimal, and what fits is a number
    told = lines(journal.whole())[-1]["captures"]["nodes"]["rows"]["words"]["rows"]["value"]
    assert told == ["0x8000000000000001", 1 << 52]


def test_what_cannot_be_shown_is_refused_in_one_line() -> None:
    # GIVEN a launch with a time that JSON has no word for WHEN told THEN the error says where
    trace = Trace(sample.SOURCE, launches=[Launch(0, 0, 0, 0, cpu_us=float("nan"))])
    with pytest.raises(TraceError, match=r"^this trace cannot be shown: Launch\.cpu_us: .*; correct that value$"):
        Journal({"a": trace}).advance()


def layers(count: int, size: int) -> Capture:
    nodes = tuple(
        Node(n, NodeKind.KERNEL, f"kernel_{n % size}", words=(Word(0, WordKind.SCALAR, value=n),))
        for n in range(count * size)
    )
    return Capture(0, 0, nodes, tuple((n, n + 1) for n in range(count * size - 1)), ())


def test_long_layers_are_found() -> None:
    # GIVEN 100 layers of 100 different nodes WHEN grouped THEN they are one run
    (run,) = runs_of_nodes(layers(100, 100))
    assert (run.period, run.repeats) == (100, 100)


def test_ten_thousand_nodes_are_grouped_and_told_in_time() -> None:
    # GIVEN 10,000 nodes
    capture = layers(100, 100)
    # WHEN grouped into layers, and told; the best of three, for a machine that others use too
    grouped, told = [], []
    for _ in range(3):
        start = time.process_time()
        runs_of_nodes(capture)
        middle = time.process_time()
        journal = Journal({"a": Trace(sample.SOURCE, captures=[capture])})
        journal.advance()
        grouped.append(middle - start)
        told.append(time.process_time() - middle)
    # THEN within the time of the design, with a margin for slow machines, and at a size that is sent at once
    assert min(grouped) < 0.05
    assert min(told) < 1
    assert len(journal.whole()) < 1_500_000


@pytest.mark.parametrize("looked", [0, 2, 3])
def test_times_that_come_at_the_end_are_told_once(looked: int) -> None:
    # GIVEN launches of which some were told while nobody knew how long they took
    trace = Trace(sample.SOURCE, "timed", captures=[sample.capture()])
    trace.launches += [Launch(0, n, 0, 0) for n in range(looked)]
    journal = Journal({"timed": trace})
    journal.advance()
    trace.launches += [Launch(0, n, 0, 0) for n in range(looked, 3)]

    # WHEN their times become known
    trace.launches[:] = [replace(launch, gpu_start_us=9.0 * n, gpu_us=4.5) for n, launch in enumerate(trace.launches)]
    told = lines(journal.advance())

    # THEN each is told once, with its row or after it
    rows = [us for line in told for us in line.get("launches", {}).get("gpu_us", [])]
    times = [line["times"] for line in told if "times" in line]
    assert len(rows) == 3 - looked
    assert times == ([{"gpu_start_us": [9.0 * n for n in range(looked)], "gpu_us": [4.5] * looked}] if looked else [])
    assert journal.advance() == b""
