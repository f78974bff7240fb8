"""``python -m tests.corpus.census``: every architecture, drawn in one order, a line for each as it comes.

Each runs in a fork of a process that has imported what all need and has not touched a device. Rows go to ``--out``,
which a later call goes on from; ``--budget`` ends the drawing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import sys
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scripts.executed import forked
from tests.corpus.census import case, names
from tests.corpus.command import BAD, read

IMPORTED = ("torch._dynamo", "torch._inductor.compile_fx", "transformers", "timm", "torchvision")


def main() -> int:
    """Run them; 1 if one is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.census", description=__doc__)
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--seed", type=int, default=0, help="of the order (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="at once (default %(default)s)")
    parser.add_argument("--limit", type=float, default=150, help="seconds for one (default %(default)s)")
    parser.add_argument("--budget", type=float, default=1e9, help="start none after so many seconds")
    parser.add_argument("--out", type=Path, default=Path("results/census.jsonl"), help="default %(default)s")
    given = parser.parse_args()
    until = time.monotonic() + given.budget
    # Libraries ask for a GPU, so that forks may use it, and for weights.
    os.environ |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "HF_HUB_OFFLINE": "1"}
    for name in IMPORTED:
        try:
            importlib.import_module(name)
        except ImportError:
            print(f"{name} is not installed", file=sys.stderr)
    drawn = [name for name in names() if given.only in name]
    random.Random(given.seed).shuffle(drawn)
    known = read(given.out)

    def one(numbered: tuple[int, str]) -> None:
        number, name = numbered
        if time.monotonic() > until or name in known:
            return
        began = time.monotonic()
        code = forked(_child, (name, str(given.out), number), given.limit)
        if code != 0:
            said = "no end in time" if code is None else f"its process ended with {code}"
            _say(given.out, {"workload": name, "status": "failed", "error": said})
        row = read(given.out)[name]
        print(f"{row['status']:9} {name}  {time.monotonic() - began:.0f} s  {row.get('error', '')[:120]}", flush=True)

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(one, enumerate(drawn)))
    rows = read(given.out)
    print(dict(Counter(row["status"] for row in rows.values())))
    return 1 if any(row["status"] in BAD for row in rows.values()) else 0


def _child(name: str, out: str, number: int) -> None:
    import torch

    from paramgraph_kit.driver.select import device
    from tests.corpus.check import check, eager

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if (cards := os.environ.get("CENSUS_CARDS")) is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(number % int(cards))
    row: dict[str, object] = {"workload": name}
    where = device()  # before anything goes backward
    began = time.monotonic()
    try:
        eager(case(name), torch.device("cpu"))
    except Exception as error:  # the library's own, of a configuration that does not fit together
        row |= {"status": "skipped", "error": f"eager: {_text(error)}"}
    else:
        try:
            row |= check(case(name), where)
        except Exception as error:  # one row: the others go on
            row |= {"status": "failed", "error": _text(error)}
    _say(Path(out), row | {"process_s": round(time.monotonic() - began, 1)})
    os._exit(0)  # libraries' threads, which a fork has not, are waited for at its end


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _say(out: Path, row: dict[str, object]) -> None:
    with out.open("a", encoding="utf-8") as file:
        print(json.dumps(row), file=file)


if __name__ == "__main__":
    sys.exit(main())
