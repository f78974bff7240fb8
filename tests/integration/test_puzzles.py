"""The puzzles' grading: solutions are right, what computes less or hides memory is not, and no notebook tells how."""

from __future__ import annotations

import ast
import gc
import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.tour.puzzles import grade
from paramgraph_kit.tour.puzzles.problems import PUZZLES
from scripts import notebooks
from tests.puzzles.cheats import CHEATS, seen
from tests.puzzles.solutions import SOLUTIONS

FILES = sorted((notebooks.FOLDER / "puzzles").glob("*.ipynb"))


@pytest.fixture(autouse=True, scope="module")
def quicker() -> Iterator[None]:
    """The grading looks at every object for hidden memory; those of the imports have none."""
    pgk.device()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def forget() -> None:
    """What an answer has kept for its next call."""
    seen.clear()


@pytest.mark.parametrize("number", SOLUTIONS)
def test_a_solution_meets_both_limits(number: int) -> None:
    verdict = grade(number, SOLUTIONS[number])

    assert verdict.solved, str(verdict)
    assert len(verdict.limits) == 2
    assert str(verdict).splitlines()[1] == "right: results and both limits"


def test_a_compiled_function_is_what_pgk_compile_returned() -> None:
    def make(model: Any, x: torch.Tensor) -> Any:
        def layers(x: torch.Tensor) -> torch.Tensor:
            h = torch.relu(model.first(x))
            found: torch.Tensor = model.second(h * torch.where(h.max() > 1.0, 0.5, 1.0))
            return found

        return pgk.compile(layers)

    assert grade(9, make).solved


@pytest.mark.parametrize(("number", "answer", "says"), CHEATS, ids=[f"{n}-{a.__name__}" for n, a, _ in CHEATS])
def test_a_cheat_is_told_why_it_is_none(number: int, answer: Callable[..., Any], says: str) -> None:
    verdict = grade(number, answer)

    assert not verdict.solved, str(verdict)
    assert says in str(verdict)


def test_a_slip_is_told_what_is_missing() -> None:
    assert "it returns None: return the result, a tensor" in str(grade(1, lambda x: None))
    assert "it returns a float: return the result, a tensor" in str(grade(1, lambda x: 4.0))


def all_at_once(x: torch.Tensor) -> torch.Tensor:
    steps = [x]
    for _ in range(6):
        steps.append(torch.sin(steps[-1]))
    return torch.stack(steps).sum(0)


@pytest.mark.parametrize(
    ("answer", "says"), [(SOLUTIONS[6], "right: results and both limits"), (all_at_once, "over the limit")]
)
def test_a_notebook_shows_the_verdict_beside_the_picture(
    answer: Callable[..., Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN verdicts with a picture
    verdict, shown = grade(6, answer), list[dict[str, str]]()
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))

    # WHEN a notebook displays one THEN the text is an output of its own: of each it shows the richest type alone
    verdict._ipython_display_()
    text, picture = shown
    assert text.keys() == {"text/plain"}
    assert says in text["text/plain"]
    assert "at most 12" in text["text/plain"]
    assert picture.keys() == {"image/png"}


def test_an_answer_that_launches_nothing_is_told_so() -> None:
    # GIVEN an answer that hands its input on WHEN graded THEN the verdict says what is missing, in no error's words
    said = str(grade(1, lambda x: x))
    assert "not yet: nothing of it runs on the device, so its graph is empty" in said
    assert "Error" not in said


def test_every_puzzle_has_a_beginning_a_solution_and_a_cheat() -> None:
    # GIVEN what the notebooks grade
    calls = [
        ast.literal_eval(node.args[0])
        for path in FILES
        for cell in cells(path)
        for node in ast.walk(ast.parse(cell))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "grade"
    ]

    assert calls == list(PUZZLES) == list(SOLUTIONS) == list(range(1, 11))
    assert {number for number, _, _ in CHEATS} == set(PUZZLES)


def test_the_notebooks_are_not_solved_and_tell_no_solution() -> None:
    said = [text for path in FILES for text in shown(path)]

    assert len(said) == len(PUZZLES)
    assert all(text.splitlines()[1].startswith("not yet: ") for text in said)
    written = "\n".join(cell for path in FILES for cell in cells(path))
    for solution in SOLUTIONS.values():
        body = ast.parse(inspect.getsource(solution)).body[0]
        assert isinstance(body, ast.FunctionDef)
        assert not all(ast.unparse(statement) in written for statement in body.body), solution.__name__


def test_what_cannot_be_graded_is_an_error_of_its_own() -> None:
    with pytest.raises(pgk.ParamgraphError, match="there is no puzzle 11: choose one of 1 to 10"):
        grade(11, len)
    with pytest.raises(pgk.ParamgraphError, match="grade takes a function as the answer, not an int"):
        grade(1, 3)  # type: ignore[arg-type]


def cells(path: Any) -> list[str]:
    """The code of a notebook."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def shown(path: Any) -> list[str]:
    """The verdicts that a notebook has stored."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in found if cell["cell_type"] == "code" for output in cell["outputs"]]
    texts = ["".join(output["data"].get("text/plain", "")) for output in outputs if "data" in output]
    return [text for text in texts if text.startswith("puzzle ")]
