"""The doctor on programs as users write them: what it gets right stays right; what it does not yet is listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.programs.__main__ import NOT_RIGHT, REPORT, report
from tests.programs.reading import HEADER, Expected, Program, modules, programs, read
from tests.programs.scoring import score

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the score is that on the simulated device"),
    pytest.mark.usefixtures("recovered"),
    pytest.mark.pieces,
]
PROGRAMS = programs()
NOT_YET = set(json.loads(NOT_RIGHT.read_text(encoding="utf-8")))


def test_a_program_and_its_mended_variant_are_read_from_one_text(tmp_path: Path) -> None:
    # GIVEN a field of one program WHEN read
    file = tmp_path / "field.py"
    file.write_text(
        "# %% log it -> f\n"
        "def f(x):\n"
        "    print(x)  #- expect: print|sync-item may: host-counter\n"
        "    #+ pass\n"
        "    return x  # expect: a b\n"
    )
    (program,) = read(file)
    # THEN the marks are gone from both, and lines count from the beginning of the text that is run
    head = Program("field", "", "f").broken
    assert program.broken == head + "def f(x):\n    print(x)\n    return x\n"
    assert program.mended == head + "def f(x):\n    pass\n    return x\n"
    first = head.count("\n") + 2
    assert program.expected == [
        Expected(("print", "sync-item"), first),
        Expected(("a",), first + 1),
        Expected(("b",), first + 1),
    ]
    assert program.allowed == {("host-counter", first)}
    assert HEADER.match("# %% no function") is None


def test_a_program_may_have_modules_whose_lines_are_numbered_with_its_own() -> None:
    # GIVEN a text of two files WHEN taken apart THEN each line is in its file, at its place in the text
    text = "a = 1\n# file: tools.py\nb = 2\n# file: the program\nc = 3\n"
    assert modules(text) == {"": "a = 1\n\n\n\nc = 3\n", "tools.py": "\n\nb = 2\n\n\n"}


def test_a_report_written_anew_keeps_what_readers_measured() -> None:
    # GIVEN the report as it stands WHEN it is written with no program's score
    old = REPORT.read_text(encoding="utf-8")
    new = report(old, [])
    # THEN all but the table is there, and once more is the same
    assert new.startswith(old.splitlines()[0])
    assert "| training |" not in new.partition("## Unseen")[0]
    assert old[old.index("## Unseen, first try") :] == new[new.index("## Unseen, first try") :]
    assert report(new, []) == new


def test_names_are_unique_and_the_list_of_what_is_not_right_names_programs() -> None:
    names = [program.name for program in PROGRAMS]
    assert len(names) == len(set(names))
    assert set(names) >= NOT_YET


# A thread of a program may fail in a capture, as it does on a GPU.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "program",
    # Every sixth at each change; `make sweeps` takes the others, and `python -m tests.programs` all.
    [pytest.param(each, marks=[pytest.mark.sweep] * (n % 6 > 0), id=each.name) for n, each in enumerate(PROGRAMS)],
)
def test_the_doctor_is_right_about_a_program(program: Program) -> None:
    # GIVEN a program WHEN it is diagnosed, and its mended variant captured and replayed on moved inputs
    found = score(program)
    # THEN lines, causes and mended variant are right, unless it is listed as not yet right
    wrong = found.missed + found.false + found.wrong_fix
    if torch.__version__ >= "2.15":  # which fills such a number in on the device
        wrong = [each for each in wrong if not each.startswith("scalar-assignment at ")]
    changed = "the score has changed: python -m tests.programs --write"
    assert program.name in NOT_YET or not wrong, f"{changed}; {wrong}"
