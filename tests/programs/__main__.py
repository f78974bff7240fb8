"""``python -m tests.programs [WORD ...]``: the doctor's score on all programs, or on those that have a word."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from tests.programs.reading import programs
from tests.programs.scoring import Score, scored, table

REPORT = Path(__file__).parents[2] / "results" / "doctor-programs.md"
NOT_RIGHT = Path(__file__).parent / "not_right.json"
READ = "\n## Unseen, first try\n"  # from here on the report is written by hand
TITLE = """\
# The doctor on programs as users write them

Written by `python -m tests.programs --write`, which runs each program of `tests/programs/fields` on the simulated
device: it is diagnosed and captured as it is, and its mended variant is diagnosed, run eagerly and captured, over ten
steps with moved inputs. "Mended variant right" says that the variant captures, gives eager's numbers and no alarm.
"Rewritten" counts what `diagnose(..., fix=True)` does by itself: whole programs whose replays give eager's numbers, and
those where some lines are left to do by hand.

"""


def main() -> int:
    """Run, print, and write the report where asked to."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("words", nargs="*", help="only programs whose field or title has one of these")
    parser.add_argument("--write", action="store_true", help=f"run all; write {REPORT.name} and {NOT_RIGHT.name}")
    parser.add_argument("--jobs", type=int, default=1, help="programs at once")
    parser.add_argument("--outcomes", action="store_true", help="say what a capture of each does as it is")
    parser.add_argument("--record", type=Path, help="write what captures did here, to compare devices")
    given = parser.parse_args()
    chosen = [p for p in programs() if not given.words or any(word in p.name for word in given.words)]
    started, scores = time.monotonic(), list[Score]()
    for found in scored(list(programs()) if given.write else chosen, given.jobs):
        scores.append(found)
        if given.outcomes:
            print(f"{found.program.name}: {found.outcome} ({found.seconds:.1f} s)", flush=True)
    print(table(scores))
    print(f"\n{time.monotonic() - started:.0f} s")
    if given.record:
        done = {s.program.name: {"as it is": s.outcome, "mended": s.wrong_fix, "missed": s.missed} for s in scores}
        given.record.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
    if given.write:
        REPORT.write_text(report(REPORT.read_text(encoding="utf-8"), scores), encoding="utf-8")
        wrong = sorted(each.program.name for each in scores if not each.is_right)
        NOT_RIGHT.write_text(json.dumps(wrong, indent=1) + "\n", encoding="utf-8")
    return 0


def report(old: str, scores: list[Score]) -> str:
    """The report with today's table above what readers measured, which is kept as it stands."""
    _, read, by_hand = old.partition(READ)
    return TITLE + table(scores) + "\n" + read + by_hand


if __name__ == "__main__":
    raise SystemExit(main())
