"""Exercises: unsolved ones say in one line what is missing, solutions are right, and wrong answers are not taken."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import notebooks

UNSOLVED = notebooks.unsolved()
SOLUTIONS = notebooks.EXERCISES / "solutions"
BROKEN, FAILURES, MEMORY = "01_broken_to_parameterized", "02_capture_failures", "03_memory_pools"
WORDS, COVERAGE, TRAINING = "04_parameterized_launch", "05_partitions_and_coverage", "06_training_step"

# (exercise, what somebody may write, what the check says to it)
WRONG = [
    (
        BROKEN,
        """
def answer(new):
    x.copy_(new)
    graph.replay()
    return y
""",
        "a later call has written over",
    ),
    (
        BROKEN,
        """
def answer(new):
    graph.replay()
    return y.clone()
""",
        "answer(new) is not the layer's result",
    ),
    (
        FAILURES,
        """
signs = torch.tensor([1.0, -1.0] * 32, device=device)


def score(x):
    h = x @ w
    return (h - h.relu().mean()) * signs
""",
        "captured, but the replay has other numbers",
    ),
    (
        FAILURES,
        """
def score(x):
    h = x @ w
    h = h - torch.where(h > 0, h, 0.0).sum() / (h > 0).sum()
    return h * torch.tensor([1.0, -1.0] * 32, device=device)
""",
        "A tensor was made from Python numbers: return h * torch.tensor([1.0, -1.0] * 32, device=device)",
    ),
    (
        MEMORY,
        """
results = [output.clone() for graph, output in graphs]
cuda.empty_cache()
""",
        "still reserved: the graphs are alive",
    ),
    (
        MEMORY,
        """
results = [output for graph, output in graphs]
del graphs
cuda.empty_cache()
""",
        "still reserved: a result is on its pool's memory",
    ),
    (
        MEMORY,
        """
results = [torch.zeros_like(output) for graph, output in graphs]
del graphs
cuda.empty_cache()
""",
        "these are not the layers' results",
    ),
    (
        WORDS,
        """
def verdict(a, b):
    for name, (at, size) in ranges_a.items():
        if at <= a < at + size and a != b:
            return name, a - at
    return "constant" if a == b else "ambiguous"
""",
        "two places in x, 0x1a000008 and 0x2b000410: ambiguous, not ('x', 8)",
    ),
    (
        COVERAGE,
        """
class Mine(Original):
    def forward(self, x):
        h = torch.relu(self.first(x))
        return self.second(torch.where(h.max() > 1.0, h * 0.5, h))
""",
        "other numbers than the original's",
    ),
    (
        COVERAGE,
        """
class Mine(Original):
    def forward(self, x):
        h = torch.relu(self.first(x))
        if h.max() > 1.0:
            h = h * 0.5
        return self.second(h * torch.linspace(0, 1, 64, device=x.device))
""",
        "graph break",
    ),
    (
        TRAINING,
        """
class Mine(Original):
    def __init__(self, scale):
        super().__init__(1.0)
""",
        "other gradients",
    ),
]


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def is_task(cell: dict[str, Any]) -> bool:
    return "task" in cell["metadata"].get("tags", [])


def verdict(path: Path) -> list[str]:
    """What the check printed when the notebook was stored."""
    return "".join(text for output in code_cells(path)[-1]["outputs"] for text in output["text"]).splitlines()


def with_answer(path: Path, answer: str, to: Path) -> Path:
    """A copy of an exercise in which somebody has written something."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    (task,) = (cell for cell in notebook["cells"] if is_task(cell))
    task["source"] = answer.splitlines(keepends=True)
    to.write_text(notebooks.dumps(notebook), encoding="utf-8")
    return to


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the checks say now: of every unsolved exercise and of every wrong answer, all in one process."""
    folder = tmp_path_factory.mktemp("answers")
    paths = list(UNSOLVED)
    for number, (name, answer, _) in enumerate(WRONG):
        exercise = notebooks.EXERCISES / f"{name}.ipynb"
        paths.append(with_answer(exercise, answer, folder / f"wrong{number}.ipynb"))
    command = [sys.executable, str(notebooks.ROOT / "scripts" / "notebooks.py"), "cells", *map(str, paths)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=notebooks.ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in result.stdout.splitlines():
        if line.endswith(".ipynb"):
            lines = found[line] = []
        elif line.startswith((notebooks.NOT_YET, "right:")):
            lines.append(line)
    assert list(found) == [path.name for path in paths]
    return found


def test_every_exercise_has_a_lesson_and_a_solution() -> None:
    names = [path.name for path in UNSOLVED]

    assert names == [path.name for path in sorted(SOLUTIONS.glob("*.ipynb"))]
    assert all((notebooks.FOLDER / name).exists() for name in names)
    assert len(names) >= 6


@pytest.mark.parametrize("path", UNSOLVED, ids=lambda p: p.stem)
def test_solution_is_the_exercise_with_its_task_done(path: Path) -> None:
    # GIVEN an exercise and its solution
    pairs = list(zip(code_cells(path), code_cells(SOLUTIONS / path.name), strict=True))

    # THEN they differ in one cell, the one that says so, and the checks are the same
    differing = [(one, other) for one, other in pairs if one["source"] != other["source"]]
    assert [is_task(one) and is_task(other) for one, other in differing] == [True]
    assert sum(is_task(one) for one, _ in pairs) == 1
    assert differing[0][0]["source"][0] == differing[0][1]["source"][0] == "# your turn\n"


@pytest.mark.parametrize("path", UNSOLVED, ids=lambda p: p.stem)
def test_check_tells_right_from_wrong_in_one_line(path: Path) -> None:
    (before,), (after,) = verdict(path), verdict(SOLUTIONS / path.name)

    assert before.startswith("not yet: ")
    assert after.startswith("right: ")


@pytest.mark.parametrize("path", UNSOLVED, ids=lambda p: p.stem)
def test_unsolved_exercise_says_what_is_stored(said: dict[str, list[str]], path: Path) -> None:
    # GIVEN an exercise as people get it WHEN its cells are run THEN nothing but the check fails, and as stored
    cell = re.compile("<(cell|ipython-input)[^>]*>")  # IPython is not there to number it
    assert [cell.sub("", line) for line in said[path.name]] == [cell.sub("", line) for line in verdict(path)]


@pytest.mark.parametrize("number", range(len(WRONG)), ids=lambda n: f"{WRONG[n][0][:2]}-{n}")
def test_wrong_answer_is_told_what_is_wrong(said: dict[str, list[str]], number: int) -> None:
    (line,) = said[f"wrong{number}.ipynb"]

    assert line.startswith("not yet: ")
    assert WRONG[number][2] in line


def test_a_solution_that_is_run_again_stays_right(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN an exercise about partitions WHEN all its cells run twice in one kernel THEN nothing is counted twice
    notebooks.cells(SOLUTIONS / f"{COVERAGE}.ipynb", turns=2)
    assert capsys.readouterr().out.count("right: Report(1 of 1 partitions graphed") == 2


def test_a_solution_that_is_no_longer_right_fails_without_jupyter(tmp_path: Path) -> None:
    # GIVEN a solution whose answer is wrong, stored as right
    copy = with_answer(SOLUTIONS / f"{WORDS}.ipynb", 'def verdict(a, b):\n    return "constant"', tmp_path / "w.ipynb")

    # THEN running its cells, as on a machine with a GPU, fails
    with pytest.raises(AssertionError, match=r"w\.ipynb, cell 4: this was right when"):
        notebooks.cells(copy)
