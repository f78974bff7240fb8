"""What parameterize or torch.compile returned, called by what is parameterized."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.driver.tensors import same_bits
from tests.integration.test_parameterize_sim import equal, launches, randn

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
DEVICE = pgk.device()


class Tail:
    """An object of the user's that holds what parameterize returned."""

    def __init__(self) -> None:
        self.scale = 1.0
        self.layer = pgk.parameterize(nn.Linear(4, 4).to(DEVICE))

    def __call__(self, x: torch.Tensor) -> Any:
        return self.layer(x) * self.scale


@pytest.mark.parametrize("inner_first", [False, True])
def test_what_parameterize_returned_is_traced_as_a_part_of_a_larger_function(inner_first: bool) -> None:
    # GIVEN a function that calls another one that is parameterized, which reads a number of the user's
    tail = Tail()
    inner = pgk.parameterize(tail)
    outer = pgk.parameterize(lambda x: (inner(x) + inner(x * 2)).relu())

    def eager(x: torch.Tensor) -> Any:
        layer = tail.layer.__wrapped__
        return (layer(x) * tail.scale + layer(x * 2) * tail.scale).relu()

    with torch.no_grad():
        for call in range(6):
            x = randn(3, 4, seed=call)
            if inner_first:
                inner(x)
            if call == 4:  # WHEN that number, or a weight, changes THEN so do the results
                tail.scale = 3.0
            if call == 5:
                tail.layer.__wrapped__.weight = nn.Parameter(randn(4, 4, seed=9))
            assert equal(outer(x), eager(x))
            assert equal(inner(x), tail.layer.__wrapped__(x) * tail.scale)
    # AND all comes from graphs
    for each in (outer, inner):
        assert launches(each) >= 4
        assert {reason.code for reason in pgk.report(each).reasons} <= {"not-called"}


def test_what_torch_compile_returned_is_named_where_it_is_called() -> None:
    # GIVEN a compiled function and a compiled module, each called by a function that is parameterized
    layer = nn.Linear(4, 4).to(DEVICE)
    layer.compile(backend="paramgraph")
    for inner in (torch.compile(torch.sin, backend="paramgraph"), layer):

        def outer(x: torch.Tensor, inner: object = inner) -> torch.Tensor:
            return inner(x) * 2  # type: ignore[operator, no-any-return]

        made = pgk.parameterize(outer)
        # WHEN called THEN it runs as it is
        for call in range(3):
            x = randn(3, 4, seed=call)
            assert equal(made(x), outer(x))
        # AND the report says why, at the line
        (reason,) = pgk.report(made).reasons
        assert reason.message.startswith("it calls what torch.compile returned")
        assert reason.frame is not None
        assert reason.frame.function == "outer"


def test_another_thread_calls_what_it_has_compiled_while_this_one_traces() -> None:
    # GIVEN a function and a model that another thread has compiled, and a function that waits for it while it is traced
    linear = nn.Linear(4, 4).to(DEVICE).requires_grad_(False)

    def doubled(x: torch.Tensor) -> Any:
        return linear(x) * 2

    compiled: Any = torch.compile(doubled, backend="paramgraph")
    x, seen = randn(3, 4), list[Any]()
    expected = [compiled(x), linear(x)]
    started, done = threading.Event(), threading.Event()

    def other() -> None:
        started.wait(30)
        try:
            seen.extend([compiled(x), linear(x)])
        except RuntimeError as error:
            seen.append(error)
        done.set()

    def slow(x: torch.Tensor) -> torch.Tensor:
        started.set()
        done.wait(30)
        return x.sin() + 1

    thread = threading.Thread(target=other)
    thread.start()
    # WHEN it is called meanwhile THEN it gives what it always gives
    fast = pgk.parameterize(slow)
    assert same_bits(fast(x), slow(x))
    thread.join()
    assert [same_bits(a, b) for a, b in zip(seen, expected, strict=True)] == [True, True]
    # AND nothing is left of the trace
    assert not torch.fx._symbolic_trace.is_fx_symbolic_tracing()
    assert vars(torch.fx._symbolic_trace)["torch"] is torch
