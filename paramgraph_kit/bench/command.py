"""``python -m paramgraph_kit bench``: every workload in every mode, as JSON and as a table.

Each workload and mode gets a process of its own, one after the other, so that no mode inherits another's memory,
compiled code or warmed-up allocator.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paramgraph_kit.bench.table import markdown

BITS = "bits"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; returns the exit status: 1 if a result is wrong bit for bit."""
    parser = argparse.ArgumentParser(prog="python -m paramgraph_kit bench", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for bench.json and bench.md")
    parser.add_argument("--only", default="", help="workloads whose name contains one of these, comma-separated")
    parser.add_argument("--more", action="store_true", help="keep what bench.json says of other workloads")
    parser.add_argument("--steps", type=int, default=50, help="timed steps (default %(default)s)")
    parser.add_argument("--child", nargs=2, metavar=("WORKLOAD", "MODE"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        workload, mode = options.child
        return _child(workload, mode, options.steps)
    import torch

    if not torch.cuda.is_available():
        print("bench: no GPU here; it measures real launches only", file=sys.stderr)
        return 2
    return _parent(options)


def _parent(options: argparse.Namespace) -> int:
    from paramgraph_kit.bench.measure import MODES
    from paramgraph_kit.bench.workloads import proof_workloads

    names = [w.name for w in proof_workloads() if any(part in w.name for part in options.only.split(","))]
    path = options.out / "bench.json"
    options.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"source": _source(), "rows": []}
    if options.more and path.is_file():
        result["rows"] = [r for r in json.loads(path.read_text())["rows"] if r["workload"] not in names]
    rows: list[dict[str, Any]] = result["rows"]

    def job(name: str, mode: str) -> None:
        started = time.perf_counter()
        command = [sys.executable, "-m", "paramgraph_kit.bench", "--child", name, mode, "--steps", str(options.steps)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            rows.append(json.loads(done.stdout.splitlines()[-1]))
        except (IndexError, json.JSONDecodeError):
            error = (done.stderr.strip().splitlines() or ["no output"])[-1]
            rows.append({"workload": name, "mode": mode, "error": error})
            print(done.stderr[-2000:], file=sys.stderr)
        print(f"{name}: {mode}, {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        path.write_text(json.dumps(result, indent=1) + "\n")

    # Nothing is timed here, so these may run side by side; what they compile, the timed runs find in Inductor's cache.
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: job(name, BITS), names))
    for name in names:
        for mode in MODES:
            job(name, mode)
    text = markdown(result)
    (options.out / "bench.md").write_text(text)
    print(text)
    wrong = [r for r in rows if r.get("error") or r.get("different", 0) > r.get("baseline_differs_from_itself", 0)]
    return 1 if wrong else 0


def _source() -> dict[str, Any]:
    from paramgraph_kit.driver.select import driver

    source = asdict(driver().source())
    return {k: v for k, v in source.items() if k != "from_file"} | {"command": "python -m paramgraph_kit bench"}


def _child(name: str, mode: str, steps: int) -> int:
    from paramgraph_kit.bench.measure import compare_bits, measure
    from paramgraph_kit.bench.workloads import proof_workloads

    workload = next(w for w in proof_workloads() if w.name == name)
    if mode == BITS:
        result = {"workload": name, "mode": mode, **compare_bits(workload)}
    else:
        result = measure(workload, mode, steps=steps)
    print(json.dumps(result))
    return 0
