"""``python -m tests.corpus.strangers``: every program in every way, a line for each as it comes."""

from __future__ import annotations

import argparse
import faulthandler
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO

from tests.corpus.strangers.program import programs
from tests.corpus.strangers.running import BAD, WAYS, rows

END = "."  # a worker has nothing more to say about a program


def main() -> int:
    """Run them; returns 1 if one is wrong or raised what the code alone does not."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.strangers", description=__doc__)
    parser.add_argument("--only", default="", help="names or fields, comma-separated")
    parser.add_argument("--ways", default=",".join(WAYS), help="comma-separated (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="programs at once (default %(default)s)")
    parser.add_argument("--limit", type=float, default=180, help="seconds for one program (default %(default)s)")
    parser.add_argument("--budget", type=float, default=3600, help="seconds for all (default %(default)s)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    ways = given.ways.split(",")
    if given.worker:
        return _worker(ways)
    only = {part for part in given.only.split(",") if part}
    names = [p.name for p in programs().values() if not only or {p.name, p.field} & only]
    return _all(names, ways, given.jobs, given.limit, given.budget)


def _worker(ways: Sequence[str]) -> int:
    faulthandler.enable()  # a worker that crashes says where
    for line in sys.stdin:
        for row in rows(programs()[line.strip()], ways):
            print(row, flush=True)
        print(END, flush=True)
    return 0


def _all(names: Sequence[str], ways: Sequence[str], jobs: int, limit: float, budget: float) -> int:
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    bad, until = list[str](), time.monotonic() + budget

    def say(line: str) -> None:
        print(line, flush=True)
        if any(f" {word} " in line for word in BAD):
            bad.append(line)

    threads = [threading.Thread(target=_hand_out, args=(waiting, ways, limit, until, say)) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{len(names)} programs, {len(bad)} lines that somebody has to look at")
    return int(bool(bad))


def _hand_out(
    waiting: queue.SimpleQueue[str], ways: Sequence[str], limit: float, until: float, say: Callable[[str], None]
) -> None:
    """Programs for one worker after the other: one that takes too long or dies is followed by another."""
    command = [sys.executable, "-m", "tests.corpus.strangers", "--worker", "--ways", ",".join(ways)]
    worker: subprocess.Popen[str] | None = None
    while True:
        try:
            name = waiting.get_nowait()
        except queue.Empty:
            break
        if time.monotonic() > until:
            say(f"{name:24} {'':22} not begun")
            continue
        fresh = worker is None
        if worker is None:
            worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert worker.stdin is not None
        assert worker.stdout is not None
        seconds = min(limit + 20 * fresh, until - time.monotonic())
        timer = threading.Timer(seconds, worker.kill)
        timer.start()
        try:
            print(name, file=worker.stdin, flush=True)
            ended = _tell(worker.stdout, say)
        except BrokenPipeError:
            ended = False
        timer.cancel()
        if not ended:
            say(f"{name:24} {'':22} {'ERROR':10}       ended with {worker.wait()}, within {seconds:.0f} s")
            worker = None
    if worker is not None:
        worker.communicate()


def _tell(lines: IO[str], say: Callable[[str], None]) -> bool:
    """Hand on what a worker prints; whether it has come to its end."""
    for line in lines:
        if line.rstrip() == END:
            return True
        say(line.rstrip())
    return False


if __name__ == "__main__":
    sys.exit(main())
