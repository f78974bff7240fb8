"""State that helpers of a parameterized function read, wherever it is kept: today's, as in eager calls."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import random
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import paramgraph_kit as pgk
from paramgraph_kit.backend.watched import Unchanged
from tests.integration import state_places
from tests.integration.state_objects import Base, Config, Derived
from tests.integration.state_places import CONTEXT, DICT, LIST, PLACES, SPACE, Read
from tests.integration.test_parameterize_sim import equal, launches, randn, reasons

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
DEVICE = pgk.device()  # at import: before any test of this process runs a backward


@pytest.fixture(autouse=True)
def _put_back(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(state_places, "NUMBER", 1.0)
    monkeypatch.setattr(Base, "factor", 1.0)
    monkeypatch.setattr(Config, "shared", 1.0)
    LIST[:] = [0.0, 1.0]
    DICT.clear()
    DICT.update(a={"b": [1.0]})
    SPACE.x = types.SimpleNamespace(y=1.0)
    yield
    for name in ("factor", "method"):
        if name in vars(Derived):
            delattr(Derived, name)
    os.environ.pop("PARAMGRAPH_TEST", None)
    sys.modules.pop("paramgraph_settings", None)
    CONTEXT.set(1.0)


@pytest.mark.parametrize("name", PLACES)
def test_what_a_helper_reads_is_todays(name: str) -> None:
    # GIVEN a function whose helper reads a value that is no argument
    read, change = PLACES[name]()

    def helper(x: Any) -> Any:
        return x * read()

    def run(x: Any) -> Any:
        return helper(x) + 1

    step = pgk.parameterize(run)
    for value in (None, None, 2.0, None, 3.0, 2.0, None):
        if value is not None:
            # WHEN it changes between calls
            change(value)
        x = randn(3)
        # THEN the result is eager's with today's value
        assert equal(step(x), run(x)), (name, value, reasons(step))
    # AND it runs from graphs all the same
    assert launches(step) >= {"cache": 0, "host_values": 0}.get(name, 3), reasons(step)


# A step does not look for the class of an object, or for names that only a getter made elsewhere has; and storage of a
# tensor on the host that a test of it has looked into is not resizable.
OUT_OF_SIGHT = {"type", "attribute_getter", "shape_in_place"}


@pytest.mark.parametrize("name", sorted(PLACES.keys() - OUT_OF_SIGHT))
def test_what_a_captured_step_reads_is_todays(name: str) -> None:
    # GIVEN a step that reads a value which is no argument WHEN it changes between calls THEN the next call sees it
    read, change = PLACES[name]()

    def run(x: Any) -> Any:
        return x * read() + 1

    step = pgk.parameterize(run, state=[])
    for value in (None, None, None, 2.0, None, None, 3.0, None):
        if value is not None:
            change(value)
        x = randn(3)
        assert equal(step(x), run(x)), (name, value, reasons(step))


@pytest.mark.parametrize("seed", range(6))
def test_random_programs_read_todays_state(seed: int) -> None:
    # GIVEN a program of several helpers, each of which reads a place through methods, closures or other helpers
    source = random.Random(seed)
    names = source.sample([n for n in PLACES if n not in ("length", "set")], 4)
    places = [PLACES[name]() for name in names]

    class Program:
        def __init__(self) -> None:
            self.reads = [source.choice([_plainly, _in_object, _in_dict, _twice])(read) for read, _ in places]

        def step(self, x: Any) -> Any:
            for read in self.reads:
                x = x * read() + 1
            return x

    program = Program()
    step = pgk.parameterize(program.step)
    for n in range(15):
        # WHEN any of them changes, or none
        if n % 3 == 2:
            source.choice(places)[1](source.choice([1.0, 2.0, 3.0]))
        x = randn(3)
        # THEN results are eager's
        assert equal(step(x), program.step(x)), (names, n, reasons(step))


def _plainly(read: Read) -> Read:
    return read


def _in_object(read: Read) -> Read:
    holder = types.SimpleNamespace(inner=types.SimpleNamespace(read=read))
    return lambda: holder.inner.read()


def _in_dict(read: Read) -> Read:
    table = {"helpers": [read]}
    return lambda: table["helpers"][0]()


def _twice(read: Read) -> Read:
    def again() -> float:
        return (read() + read()) / 2

    return functools.partial(again)


def test_what_changes_nothing_that_is_read_costs_no_trace() -> None:
    # GIVEN a trainer that counts and keeps a history outside of what its function reads
    class Trainer:
        def __init__(self) -> None:
            self.scale, self.steps, self.history = 2.0, 0, [0.0]

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    trainer = Trainer()
    step = pgk.parameterize(trainer.forward)
    for n in range(20):
        trainer.steps += 1
        trainer.history.append(float(n))
        assert equal(step(randn(2, seed=n)), randn(2, seed=n) * 2)
    # THEN there is one trace
    assert repr(step) == "Parameterized(forward, 1 traces)"
    assert launches(step) == 19


COUNTS = {"calls": 0}
LOG: list[int] = []
MEMORY: dict[int, Tensor] = {}


def counts(x: Tensor) -> Tensor:
    COUNTS["calls"] += 1
    return x * COUNTS["calls"]


def logs(x: Tensor) -> Tensor:
    LOG.append(len(LOG))
    return x + len(LOG)


def remembers(x: Tensor) -> Tensor:
    if x.shape[0] not in MEMORY:
        MEMORY[x.shape[0]] = torch.ones(x.shape[0], device=x.device)
    return x + MEMORY[x.shape[0]]


@pytest.mark.parametrize("fn", [counts, logs, remembers])
def test_what_a_function_writes_is_written_once_by_each_call(fn: Callable[[Tensor], Tensor]) -> None:
    # GIVEN a function that changes state of its own WHEN called through us
    COUNTS["calls"] = 0
    LOG.clear()
    MEMORY.clear()
    step = pgk.parameterize(lambda x: fn(x))
    results = [step(torch.ones(2, device=DEVICE)).tolist() for _ in range(4)]
    left = (dict(COUNTS), list(LOG))
    # THEN results and what is left are eager's, and nothing of the tracing stays behind
    COUNTS["calls"] = 0
    LOG.clear()
    kept = dict(MEMORY)
    MEMORY.clear()
    assert results == [fn(torch.ones(2, device=DEVICE)).tolist() for _ in range(4)]
    assert left == (COUNTS, LOG)
    assert all(type(value) is Tensor and value.tolist() == [1.0, 1.0] for value in kept.values())
    assert any(
        "the call assigns" in text or "hidden" in text or "a tensor that is no" in text for text in reasons(step)
    )


def reads_a_file() -> int:
    with open(__file__) as file:
        return len(file.readline())


BIG = np.ones(1)
NUMBER = 1.0
NUMBERS = iter(range(100))
COLLECTED: dict[str, float] = {}


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (lambda x: x * random.random(), "it draws random numbers on the host"),
        (lambda x: x * float(np.random.rand()), "it draws random numbers on the host"),
        (lambda x: x * (time.time() % 7), "it asks time"),
        (lambda x: x * (time.thread_time() + 1), "it asks thread_time"),
        (lambda x: x * (1 + pgk.cuda.memory_allocated() % 3), "it asks torch.cuda.memory_allocated"),
        (lambda x: x * (1 + pgk.cuda.max_memory_allocated() % 3), "it asks torch.cuda.max_memory_allocated"),
        (lambda x: x * next(NUMBERS), "NUMBERS is a range_iterator, which would advance while tracing only"),
        (lambda x: x * reads_a_file(), "it asks open"),
        (lambda x: x * float(BIG[0]), "BIG is an array of 800,000 bytes"),
    ],
)
def test_what_cannot_be_watched_is_refused_by_name(
    fn: Callable[[Tensor], Tensor], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a function that reads what nobody can watch
    monkeypatch.setitem(globals(), "BIG", np.ones(100_000))
    step = pgk.parameterize(fn)
    x = randn(2)
    # WHEN called THEN it runs as it is each time, and the report says why
    results = [step(x) for _ in range(3)]
    assert len(results) == 3
    assert launches(step) == 0
    assert any(text in each for each in reasons(step)), reasons(step)


def test_what_the_garbage_collector_runs_is_no_part_of_a_function() -> None:
    # GIVEN a collection in the midst of a function, and a callback that asks the time and keeps it
    def callback(_phase: str, _information: object) -> None:
        COLLECTED["called"] = time.perf_counter()

    def fn(x: Tensor) -> Tensor:
        gc.collect()
        return x * 2

    step = pgk.parameterize(fn)
    before = [*gc.callbacks]
    gc.callbacks.append(callback)
    # WHEN called THEN it is launched, and nothing is left with the collector
    try:
        for _ in range(4):
            x = randn(2)
            assert torch.equal(step(x), x * 2)
        assert gc.callbacks == [*before, callback]
    finally:
        gc.callbacks.remove(callback)
    assert COLLECTED.keys() == {"called"}
    assert launches(step) == 3, reasons(step)


@pytest.mark.parametrize("verify", ["first", "always"])
def test_verify_asks_the_function_itself(verify: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a function whose state changes without anybody noticing (the guard is switched off)
    step = pgk.parameterize(lambda x: x * NUMBER, verify=verify)
    x = randn(3)
    assert equal(step(x), x)
    monkeypatch.setattr(Unchanged, "__call__", lambda self: True)
    monkeypatch.setitem(globals(), "NUMBER", 3.0)
    # WHEN called THEN the result is the function's, not what was traced of it, and the report says so
    for _ in range(3):
        assert equal(step(x), x * 3)
    assert "a call gave other bits than the function itself" in " ".join(reasons(step))


class Hung:
    """What a library hangs on somebody else's layer."""

    by = 2.0


@pytest.mark.parametrize("kind", [Hung, dict], ids=["an object", "a dictionary"])
def test_what_hangs_on_a_layer_of_torchs_counts_whatever_it_is_called(kind: type) -> None:
    # GIVEN a layer of torch's with a private attribute that is not torch's, which a hook reads
    layer: Any = torch.nn.Linear(4, 4).to(pgk.device())
    layer._hung = kind()
    if kind is dict:
        layer._hung["by"] = 2.0

    def hook(module: Any, _given: Any, made: Tensor) -> Any:
        return made * (module._hung["by"] if kind is dict else module._hung.by)

    layer.register_forward_hook(hook)
    step, x = pgk.parameterize(layer), randn(2, 4)
    # WHEN it is written between calls THEN each call reads what it is now
    with torch.no_grad():
        for by in (2.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0):
            vars(layer._hung).update(by=by) if kind is Hung else layer._hung.update(by=by)
            assert torch.equal(step(x), layer(x)), by
    assert launches(step) >= 3


def test_a_model_without_memory_that_stands_for_others_is_called_with_theirs() -> None:
    # GIVEN an ensemble as torch.func has it: weights as arguments, and a model on the meta device that runs with them
    models = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).to(DEVICE).eval() for _ in range(3)]
    weights, buffers = torch.func.stack_module_state(models)
    base = models[0].to("meta")

    def ensemble(weights: Any, buffers: Any, x: Tensor) -> Any:
        def one(weights: Any, buffers: Any) -> Any:
            return torch.func.functional_call(base, (weights, buffers), (x,))

        return torch.vmap(one)(weights, buffers)

    made = pgk.parameterize(ensemble)
    for call in range(4):
        # WHEN called with weights that have changed THEN as eager, from a graph
        with torch.no_grad():
            weights["0.weight"].mul_(1.5)
        x = randn(3, 4, seed=call)
        assert equal(made(weights, buffers, x), ensemble(weights, buffers, x))
    assert reasons(made) == []
    assert launches(made) == 3


def test_what_a_library_notes_of_stand_ins_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a library that keeps a table of the types that it has met, as einops does
    folder = tmp_path / "site-packages"
    folder.mkdir()
    text = "met = {}\ndef twice(x):\n    met.setdefault(type(x), len(met))\n    return x * 2\n"
    (folder / "meets_types.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    library = importlib.import_module("meets_types")
    step = pgk.parameterize(lambda x: library.twice(x) + 1)
    # WHEN what uses it is called THEN it is launched, and no stand-in is left in the table
    for call in range(4):
        x = randn(3, seed=call)
        assert equal(step(x), x * 2 + 1)
    assert reasons(step) == []
    assert launches(step) == 3
    assert set(library.met) <= {Tensor}
