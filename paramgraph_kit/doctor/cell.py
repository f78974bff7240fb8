"""A notebook's cell as a function: what it assigns is local, what it changes from call to call is not."""

from __future__ import annotations

import ast
import linecache
import types
from collections.abc import Collection, Iterable
from itertools import takewhile
from typing import Any

import torch

from paramgraph_kit.driver.files import REWRITTEN, is_library

NAME = "cell"
NOT_NAMED = (
    ast.Call,
    ast.BinOp,
    ast.Await,
    ast.Lambda,
    ast.NamedExpr,
    ast.GeneratorExp,
)  # work of the cell's own, or perhaps
_BLOCKS = (ast.For, ast.While, ast.If, ast.With, ast.Try, ast.Match)  # statements that hold others
_HOLDERS = (ast.ExceptHandler, ast.match_case)
_FILES: set[str] = set()  # of cells that have been made functions


def parsed(text: str, file: str) -> ast.Module:
    """The tree of a file; of a cell, or of the rewritten lines of one, with what the cell does in a function."""
    tree = ast.parse(text, file)
    if not is_made_of(file):
        return tree
    old = ast.parse("".join(linecache.getlines(file.replace(REWRITTEN, ""))))
    return wrapped(tree, {node.id for node in ast.walk(old) if isinstance(node, ast.Name)})


def wrapped(tree: ast.Module, known: Collection[str] | None = None) -> ast.Module:
    """The statements of a cell in a function, at their own lines and columns, but for what it begins by defining.

    That stands beside the function, as it would in a file; so do tensors with names that are not ``known``, which
    rewritten lines make there.
    """
    beside = len([*takewhile(lambda node: _defines(node, known), tree.body)])
    ahead, own = tree.body[:beside], tree.body[beside:]
    body = own or [ast.Pass(lineno=1, col_offset=0)]
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
    module = ast.Module([*ahead, function], [])
    return ast.fix_missing_locations(module)


def as_function(source: str, file: str, space: dict[str, Any]) -> types.FunctionType:
    """A cell that is called like a function without arguments; its names are those of ``space``.

    What the cell begins by defining is defined there, as a run of it does.

    Raises:
        SyntaxError: the cell is no Python.
    """
    _FILES.add(file)
    tree = wrapped(ast.parse(source, file))
    function = tree.body.pop()
    exec(compile(tree, file, "exec", dont_inherit=True), space)
    futures = [node for node in tree.body if _is_future(node)]
    code = compile(ast.Module([*futures, function], []), file, "exec", dont_inherit=True)
    made = next(each for each in code.co_consts if isinstance(each, types.CodeType) and each.co_name == NAME)
    return types.FunctionType(made, space, NAME)


def is_whole(file: str, name: str) -> bool:
    """Whether a function is a cell that has been made one, and none that stands in it or beside it."""
    return name == NAME and is_made_of(file)


def is_made_of(file: str) -> bool:
    """Whether a file is a cell that has been made a function, or the rewritten lines of one."""
    return file.replace(REWRITTEN, "") in _FILES


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


def _defines(node: ast.stmt, known: Collection[str] | None) -> bool:
    """Whether a statement only gives a name to a function, a class, a module, or to what is not known by it."""
    if isinstance(node, ast.Assign) and known is not None:
        return all(isinstance(target, ast.Name) and target.id not in known for target in node.targets)
    return isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom))


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _read_first(body: list[ast.stmt]) -> set[str]:
    """Names that are assigned, and read before that: they live on from one run of the cell to the next."""
    stored, outer = set[str](), set[str]()
    _go_through(body, stored, outer)
    return outer & stored - _own_of_comprehensions(body)


def _go_through(body: Iterable[ast.stmt], stored: set[str], outer: set[str]) -> None:
    """Statements in their order: what each reads that is not stored by then is ``outer``.

    What a loop reads before its round stores it comes from the round before, and at first from outside; its target is
    stored by then. A branch that is not taken stores nothing for the other one.
    """
    for node in body:
        heads = [part for part in ast.iter_child_nodes(node) if not isinstance(part, (ast.stmt, *_HOLDERS))]
        held: list[ast.AST] = [*heads] if isinstance(node, _BLOCKS) else [node]
        if isinstance(node, ast.For):
            held = [node.iter, node.target]  # in this order
        for part in held:
            outer |= _loaded(part) - stored
            stored |= _stored(part)
        if isinstance(node, _BLOCKS):
            parts = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
            parts += [each.body for each in (*getattr(node, "handlers", ()), *getattr(node, "cases", ()))]
            every = [set(stored) for _ in parts]
            for block, own in zip(parts, every, strict=True):
                _go_through(block, own, outer)
            stored |= set[str]().union(*every)


def _loaded(node: ast.AST) -> set[str]:
    every = [*ast.walk(node)]
    loads = {n.id for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return loads | {n.target.id for n in every if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)}


def _stored(node: ast.AST) -> set[str]:
    every = [*ast.walk(node)]
    names = {n.id for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    names |= {n.name for n in every if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    imported = (alias for n in every if isinstance(n, (ast.Import, ast.ImportFrom)) for alias in n.names)
    return names | {(alias.asname or alias.name).partition(".")[0] for alias in imported}


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
