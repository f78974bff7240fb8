"""``python -m scripts.distributed``: FSDP2 and DDP, block by block, without graphs, with graph trees, and ours.

Every strategy in every mode has processes of its own, which all start at once. Large models then run one mode after
the other, ours before graph trees; of small ones all compile at the same time, then each is timed alone. Losses and
parameters are compared within one compilation, because another one may tune its kernels otherwise. Each row is written
as it comes.
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
from typing import Any, Self

from paramgraph_kit.bench.measure import MODES
from scripts.distributed.table import markdown
from scripts.distributed.training import STRATEGIES

LIMIT_S = 170
CHILD = ("-m", "scripts.distributed.child")
LAST = "graph trees"  # measured last: what is known without us, where time runs out
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; returns the exit status: 1 if a loss or a parameter is wrong, or something failed."""
    parser = argparse.ArgumentParser(prog="python -m scripts.distributed", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="GPUs (default %(default)s)")
    parser.add_argument(
        "--only", default="fsdp2-70b", help=f"of {', '.join(STRATEGIES)}, comma-separated (default %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=20, help="steps compared (default %(default)s)")
    parser.add_argument("--timed", type=int, default=20, help="steps timed (default %(default)s)")
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
    began = time.monotonic()
    result: Row = {"source": _source(options), "ranks": options.ranks, "rows": []}
    rows: dict[tuple[str, str], Row] = {}
    text = ""
    for row in run(options):
        key = row["strategy"], row["mode"]
        rows[key] = rows.get(key, {}) | row if "error" in row else row
        result["rows"] = list(rows.values())
        result["seconds"] = round(time.monotonic() - began, 1)
        (options.out / "distributed.json").write_text(json.dumps(result, indent=1) + "\n")
        text = markdown(result)
        (options.out / "distributed.md").write_text(text)
        said = row.get("error") or ("timed" if "bits" in row else "done")
        print(f"{row['strategy']}, {row['mode']}: {said}", file=sys.stderr, flush=True)
    print(text)
    return 1 if any(bad(row) for row in result["rows"]) else 0


def bad(row: Row) -> bool:
    """Whether our row is wrong or missing; that graph trees cannot run something is a result."""
    wrong = "error" in row or "bits" in row or bool(row.get("different"))
    return wrong and row["mode"] != LAST


def run(options: argparse.Namespace) -> Iterator[Row]:
    """Rows of each strategy and mode, as they come; a later one takes the place of an earlier one."""
    chosen = [name for name in STRATEGIES if name in options.only.split(",")]
    modes = sorted(MODES, key=lambda mode: mode == LAST)
    deadline = time.monotonic() + options.limit
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        jobs = {
            (name, mode): stack.enter_context(_Job(name, mode, Path(folder), options))
            for name in chosen
            for mode in modes
        }
        for alone in ([key] for key in jobs if STRATEGIES[key[0]].alone):
            yield from _together([jobs[key] for key in alone], Path(folder), deadline)
        yield from _together([job for key, job in jobs.items() if not STRATEGIES[key[0]].alone], Path(folder), deadline)


def _together(jobs: list[_Job], folder: Path, deadline: float) -> Iterator[Row]:
    """Rows of jobs that compile at the same time; the first to be warm waits for all of them."""
    start = folder / "start"
    start.unlink(missing_ok=True)
    for job in jobs:
        job.begin()
    while jobs:
        if all(job.warm for job in jobs):
            start.touch()
        late = time.monotonic() > deadline
        over = [job for job in jobs if late or job.over]
        for job in jobs:
            yield from job.rows(job in over)
        jobs = [job for job in jobs if job not in over]
        time.sleep(0.05)


class _Job:
    """One strategy in one mode: its ranks, each a process."""

    def __init__(self, strategy: str, mode: str, meet: Path, options: argparse.Namespace) -> None:
        self.key = {"strategy": strategy, "mode": mode}
        self._name = meet / f"{strategy} {mode}"
        child = [*CHILD, "--strategy", strategy, "--mode", mode, "--device", options.device, "--meet", str(meet)]
        child += ["--steps", str(options.steps), "--timed", str(options.timed), "--size", options.size]
        # Sums of three and more have an order: of two they have none.
        shared = {"NCCL_ALGO": "Ring"} if options.ranks > 2 else {}
        shared |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # without which cuBLAS does not promise to repeat itself
        shared |= {"TORCHINDUCTOR_COMPILE_THREADS": "8" if STRATEGIES[strategy].alone else "2", "OMP_NUM_THREADS": "1"}
        self._output, self._errors = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._seen = 0
        self._processes = [
            subprocess.Popen(
                [sys.executable, *child],
                stdout=self._output if rank == 0 else subprocess.DEVNULL,
                stderr=self._errors,
                env=shared | os.environ | _place(rank, options.ranks),
                start_new_session=True,
            )
            for rank in range(options.ranks)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._output.close()
        self._errors.close()

    def begin(self) -> None:
        """Let it take its GPUs."""
        self._name.with_name(f"{self._name.name}.begin").touch()

    @property
    def warm(self) -> bool:
        """Ready to be timed, or over."""
        return self._name.with_name(f"{self._name.name}.ready").exists() or self.over

    @property
    def over(self) -> bool:
        """Whether it has ended: all of its ranks, or one with an error, for which the others would wait in vain."""
        ended = [process.poll() for process in self._processes]
        return all(status is not None for status in ended) or any(ended)

    def rows(self, last: bool) -> Iterator[Row]:
        """What its first rank has printed since; if this is the last time and that was nothing, the reason."""
        status = [process.poll() for process in self._processes]
        if last:
            self._stop()
        printed = self._printed()
        for line in printed[self._seen :]:
            with contextlib.suppress(json.JSONDecodeError):
                yield dict(json.loads(line))
                self._seen += 1
        if not last or (all(each == 0 for each in status) and self._seen):
            return
        if all(each in (None, 0) for each in status):
            if not self._seen:
                yield self.key | {"error": "not done in time" if None in status else "no output"}
            return
        errors = _lines(self._errors)
        print("\n".join(errors[-60:]), file=sys.stderr)
        said = [line for line in errors if "Error" in line] or errors[-1:]
        yield self.key | {"error": said[0].strip()[:300] if said else f"exit statuses {status} and no output"}

    def _printed(self) -> list[str]:
        """Whole lines of JSON so far."""
        return [line for line in _lines(self._output) if line.startswith("{") and line.endswith("}")]

    def _stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _place(rank: int, ranks: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}


def _lines(file: Any) -> list[str]:
    """What is in a file that others write, without moving the place at which they write."""
    return os.pread(file.fileno(), 1 << 26, 0).decode(errors="replace").splitlines()


def _source(options: argparse.Namespace) -> Row:
    command = {"command": f"python -m scripts.distributed --ranks {options.ranks} --only {options.only}"}
    if options.device == "cpu":
        return {"device": "cpu, nothing compiled", **command}
    from paramgraph_kit.driver.select import driver

    return {k: v for k, v in asdict(driver().source()).items() if k != "from_file"} | command
