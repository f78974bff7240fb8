"""Whatever is given to ``diagnose``, a diagnosis comes out: objects that answer badly, results of every kind."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("count", "scale", "unset")

    def __init__(self) -> None:
        self.count, self.scale = 0, 1.0


class SlottedChild(Slotted):
    """One with a dictionary besides."""

    def __init__(self) -> None:
        super().__init__()
        self.more = 0


def refuses(self: Any, *args: Any) -> Any:
    raise ValueError("do not ask")


class AnswersNothing:
    def __getattr__(self, name: str) -> Any:
        raise ValueError(name)


class HidesItsDictionary:
    __dict__ = property(refuses)


class HidesItsClass:
    __class__ = property(refuses)


class ComparesNever:
    __eq__ = __bool__ = __len__ = __hash__ = __repr__ = __iter__ = refuses


class HasProperties:
    level = property(refuses)

    @property
    def other(self) -> int:
        raise RuntimeError("not yet")


class Meta(type):
    def __getattr__(cls, name: str) -> Any:
        raise ValueError(name)


class OfMeta(metaclass=Meta):
    value = 0


class DictionaryThatRefuses(dict[str, int]):
    copy = keys = values = items = refuses


class DictionaryOfNoKeys(dict[str, int]):
    keys = __iter__ = refuses


class AnswersNotEvenItsClass:
    __getattribute__ = refuses


@dataclass(frozen=True)
class Frozen:
    number: int = 0


def numbers() -> Iterator[int]:
    yield from range(99)


ODD: dict[str, Callable[[], Any]] = {
    "a property that raises": HasProperties,
    "no attributes": AnswersNothing,
    "no dictionary": HidesItsDictionary,
    "no class": HidesItsClass,
    "no comparison": ComparesNever,
    "a class that refuses": lambda: OfMeta,
    "a dictionary without keys": lambda: DictionaryOfNoKeys(a=1),
    "nothing at all": AnswersNotEvenItsClass,
    "a dictionary that refuses": lambda: DictionaryThatRefuses(a=1),
    "slots": Slotted,
    "slots and more": SlottedChild,
    "frozen": Frozen,
    "a generator": numbers,
    "a weak reference": lambda: weakref.ref(DEVICE.__class__),
    "a weak dictionary": lambda: weakref.WeakValueDictionary(),
    "a file": lambda: open(os.devnull, "rb"),  # noqa: SIM115 - the function's to close
    "a memory view": lambda: memoryview(b"abc"),
    "a lazy module": lambda: nn.LazyLinear(3),
    "a sparse tensor": lambda: torch.eye(3).to_sparse(),
    "a compressed tensor": lambda: torch.eye(3).to_sparse_csr(),
    "a quantized tensor": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
    "a nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "a meta tensor": lambda: torch.ones(2, device="meta"),
    "a bound method": lambda: HasProperties().__init__,  # type: ignore[misc]
    "a module": lambda: os,
    "a class": lambda: HasProperties,
    "a jit function": lambda: len,
}


@pytest.fixture
def collected(name: str) -> Iterator[None]:
    """Has what a test leaves go while its warnings are ignored: a file that nobody closed warns whenever it goes."""
    yield
    if name == "a file":
        gc.collect()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("collected")
# At each change each thing as an argument, which most looks go into, and in some other places; `make sweeps` has all.
@pytest.mark.parametrize(
    ("way", "name"),
    [
        pytest.param(way, name, marks=[pytest.mark.sweep] * ((n + m) % 2 if way != "argument" else 0))
        for n, way in enumerate(("argument", "closure", "result", "inside", "global"))
        for m, name in enumerate(ODD)
    ],
)
def test_a_diagnosis_comes_out_with_anything_in_reach(name: str, way: str) -> None:
    # GIVEN a function with a problem and an odd thing: given to it, around it, returned by it, or in a container
    odd = ODD[name]()
    x = torch.ones(3, device=DEVICE)

    def argument(x: torch.Tensor, thing: Any) -> Any:
        return x * x.sum().item()

    def closure(x: torch.Tensor) -> Any:
        return (x * x.sum().item(), type(odd) is int)[0]

    def result(x: torch.Tensor) -> Any:
        x * x.sum().item()
        return ODD[name]()

    holder = {"odd": odd, "more": [odd, (odd,)]}

    def inside(x: torch.Tensor) -> Any:
        return x * x.sum().item() * len(holder)

    scope: dict[str, Any] = {"thing": odd}
    exec("def around(x):\n    return (x * x.sum().item(), thing)[0]\n", scope)
    ways = {"argument": argument, "closure": closure, "result": result, "inside": inside, "global": scope["around"]}
    function: Any = ways[way]
    # WHEN diagnosed THEN that is a diagnosis, which knows the problem and can be shown
    found = pgk.diagnose(function, x, *((odd,) if way == "argument" else ()))
    assert found.codes == ("sync-item",), str(found)
    assert repr(found)
    assert str(found)


def test_what_changes_in_slots_is_told_and_put_back() -> None:
    # GIVEN an object without a dictionary that counts
    state = Slotted()

    def step(x: torch.Tensor) -> torch.Tensor:
        state.count += 1
        return x * state.scale

    # WHEN diagnosed THEN the counter is told at its line, and stands where it stood
    found = pgk.diagnose(step, torch.ones(3, device=DEVICE))
    assert found.codes == ("host-counter",), str(found)
    assert found.failure.frame is not None
    assert found.failure.frame.text == "state.count += 1"
    assert state.count == 0
    assert not hasattr(state, "unset")


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_lazy_module_is_told_that_it_must_be_called_first() -> None:
    # GIVEN a module whose parameters come with its first call, around a function
    model, size = nn.Sequential(nn.LazyLinear(3), nn.ReLU()), torch.ones(2, 4)

    def forward(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = model(size)
        return x * len(y)

    # WHEN diagnosed THEN that is a note, and no problem
    found = pgk.diagnose(forward, torch.ones(2, 4, device=DEVICE))
    assert not found, str(found)
    assert any("lazy" in note for note in found.notes), found.notes


def test_a_generator_function_is_told_as_one() -> None:
    # GIVEN a function that only makes a generator WHEN diagnosed THEN nothing is said to be in order
    def stream(x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield x * 2

    found = pgk.diagnose(stream, torch.ones(3, device=DEVICE))
    assert found.codes == ("empty-graph",)
    assert any("generator" in note for note in found.notes)


def test_a_cache_of_casts_around_a_function_is_told_and_without_it_nothing() -> None:
    # GIVEN a weight that learns, used under autocast which is entered outside of the function
    w = nn.Parameter(torch.ones(3, 3, device=DEVICE))

    def forward(x: torch.Tensor) -> torch.Tensor:
        return x @ w

    x = torch.ones(2, 3, device=DEVICE)
    # WHEN diagnosed there THEN the kept cast is told, once, at the line that casts
    with torch.autocast(DEVICE.type, torch.bfloat16):
        found = pgk.diagnose(forward, x)
    assert found.codes == ("autocast-cache",), str(found)
    assert found.failure.frame is not None
    assert found.failure.frame.text == "return x @ w"
    # and not where nothing is kept, or where no weight learns
    with torch.autocast(DEVICE.type, torch.bfloat16, cache_enabled=False):
        assert not pgk.diagnose(forward, x)
    with torch.autocast(DEVICE.type, torch.bfloat16), torch.no_grad():
        assert not pgk.diagnose(forward, x)


class MuteError(Exception):
    """An exception whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unusual(BaseException):
    """No Exception."""


def raising(error: BaseException) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        raise error

    return f


@pytest.mark.parametrize(
    "error", [MuteError(), Unusual(), GeneratorExit(), StopIteration()], ids=lambda e: type(e).__name__
)
def test_a_rewrite_of_what_raises_says_so(error: BaseException) -> None:
    # GIVEN a function that raises what few expect WHEN it is to be rewritten THEN that is told, and nothing is raised
    found = pgk.diagnose(raising(error), torch.ones(2, device=DEVICE), fix=True)
    assert found.codes == ("raises",)
    assert found.fix is not None
    assert "cannot be run" in found.fix.instead[0]


def test_a_rewrite_leaves_inputs_alone_that_have_no_numbers_to_move() -> None:
    # GIVEN inputs without data, or not dense WHEN a function of them is to be rewritten THEN nothing is raised
    for given in (torch.ones(4, device="meta"), torch.eye(3).to_sparse()):
        assert pgk.diagnose(lambda t: t * 2, given, fix=True).codes == ("empty-graph",)


def test_what_only_cuda_has_is_no_fault_of_the_function() -> None:
    if torch.cuda.is_available():
        pytest.skip("it is about the simulated device")
    # GIVEN what the simulated device has not: its own refusals, torch's and CUDA's
    from torch.nn.attention.flex_attention import flex_attention

    x, square = torch.ones(4, device=DEVICE), torch.ones(1, 1, 16, 16, device=DEVICE)
    for function in (
        lambda x: pgk.cuda.Stream().__cuda_stream__,
        lambda x: torch.zeros(4, device="cuda"),
        lambda x: torch.sparse.to_sparse_semi_structured(torch.ones(32, 32, device=DEVICE).half()),
        lambda x: pgk.cuda.Event(interprocess=True).ipc_handle(),
        lambda x: torch.nn.parallel.replicate(torch.nn.Linear(4, 2, device=DEVICE), [0]),
        lambda x: flex_attention(square, square, square),
        lambda x: x.untyped_storage().cuda(),
        lambda x: pgk.cuda.MemPool(use_on_oom=True),
    ):
        # WHEN diagnosed THEN it says that this is not known, and never that the function fails without a capture
        found = pgk.diagnose(function, x)
        assert "not-simulated" in found.codes, str(found)
        assert "raises" not in found.codes
    with pytest.raises(TypeError, match="'colour' is an invalid keyword argument"):
        pgk.cuda.Stream(colour=1)

    # and calls past torch, which it does not see, are a note
    def allocates(x: torch.Tensor) -> torch.Tensor:
        ctypes.c_void_p()
        return x * 2

    assert any("past torch" in note for note in pgk.diagnose(allocates, x).notes)


def test_a_value_that_is_no_number_does_not_change_from_call_to_call() -> None:
    assert not pgk.diagnose(lambda x: x * torch.tensor(float("nan")), torch.ones(2, device=DEVICE))


def test_a_rate_that_falls_with_a_count_on_the_cpu_is_frozen() -> None:
    # GIVEN Adagrad, which counts on the CPU and has no check of captures, with a decay and without
    for decay, codes in ((0.1, ("learning-rate-frozen",)), (0.0, ())):
        p = nn.Parameter(torch.ones(3, device=DEVICE))
        optimizer = torch.optim.Adagrad([p], lr_decay=decay)

        def step(x: torch.Tensor, p: Any = p, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss: Any = (p * x).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()  # type: ignore[no-any-return]

        assert pgk.diagnose(step, torch.ones(3, device=DEVICE)).codes == codes


class AnswersAll:
    def __getattr__(self, name: str) -> Any:
        return AnswersAll()

    def __call__(self, x: torch.Tensor) -> Any:
        return x * x.sum().item()


class AnswersWithErrors:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")

    def __call__(self, x: torch.Tensor) -> Any:
        return x * x.sum().item()


@pytest.mark.parametrize("kind", [AnswersAll, AnswersWithErrors])
def test_an_object_with_an_answer_to_everything_is_called_by_its_method(kind: type[Any]) -> None:
    # GIVEN an object that any attribute can be asked of, or none WHEN it is examined
    found = pgk.diagnose(kind(), torch.ones(3, device=pgk.device()))
    # THEN what its call does is told, and nothing that it answers
    assert found.codes == ("sync-item",)


def test_the_depth_of_recursion_is_put_back() -> None:
    # GIVEN a function that changes how deep Python goes WHEN it is examined THEN it is as before
    before = sys.getrecursionlimit()

    def deeper(x: torch.Tensor) -> torch.Tensor:
        sys.setrecursionlimit(before + 100)
        return x * 2

    pgk.diagnose(deeper, torch.ones(3, device=DEVICE))
    assert sys.getrecursionlimit() == before
