"""Lines that give an object a tensor in a function which launches no graph: they write it where they stand."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import lru_cache

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, MAKERS, every, here, last_name, pairs_of, spans, tree_of
from paramgraph_kit.doctor.observe.callers_tensors import ENTRIES, WHOLE
from paramgraph_kit.doctor.observe.launch_words import ANEW

GROW = ("cat", "concat", "concatenate", "hstack", "vstack")
_PAIR, _AS_IT_IS = 2, "this line as it is"
ROWS = "new rows by index_copy_ at a position on the device that is added to in place, and a mask of the filled"


def launches(functions: Sequence[ast.FunctionDef]) -> bool:
    """Whether the functions around a line launch a graph, or there is none; elsewhere it runs ahead of that anyway."""
    calls = [n for f in functions for n in ast.walk(f) if isinstance(n, ast.Call)]
    return not functions or any(last_name(n.func) in ("replay", "graph") for n in calls)


def made_first(
    node: ast.AST, functions: Sequence[ast.FunctionDef], target: ast.expr | None, tree: ast.AST | None, copied: str
) -> str:
    """Words for a method that alone gives its object what it writes later, by ``copied``; "" for any other."""
    own = functions[-1] if functions and functions[-1].args.args else None
    if own is None or not isinstance(target, ast.Attribute) or ast.unparse(target.value) != own.args.args[0].arg:
        return ""
    stores = [n for n in ast.walk(tree or own) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    # `self.pos += 1` writes one that is there already: it makes none.
    added = {id(n.target) for n in ast.walk(tree or own) if isinstance(n, ast.AugAssign)}
    inside = {id(n) for n in ast.walk(own)} | added
    alone = all(id(n) in inside for n in stores if n.attr == target.attr)
    first = _AS_IT_IS if ".data.copy_(" in copied else _as_it_begins(node, functions)
    has = f"hasattr({ast.unparse(target.value)}, {target.attr!r})"
    return f"`if {has}: {copied}`, and else {first}" if alone else ""


def is_made_where_absent(tree: ast.Module | None, statement: ast.stmt) -> bool:
    """Whether a line gives an object what it has not yet, as a test says: behind that time it runs no more.

    ``if not hasattr(self, "x"): self.x = x``, ``if self.x is None: self.x = x``, and the ``else`` of the contrary.
    """
    nodes, gone = (every(tree), _taken_away(tree)) if tree is not None else ((), frozenset[str]())
    for branch in (n for n in nodes if isinstance(n, ast.If) and spans(n, statement.lineno)):
        asked, is_absent = _asks(branch.test)
        inside = [n for s in (branch.body if is_absent else branch.orelse) for n in ast.walk(s)]
        stores = (n for n in inside if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
        own = any(ast.unparse(n) == asked for n in stores)
        if own and asked.rpartition(".")[2] not in gone and any(n is statement for n in inside):
            return True
    return False


@lru_cache(64)
def _taken_away(tree: ast.Module) -> frozenset[str]:
    """The attributes that lines delete, or set to None, but where objects are made."""
    nodes = every(tree)
    makers = {id(n) for m in nodes if isinstance(m, FUNCTIONS[:2]) and m.name in MAKERS for n in ast.walk(m)}
    gone = {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Del)}
    pairs = (pair for n in nodes if id(n) not in makers for pair in pairs_of(n))
    nulled = (to for to, value in pairs if isinstance(value, ast.Constant) and value.value is None)
    return frozenset(gone | {to.attr for to in nulled if isinstance(to, ast.Attribute)})


def _asks(test: ast.expr) -> tuple[str, bool]:
    """The attribute for which a test asks whether it is there, and whether that is true where it is not."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        asked, is_absent = _asks(test.operand)
        return asked, not is_absent
    if isinstance(test, ast.Call) and last_name(test.func) == "hasattr" and len(test.args) == _PAIR:
        return f"{ast.unparse(test.args[0])}.{getattr(test.args[1], 'value', '')}", False
    if isinstance(test, ast.Compare) and isinstance(test.left, ast.Attribute) and len(test.ops) == 1:
        is_none = isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
        if is_none and isinstance(test.ops[0], (ast.Is, ast.IsNot)):
            return ast.unparse(test.left), isinstance(test.ops[0], ast.Is)
    return "", False


def _as_it_begins(node: ast.AST, functions: Sequence[ast.FunctionDef]) -> str:
    """What a line becomes where it is the first: what is written later is no tensor of a caller's own."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Name) or not functions:
        return _AS_IT_IS
    given, inside = functions[-1].args, [*ast.walk(functions[-1])]
    names = {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    stored = {n.id for n in inside if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    name = node.value.id
    if name not in names - stored:
        return _AS_IT_IS
    if any(isinstance(each, (ast.Tuple, ast.List)) for each in node.targets):
        return f"this line with `{ENTRIES.format(name)}` for `{name}`"
    return f"`{' = '.join(map(ast.unparse, node.targets))} = {WHOLE.format(name)}`"


def runs_ahead_too(line: int, tree: ast.AST | None, captures: str) -> bool:
    """Whether a line's function is also called ahead of what captures: ``s.set_adapter("a"); s.capture()``."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)] if tree is not None else []
    around = sorted((f for f in functions if spans(f, line)), key=lambda f: f.lineno)
    if not isinstance(tree, ast.Module) or not around or around[-1].name == captures or launches(around):
        return False
    for body in (tree.body, *(f.body for f in functions)):
        calls = [n for s in body for n in here(s, FUNCTIONS) if isinstance(n, ast.Call)]
        own = [n.lineno for n in calls if last_name(n.func) == around[-1].name]
        if own and any(last_name(n.func) == captures and n.lineno > min(own) for n in calls):
            return True
    return False


def as_large_as_it_gets(target: str, value: ast.expr | None, then: tuple[int, ...], now: tuple[int, ...]) -> str:
    """Words for a tensor that another shape takes the place of, which no copy into it can hold; "" for the same."""
    if then == now or value is None:
        return ""
    if isinstance(value, ast.Call) and last_name(value.func) in GROW:
        return f"{target} as large as it gets, made ahead of the capture: {ROWS}"
    return ANEW  # one that is large enough for all has rows of before in it, which the graph computes with


def kept_as_it_is(file: str, at: ast.stmt) -> str:
    """Where what a parameter has is kept to be given back, which the new numbers would be written into, too."""
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        values: list[ast.expr | None] = [node.value] if isinstance(node, (ast.Assign, ast.DictComp)) else []
        values += [node.elt] if isinstance(node, (ast.ListComp, ast.GeneratorExp)) else []
        values += node.args if isinstance(node, ast.Call) and last_name(node.func) == "append" else []
        for value in values if getattr(node, "lineno", 0) != at.lineno else ():  # which copies by then
            while isinstance(value, ast.Call) and last_name(value.func) in ("detach", "cpu") and not value.args:
                value = value.func.value if isinstance(value.func, ast.Attribute) else None
            if isinstance(value, ast.Attribute) and value.attr == "data":
                return f"; and line {value.lineno} keeps `{ast.unparse(value)}.clone()` in place of that memory itself"
    return ""
