"""The doctor's score on programs as users write them: line and cause, mended variants, false alarms."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramgraph_kit as pgk
from tests.programs.reading import Program
from tests.programs.running import captured, differences, eager, load, quiet

Place = tuple[str, int]


@dataclass(slots=True)
class Score:
    """What the doctor says of one program, against what is true."""

    program: Program
    right: int = 0
    missed: list[str] = field(default_factory=list)
    false: list[str] = field(default_factory=list)  # found, and not there
    outcome: str = ""  # what a capture of the program as it is does
    wrong_fix: list[str] = field(default_factory=list)  # what is wrong with the mended variant
    rewritten: str = ""  # what `fix=True` makes of it: "whole", "part", or nothing
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        return not (self.missed or self.false or self.wrong_fix)


def score(program: Program, *, rewrite: bool = False) -> Score:
    """Diagnose a program and its mended variant, and run both eagerly and captured; let it be rewritten too."""
    started = time.monotonic()
    found = Score(program)
    with tempfile.TemporaryDirectory() as folder:
        file, mended = Path(folder) / "program.py", Path(folder) / "mended.py"
        names = load(program.broken, file)
        _compare(found, _findings(names, program.function, file))
        truth = eager(load(program.broken, file), program.function)
        names = load(program.broken, file)
        found.outcome = _outcome(program, names, truth)
        if not found.program.is_clean and found.outcome == "equal":
            found.outcome = "equal: what is frozen cannot be seen"
        if rewrite and not program.is_clean:
            _rewrite(found, load(program.broken, file), truth)
        names = load(program.mended, mended)
        found.wrong_fix += [f"finds {code} at {line}" for code, line in _findings(names, program.function, mended)]
        ignore = set(names.get("ignore", ()))
        same = eager(load(program.mended, mended), program.function)
        if not program.draws:
            found.wrong_fix += [f"eager {each}" for each in differences(truth, same, ignore)]
        try:
            replayed = captured(load(program.mended, mended), program.function)
            found.wrong_fix += [f"replayed {each}" for each in differences(same, replayed, ignore)]
        except Exception as error:
            found.wrong_fix.append(f"capture raises {_brief(error)}")
            pgk.diagnose.repair()
    found.seconds = time.monotonic() - started
    return found


def scored(chosen: Sequence[Program], jobs: int) -> Iterator[Score]:
    """One score after the other, in order; with several jobs each program in a process that has seen few others."""
    if jobs == 1:
        yield from map(_score, chosen)
        return
    # Not concurrent.futures: its pool waits for ever where a worker has had its tasks (CPython issue 115634)
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=20) as pool:
        yield from pool.imap(_score, chosen)


def _score(program: Program) -> Score:
    try:
        return score(program, rewrite=True)
    except Exception as error:
        error.add_note(f"in the program {program.name!r}")
        raise


def _rewrite(score: Score, names: dict[str, Any], truth: dict[str, list[Any]]) -> None:
    """Let the doctor rewrite a program, and do not believe what it says of that where it can be checked."""
    with quiet():
        fix = pgk.diagnose(names[score.program.function], *names["args"], fix=True).fix
    if fix is None or not fix.diff:
        return
    score.rewritten = "whole" if fix.complete else "part"
    if fix.complete:
        try:
            with fix.applied():
                replayed = captured(names, score.program.function, fix.around)
        except Exception as error:  # what it takes for granted does not hold for long
            score.wrong_fix.append(f"its own rewrite, replayed, raises {_brief(error)}")
            pgk.diagnose.repair()
            return
        wrong = differences(truth, replayed, set(names.get("ignore", ())))
        score.wrong_fix += [f"its own rewrite, replayed: {each}" for each in wrong]


def _findings(names: dict[str, Any], function: str, file: Path) -> list[Place]:
    with quiet():
        diagnosis = pgk.diagnose(names[function], *names["args"])
    frames = ((f.code, f.frame) for f in diagnosis.failures)
    return [(code, frame.line if frame and Path(frame.file).parent == file.parent else 0) for code, frame in frames]


def _compare(score: Score, findings: Sequence[Place]) -> None:
    left = list(findings)
    lines = score.program.broken.splitlines()
    for expected in score.program.expected:
        hit = next((place for place in left if place[1] == expected.line and place[0] in expected.codes), None)
        if hit is None:
            score.missed.append(f"{'|'.join(expected.codes)} at `{lines[expected.line - 1].strip()}`")
        else:
            left.remove(hit)
            score.right += 1
    score.false = [
        f"{code} at `{lines[line - 1].strip() if line else 'no line'}`"
        for code, line in left
        if (code, line) not in score.program.allowed
    ]


def _outcome(program: Program, names: dict[str, Any], truth: dict[str, list[Any]]) -> str:
    try:
        replayed = captured(names, program.function)
    except Exception as error:
        pgk.diagnose.repair()
        return f"raises {_brief(error)}"
    wrong = differences(truth, replayed, set(names.get("ignore", ())))
    return f"wrong: {wrong[0]}" if wrong else "equal"


def _brief(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:90]


@dataclass(slots=True)
class Sum:
    """The same over many programs."""

    scores: Sequence[Score]

    def row(self, name: str) -> str:
        """One line of the table."""
        programs, clean = len(self.scores), sum(s.program.is_clean for s in self.scores)
        problems = sum(len(s.program.expected) for s in self.scores)
        right, false = sum(s.right for s in self.scores), sum(len(s.false) for s in self.scores)
        mended = sum(not s.wrong_fix for s in self.scores)
        whole = sum(s.is_right for s in self.scores)
        by_itself = " + ".join(str(sum(s.rewritten == kind for s in self.scores)) for kind in ("whole", "part"))
        share = f" ({right / problems:.0%})" if problems else ""
        found = f"{right} of {problems}{share}"
        return f"| {name} | {programs} | {clean} | {found} | {false} | {mended} | {whole} | {by_itself} |"


def table(scores: Iterable[Score]) -> str:
    """Markdown: a line for each field, and all that is not right."""
    scores = list(scores)
    fields = sorted({s.program.field for s in scores})
    head = "| field | programs | clean | right line and cause | false alarms | mended variant right | all right |"
    head += " rewritten whole + part |"
    rows = [head, "|" + " --- |" * 8]
    rows += [Sum([s for s in scores if s.program.field == name]).row(name) for name in fields]
    rows.append(Sum(scores).row("**all**"))
    rows.append("")
    for each in scores:
        if not each.is_right:
            rows.append(f"- **{each.program.name}** (captured as it is: {each.outcome})")
            rows += [f"  - missed {text}" for text in each.missed]
            rows += [f"  - false alarm: {text}" for text in each.false]
            rows += [f"  - mended variant: {text}" for text in each.wrong_fix]
    return "\n".join(rows)
