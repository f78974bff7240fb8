"""Single captures as users write them: what is told from the exception alone, and of a step that events time."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load, quiet

HOISTED = {
    "torch.tensor([0.5, 0.2], device=x.device)": "w = torch.tensor([0.5, 0.2], device=device)  # once, before `step`",
    "table[:2].to(x.device)": "w = table[:2].to(device)  # once, before `step`",
}
WAITING = {
    "buf.copy_(host)": ("`buf.copy_(host, non_blocking=True)`", "before the host writes it wait for the launch"),
    "host.copy_(buf)": ("`host.copy_(buf, non_blocking=True)`", "before the host reads it wait for the launch"),
    "y = host.to(device)": ("`host.to(device, non_blocking=True)`", "before the host writes it wait for the launch"),
    "buf.copy_(host.clone().pin_memory())": ("keep pinned alive",),  # nothing in the user's names keeps that
}
FORKED = """
side, other = cuda.Stream(), cuda.Stream()
net = nn.Linear(4, 4).to(device)
def tower(x):
    with cuda.stream(side):
        return net(x)
def step(x):
    side.wait_stream(cuda.current_stream())
    other.wait_stream(cuda.current_stream())
    with cuda.stream(other):
        z = x * 2
    y = tower(x)
    cuda.current_stream().wait_stream(other)
    return y, z
args = (torch.ones(2, 4, device=device),)
"""
THREAD = """
import threading
host, slot = torch.ones(3), {}
def fetch():
    n = len(slot)
    slot["next"] = host.to(device)
def step(x):
    t = threading.Thread(target=fetch)
    t.start()
    y = x * 2
    t.join()
    return y + slot["next"]
args = (torch.ones(3, device=device),)
"""
TIMED = """
start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
net = nn.Linear(8, 8).to(device)
times = []
def step(x):
    start.record()
    y = net(x).relu()
    end.record()
    end.synchronize()
    times.append(start.elapsed_time(end))
    return y
args = (torch.ones(4, 8, device=device),)
"""


def explained(text: str, file: Path) -> Any:
    """What is told of the exception of a capture by hand, after a warm-up."""
    names = load(PRELUDE + text, file)
    step, args, side, graph = names["step"], names["args"], pgk.cuda.Stream(), pgk.cuda.CUDAGraph()
    side.wait_stream(pgk.cuda.current_stream())
    with quiet(), pgk.cuda.stream(side):
        step(*args)
    pgk.cuda.current_stream().wait_stream(side)
    with pytest.raises(RuntimeError) as raised, quiet(), pgk.cuda.graph(graph):
        step(*args)
    (failure,) = pgk.diagnose(raised.value).failures
    pgk.diagnose.repair(raised.value)
    return failure


@pytest.mark.parametrize("made", HOISTED)
def test_a_line_that_goes_out_of_the_function_is_told_with_where_it_goes(tmp_path: Path, made: str) -> None:
    # GIVEN a capture that makes a tensor of what never changes
    text = f"table = torch.ones(4, 2)\ndef step(x):\n    w = {made}\n    return (x * w).sum()\n"
    # WHEN the exception is explained, without a diff that would show where the new line is
    failure = explained(f"{text}args = (torch.ones(2, device=device),)\n", tmp_path / "p.py")
    # THEN the line says so itself, as in its old place it would fail again
    assert failure.fix.splitlines()[-1].strip().removeprefix("after").strip() == HOISTED[made]


@pytest.mark.parametrize("copy", WAITING)
def test_a_copy_that_waits_is_told_in_its_own_names(tmp_path: Path, copy: str) -> None:
    # GIVEN a blocking copy from or to pinned memory
    text = "host, buf = torch.ones(4).pin_memory(), torch.ones(4, device=device)\n"
    text += f"def step(x):\n    {copy}\n    return buf * x\nargs = (torch.ones(4, device=device),)\n"
    # WHEN
    failure = explained(text, tmp_path / "p.py")
    # THEN
    assert failure.code == "blocking-copy"
    for each in WAITING[copy]:
        assert each in failure.fix


def test_an_unjoined_stream_is_told_where_its_work_is(tmp_path: Path) -> None:
    # GIVEN two streams that are forked, of which one is joined; the other's work is in a function that is called
    # WHEN CUDA tells of it at the end of the capture
    failure = explained(FORKED, tmp_path / "p.py")
    # THEN the line is that of the work, and the join is told in the user's names
    assert (failure.code, failure.frame.text) == ("unjoined-work", "return net(x)")
    assert failure.fix.endswith("behind the block of line 14: `cuda.current_stream().wait_stream(side)`")


def test_unjoined_work_stays_at_the_block_where_events_may_join_it(tmp_path: Path) -> None:
    # GIVEN the same with an event that is waited for, which may be the join of one or of the other
    waits = "    made = other.record_event()\n    cuda.current_stream().wait_event(made)\n"
    text = FORKED.replace("        z = x * 2\n", f"        z = x * 2\n{waits}")
    # WHEN THEN no line in it is claimed
    assert "graph(graph)" in explained(text, tmp_path / "p.py").frame.text


def test_what_a_thread_has_spoiled_is_told_at_the_line_of_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a step that starts a thread, whose copy is refused while the capture is under way
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    # WHEN all that comes to the main thread is the echo
    failure = explained(THREAD, tmp_path / "p.py")
    # THEN
    assert (failure.code, failure.frame.text) == ("invalidated", 'slot["next"] = host.to(device)')
    assert "line 17 has another thread run `fetch`" in failure.fix


def test_events_of_the_file_that_time_a_step_are_recorded_around_its_launch(tmp_path: Path) -> None:
    # GIVEN a step that records two events of the file and asks for the time between them
    names = load(PRELUDE + TIMED, tmp_path / "p.py")
    # WHEN
    with quiet():
        fix = pgk.diagnose(names["step"], *names["args"], fix=True).fix
    # THEN both are recorded outside: in a graph they have no time
    assert fix is not None
    assert fix.complete
    assert "def before_step():  # before each launch\n+    start.record()" in fix.diff
    assert "+def after_step():  # after each launch\n     end.record()" in fix.diff


def test_an_event_that_others_record_too_is_no_stopwatch_of_this_step(tmp_path: Path) -> None:
    # GIVEN the same, where other code records one of the two
    other = "def other():\n    start.record()\n"
    names = load(PRELUDE + TIMED.replace("def step", f"{other}def step"), tmp_path / "p.py")
    # WHEN
    with quiet():
        fix = pgk.diagnose(names["step"], *names["args"], fix=True).fix
    # THEN it is not moved
    assert fix is None or "before_step" not in fix.diff


def test_an_event_that_nobody_waits_for_joins_nothing(tmp_path: Path) -> None:
    # GIVEN work on a side stream with an event behind it, for which nothing waits
    text = FORKED.replace(
        "    y = tower(x)\n", "    side.wait_event(cuda.current_stream().record_event())\n    y = tower(x)\n"
    )
    # WHEN THEN its line is known all the same
    assert explained(text, tmp_path / "p.py").frame.text == "return net(x)"


TOLD = {
    "y = x.expand(int(n.sum()), -1)": ("sync-item", "it decides a size: take it from a shape"),
    "y = torch.zeros(n.max() + 1, 4, device=x.device)": (
        "tensor-bound",
        "give it, `torch.zeros(rows, 4, device=x.device)`, with a number `rows` of which all of `n` are less",
    ),
    "y = x[: n.sum()].sum()": ("tensor-bound", "leave the cut out: with tensors for its ends"),
    "y = torch.rand(4, device=x.device, generator=g)": (
        "unregistered-generator",
        "`graph.register_generator_state(g)` of the graph `graph`",
    ),
}


@pytest.mark.parametrize("line", TOLD)
def test_what_is_told_of_a_line_does_not_fail_in_its_turn(tmp_path: Path, line: str) -> None:
    # GIVEN a line of which a rewrite takes another step, or that has a name of ours
    text = "g = torch.Generator(device=device).manual_seed(1)\ndef step(x, n):\n"
    text += f"    {line}\n    return y\nargs = (torch.ones(1, 4, device=device), torch.tensor([1, 0], device=device))\n"
    # WHEN only the exception is explained THEN no step on the way is told, which would wait at the same line
    failure = explained(text, tmp_path / "p.py")
    code, words = TOLD[line]
    assert failure.code == code
    assert words in failure.fix


def test_a_graph_that_only_counts_is_told_to_be_little(tmp_path: Path) -> None:
    # GIVEN a step whose counter decides how much of its input a layer reads
    text = 'at, net = {"n": 0}, nn.Linear(4, 1).to(device)\ndef step(x):\n    at["n"] += 1\n'
    text += '    size = min(2 + at["n"], x.size(1))\n    return net(x[:, :size]).mean()\n'
    names = load(f"{PRELUDE}{text}args = (torch.ones(2, 16, 4, device=device),)\n", tmp_path / "p.py")
    # WHEN
    with quiet():
        fix = pgk.diagnose(names["step"], *names["args"], fix=True).fix
    # THEN a diff that leaves the layer behind the launch says so
    assert fix is not None
    assert not fix.complete or "so little in its graph" in str(fix)


def test_of_two_waits_around_a_time_each_is_told_where_it_goes(tmp_path: Path) -> None:
    # GIVEN the same wait before and behind what is timed
    text = "net, times = nn.Linear(4, 4).to(device), []\ndef step(x):\n"
    text += "    cuda.synchronize()\n    t = time.perf_counter()\n"
    text += "    y = net(x)\n    cuda.synchronize()\n    times.append(time.perf_counter() - t)\n    return y\n"
    names = load(f"{PRELUDE}{text}args = (torch.ones(2, 4, device=device),)\n", tmp_path / "p.py")
    # WHEN
    with quiet():
        found = pgk.diagnose(names["step"], *names["args"], fix=True)
    # THEN
    told = [each.fix for each in found.failures if each.code == "synchronize"]
    assert ["before_step" in each for each in told] == [True, False]
    assert ["after_step" in each for each in told] == [False, True]
