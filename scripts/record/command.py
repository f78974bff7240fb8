"""``python -m scripts.record``: the recordings that the package ships, each made in a process of its own.

One line for each as it is written: name, nodes, failures, proofs, bytes, seconds. On a GPU all of them run at the same
time; ``--check`` then says what any of them lacks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "scripts.record", "--child")
MOST_BYTES = 3_000_000  # all recordings together
LIMIT_S = 170
DONE = "recorded: "


def main(arguments: Sequence[str] | None = None) -> int:
    """Record; returns the exit status: 1 if a recording failed or all are too large."""
    parser = argparse.ArgumentParser(prog="python -m scripts.record", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("recorded"), help="folder (default %(default)s)")
    parser.add_argument("--only", default="", help="recordings whose name contains one of these, comma-separated")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for each (default %(default)s)")
    parser.add_argument("--jobs", type=int, help="how many at a time; all on a GPU, otherwise 2")
    parser.add_argument("--check", action="store_true", help="record nothing, and say what those in the folder lack")
    parser.add_argument("--list", action="store_true", help="print the names and record nothing")
    parser.add_argument("--child", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        return _child(options.child, options.out)
    from paramgraph_kit.driver.select import check_torch
    from scripts.record.check import check
    from scripts.record.recordings import REAL_ONLY, RECORDINGS

    check_torch()
    import torch

    real = torch.cuda.is_available()
    names = [n for n in RECORDINGS if any(part in n for part in options.only.split(","))]
    names = [n for n in names if real or n not in REAL_ONLY]
    if options.list:
        print("\n".join(names))
        return 0
    if options.check:
        return check(options.out, names)
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in _record(names, options, options.jobs or (len(names) if real else 2)):
        rows.append(row)
        print(_line(row), flush=True)
    total = sum(row.get("bytes", 0) for row in rows)
    print(f"{len(rows)} recordings, {total:,} bytes, at most {MOST_BYTES:,}")
    return 1 if any("error" in row for row in rows) or total > MOST_BYTES else 0


def _record(names: Sequence[str], options: argparse.Namespace, jobs: int) -> Iterator[dict[str, Any]]:
    # Many processes compile at once, and each would start a worker for every core.
    threads = str(max(1, min(8, (os.cpu_count() or 1) // 2)))
    env = {"TORCHINDUCTOR_COMPILE_THREADS": threads} | os.environ

    def one(name: str) -> dict[str, Any]:
        command = [*COMMAND, name, "--out", str(options.out)]
        started = time.monotonic()
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=options.limit, check=False)
        except subprocess.TimeoutExpired:
            return {"name": name, "error": f"took more than {options.limit:.0f} s"}
        seconds = time.monotonic() - started
        for line in done.stdout.splitlines():
            if line.startswith(DONE):
                return {"name": name, **json.loads(line.removeprefix(DONE)), "seconds": seconds}
        said = done.stderr.strip()
        if "UnsupportedError" not in said:
            print(said[-3000:], file=sys.stderr, flush=True)
        return {"name": name, "error": (said.splitlines() or [f"exit status {done.returncode}"])[-1]}

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        for done in as_completed([pool.submit(one, name) for name in names]):
            yield done.result()


def _line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['name']:<26} FAILED {row['error']}"
    return (
        f"{row['name']:<26} {row['nodes']:>5} nodes {row['launches']:>4} launches {row['failures']:>3} failures "
        f"{row['events']:>6} events {row['bytes']:>9,} bytes  {row['seconds']:>4.0f} s  "
        f"{'; '.join([row['proofs'], *row['unequal']])}  [{row['label']}]"
    )


def _child(name: str, out: Path) -> int:
    from paramgraph_kit.trace import load, save
    from scripts.record.recordings import RECORDINGS

    path = save(RECORDINGS[name](), out / f"{name}.pgtrace")
    trace = load(path)
    row = {
        "nodes": sum(len(capture.nodes) for capture in trace.captures),
        "launches": len(trace.launches),
        "failures": len(trace.failures),
        "events": len(trace.pool_events),
        "bytes": path.stat().st_size,
        "proofs": f"{sum(p.equal for p in trace.proofs)} of {len(trace.proofs)} comparisons equal",
        "unequal": [f"{p.label}: {p.text()}" for p in trace.proofs if not p.equal],
        "label": trace.source.label(),
    }
    print(DONE + json.dumps(row), flush=True)
    os._exit(0)  # nothing is left to do, and graphs, compile workers and failed captures take seconds to go
