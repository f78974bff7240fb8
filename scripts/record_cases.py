"""Records what a GPU does with our own programs, in the format of tests/data/h200_capture_cases.json.

``python scripts/record_cases.py FILE`` runs every program of tests/integration/own_cases.py in a process of its own and
writes what each raised and printed. Without a GPU the simulator runs them, and the file says "simulated" for "h200".
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import platform
import re
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402  # after the path, as all below
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from paramgraph_kit.driver.select import device, driver, twin  # noqa: E402
from tests.integration.h200_cases import on_simulator  # noqa: E402
from tests.integration.own_cases import OWN  # noqa: E402

LIMIT_S = 120
ABOUT = (
    "What {what} does with each of our own programs. Each is a whole program, run once in a process of its own. Names "
    "used by the programs: torch, nn, F (torch.nn.functional), C (torch.cuda), threading, io, time. exceptions: the "
    "raised exception first, then its __context__ chain. Written by scripts/record_cases.py on {date}."
)


def record(name: str) -> dict[str, Any]:
    """Run one program here: how it ended, what it raised, printed and warned of."""
    sim = device().type != "cuda"
    text = on_simulator(OWN[name][0]) if sim else OWN[name][0]
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "C": twin(), "threading": threading, "io": io}
    names["time"] = time
    torch.manual_seed(0)
    printed, raised = io.StringIO(), None
    with redirect_stdout(printed), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(compile(text, "<program>", "exec"), names)
            twin().synchronize()
        except Exception as error:
            raised = error
    said = [str(each.message).splitlines()[0] for each in caught]
    return {
        "outcome": "ran" if raised is None else "fails",
        "exceptions": exceptions(raised),
        "printed": printed.getvalue(),
        "warnings": list(dict.fromkeys(text for text in said if "torch.jit" not in text)),
    }


def exceptions(raised: BaseException | None) -> list[dict[str, str]]:
    """The chain of what was raised, each with the function that did."""
    found = []
    while raised is not None:
        at = raised.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        code = at.tb_frame.f_code if at is not None else None
        own = code is None or code.co_filename == "<program>"
        where = "user code" if own or code is None else "/".join(Path(code.co_filename).parts[-2:]) + f":{code.co_name}"
        message = next((line for line in str(raised).splitlines() if line.strip()), "")
        found.append({"type": type(raised).__name__, "message": message, "raised_in": where})
        raised = raised.__context__
    return found


def in_a_process(name: str) -> dict[str, Any]:
    """The same in another process, which it may take with it."""
    command = [sys.executable, __file__, "--one", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return {"outcome": f"takes more than {LIMIT_S} s", "exceptions": [], "printed": "", "warnings": []}
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    last = done.stderr.strip().splitlines()[-1:]
    return {"outcome": f"the process ends with {done.returncode}", "exceptions": [], "printed": "", "warnings": last}


def where() -> tuple[str, str]:
    """(key of the results, words for what ran the programs)."""
    label = driver().source().label()
    if device().type != "cuda":
        return "simulated", f"the CPU SIMULATOR, and NO GPU ({label})"
    model = re.search(r"\b[A-Z]+\d+\b", torch.cuda.get_device_name())
    return (model[0].lower() if model else "gpu"), f"one {label}, Python {platform.python_version()}"


def main() -> None:
    """Run all, and write the file; or one, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--one", choices=sorted(OWN), metavar="NAME", help="run this program here and print its record")
    parser.add_argument("--only", nargs="+", choices=sorted(OWN), metavar="NAME", default=list(OWN))
    parser.add_argument("--jobs", type=int, default=4, help="processes at once")
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(record(chosen.one)))
        return
    if chosen.file is None:
        parser.error("name the file to write")
    key, what = where()
    with ThreadPoolExecutor(chosen.jobs) as pool:
        records = dict(zip(chosen.only, pool.map(in_a_process, chosen.only), strict=True))
    about = ABOUT.format(what=what, date=datetime.date.today().isoformat())
    cases = {name: {"program": OWN[name][0], key: found} for name, found in records.items()}
    chosen.file.write_text(json.dumps({"about": about, "cases": cases}, indent=1) + "\n", encoding="utf-8")
    print(f"{chosen.file}: {len(cases)} programs on {what}")


if __name__ == "__main__":
    main()
