"""Numbers of the host's that every step moves: where they live, and what they are called there."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch

from paramgraph_kit.doctor.restore.holder import Holder
from paramgraph_kit.rewrite.proving.proof import Prover


@dataclass(slots=True)
class Counter:
    """A number that a step moves: where it lives, and what it is called there."""

    holder: Holder
    key: Any  # of an object or a dictionary; None of a variable
    real: bool  # it has been a float
    value: Any
    made: bool = False  # in the first step
    called: frozenset[str] = frozenset()  # other names of the dictionary, ``state`` of ``state = self.states[p]``
    owner: str = ""  # the function that has it: ``step`` of ``step.calls``
    others: frozenset[str] = frozenset()  # names of functions and modules, none of which has it

    @property
    def name(self) -> str:
        """Its last name."""
        return self.holder.name if self.key is None else str(self.key)

    def is_at(self, node: ast.AST) -> bool:
        """Whether an expression is this number, as far as its names tell."""
        if self.holder.kind in ("global", "cell"):
            return isinstance(node, ast.Name) and node.id == self.name
        if self.holder.kind == "attributes":
            if not isinstance(node, ast.Attribute) or node.attr != self.name:
                return False
            first = node.value.id if isinstance(node.value, ast.Name) else ""
            return first == self.owner if self.owner else first not in self.others
        if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
            return False
        owner = node.value.id if isinstance(node.value, ast.Name) else getattr(node.value, "attr", "")
        return node.slice.value == self.key and (owner == self.holder.name or owner in self.called)

    def tensor(self, device: torch.device) -> Any:
        """A tensor for it."""
        return torch.tensor(self.value, dtype=torch.float64 if self.real else torch.int64, device=device)

    def begun(self, start: int) -> Any:
        """What it holds where it begins at another number."""
        return start

    def held(self) -> Any:
        """What it holds now; None where nothing does."""
        if self.made:
            return None
        held = self.holder.read()
        return held if self.holder.kind in ("cell", "global") else held.get(self.name if self.key is None else self.key)

    def put(self, value: Any) -> None:
        """Hold another value."""
        if self.made:
            return  # the next first step makes it anew
        if self.holder.kind == "cell":
            self.holder.target.cell_contents = value
        else:
            self.holder.target[self.name if self.key is None else self.key] = value


class Listed(Counter):
    """A list of such numbers, which becomes a list of the elements of one tensor."""

    def is_at(self, node: ast.AST) -> bool:
        """Whether an expression is one of these numbers, as far as its names tell."""
        return (
            isinstance(node, ast.Subscript)
            and not isinstance(node.slice, ast.Slice)
            and isinstance(node.value, (ast.Name, ast.Attribute))
            and last_of(node.value) == self.name
        )

    def tensor(self, device: torch.device) -> Any:
        """Tensors for them."""
        return list(torch.tensor(self.value, device=device))

    def begun(self, start: int) -> Any:
        """The same in all places."""
        return [start] * len(self.value)

    def held(self) -> Any:
        """The list itself, whose entries are followed."""
        return self.holder.target

    def put(self, value: Any) -> None:
        """Hold other values."""
        self.holder.target[:] = value


def counters(prover: Prover) -> list[Counter]:
    """The variables, attributes and entries that hold a number which steps move."""
    found = []
    for holder, key, seen, made in prover.numbers().moved:
        owner, others = _owners(prover, holder)
        real = any(type(value) is float for value in seen)
        found.append(Counter(holder, key, real, seen[0], made, owner=owner, others=others))
    return found


def _owners(prover: Prover, holder: Holder) -> tuple[str, frozenset[str]]:
    """The name of the function that has a number, if one has it, and those of functions and modules that do not."""
    space = {name: value for each in prover.state.functions for name, value in each.__globals__.items()}
    held = {name: vars(v) is holder.target for name, v in space.items() if isinstance(v, (FunctionType, ModuleType))}
    owners = [name for name, own in held.items() if own and isinstance(space[name], FunctionType)]
    return next(iter(owners), ""), frozenset(name for name, own in held.items() if not own)


def listed(prover: Prover) -> list[Counter]:
    """The lists of whole numbers that steps move."""
    return [Listed(holder, None, False, list(values[0])) for holder, values in prover.numbers().listed]


@contextmanager
def kept(found: Sequence[Counter], device: torch.device) -> Iterator[None]:
    """While this lasts the living numbers are tensors."""
    for counter in found:
        counter.put(counter.tensor(device))
    try:
        yield
    finally:
        for counter in found:
            counter.put(counter.value)


def last_of(node: ast.AST) -> str:
    """The last name of what an expression is: ``n`` of ``self.n`` and of ``state["n"]``."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return node.slice.value
    while isinstance(node, (ast.Subscript, ast.Starred)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def pieces(target: ast.AST) -> list[ast.expr]:
    """What an assignment gives something to, one by one."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return [each for part in target.elts for each in pieces(part)]
    return [target] if isinstance(target, ast.expr) else []
