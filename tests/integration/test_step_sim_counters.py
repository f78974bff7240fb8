"""What people count beside a step, on modules that it runs: launched where no code reads it, named where some does."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.backend.code_names import reads_of

DEVICE = pgk.device()
COUNTERS = ("iter", "step_count", "step", "total", "size", "count", "n_calls", "weight", "epoch", "numel", "t")


class Net(nn.Module):
    """A network of a physics problem, which counts its iterations for the log."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)


class Weighted(Net):
    """One that uses its count."""

    iter = 0

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x) * (1 + self.iter)


class Delegating(Net):
    """One whose number is read by a method of torch's, called with this self."""

    eps = 1e-5

    def __init__(self) -> None:
        super().__init__()
        self.normalized_shape, self.weight, self.bias, self.eps = (2,), None, None, 1e-5

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(nn.LayerNorm.forward(self, x))  # type: ignore[arg-type]


def trained(kind: type[Net]) -> tuple[nn.Module, Callable[..., Any], Any]:
    torch.manual_seed(0)
    net = kind().to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, capturable=True)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return net, step, optimizer


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    x, y = torch.randn(8, 2, generator=generator), torch.randn(8, 1, generator=generator)
    return x.to(DEVICE), y.to(DEVICE)


@pytest.mark.parametrize("name", COUNTERS)
def test_a_count_that_no_code_reads_of_the_module_makes_no_other_graph(name: str) -> None:
    # GIVEN a count of iterations, under a name that code of torch's has for something of its own
    net, body, optimizer = trained(Net)
    _, twin, _ = trained(Net)
    step = pgk.parameterize(body, state=(net, optimizer))
    # WHEN it is another at each call
    for number in range(6):
        setattr(net, name, number)
        assert torch.equal(step(*batch(number)), twin(*batch(number)))
    # THEN one graph is launched
    (row,) = pgk.report(step).rows
    assert (row.executables, row.launches) == (1, 4)


@pytest.mark.parametrize(("kind", "name"), [(Weighted, "iter"), (Delegating, "eps")])
def test_a_count_that_code_reads_is_named_with_its_line(kind: type[Net], name: str) -> None:
    # GIVEN a module whose number is used, by its own code or by a layer of torch's that is given it
    (net, body, optimizer), (other, twin, _) = trained(kind), trained(kind)
    step = pgk.parameterize(body, state=(net, optimizer))
    # WHEN it is another at each call THEN each computes with it
    for number in range(8):
        for each in (net, other):
            setattr(each, name, 0.5 * number)
        assert torch.equal(step(*batch(number)), twin(*batch(number)))
        if number == 3:  # and before the refusal it is said what the graphs are captured anew for
            assert f"each call is a new one: net.{name} holds something else" in str(pgk.report(step))
    # THEN the refusal names it
    (reason,) = pgk.report(step).reasons
    assert reason.code == "changing-scalar"
    assert f"net.{name} is a number" in reason.message
    if kind is Weighted:  # and the user's line
        assert reason.frame is not None
        assert "self.iter" in reason.frame.text


class Calling(Net):
    """One that tries whether its attribute can be called."""

    count: Any

    def forward(self, x: torch.Tensor) -> Any:
        try:
            return self.layers(x) * self.count()
        except TypeError:
            return self.layers(x)
        except AttributeError:
            return self.layers(x) * 3


class Matching(Net):
    """One that matches itself, by a name and by its place."""

    __match_args__ = ("count",)
    count = 1

    def forward(self, x: torch.Tensor) -> Any:
        match self:
            case Matching(2):
                return self.layers(x)
            case Matching(count=n):
                return self.layers(x) * n


def callable_then(net: Any, number: int) -> None:
    net.count = number if number < 4 else lambda: 2.5


def counted(net: Any, number: int) -> None:
    net.count = number


@pytest.mark.parametrize(
    ("kind", "change"), [(Calling, callable_then), (Calling, delattr), (Matching, counted), (Matching, delattr)]
)
@pytest.mark.parametrize("verify", ["off", "first"])
def test_a_number_that_is_matched_deleted_or_becomes_a_function_is_seen(kind: Any, change: Any, verify: Any) -> None:
    # GIVEN code that reads a number without saying so, or does otherwise where it is none
    (net, body, optimizer), (other, twin, _) = trained(kind), trained(kind)
    for each in (net, other):
        each.count = 1  # type: ignore[assignment]
    step = pgk.parameterize(body, state=(net, optimizer), verify=verify)
    # WHEN it changes THEN each call computes with what it is
    for number in range(7):
        for each in (net, other):
            if change is not delattr:
                change(each, number)
            elif number == 4:
                del each.count
        assert torch.equal(step(*batch(number)), twin(*batch(number)))


class Other:
    """What counts, and is no module."""

    count = 1


class Choosing(Net):
    """One that reads the number of another object, where there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.other = Other()
        self.other.count = 1

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x) * (self.other or self).count


LIBRARY = """
class Config:
    pass

class Proxy:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def scaled(self, x):
        return x * self.count

def passed_on(name):
    return property(lambda self: getattr(self.inner, name))

class Shown:
    count = passed_on("count")

    def __init__(self, inner):
        self.inner = inner

    def scaled(self, x):
        return x * self.count

def through(config, x):
    return Proxy(config).scaled(x)

def shown(config, x):
    return Shown(config).scaled(x)

def listed(config, x):
    for name in ("count", "size"):
        x = x * getattr(config, name, 1)
    return x

def keyed(config, x):
    return x * [getattr(config, name) for name in {"count": 1, "other": 2} if hasattr(config, name)][0]

def matched(config, x):
    match config:
        case Config(count=number):
            return x * number
"""


def test_a_number_of_another_object_than_the_first_is_seen() -> None:
    # GIVEN code that reads a number of its own object, or of another one, at one place
    net = Choosing().to(DEVICE)
    step = pgk.parameterize(lambda x: net(x).detach(), state=(net,), verify="off")
    # WHEN it changes THEN each call computes with what it is
    for number in range(7):
        net.other.count = 1 if number < 4 else 2
        x = batch(number)[0]
        assert torch.equal(step(x), net(x).detach())


@pytest.mark.parametrize("name", ["through", "shown", "listed", "keyed", "matched"])
def test_a_number_that_a_library_reads_without_saying_so_is_seen(name: str) -> None:
    # GIVEN an installed package that reads a number through a proxy, by a name in a tuple, or by a pattern
    space: dict[str, Any] = {"__name__": "library"}
    exec(compile(LIBRARY, "/opt/python/site-packages/library/core.py", "exec"), space)
    config, scaled = space["Config"](), space[name]
    step = pgk.parameterize(lambda x: scaled(config, x), state=(config,), verify="off")
    # WHEN it changes THEN each call computes with what it is
    for number in range(7):
        config.count = 1 if number < 4 else 2
        x = batch(number)[0]
        assert torch.equal(step(x), scaled(config, x))


def test_what_c_compares_whole_is_read_whole() -> None:
    # GIVEN a step that compares namespaces, and names nothing of theirs
    now, then = types.SimpleNamespace(scale=1.0), types.SimpleNamespace(scale=1.0)
    step = pgk.parameterize(lambda x: x * (2 if now == then else 3), state=(now, then))
    # WHEN one changes THEN it is seen
    for number in range(6):
        now.scale = 1.0 if number < 4 else 2.0
        x = batch(number)[0]
        assert torch.equal(step(x), x * (2 if number < 4 else 3))


def test_other_arguments_at_each_call_are_told() -> None:
    # GIVEN / WHEN a step that gets another shape at each call
    net, body, optimizer = trained(Net)
    step = pgk.parameterize(body, state=(net, optimizer))
    for rows in (2, 3, 4, 5):
        step(*(x[:rows].clone() for x in batch(rows)))
        step(*(x[:rows].clone() for x in batch(rows)))
    # THEN
    told = str(pgk.report(step))
    assert "each call is a new one: its arguments have other shapes" in told or "never launched" not in told


def test_attributes_are_told_from_what_is_only_called() -> None:
    # GIVEN / WHEN / THEN code in all the ways in which it names an attribute
    namespace: dict[str, Any] = {}
    exec(
        "def first(self): return self.n\n"
        "def kept(self): self.n = 1\n"
        "def called(self): return self.n()\n"
        "def other(self, x): return x.n\n"
        "def inner(self): return [self.n for _ in range(3)]\n"
        "def rebound(self):\n  self = self.child\n  return self.n\n"
        "def text(self): return getattr(self, 'n')\n"
        "def globally(self): return n\n"
        "def chosen(self, x): return (x or self).n\n"
        "def written(self, x):\n  (x if x else self).n = 3\n",
        namespace,
    )
    found = {name: reads_of(f.__code__, "n") for name, f in namespace.items() if name != "__builtins__"}
    inner = "any" if sys.version_info < (3, 12) else "first"  # since then a comprehension is part of its function
    assert found == {"first": "first", "kept": "first", "called": "none", "other": "any", "inner": inner,
                     "rebound": "any", "text": "any", "globally": "none",
                     "chosen": "any", "written": "any"}  # fmt: skip


def test_switches_among_the_arguments_are_counted_each_by_itself() -> None:
    # GIVEN a step with three arguments that are true or false
    total = torch.zeros(4, device=pgk.device())

    def add(x: torch.Tensor, twice: bool, negated: bool, squared: bool) -> torch.Tensor:
        x = x * 2 if twice else x
        x = -x if negated else x
        return total.add_(x.square() if squared else x).clone()

    step, known = pgk.parameterize(add, state=(total,)), torch.zeros(4)
    for n in range(27):
        # WHEN each of the eight ways is taken in turn
        chosen = [bool(n >> k & 1) for k in range(3)]
        x = torch.full((4,), 1.0 + n)
        wanted = (-1 if chosen[1] else 1) * x * (2 if chosen[0] else 1)
        known += wanted.square() if chosen[2] else wanted
        # THEN it is right, AND all are launched
        assert step(x.to(pgk.device()), *chosen).tolist() == known.tolist()
    report = pgk.report(step)
    assert (report.rows[0].executables, report.reasons) == (8, ())


def test_a_number_that_graphs_hold_alike_is_no_further_value() -> None:
    # GIVEN a step with many graphs, for each of its other numbers, and a number that had one value in all of them
    net = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.0), nn.Linear(8, 1)).to(DEVICE)
    scales = {"first": 1.0, "second": 1.0, "third": 1.0}

    def step(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = net(x) * scales["second"] * scales["third"] * scales["first"]
        return y.detach()

    made = pgk.parameterize(step, state=(net, scales), verify="off")
    for second in (1.0, 2.0, 3.0):
        for third in (1.0, 2.0):
            scales.update(second=second, third=third)
            for number in range(2):
                made(batch(number)[0])
    # WHEN it changes for the first time THEN that is the second value that it has, and is captured and launched
    scales["first"] = 5.0
    before = pgk.report(made).rows[0].launches
    for number in range(3):
        x = batch(number)[0]
        assert torch.equal(made(x), step(x))
    report = pgk.report(made)
    assert report.reasons == ()
    assert report.rows[0].launches == before + 2
