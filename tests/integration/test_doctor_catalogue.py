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
from paramgraph_kit.doctor.known.failure_class import CATEGORIES, MOST_LINES, PRELUDE
from paramgraph_kit.driver.select import device, twin
from paramgraph_kit.trace import ParamgraphError
from paramgraph_kit.trace.wording import failure_text

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")

ALL = catalogue()
MOST_UNKNOWN = 5
by_id = pytest.mark.parametrize("each", ALL, ids=[each.id for each in ALL])


@pytest.fixture(autouse=True)
def cuda() -> Iterator[Any]:
    device()
    yield twin()
    twin().recover()


def run(program: str, file: Path) -> dict[str, Any]:
    """Run a snippet from a file of its own, so that its lines can be named; returns its names."""
    file.write_text(PRELUDE + program)
    names: dict[str, Any] = {"__name__": "snippet"}
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # torch warns of empty graphs and of streams that differ
        exec(compile(file.read_text(), str(file), "exec"), names)
    return names


def same(got: Any, expected: Any) -> bool:
    if isinstance(got, torch.Tensor) and isinstance(expected, torch.Tensor):
        return torch.equal(got.detach().cpu(), expected.detach().cpu())
    return bool(got == expected)


def shown(value: Any) -> str:
    return str(value.detach().cpu() if isinstance(value, torch.Tensor) else value)


def known(each: FailureClass) -> None:
    if each.simulator_cannot:
        pytest.skip(each.simulator_cannot)


@by_id
def test_before_fails_in_the_way_that_the_class_says(each: FailureClass, tmp_path: Path) -> None:
    # GIVEN a class that the simulator can know
    known(each)
    file = tmp_path / "before.py"
    if each.silent:
        # WHEN a silent class runs THEN nothing is raised, and the number is the wrong one
        names = run(each.before, file)
        assert shown(names["got"]) == each.wrong
        assert not same(names["got"], names["expected"])
        return
    # WHEN a loud one runs THEN the doctor gives its code, at a line of the program, in few lines
    with pytest.raises((RuntimeError, AssertionError)) as raised:
        run(each.before, file)
    failure = explain(raised.value)
    assert failure.code == each.recognised, failure_text(failure)
    assert failure.frame is not None
    assert failure.frame.file == str(file)
    assert failure.frame.text in [line.strip() for line in each.before.splitlines()]
    assert len(failure_text(failure).splitlines()) <= MOST_LINES


@by_id
def test_after_captures_and_gives_eagers_numbers(each: FailureClass, tmp_path: Path) -> None:
    # GIVEN a class that the simulator can know
    known(each)
    # WHEN the program that the class advises runs THEN a replay gives what eager gives
    names = run(each.after, tmp_path / "after.py")
    assert same(names["got"], names["expected"]), (names["got"], names["expected"])
    # and a graph was replayed, not only captured
    assert "g.replay()" in each.after or "make_graphed_callables" in each.after


@by_id
def test_the_words_of_a_class_are_complete_and_few(each: FailureClass) -> None:
    # GIVEN a class WHEN it is put into words THEN nothing is missing, and all fits a screen
    assert len(each.text().splitlines()) <= MOST_LINES
    assert max(len(line) for line in each.text().splitlines()) <= 120
    assert each.category in CATEGORIES
    assert each.versions
    assert each.source.url.startswith("https://")
    assert each.cause.count(". ") <= 1, "two sentences at most"
    assert each.silent == bool(each.wrong)


def test_the_catalogue_has_no_doubles_and_knows_most_of_itself() -> None:
    # GIVEN the catalogue THEN ids are unique, and the simulator knows all but a handful
    assert len({each.id for each in ALL}) == len(ALL) >= 70
    assert sum(bool(each.simulator_cannot) for each in ALL if each.category != "compile") <= MOST_UNKNOWN


def test_an_unknown_id_is_refused_in_one_line() -> None:
    # GIVEN no such class WHEN it is asked for THEN one line says where to look
    with pytest.raises(ParamgraphError, match=r"^no class of failure has the id 'nope'; .* names all \d+$"):
        failure_class("nope")


def test_the_terminal_lists_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN the terminal WHEN the list is asked for THEN it has one line for each class
    assert main(["diagnose", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [each.id for each in ALL]
    assert max(map(len, lines)) <= 120


def test_the_terminal_shows_a_class_with_its_programs(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a class WHEN the terminal shows it THEN its words come first, then both programs
    assert main(["diagnose", "stale-input"]) == 0
    each = failure_class("stale-input")
    programs = f"# first, for both\n{PRELUDE}\n# before\n{each.before}\n# after\n{each.after}"
    assert capsys.readouterr().out == f"{each.text()}\n\n{programs}"


def test_the_terminal_refuses_an_unknown_id_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN no such class WHEN the terminal is asked for it THEN one line on stderr, and status 1
    assert main(["diagnose", "nope"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("paramgraph_kit: no class of failure has the id 'nope'")
    assert printed.err.count("\n") == 1
