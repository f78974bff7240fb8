"""Runs generated programs, compiled by this backend, parameterized and as steps, against eager on this device.

Usage: python scripts/sweep_programs.py --out FILE [--count 2000] [--minutes M] [--first 0]

A program is its seed: what FILE has is not run again; from a million on they are of the wide kind. Each result is a
line as soon as it is there; a program that differs is printed with its source. Ends with 1 if any does; what
AOTAutograd alone gets wrong is counted, no more.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import random
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.sweep.operators import ready  # noqa: E402 - the repository has to be importable first
from tests.sweep.programs import TORCHS, generate, wrong  # noqa: E402

WIDE_FROM = 1_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="results, one line each; a file that exists is continued"
    )
    parser.add_argument("--count", type=int, default=2000, help="programs")
    parser.add_argument("--first", type=int, default=0, help="the first program's seed")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop by itself after so long")
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + options.minutes * 60
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)  # AOTAutograd's, of what it cannot do
    ready()
    wrong(generate(random.Random(0).randrange))  # imports what compiling needs
    gc.collect()
    gc.freeze()  # each program is followed by a collection, which took more time than the program
    lines = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
    done: dict[int, str] = {found["seed"]: found["wrong"] for found in map(json.loads, lines)}
    with options.out.open("a", encoding="utf-8") as out:
        for seed in range(options.first, options.first + options.count):
            if seed in done:
                continue
            if time.monotonic() > deadline:
                break
            program = generate(random.Random(seed).randrange, wide=seed >= WIDE_FROM)
            done[seed] = wrong(program)
            print(json.dumps({"seed": seed, "wrong": done[seed]}), file=out, flush=True)
            if done[seed] and not done[seed].startswith(TORCHS):
                print(f"{seed}: {done[seed]}\n{program}", flush=True)
    torchs = sum(found.startswith(TORCHS) for found in done.values())
    ours = sum(bool(found) for found in done.values()) - torchs
    print(
        f"{len(done)} programs: {len(done) - torchs - ours} equal, {torchs} wrong in AOTAutograd alone, {ours} differ"
    )
    return int(ours > 0)


if __name__ == "__main__":
    sys.exit(main())
