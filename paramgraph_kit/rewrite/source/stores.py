"""Where a local name gets its values, and where these are written in place."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.rewrite.source.edits import Function, path_of, within
from paramgraph_kit.rewrite.source.quiet import draws

Given = tuple[ast.AST, list[ast.expr | None] | None]  # where a name gets a value, and what that is made of

GROWS = ("append", "extend", "insert")
RANDOM = (
    "uniform_",
    "random_",
    "exponential_",
    "cauchy_",
    "geometric_",
    "log_normal_",
    "multinomial",
    "set_",
    "data_ptr",
)
_BY_ARGUMENT = frozenset(  # functions that write into what they are given first
    "shuffle put copyto place putmask put_along_axis fill_diagonal heapify heappush heappop heapreplace insort".split()  # noqa: SIM905
)


def _lines(function: Function, line: int) -> Iterator[ast.AST]:
    for node in (n for part in function.body for n in within(part)):
        if not line or getattr(node, "lineno", 0) < line:
            yield node


def stores(function: Function, name: str, line: int = 0) -> Iterator[Given]:
    """Where a local name gets a value, with what that is made of; None where that is not told."""
    for node in _lines(function, line):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from ((node, [value]) for value in _picked(target, node.value, name))
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)) and path_of(node.target) == name:
            yield node, [node.value]
        elif isinstance(node, ast.For) and any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node.target)):
            yield node, [node.iter]
        elif isinstance(node, (ast.NamedExpr, ast.withitem, ast.ExceptHandler, ast.Import, ast.ImportFrom, ast.Delete)):
            named = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)]
            named += [getattr(node, "name", None) or ""]
            named += [(a.asname or a.name).partition(".")[0] for a in getattr(node, "names", ())]
            if name in named:
                yield node, None


def _picked(target: ast.expr, value: ast.expr, name: str) -> Iterator[ast.expr | None]:
    if isinstance(target, ast.Name) and target.id == name:
        yield value
    elif isinstance(target, (ast.Tuple, ast.List)):
        parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts) else None
        for number, each in enumerate(target.elts):
            yield from _picked(each, parts[number] if parts is not None else value, name)
    elif isinstance(target, ast.Starred):
        yield from _picked(target.value, value, name)


def writes(function: Function, name: str, line: int = 0) -> Iterator[Given]:
    """Where a value with a local name is written in place."""
    for node in _lines(function, line):
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                inner: ast.expr = target
                index: list[ast.expr | None] = []
                while isinstance(inner, (ast.Subscript, ast.Attribute)):
                    index += [inner.slice] if isinstance(inner, ast.Subscript) else []
                    inner = inner.value
                if inner is not target and isinstance(inner, ast.Name) and inner.id == name:
                    yield node, [*index, node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _root(node.func.value) == name:
            if draws(node.func.attr) or node.func.attr in RANDOM:
                yield node, None
            elif node.func.attr in GROWS or (node.func.attr.endswith("_") and not node.func.attr.startswith("_")):
                yield node, [*node.args, *(option.value for option in node.keywords)]
            elif node.func.attr in ("pop", "clear", "remove", "update", "sort", "fill"):
                yield node, None
        if isinstance(node, ast.Call) and name in map(_root, written_by_call(node)):
            yield node, None


def written_by_call(call: ast.Call) -> list[ast.expr]:
    """What a call writes of its arguments: ``np.random.shuffle(order)``, ``np.add(a, b, out=c)``."""
    name = path_of(call.func).rpartition(".")[2]
    first = call.args[:1] if name in _BY_ARGUMENT else []
    if name.endswith("_") and not name.startswith("_") and path_of(call.func).rpartition(".")[0].endswith("init"):
        first = call.args[:1]  # `nn.init.normal_(w)`
    return [*first, *(option.value for option in call.keywords if option.arg == "out")]


def _root(node: ast.expr) -> str:
    """``x`` of ``x[0].t()``."""
    while isinstance(node, (ast.Subscript, ast.Attribute, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
