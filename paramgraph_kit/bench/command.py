"""``python -m paramgraph_kit bench``: every workload in every mode, as JSON, tables and pictures.

Each workload and mode gets a process of its own, so that no mode inherits another's memory, compiled code or
warmed-up allocator. The modes of a workload compile at the same time; then they are timed in turns, each several
times and on the same two cores, because a machine's speed drifts by more than the modes differ.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from paramgraph_kit.bench.plot import memory_svg, time_svg
from paramgraph_kit.bench.table import markdown
from paramgraph_kit.bench.turns import Child, turns
from paramgraph_kit.bench.ways import Compared

PARTS = {
    "calls": "instead, what a call costs around the launch: inference, training and decoding, each way in turn",
    "selection": 'instead, what select="measure" keeps and drops, beside what is true of each partition',
    "whole-steps": "instead, whole training steps as one graph: time and memory, each way in turn",
}
COMMAND = (sys.executable, "-m", "paramgraph_kit.bench")
TURNS = 7
LIMIT_S = 900  # for one workload in one mode, its turn waited for included


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; returns the exit status: 1 if a result is wrong bit for bit."""
    parser = argparse.ArgumentParser(prog="python -m paramgraph_kit bench", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("results"), help="folder for bench.json, bench.md and bench-*.svg"
    )
    parser.add_argument(
        "--only", default="", help="workloads whose name has one of these, comma-separated; a+b: both a and b"
    )
    parser.add_argument("--ways", default="", help="with --calls or --whole-steps: of the ways, the same")
    parser.add_argument("--more", action="store_true", help="keep what bench.json says of other workloads")
    part = parser.add_mutually_exclusive_group()
    for name, text in PARTS.items():
        part.add_argument(f"--{name}", dest="part", action="store_const", const=name, help=text)
    parser.add_argument("--seconds", type=float, default=240.0, help="that these may take (default %(default)s)")
    parser.add_argument("--prepare", type=float, help="of these seconds, how many a way may take to be warm")
    jobs = len(os.sched_getaffinity(0)) * 5 // 4  # each waits for the device now and then
    parser.add_argument(
        "--jobs", type=int, default=jobs, help="processes that get ready at once (default: %(default)s)"
    )
    parser.add_argument("--list", action="store_true", help="with one of these: print the workloads and run nothing")
    parser.add_argument("--steps", type=int, default=8, help="timed steps a turn (default %(default)s)")
    parser.add_argument("--child", nargs=2, metavar=("WORKLOAD", "MODE"), help=argparse.SUPPRESS)
    parser.add_argument("--alone", nargs="+", metavar=("WORKLOAD", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        workload, mode = options.child
        return _child(workload, mode)
    if options.alone:
        return _alone(options.part, *options.alone)
    if options.part and options.list:
        print("\n".join(_names(options.part)))
        return 0
    import torch

    if not torch.cuda.is_available():
        print("bench: no GPU here; it measures real launches only", file=sys.stderr)
        return 2
    if options.part == "selection":
        return _selection(options)
    return _side_by_side(options) if options.part else _parent(options)


def _named(name: str, parts: str) -> bool:
    """Whether a name is asked for.

    >>> [_named("GPT-2, eager", parts) for parts in ("", "GPT,Llama", "GPT+eager", "GPT+compiled")]
    [True, True, True, False]
    """
    return any(all(each in name for each in part.split("+")) for part in parts.split(","))


def _names(part: str) -> list[str]:
    if part == "selection":
        from paramgraph_kit.bench.selection import small_work

        return list(small_work())
    return [f"{workload.name}: {', '.join(workload.ways)}" for workload in _workloads(part)]


def _workloads(part: str) -> list[Compared]:
    """Those of a part; nothing is made yet."""
    from paramgraph_kit.bench.calls import calls
    from paramgraph_kit.bench.steps import whole_steps

    return calls() if part == "calls" else whole_steps()


def _side_by_side(options: argparse.Namespace) -> int:
    import torch

    from paramgraph_kit.bench.side_by_side import run, started
    from paramgraph_kit.driver.native.build import prepare

    chosen = []
    for workload in _workloads(options.part):
        ways = {way: make for way, make in workload.ways.items() if _named(way, options.ways)}
        chosen += [replace(workload, ways=ways)] if ways and _named(workload.name, options.only) else []
    prepare(wait=True)  # once, not in each of the processes
    start = started([*COMMAND, f"--{options.part}", "--alone"])
    gib = torch.cuda.mem_get_info()[0] / (1 << 30)
    how = {"seconds": options.seconds, "jobs": options.jobs, "gib": gib, "prepare": options.prepare}
    return run(chosen, start, options.out, options.part, _source(f" --{options.part}"), **how)


def _selection(options: argparse.Namespace) -> int:
    from paramgraph_kit.bench.selection import run
    from paramgraph_kit.driver.native.build import prepare

    prepare(wait=True)
    command, source = [*COMMAND, "--selection", "--alone"], _source(" --selection")
    only = partial(_named, parts=options.only)
    return run(command, options.out, source, seconds=options.seconds, jobs=options.jobs, only=only)


def _alone(part: str, name: str, way: str = "") -> int:
    """In a process of its own: one workload, and one way of it."""
    from paramgraph_kit.bench.alone import measure_alone, printed
    from paramgraph_kit.bench.selection import measure_selection, small_work
    from paramgraph_kit.driver.native.build import prepare

    prepare(wait=True)  # so that nothing is timed while it is built
    cores: set[int] = set()
    if part == "selection":
        printed({"rows": measure_selection(name, small_work()[name], "cuda", turns(cores), cores)})
    else:
        workload = next(w for w in _workloads(part) if w.name == name and way in w.ways)
        measure_alone(workload, way, turns(cores), cores, printed)
    sys.stdout.flush()
    os._exit(0)  # graphs that are torn down at exit are no part of a measurement


def _parent(options: argparse.Namespace) -> int:
    from paramgraph_kit.bench.frozen import BACK_TO_BACK, MODE, frozen_workloads
    from paramgraph_kit.bench.measure import MODES, quick_cores
    from paramgraph_kit.bench.workloads import proof_workloads

    chosen = [w for w in proof_workloads() if _named(w.name, options.only)]
    frozen = [w.name for w in frozen_workloads() if _named(w.name, options.only)]
    names = [w.name for w in chosen] + frozen
    path = options.out / "bench.json"
    options.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"source": _source(), "rows": []}
    if options.more and path.is_file():
        result["rows"] = [r for r in json.loads(path.read_text())["rows"] if r["workload"] not in names]
    rows: list[dict[str, Any]] = result["rows"]

    for workload in chosen:
        started = time.perf_counter()
        name = workload.name
        children = [_Child(name, mode) for mode in MODES]
        for child in children:
            child.wait_until_ready()
        cores = ",".join(map(str, quick_cores()))
        for _ in range(TURNS):
            for child in children:
                child.take_a_turn(options.steps, cores)
        rows += [child.result() for child in children]
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    rows += _frozen_rows(frozen, MODE, BACK_TO_BACK, ",".join(map(str, quick_cores())))
    path.write_text(json.dumps(result, indent=1) + "\n")
    text = markdown(result)
    (options.out / "bench.md").write_text(text)
    for name, draw in (("time", time_svg), ("memory", memory_svg)):
        (options.out / f"bench-{name}.svg").write_text(draw(result))
    print(text)
    wrong = [r for r in rows if r.get("error") or r.get("different") or r.get("bits", {}).get("different")]
    return 1 if wrong else 0


def _frozen_rows(names: list[str], mode: str, launches: int, cores: str) -> list[dict[str, Any]]:
    children = [_Child(name, mode) for name in names]
    for child in children:
        child.wait_until_ready()
    for child in children:
        for _ in range(TURNS):
            child.take_a_turn(launches, cores)
    return [child.result() for child in children]


class _Child(Child):
    """One workload in one mode."""

    def __init__(self, name: str, mode: str) -> None:
        super().__init__([*COMMAND, "--child", name, mode], {"workload": name, "mode": mode}, LIMIT_S)

    def result(self) -> dict[str, Any]:
        """What it measured, or its error, which the terminal shows at length."""
        row = super().result()
        if "error" in row:
            print(self.said[-2000:], file=sys.stderr)
        return row


def _source(options: str = "") -> dict[str, Any]:
    from paramgraph_kit.driver.select import driver

    source = asdict(driver().source())
    return {k: v for k, v in source.items() if k != "from_file"} | {
        "command": f"python -m paramgraph_kit bench{options}"
    }


def _child(name: str, mode: str) -> int:
    import torch

    from paramgraph_kit.bench.frozen import MODE, frozen_workloads, measure_frozen
    from paramgraph_kit.bench.measure import measure
    from paramgraph_kit.bench.workloads import proof_workloads

    if mode == MODE:
        workload = next(w for w in frozen_workloads() if w.name == name)
        device = torch.device("cuda", torch.cuda.current_device())
        print(json.dumps(measure_frozen(workload, turns(set()), device)))
        return 0
    cores: set[int] = set()
    workload = next(w for w in proof_workloads() if w.name == name)
    print(json.dumps(measure(workload, mode, turns(cores), cores)))
    return 0
