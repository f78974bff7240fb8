"""Frozen calls in use: training through them, their promise, what they return, and when they are left alone."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paramgraph_kit as pgk
from paramgraph_kit.backend.frozen import calls
from paramgraph_kit.backend.frozen.calls import CHECKED, FrozenCalls
from paramgraph_kit.backend.frozen.frame import obstacle_in
from paramgraph_kit.backend.registry import compiled_graphs
from tests.integration import test_frozen_calls
from tests.integration.test_frozen_calls import (
    DEVICE,
    Outer,
    frozen_of,
    rows,
    warmed,
)

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")


_fresh = test_frozen_calls._fresh  # for each test here, too


def test_calls_go_on_right_after_a_change() -> None:
    # GIVEN
    model = Outer().to(DEVICE)
    eager = copy.deepcopy(model)
    compiled = warmed(model, "dynamo", rows())

    # WHEN parameters move and settings change for good
    for each in (model, eager):
        torch.manual_seed(1)
        for parameter in each.parameters():
            parameter.data = torch.randn_like(parameter)
        setattr(each.blocks[0], "scale", 0.5)  # noqa: B010 - the type of a list's member is not known

    # THEN calls are right, and frozen anew without holding the old ones
    with torch.no_grad():
        for _ in range(6):
            x = rows()
            assert torch.equal(compiled(x), eager(x))
    assert len(frozen_of(compiled)._frozen) == 1


@pytest.mark.parametrize("guards", ["dynamo", "inputs"])
def test_training_through_frozen_calls_has_eagers_bits(guards: str) -> None:
    model = Outer().to(DEVICE)
    eager = copy.deepcopy(model)
    compiled = pgk.compile(model, guards=guards)
    optimizers = [torch.optim.SGD(each.parameters(), lr=1e-3) for each in (model, eager)]
    for _ in range(7):
        x = rows()
        for each, optimizer in zip((compiled, eager), optimizers, strict=True):
            optimizer.zero_grad()
            each(x).mean().backward()
            optimizer.step()
        for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    assert frozen_of(compiled)._frozen, frozen_of(compiled).reason


def test_inputs_promises_a_model_that_stays_and_says_when_it_has_not() -> None:
    # GIVEN guards of the inputs only
    model = Outer().to(DEVICE)
    compiled = warmed(model, "inputs", rows())

    # WHEN the promise is broken
    setattr(model.blocks[0], "scale", 9.0)  # noqa: B010 - the type of a list's member is not known

    # THEN a call within the next CHECKED says so
    def many() -> None:
        for _ in range(CHECKED + 1):
            compiled(rows())

    with torch.no_grad(), pytest.raises(pgk.PromiseError, match="promises that the model stays as it is"):
        many()


@pytest.mark.parametrize("guards", ["dynamo", "inputs"])
def test_calls_are_frozen_anew_where_dynamo_was_reset(guards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a model whose calls are frozen, and few calls that are watched for that
    monkeypatch.setattr(calls, "ATTEMPTS", 5)
    model = Outer().to(DEVICE)
    eager = copy.deepcopy(model)
    compiled = warmed(model, guards, rows())
    for scale in (0.5, 0.25):
        # WHEN what Dynamo has compiled is thrown away, where the promise ends, and the model changes
        torch._dynamo.reset()
        for each in (model, eager):
            setattr(each.blocks[0], "scale", scale)  # noqa: B010 - the type of a list's member is not known
        # THEN nothing is kept of it, no promise is broken, and calls are right and frozen again
        assert not frozen_of(compiled)._frozen
        with torch.no_grad():
            for _ in range(CHECKED + 2):
                x = rows()
                assert torch.equal(compiled(x), eager(x))
        assert len(frozen_of(compiled)._frozen) == 1, frozen_of(compiled).reason


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: (x.sin(), print("", end=""))[0], "graph|function|call"),
        (lambda x: {"a": x.sin(), "b": [x.cos(), 3]}, None),
        (lambda x: (x.sin(),), None),
        (lambda x: (x.sin(), [x.cos()]), None),  # as many tensors as there are items
        (lambda x: [(x.sin(),), x.cos(), ()], None),
        (lambda *xs: xs[0].sin(), None),
    ],
)
def test_what_is_returned_comes_back_in_the_same_shape(function: Callable[..., Any], reason: str | None) -> None:
    compiled = pgk.compile(function, guards="dynamo")
    with torch.no_grad():
        for _ in range(6):
            x = rows()
            ours, theirs = compiled(x), function(x)
            assert torch.utils._pytree.tree_structure(ours) == torch.utils._pytree.tree_structure(theirs)
            pairs = zip(*(torch.utils._pytree.tree_leaves(each) for each in (ours, theirs)), strict=True)
            assert all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)
    assert isinstance(compiled, FrozenCalls)
    assert bool(compiled._frozen) == (reason is None)
    if reason is not None and compiled.reason is not None:
        assert any(word in compiled.reason for word in reason.split("|"))


class Counter(nn.Module):
    """A module whose call changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.linear = 0, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Count, and go through the layer."""
        self.calls += 1
        y: Tensor = self.linear(x)
        return y


def test_a_call_with_side_effects_is_never_frozen() -> None:
    model = Counter().to(DEVICE)
    compiled = pgk.compile(model, guards="dynamo")
    with torch.no_grad():
        for _ in range(8):
            compiled(rows())
    assert model.calls == 8
    assert not frozen_of(compiled)._frozen


def test_a_compiled_module_stays_a_module() -> None:
    model = Outer().to(DEVICE)
    compiled = warmed(model, "dynamo", rows())

    assert isinstance(compiled, torch._dynamo.OptimizedModule)
    assert compiled._orig_mod is model
    assert list(dict(compiled.named_parameters())) == [f"_orig_mod.{n}" for n, _ in model.named_parameters()]
    assert repr(frozen_of(compiled)) == "FrozenCalls(1 kinds of calls, guards='dynamo')"


def test_a_paused_launcher_is_not_launched_from() -> None:
    model = Outer().to(DEVICE)
    compiled = warmed(model, "dynamo", rows())
    launchers = [launcher for graph in compiled_graphs() for launcher in graph.launchers]
    for launcher in launchers:
        launcher.pause()
    before = sum(launcher.ungraphed_calls for launcher in launchers)
    with torch.no_grad():
        compiled(rows())
    assert sum(launcher.ungraphed_calls for launcher in launchers) == before + 1


def test_an_unknown_kind_of_guards_is_an_error() -> None:
    with pytest.raises(pgk.UnsupportedError, match="guards='none': choose one of 'full', 'dynamo', 'inputs'"):
        pgk.compile(lambda x: x, guards="none")


@pytest.mark.parametrize("again", [copy.deepcopy, copy.copy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_compiled_module_is_compiled_and_freezes_calls_of_its_own(again: Callable[[Any], Any]) -> None:
    # GIVEN a module whose calls are frozen WHEN it is copied, and the copy's parameters change
    model = warmed(Outer().to(DEVICE), "dynamo", rows())
    other = again(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
        # THEN both compute with their own, from frozen calls
        for _ in range(6):
            x = rows()
            assert torch.equal(other(x), other._orig_mod(x))
            assert torch.equal(model(x), model._orig_mod(x))
    assert frozen_of(other) is not frozen_of(model)
    assert len(frozen_of(other)._frozen) == 1


# What Dynamo's code for a frame looks like from torch 2.15 on, which asks whether a profiler is there; and others.
AROUND = """
def frame(x, asked, utils):
    kept = None
    if asked:
        {inside}
    made = __compiled_fn_1(x)
    if kept is not None:
        utils.record_pregraph_bytecode_exit(kept)
    return made
"""


@pytest.mark.parametrize(
    ("inside", "why"),
    [
        ("kept = utils.record_pregraph_bytecode_enter()", None),
        ("kept = utils.something_else()", "besides its graph the function does "),
        ("kept = utils.record_pregraph_bytecode_enter(utils.something_else)", "besides its graph the function does "),
        ("return x", "besides its graph the function does "),
        ("kept = __compiled_fn_1(x)", "besides its graph the function does "),
    ],
)
def test_a_branch_around_a_mark_for_the_profiler_is_none_of_the_user_s(inside: str, why: str | None) -> None:
    # GIVEN the code of a frame in which a branch stands WHEN judged THEN it may only go around such marks
    code = compile(AROUND.format(inside=inside), "frame", "exec").co_consts[0]
    found = obstacle_in(code)
    assert found is None if why is None else str(found).startswith(why)


def test_a_callable_around_a_function_is_called_as_it_is() -> None:
    # GIVEN a partial, whose signature is that of the function in it, compiled
    layer = nn.Linear(3, 3).to(DEVICE)

    def scaled(x: Tensor, factor: float = 1.0) -> Tensor:
        y: Tensor = layer(x) * factor
        return y

    call = pgk.compile(functools.partial(scaled, factor=0.5), guards="dynamo")
    # WHEN called THEN nothing is taken for its arguments that is not
    with torch.no_grad():
        for k in range(6):
            x = torch.full((2, 3), float(k), device=DEVICE)
            assert torch.equal(call(x), scaled(x, 0.5))
