"""``python -m scripts.distributed``: FSDP2 and DDP, block by block, without graphs, with graph trees, and ours.

torchrun starts each strategy in each mode. Large models run one mode after the other; of small ones all compile at the
same time, then each is timed alone. Losses and parameters are compared within one compilation, because another one
may tune its kernels otherwise. Each row is written as it comes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paramgraph_kit.bench.measure import MODES
from scripts.distributed.table import markdown
from scripts.distributed.training import STRATEGIES

LIMIT_S = 175
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; returns the exit status: 1 if a loss or a parameter is wrong, or something failed."""
    parser = argparse.ArgumentParser(prog="python -m scripts.distributed", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="GPUs (default %(default)s)")
    parser.add_argument(
        "--only", default="fsdp2-70b", help=f"of {', '.join(STRATEGIES)}, comma-separated (default %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=20, help="steps compared, and timed (default %(default)s)")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for all of it (default %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for distributed.json and .md")
    parser.add_argument("--size", default="{}", help=argparse.SUPPRESS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    import torch

    if options.device == "cuda" and torch.cuda.device_count() < options.ranks:
        text = f"distributed: it needs {options.ranks} GPUs, here are {torch.cuda.device_count()}"
        print(text, file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    result: Row = {"source": _source(options), "ranks": options.ranks, "rows": []}
    text = ""
    for row in run(options):
        result["rows"].append(row)
        (options.out / "distributed.json").write_text(json.dumps(result, indent=1) + "\n")
        text = markdown(result)
        (options.out / "distributed.md").write_text(text)
        print(f"{row['strategy']}, {row['mode']}: {row.get('error', 'done')}", file=sys.stderr, flush=True)
    print(text)
    return 1 if any(bad(row) for row in result["rows"]) else 0


def bad(row: Row) -> bool:
    """Whether our row is wrong or missing; that graph trees cannot run something is a result."""
    return row["mode"] != "graph trees" and ("error" in row or bool(row.get("different")))


def run(options: argparse.Namespace) -> Iterator[Row]:
    """One row for each strategy and mode, as it comes."""
    chosen = [name for name in STRATEGIES if name in options.only.split(",")]
    groups = [[(name, mode)] for name in chosen if STRATEGIES[name].alone for mode in MODES]
    groups.append([(name, mode) for name in chosen if not STRATEGIES[name].alone for mode in MODES])
    deadline = time.monotonic() + options.limit
    for group in groups:
        with tempfile.TemporaryDirectory() as folder:
            jobs = [_Job(strategy, mode, Path(folder), options) for strategy, mode in group]
            while not all(job.warm for job in jobs) and time.monotonic() < deadline:
                time.sleep(0.1)
            (Path(folder) / "start").touch()
            while jobs:
                over = [job for job in jobs if job.over or time.monotonic() > deadline]
                for job in over:
                    yield job.row(deadline)
                jobs = [job for job in jobs if job not in over]
                time.sleep(0.1)


class _Job:
    """One strategy in one mode: torchrun and its ranks."""

    def __init__(self, strategy: str, mode: str, meet: Path, options: argparse.Namespace) -> None:
        self.key = {"strategy": strategy, "mode": mode}
        self._ready = meet / f"{strategy} {mode}.ready"
        torchrun = [*TORCHRUN, f"--nproc-per-node={options.ranks}"]
        child = ["-m", "scripts.distributed.child", "--strategy", strategy, "--mode", mode]
        how = ["--device", options.device, "--steps", str(options.steps), "--size", options.size, "--meet", str(meet)]
        self._output, self._errors = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, *torchrun, *child, *how],
            stdout=self._output,
            stderr=self._errors,
            # Sums of three and more have an order: of two they have none.
            env=({"NCCL_ALGO": "Ring"} if options.ranks > 2 else {})
            | {"TORCHINDUCTOR_COMPILE_THREADS": "8" if STRATEGIES[strategy].alone else "2", "OMP_NUM_THREADS": "1"}
            | os.environ,
            start_new_session=True,
        )

    @property
    def warm(self) -> bool:
        """Ready to be timed, or over."""
        return self._ready.exists() or self.over

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def row(self, deadline: float) -> Row:
        """What its first rank printed, or why there is nothing."""
        try:
            status = self._process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._output.close()
            self._errors.close()
            return self.key | {"error": "not done in time"}
        output, errors = _read(self._output), _read(self._errors)
        for line in reversed(output):
            with contextlib.suppress(json.JSONDecodeError):
                return dict(json.loads(line))
        print("\n".join(errors[-60:]), file=sys.stderr)
        said = [line for line in errors if "Error" in line and "ChildFailed" not in line] or errors[-1:]
        return self.key | {"error": said[0].strip()[:300] if said else f"exit status {status} and no output"}


def _read(file: Any) -> list[str]:
    file.seek(0)
    lines = [str(line) for line in file.read().splitlines() if line.strip()]
    file.close()
    return lines


def _source(options: argparse.Namespace) -> Row:
    command = {"command": f"python -m scripts.distributed --ranks {options.ranks} --only {options.only}"}
    if options.device == "cpu":
        return {"device": "cpu, nothing compiled", **command}
    from paramgraph_kit.driver.select import driver

    return {k: v for k, v in asdict(driver().source()).items() if k != "from_file"} | command
