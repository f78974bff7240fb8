"""Sixty odd callables: whatever is called, a diagnosis comes out, or a sentence that says what to give instead."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import math
import operator
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the same code runs"),
    pytest.mark.filterwarnings("ignore"),
]
DEVICE = pgk.device()


@pytest.fixture(autouse=True)
def recovered() -> Iterator[None]:
    yield
    sys.settrace(None)
    sys.setprofile(None)
    pgk.diagnose.repair()


def refuses(self: Any, *args: Any) -> Any:
    raise RuntimeError("do not ask")


class Loops:
    """Asks itself for ever."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self, f"{name}_")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Refuses(Loops):
    __getattribute__ = refuses


class AnswersAll:
    def __getattr__(self, name: str) -> Any:
        return AnswersAll()

    def __call__(self, *args: Any) -> Any:
        return torch.ones(2, device=DEVICE) * 2


class NoCopy:
    __deepcopy__ = __copy__ = __reduce_ex__ = refuses

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return x * self.n


class NoComparison:
    __eq__ = __bool__ = __len__ = __repr__ = refuses
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Slotted:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return x * self.n


class StrangeError(Exception):
    __str__ = refuses


class NeverMindError(BaseException):
    pass


class Waits:
    def __init__(self, x: torch.Tensor) -> None:
        self.mean = x.mean().item()


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return self.nothing(x)  # type: ignore[operator]


def waits(x: torch.Tensor) -> Any:
    return x * x.sum().item()


def raises(error: BaseException) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        raise error

    return function


def forever(x: torch.Tensor) -> Any:
    return forever(x)


def generator(x: torch.Tensor) -> Iterator[Any]:
    yield x * 2


async def coroutine(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@contextlib.contextmanager
def manager(x: torch.Tensor) -> Iterator[Any]:
    yield x


def traced(x: torch.Tensor) -> torch.Tensor:
    sys.settrace(lambda *a: None)
    return x * 2


def profiled(x: torch.Tensor) -> torch.Tensor:
    sys.setprofile(lambda *a: None)
    return x * 2


def in_thread(x: torch.Tensor) -> torch.Tensor:
    thread = threading.Thread(target=lambda: x.sum().item())
    thread.start()
    thread.join()
    return x


def of_text(text: str, file: str) -> Any:
    names: dict[str, Any] = {}
    exec(compile(text, file, "exec"), names)
    return names["f"]


def scripted() -> Any:
    return torch.jit.script(nn.Linear(4, 4).to(DEVICE))


# what is called, and the codes that are told; None where any will do
ODD: dict[str, tuple[Callable[[], Any], tuple[str, ...] | None]] = {
    "abs": (lambda: abs, ()),
    "float of a part": (lambda: lambda x: float(x[0, 0]), ("sync-item",)),
    "list": (lambda: list, ()),
    "print": (lambda: print, ("print",)),
    "repr": (lambda: repr, ("print",)),
    "type": (lambda: type, ("empty-graph",)),
    "id": (lambda: id, ("empty-graph",)),
    "a class": (lambda: Waits, ("sync-item",)),
    "a class of torch's": (lambda: nn.Parameter, None),
    "an operator": (lambda: torch.sin, ()),
    "an operator that waits": (lambda: torch.nonzero, ("dynamic-shape",)),
    "a method of a class": (lambda: torch.Tensor.tolist, ("copy-to-cpu",)),
    "a method of a tensor": (lambda: torch.ones(3, 4, device=DEVICE).add, ()),
    "itemgetter": (lambda: operator.itemgetter(0), ()),
    "methodcaller": (lambda: operator.methodcaller("tolist"), ("copy-to-cpu",)),
    "math": (lambda: lambda x: math.sqrt(x.sum().abs()), ("sync-item",)),
    "map": (lambda: functools.partial(map, str), None),
    "partial of C": (lambda: functools.partial(torch.add, torch.ones(4, device=DEVICE)), ()),
    "partial of a partial": (lambda: functools.partial(functools.partial(waits)), ("sync-item",)),
    "partial of a module": (lambda: functools.partial(nn.Linear(4, 4).to(DEVICE)), ()),
    "lru_cache": (lambda: functools.lru_cache(lambda x: x * 2), None),
    "singledispatch": (lambda: functools.singledispatch(lambda x: x * 2), ()),
    "a generator function": (lambda: generator, ("empty-graph",)),
    "a coroutine function": (lambda: coroutine, ("empty-graph",)),
    "a context manager": (lambda: manager, ("empty-graph",)),
    "next": (lambda: itertools.count, None),
    "slots": (lambda: Slotted().step, ("scalar-frozen", "host-counter")),
    "it asks itself for ever": (Loops, None),
    "it refuses every question": (lambda: object.__new__(Refuses), ()),
    "it answers everything": (AnswersAll, None),
    "it cannot be copied": (NoCopy, ("scalar-frozen", "host-counter")),
    "it cannot be compared": (NoComparison, ()),
    "a strange exception": (lambda: raises(StrangeError()), ("raises",)),
    "a bare exception": (lambda: raises(NeverMindError("x")), ("raises",)),
    "GeneratorExit": (lambda: raises(GeneratorExit()), ("raises",)),
    "StopIteration": (lambda: raises(StopIteration(3)), ("raises",)),
    "MemoryError": (lambda: raises(MemoryError()), ("raises",)),
    "a group": (lambda: raises(ExceptionGroup("many", [ValueError("a")])), ("raises",)),
    "sys.exit": (lambda: lambda x: sys.exit(3), ("exits",)),
    "recursion": (lambda: forever, ("raises",)),
    "wrong arguments": (lambda: lambda: None, ("raises",)),
    "a forward that fails": (Broken, ("raises",)),
    "no forward": (nn.Module, ("raises",)),
    "a lazy module": (lambda: nn.LazyLinear(3), None),
    "a module on the CPU": (lambda: nn.Linear(4, 4), ("mixed-devices",)),
    "no modules": (nn.Sequential, ("empty-graph",)),
    "a list of modules": (lambda: nn.ModuleList([nn.Linear(4, 4)]), ("raises",)),
    "TorchScript": (scripted, ()),
    "a trace": (lambda: torch.jit.trace(lambda x: x * 2, torch.ones(3, 4, device=DEVICE)), ()),  # type: ignore[no-untyped-call]
    "compiled": (lambda: torch.compile(lambda x: x * 2, backend="eager"), None),
    "compiled, and it raises": (lambda: torch.compile(raises(ValueError("x")), backend="eager"), ("raises",)),
    "vmap": (lambda: torch.func.vmap(torch.sum), ()),
    "grad": (lambda: torch.func.grad(lambda x: x.sum()), ()),
    "another device": (lambda: lambda x: x.to("meta"), ()),
    "an index that is not there": (lambda: lambda x: x[100], ("raises",)),
    "a backward twice": (lambda: lambda x: x.requires_grad_().sum().backward() or x.backward(), ("raises",)),
    "exec": (lambda: of_text("def f(x):\n    return x * x.sum().item()", "<string>"), ("sync-item",)),
    "a cell": (lambda: of_text("def f(x):\n    return x[x > 0]", "<ipython-input-3-abc>"), ("dynamic-shape",)),
    "a file that is gone": (lambda: of_text("def f(x):\n\n    return x.sum().item()", "/gone/file.py"), ("sync-item",)),
    "no built-ins": (lambda: types.FunctionType(waits.__code__, {}), ("sync-item",)),
    "no lines": (lambda: types.FunctionType(waits.__code__.replace(co_linetable=b""), globals()), ("sync-item",)),
    "a static method": (lambda: staticmethod(waits), ("sync-item",)),
    "tracing": (lambda: traced, ()),
    "profiling": (lambda: profiled, ()),
    "a thread": (lambda: in_thread, ("work-elsewhere",)),
    "a file": (lambda: lambda x: io.StringIO().write("a"), None),
}


# With a fix all is done that is done without.
@pytest.mark.parametrize(
    "fix", [pytest.param(False, marks=pytest.mark.sweep, id="told"), pytest.param(True, id="fixed")]
)
@pytest.mark.parametrize("name", ODD)
def test_a_diagnosis_of_any_callable_comes_out(name: str, fix: bool) -> None:
    # GIVEN a callable of any kind WHEN it is diagnosed
    make, codes = ODD[name]
    found = pgk.diagnose(make(), torch.randn(3, 4, device=DEVICE), fix=fix)
    # THEN a diagnosis comes out that can be shown
    assert str(found)
    assert repr(found)
    assert str(found.fix)
    if codes is not None:
        assert set(found.codes) == set(codes), found


def test_an_interruption_is_the_users() -> None:
    with pytest.raises(KeyboardInterrupt):
        pgk.diagnose(raises(KeyboardInterrupt()))


@pytest.mark.parametrize("value", [None, 3, "text", [waits], property(waits)])
def test_what_is_no_callable_is_told_so(value: Any) -> None:
    with pytest.raises(pgk.ParamgraphError, match="pass a function and its arguments"):
        pgk.diagnose(value)


@dataclass
class State:
    """A dataclass has functions that a library wrote."""

    step: int = 0


class Counted(torch.autograd.Function):
    """A class that counts."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        Counted.calls += 1
        return x * 2


STATE, SLOTTED, MODE = State(), Slotted(), {"calls": 0}
WEIGHTS = {"a": torch.zeros(4, device=DEVICE), "b": torch.ones(4, device=DEVICE)}


def counts_in_a_dataclass(x: torch.Tensor) -> torch.Tensor:
    STATE.step += 1
    return x * 2


def counts_in_slots(x: torch.Tensor) -> torch.Tensor:
    SLOTTED.n += 1
    return x * 2


def counts_in_a_class(x: torch.Tensor) -> Any:
    return Counted.apply(x)  # type: ignore[no-untyped-call]


@torch.no_grad()
def counts_on_itself(x: torch.Tensor) -> torch.Tensor:
    counts_on_itself.calls += 1  # type: ignore[attr-defined]
    return x * 2


@torch.no_grad()
def reads_itself(x: torch.Tensor) -> torch.Tensor:
    return x * reads_itself.scale  # type: ignore[attr-defined, no-any-return]


vars(counts_on_itself)["calls"] = 0
vars(reads_itself)["scale"] = 2


def asks_for_what_a_count_decides(x: torch.Tensor) -> torch.Tensor:
    MODE["calls"] += 1
    hot = MODE["calls"] > 100
    phase = "hot" if hot else "cold"
    match phase:
        case "hot":
            return x.exp()
        case _:
            return x.sin()


def exchanges_two_entries(x: torch.Tensor) -> torch.Tensor:
    y = WEIGHTS["a"] + WEIGHTS["b"] * x
    WEIGHTS["a"] = WEIGHTS["a"] - y[0]
    WEIGHTS["b"] = WEIGHTS["b"] - y[1]
    return y


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (counts_in_a_dataclass, [("host-counter", "STATE.step += 1")]),
        (counts_in_slots, [("host-counter", "SLOTTED.n += 1")]),
        (counts_in_a_class, [("host-counter", "Counted.calls += 1")]),
        (counts_on_itself, [("host-counter", "counts_on_itself.calls += 1  # type: ignore[attr-defined]")]),
        (reads_itself, []),
        (
            asks_for_what_a_count_decides,
            [("host-counter", 'MODE["calls"] += 1'), ("branch-frozen", "match phase:")],
        ),
        (
            exchanges_two_entries,
            [
                ("stale-input", 'WEIGHTS["a"] = WEIGHTS["a"] - y[0]'),
                ("stale-input", 'WEIGHTS["b"] = WEIGHTS["b"] - y[1]'),
            ],
        ),
    ],
)
def test_state_is_found_wherever_it_is_kept(function: Any, expected: list[tuple[str, str]]) -> None:
    # GIVEN state in a dataclass, in slots, in a class, on a function that torch wraps, behind names, in a dictionary
    # WHEN diagnosed
    found = pgk.diagnose(function, torch.randn(3, 4, device=DEVICE))
    # THEN each is told at the line that writes or asks
    assert [(f.code, f.frame.text) for f in found.failures if f.frame] == expected


def test_an_error_in_a_package_names_the_users_line_and_the_packages(tmp_path: Path) -> None:
    # GIVEN a package that branches on the device
    folder = tmp_path / "site-packages" / "their_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("def step(x):\n    if x.sum() > 0:\n        return x * 2\n    return x\n")
    names = types.ModuleType("their_package")
    exec(compile((folder / "__init__.py").read_text(), str(folder / "__init__.py"), "exec"), vars(names))
    x, graph = torch.ones(2, device=DEVICE), pgk.cuda.CUDAGraph()
    # WHEN its capture fails
    with pytest.raises(Exception) as caught, pgk.cuda.graph(graph):  # noqa: PT011 - of the device's own
        names.step(x)
    (found,) = pgk.diagnose(caught.value).failures
    # THEN both lines are told; and the package's alone where nothing of the user's was running
    assert found.code == "data-dependent-branch"
    assert found.frame is not None
    assert found.frame.text == "names.step(x)"
    assert "inside site-packages/their_package/__init__.py:2" in found.message
    pgk.diagnose.repair()
    errors: list[BaseException] = []
    thread = threading.Thread(target=_fails, args=(names.step, x, errors))
    thread.start()
    thread.join()
    (alone,) = pgk.diagnose(errors[0].with_traceback(_below(errors[0], "their_package"))).failures
    assert alone.frame is not None
    assert alone.frame.text == "if x.sum() > 0:"


def _fails(step: Any, x: torch.Tensor, errors: list[BaseException]) -> None:
    try:
        with pgk.cuda.graph(pgk.cuda.CUDAGraph()):
            step(x)
    except BaseException as error:
        while error.__context__ is not None:
            error = error.__context__
        errors.append(error)


def _below(error: BaseException, name: str) -> Any:
    found = error.__traceback__
    while found is not None and name not in found.tb_frame.f_code.co_filename:
        found = found.tb_next
    return found


def test_another_thread_that_asks_or_needs_memory_is_told_as_such() -> None:
    # GIVEN threads that ask for an event, and that need memory
    def asks(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=lambda: pgk.cuda.Event().query())
        thread.start()
        thread.join()
        return x * 2

    def needs(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=lambda: torch.empty(1 << 20, device=DEVICE))
        thread.start()
        thread.join()
        return x * 2

    x = torch.ones(2, device=DEVICE)
    # WHEN diagnosed THEN it is that
    assert pgk.diagnose(asks, x).codes == ("background-query",)
    assert pgk.diagnose(needs, x).codes == ("background-memory",)


def test_functions_of_one_code_are_said_to_be_counted_together() -> None:
    # GIVEN two closures of one factory, compiled and called, one of them at two sizes
    def make(n: int) -> Any:
        def function(x: torch.Tensor) -> torch.Tensor:
            return x * n + 1

        return function

    one, other = (torch.compile(make(n), backend="paramgraph", dynamic=True) for n in (2, 3))
    for size in (4, 6, 4, 6):
        one(torch.ones(size, device=DEVICE))  # type: ignore[no-untyped-call]
    other(torch.ones(4, device=DEVICE))  # type: ignore[no-untyped-call]
    # WHEN diagnosed THEN what cannot be told apart is said, and what another size does
    notes = pgk.diagnose(one).notes
    assert any("2 functions have this code" in note for note in notes)
    assert any("runs ungraphed once and is captured then" in note for note in notes), notes
