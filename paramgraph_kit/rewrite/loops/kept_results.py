"""Results of a round that lines around its launch keep, as ``if accept: self.q = q``: each gets memory of its own.

Every replay writes its results to the same memory, whether the host then keeps them or not.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence

from paramgraph_kit.doctor.explain.syntax import elements_of, last_name
from paramgraph_kit.doctor.observe.added_to_lists import KEEPS
from paramgraph_kit.rewrite.source.edits import Function, path_of

_KEEPS = frozenset((*KEEPS, "extend", "insert", "update", "push", "put", "store", "remember", "save"))
_VIEWS = (
    *("detach", "view", "reshape", "squeeze", "unsqueeze", "flatten", "t", "transpose", "permute", "narrow", "to"),
    *("float", "contiguous", "expand", "chunk", "split", "unbind", "view_as", "reshape_as", "expand_as", "ravel"),
    *("swapaxes", "movedim", "diagonal", "unflatten", "unfold", "select"),
)
_NO_MEMORY = frozenset(("shape", "dtype", "device", "ndim", "grad", "requires_grad", "is_cuda"))
_LEAVES = (ast.Return, ast.Break, ast.Continue, ast.Raise)


def kept_beyond(
    function: Function,
    body: Sequence[ast.stmt],
    part: Sequence[ast.stmt],
    results: Collection[str],
    parameters: Collection[str] | None = None,
    *,
    called: bool = False,
) -> set[str]:
    """Those results of a part of a block that what is around it keeps where a later launch would write over them.

    A name of others that gets its result behind each launch is none of them, as no line reads what it had before.

    Args:
        function: whose block it is.
        body: the block.
        part: its statements that are launched.
        results: what they give.
        parameters: what they are given, where the block is one of rounds: its names live on to the next launch.
        called: whether others of the user's functions get what it returns, and may keep that.
    """
    inside = {n for node in part for n in ast.walk(node)}
    around = [n for n in ast.walk(function) if n not in inside]
    outer = {name for n in ast.walk(function) if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names}
    gets = [*_gets(around)]
    rounds = {n for node in body for n in ast.walk(node)} if parameters is not None else set()
    returned = [n.value for n in around if isinstance(n, (ast.Return, ast.Yield)) and called]
    found = set[str]()
    for result in results:
        names = _names_of(result, gets)
        for node, target, value in gets:
            path = path_of(target)
            held = not isinstance(target, ast.Name) or path in outer
            # What the next round is given has been copied before it writes; a round left out would write there.
            held |= parameters is not None and node in rounds and (node not in body or path not in parameters)
            if held and _may_be(value, names) and not (_is(value, result) and path and _each(body, part, node, path)):
                found.add(result)
        calls = (n for n in around if isinstance(n, ast.Call) and last_name(n.func) in _KEEPS)
        if any(_may_be(arg, names) for call in calls for arg in (*call.args, *(k.value for k in call.keywords))):
            found.add(result)
        if any(_may_be(value, names) for value in returned):
            found.add(result)
    return found


def _gets(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.AST, ast.expr, ast.expr]]:
    """What gets what in some assignments, each of a tuple by itself."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            for each in node.targets:
                targets, values = [*elements_of(each)], [*elements_of(node.value)]
                if len(targets) == len(values):
                    yield from ((node, *pair) for pair in zip(targets, values, strict=True))
                else:
                    yield from ((node, target, node.value) for target in targets)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            yield node, node.target, node.value


def _names_of(result: str, gets: Sequence[tuple[ast.AST, ast.expr, ast.expr]]) -> set[str]:
    """Names and paths that may have a result's memory."""
    names = {result}
    while True:
        more = {path_of(target) for _, target, value in gets if _may_be(value, names)} - {""} - names
        if not more:
            return names
        names |= more


def _may_be(value: ast.AST | None, names: Collection[str]) -> bool:
    """Whether what an expression gives may be, or have in it, the memory of one of some names."""
    if isinstance(value, (ast.Name, ast.Attribute)) and path_of(value) in names:
        return True
    if isinstance(value, ast.Attribute):
        return value.attr not in _NO_MEMORY and _may_be(value.value, names)
    if isinstance(value, ast.Call):
        views = isinstance(value.func, ast.Attribute) and value.func.attr in _VIEWS
        packs = isinstance(value.func, ast.Name) and value.func.id in ("dict", "list", "tuple", "zip", "enumerate")
        given = [*value.args, *(k.value for k in value.keywords)] if packs else []
        return (views and _may_be(value.func.value, names)) or any(_may_be(each, names) for each in given)  # type: ignore[attr-defined]
    if isinstance(value, (ast.Subscript, ast.Starred, ast.NamedExpr)):
        return _may_be(value.value, names)
    if isinstance(value, ast.IfExp):
        return _may_be(value.body, names) or _may_be(value.orelse, names)
    if isinstance(value, (ast.ListComp, ast.DictComp, ast.GeneratorExp)):
        return any(_may_be(each.iter, names) for each in value.generators)
    inner = value.elts if isinstance(value, (ast.Tuple, ast.List, ast.Set)) else ()
    inner = value.values if isinstance(value, (ast.Dict, ast.BoolOp)) else inner
    return any(_may_be(each, names) for each in inner)


def _is(value: ast.expr, name: str) -> bool:
    return isinstance(value, ast.Name) and value.id == name


def _each(body: Sequence[ast.stmt], part: Sequence[ast.stmt], node: ast.AST, path: str) -> bool:
    """Whether a statement runs behind each launch of a part, and nothing between them has what the path had before."""
    last = body.index(part[-1]) if part and part[-1] in body else -1
    if "." not in path or node not in body or last < 0 or body.index(node) <= last:
        return False
    # What stays of the block from where the part begins may run behind its launch.
    between = [n for each in body[body.index(part[0]) : body.index(node)] if each not in part for n in ast.walk(each)]
    read = any(isinstance(n, ast.Attribute) and path_of(n) == path for n in between)
    return not read and not any(isinstance(n, _LEAVES) for n in between)
