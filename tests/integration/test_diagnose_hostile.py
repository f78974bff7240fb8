"""Functions that raise, hang, exit or turn things over: a clear answer within a limit, and the session survives."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.doctor.diagnosis import Diagnosis
from paramgraph_kit.doctor.restore.surroundings import autocast_depth
from paramgraph_kit.driver.sim.machine import SWAP
from paramgraph_kit.trace import ParamgraphError
from paramgraph_kit.trace.wording import failure_text
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()


def raises(x: torch.Tensor) -> Any:
    y = x * x.sum().item()
    return y + missing  # type: ignore[name-defined]  # noqa: F821


def no_tensor(x: torch.Tensor) -> str:
    x.add_(1)
    return "done"


def forever(x: torch.Tensor) -> torch.Tensor:
    while True:
        try:
            x = x + 1
        except Exception:
            continue


def sleeps(x: torch.Tensor) -> torch.Tensor:
    import time

    time.sleep(60)
    return x


def leaves(x: torch.Tensor) -> torch.Tensor:
    import sys

    y = x + 1
    sys.exit(3)
    return y


def leaves_at_once(x: torch.Tensor) -> torch.Tensor:
    import os

    os._exit(3)


def kills(x: torch.Tensor) -> torch.Tensor:
    import signal

    os.kill(os.getpid(), signal.SIGTERM)
    return x


def waits_for_ever(x: torch.Tensor) -> Any:
    import queue

    return queue.Queue[Any]().get(), x


class Own(BaseException):
    """An exception that has no text, and does not say why."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]  # it need not be one that can be set
        raise RuntimeError("no cause")


def raises_own(x: torch.Tensor) -> torch.Tensor:
    raise Own


def needs_itself(x: torch.Tensor) -> torch.Tensor:
    return needs_itself(x + 1)


def too_large(x: torch.Tensor) -> torch.Tensor:
    return x + torch.empty(1 << 55, device=x.device)


@pytest.mark.parametrize(
    ("function", "code", "text"),
    [
        (kills, "exits", "os.kill(os.getpid(), signal.SIGTERM)"),
        (waits_for_ever, "time-limit", "return queue.Queue[Any]().get(), x"),
        (raises_own, "raises", "raise Own"),
        (needs_itself, "raises", "return needs_itself(x + 1)"),
        (too_large, "out-of-memory", "return x + torch.empty(1 << 55, device=x.device)"),
        (raises, "raises", "return y + missing"),
        (forever, "time-limit", None),
        (sleeps, "time-limit", "time.sleep(60)"),
        (leaves, "exits", "sys.exit(3)"),
        (leaves_at_once, "exits", "os._exit(3)"),
    ],
)
def test_hostile_functions_get_a_clear_answer_and_the_session_survives(
    function: Callable[[torch.Tensor], Any], code: str, text: str | None
) -> None:
    # GIVEN a function that does not return WHEN diagnosed with a limit
    x = torch.ones(2, device=DEVICE)
    failure = pgk.diagnose(function, x, limit_s=1.0 if code == "time-limit" else 30.0).failures[-1]
    # THEN it is said, with its line, in few lines
    assert failure.code == code
    assert failure.frame is not None
    assert text is None or failure.frame.text.startswith(text)
    assert len(failure_text(failure).splitlines()) <= 12
    # and everything goes on
    assert x.sum().item() == 2
    assert pgk.cuda.current_stream() == pgk.cuda.default_stream()


class Answers:
    """Fails whatever it is asked."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = None  # type: ignore[assignment]


def test_results_of_every_kind_are_taken() -> None:
    # GIVEN results that hold themselves, or answer no question WHEN diagnosed THEN that is no problem of ours
    x = torch.ones(2, device=DEVICE)
    table: dict[str, Any] = {}
    table["itself"], row = table, [x]
    row.append(row)  # type: ignore[arg-type]
    for result in (table, row, Answers(), (x, Answers())):
        assert pgk.diagnose(lambda result=result: (x + 1, result)[1]).codes == ()


def test_settings_and_tensors_that_a_function_turns_over_are_put_back(tmp_path: Path) -> None:
    # GIVEN a function that leaves all of these as they were not
    x, z = torch.ones(2, device=DEVICE), torch.ones(2, device=DEVICE)
    p, model = nn.Parameter(torch.ones(3, device=DEVICE)), nn.Linear(2, 2).to(DEVICE)
    memory = p.data_ptr(), model.weight.data_ptr()
    gone = tmp_path / "gone"

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.autocast("cpu").__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        torch.set_grad_enabled(False)
        gone.mkdir()
        os.chdir(gone)
        gone.rmdir()
        sys.stdout = None
        os.environ["PARAMGRAPH_TEST"] = "1"
        p.data = torch.zeros(5, device=DEVICE)
        model.weight.data = model.weight.data.half()
        if hasattr(torch.UntypedStorage, SWAP):  # otherwise it is refused, for the doctor keeps what is there
            x.resize_(7)
        z.requires_grad_(True)
        return y

    # WHEN diagnosed THEN each is as before
    folder, printed = Path.cwd(), sys.stdout
    assert pgk.diagnose(f, x).codes == ()
    assert sys.stdout is printed
    assert (torch.get_default_dtype(), torch.get_default_device().type) == (torch.float32, "cpu")
    assert (torch.is_autocast_enabled("cpu"), autocast_depth()) == (False, 0)
    assert torch.is_grad_enabled()
    assert (Path.cwd(), "PARAMGRAPH_TEST" in os.environ) == (folder, False)
    assert (tuple(p.shape), model.weight.dtype, tuple(x.shape), z.requires_grad) == ((3,), torch.float32, (2,), False)
    assert (p.data_ptr(), model.weight.data_ptr()) == memory
    assert (x.tolist(), p.tolist()) == ([1.0] * 2, [1.0] * 3)


def test_a_capture_that_a_function_leaves_open_is_ended() -> None:
    # GIVEN a function that begins a capture and does not end it
    x = torch.ones(2, device=DEVICE)

    def f(x: torch.Tensor) -> torch.Tensor:
        pgk.cuda.CUDAGraph().capture_begin()
        return x + 1

    # WHEN diagnosed THEN that is told, and the next capture works
    assert pgk.diagnose(f, x).codes == ("nested-capture",)
    graph = pgk.cuda.CUDAGraph()
    with pgk.cuda.graph(graph):
        y = x * 3
    graph.replay()
    assert y.tolist() == [3.0] * 2


def test_an_import_is_never_interrupted(tmp_path: Path) -> None:
    # GIVEN a function whose first call imports for longer than the limit, in a fresh process
    (tmp_path / "slow_module.py").write_text("import time\ntime.sleep(2)\nready = 1\n")
    program = """
import sys, torch, paramgraph_kit as pgk
def f(x):
    import slow_module
    while True:
        x = x + 1
found = pgk.diagnose(f, torch.ones(2, device=pgk.device()), limit_s=0.5)
print(found.codes, sys.modules["slow_module"].ready, torch._dynamo.config is not None)
"""
    file = tmp_path / "program.py"
    file.write_text(program)
    # WHEN diagnosed THEN its limit is kept, and what it and torch import is whole
    paths = os.pathsep.join((str(tmp_path), str(Path(pgk.__file__).parents[1])))
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.stdout == "('time-limit',) 1 True\n", done.stderr


def test_a_device_that_gives_up_is_told_and_what_can_be_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a device that refuses every call after an assertion in a kernel, which shows at the next wait
    x, calls, ask = torch.ones(2, device=DEVICE), [0], pgk.cuda.synchronize

    def synchronize(*args: Any) -> None:
        if calls[0]:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered\nSearch for ...")
        ask(*args)

    def f(x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return x * 2

    monkeypatch.setattr(pgk.cuda, "synchronize", synchronize)
    random.seed(7)
    before = random.getstate()
    # WHEN a function makes it do so THEN that is what is told, once, with what to do, and Python's state is as before
    found = pgk.diagnose(f, x)
    assert found.codes == ("device-assert",)
    assert found.failure.frame is not None
    assert found.failure.frame.text == "return x * 2"
    assert str(found).endswith("  now    the device refuses every further call: restart the kernel")
    assert (calls, random.getstate()) == ([0], before)
    # and the next call says so at once, in one line
    calls[0] = 1
    with pytest.raises(ParamgraphError, match=r"^the device answers only 'CUDA error: device-side assert triggered': "):
        pgk.diagnose(f, x)


def test_what_was_found_before_a_function_raised_is_kept() -> None:
    diagnosis = pgk.diagnose(raises, torch.ones(2, device=DEVICE))
    assert diagnosis.codes == ("sync-item", "raises")
    assert "NameError: name 'missing' is not defined" in str(diagnosis)


def test_a_function_in_another_thread_has_a_limit_too() -> None:
    import threading

    got: list[Diagnosis] = []
    x = torch.ones(2, device=DEVICE)
    thread = threading.Thread(target=lambda: got.append(pgk.diagnose(forever, x, limit_s=1.0)))
    thread.start()
    thread.join(30)
    assert got[0].codes == ("time-limit",)


def test_no_tensor_and_no_work() -> None:
    x = torch.ones(2, device=DEVICE)
    # GIVEN a function that returns no tensor THEN that is a note, and what it wrote is put back
    diagnosis = pgk.diagnose(no_tensor, x)
    assert not diagnosis
    assert diagnosis.notes == ("it returns a str and no tensor: after a replay, only tensors have new values",)
    assert x.sum().item() == 2
    # GIVEN one that does nothing on the device THEN that is the problem
    assert pgk.diagnose(lambda: 3).codes == ("empty-graph",)
