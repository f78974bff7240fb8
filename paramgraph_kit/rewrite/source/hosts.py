"""What of a step is the host's alone: expressions, statements, and what it may compute twice."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from paramgraph_kit.driver import host_random
from paramgraph_kit.rewrite.source import moving, writes
from paramgraph_kit.rewrite.source.edits import (
    COMPOUND,
    Function,
    Source,
    assigned,
    locals_of,
    path_of,
    scope_of,
    within,
)
from paramgraph_kit.rewrite.source.place import NUMBER, Form, called
from paramgraph_kit.rewrite.source.returned_kinds import A_NUMBER
from paramgraph_kit.trace.model import Failure

Kinds = Mapping[tuple[str, str, int], Mapping[Any, str]]  # what functions return of the host's, by their scopes

KEPT = Failure("scalar-frozen", "A number moves behind the launch", "a graph would keep it")
# Methods of a generator that the program has itself: `rng.uniform(0, 1)`.
_OF_GENERATORS = ("uniform", "integers", "normal", "gauss", "choice", "permutation", "exponential", "poisson")
_MOST = 100_000  # numbers of a list that is looked through
METADATA = ("shape", "dtype", "device", "ndim", "size", "dim", "numel", "element_size")
_PLAIN = (ast.Assign, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context, ast.Tuple,
          ast.Subscript)  # fmt: skip


def done_again(
    source: Source,
    function: Function,
    statements: Sequence[ast.stmt],
    is_steady: Callable[[ast.Assign], bool] = lambda node: False,
) -> list[ast.stmt]:
    """Those statements that the host may do twice: ``pad = 2`` and ``n, d = x.shape``, always the same for a graph.

    ``is_steady`` tells others that are: ``decay = math.exp(-self.gamma * self.dt)`` of settings.
    """
    arguments = set(moving.arguments_of(function)) - moving.stored(moving.body_of(function))
    stored = [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    found: list[ast.stmt] = []
    for node in statements:
        if not isinstance(node, ast.Assign):
            continue
        if _only_picks(node.value, arguments):
            found.append(node)
            continue
        if any(stored.count(name) > 1 for name in moving.stored([node])):
            continue
        known = moving.stored(found)
        plain = all(isinstance(n, _PLAIN) or _is_size(source, n, arguments, known) for n in ast.walk(node))
        if plain or is_steady(node):
            found.append(node)
    return found


def _only_picks(value: ast.expr, arguments: set[str]) -> bool:
    """Whether an expression only names parts of what a function was given: ``batch["image"], batch["mask"]``."""
    if isinstance(value, (ast.Tuple, ast.List)):
        return bool(value.elts) and all(_only_picks(each, arguments) for each in value.elts)
    while isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
        value = value.value
    return isinstance(value, ast.Name) and value.id in arguments


def _is_size(source: Source, node: ast.AST, arguments: set[str], known: set[str]) -> bool:
    """Whether a part of an expression is a name whose size is read, or that of a number that comes of sizes alone."""
    if isinstance(node, ast.Call):
        return called(node) in ("size", "dim", "numel", "len", "int", "min", "max")
    if isinstance(node, ast.Attribute):
        return node.attr in METADATA
    if not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Store):
        return isinstance(node, ast.Name)
    above = source.parents.get(node)
    function = isinstance(above, ast.Call) and above.func is node
    return node.id in known or function or (node.id in arguments and _is_sized(source, node))


def only_sized(source: Source, node: ast.AST) -> set[str]:
    """Names of which only the size is read below a node: ``x.shape[0]``, ``len(x)``."""
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    return {n.id for n in names if _is_sized(source, n)} - {n.id for n in names if not _is_sized(source, n)}


def _is_sized(source: Source, node: ast.Name) -> bool:
    above = source.parents.get(node)
    if isinstance(above, ast.Attribute):
        return above.attr in METADATA
    return isinstance(above, ast.Call) and called(above) == "len" and node in above.args


def draws(node: ast.expr) -> bool:
    """Whether an expression draws a number of the host's, which is another one in each step."""
    paths = [path_of(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)]
    return any("rand" in path or path.rpartition(".")[2] in _OF_GENERATORS for path in paths)


def is_of_host(statement: ast.stmt, is_host: Callable[[ast.expr], bool], arguments: set[str]) -> bool:
    """Whether a statement reads nothing of the device but the function's arguments, and sizes."""
    asked = {node.value for node in ast.walk(statement) if isinstance(node, ast.Attribute) and node.attr in METADATA}
    asked |= {n.value for n in ast.walk(statement) if isinstance(n, ast.Subscript) and _is_entry(n) and is_host(n)}
    return all(
        is_host(node) or node.id in arguments
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node not in asked
    )


def _is_entry(node: ast.Subscript) -> bool:
    """Whether it reads one entry by its name, ``state["step"]``, of what may hold tensors as well."""
    return isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Constant) and bool(path_of(node.value))


def is_of_numbers(value: Any) -> bool:
    """Whether it is a list of numbers, of which a count may pick one: ``self.rates[self.it]``."""
    return type(value) in (list, tuple) and 0 < len(value) <= _MOST and all(type(each) in NUMBER for each in value)


def picks_number(value_of: Callable[[str], Any]) -> Callable[[ast.expr], bool]:
    """Which expressions pick a number of such a list, at a place that is none of the file's constants."""

    def is_picked(node: ast.expr) -> bool:
        if not isinstance(node, ast.Subscript) or isinstance(node.slice, (ast.Slice, ast.Constant, ast.Tuple)):
            return False
        path = path_of(node.value)
        return bool(path) and is_of_numbers(value_of(path))

    return is_picked


def host_test(
    device: str,
    function: Function,
    forms: Mapping[str, Form],
    space: Mapping[str, Any],
    value_of: Callable[[str], Any],
    filled: Collection[str] = (),
    given: Mapping[str, Any] = MappingProxyType({}),
    sources: Mapping[str, Source] = MappingProxyType({}),
    kinds: Kinds = MappingProxyType({}),
) -> Callable[[ast.expr], bool]:
    """Whether an expression is one of the host's alone, as far as its names tell.

    ``filled`` are lists of tensors, ``given`` the arguments of a call, ``kinds`` what functions of ``sources`` return.
    """
    local = locals_of(function)

    def of_path(path: str, node: ast.expr) -> bool:
        first = path.partition(".")[0]
        if first in filled and not _was_of_host(first, node):
            return False
        if first in local:
            known = first not in forms or forms[first].device != device or _was_of_host(first, node)
            return first != "self" and known
        if first not in space:
            return hasattr(builtins, first)
        value, owner = value_of(path), value_of(path.rpartition(".")[0]) if "." in path else None
        for each in (value, owner):  # a method of a tensor computes where that is
            if isinstance(each, torch.Tensor):
                return each.device.type != device
        if isinstance(value, Mapping):  # of tensors by their names, as averages of a network's have it
            held = (each for each in value.values() if isinstance(each, torch.Tensor))
            return all(each.device.type != device for each in held)
        return not isinstance(value, torch.nn.Module) or isinstance(value, ModuleType)

    def _was_of_host(name: str, node: ast.expr) -> bool:
        """Whether a name that is a tensor of the device in the end was something of the host's at a place."""
        every = [n for part in function.body for n in within(part)]
        loops = [n for n in every if isinstance(n, (ast.For, ast.While)) and node in set(ast.walk(n))]
        if any(name in moving.stored([loop]) for loop in loops):
            return False
        before = [n for n in every if isinstance(n, ast.stmt) and (n.end_lineno or n.lineno) < node.lineno]
        giving = [n for n in before if isinstance(n, (ast.Assign, ast.AugAssign)) and name in moving.stored([n])]
        if not giving and name in given:  # ``x = x.to(device)`` reads what it was given
            leaves = [each for each in tree_leaves(given[name]) if isinstance(each, torch.Tensor)]
            return all(each.device.type != device for each in leaves)
        return bool(giving) and all(is_host(n.value) for n in giving)

    def _is_number_of(path: str, key: ast.expr) -> bool:
        """Whether an entry of a dictionary around the function is a number or a text, whatever the others are."""
        first = path.partition(".")[0]
        held = value_of(path) if first == "self" or (first not in local and first in space) else None
        if type(held) is not dict or not isinstance(key, ast.Constant):
            return False
        return isinstance(held.get(key.value), (*NUMBER, str))

    def is_host(node: ast.expr) -> bool:
        if isinstance(node, ast.Attribute) and node.attr in METADATA:
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METADATA:
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
            return len(node.args) == 1 and isinstance(node.args[0], ast.Name)  # a size, of whatever
        if isinstance(node, (ast.Name, ast.Attribute)) and (path := path_of(node)):
            if path.partition(".")[0] == "self":
                value = value_of(path)
                if isinstance(value, torch.Tensor):
                    return value.device.type != device
                drawn_by = getattr(value, "__self__", value)  # ``self.rng.random`` is of the generator
                plain = isinstance(value, NUMBER) or hasattr(value, "__array__") or is_of_numbers(value)
                return (
                    plain or host_random.is_of_host(drawn_by) or _finds_number(sources, kinds, space, value_of, value)
                )
            return of_path(path, node)
        if isinstance(node, ast.Subscript) and _is_entry(node) and _is_number_of(path_of(node.value), node.slice):
            return True
        parts: list[ast.expr] = []
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.comprehension):
                parts += [child.iter, *child.ifs]
            elif isinstance(child, ast.keyword):
                parts.append(child.value)
            elif isinstance(child, ast.expr) and not (isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)):
                parts.append(child)
        return not isinstance(node, ast.Lambda) and all(map(is_host, parts))

    return is_host


def _finds_number(
    sources: Mapping[str, Source], kinds: Kinds, space: Mapping[str, Any], value_of: Callable[[str], Any], method: Any
) -> bool:
    """Whether a method finds a number as a property does, and changes nothing: ``self.temperature()`` of a count."""
    code = getattr(getattr(method, "__func__", None), "__code__", None)
    source = sources.get(code.co_filename) if code is not None else None
    if code is None or source is None or method.__self__ is not value_of("self"):
        return False
    at = code.co_filename, code.co_name, code.co_firstlineno
    found = [node for node in source.parents if isinstance(node, Function) and scope_of(source, node) == at]
    if kinds.get(at) != {0: A_NUMBER} or len(found) != 1 or code.co_name not in writes.changes_nothing(source):
        return False
    asks = host_test("", found[0], {}, space, value_of)  # a tensor of the CPU may be another one behind the launch
    every = [n for part in found[0].body for n in ast.walk(part) if isinstance(n, ast.expr)]
    whole = (n for n in every if not isinstance(source.parents.get(n), ast.Attribute))
    names = (n for n in whole if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Load))
    return not any(map(draws, every)) and all(map(asks, names))


def derived(function: Function, names: Iterable[str], is_host: Callable[[ast.expr], bool]) -> set[str]:
    """These names, and those of the function's own that the host gives something to that comes of them."""
    found, every = set(names), [n for part in function.body for n in within(part) if isinstance(n, ast.Assign)]
    while True:
        more = {
            name
            for node in every
            if is_host(node.value) and found & set(_last_names(node.value))
            for name in moving.stored(node.targets)
        }
        if more <= found:
            return found
        found |= more


def _last_names(node: ast.AST) -> Iterable[str]:
    """Names below a node, and those of attributes."""
    for part in ast.walk(node):
        if isinstance(part, (ast.Name, ast.Attribute)):
            yield part.id if isinstance(part, ast.Name) else part.attr


def in_rounds(node: ast.stmt) -> Iterable[ast.stmt]:
    """The statements that each round of a loop runs, and of the loops in it, and those of branches."""
    inside = [*node.body, *node.orelse] if isinstance(node, ast.If) else node.body if isinstance(node, ast.For) else []
    for part in inside:
        yield part
        yield from in_rounds(part)


def reading(
    function: Function, names: Collection[str], behind: Collection[ast.stmt], is_host: Callable[[ast.expr], bool]
) -> list[ast.stmt]:
    """Statements of a graph that read one of these names, and are not the host's alone."""
    every = (part for node in moving.body_of(function) if node not in behind for part in (node, *in_rounds(node)))
    order = (node for node in every if not isinstance(node, COMPOUND))
    return [node for node in order if names and reads_any(node, names) and not is_of_host(node, is_host, set())]


def reads_any(node: ast.AST, names: Iterable[str]) -> bool:
    """Whether a node reads one of these names, or attributes."""
    return bool(set(names) & set(_last_names(node)))


def numbers_read(function: Function) -> set[str]:
    """The variables of a function that the host has as numbers which it reads of the device."""
    every = [n for node in moving.body_of(function) for n in ast.walk(node)]
    made = {id(n.targets[0]): n.value for n in every if isinstance(n, ast.Assign) and len(n.targets) == 1}
    stores = [n for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    other = {n.id for n in stores if id(n) not in made or not _is_read_number(made[id(n)])}
    return {n.id for n in stores} - other


def read_in_loops(function: Function) -> set[str]:
    """The variables of a function that are numbers at first, and that its loops read of the device: the last, or all.

    ``kl = 0.0`` before a loop with ``kl = x.item()`` or ``total += loss.item()``, and nothing else there that reads it.
    """
    order = list(moving.body_of(function))
    first = {path_of(n): node for node in order for n, value in assigned(node) if _is_plain(n, value)}
    found = set[str]()
    for name, made in first.items():
        stores = [
            n
            for node in order
            for n in within(node)
            if name in moving.stored([n]) and isinstance(n, (ast.Assign, ast.AugAssign))
        ]
        filling = [n for n in stores if n is not made]
        loops = [node for node in order if isinstance(node, (ast.For, ast.While)) and set(filling) & set(within(node))]
        known = len(loops) == 1 and order.index(made) < order.index(loops[0]) and set(filling) <= set(within(loops[0]))
        if not known or not all(_reads_device(n) for n in filling):
            continue
        others = [n for n in ast.walk(loops[0]) if isinstance(n, ast.Name) and n.id == name]
        if all(isinstance(n.ctx, ast.Store) for n in others):
            found.add(name)
    return found


def _is_plain(target: ast.expr, value: ast.expr) -> bool:
    return isinstance(target, ast.Name) and isinstance(value, ast.Constant)


def _reads_device(node: ast.stmt) -> bool:
    """``kl = x.item()`` and ``total += loss.item() * len(x)``."""
    if not isinstance(node, (ast.Assign, ast.AugAssign)) or isinstance(getattr(node, "op", None), ast.Div):
        return False
    target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
    value = node.value
    while isinstance(value, ast.BinOp):
        value = value.left
    return isinstance(target, ast.Name) and isinstance(value, ast.Call) and _is_read_number(value)


def _is_read_number(value: ast.expr) -> bool:
    """``1.0 / float(y.mean())`` and ``loss.item() * 2``: arithmetic of the host with what it read of one tensor."""
    if isinstance(value, ast.UnaryOp):
        return _is_read_number(value.operand)
    if isinstance(value, ast.BinOp):
        sides = (value.left, value.right)
        known = [isinstance(each, ast.Constant) or _is_read_number(each) for each in sides]
        return all(known) and not all(isinstance(each, ast.Constant) for each in sides)
    if not isinstance(value, ast.Call):
        return False
    as_number = isinstance(value.func, ast.Name) and value.func.id in ("float", "int") and len(value.args) == 1
    return as_number or (isinstance(value.func, ast.Attribute) and value.func.attr == "item" and not value.args)
