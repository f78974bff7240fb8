"""What tests of the doctor's fixes share: a program in a file of its own, what is made of it, and what a diff adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.launches import Launches
from tests.programs.reading import PRELUDE
from tests.programs.running import captured, differences, eager, load

Program = Callable[[str], dict[str, Any]]
Fixed = Callable[[str], Any]
TIMES = {"timings", "ms"}  # what two runs need not agree in


def run(text: str, folder: Path) -> dict[str, Any]:
    """Runs a program from a file of its own; returns its names."""
    return load(PRELUDE + text, folder / "program.py")


def rewritten(text: str, folder: Path) -> Any:
    """What is made of a program's ``f``; what is said to be whole is captured and compared over ten other steps too."""
    truth = eager(run(text, folder), "f")
    names = run(text, folder)
    found: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    if found.complete and found.diff:
        with found.applied():
            seen = captured(names, "f", found.around)
        assert not differences(truth, seen, TIMES), found
    return found


def with_rounds(text: str, lines: Iterable[str], folder: Path, *, replays: int = 6) -> Any:
    """The fix of a program's ``f``, of which one round is cut out with these lines; launched, its loop is as it was."""
    truth, names = eager(run(text, folder), "f"), run(text, folder)
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix.alone, fix
    assert not fix.complete
    assert not fix.instead
    for line in lines:
        assert line.strip() in lines_of(fix), fix
    assert "from graphs, gives the original's results and state in 6 steps" in str(fix)
    assert "(rewritten)" not in str(fix)
    with fix.applied() as made:  # over ten other steps, too
        launches = names[fix.alone] = Launches(made, fix.around, fix.bound)
        seen = eager(names, "f")
    assert launches.replays > replays
    assert not differences(truth, seen, TIMES), fix
    return fix


def launched(text: str, folder: Path) -> Any:
    """The fix of a program's ``f``; a round or a part of it that is shown has eager's numbers over ten steps."""
    truth, names = eager(run(text, folder), "f"), run(text, folder)
    fix: Any = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    if fix.alone:
        with fix.applied() as made:
            names[fix.alone] = Launches(made, fix.around, fix.bound, fix.anew)
            assert not differences(truth, eager(names, "f"), set()), fix
    return fix


def changed(diff: str) -> list[str]:
    """The lines that a diff takes out and puts in."""
    return [line for line in diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def lines_of(fix: Any) -> list[str]:
    """What a diff adds."""
    return [line[1:].strip() for line in fix.diff.splitlines() if line.startswith("+") and line[1:2] not in ("+", "")]
