"""The forums' programs on this machine's device: ``python -m tests.programs.on_device --out FILE --jobs 16``.

Each program is run eagerly, rewritten by ``pgk.diagnose(..., fix=True)``, and captured with the rewrite applied, over
ten steps with moved inputs; a row says whether the rewrite is whole, and what differs from eager. Each has a process of
its own, as a failed capture may ruin one, and the jobs are spread over the cards. FILE gets a row as each is done; no
program is begun after ``--seconds``. What FILE has already is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

FORUMS = Path(__file__).parent / "forums"
LONGEST = 120  # seconds for one program
MARK = "row: "


def main() -> None:
    """Run what is asked for, print how many there are of which kind, and end with 1 if numbers differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="of programs; all forums if none is named")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cards", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--one", help="the title of one program, which this process runs")
    given = parser.parse_args()
    if given.one is not None:
        print(MARK + json.dumps(row(given.files[0], given.one), default=str), flush=True)
        os._exit(0)  # whatever the program has left running
    from tests.programs.reading import read

    known = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    done = {(each["file"], each["title"]) for each in known}
    files = given.files or sorted(FORUMS.glob("*.txt"))
    todo = [(file, each.title) for file in files for each in read(file) if (file.name, each.title) not in done]
    until = time.monotonic() + given.seconds
    with ThreadPoolExecutor(given.jobs) as pool, given.out.open("a") as out:

        def work(number: int) -> None:
            if time.monotonic() < until:
                found = apart(*todo[number], number % given.cards if given.cards > 1 else None)
                known.append(found)
                out.write(json.dumps(found) + "\n")
                out.flush()

        list(pool.map(work, range(len(todo))))
    kinds = {name: sum(each["is"] == name for each in known) for name in sorted({each["is"] for each in known})}
    print(f"{len(known)} of {len(todo) + len(done)} programs: {kinds}")
    sys.exit(any(each["is"] in ("differs", "fails") for each in known))


def apart(file: Path, title: str, card: int | None) -> dict[str, Any]:
    """The row of one program, from a process of its own."""
    env = {**os.environ, **({} if card is None else {"CUDA_VISIBLE_DEVICES": str(card)})}
    command = [sys.executable, "-m", "tests.programs.on_device", str(file), "--one", title, "--out", os.devnull]
    about = {"file": file.name, "title": title}
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, env=env, check=False)
    except subprocess.TimeoutExpired:
        return {**about, "is": "too long"}
    rows = [line.removeprefix(MARK) for line in ended.stdout.splitlines() if line.startswith(MARK)]
    found: dict[str, Any] = json.loads(rows[-1]) if rows else {"is": "fails", "error": ended.stderr[-1000:]}
    return {**about, **found}


def row(file: Path, title: str) -> dict[str, Any]:
    """What becomes of one program on this machine's device."""
    import paramgraph_kit as pgk
    from paramgraph_kit.driver.select import driver
    from tests.programs.reading import read
    from tests.programs.running import captured, differences, eager, load, quiet

    program = next(each for each in read(file) if each.title == title)
    begun = time.monotonic()
    found: dict[str, Any] = {"is": "clean"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        try:
            truth = eager(load(program.broken, path), program.function)
            names = load(program.broken, path)
            with quiet():
                fix = pgk.diagnose(names[program.function], *names["args"], fix=True).fix
            if fix is not None and fix.complete:
                with fix.applied():
                    seen = captured(names, program.function, fix.around)
                wrong = [] if program.draws else differences(truth, seen, set(names.get("ignore", ())))
                found = {"is": "differs", "differs": wrong} if wrong else {"is": "whole"}
            elif fix is not None:
                found = {"is": "in part"}
        except Exception as error:
            found = {"is": "fails", "error": f"{type(error).__name__}: {error}"[:1000]}
    return {**found, "device": driver().source().label(), "seconds": round(time.monotonic() - begun, 1)}


if __name__ == "__main__":
    main()
