"""What a traced function does beside its operations: to what it finds, to what it is given, and where tracing fails.

Tracing runs its Python once or twice with stand-ins. Nothing of that may be seen: neither in what the function holds,
nor in what it is told of tensors that are none.
"""

from __future__ import annotations

import contextlib
import copy
import io
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import paramgraph_kit as pgk

CALLS = 4
Program = Callable[[], tuple[Callable[..., Any], Callable[[], Any]]]  # what is called, and what it leaves behind


def values(n: int = 0) -> torch.Tensor:
    return torch.arange(4.0, device=pgk.device()) + n


def nothing() -> None:
    return None


def adds_to_a_tensor_of_its_own() -> Any:
    kept = values()

    def call(x: torch.Tensor) -> torch.Tensor:
        kept.add_(1)
        return x + kept

    return call, lambda: kept


def adds_to_a_number_of_the_host() -> Any:
    kept = torch.zeros(())

    def call(x: torch.Tensor) -> torch.Tensor:
        kept.add_(1)
        return x + kept.item()

    return call, lambda: kept


def counts_in_an_array() -> Any:
    kept = np.zeros(2)

    def call(x: torch.Tensor) -> torch.Tensor:
        kept[0] += 1
        return x + float(kept[0])

    return call, kept.tolist


def counts_in_bytes() -> Any:
    kept = bytearray(2)

    def call(x: torch.Tensor) -> torch.Tensor:
        kept[0] += 1
        return x + kept[0]

    return call, lambda: kept


def takes_from_a_queue() -> Any:
    kept: queue.Queue[int] = queue.Queue()
    for n in range(10):
        kept.put(n)

    def call(x: torch.Tensor) -> torch.Tensor:
        return x + kept.get()

    return call, kept.qsize


def puts_into_a_queue() -> Any:
    kept: queue.Queue[int] = queue.Queue()

    def call(x: torch.Tensor) -> torch.Tensor:
        kept.put(1)
        return x + kept.qsize()

    return call, kept.qsize


def puts_into_a_simple_queue() -> Any:
    kept: queue.SimpleQueue[int] = queue.SimpleQueue()

    def call(x: torch.Tensor) -> torch.Tensor:
        kept.put(1)
        return x + kept.qsize()

    return call, kept.qsize


def sets_an_event() -> Any:
    kept = threading.Event()

    def call(x: torch.Tensor) -> torch.Tensor:
        if kept.is_set():
            return x * 2
        kept.set()
        return x * 3

    return call, kept.is_set


def starts_a_thread() -> Any:
    kept: list[int] = []

    def call(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=kept.append, args=(1,))
        thread.start()
        thread.join()
        return x + len(kept)

    return call, lambda: kept


def makes_a_text_of_a_tensor() -> Any:
    return lambda x: x * len(f"{x + 1}") + len(str(x)), nothing


def writes_and_reads_a_text() -> Any:
    kept = io.StringIO()

    def call(x: torch.Tensor) -> torch.Tensor:
        kept.write("a")
        return x + len(kept.getvalue())

    return call, kept.getvalue


def reads_a_text_on() -> Any:
    kept = io.StringIO("0\n1\n2\n3\n4\n5\n")
    return lambda x: x + int(kept.readline()), kept.tell


def counts_in_its_backward() -> Any:
    kept = [0]

    class Counting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            kept[0] += 1
            return gradient * kept[0]

    def call(x: torch.Tensor) -> Any:
        return Counting.apply(x)  # type: ignore[no-untyped-call]  # torch's

    return call, lambda: kept


def appends_to_a_list() -> Any:
    def call(x: torch.Tensor, given: list[Any]) -> torch.Tensor:
        given.append(x * 2)
        return x + 1

    return call, nothing


def takes_an_item() -> Any:
    def call(x: torch.Tensor, given: list[Any]) -> Any:
        return x * given.pop()

    return call, nothing


def sorts_a_list() -> Any:
    def call(x: torch.Tensor, given: list[Any]) -> Any:
        given.sort()
        return x * given[0]

    return call, nothing


def catches_item() -> Any:
    def call(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * 2 if x.sum().item() > 0 else x * 3
        except RuntimeError:
            return x

    return call, nothing


def suppresses_any() -> Any:
    def call(x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(Exception):
            if x.any():
                return x * 2
        return x

    return call, nothing


def catches_numpy() -> Any:
    def call(x: torch.Tensor) -> torch.Tensor:
        try:
            return x * float(x.cpu().numpy()[1])
        except Exception:
            return x

    return call, nothing


def catches_a_mask() -> Any:
    def call(x: torch.Tensor) -> torch.Tensor:
        try:
            return x[x > 1].sum()
        except Exception:
            return x

    return call, nothing


def catches_a_tensor_of_its_own() -> Any:
    kept = values()

    def call(x: torch.Tensor) -> torch.Tensor:
        try:
            return x + kept
        except Exception:
            return x

    return call, nothing


def catches_an_address() -> Any:
    def call(x: torch.Tensor) -> torch.Tensor:
        try:
            return x + float(x.data_ptr() > 0)
        except Exception:
            return x

    return call, nothing


def counts_on_a_class_below_another() -> Any:
    class Above:
        @classmethod
        def asked_for(cls) -> int:  # looked for in the class below, too, where it is not
            return int(vars(cls)["seen"])

    class Counter(Above):
        seen = 0

    def call(x: torch.Tensor) -> torch.Tensor:
        Counter.seen += 1
        return x * Counter.asked_for()

    return call, lambda: Counter.seen


def catches_a_copy() -> Any:
    def call(x: torch.Tensor) -> torch.Tensor:
        try:
            return copy.deepcopy(x) + 1
        except Exception:
            return x

    return call, nothing


PROGRAMS: list[Program] = [
    *(adds_to_a_tensor_of_its_own, adds_to_a_number_of_the_host, counts_in_an_array, counts_in_bytes),
    *(takes_from_a_queue, writes_and_reads_a_text, reads_a_text_on, counts_in_its_backward),
    *(appends_to_a_list, takes_an_item, sorts_a_list, makes_a_text_of_a_tensor),
    *(puts_into_a_queue, puts_into_a_simple_queue, sets_an_event, starts_a_thread),
    *(catches_item, suppresses_any, catches_numpy, catches_a_mask, catches_a_tensor_of_its_own),
    *(catches_an_address, catches_a_copy, counts_on_a_class_below_another),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda x: x.__name__)
def test_what_python_does_beside_operations_is_done_once_in_each_call(program: Program) -> None:
    # GIVEN the same program twice
    plain, expected = program()
    fn, left = program()
    made = pgk.parameterize(fn)
    lists = "given" in plain.__code__.co_varnames

    # WHEN both are called
    for n in range(CALLS):
        results = []
        for call, behind in ((plain, expected), (made, left)):
            x, given = values(n).requires_grad_(program is counts_in_its_backward), [3, 1, 2]
            y = call(x, given) if lists else call(x)
            if y.requires_grad:
                y.sum().backward()
            found = [v.tolist() if isinstance(v, torch.Tensor) else v for v in given]
            gradient = None if x.grad is None else x.grad.tolist()
            results.append((y.tolist(), found, gradient, str(behind())))

        # THEN their results, what they were given, and what they leave behind are the same
        assert results[1] == results[0], f"call {n}"


def test_a_mistake_that_eager_makes_too_may_be_caught() -> None:
    # GIVEN a function that catches what eager raises, too
    def call(x: torch.Tensor) -> torch.Tensor:
        try:
            return x + torch.ones(7, device=x.device)
        except RuntimeError:
            return x * 2

    made = pgk.parameterize(call)

    # WHEN it is called
    results = [made(values(n)).tolist() for n in range(3)]

    # THEN it is right, and graphed
    assert results == [(values(n) * 2).tolist() for n in range(3)]
    assert pgk.report(made).rows[0].launches


@pytest.mark.parametrize("whole", [False, True], ids=["function", "step"])
def test_an_argument_that_is_known_by_another_name_is_told(whole: bool) -> None:
    # GIVEN code that compares its argument with a tensor that it knows
    known = values(7)

    def call(x: torch.Tensor) -> torch.Tensor:
        return x * (3.0 if x is known else 1.0)

    made = pgk.parameterize(call, state=()) if whole else pgk.parameterize(call)

    # WHEN it is called with others and, once there are graphs, with that one
    xs = [values(n) for n in range(4)] + [known, values(1), known, known, values(2)]
    results = [made(x).tolist() for x in xs]

    # THEN each call is right, and the others come from graphs
    assert results == [call(x).tolist() for x in xs]
    assert sum(row.launches or 0 for row in pgk.report(made).rows) > 1


def test_an_identity_is_not_asked_of_a_stand_in() -> None:
    # GIVEN code that looks a tensor up by its identity
    x = values()
    factors = {id(x): 5.0}
    made = pgk.parameterize(lambda y: y * factors.get(id(y), 1.0))

    # WHEN it is called
    results = [made(x).tolist() for _ in range(3)]

    # THEN it is that of the tensor
    assert results == [(x * 5.0).tolist()] * 3


@pytest.mark.parametrize("inference", [False, True])
def test_numbers_of_the_host_may_be_written_by_whoever_shares_their_memory(inference: bool) -> None:
    # GIVEN a number on the host, and an array on the same memory
    with torch.inference_mode(inference):
        scale = torch.tensor(2.0)
    shared = scale.detach().numpy()
    made = pgk.parameterize(lambda x: x * (scale + 1))

    # WHEN that is written between calls, which no version counts
    results = []
    for n in range(CALLS):
        shared[...] = n
        results.append(made(values()).tolist())

    # THEN each call has today's
    assert results == [(values() * (n + 1)).tolist() for n in range(CALLS)]


@pytest.mark.parametrize("verify", ["off", "first"])
@pytest.mark.parametrize("first", ["one tensor", "two tensors"])
def test_one_tensor_given_twice_and_two_tensors_have_graphs_of_their_own(first: str, verify: str) -> None:
    # GIVEN a step that is given one tensor twice, and one that is given two
    step = pgk.parameterize(lambda x, y: x * 2 + y, state=(), verify=verify)

    # WHEN it is called the other way once there is a graph
    for n in range(8):
        x = values(n)
        y = x if (n < 4) == (first == "one tensor") else values(n + 100)

        # THEN each call is right
        assert step(x, y).tolist() == (x * 2 + y).tolist(), f"call {n}"
    assert repr(step).endswith("2 graphs)")


def test_a_copy_of_a_step_is_a_step_of_copies() -> None:
    # GIVEN a step on a module, with graphs
    model = torch.nn.Linear(4, 4).to(pgk.device()).requires_grad_(False)
    step = pgk.parameterize(model, state=model)
    for n in range(4):
        step(values(n))

    # WHEN it is copied
    other = copy.deepcopy(step)
    with torch.no_grad():
        model.weight.zero_()

    # THEN the copy has a module of its own, and graphs of its own
    expected = copy.deepcopy(model)
    expected.weight.copy_(other.__wrapped__.weight)
    for n in range(4):
        assert other(values(n)).tolist() == expected(values(n)).tolist()
        assert step(values(n)).tolist() == model(values(n)).tolist()
    assert repr(other).endswith("1 graph)")


@torch.library.custom_op("pgk_writes::add_to", mutates_args={"x"})
def add_to(x: torch.Tensor, y: torch.Tensor) -> None:
    x.add_(y)


@add_to.register_fake
def _(x: torch.Tensor, y: torch.Tensor) -> None:
    return None


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda x, kept: add_to(x * 2, x), "not-traceable: it calls pgk_writes::add_to, which writes its arguments"),
        (lambda x, kept: add_to(x, x * 2), "not-traceable: it calls pgk_writes::add_to, which writes its arguments"),
        (lambda x, kept: kept.add_(x), "hidden-tensor: it writes to a tensor that is no argument and no member"),
    ],
)
def test_what_no_trace_writes_is_said_in_words_of_our_own(write: Callable[..., Any], reason: str) -> None:
    # GIVEN a function whose own operation writes an argument, or that writes to a tensor of its closure
    kept = values()

    def step(x: torch.Tensor) -> torch.Tensor:
        write(x, kept)
        return x + kept

    # WHEN parameterized THEN it does what eager does, and the reason says what it wrote and what helps
    call = pgk.parameterize(step)
    for n in range(2):
        x, y, before = values(n), values(n), kept.clone()
        found = call(x)
        kept.copy_(before)
        assert torch.equal(found, step(y))
        assert torch.equal(x, y)
    (found,) = (f"{each.code}: {each.message}" for each in pgk.report(call).reasons)
    assert found.startswith(reason)
    assert found.endswith("pgk.parameterize(fn, state=[])")


def test_a_training_step_that_is_not_given_its_state_is_told_so() -> None:
    # GIVEN a step that trains what it finds in its closure
    model = torch.nn.Linear(4, 1).to(pgk.device())
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    # WHEN parameterized without state THEN it trains, ungraphed, and the reason says what to write, in words of our own
    call = pgk.parameterize(step)
    before = model.weight.detach().clone()
    call(torch.ones(2, 4, device=pgk.device()))
    assert not torch.equal(model.weight, before)
    (reason,) = pgk.report(call).reasons
    assert reason.code == "hidden-tensor"
    assert reason.message.startswith("it trains a tensor that is no argument and no member of a module")
    assert reason.message.endswith("pgk.parameterize(fn, state=[])")
