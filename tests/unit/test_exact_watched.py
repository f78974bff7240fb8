"""One watched call: what it has drawn, written and read for the first time, and on what its code ran."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from paramgraph_kit.backend.asked import LARGE, questions
from paramgraph_kit.step.names import Names
from paramgraph_kit.step.observe import Observation, observe, snapshot, value_of
from paramgraph_kit.step.streams import Streams
from tests.integration.launch_bench import DEVICE, DRIVER
from tests.unit.test_exact_steps import ones
from tests.unit.test_exact_tensors import Holding

SPACE: dict[str, Any] = {"__name__": "users", "__file__": __file__, "torch": torch}


def users(text: str, **named: Any) -> Any:
    """The function f of somebody's module, which has these global names."""
    space = SPACE | named
    exec(compile(text, __file__, "exec"), space)
    return space["f"]


def seen(function: Any, *args: Any, names: Names | None = None) -> Observation:
    given = [(f"x{n}", x) for n, x in enumerate(args)]
    return observe(DRIVER, lambda: function(*args), [("", function)], given, Names() if names is None else names)


def test_a_call_has_drawn_what_it_draws_and_nothing_of_before() -> None:
    # GIVEN random numbers that were drawn before WHEN calls are watched that draw none, some, and twice as many
    torch.rand(4, device=DEVICE)
    draw = "def f(x): return x + torch.rand(4, device=x.device)"
    none, some = seen(users("def f(x): return x + 1"), ones(4)), seen(users(draw), ones(4))
    twice = seen(users(draw + " + torch.rand(4, device=x.device)"), ones(4))
    # THEN each has drawn these
    assert none.random_increment == 0
    assert some.random_increment > 0
    assert twice.random_increment == 2 * some.random_increment
    assert not none.drew_on_host
    assert seen(users("def f(x): return x + torch.rand(4).sum()"), ones(4)).drew_on_host


def test_what_a_call_has_written_is_told_by_where_it_lies() -> None:
    # GIVEN tensors of the device and of the host, of which a call writes two, and leaves two WHEN watched
    given = [ones(2), torch.ones(2), ones(3), torch.ones(3)]
    found = seen(users("def f(a, b, c, d):\n a.add_(1)\n b.add_(1)\n return c + 1"), *given)
    # THEN both are told
    assert [t is given[0] for t in found.written] == [True]
    assert found.host_written == ["x1"]
    assert found.moved == []


def test_a_global_name_that_nobody_knew_of_is_told_unless_it_is_the_module_s_own() -> None:
    # GIVEN code that reads global names WHEN it runs for the first time, and again THEN they are new at first
    function = users("def g(x): return x * rate\ndef f(x): return inner[0](x), __name__", rate=2.0, inner=[None])
    function.__globals__["inner"][0] = function.__globals__["g"]
    names = Names()
    first = seen(function, ones(2), names=names)
    assert not any(name.startswith("__") for name in first.unforeseen)
    assert seen(function, ones(2), names=names).unforeseen == set()


class Counter:
    """Counts, in a method and in one with a variable of its own closure."""

    def __init__(self) -> None:
        self.count = 1

    def plain(self) -> int:
        return self.count

    def closed(self) -> Any:
        return (lambda: self.count)()


@pytest.mark.parametrize("compiled", [False, True])
def test_it_is_noted_on_what_code_ran_that_has_no_closure_and_while_nothing_compiled_has(compiled: bool) -> None:
    # GIVEN an object with two methods, of which one has a closure WHEN both run THEN the first is known to have met it
    names = Names(compiled=compiled)
    seen(lambda counter: (counter.plain(), counter.closed()), Counter(), names=names)
    met = {
        code.co_name: kinds
        for code, kinds in names._firsts.items()
        if Counter in kinds and code.co_name in ("plain", "closed")
    }
    assert met == ({} if compiled else {"plain": {Counter}})


@pytest.mark.parametrize(("nbytes", "compared"), [(LARGE - 1, True), (LARGE, True), (LARGE + 1, False)])
def test_an_array_is_compared_by_value_up_to_its_limit(nbytes: int, compared: bool) -> None:
    # GIVEN arrays of bytes WHEN one byte changes THEN it is seen in those that are small, and shapes in all
    array = np.zeros(nbytes, np.uint8)
    before = value_of(array)
    array[-1] = 1
    assert (value_of(array) != before) is compared
    assert value_of(array.reshape(1, -1)) != value_of(array)
    assert value_of(array.view(np.int8)) != value_of(array)
    # AND what objects are in one is nobody's bytes
    assert value_of(np.array([object()], dtype=object))[-1] == b""


def test_what_the_call_asks_of_the_world_is_told() -> None:
    # GIVEN code that asks for the time, and code that does not WHEN watched THEN the first is told
    assert seen(users("import time\ndef f(x): return x * time.time()"), ones(2)).asked is not None
    assert seen(users("def f(x): return x * 2"), ones(2)).asked is None


def test_tensors_of_a_module_that_torch_has_made_are_constants_of_its_code() -> None:
    # GIVEN a module of operations with a tensor of its own, which somebody's code calls WHEN watched THEN it is known
    made = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
    made.register_buffer("table", ones(3))
    x = made.graph.placeholder("x")
    made.graph.output(made.graph.call_function(torch.add, (x, made.graph.get_attr("table"))))
    made.recompile()
    names = Names()
    found = seen(lambda given: made(given), ones(3), names=names)
    assert found.result.tolist() == [2, 2, 2]
    assert [t is made.table for t in names.constants.values()] == [True]


def test_names_of_code_that_is_made_in_the_call_are_new_but_for_the_module_s_own() -> None:
    # GIVEN code that makes a function with global names of its own, and calls it WHEN watched THEN its name is new
    text = (
        "def f(x):\n space = {'rate': 2.0, '__name__': 'late'}\n exec('def h(x): return x * rate, __name__', space)\n"
    )
    found = seen(users(f"{text} return space['h'](x)"), ones(2))
    assert found.result[0].tolist() == [2, 2]
    assert "rate" in found.unforeseen
    assert not any(name.startswith("__") for name in found.unforeseen)


def test_only_plain_tensors_with_memory_are_looked_at() -> None:
    # GIVEN a plain tensor, a sparse one, and one that holds another WHEN a snapshot is taken THEN it is of the first
    plain, sparse, holding = ones(2), torch.eye(2).to_sparse(), Holding(ones(3))
    taken = snapshot([("plain", plain), ("sparse", sparse), ("holding", holding)], [], Names())
    assert list(taken.looks) == [id(plain), id(holding.whole)]
    assert {id(plain), id(sparse), id(holding)} <= taken.versions.keys()


@pytest.mark.parametrize(
    ("waits", "captures", "aside"),
    [(False, False, True), (True, False, False), (False, True, False), (True, True, False)],
)
def test_a_stream_is_aside_that_has_not_waited_and_is_in_no_capture_of_the_call_s(
    waits: bool, captures: bool, aside: bool
) -> None:
    # GIVEN a call that enters another stream, which has waited for its own or not, in a capture of the call's or not
    now = [7]
    driver: Any = SimpleNamespace(current_stream=lambda: now[0], is_capturing=lambda: captures)
    followed = Streams(driver)
    if waits:
        event = object()
        followed._forks.record(event, 7)
        followed._forks.wait(event, 9)
    # WHEN it is left again THEN a capture would not have it in the one case
    for stream in (7, 9, 9, 7):
        now[0] = stream
        followed.look("call", None)
    assert followed.aside is aside
    assert followed._captured == ({9} if captures and not waits else set())
    # AND once something has run on the call's own it is the same
    followed.look("c_call", torch.ones(1).add)
    assert followed.aside is aside


def test_an_object_of_a_class_without_a_module_is_asked_nothing() -> None:
    # GIVEN what a C extension may make WHEN asked THEN it is passed by
    assert questions(type("Bare", (), {"__module__": None})()) == []
