"""What the host computes of a number that a capture reads, up to where tensors take it: ``np.sqrt(self.kT * c)``."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, written_out
from paramgraph_kit.doctor.observe.multiplied import Parents
from paramgraph_kit.doctor.observe.tensors_for_numbers import HOSTS

_DEEP = 4  # variables of which the next one is computed


@dataclass(frozen=True, slots=True)
class Part:
    """One number of the host's that tensors take."""

    name: str  # the variable that has it, or what it is called by; "" of the number itself
    text: str  # as it is written where tensors take it
    value: str  # and without variables of the function's
    taken: ast.expr
    is_called: bool  # a function of the host's gives it, which takes no tensor


class HostParts:
    """What a function computes with numbers of ``paths`` alone."""

    def __init__(self, nodes: Sequence[ast.AST], parents: Parents, paths: Collection[str]) -> None:
        self.nodes, self.parents, self.paths = nodes, parents, {*paths}
        self.given = _given_once(nodes, self.paths)

    def whole(self, node: ast.expr) -> Any:
        """The largest expression of the host's around a number; of variables where the host's function needs them."""
        narrow = _of_the_host(node, self.parents, self.paths)
        wide = _of_the_host(narrow, self.parents, {*self.paths, *self.given})
        return wide if _has_call(wide, narrow) else narrow

    def named(self, whole: ast.expr) -> str:
        """The variable that is given it, or ""."""
        above: Any = self.parents.get(whole)
        named = isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name) and above.targets[0].id
        return named or ""

    def reads(self, name: str) -> list[ast.Name]:
        """Where a variable is read."""
        names = (n for n in self.nodes if isinstance(n, ast.Name) and n.id == name)
        return [n for n in names if isinstance(n.ctx, ast.Load)]

    def parts(self, node: ast.expr, without: Collection[ast.expr] = (), deep: int = _DEEP) -> list[Part] | None:
        """What tensors take of a number, with what the host's functions make of variables that have it."""
        whole = self.whole(node)
        name, called = self.named(whole), any(isinstance(n, ast.Call) for n in ast.walk(whole))
        value = ast.unparse(written_out(whole, self.given))
        if not name:
            own = f"{last_name(node)}_{last_name(_outer(whole))}" if called and deep < _DEEP else ""
            return [Part(own, ast.unparse(whole), value, whole, called)]
        found = list[Part]()
        for read in self.reads(name):
            if read in without:
                continue
            larger = _of_the_host(read, self.parents, {*self.paths, *self.given, name})
            if larger is not read and _has_call(larger, read):
                if name not in self.given or deep == 0:
                    return None
                if (more := self.parts(read, (), deep - 1)) is None:
                    return None
                found += more
            else:
                taken = _of_the_host(read, self.parents, {*self.paths, name})
                found.append(Part(name, name, value, taken, called))
        return found

    def with_torch(self, node: Any) -> tuple[Any, list[str]] | None:
        """What a number is taken by behind functions of the host's, with torch's for these; None where it has none."""
        said, top = list[str](), node
        while isinstance(above := self.parents.get(top), (ast.BinOp, ast.UnaryOp, ast.Call)):
            if isinstance(above, ast.Call):
                if top not in above.args or not is_hosts(above.func):
                    break
                owner = last_name(above.func.value) if isinstance(above.func, ast.Attribute) else ""
                if owner not in HOSTS or not hasattr(torch, last_name(above.func)) or len(above.args) > 1:
                    return None
                said.append(f"`torch.{last_name(above.func)}` for `{ast.unparse(above.func)}`")
                node = above
            top = above
        return node, said


def _given_once(nodes: Sequence[ast.AST], paths: set[str]) -> dict[str, ast.expr]:
    """Variables that are given once what numbers alone make: ``c = float(np.exp(-self.dt))``."""
    stores = Counter(n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load))
    given = dict[str, ast.expr]()
    found = [n for n in nodes if isinstance(n, ast.Assign) and len(n.targets) == 1]
    for node in sorted(found, key=lambda n: n.lineno):
        into = node.targets[0]
        once = isinstance(into, ast.Name) and stores[into.id] == 1 and into.id not in paths
        if once and _is_number(node.value, {*paths, *given}):
            given[into.id] = written_out(node.value, given)  # type: ignore[attr-defined]
    return given


def _has_call(wide: ast.expr, narrow: ast.expr) -> bool:
    """Whether a function of the host's takes what is computed of ``narrow``, within ``wide``."""
    calls = [n for n in ast.walk(wide) if isinstance(n, ast.Call) and n is not narrow]
    return any(any(each is narrow for each in ast.walk(call)) for call in calls)


def _outer(whole: ast.expr) -> ast.expr:
    """The function of the host's that is called first in it."""
    return next(n.func for n in ast.walk(whole) if isinstance(n, ast.Call))


def _of_the_host(node: Any, parents: Parents, paths: set[str]) -> Any:
    """The largest expression around a number of which all is the host's."""
    while isinstance(above := parents.get(node), (ast.BinOp, ast.UnaryOp, ast.Call, ast.Subscript)):
        if isinstance(above, ast.Subscript) and (node is above.value or ast.unparse(above.value) not in paths):
            break
        if isinstance(above, ast.Call) and not (is_hosts(above.func) and node is not above.func):
            break
        whole = ast.iter_child_nodes(above)
        parts = above.args if isinstance(above, ast.Call) else [node] if isinstance(above, ast.Subscript) else whole
        if not all(_is_number(part, paths) for part in parts):
            break
        node = above
    return node


def is_plain(value: Any) -> bool:
    """Whether something is a number of Python's, or a list of them."""
    parts = value if type(value) in (list, tuple) and value else [value]
    return all(type(part) in (bool, int, float) for part in parts)


def is_hosts(function: ast.expr) -> bool:
    """Whether a function is one of the host's: ``math.exp``, ``max``."""
    owner = last_name(function.value) if isinstance(function, ast.Attribute) else ""
    return owner in HOSTS or (isinstance(function, ast.Name) and function.id in ("min", "max", "abs", "float", "round"))


def _is_number(node: ast.AST, paths: set[str]) -> bool:
    if isinstance(node, (ast.operator, ast.unaryop, ast.Constant)):
        return True
    if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and ast.unparse(node) in paths:
        return True
    if isinstance(node, ast.Subscript):
        return ast.unparse(node.value) in paths and _is_number(node.slice, paths)
    if isinstance(node, ast.Call):
        return is_hosts(node.func) and all(_is_number(part, paths) for part in node.args)
    parts = [*ast.iter_child_nodes(node)] if isinstance(node, (ast.BinOp, ast.UnaryOp)) else []
    return bool(parts) and all(_is_number(part, paths) for part in parts)
