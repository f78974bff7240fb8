"""``python -m tests.corpus.published``: PyGraph's list, each workload timed with nothing else on its card.

A workload has two processes: our graphs beside the same code without them, and graph trees. All get ready at once and
are then timed in turns, one workload after the other. Each row is written as it comes; what is not ready or not done in
time is a row that says so. On two cards, at the same time: ``CUDA_VISIBLE_DEVICES=0`` with ``--share 0/2``, ``1`` with
``--share 1/2``, into two folders; then ``--table`` with both.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paramgraph_kit.bench.measure import quick_cores
from paramgraph_kit.bench.side_by_side import environment
from paramgraph_kit.bench.turns import LATE, Child, all_ready, turns
from tests.corpus.published import LISTED, Listed
from tests.corpus.published.measure import OURS, TREES, measure
from tests.corpus.published.table import markdown

ROUNDS = 3
TURN_MS = 15, 100  # of one way in one turn
SAID = 3000  # characters of what a process that failed has said last
READY = 0.7  # of the time for getting ready, if it is not said otherwise
COMMAND = (sys.executable, "-m", "tests.corpus.published")
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is here, write a row for all of the list; returns 1 where a tensor differs or a process failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.published", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder (default %(default)s)")
    parser.add_argument("--only", default="", help="short names, comma-separated (default: all but slow ones)")
    parser.add_argument("--fewer", default="", metavar="NAME:N,...", help="other limits of layers for some")
    parser.add_argument("--share", default="0/1", metavar="K/N", help="every Nth of them, from the Kth on")
    parser.add_argument("--layers", type=int, help="at most so many of each stack of layers (default: as published)")
    parser.add_argument("--seconds", type=float, default=900.0, help="for all (default %(default)s)")
    parser.add_argument("--ready", type=float, help="of these, until a process must be ready")
    parser.add_argument("--list", action="store_true", help="print the list and run nothing")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FOLDER", help="only the table, of what is in these")
    parser.add_argument("--child", nargs=2, metavar=("SHORT", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(f"{each.short:<8} {each.model:<40} {each.absent or each.note}" for each in LISTED))
        return 0
    if options.table:
        rows = [json.loads(line) for folder in options.table for line in _file(folder).read_text().splitlines()]
        return _write(options.out, rows)
    if options.child:
        short, way = options.child
        return _child(short, way, options.layers)
    import torch

    if not torch.cuda.is_available():
        print("published: no GPU here; it measures real launches only", file=sys.stderr)
        return 2
    return _parent(options)


def _parent(options: argparse.Namespace) -> int:
    from paramgraph_kit.driver.native.build import prepare
    from paramgraph_kit.driver.select import driver

    prepare(wait=True)  # once, not in each of the processes
    options.out.mkdir(parents=True, exist_ok=True)
    source = asdict(driver().source()) | {"command": "python -m tests.corpus.published"}
    rows: list[Row] = [{"source": source}]
    _file(options.out).write_text(json.dumps(rows[0], default=str) + "\n")
    ready = options.seconds * READY if options.ready is None else options.ready
    command = [*COMMAND, *(["--layers", str(options.layers)] if options.layers else [])]
    fewer = dict(part.split(":") for part in options.fewer.split(",") if part)
    for row in measured(chosen(options.only, options.share), command, options.seconds, ready, fewer):
        rows.append(row)
        with _file(options.out).open("a") as journal:
            journal.write(json.dumps(row) + "\n")
        print(f"{row['short']}, {row['way']}: {row.get('us') or row['error']}", file=sys.stderr, flush=True)
    return _write(options.out, rows)


def chosen(only: str, share: str) -> list[Listed]:
    """What is here of those that are asked for.

    >>> [each.short for each in chosen("DLRM,MMC,DR-I,DCGAN", "1/2")]
    ['DLRM']
    """
    names = [name for name in only.split(",") if name]
    found = [each for each in LISTED if (each.short in names if names else each.note != "slow") and not each.absent]
    first, step = map(int, share.split("/"))
    return found[first::step]


def measured(
    listed: Sequence[Listed],
    command: Sequence[str],
    seconds: float,
    ready: float,
    fewer: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Row]:
    """Two rows of each, in order; ``fewer``: layers of some."""
    deadline, env = time.monotonic() + seconds, environment()
    pairs = []
    for each in listed:
        line = [*command, *(["--layers", fewer[each.short]] if each.short in fewer else []), "--child", each.short]
        both = [(way, [*line, way]) for way in (OURS, TREES)]
        pairs.append([Child(started, {"short": each.short, "way": way}, ready, env) for way, started in both])
    all_ready([child for children in pairs for child in children], deadline)
    cores = ",".join(map(str, quick_cores()))
    for n, children in enumerate(pairs):
        share = (deadline - time.monotonic()) / (len(pairs) - n)
        turn = int(min(max(share * 1e3 / (8 * ROUNDS), TURN_MS[0]), TURN_MS[1]))
        for _ in range(ROUNDS):
            for child in children:
                child.take_a_turn(turn, cores)
        for child in children:
            found = child.result()
            said = [
                line for line in child.said.splitlines() if re.match(r"[\w.]*(Error|Exception|Unsupported)\b", line)
            ]
            error = found.get("error", LATE)
            failed: Row = {"error": said[-1] if said and error != LATE else error, "said": child.said[-SAID:]}
            yield child.row | (found if "us" in found else failed)


def _child(short: str, way: str, layers: int | None) -> int:
    import torch

    from paramgraph_kit.driver.native.build import prepare

    prepare(wait=True)
    cores: set[int] = set()
    listed = next(each for each in LISTED if each.short == short)
    device = torch.device("cuda", torch.cuda.current_device())
    print(json.dumps(measure(listed, way, device, layers, turns(cores), cores)), flush=True)
    os._exit(0)  # what is torn down at exit is no part of a measurement


def _file(folder: Path) -> Path:
    return folder / "published.jsonl"


def _write(out: Path, rows: Sequence[Row]) -> int:
    out.mkdir(parents=True, exist_ok=True)
    text = markdown(rows)
    (out / "published.md").write_text(text)
    print(text)
    return int(any("error" in row or row.get("bits", {}).get("different") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
