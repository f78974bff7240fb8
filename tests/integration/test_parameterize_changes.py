"""Whatever code reads may change between calls, by any means of Python's: both verbs give today's value, or refuse."""

from __future__ import annotations

import builtins
import decimal
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import paramgraph_kit as pgk
from tests.integration.changes import CHANGES, NEVER_THE_SAME
from tests.integration.changes.base import FILE, Thing, linear, ones
from tests.integration.test_parameterize_sim import equal, launches, randn, reasons

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
DEVICE = pgk.device()  # at import: before any test of this process runs a backward
VALUES = (None, None, None, 2.0, None, None, 3.0, None, 2.0, None, None)  # where there is one, the change comes first
VERBS: dict[str, dict[str, Any]] = {"function": {}, "step": {"state": []}}


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    threads, arguments, path = torch.get_num_threads(), list(sys.argv), list(sys.path)
    forward, softsign = torch.nn.Softsign.forward, F.softsign
    yield
    torch.nn.Softsign.forward, F.softsign = forward, softsign  # type: ignore[method-assign]
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.autograd.set_detect_anomaly(False)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    torch.nn.modules.module._global_forward_hooks.clear()
    threading.current_thread().name = "MainThread"
    decimal.getcontext().prec = 28
    sys.argv[:], sys.path[:] = arguments, path
    for owner in (builtins, decimal, F):
        vars(owner).pop("paramgraph_test", None)
    for name in ("paramgraph_settings", "paramgraph_reloaded"):
        sys.modules.pop(name, None)
    for suffix in (".txt", ".npy", ".pt"):
        FILE.with_suffix(suffix).unlink(missing_ok=True)


# Each with one of the verbs at each change, which look at what code reads alike; `make sweeps` has both.
@pytest.mark.parametrize(
    ("name", "verb"),
    [
        pytest.param(name, verb, marks=[pytest.mark.sweep] * ((n + m) % 2))
        for n, name in enumerate(sorted(CHANGES.keys() - NEVER_THE_SAME))
        for m, verb in enumerate(VERBS)
    ],
)
def test_what_code_reads_is_todays(name: str, verb: str) -> None:
    # GIVEN code that reads a value which is no argument
    read, change = CHANGES[name]()

    def run(x: Any) -> Any:
        return x * read() + 1

    step = pgk.parameterize(run, **VERBS[verb])
    for number, value in enumerate(VALUES):
        if value is not None:
            # WHEN it changes between calls
            change(value)
        # THEN the result is eager's with today's value
        x = randn(3)
        assert equal(step(x), run(x)), (name, number, reasons(step))
    # AND it is launched, or the report says why not
    assert launches(step) >= 2 or reasons(step)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", sorted(NEVER_THE_SAME))
def test_what_answers_otherwise_each_time_is_asked_in_each_call(name: str, verb: str) -> None:
    # GIVEN code that takes the next of something, or asks the world outside; and what it gives without us
    read, _ = CHANGES[name]()
    without = [read() for _ in range(8)]
    read, _ = CHANGES[name]()
    asked = []

    def run(x: Any) -> Any:
        asked.append(read())
        return x * asked[-1]

    step = pgk.parameterize(lambda x: x * read(), **VERBS[verb])
    # WHEN called THEN it runs as it is each time: nothing was taken by a trace or a capture
    found = [step(torch.ones(1, device=DEVICE)).item() for _ in range(8)]
    if name not in ("time", "caller", "random_bytes"):
        assert found == pytest.approx(without)
    # AND the report says why
    assert launches(step) == 0
    assert reasons(step)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "read",
    [
        lambda x: getattr(x, "scale", 1.0),
        lambda x: x.scale if hasattr(x, "scale") else 1.0,
        lambda x: vars(x).get("scale", 1.0),
        lambda x: float(len(vars(x)) + 1),
    ],
    ids=["getattr", "hasattr", "vars", "length"],
)
def test_an_attribute_that_only_some_arguments_have(read: Callable[[Any], float], verb: str) -> None:
    # GIVEN code that asks its argument for an attribute WHEN only some have it, or another value THEN each gets its own
    step = pgk.parameterize(lambda x: x * read(x), **VERBS[verb])
    for value in (None, None, None, None, 2.0, None, 3.0, 3.0, None, None):
        x = torch.ones(2, device=DEVICE)
        if value is not None:
            x.scale = value  # type: ignore[attr-defined]
        assert equal(step(x), x * read(x)), (value, reasons(step))


@pytest.mark.parametrize("verb", VERBS)
def test_plain_results_are_of_the_kinds_that_they_were(verb: str) -> None:
    # GIVEN results that are no tensors: a shape, a dtype, a number, nothing
    def run(x: Any) -> Any:
        return {"shape": x.shape, "more": [x.dtype, x.ndim, None, x.size(), (x.shape,)], "y": x * 2}

    step = pgk.parameterize(run, **VERBS[verb])
    for _ in range(5):
        # WHEN called THEN they are what eager gives, of the same classes
        x = randn(3, 2)
        found, expected = step(x), run(x)
        assert type(found["shape"]) is torch.Size
        assert [type(each) for each in found["more"]] == [type(each) for each in expected["more"]]
        assert type(found["more"][4][0]) is torch.Size
        assert equal(found["y"], expected["y"])
    assert launches(step) >= 2, reasons(step)


def test_a_global_that_hides_a_builtin(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a function that calls a builtin WHEN a notebook's cell defines one of its name THEN that one is called
    for options in VERBS.values():
        step = pgk.parameterize(lambda x: x * abs(-1.0), **options)
        x = torch.ones(2, device=DEVICE)
        for _ in range(4):
            assert equal(step(x), x)
        with monkeypatch.context() as patch:
            patch.setitem(globals(), "abs", lambda _: 5.0)
            assert equal(step(x), x * 5)
        assert equal(step(x), x)


def test_the_folder_of_files_is_left_clean() -> None:
    # GIVEN the file that some of these write WHEN they are done THEN nothing is left of it
    assert not os.path.exists(FILE)


class Slotted:
    __slots__ = ("__weakref__", "factor")

    def __init__(self) -> None:
        self.factor = 2.0


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("made", [Thing, Slotted, linear, ones], ids=["object", "slots", "layer", "tensor"])
def test_what_is_referred_to_weakly_may_die(made: Callable[[], Any], verb: str) -> None:
    # GIVEN code that asks whether something lives, and counts others that are held as weakly
    things = [made()]
    ref, living = weakref.ref(things[0]), weakref.WeakSet(things)

    def run(x: Any) -> Any:
        return x * (5.0 if ref() is None else getattr(ref(), "factor", 1.0)) + len(living)

    step = pgk.parameterize(run, **VERBS[verb])
    assert all(equal(step(x), run(x)) for x in (randn(3) for _ in range(4)))
    # WHEN nobody else holds it any more
    things.clear()
    gc.collect()
    # THEN neither do launches, and calls see that it is gone
    assert ref() is None
    assert launches(step) or made is not Thing, reasons(step)
    assert all(equal(step(x), x * 5.0) for x in (randn(3) for _ in range(4)))


def test_a_layer_of_torch_s_whose_forward_the_user_replaced_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN layers of torch's whose forward is a function of the user's
    monkeypatch.setattr(torch.nn.ReLU, "forward", _gated)
    layer = torch.nn.ReLU()
    run = pgk.parameterize(lambda x: layer(x))
    # WHEN a function of torch's that this calls is another one from some call on
    for number in range(6):
        if number == 3:
            monkeypatch.setattr(F, "softsign", F.tanh)
        x = randn(2, 3)
        # THEN each call runs today's
        assert equal(run(x), layer(x)), number


def _gated(_: torch.nn.ReLU, x: torch.Tensor) -> torch.Tensor:
    return F.softsign(x)


class Scaled:
    """Two numbers, which a pattern takes by name or by place."""

    __match_args__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 1.0


@pytest.mark.parametrize("inside", ["keyword", "place", "sequence"])
def test_what_a_pattern_takes_of_an_object_is_read_at_each_call(inside: str) -> None:
    # GIVEN a function whose pattern reads an attribute, which its code does not name as one
    held = Scaled()

    def f(x: torch.Tensor) -> torch.Tensor:
        match held if inside != "sequence" else [held]:
            case Scaled(scale=s) if inside == "keyword":
                return x * s
            case Scaled(s):
                return x * s
            case [Scaled(scale=s)]:
                return x * s
        return x

    function = pgk.parameterize(f)
    # WHEN it is another THEN each call computes with it
    with torch.no_grad():
        for number in range(6):
            held.scale = 1.0 + number // 3
            x = torch.full((2, 3), float(number)).to(pgk.device())
            assert torch.equal(function(x), x * held.scale)
