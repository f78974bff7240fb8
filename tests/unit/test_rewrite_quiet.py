"""What counts as code that only computes: what it calls by name is looked into."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import torch

from paramgraph_kit.rewrite.source.quiet import is_quiet
from paramgraph_kit.rewrite.source.writes import filled


class Memory:
    """Something of a user's that keeps what it is given under a name that tensors have, too."""

    def __init__(self) -> None:
        self.held: list[Any] = []

    def add(self, value: torch.Tensor) -> torch.Tensor:
        """Keeps it."""
        self.held.append(value)
        return value


class Net(torch.nn.Module):
    """A module of a user's, with what it does in methods."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.memory, self.seen = torch.nn.ModuleList([torch.nn.Linear(2, 2)]), Memory(), 0

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        """Only computes."""
        outs = []
        for layer in self.layers:
            outs.append(layer(x).relu())
        return torch.stack(outs).sum(0)

    def counting(self, x: torch.Tensor) -> torch.Tensor:
        """Counts as well."""
        self.seen += 1
        return x


class Computes(Net):
    """Calls a method that only computes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """That."""
        return self.helper(x) + torch.cat([part * 2 for part in x.chunk(2)])


class Counts(Net):
    """Calls a method that counts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """That."""
        return self.counting(x)


class Keeps(Net):
    """Gives what it has to an object that keeps it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """That."""
        return self.memory.add(x)


class KeepsElsewhere(Net):
    """Gives what it has to a local object, by a method that tensors have, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """That."""
        for memory in [self.memory]:
            memory.add(x)
        return x


class KeepsInside(Net):
    """The same in a comprehension."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """That."""
        return torch.stack([self.memory.add(part) for part in x])


NOISY = (Counts, Keeps, KeepsInside, KeepsElsewhere)


@pytest.mark.parametrize(("kind", "quiet"), [(Computes, True), *((kind, False) for kind in NOISY)])
def test_methods_that_a_module_calls_are_looked_into(kind: type[Net], quiet: bool) -> None:
    # GIVEN a module that calls methods of its own, or of what it has WHEN asked THEN what these do counts
    assert is_quiet(kind()) is quiet


FILLS = {
    "def f(x, m):\n    x[m] = 0\n    return x": {"x"},
    "def f(x, k):\n    row = x[0]\n    row.fill_(k)": {"x"},
    "def f(x, p):\n    late = x.cumsum(-1) > p\n    late[0] = False\n    return late": set(),
    "def f(x, y):\n    for part in x.chunk(2):\n        part += y": {"x"},
    "def f(x):\n    kept = []\n    kept.append(x)\n    kept[0].zero_()": {"x"},
    "def f(x):\n    torch.nn.init.zeros_(x)": None,
    "def f(x):\n    table[0] = x": None,
    "def f(x):\n    held = table\n    held.add_(x)": None,
    "def f(self, x):\n    self.x = x": None,
    "def f(x):\n    print(x)": None,
    "def f(x):\n    return torch.add(x, 1, out=x)": None,
}


@pytest.mark.parametrize(("text", "names"), FILLS.items())
def test_what_a_function_writes_into_is_told_by_its_text(text: str, names: set[str] | None) -> None:
    # GIVEN a function WHEN asked whose tensors it writes into THEN its parameters are told, or that it may be others'
    function = ast.parse(text).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert filled(function) == names
