"""Containers that are replaced by equal ones between steps, and written later: what they hold then counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paramgraph_kit as pgk

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")


class Settings:
    """Of which each is read in every step."""

    def __init__(self) -> None:
        self.scale, self.inside, self.nested = {"by": 1.0}, ([2.0],), [[3.0]]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.settings, self.shifts, self.table, self.chosen = Settings(), [1.0], {"more": [1.0]}, {4.0}

    def forward(self, x: Tensor) -> Tensor:
        by = self.settings.scale["by"] + self.settings.inside[0][0] + self.settings.nested[0][0]
        return x * by + sum(self.shifts) + sum(self.table["more"]) + sum(self.chosen)


def shifts(net: Net) -> None:
    net.shifts = list(net.shifts)


def scale(net: Net) -> None:
    net.settings.scale = dict(net.settings.scale)


def inside(net: Net) -> None:
    net.settings.inside = (list(net.settings.inside[0]),)


def nested(net: Net) -> None:
    net.settings.nested = [list(net.settings.nested[0])]


def table(net: Net) -> None:
    net.table = {"more": list(net.table["more"])}


def item(net: Net) -> None:
    net.table["more"] = list(net.table["more"])


def chosen(net: Net) -> None:
    net.chosen = set(net.chosen)


WRITES: dict[Callable[[Net], None], Callable[[Net], Any]] = {
    shifts: lambda net: net.shifts.append(5.0),
    scale: lambda net: net.settings.scale.update(by=6.0),
    inside: lambda net: net.settings.inside[0].append(7.0) or net.settings.inside[0].reverse(),  # type: ignore[func-returns-value]
    nested: lambda net: net.settings.nested[0].insert(0, 8.0),
    table: lambda net: net.table["more"].append(9.0),
    item: lambda net: net.table["more"].append(10.0),
    chosen: lambda net: net.chosen.add(11.0),
}


@pytest.mark.parametrize("replace", WRITES)
def test_what_an_equal_container_holds_later_counts(replace: Callable[[Net], None]) -> None:
    # GIVEN a step that is launched, and a container of its model that an equal one replaces
    net = Net()

    @torch.no_grad()
    def step(x: Tensor) -> Any:
        return net(x)

    launched, x = pgk.parameterize(step, state=net), torch.ones(3).to(pgk.device())
    for n in range(12):
        if n == 5:
            replace(net)
        # WHEN the new one is written, some launches later
        if n == 8:
            WRITES[replace](net)
        # THEN each call is what eager code computes
        assert torch.equal(launched(x), net(x)), n
    # AND launches go on
    assert pgk.report(launched).rows[0].launches >= 8


class Named(dict[str, float]):
    """Items are attributes, and what is not there is a KeyError."""

    def __getattr__(self, name: str) -> float:
        return self[name]


class Table(dict[str, float]):
    by: float


class Row(list[float]):
    by: float


class Slotted(list[float]):
    __slots__ = ("by",)
    by: float


class Counted(list[float]):
    """It is iterated otherwise than it lies."""

    def __init__(self) -> None:
        super().__init__([0.0])

    def __iter__(self) -> Any:
        return iter(range(1))

    @property
    def by(self) -> float:
        return self[0]

    @by.setter
    def by(self, by: float) -> None:
        self[0] = by


class Later(Row):
    """It is not there yet."""

    def __len__(self) -> int:
        raise RuntimeError("not now")


class Empty(dict[str, float]):
    """It says so, whatever is in it."""

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0

    def items(self) -> Any:
        return []

    @property
    def by(self) -> float:
        return self["by"]


class Pair(tuple[float, ...]):
    """The same of a tuple."""

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0

    @property
    def by(self) -> float:
        return self[0]


def made(kind: Any, by: float) -> Any:
    if kind in (Named, Empty):
        return kind(by=by)
    if kind is Pair:
        return Pair((by,))
    found = kind()
    found.by = by
    return found


@pytest.mark.parametrize("run", [True, False])
@pytest.mark.parametrize("kind", [Named, Table, Row, Slotted, Counted, Later, Empty, Pair])
def test_attributes_of_somebodys_container_count(kind: Any, run: bool) -> None:
    # GIVEN a step that reads an attribute of a container of the user's own class, which an equal one replaces
    net = nn.Linear(4, 4).to(pgk.device())
    net.own = made(kind, 2.0)

    @torch.no_grad()
    def step(x: Tensor) -> Any:
        return net(x) * net.own.by  # type: ignore[union-attr]

    launched, x = pgk.parameterize(step, **({"state": net} if run else {})), torch.ones(3, 4).to(pgk.device())
    # WHEN the next has another attribute THEN each call is what eager code computes
    for n in range(12):
        if n in (5, 8):
            net.own = made(kind, n - 3.0)
        assert torch.equal(launched(x), step(x)), n
    assert sum(row.launches for row in pgk.report(launched).rows) >= 6


class Adapted(nn.Module):
    """A layer with two adapters, of which one is chosen as peft chooses: a new list, and who needs gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4)
        self.adapters = nn.ModuleDict({"one": nn.Linear(4, 4), "two": nn.Linear(4, 4)})
        self.choose("one")

    def choose(self, name: str) -> None:
        self.active = [name]
        for each, adapter in self.adapters.items():
            adapter.requires_grad_(each == name)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.base(x)
        for name in self.active:
            found = found + self.adapters[name](x)
        return found


@pytest.mark.parametrize("training", [False, True])
def test_adapters_that_take_turns_have_a_graph_each(training: bool) -> None:
    # GIVEN a step whose adapters are frozen in turn
    models, calls = [], []
    for _ in range(2):
        torch.manual_seed(0)
        model = Adapted().to(pgk.device())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Tensor, model: Any = model, optimizer: Any = optimizer) -> Any:
            if not training:
                with torch.no_grad():
                    return model(x)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        models.append(model)
        calls.append(pgk.parameterize(step, state=(model, optimizer)) if not models[1:] else step)
    # WHEN each call chooses the other one
    for n in range(14):
        for model in models:
            model.choose("two" if n % 2 else "one")
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(n)).to(pgk.device())
        # THEN it is equal to eager code
        assert torch.equal(*[call(x) for call in calls]), n
        assert all(torch.equal(a, b) for a, b in zip(*[m.parameters() for m in models], strict=True)), n
    # AND both graphs stay
    report = pgk.report(calls[0])
    assert report.rows[0].launches >= 8
    assert report.reasons == ()
