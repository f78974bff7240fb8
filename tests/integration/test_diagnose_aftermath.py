"""After a failed capture: the process is told of as it is, repaired, and never left poisoned by a capture of ours."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.diagnosis import Diagnosis
from paramgraph_kit.driver.select import driver
from paramgraph_kit.trace import ParamgraphError
from paramgraph_kit.trace.errors import CaptureError, UnsupportedError
from paramgraph_kit.trace.wording import failure_text
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()


def failed(**options: Any) -> BaseException:
    """What a capture raises that has drawn random numbers and then waits; its leftovers are there."""
    x = torch.ones(4, device=DEVICE)
    try:
        with pgk.cuda.graph(pgk.cuda.CUDAGraph(), **options):
            (x * torch.rand(4, device=DEVICE)).sum().item()
    except RuntimeError as error:
        return error
    raise AssertionError("the capture did not fail")


def now(found: Diagnosis) -> str:
    """What the text of a diagnosis says of the process, its lines joined."""
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 100
    first = next(n for n, line in enumerate(lines) if line.startswith("  now    "))
    return " ".join(line[9:] for line in lines[first:])


def usable() -> None:
    """Random numbers, the stream, memory and the next capture are as ever."""
    assert pgk.cuda.current_stream() == pgk.cuda.default_stream()
    torch.rand(2, device=DEVICE)
    g, x = pgk.cuda.CUDAGraph(), torch.ones(2, device=DEVICE)
    with pgk.cuda.graph(g):
        y = x * 2 + torch.zeros(2, device=DEVICE)
    g.replay()
    assert y.tolist() == [2.0, 2.0]


def test_a_failed_capture_leaves_three_things_and_the_diagnosis_names_them() -> None:
    # GIVEN a failed capture
    error = failed()
    # WHEN explained THEN the cause is told, and what state the process is in
    found = pgk.diagnose(error)
    assert found.codes == ("sync-item",)
    last = now(found)
    assert last.startswith(
        "the current stream is still the one that captured; the random generator still believes in the capture"
    )
    if DEVICE.type == "sim":  # on a GPU it may be unknown what torch's allocator waits for
        assert "; the allocator still waits for the end of the capture" in last
    assert last.endswith(": diagnose.repair() puts that right")
    assert len(str(found).splitlines()) <= 12


@pytest.mark.parametrize("own_stream", [False, True])
def test_repair_makes_the_process_usable_and_says_what_was_wrong(own_stream: bool) -> None:
    # GIVEN a failed capture, on torch's stream or on one of the user's
    error = failed(**({"stream": pgk.cuda.Stream()} if own_stream else {}))
    # WHEN repaired THEN it says what was wrong, once, and all is usable
    assert len(pgk.diagnose.repair(error)) in ((3,) if DEVICE.type == "sim" else (2, 3))
    assert pgk.diagnose.repair(error) == ()
    assert now(pgk.diagnose(error)).endswith("in order: change the line and capture again")
    usable()


def test_a_capture_that_was_begun_by_hand_and_never_ended() -> None:
    # GIVEN a notebook cell that stopped between begin and end
    stream = pgk.cuda.Stream()
    g, x = pgk.cuda.CUDAGraph(), torch.ones(2, device=DEVICE)
    with pgk.cuda.stream(stream):
        g.capture_begin()
        with pytest.raises(RuntimeError) as caught:
            x.sum().item()
    # WHEN explained and repaired THEN both know of it
    assert "a spoiled capture was never ended" in now(pgk.diagnose(caught.value))
    assert pgk.diagnose.repair()[0] == "a spoiled capture was never ended"
    usable()


def test_where_only_a_new_process_helps_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a device whose context is lost: every call raises the same, as after an illegal address
    def lost(suspects: object = ()) -> tuple[str, ...]:
        raise cuda_error

    cuda_error = RuntimeError("CUDA error: an illegal memory access was encountered\nSearch for ...")
    monkeypatch.setattr(type(driver()), "left_behind", staticmethod(lost))
    # WHEN explained or repaired THEN both say so, in one line
    says = "the device answers only 'CUDA error: an illegal memory access was encountered': restart the kernel"
    assert now(pgk.diagnose(cuda_error)) == says
    with pytest.raises(UnsupportedError, match=f"^{re.escape(says)}, nothing else helps$"):
        pgk.diagnose.repair()
    monkeypatch.undo()


def test_a_capture_of_ours_fails_with_your_line_and_leaves_nothing() -> None:
    # GIVEN code that waits for the device
    x = torch.ones(4, device=DEVICE)
    # WHEN captured by diagnose.capture
    with pytest.raises(CaptureError) as caught, pgk.diagnose.capture(pgk.cuda.CUDAGraph()):
        (x * torch.rand(4, device=DEVICE)).sum().item()
    # THEN the error is one line with class, line and fix
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("A value was read back to the CPU [sync-item] at ")
    assert "(x * torch.rand(4, device=DEVICE)).sum().item(); write instead: keep loss as a tensor" in text
    assert text.endswith("; the process is in order")
    assert caught.value.failure.code == pgk.diagnose(caught.value).failure.code == "sync-item"
    # and the process is usable
    usable()


def test_an_error_that_is_not_captures_goes_through_as_it_is() -> None:
    # GIVEN a body that raises on its own WHEN captured THEN its own exception arrives, and the graph can be used again
    g, x = pgk.cuda.CUDAGraph(), torch.ones(2, device=DEVICE)

    def broken() -> None:
        with pgk.diagnose.capture(g):
            torch.add(x, 1)
            raise ValueError("user bug")

    with pytest.raises(ValueError, match=r"^user bug$"):
        broken()
    with pgk.diagnose.capture(g):
        y = x + 1
    g.replay()
    assert y.tolist() == [2.0, 2.0]
    usable()


def test_nothing_is_collected_during_a_capture() -> None:
    # GIVEN the garbage collector, which may find graphs that it must not destroy now WHEN a block is captured
    was = gc.isenabled()
    with pgk.diagnose.capture(pgk.cuda.CUDAGraph()):
        inside = gc.isenabled()
        torch.ones(2, device=DEVICE)
    # THEN it waits until that is done
    assert not inside
    assert gc.isenabled() == was


def test_a_side_stream_that_is_not_joined() -> None:
    # GIVEN work that nothing waits for WHEN captured THEN the end fails, and nothing stays
    side, x = pgk.cuda.Stream(), torch.ones(2, device=DEVICE)

    def forked() -> None:
        with pgk.diagnose.capture(pgk.cuda.CUDAGraph()):
            side.wait_stream(pgk.cuda.current_stream())
            with pgk.cuda.stream(side):
                torch.add(x, 1)

    with pytest.raises(CaptureError, match=r"\[unjoined-work\]") as caught:
        forked()
    usable()
    # THEN outside, where the block is known, the diagnosis names the line whose work nothing waits for
    frame = pgk.diagnose(caught.value).failure.frame
    assert frame is not None
    assert frame.text == "torch.add(x, 1)"


def test_from_a_compiled_model_each_reason_has_its_line_and_a_fix() -> None:
    # GIVEN a model with a place that no graph may hold
    def model(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y = y + table.sin().to(x.device)
        torch._dynamo.graph_break()
        return y * 3

    torch._dynamo.reset()
    compiled = pgk.compile(model)
    compiled(torch.ones(4, device=DEVICE), torch.ones(4))
    # WHEN diagnosed THEN each reason is told at its line, with a fix
    found = pgk.diagnose(compiled)
    assert set(found.codes) == {"cpu-op", "device-copy", "graph-break"}, str(found)
    assert {f.frame.text for f in found if f.frame} == {
        "y = y + table.sin().to(x.device)",
        "torch._dynamo.graph_break()",
    }
    assert all("after" in failure.fix and failure.cause for failure in found)
    assert all(len(failure_text(failure).splitlines()) <= 12 for failure in found)
    assert " partitions are graphs; 3 reasons against more (" in found.heading
    torch._dynamo.reset()


def test_from_a_model_compiled_by_somebody_else_a_copy_is_looked_at() -> None:
    # GIVEN a module compiled with another backend and never called
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: torch.Tensor
            self.register_buffer("seen", torch.zeros((), device=DEVICE))

        def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            y: torch.Tensor = x + table.sin().to(x.device)
            return y

    torch._dynamo.reset()
    model = Model()
    compiled = torch.compile(model, backend="eager")
    # WHEN diagnosed without arguments THEN one line says what is missing
    with pytest.raises(ParamgraphError, match=r"^nothing of this model is compiled .* diagnose\(model, \*args\)$"):
        pgk.diagnose(compiled)
    # WHEN diagnosed with arguments THEN what a capture would refuse is found, and the model is as it was
    found = pgk.diagnose(compiled, torch.ones(4, device=DEVICE), torch.ones(4))
    assert set(found.codes) >= {"copy-to-gpu"}, str(found)
    assert {f.frame.text for f in found if f.frame} == {"y: torch.Tensor = x + table.sin().to(x.device)"}
    assert model.seen.item() == 0
    torch._dynamo.reset()


def test_an_error_of_our_own_launcher_is_told_at_its_line() -> None:
    # GIVEN a model with a place that no graph may hold, compiled so that this is an error
    def model(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y + table.sin().to(x.device)

    torch._dynamo.reset()
    with pytest.raises(Exception, match="runs on cpu") as caught:
        pgk.compile(model, strict=True)(torch.ones(4, device=DEVICE), torch.ones(4))
    # WHEN the error is diagnosed THEN it is the same as from the model, with the line and a fix
    found = pgk.diagnose(caught.value)
    assert found.codes == ("cpu-op",)
    assert found.failure.frame is not None
    assert found.failure.frame.text == "return y + table.sin().to(x.device)"
    assert found.failure.fix.startswith("before")
    torch._dynamo.reset()


def test_what_cannot_be_in_a_graph_has_the_fix_of_its_operation() -> None:
    # GIVEN custom operations that wait, in what they say and in what they call, and one of torch's that does
    def total(x: torch.Tensor) -> float:
        return float(x.sum().item())

    @torch.library.custom_op("paramgraph_test::waits", mutates_args=())
    def waits(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    @torch.library.custom_op("paramgraph_test::waits_inside", mutates_args=())
    def waits_inside(x: torch.Tensor) -> torch.Tensor:
        return x * total(x)

    for each in (waits, waits_inside):
        each.register_fake(torch.empty_like)
    x = torch.ones(4, device=DEVICE)
    says: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
        "Its Python reads a tensor on the host: x.sum().item()": (lambda x: waits(x + 1) * 2, "stays on the GPU"),
        "Its capture failed: CUDA error: operation not permitted when stream is capturing": (
            lambda x: waits_inside(x + 1) * 2,
            "stays on the GPU",
        ),
        "Reads the least and the largest value on the host: give min and max": (
            lambda x: torch.histc(x, 4) * 2,
            "low, high",
        ),
    }
    for title, (function, fix) in says.items():
        # WHEN it has been called THEN the result is right, and the operation is told with a fix that is about it
        for _ in range(2):  # what only its capture tells is left out from the next compilation on, by Inductor
            torch._dynamo.reset()
            compiled = pgk.compile(function)
            assert torch.equal(compiled(x), function(x))
        (failure,) = pgk.diagnose(compiled)
        assert (failure.code, failure.title) == ("unsafe-op", title)
        assert fix in failure.fix
        assert len(failure_text(failure).splitlines()) <= 12
    torch._dynamo.reset()


def test_a_parameterized_function_is_told_of_like_a_compiled_one() -> None:
    # GIVEN a function that cannot be traced, and so runs as it is
    x = torch.ones(4, device=DEVICE)
    step = pgk.parameterize(lambda x: x * x.sum().item(), x)
    step(x)
    # WHEN diagnosed THEN the reason is told, and how to get the line
    (failure,) = pgk.diagnose(step)
    assert failure.code == "data-dependent"
    assert "diagnose(fn, *args) names the line" in failure.fix
