"""Runs torch's operator database on this machine's device: every operator is equal, refused with a reason, or listed.

Usage: python scripts/sweep_operators.py --out FILE [--modes eager,captured,forward,backward,step] [--samples 3]
[--jobs N]
[--minutes M] [--limit S] [--costs FILE] [--only NAME...]

On a GPU the modes are forward and backward (compiled by this backend, against the same code ungraphed and against
eager) and step (torch's own kernels in a whole step, their gradients too, with three layouts of the arguments); the
simulated device is held against the CPU too. Every result is a line of FILE as soon as it is there; what
FILE has is not run again, so that a sweep that stopped, or ran out of its minutes, goes on. Operators come in an order
that has nothing to do with their names: a part of the sweep is a fair sample. Ends with 1 if anything is unexplained.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import queue
import random
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.sweep.checks import DIFFERS, Verdict  # noqa: E402 - the repository has to be importable first
from tests.sweep.operators import MODES, Finding, Subject, examine, ready, subjects  # noqa: E402

LIMIT_S = 180  # for one operator; then its worker is stopped, and that is a finding
LONG_S = 3
START_S = 300  # until a worker is ready, at most
READY = "ready"  # what a worker says before it takes the first subject
GRACE_S = 15  # at the end, for what is under way


def encode(finding: Finding) -> str:
    """One line of a results file.

    >>> encode(Finding(Subject("forward", "add", "float32"), (Verdict("equal", "", 3),), 0.5))
    '{"mode": "forward", "operator": "add", "dtype": "float32", "verdicts": [["equal", "", 3]], "seconds": 0.5}'
    """
    verdicts = [[v.word, v.why, v.graphed] for v in finding.verdicts]
    return json.dumps(asdict(finding.subject) | {"verdicts": verdicts, "seconds": finding.seconds})


def decode(line: str) -> Finding:
    """What ``encode`` wrote."""
    found = json.loads(line)
    subject = Subject(found["mode"], found["operator"], found["dtype"])
    return Finding(subject, tuple(Verdict(*v) for v in found["verdicts"]), found["seconds"])


def load(path: Path) -> list[Finding]:
    """The findings of a results file; a last line that was cut off is left out."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [decode(line) for line in lines if line.startswith('{"mode"') and line.endswith("}")]


def work(samples: int) -> None:
    """A worker: one subject a line in, one finding a line out, until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # whatever an operator prints is no answer
    device = ready()
    examine(Subject("backward", "add", "float32"), 1)  # imports what compiling needs
    gc.collect()
    print(READY, file=answers)
    gc.freeze()  # each compilation is preceded by a collection, which took more time than most operators
    for line in sys.stdin:
        finding = examine(Subject(*json.loads(line)), samples)
        print(encode(finding), file=answers)
        if device.type == "cuda":
            import torch

            torch.cuda.synchronize()  # raises where the process cannot go on: the next worker does


class Sweep:
    """Subjects shared out to worker processes, findings written as they come."""

    def __init__(self, todo: Iterable[Subject], out: TextIO, samples: int, deadline: float, limit: float) -> None:
        self.todo: queue.SimpleQueue[Subject] = queue.SimpleQueue()
        for subject in todo:
            self.todo.put(subject)
        self.out, self.samples, self.deadline, self.limit = out, samples, deadline, limit
        self.lock = threading.Lock()

    def run(self, jobs: int) -> None:
        """Work until nothing is left or the time is over."""
        threads = [threading.Thread(target=self._serve) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _serve(self) -> None:
        worker: subprocess.Popen[str] | None = None
        while time.monotonic() < self.deadline:
            try:
                subject = self.todo.get_nowait()
            except queue.Empty:
                break
            worker = worker or self._start()
            if worker is None:
                break
            finding = self._ask(worker, subject)
            if finding is None:
                worker = None
            else:
                with self.lock:
                    print(encode(finding), file=self.out, flush=True)
                if finding.verdicts and finding.verdicts[-1].why.startswith("the process"):
                    worker = None
        if worker is not None:
            worker.kill()
            worker.communicate()

    def _start(self) -> subprocess.Popen[str] | None:
        """A worker that is ready: many that start at once take a minute, which is no operator's fault."""
        command = [sys.executable, "-W", "ignore", __file__, "--worker", str(self.samples)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        worker = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        assert worker.stdout is not None
        answered, _, _ = select.select(
            [worker.stdout], [], [], min(max(0.0, self.deadline - time.monotonic()), START_S)
        )
        if answered and worker.stdout.readline().strip() == READY:
            return worker
        worker.kill()
        worker.communicate()
        return None

    def _ask(self, worker: subprocess.Popen[str], subject: Subject) -> Finding | None:
        """A worker's finding; None where the sweep is over, and one of its own where the worker is."""
        started = time.monotonic()
        until = min(started + self.limit, self.deadline + GRACE_S)
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            print(json.dumps([subject.mode, subject.operator, subject.dtype]), file=worker.stdin, flush=True)
            answered, _, _ = select.select([worker.stdout], [], [], max(0.0, until - started))
            line = worker.stdout.readline() if answered else ""
        except BrokenPipeError:
            line = ""
        if line:
            return decode(line)
        over = not answered and until < started + self.limit if worker.poll() is None else False
        worker.kill()
        worker.communicate()
        if over:
            return None
        why = (
            f"the process was stopped after {self.limit:g} s"
            if worker.returncode == -9
            else f"the process ended with {worker.returncode}"
        )
        return Finding(subject, (Verdict(DIFFERS, why),), round(time.monotonic() - started, 3))


def summary(findings: Sequence[Finding]) -> str:
    """Counts by mode, and everything unexplained."""
    counts = Counter(
        (f.subject.mode, "listed" if v.bad and v not in f.unexplained else v.word) for f in findings for v in f.verdicts
    )
    lines = []
    for mode in MODES:
        words = ", ".join(f"{n:,} {word}" for (m, word), n in sorted(counts.items()) if m == mode)
        operators = len({f.subject.operator for f in findings if f.subject.mode == mode})
        lines += [f"{mode}: {operators} operators; samples: {words}"] if operators else []
    lines += [str(f) for f in findings if f.unexplained]
    return "\n".join([*lines, f"{sum(bool(f.unexplained) for f in findings)} unexplained"])


def header(options: Any) -> str:
    """The first line of a results file: the machine, the versions, the code."""
    from paramgraph_kit.driver.select import driver

    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    source = asdict(driver().source())
    commit = git.stdout.strip() or os.environ.get("COMMIT", "unknown")
    return json.dumps({"source": source, "commit": commit, "samples": options.samples}, default=str)


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="results, one line each; a file that exists is continued")
    parser.add_argument(
        "--modes", default="", help="some of eager, captured, forward, backward, step; by default what fits"
    )
    parser.add_argument("--samples", type=int, default=3, help="of each operator, at most")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop by itself after so long")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="S", help="seconds for one operator, at most")
    parser.add_argument("--costs", type=Path, help="results of another sweep: what took long there comes first")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="operators, as the results name them")
    parser.add_argument("--worker", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        work(options.worker)
        return 0
    if options.out is None:
        parser.error("--out FILE is needed")
    deadline = time.monotonic() + options.minutes * 60
    device = ready()
    modes = options.modes.split(",") if options.modes else list(MODES if device.type != "cuda" else MODES[2:])
    if unknown := [mode for mode in modes if mode not in MODES]:
        parser.error(f"--modes: {unknown[0]!r} is none of {', '.join(MODES)}")
    done = {finding.subject for finding in load(options.out)}
    todo = [s for s in subjects(modes) if s not in done and (not options.only or s.operator in options.only)]
    random.Random(0).shuffle(todo)
    if options.costs is not None:  # at the end all processes have something to do
        long = {f.subject: f.seconds for f in load(options.costs) if f.seconds > LONG_S}
        todo.sort(key=lambda subject: -long.get(subject, 0.0))
    new = not options.out.exists()
    with options.out.open("a", encoding="utf-8") as out:
        if new:
            print(header(options), file=out, flush=True)
        Sweep(todo, out, options.samples, deadline, options.limit).run(options.jobs)
    findings = load(options.out)
    print(summary(findings))
    print(f"{len(todo) - len(findings) + len(done)} of {len(todo) + len(done)} not run: call again to go on")
    return int(any(finding.unexplained for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
