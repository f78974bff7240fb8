"""The doctor: the cause, the line and the fix for every failure that was recorded on a real H200.

The recorded programs run here with every name replaced by a stand-in that raises, at the very expression that
failed on the GPU, the exception that the GPU raised; only the exceptions and where they rise are recorded facts.
"""

from __future__ import annotations

import contextlib
import json
import linecache
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from paramgraph_kit.doctor import explain, failure_text
from paramgraph_kit.doctor.explain.operations import operation_of
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace import Frame
from paramgraph_kit.trace.errors import cause_chain

CASES: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "h200_capture_cases.json").read_text(encoding="utf-8")
)["cases"]
TORCH = Path(torch.__file__).parent
USER = "/home/ada/train.py"
CODES = {
    "operation not permitted when stream is capturing": 900,
    "operation failed due to a previous error during capture": 901,
    "capturing stream has unjoined work": 904,
    "dependency created on uncaptured work in another stream": 905,
    "operation would make the legacy stream depend on a capturing blocking stream": 906,
    "invalid argument": 1,
}

# What each recorded failure is, and, where a body has several lines, on which of them it fails.
EXPECTED = {
    "cpu": "copy-to-cpu",
    "synchronize": "synchronize",
    "stream_sync": "synchronize",
    "nonzero": "dynamic-shape",
    "maskget": "dynamic-shape",
    "rep_int": "dynamic-shape",
    "bincount": "hidden-size",
    "one_hot": "hidden-size",
    "maskset_tensor": "mask-assignment",
    "idx_list": "cpu-index",
    "slice_t": "tensor-bound",
    "tensor_scalar": "tensor-literal",
    "tensor_list": "tensor-literal",
    "where_cpu0d": "cpu-operand",
    "allclose": "compare-on-cpu",
    "isnan_any": "data-dependent-branch",
    "inv": "linalg-check",
    "histc": "hidden-size",
    "to_sparse": "dynamic-shape",
    "opt.Adam([p])": "optimizer-not-capturable",
    "opt.Adam([p],fused=True)": "optimizer-not-capturable",
    "opt.RMSprop([p])": "optimizer-not-capturable",
    "opt.LBFGS([p])": "optimizer-sync",
    "clip_enf": "clip-check",
    "scaler.step": "grad-scaler",
    "strm.noentry": "isolation",
    "strm.unjoined": "unjoined-work",
    "strm.legacy_wait": "isolation",
    "strm.captured_event_query_after": "captured-event",
    "strm.timing_event": "captured-event",
    "ag.tape_default": "legacy-stream",
    "ag.warm_default_keep": "legacy-stream",
    "ag.bwd_of_outside_loss": "legacy-stream",
    "cold.conv": "cold-library",
    "cold.mm": "cold-library",
    "self.global.event_query": "query",
    "self.global.h2d": "copy-to-gpu",
    "self.thread_local.h2d": "copy-to-gpu",
    "self.relaxed.h2d": "copy-to-gpu",
    "item": "sync-item",
    "h2d_pageable": "copy-to-gpu",
    "print": "print",
    "gen.unreg": "unregistered-generator",
}

# Compiled as if it lay in torch, so that its frames are the library's.
_STAND_IN = """
class StandIn:
    def __init__(self, name, raiser): self.name, self.raiser = name, raiser
    def __getattr__(self, name): return StandIn(name, self.raiser)
    def __call__(self, *args, **kwargs): return self._do(self.name)
    def __getitem__(self, key): return self._do("[]")
    def __setitem__(self, key, value): self._do("[]=")
    def __bool__(self): return bool(self._do("bool"))
    def __str__(self): return str(self._do("str"))
    def __mul__(self, other): return self
    def __add__(self, other): return self
    def __gt__(self, other): return self
    __lt__ = __gt__
    def __matmul__(self, other): return self._do("@")
    def __float__(self): return float(self._do("float"))
    def __enter__(self): return self
    def __exit__(self, *args): return None
    def _do(self, operation):
        error = self.raiser(operation)
        if error is not None: raise error
        return StandIn(operation, self.raiser)
"""
# Calls that only prepare what fails.
_HARMLESS = {
    "sum",
    "isnan",
    "any",
    "current_stream",
    "default_stream",
    "Event",
    "record",
    "stream",
    "graph",
    "CUDAGraph",
}
_NAMES = "torch nn F C x m i z c cp c0 j v p o sc w e f s g2 y L".split()  # noqa: SIM905
_EXIT = """
class graph:
    def __init__(self, error): self.error = error
    def __enter__(self): pass
    def __exit__(self, *args):
        if self.error is not None: raise self.error
"""


def recorded(exception: dict[str, Any]) -> Exception:
    """An exception as the H200's torch raised it."""
    if exception["type"] != "AcceleratorError":
        made: Exception = {"RuntimeError": RuntimeError, "ValueError": ValueError}[exception["type"]](
            exception["message"]
        )
        return made
    error = torch.AcceleratorError(exception["message"] + "\nSearch for `cudaError' in https://docs.nvidia.com/cuda/")
    # mypy sees torch's class, whose error_code is set by C++.
    setattr(error, "error_code", next(code for text, code in CODES.items() if text in exception["message"]))  # noqa: B010
    return error


def library(source: str, file: str, name: str) -> Any:
    """A class whose code seems to lie in torch's ``file``."""
    namespace: dict[str, Any] = {}
    exec(compile(source, str(TORCH / file), "exec"), namespace)
    return namespace[name]


@contextlib.contextmanager
def user_file(text: str, file: str = USER) -> Iterator[Any]:
    """Code of a user's file, whose lines can be looked up."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    try:
        yield compile(text, file, "exec")
    finally:
        del linecache.cache[file]


def run(text: str, names: dict[str, Any], file: str = USER) -> Any:
    """The diagnosis of the exception that ``text`` raises, made while the user's lines can be read."""
    with user_file(text, file) as code:
        try:
            exec(code, names)
        except Exception as error:
            return explain(error)
    raise AssertionError(f"nothing was raised by {text!r}")


def replay(name: str) -> tuple[Any, str]:
    """The diagnosis of a recorded case, and the line that failed."""
    case = CASES[name]
    exceptions = [recorded(e) for e in case["h200"]["exceptions"]]
    after = case["h200"]["outcome"] == "fails after capture"
    at_end = case["h200"]["exceptions"][0]["raised_in"] == "cuda/graphs.py:capture_end"
    inner = None if at_end and len(exceptions) == 1 else exceptions[-1]
    body = case["post"] if after else case["body"]

    def raiser(operation: str) -> Exception | None:
        return None if operation in _HARMLESS else inner

    # Where torch raises it: the scaler and LBFGS sync inside their own files.
    places = {"sc": "amp/grad_scaler.py", "o": "optim/lbfgs.py"}
    names = {n: library(_STAND_IN, places.get(n, "_tensor.py"), "StandIn")(n, raiser) for n in _NAMES}
    names["step"] = library(_EXIT, "cuda/graphs.py", "graph")(exceptions[0] if at_end else None)
    lines = body.splitlines()
    text = "with step:\n" + "".join(f"    {line}\n" for line in lines)
    return run(text, names), ("with step:" if inner is None else lines[-1])


def test_every_recorded_failure_of_a_body_is_expected_here() -> None:
    # GIVEN the recorded cases WHEN compared with this test's list THEN none is left out
    failing = {
        name
        for name, case in CASES.items()
        if case.get("body") and case["h200"]["outcome"] in ("fails in capture", "fails after capture")
    }
    assert failing == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_recorded_failures_are_explained_at_their_line(name: str) -> None:
    # GIVEN the exceptions of a case as recorded WHEN explained
    failure, line = replay(name)
    # THEN class and line are right, the cause and the fix are there, and the text is short
    assert failure.code == EXPECTED[name], failure
    assert failure.frame == Frame(USER, failure.frame.line, "<module>", line.strip())
    assert failure.cause.count(". ") >= 1 or failure.cause.endswith(".")
    assert failure.fix.startswith("before  ")
    assert "\nafter   " in failure.fix
    text = failure_text(failure)
    assert len(text.splitlines()) <= 12
    assert line.strip() in " ".join(text.split()) or len(line) > 60


def test_the_echo_is_named_but_the_real_error_leads() -> None:
    # GIVEN a 901 from the end of the capture, with the 900 behind it WHEN explained
    failure, _ = replay("item")
    # THEN the message is the real one
    assert failure.message == (
        "CUDA error: operation not permitted when stream is capturing "
        "(hidden behind: CUDA error: operation failed due to a previous error during capture)"
    )
    assert failure_text(failure).splitlines()[0] == "A value was read back to the CPU  [sync-item]"


def failing(code: int) -> Any:
    """A tensor that seems to lie in torch and raises a CUDA error."""
    error = recorded({"type": "AcceleratorError", "message": "CUDA error: invalid argument"})
    setattr(error, "error_code", code)  # noqa: B010
    error.args = (f"CUDA error: code {code}",)

    return library(_STAND_IN, "_tensor.py", "StandIn")(
        "call", lambda operation: None if operation in _HARMLESS else error
    )


@pytest.mark.parametrize(
    ("code", "line", "expected"),
    [
        (900, "if x > 0: pass", "data-dependent-branch"),
        (900, "while not x: pass", "data-dependent-branch"),
        (900, "z = 1 if x else 2", "data-dependent-branch"),
        (900, "if x.isnan().any(): pass", "data-dependent-branch"),
        (900, "assert x.any()", "data-dependent-branch"),
        (900, "y = x and 3", "data-dependent-branch"),
        (900, "y = max(x, x)", "data-dependent-branch"),
        (900, "y = float(x)", "sync-item"),
        (900, "y = f'{x}'", "print"),
        (900, "y = x.numpy()", "copy-to-cpu"),
        (900, "y = x.to('cpu')", "copy-to-cpu"),
        (900, "y = x.tolist() + [g.item]", "copy-to-cpu"),
        (900, "y = x[x]", "dynamic-shape"),
        (900, "y = x.unheard_of()", "sync-unknown"),
        (901, "y = x.unheard_of()", "invalidated"),
        (902, "x.wait_stream(x)", "merged-captures"),
        (903, "x.capture_end()", "wrong-end-stream"),
        (904, "x.capture_end()", "unjoined-work"),
        (905, "x.wait_event(x)", "isolation"),
        (906, "x.backward()", "legacy-stream"),
        (907, "x.query()", "captured-event"),
        (908, "x.capture_end()", "wrong-end-thread"),
        (700, "y = x.cpu()", "illegal-address"),
    ],
)
def test_codes_and_operations(code: int, line: str, expected: str) -> None:
    # GIVEN a CUDA error with a code, and no known words, at a line of the user's WHEN explained
    failure = run(f"import math\n\n{line}\n", {"x": failing(code), "g": failing(code)})
    # THEN class and line are right
    assert failure.code == expected
    assert failure.frame == Frame(USER, 3, "<module>", line)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("CUDA graphs must be captured on a non-default stream. (However, ...)", "default-stream"),
        ("Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture. If you need", "rng-state"),
        ("Offset increment outside graph capture encountered unexpectedly.", "poisoned-generator"),
        ("During CUDA graph capture, autograd node 'X' has a stale reference to the default stream", "legacy-stream"),
        ("Capture must end on the same stream it began on.", "wrong-end-stream"),
        ("Triton Error [CUDA]: operation not permitted when stream is capturing", "cold-triton"),
        (
            "Error: accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run.",
            "output-overwritten",
        ),
        ("CUDA error: operation not permitted when stream is capturing", "sync-unknown"),
        ("CUDA error: capturing stream has unjoined work", "unjoined-work"),
    ],
)
def test_messages_without_a_code(message: str, expected: str) -> None:
    # GIVEN an exception that has only its words WHEN explained THEN they are enough; no line is invented
    failure = explain(RuntimeError(message))
    assert failure.code == expected
    assert failure.frame is None


def test_out_of_memory() -> None:
    # GIVEN torch's own exception WHEN explained THEN it is known
    assert explain(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")).code == "out-of-memory"


def test_what_is_not_known_is_said_with_the_whole_chain() -> None:
    # GIVEN an error of the user's own, raised while another was handled WHEN explained
    text = "try:\n    {}['lr']\nexcept KeyError:\n    raise ValueError('user bug')\n"
    failure = run(text, {})
    # THEN it says so, shows the chain and the line, and invents no cause
    assert failure.code == "unknown"
    assert failure.title == "ValueError was raised, and it is none that CUDA graphs are known for"
    assert failure.message == "ValueError: user bug <- KeyError: 'lr'"
    assert failure.frame == Frame(USER, 4, "<module>", "raise ValueError('user bug')")
    assert "We do not know this one" in failure.cause


def test_a_user_error_in_a_capture_is_not_blamed_on_cuda() -> None:
    # GIVEN an exception of the body's own, which torch lets through WHEN explained THEN it is unknown, not a capture's
    assert run("raise ValueError('user bug')", {}).code == "unknown"


def test_a_wrapped_error_is_found_behind_from_none_and_cycles() -> None:
    # GIVEN a real cause behind "raise ... from None", in a chain that bites its tail WHEN explained
    inner = RuntimeError("CUDA graphs must be captured on a non-default stream.")
    middle, outer = ValueError("step failed"), KeyError("job")
    outer.__context__, middle.__context__, inner.__context__ = middle, inner, outer
    outer.__suppress_context__ = True
    # THEN it is found, and the walk ends
    assert explain(outer).code == "default-stream"
    assert len(list(cause_chain(outer))) == 3


def test_a_nested_capture_is_told_from_a_body_that_failed() -> None:
    # GIVEN 900 from the begin of an inner capture WHEN explained THEN it is the nesting
    error = recorded(
        {"type": "AcceleratorError", "message": "CUDA error: operation not permitted when stream is capturing"}
    )
    inner = library(_EXIT.replace("pass", "raise self.error"), "cuda/graphs.py", "graph")
    assert run("with graph(error): pass", {"graph": inner, "error": error}).code == "nested-capture"
    # AND 901 from its end alone is only an echo
    echo = recorded(
        {"type": "AcceleratorError", "message": "CUDA error: operation failed due to a previous error during capture"}
    )
    outer = library(_EXIT, "cuda/graphs.py", "graph")
    assert run("with graph(error): pass", {"graph": outer, "error": echo}).code == "invalidated"


def test_the_innermost_frame_of_the_user_is_named() -> None:
    # GIVEN a helper of the user's between the step and torch WHEN explained THEN the helper's line is named
    failure = run("def loss(x):\n    return x.item()\n\nloss(x)\n", {"x": failing(900)})
    assert failure.frame == Frame(USER, 2, "loss", "return x.item()")


def test_a_notebook_cell_is_named_by_its_number() -> None:
    # GIVEN code of a cell, as IPython names it WHEN explained THEN the cell and the line are named
    failure = run("y = 1\nz = x.item()\n", {"x": failing(900)}, file="<ipython-input-4-0a1b2c3d>")
    assert failure.frame == Frame("<cell 4>", 2, "<module>", "z = x.item()")
    assert display_name("/tmp/ipykernel_81/1234.py") == "<cell>"


@pytest.mark.parametrize(
    ("expression", "after", "operation"),
    [
        ("a.b.item()", "", "item"),
        ("x[m]", "", "x[mask]"),
        ("x[m]", " = v", "x[mask]="),
        ("x[m]", " == v", "x[mask]"),
        ("x[m] = v", "", "x[mask]="),
        ("x[[1, 2]]", "", "x[list]"),
        ("x[j:]", "", "x[i:j]"),
        ("not x", "", "bool"),
        ("a @ b", "", ""),
        ("return", "", ""),
        ("min(a, b)", "", "bool"),
        ("x.min()", "", "min"),
    ],
)
def test_the_outermost_operation(expression: str, after: str, operation: str) -> None:
    # GIVEN an expression WHEN asked for its operation THEN it is what failed, not what prepared it
    assert operation_of(expression, after) == operation


@pytest.mark.parametrize(
    ("expression", "operation"),
    [
        ("x[j]", "x[i:j]"),
        ("x[j + 1, 2]", "x[i:j]"),
        ("x[-j]", "x[i:j]"),
        ("x[order[0]]", "x[i:j]"),
        ("x[order[n], 1]", "x[i:j]"),
        ("x[x.sum(1).argmax()]", "x[i:j]"),
        ("x[x.argmax(1)]", "x[mask]"),
        ("x[order[m]]", "x[mask]"),
        ("x[m[0]]", "x[mask]"),
        ("x.type(torch.FloatTensor)", "cpu"),
        ("x.type('torch.FloatTensor')", "cpu"),
        ("x.type(torch.float16)", "type"),
    ],
)
def test_a_number_of_the_device_is_told_from_a_mask(expression: str, operation: str) -> None:
    # GIVEN an index that is one number, or may be many WHEN the line is read THEN they are two operations
    names = {"torch": torch, "x": torch.ones(2, 2), "j": torch.tensor(1), "order": torch.tensor([1, 0]), "n": 1}
    names["m"] = torch.tensor([True, False])
    assert operation_of(expression, "", names) == operation
