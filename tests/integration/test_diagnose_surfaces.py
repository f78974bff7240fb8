"""The doctor where people meet it: a notebook's cells, the magic, the terminal, and the words of every finding."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

import paramgraph_kit as pgk
from paramgraph_kit.__main__ import main
from paramgraph_kit.doctor import catalogue
from paramgraph_kit.doctor.explain.reasons import failures_of
from paramgraph_kit.trace import Failure
from paramgraph_kit.trace.model import Frame, Reason
from paramgraph_kit.trace.wording import failure_text
from tests.integration.apart import APART

pytestmark = APART
pgk.device()

CELLS = (
    """
import torch, paramgraph_kit as pgk
x = torch.randn(4, 4, device=pgk.device())
""",
    """\
seen = []

def step(x):
    y = x * x.sum().item()
    seen.append(y)
    return y
""",
)


@pytest.fixture
def shell() -> Iterator[Any]:
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    made = InteractiveShell.instance(config=config, user_module=ModuleType("doctor_session"))
    made.run_cell("%load_ext paramgraph_kit", store_history=True)
    for cell in CELLS:
        made.run_cell(cell, store_history=True)
    yield made
    InteractiveShell.clear_instance()
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    pgk.diagnose.repair()


def run(shell: Any, cell: str) -> Any:
    with capture_output() as said:
        result = shell.run_cell(cell, store_history=True)
    assert result.success, said.stdout + said.stderr
    return said


def test_in_a_notebook_cell_and_line_are_named(shell: Any) -> None:
    # GIVEN a function that cell 3 defines WHEN diagnosed THEN its lines are those of that cell
    run(shell, "found = pgk.diagnose(step, x)")
    found = shell.user_ns["found"]
    assert [(f.code, f.frame.file, f.frame.line) for f in found] == [
        ("sync-item", "<cell 3>", 4),
        ("output-alias", "<cell 3>", 5),
    ]
    assert shell.user_ns["seen"] == []


def test_a_function_of_a_notebook_is_confirmed_by_a_capture(shell: Any) -> None:
    run(shell, "found = pgk.diagnose(step, x, confirm=True)")
    found = shell.user_ns["found"]
    assert found.failures[0].message.endswith("; confirmed by a capture"), str(found)


def test_the_magic_takes_a_function_and_its_arguments(shell: Any) -> None:
    # GIVEN the magic WHEN it gets a function and a tensor THEN it shows what the verb does
    said = run(shell, "%paramgraph diagnose step, x -o why")
    assert shell.user_ns["why"].codes == ("sync-item", "output-alias")
    assert said.outputs[0].data["text/plain"] == str(shell.user_ns["why"])


PROGRAM = """\
import torch
import paramgraph_kit as pgk

x = torch.ones(4, device=pgk.device())

def step():
    return x * x.sum().item()

def fine():
    return x * 2

def of(x, scale, *more, bias=None):
    return x * scale

if __name__ == "__main__":
    with pgk.cuda.graph(pgk.cuda.CUDAGraph()):
        step()
"""


def test_the_terminal_runs_a_program_and_a_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a program whose capture fails WHEN the terminal runs it THEN it says why, with status 1
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    assert main(["diagnose", str(file)]) == 1
    said = capsys.readouterr().out
    assert said.startswith("A value was read back to the CPU  [sync-item]")
    assert f"  where  {file}:7 return x" in said
    pgk.diagnose.repair()
    # WHEN one function is named THEN all of its problems are told
    assert main(["diagnose", f"{file}:step"]) == 1
    assert capsys.readouterr().out.startswith("step: 1 problem (")
    assert main(["diagnose", f"{file}:fine"]) == 0
    assert capsys.readouterr().out.startswith("fine: no problems (")


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("/no/such/file.py", "there is no file /no/such/file.py: give the path of a program"),
        ("{file}:nothing", "there is no 'nothing': name a function that is defined at its top level"),
        ("{file}:x", "'x' is a Tensor: name a function that is defined at its top level"),
        ("{file}:of", "of takes arguments (x, scale): name a function without any, which makes them and calls it"),
        ("{broken}", "broken.py, line 2: this is no program that Python can read: '(' was never closed"),
    ],
)
def test_the_terminal_refuses_in_one_line(
    argument: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    broken = tmp_path / "broken.py"
    broken.write_text("x = 1\ny = (\n")
    assert main(["diagnose", argument.format(file=file, broken=broken)]) == 1
    printed = capsys.readouterr()
    assert says in printed.err
    assert printed.err.count("\n") == 1


LONG = Frame("/a/rather/long/path/to/a/file/of/somebody/who/likes/folders/train.py", 1234, "step", "y = " + "x + " * 40)
SAID = "_local_scalar_dense of float32[4, 4]: in a capture " + "words " * 60


@pytest.mark.parametrize(
    "failure",
    [Failure(r.id, r.title, SAID, LONG, r.cause, r.fix) for r in catalogue()]
    + [
        failures_of([Reason(code, f"Inductor says {SAID}", LONG, "aten.add")])[0]
        for code in ("cpu-op", "graph-break", "inductor-skip", "other")
    ],
    ids=lambda failure: failure.code,
)
def test_every_message_has_all_four_parts_in_twelve_lines(failure: Failure) -> None:
    # GIVEN any rule, with long words and a long line WHEN told
    lines = failure_text(failure).splitlines()
    # THEN what happened, where, why and what to write instead are there, in at most 12 lines
    assert len(lines) <= 12
    for part in ("  said ", "  where", "  why  ", "  fix    before  ", "         after   "):
        assert any(line.startswith(part) for line in lines), part
    assert failure.title[0].isupper() or failure.title.startswith("make_graphed_callables")
    assert not failure.title.endswith(".")
    assert failure.cause.endswith(".")


def test_the_catalogue_can_be_browsed_from_the_verb() -> None:
    assert pgk.diagnose.catalogue() == catalogue()
    assert "diagnose.catalogue()" in (pgk.diagnose.__doc__ or "")


def test_a_compiled_function_and_the_function_get_one_answer() -> None:
    # GIVEN a function that waits twice, and the same compiled
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * x.sum().item()
        return y + torch.tensor(2.0, device=x.device)

    x = torch.ones(4, device=pgk.device())
    compiled = torch.compile(step, backend="paramgraph")
    # WHEN both are diagnosed THEN classes and lines are the same
    asked, known = pgk.diagnose(compiled, x), pgk.diagnose(step, x)
    assert asked.codes == known.codes == ("sync-item", "tensor-literal"), str(asked)
    assert [f.frame for f in asked] == [f.frame for f in known]
    # and what Dynamo guards is no problem of the compiled one
    assert "sync-item" in pgk.diagnose(compiled, x).codes


def test_a_program_in_the_terminal_sees_its_own_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a program that looks at its arguments WHEN the terminal runs it THEN ours are not among them
    file = tmp_path / "train.py"
    file.write_text("import sys\nprint(sys.argv)\n")
    assert main(["diagnose", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == str([str(file)])


def test_a_program_that_ends_as_a_generator_does_is_told_like_any_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a program that raises what only Python raises WHEN the terminal runs it THEN it says so, without a traceback
    file = tmp_path / "train.py"
    file.write_text("raise GeneratorExit\n")
    assert main(["diagnose", str(file)]) == 1
    assert capsys.readouterr().out.startswith("GeneratorExit was raised, and it is none that CUDA graphs are known for")
