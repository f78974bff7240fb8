"""``python -m paramgraph_kit bench``: every workload in every mode, as JSON and as a table.

Each workload and mode gets a process of its own, so that no mode inherits another's memory, compiled code or
warmed-up allocator. The modes of a workload compile at the same time; then they are timed in turns, each several
times and on the same two cores, because a machine's speed drifts by more than the modes differ.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paramgraph_kit.bench.table import markdown

COMMAND = (sys.executable, "-m", "paramgraph_kit.bench")
READY = "ready to be timed"
TURNS = 7
LIMIT_S = 900  # for one workload in one mode, its turn waited for included


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; returns the exit status: 1 if a result is wrong bit for bit."""
    parser = argparse.ArgumentParser(prog="python -m paramgraph_kit bench", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for bench.json and bench.md")
    parser.add_argument("--only", default="", help="workloads whose name contains one of these, comma-separated")
    parser.add_argument("--more", action="store_true", help="keep what bench.json says of other workloads")
    parser.add_argument("--steps", type=int, default=8, help="timed steps a turn (default %(default)s)")
    parser.add_argument("--child", nargs=2, metavar=("WORKLOAD", "MODE"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        workload, mode = options.child
        return _child(workload, mode)
    import torch

    if not torch.cuda.is_available():
        print("bench: no GPU here; it measures real launches only", file=sys.stderr)
        return 2
    return _parent(options)


def _parent(options: argparse.Namespace) -> int:
    from paramgraph_kit.bench.measure import MODES, quick_cores
    from paramgraph_kit.bench.workloads import proof_workloads

    chosen = [w for w in proof_workloads() if any(part in w.name for part in options.only.split(","))]
    names = [w.name for w in chosen]
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
    text = markdown(result)
    (options.out / "bench.md").write_text(text)
    print(text)
    wrong = [r for r in rows if r.get("error") or r.get("bits", {}).get("different")]
    return 1 if wrong else 0


class _Child:
    """One workload in one mode, in a process that says when it is warm and waits for its turn to be timed."""

    def __init__(self, name: str, mode: str) -> None:
        self.row = {"workload": name, "mode": mode}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the child
        self._process = subprocess.Popen(
            [*COMMAND, "--child", name, mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._limit = threading.Timer(LIMIT_S, self._process.kill)
        self._limit.daemon = True
        self._limit.start()

    def wait_until_ready(self) -> None:
        """Until it is warmed up or done with its turn, or has failed."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == READY:
                return

    def take_a_turn(self, steps: int, cores: str = "") -> None:
        """Time so many steps, on these cores if any are given, if it still runs."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # it has failed: its result will say so
            print(steps, cores, file=self._process.stdin, flush=True)
            self.wait_until_ready()

    def result(self) -> dict[str, Any]:
        """No more turns: what it measured, or its error."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            print(0, file=self._process.stdin, flush=True)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdin = None
        output, _ = self._process.communicate()
        self._limit.cancel()
        self._errors.seek(0)
        text = self._errors.read().strip()
        self._errors.close()
        try:
            return dict(json.loads(output.splitlines()[-1]))
        except (IndexError, json.JSONDecodeError):
            print(text[-2000:], file=sys.stderr)
            return self.row | {"error": (text.splitlines() or ["no output"])[-1]}


def _source() -> dict[str, Any]:
    from paramgraph_kit.driver.select import driver

    source = asdict(driver().source())
    return {k: v for k, v in source.items() if k != "from_file"} | {"command": "python -m paramgraph_kit bench"}


def _child(name: str, mode: str) -> int:
    from paramgraph_kit.bench.measure import measure
    from paramgraph_kit.bench.workloads import proof_workloads

    cores: set[int] = set()

    def turns() -> Iterator[int]:
        print(READY, flush=True)
        while (turn := sys.stdin.readline().split()) and turn[0] != "0":
            cores.update(int(core) for core in "".join(turn[1:]).split(",") if core)
            yield int(turn[0])
            print(READY, flush=True)

    workload = next(w for w in proof_workloads() if w.name == name)
    print(json.dumps(measure(workload, mode, turns(), cores)))
    return 0
