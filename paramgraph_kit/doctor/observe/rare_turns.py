"""Lines that give something another value in branches which a later call may take: ``if self.bad > 7: self.lr *= 0.5``.

Of each function that has run these are the statements of its branches, and of the methods that those call.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from types import CodeType, FunctionType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, MAKERS, elements_of, here, last_name, nodes_of, pairs_of
from paramgraph_kit.doctor.observe.captured_entries import MODULES, is_dict
from paramgraph_kit.doctor.observe.captured_values import NOTHING, Names, Use, names_in
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.loop_elements import rounds_of
from paramgraph_kit.doctor.observe.own_managers import captured_in

_READS = ("item", "bool", "float", "int", "any", "all", "tolist")
_GIVES = (ast.Assign, ast.AugAssign, ast.AnnAssign)
_MOST_ELEMENTS = 64
_KIND_OF = 2  # arguments of isinstance
_PARTS = ("parameters", "modules", "children", "named_parameters", "named_modules", "named_children", "values", "items")
_DEEP = 2  # methods that a branch calls, and that call others
Given = tuple[FunctionType, ast.stmt, ast.expr | None, Names]  # a statement, what it sets, and what names mean there


def rare_lines(
    functions: Iterable[tuple[FunctionType, Any]],
    ran: Collection[CodeType],
    moved: Collection[str],
    given: Collection[str],
    leaves_out: Callable[[list[ast.AST], Names], bool],
) -> Iterator[Given]:
    """Statements that a later call may run, or that give another value then.

    Args:
        functions: those of the program, each with the object that it belongs to.
        ran: the code of those that have run.
        moved: what a call is known to change.
        given: the arguments that are numbers.
        leaves_out: whether a branch captures again.
    """
    known = [*functions]
    every = {*moved, *_counted(f.__code__ for f, _ in known if f.__code__ in ran and f.__name__ not in MAKERS)}
    for function, owner in known:
        code = function.__code__
        if code not in ran:
            continue
        names = names_in(function, owner)
        local = _locals(code, every, given)
        captured = {n for block in captured_in(code) for s in block for n in ast.walk(s)}
        for node in (n for n in nodes_of(code) if n not in captured):
            if isinstance(node, ast.If) and _turns(node.test, every, local):
                asked = {ast.unparse(n) for n in ast.walk(node.test) if isinstance(n, (ast.Attribute, ast.Name))}
                for block in (node.body, node.orelse):
                    inside = [n for s in block for n in here(s, FUNCTIONS)]
                    if block and not leaves_out(inside, names):
                        yield from _of_block(block, function, names, known, asked)
            elif isinstance(node, _GIVES) and node.value is not None and _decides(node.value, every, local):
                yield from _targets(node, function, names, [])


def _of_block(
    block: list[ast.stmt],
    function: FunctionType,
    names: Names,
    known: list[tuple[FunctionType, Any]],
    asked: set[str],
    deep: int = _DEEP,
) -> Iterator[Given]:
    inside = [n for s in block for n in here(s, FUNCTIONS)]
    loops = [n for n in inside if isinstance(n, (ast.For, ast.comprehension))]
    for node in inside:
        if isinstance(node, _GIVES):
            given = _targets(node, function, names, loops)
            yield from (each for each in given if each[2] is None or ast.unparse(each[2]) not in asked)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            around = _in_rounds(function.__code__, node.value.func, names, loops)
            yield from ((function, node, None, each) for each in around)
            called = Use(function.__code__, node.value.func, False, names).value() if deep else NOTHING
            inner, own = getattr(called, "__func__", called), getattr(called, "__self__", None)
            for other, owner in known:
                if other is inner and (owner is None or owner is own) and not captured_in(other.__code__):
                    tree = [n for n in nodes_of(other.__code__) if isinstance(n, ast.FunctionDef)]
                    body = next((n.body for n in tree if n.name == other.__name__), [])
                    yield from _of_block(body, other, names_in(other, owner), known, set(), deep - 1)


def _targets(node: Any, function: FunctionType, names: Names, loops: list[Any]) -> Iterator[Given]:
    """What a statement sets, as many times as its loop has elements for it."""
    code = function.__code__
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in (each for t in targets for each in elements_of(t)):
        if isinstance(target, ast.Name) and target.id in code.co_varnames:
            continue
        yield from ((function, node, target, each) for each in _in_rounds(code, target, names, loops))


def _in_rounds(code: CodeType, path: ast.AST, names: Names, loops: list[Any]) -> Iterator[Names]:
    """What names mean where a line is, once for each element of the loop whose variable it has."""
    first = {n.id for n in ast.walk(path) if isinstance(n, ast.Name)}
    rounds = [each for loop in loops for each in rounds_of(loop.target, loop.iter)]
    around = [(_last_of(target), over) for target, over in rounds if _last_of(target) in first]
    if not around:
        yield names
    for name, over in around[:1]:
        for each in islice(_elements(code, over, names), _MOST_ELEMENTS):
            if all(is_a(each, kind) for kind in _kinds_asked(code, path, name, names, loops)):
                yield Names(names.space, names.cells, names.own, {**names.known, name: each}, names.short)


def _kinds_asked(code: CodeType, path: ast.AST, name: str, names: Names, loops: list[Any]) -> Iterator[Any]:
    """The classes that tests of a loop around a line ask its variable for: ``if isinstance(m, nn.Dropout)``."""
    inside = [n for loop in loops if isinstance(loop, ast.For) for n in ast.walk(loop) if isinstance(n, ast.If)]
    for test in (n.test for n in inside if any(each is path for s in n.body for each in ast.walk(s))):
        for call in (n for n in ast.walk(test) if isinstance(n, ast.Call) and len(n.args) == _KIND_OF):
            kinds = call.args[1].elts if isinstance(call.args[1], ast.Tuple) else [call.args[1]]
            found = tuple(Use(code, each, False, names).value() for each in kinds)
            if last_name(call.func) == "isinstance" and ast.unparse(call.args[0]) == name:
                yield tuple(each for each in found if isinstance(each, type))


def _last_of(target: ast.expr) -> str:
    """The variable of a loop; of ``name, parameter`` the second."""
    target = target.elts[-1] if isinstance(target, ast.Tuple) and target.elts else target
    return target.id if isinstance(target, ast.Name) else ""


def _elements(code: CodeType, over: ast.expr, names: Names) -> Iterable[Any]:
    """What a loop goes through, as far as that is the user's list, a row of modules, or parts of a module."""
    value = Use(code, over, False, names).value()
    if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) and over.func.attr in _PARTS:
        owner = Use(code, over.func.value, False, names).value()
        if is_a(owner, torch.nn.Module):
            found = getattr(torch.nn.Module, over.func.attr, None)
            value = [*found(owner)] if found is not None else [*owner._modules.values()]
            value = [each[-1] for each in value] if over.func.attr.startswith("named_") else value
        elif is_dict(owner) and over.func.attr in ("values", "items"):
            value = [*owner.values()]
    elif is_a(value, MODULES):
        value = [*(value._modules or value._parameters).values()]
    return value if isinstance(value, (list, tuple)) else ()


def _counted(codes: Iterable[CodeType]) -> Iterator[str]:
    """Attributes, and variables of the file, that functions move on, or give more than one value."""
    values: dict[str, set[str]] = {}
    for code in codes:
        for node in nodes_of(code):
            pairs = [(node.target, None)] if isinstance(node, ast.AugAssign) else pairs_of(node)
            for target, value in pairs:
                path = last_name(target)
                if not path or (isinstance(target, ast.Name) and path in code.co_varnames):
                    continue
                given = {ast.unparse(value)} if isinstance(value, ast.Constant) else {"one", "more"}
                values.setdefault(path, set()).update(given)
    yield from (path for path, each in values.items() if len(each) > 1)


def _locals(code: CodeType, moved: Collection[str], given: Collection[str]) -> set[str]:
    """Variables that hold what moves, or what is read from the device, and the arguments that are numbers."""
    found = {name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name in given}
    for node in nodes_of(code):
        value = node.value if isinstance(node, (ast.Assign, ast.NamedExpr)) else None
        if value is None or not _turns(value, moved, found):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]  # type: ignore[attr-defined]
        found.update(
            n.id for t in targets for n in elements_of(t) if isinstance(n, ast.Name) and n.id in code.co_varnames
        )
    return found


def _turns(test: ast.expr, moved: Collection[str], local: Collection[str]) -> bool:
    """Whether it may be another one in a later call: it asks what moves, or what is read from the device."""
    for node in ast.walk(test):
        if isinstance(node, ast.Attribute) and node.attr in moved:
            return True
        if isinstance(node, ast.Name) and (node.id in local or node.id in moved):
            return True
        if isinstance(node, ast.Call) and last_name(node.func) in _READS:
            return True
        key = node.slice if isinstance(node, ast.Subscript) else None
        if isinstance(key, ast.Constant) and key.value in moved:
            return True
    return False


def _decides(value: ast.expr, moved: Collection[str], local: Collection[str]) -> bool:
    """Whether a value has a part that a test decides, or a count that moves slowly: ``0.5 ** (self.n // 100)``."""
    nodes = [*ast.walk(value)]
    if any(isinstance(n, ast.IfExp) and _turns(n.test, moved, local) for n in nodes):
        return True
    slow = (n for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, (ast.FloorDiv, ast.Mod)))
    limits = (n for n in nodes if isinstance(n, ast.Call) and last_name(n.func) in ("min", "max"))
    return any(_turns(n, moved, local) for n in (*slow, *limits))
