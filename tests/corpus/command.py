"""``python -m tests.corpus``: every workload of the corpus, in processes of their own, several at once.

A workload that crashes, hangs or takes the GPU down with it is one failure in the table. Results are written as they
come (``corpus.jsonl``), so what an interrupted run has found is kept, and ``--missing`` goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from paramgraph_kit.bench.turns import turns
from tests.corpus.table import markdown

COMMAND = (sys.executable, "-m", "tests.corpus")
BAD = ("wrong", "missed", "failed")
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the corpus; returns the exit status: 1 if a result is wrong, missed or failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("--only", default="", help="names containing one of these, or families, comma-separated")
    parser.add_argument("--missing", action="store_true", help="only what --out has no result of yet, or a failed one")
    parser.add_argument("--jobs", type=int, default=6, help="workloads at once (default %(default)s)")
    parser.add_argument("--limit", type=float, default=180, help="seconds for one workload (default %(default)s)")
    parser.add_argument("--budget", type=float, help="start no workload after so many seconds")
    parser.add_argument("--time", action="store_true", help="instead, time no graphs, graph trees and paramgraph")
    parser.add_argument("--rounds", type=int, default=4, help="with --time: turns of each mode (default %(default)s)")
    parser.add_argument("--steps", type=int, default=15, help="with --time: steps of a turn (default %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder (default %(default)s)")
    parser.add_argument("--device", choices=("auto", "cuda", "sim", "cpu"), default="auto", help=argparse.SUPPRESS)
    parser.add_argument("--eager", action="store_true", help=argparse.SUPPRESS)  # is the workload itself sound?
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    parser.add_argument("--baseline", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--child", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        how = "time" if options.time else "eager" if options.eager else "without_us" if options.baseline else "check"
        return _child(options.child, options.device, how)
    from tests.corpus import corpus

    cases = corpus(options.only)
    if options.list:
        print("\n".join(f"{case.family:<12} {case.name}" for case in cases))
        return 0
    device = options.device if options.device != "auto" else _device()
    if device == "sim":
        cases = [case for case in cases if case.simulated]
    options.out.mkdir(parents=True, exist_ok=True)
    if options.time:
        if device != "cuda" and options.device == "auto":
            print("corpus --time: no GPU here; it measures real launches only", file=sys.stderr)
            return 2
        return _time([case.name for case in cases if case.timed], device, options)
    return _check([(case.family, case.name) for case in cases], device, options)


def _check(names: list[tuple[str, str]], device: str, options: argparse.Namespace) -> int:
    journal = options.out / "corpus.jsonl"
    kept = read(journal)
    if options.missing:
        names = [(f, n) for f, n in names if kept.get(n, {"status": "failed"})["status"] == "failed"]
    names.sort(key=lambda pair: -kept.get(pair[1], {}).get("process_s", 0))  # the longest first, where that is known
    started = time.monotonic()

    def one(family: str, name: str) -> Row | None:
        if options.budget is not None and time.monotonic() - started > options.budget:
            return None
        found = run_child(name, device, options.eager, options.limit)
        if found["status"] == "failed" and device == "cuda" and not options.eager:
            # Whose failure is it? Inductor without graphs, in a process of its own, tells.
            alone = run_child(name, device, False, options.limit, "--baseline")
            if alone["status"] == "failed":
                found = {"status": "unable", "error": f"torch.compile alone: {alone['error']}"}
        return {"workload": name, "family": family} | found

    with journal.open("a") as file, ThreadPoolExecutor(options.jobs) as pool:
        for done in as_completed([pool.submit(one, *pair) for pair in names]):
            row = done.result()
            if row is not None:
                kept[row["workload"]] = row
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(_line(row), file=sys.stderr, flush=True)
    _rewrite(journal, kept)
    print(write(options.out, device))
    return 1 if any(kept[name]["status"] in BAD for _, name in names if name in kept) else 0


def _time(names: list[str], device: str, options: argparse.Namespace) -> int:
    from tests.corpus import timing

    journal = options.out / "corpus_times.jsonl"
    kept = read(journal)
    if options.missing:
        names = [name for name in names if not kept.get(name, {}).get("us")]
    started = time.monotonic()
    start = timing.started([*COMMAND, "--time", "--device", device, "--child"], options.limit)
    with journal.open("a") as file:
        for rows in timing.in_batches(names, start, options.jobs, options.rounds, options.steps):
            for row in rows:
                kept[row["workload"]] = row
                file.write(json.dumps(row) + "\n")
                print(f"{row['workload']}: {row.get('us') or row.get('error')}", file=sys.stderr)
            file.flush()
            if options.budget is not None and time.monotonic() - started > options.budget:
                break
    _rewrite(journal, kept)
    print(write(options.out, device))
    return 1 if any("error" in kept[name] for name in names if name in kept) else 0


def _rewrite(journal: Path, rows: dict[str, Row]) -> None:
    journal.write_text("".join(json.dumps(row) + "\n" for row in rows.values()))


def write(out: Path, device: str) -> str:
    """corpus.json and corpus.md from what both phases have left in ``out``; returns the Markdown."""
    result = {
        "source": _source(device),
        "rows": [*read(out / "corpus.jsonl").values()],
        "times": [*read(out / "corpus_times.jsonl").values()],
    }
    (out / "corpus.json").write_text(json.dumps(result, indent=1) + "\n")
    text = markdown(result)
    (out / "corpus.md").write_text(text)
    return text


def read(journal: Path) -> dict[str, Row]:
    """The last row of each workload; a line that an interruption cut off is left out."""
    rows: dict[str, Row] = {}
    for line in journal.read_text().splitlines() if journal.is_file() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        rows[row["workload"]] = row
    return rows


def run_child(name: str, device: str, eager: bool, limit: float, *more: str) -> Row:
    """One workload in a process of its own, with whatever became of that process."""
    command = [*COMMAND, "--child", name, "--device", device, *(["--eager"] if eager else []), *more]
    if (ranks := _ranks(name, device)) > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command = [command[0], *torchrun, *command[1:]]
    # Several workloads compile at once: each gets few compiler processes.
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": os.environ.get("TORCHINDUCTOR_COMPILE_THREADS", "2")}
    started = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its own session: the compiler processes that it started too
        process.communicate()
        return {"status": "failed", "error": f"not done after {limit:.0f} s", "total_s": round(limit, 1)}
    taken = {"process_s": round(time.monotonic() - started, 1)}
    for line in reversed(output.splitlines()):
        try:
            return dict(json.loads(line)) | taken
        except (json.JSONDecodeError, ValueError, TypeError):
            continue
    return {"status": "failed", "error": _last(errors.splitlines(), process.returncode)} | taken


def _ranks(name: str, device: str) -> int:
    """How many processes a workload takes; one, to say so, where there are not enough GPUs."""
    from tests.corpus import corpus

    ranks = next(case.ranks for case in corpus() if case.name == name)
    if device == "cpu" or ranks == 1:
        return ranks
    import torch

    return ranks if torch.cuda.device_count() >= ranks else 1


def _last(lines: Iterable[str], status: int) -> str:
    said = [line for line in lines if line.strip()]
    if status < 0:
        return f"killed by {signal.Signals(-status).name}: {said[-1] if said else ''}".rstrip(": ")
    return said[-1] if said else f"exit status {status} and no output"


def _child(name: str, device: str, how: str) -> int:
    import torch

    from tests.corpus import check as checking
    from tests.corpus import corpus, timing
    from tests.corpus.case import missing

    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    if device == "cpu":
        where = torch.device("cpu")
    else:
        if device == "cuda":
            torch.cuda.set_device(rank)
        from paramgraph_kit.driver.select import device as select

        where = select()
    case = next(case for case in corpus() if case.name == name)
    reason = missing(case, where)
    if how == "time":
        timing.result_line(timing.skip(name, reason) if reason else timing.measure(case, where, turns(set())))
        return 0
    if reason:
        row: Row = {"status": "skipped", "error": reason}
    else:
        try:
            row = getattr(checking, how)(case, where)
        except Exception as error:  # one row of the table: the rest of the corpus goes on
            if os.environ.get("PARAMGRAPH_CORPUS_RAISE"):
                raise
            text = " ".join(line.strip() for line in str(error).splitlines()[:4])
            row = {"status": "failed", "error": f"{type(error).__name__}: {text}"[:500]}
    if rank == 0:
        print(json.dumps(row), flush=True)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        sys.stderr.flush()
        os._exit(0)  # ending a process group waits for work that graphs still hold
    return 0


def _end_with_parent(parent: int) -> None:
    """A child must not hold the GPU after whoever started it is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _device() -> str:
    from paramgraph_kit.driver.select import device

    return device().type


def _source(device: str) -> Row:
    from dataclasses import asdict

    from paramgraph_kit.driver.select import driver

    source = asdict(driver().source())
    kept = {key: value for key, value in source.items() if key != "from_file"}
    return kept | {"command": "python -m tests.corpus", "asked_for": device}


def _line(row: Row) -> str:
    share = f"{row['kernels_in_graphs']}/{row['kernels']} kernels, " if "kernels" in row else ""
    error = f"  {row['error']}" if "error" in row else ""
    return f"{row['status']:<9} {row['workload']}: {share}{row.get('process_s', 0)} s{error}"
