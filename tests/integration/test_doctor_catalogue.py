"""Every class of the catalogue, run: before fails as the class says, after captures and gives eager's numbers."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch

from paramgraph_kit.__main__ import main
from paramgraph_kit.doctor import FailureClass, catalogue, explain, failure_class
from paramgraph_kit.doctor.known.catalogue import _read
from paramgraph_kit.doctor.known.failure_class import CATEGORIES, MOST_LINES
from paramgraph_kit.doctor.known.program import STEPS, Program, Which, X
from paramgraph_kit.driver.select import device, twin
from paramgraph_kit.driver.sim.libraries import forget
from paramgraph_kit.trace import ParamgraphError
from paramgraph_kit.trace.wording import failure_text
from tests.integration.applied import same

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")

ALL = catalogue()
PROGRAMS = {
    f"{each.id}{' ' if program.name else ''}{program.name}": (each, program)
    for each in ALL
    for program in each.programs
}
MOST_UNKNOWN = 8
STILL = (
    "poisoned-generator",
    "rng-state",
    "reseeded",
    "graphed-sample-overwritten",
)  # where the same at each step is right
by_program = pytest.mark.parametrize("name", PROGRAMS)
by_id = pytest.mark.parametrize("each", ALL, ids=[each.id for each in ALL])


@pytest.fixture(autouse=True)
def cuda() -> Iterator[Any]:
    device()
    yield twin()
    twin().recover()


def run(program: Program, which: Which, file: Path) -> list[Any]:
    """The results of a program's steps, without what it prints and what torch warns of: empty graphs, other streams."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return program.run(which, file)


def known(name: str) -> tuple[FailureClass, Program]:
    each, program = PROGRAMS[name]
    if program.simulator_cannot:
        pytest.skip(program.simulator_cannot)
    return each, program


@by_program
def test_what_fails_does_so_in_the_way_that_its_class_says(name: str, tmp_path: Path) -> None:
    # GIVEN a program that fails, of a class that the simulator can know
    each, program = known(name)
    file = tmp_path / "before.py"
    if each.id == "cold-library":
        forget()
    if each.silent:
        # WHEN a silent one runs THEN nothing is raised, and its numbers are not eager's
        got, expected = run(program, "before", file), run(program, "eager", tmp_path / "eager.py")
        assert not all(map(same, got, expected)), got
        return
    # WHEN a loud one runs THEN the doctor knows its class, at a line of the program, in few lines
    with pytest.raises((RuntimeError, AssertionError, TypeError, KeyError)) as raised:
        run(program, "before", file)
    failure = explain(raised.value)
    assert failure.code == (program.recognised or each.id), failure_text(failure)
    assert failure.frame is not None
    assert failure.frame.file == str(file)
    assert failure.frame.text in [line.strip() for line in program.text("before").splitlines()]
    assert len(failure_text(failure).splitlines()) <= MOST_LINES


@by_program
def test_the_fix_applied_gives_eagers_numbers_at_ten_new_inputs(name: str, tmp_path: Path) -> None:
    # GIVEN a program to which the fix of its class is applied, as it stands in the catalogue
    _, program = known(name)
    # WHEN it captures, and ten replays follow, each with other inputs THEN each gives what eager gives there
    got, expected = run(program, "after", tmp_path / "after.py"), run(program, "eager", tmp_path / "eager.py")
    assert len(got) == len(expected) == STEPS
    for n, (one, other) in enumerate(zip(got, expected, strict=True)):
        assert same(one, other, exact=program.exact), f"step {n}: {one} and not {other}"
    # and the steps are no repetition of one another, but where nothing is said of numbers at all
    moves = [str(value) for value in expected]
    assert len(set(moves)) > 1 or name in STILL, moves


@by_id
def test_the_words_of_a_class_are_complete_and_few(each: FailureClass) -> None:
    # GIVEN a class WHEN it is put into words THEN nothing is missing, and all fits a screen
    assert len(each.text().splitlines()) <= MOST_LINES
    assert max(len(line) for line in each.text().splitlines()) <= 130
    assert each.category in CATEGORIES
    assert each.source.url.startswith("https://")
    assert 1 <= each.cause.count(".") <= 6
    assert len(each.cause) < 260
    for mend in (each.fix, *each.fixes.values()):
        assert [line.split()[0] for line in mend.splitlines()] == ["before", "after"]
        assert all(len(line) < 125 for line in mend.splitlines())
    for sign in (*each.signs, *each.vague):
        assert sign.weight, "a sign without a condition is one of everything"


def test_the_catalogue_has_no_doubles_and_knows_most_of_itself() -> None:
    # GIVEN the catalogue THEN ids and titles are unique, and most classes that are about a capture have programs
    assert len({each.id for each in ALL}) == len({each.title for each in ALL}) == len(ALL) >= 95
    assert len(PROGRAMS) == sum(len(each.programs) for each in ALL) >= 95
    about = [each for each in ALL if each.category not in ("partition", "function", "compile")]
    without = {each.id for each in about if not each.programs}
    assert without == {
        "cold-triton", "context-lost", "device-assert", "illegal-address", "merged-captures", "sync-unknown"
    }  # fmt: skip
    # and the simulator knows all but a handful
    assert sum(any(p.simulator_cannot for p in each.programs) for each in about) <= MOST_UNKNOWN


def test_a_class_with_an_unknown_key_is_refused() -> None:
    # GIVEN a table with a key that nobody reads WHEN read THEN it is refused by name
    with pytest.raises(TypeError, match="titel"):
        _read("mistyped", {"category": "sync", "title": "t", "titel": "t", "cause": "c.", "fix": ["b", "a"]})


def test_an_unknown_id_is_refused_in_one_line() -> None:
    # GIVEN no such class WHEN it is asked for THEN one line says where to look
    with pytest.raises(ParamgraphError, match=r"^no class of failure has the id 'nope'; .* names all \d+$"):
        failure_class("nope")


def test_the_terminal_lists_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN the terminal WHEN the list is asked for THEN it has one line for each class
    assert main(["diagnose", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [each.id for each in ALL]
    assert max(map(len, lines)) <= 130


def test_the_terminal_shows_a_class_with_its_programs(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a class WHEN the terminal shows it THEN its words come first, then both programs
    assert main(["diagnose", "stale-input"]) == 0
    each = failure_class("stale-input")
    said = capsys.readouterr().out
    assert said.startswith(
        f"{each.text()}\n\n# before\n{X}\ng = cuda.CUDAGraph()\nwith cuda.graph(g):\n    y = x * 2\n"
    )
    assert said.count("# before") == said.count("# after") == len(each.programs)


def test_the_terminal_refuses_an_unknown_id_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN no such class WHEN the terminal is asked for it THEN one line on stderr, and status 1
    assert main(["diagnose", "nope"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("paramgraph_kit: no class of failure has the id 'nope'")
    assert printed.err.count("\n") == 1
