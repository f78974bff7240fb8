"""Errors are a contract: one module, exported, drawn, copied whole, named by the verbs that raise them."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paramgraph_kit as pgk
from paramgraph_kit.backend import _own_error
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.trace import errors
from paramgraph_kit.trace.errors import ERRORS, ParamgraphError, RefusedError, UnsupportedError
from paramgraph_kit.trace.model import Failure
from paramgraph_kit.trace.reason import Reason
from tests.unit.test_layers import PACKAGE

# Of a column, of which the reader of a file makes a TraceError; of a rewriting, which is then not offered; of an answer
# to a puzzle, of which the grade makes a verdict.
NEVER_LEAVES = {"BadValueError", "cudaError", "BorrowError", "CannotError", "WrongError", "_RefusedError"}
NEVER_LEAVES |= {"TooLongError", "ExchangedError"}  # of a trial, whose rewriting is not offered then


def test_every_error_is_in_one_module_and_exported(repository: Path) -> None:
    # GIVEN every class in the package that is called an error
    defined = {
        (name, path.relative_to(repository / PACKAGE).as_posix())
        for path in (repository / PACKAGE).rglob("*.py")
        for name in re.findall(r"^class (\w+Error)\b", path.read_text(), re.MULTILINE)
    }
    # THEN all are in one module, exported, and say that they come from the package
    assert {file for name, file in defined if name not in NEVER_LEAVES} == {"trace/errors.py"}
    assert {name for name, _ in defined} - NEVER_LEAVES == {error.__name__ for error in ERRORS}
    for error in ERRORS:
        assert getattr(pgk, error.__name__) is error
        assert error.__name__ in pgk.__all__
        assert error.__module__ == "paramgraph_kit"
        assert issubclass(error, ParamgraphError)


def test_the_tree_in_the_docstring_is_the_hierarchy() -> None:
    # GIVEN the drawing WHEN read THEN it names every error once, below its base
    lines = re.findall(r"^([├└│─ ]*)(\w+Error) ", inspect.getdoc(errors) or "", re.MULTILINE)
    assert [name for _, name in lines] == [error.__name__ for error in ERRORS]
    depth = {error.__name__: len(error.__mro__) - len(ParamgraphError.__mro__) for error in ERRORS}
    assert {name: len(drawn) // 4 for drawn, name in lines} == depth


EXAMPLES: list[ParamgraphError] = [
    RefusedError(Reason("host-memcpy", "a copy from or to host memory stays at its captured address")),
    errors.CaptureError(Failure("sync-item", "A value is read back", "before\n  x.item()\nafter\n  x"), "in order"),
    errors.DriverCallError("cuGraphLaunch", 700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    ParamgraphError("what happened"),
    *(error("what happened") for error in (UnsupportedError, errors.TraceError, errors.DeviceMismatchError)),
    errors.PromiseError("the model has changed"),
    errors.TourError("the tour claims that 1 is 2"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_a_copy_and_another_process(error: ParamgraphError) -> None:
    # GIVEN an error WHEN pickled, as a worker does, or copied THEN text and attributes are those of the first
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert vars(other) == vars(error)
    assert {type(each) for each in EXAMPLES} == set(ERRORS)


class Detour(torch.autograd.Function):
    """A backward with a value read back on its way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.cpu().mul(2).to(gradient.device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # Dynamo does
@pytest.mark.parametrize("where", ["forward", "backward", "after a graph break"])
def test_a_refusal_arrives_as_it_is_wherever_it_is_made(where: str) -> None:
    # GIVEN a function with something that no graph may take
    torch._dynamo.reset()

    def step(x: Tensor) -> Tensor:
        if where == "forward":
            return (x * 2).cpu().to(x.device)
        if where == "backward":
            return Detour.apply(x).sum()  # type: ignore[no-any-return, no-untyped-call]
        y = x * 3
        torch._dynamo.graph_break()
        return y.cpu().to(x.device) + 1

    compiled: Any = torch.compile(step, backend="paramgraph", options={"strict": True})
    x = torch.ones(4, device=pgk.device(), requires_grad=where == "backward")

    def call() -> None:
        y = compiled(x)
        if where == "backward":
            y.backward()

    for _ in range(2):
        # WHEN it is called THEN what a user catches is ours, with its reason and the line
        with pytest.raises(pgk.RefusedError) as caught:
            call()
        assert caught.value.reason.code
        assert "test_errors.py" in str(caught.value)


def test_an_error_inside_of_one_of_inductors_is_found() -> None:
    # GIVEN what Inductor and Dynamo make of an error of ours, and an error of somebody else's
    refused = RefusedError(Reason("host-memcpy", "a copy"))
    wrapped = torch_name("InductorError")(refused, inspect.currentframe())
    # THEN ours is found in it, and nothing in the other
    assert _own_error(wrapped) is refused
    assert _own_error(ValueError("theirs")) is None


def _strict(x: Tensor) -> Any:
    return pgk.compile(lambda x: (x * 2).cpu().to(x.device), strict=True)(x)


NO_TEXT: Any = 3
RAISED: list[tuple[Any, Callable[[Path], Any]]] = [
    (pgk.compile, lambda _: pgk.compile(torch.sin, speed=3)),
    (pgk.compile, lambda _: pgk.compile("model")),
    (pgk.compile, lambda _: _strict(torch.ones(2, device=pgk.device()))),
    (pgk.compile, lambda _: pgk.compile(nn.Linear(2, 2))(torch.ones(2))),
    (pgk.parameterize, lambda _: pgk.parameterize(torch.sin, stages=0)),
    (pgk.parameterize, lambda _: pgk.parameterize(3)),
    (pgk.parameterize, lambda _: pgk.parameterize(torch.sin, state="model")),
    (pgk.parameterize, lambda _: pgk.parameterize(nn.Linear(2, 2), torch.ones(2))),
    (
        pgk.parameterize,
        lambda _: pgk.parameterize(lambda x: x * x.sum().item(), strict=True)(torch.ones(2, device=pgk.device())),
    ),
    (pgk.report, lambda _: pgk.report(3)),
    (pgk.diagnose.__call__, lambda _: pgk.diagnose(3)),
    (pgk.diagnose.capture, lambda _: _read_back_in_a_capture()),
    (pgk.explore, lambda _: pgk.explore("model.pgtrace")),
    (pgk.diagnose.capture, lambda _: pgk.diagnose.capture("graph")),
    (pgk.story, lambda _: _in_a_capture(lambda: pgk.story(torch.sin, torch.ones(2, device=pgk.device()), say=None))),
    (pgk.watch, lambda _: pgk.watch(NO_TEXT).__enter__()),
    (pgk.explore, lambda _: pgk.explore(pgk.cuda.CUDAGraph())),
    (pgk.explore, lambda _: pgk.explore(_in_a_capture(lambda: torch.ones(2, device=pgk.device()) * 2))),
    (pgk.explore, lambda _: pgk.explore([3])),
    (pgk.save, lambda folder: pgk.save(pgk.recorded["gpt2"], folder / "no" / "such" / "folder")),
    (pgk.save, lambda folder: pgk.save(pgk.recorded["gpt2"], folder)),
    (pgk.save, lambda folder: pgk.save(None, folder / "none.pgtrace")),
    (pgk.save, lambda _: pgk.save(pgk.recorded["gpt2"], NO_TEXT)),
    (pgk.load, lambda folder: pgk.load(folder / "nothing.pgtrace")),
    (pgk.load, lambda _: pgk.load(NO_TEXT)),
    (type(pgk.recorded), lambda _: pgk.recorded["lama"]),
]


def _read_back_in_a_capture() -> None:
    x = torch.ones(2, device=pgk.device())
    with pgk.diagnose.capture(pgk.cuda.CUDAGraph()):
        x.sum().item()


def _in_a_capture(call: Callable[[], Any]) -> Any:
    graph = pgk.cuda.CUDAGraph()
    with pgk.cuda.graph(graph):
        torch.ones(2, device=pgk.device())
        call()
    return graph


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
@pytest.mark.parametrize(("verb", "call"), RAISED, ids=[verb.__name__ for verb, _ in RAISED])
def test_a_verb_names_what_arrives(verb: Any, call: Callable[[Path], Any], tmp_path: Path) -> None:
    # GIVEN a wrong use of a verb WHEN it raises THEN the error is one of ours, of one line, and its docstring names it
    torch._dynamo.reset()
    with pytest.raises(ParamgraphError) as caught:
        call(tmp_path)
    raises = (inspect.getdoc(verb) or "").partition("Raises:")[2].partition("Examples:")[0]
    assert type(caught.value).__name__ in re.findall(r"^ +(\w+): ", raises, re.MULTILINE), str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_driver_that_is_asked_for_too_much_says_so() -> None:
    # GIVEN an option of another backend WHEN compiled THEN the error can be caught by its base, too
    with pytest.raises(pgk.ParamgraphError) as caught:
        pgk.compile(torch.sin, mode="max-autotune")
    assert type(caught.value) is UnsupportedError
