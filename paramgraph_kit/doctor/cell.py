"""A notebook's cell as a function: what it assigns is local, what it changes from call to call is not."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from paramgraph_kit.driver.files import is_library

NAME = "cell"
NOT_NAMED = (
    ast.Call,
    ast.BinOp,
    ast.Await,
    ast.Lambda,
    ast.NamedExpr,
    ast.GeneratorExp,
)  # work of the cell's own, or perhaps
FILES: set[str] = set()  # of cells that have been made functions


def wrapped(tree: ast.Module) -> ast.Module:
    """The statements of a cell in a function, at the lines and columns where they stand."""
    body = [node for node in tree.body if not _is_future(node)] or [ast.Pass(lineno=1, col_offset=0)]
    outer = sorted(_read_first(body) | _named_by_functions(body))
    if isinstance(body[-1], ast.Expr):  # what a notebook shows is what a function returns
        body[-1] = ast.copy_location(ast.Return(body[-1].value), body[-1])
    first, last = body[0], body[-1]
    where: dict[str, Any] = {
        "lineno": first.lineno,
        "col_offset": 0,
        "end_lineno": last.end_lineno,
        "end_col_offset": last.end_col_offset,
    }
    head: list[ast.stmt] = [ast.Global(outer, **where)] if outer else []
    nothing = ast.arguments([], [], None, [], [], None, [])
    function = ast.FunctionDef(NAME, nothing, [*head, *body], [], None, None, **where)
    module = ast.Module([*(node for node in tree.body if _is_future(node)), function], [])
    return ast.fix_missing_locations(module)


def as_function(source: str, file: str, space: dict[str, Any]) -> types.FunctionType:
    """A cell that is called like a function without arguments; its names are those of ``space``.

    Raises:
        SyntaxError: the cell is no Python.
    """
    FILES.add(file)
    code = compile(wrapped(ast.parse(source, file)), file, "exec", dont_inherit=True)
    made = next(each for each in code.co_consts if isinstance(each, types.CodeType) and each.co_name == NAME)
    return types.FunctionType(made, space, NAME)


def spent(source: str, space: dict[str, Any]) -> list[str]:
    """Tensors that a cell has assigned, and differentiated: all that their graphs can still do is be in the way."""
    nodes = list(ast.walk(ast.parse(source)))
    if "retain_graph" in source or not any(isinstance(n, ast.Attribute) and n.attr == "backward" for n in nodes):
        return []
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    tensors = {name: space[name] for name in sorted(stored) if isinstance(space.get(name), torch.Tensor)}
    return [name for name, tensor in tensors.items() if tensor.grad_fn is not None and not tensor._is_view()]


def call_in(source: str, space: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """The function of the user's, and its arguments, where a cell is one call of it with what has a name; else None."""
    body = ast.parse(source).body
    value = body[0].value if len(body) == 1 and isinstance(body[0], (ast.Expr, ast.Assign)) else None
    if not isinstance(value, ast.Call) or any(isinstance(n, NOT_NAMED) for a in _arguments(value) for n in ast.walk(a)):
        return None

    def kept(*args: Any, **kwargs: Any) -> Any:
        return args[0], args[1:], kwargs

    whole = ast.Call(ast.Name("kept", ast.Load()), [value.func, *value.args], value.keywords)
    code = compile(ast.fix_missing_locations(ast.Expression(ast.copy_location(whole, value))), "<call>", "eval")
    try:
        function, args, kwargs = eval(code, space, {"kept": kept})
    except Exception:  # a mistake of the user's, which whoever runs the cell explains
        return None
    own = getattr(function, "forward", None) or getattr(function, "__wrapped__", function)
    entry = getattr(getattr(own, "__func__", own), "__code__", None)
    return None if entry is None or is_library(entry.co_filename) else (function, args, kwargs)


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(option.value for option in call.keywords), call.func]


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _one_by_one(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """Statements in their order; of a ``with`` what it enters, and then its own, which run once."""
    for node in body:
        if isinstance(node, ast.With):
            yield from node.items
            yield from _one_by_one(node.body)
        else:
            yield node


def _read_first(body: list[ast.stmt]) -> set[str]:
    """Names that are assigned, and read before that: they live on from one run of the cell to the next."""
    stored, outer = set[str](), set[str]()
    for node in _one_by_one(body):
        loads = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        loads |= {
            n.target.id for n in ast.walk(node) if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)
        }
        # What a loop or a branch stores may be read by its own next round.
        outer |= loads - stored
        stored |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        stored |= {n.name for n in ast.walk(node) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        stored |= {
            (alias.asname or alias.name).partition(".")[0]
            for n in ast.walk(node)
            if isinstance(n, (ast.Import, ast.ImportFrom))
            for alias in n.names
        }
    return outer & stored - _own_of_comprehensions(body)


def _own_of_comprehensions(body: list[ast.stmt]) -> set[str]:
    inside, outside = set[str](), set[str]()
    for node in (part for one in body for part in ast.walk(one)):
        if isinstance(node, ast.comprehension):
            inside |= {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
    for one in body:
        for node in ast.walk(one):
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                outside |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return inside - outside


def _named_by_functions(body: list[ast.stmt]) -> set[str]:
    """Names that functions of the cell declare ``global``."""
    return {name for one in body for node in ast.walk(one) if isinstance(node, ast.Global) for name in node.names}
