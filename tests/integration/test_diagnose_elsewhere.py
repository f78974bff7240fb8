"""The doctor on programs of strangers: functions, notebook cells, captures by hand, and what was compiled."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

import paramgraph_kit as pgk
from tests.doctor_programs import HEAD, marked, program
from tests.doctor_programs.elsewhere import BY_HAND, CELLS, COMPILED
from tests.doctor_programs.strangers import STRANGE
from tests.doctor_programs.strangers_graphs import OWN_GRAPHS
from tests.doctor_programs.strangers_silent import SILENT_STRANGE
from tests.doctor_programs.strangers_sound import SOUND_STRANGE

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="failed captures stay out of this process")
MAGIC = "%%paramgraph diagnose -o found\n"


@pytest.fixture(scope="module")
def notebook() -> Iterator[Any]:
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    made = InteractiveShell.instance(config=config, user_module=ModuleType("elsewhere_session"))
    made.run_cell("%load_ext paramgraph_kit")
    yield made
    InteractiveShell.clear_instance()


@pytest.fixture
def shell(notebook: Any) -> Iterator[Any]:
    notebook.reset(new_session=False)
    notebook.run_cell(HEAD).raise_error()
    yield notebook
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    pgk.diagnose.repair()


@pytest.fixture(autouse=True)
def recovered() -> Iterator[None]:
    yield
    pgk.diagnose.repair()


def expected(text: str) -> list[tuple[str, int]]:
    """(code, line) of every planted problem of a text, its own first line being 1."""
    first = HEAD.count("\n")
    return sorted((code, line - first) for code, line in marked(text))


FUNCTIONS = STRANGE | SILENT_STRANGE | OWN_GRAPHS | SOUND_STRANGE


@pytest.mark.parametrize("text", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_function(text: str, tmp_path: Path) -> None:
    # GIVEN a function WHEN diagnosed THEN each problem is told at its line, and nothing else
    names = program(text, tmp_path / "program.py")
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = pgk.diagnose(names["f"], *names["inputs"])
    assert {(f.code, f.frame.line if f.frame else 0) for f in found} == marked(text), str(found)


@pytest.mark.parametrize("text", CELLS.values(), ids=CELLS)
def test_a_cell(text: str, shell: Any) -> None:
    # GIVEN a cell, and what was run before
    setup, cell = text.lstrip("\n").split("# cell:\n")
    shell.run_cell(setup).raise_error()
    before = setup.count("\n")
    for _ in range(2):
        # WHEN it is diagnosed, and once more THEN each problem is told at its line, and nothing else
        with capture_output() as said:
            shell.run_cell(MAGIC + cell).raise_error()
        told = [
            (f.code, f.frame.line + before * (f.frame.text not in setup)) for f in shell.user_ns["found"] if f.frame
        ]
        assert sorted(told) == expected(setup + MAGIC + cell), said.stdout


ASKS = """\
import torch

def lengths(mask):
    if not torch.cuda.is_current_stream_capturing() and mask.all():
        return None
    return mask.sum(-1)
"""


def test_a_package_that_asks_whether_it_is_captured_goes_the_way_of_a_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN an installed package that looks into a mask, but never in a capture
    package = tmp_path / "site-packages" / "masks_of_somebody"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(ASKS)
    monkeypatch.syspath_prepend(str(package.parent))
    names = program(
        "import masks_of_somebody\ndef f(x):\n    return masks_of_somebody.lengths(x > 0)\n", tmp_path / "a.py"
    )
    # WHEN a function that calls it is diagnosed, and captured THEN neither finds anything wrong
    assert not pgk.diagnose(names["f"], names["x"])
    with pgk.cuda.graph(pgk.cuda.CUDAGraph()):
        names["f"](names["x"])
    assert not torch.cuda.is_current_stream_capturing()
    # AND the user's own question is told
    own = program(
        "def f(x):\n    return x * (2 if torch.cuda.is_current_stream_capturing() else 1)\n", tmp_path / "b.py"
    )
    assert pgk.diagnose(own["f"], own["x"]).codes == ("capture-aware-code",)


COLD = "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`"


@pytest.mark.parametrize(("name", "code"), [("inv", "cold-library"), ("eigh", "linalg-host")])
def test_a_solver_that_is_used_first_in_a_capture(
    name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN what a GPU says of a solver's first call
    torchs: dict[str, Any] = {}
    exec(compile(f"def solve(x):\n    raise RuntimeError({COLD!r})\n", torch.__file__, "exec"), torchs)
    monkeypatch.setattr(torch.linalg, name, torchs["solve"])
    # WHEN explained THEN a warm-up is the fix where that helps
    with pytest.raises(RuntimeError) as caught:
        program(f"y = torch.linalg.{name}(x)\n", tmp_path / "program.py")
    assert pgk.diagnose(caught.value).codes == (code,)


def test_what_no_cell_magic_can_do_and_what_is_no_capture_s_fault_is_said_in_a_line(shell: Any) -> None:
    # GIVEN a cell that awaits WHEN diagnosed THEN one line says why not
    with capture_output() as said:
        shell.run_cell(f"{MAGIC}import asyncio\nawait asyncio.sleep(0)")
    assert "no cell magic can await" in said.stderr + said.stdout
    # AND a name that is not there is told as in any other cell
    with capture_output():
        result = shell.run_cell(f"{MAGIC}y = x * undefined_name")
    assert isinstance(result.error_in_exec, NameError)


@pytest.mark.parametrize("text", BY_HAND.values(), ids=BY_HAND)
def test_a_capture_by_hand(text: str, tmp_path: Path) -> None:
    # GIVEN a program that captures WHEN it fails THEN cause and line are told
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of every kind
        program(text, tmp_path / "program.py")
    found = pgk.diagnose(caught.value)
    assert {(f.code, f.frame.line) for f in found if f.frame} == marked(text), str(found)


@pytest.mark.parametrize(("name", "text"), [(n.partition(" -> ")[2], t) for n, t in COMPILED.items()], ids=COMPILED)
def test_what_was_compiled(name: str, text: str, tmp_path: Path) -> None:
    # GIVEN what was compiled, and never called WHEN diagnosed THEN what a capture would refuse is told at its line
    torch._dynamo.reset()
    names = program(text, tmp_path / "program.py")
    found = pgk.diagnose(names[name], *names["args"])
    told = {(f.code, f.frame.line if f.frame else 0) for f in found if f.code != "graph-break"}
    assert told == marked(text), str(found)


def test_what_a_function_reads_is_asked_only_where_a_loop_could_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a function whose caller has no loop around it: for a large model what it reads takes long to find
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    asked: list[Any] = []

    def uses_in(*given: Any) -> list[Any]:
        asked.append(given)
        return []

    monkeypatch.setattr("paramgraph_kit.doctor.observe.set_by_calls.uses_in", uses_in)
    # WHEN diagnosed THEN nobody asks
    assert not pgk.diagnose(step, torch.ones(4, device=pgk.device()))
    assert not asked


def test_what_a_scheduler_moves_beside_the_rate_is_told_whatever_else_its_optimizer_does() -> None:
    # GIVEN an optimizer that no graph can hold as it is, and a scheduler that cycles its betas
    net = torch.nn.Linear(4, 1).to(pgk.device())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=200)

    def step(x: torch.Tensor) -> Any:
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    # WHEN diagnosed THEN both are told at its step
    told = pgk.diagnose(step, torch.randn(8, 4, device=pgk.device()))
    codes = {f.code for f in told if f.frame is not None and "optimizer.step()" in f.frame.text}
    assert {"optimizer-not-capturable", "scalar-frozen"} <= codes, str(told)
    assert "betas goes from (0.95, 0.999) to " in str(told)
