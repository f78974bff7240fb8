"""A cell that is no function: its lines become one, `step`, which is rewritten like any other and called there."""

from __future__ import annotations

import ast
import linecache
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from paramgraph_kit.doctor import cell
from paramgraph_kit.doctor.observe.examine import examine
from paramgraph_kit.driver.files import REWRITTEN
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.rewrite.rewriting import rewrite
from paramgraph_kit.rewrite.round_left import diff_of
from paramgraph_kit.rewrite.rounds import LIMIT_S
from paramgraph_kit.rewrite.source.edits import names_in
from paramgraph_kit.rewrite.source.place import called

AS_A_STEP = " as a function"  # behind the name of a cell whose lines are tried so
NAMES = ("step", "cell_step", "step_of_the_cell")
# What ends a cell and is not there to be shown.
SHOWS_NOTHING = frozenset("print display append extend step backward zero_grad write add_scalar log show".split())  # noqa: SIM905


def as_step(function: Any) -> Rewriting | None:
    """The cell with its lines in a function of their own, where that can be rewritten whole; else None."""
    code: types.CodeType | None = getattr(function, "__code__", None)
    if code is None or not cell.is_whole(code.co_filename, code.co_name):
        return None
    old, space = linecache.getlines(code.co_filename), function.__globals__
    tree = ast.parse("".join(old))
    name = next((each for each in NAMES if each not in space and each not in names_in(tree)), "")
    written = _in_a_function(old, tree, name) if name else []
    if not written:
        return None
    file = code.co_filename + AS_A_STEP
    linecache.cache[file] = (len("".join(written)), None, written, file)
    made = _made("".join(written), file, name, space)
    looked_at = examine(made, (), {}, limit_s=LIMIT_S)
    if not looked_at.problems:
        return None
    with _known_as(name, made):
        fix = rewrite(made, (), {}, looked_at.problems)
    if not fix.complete or fix.is_little:
        return None
    texts = {each.removesuffix(REWRITTEN): lines for each, lines in fix.texts.items()}
    own = [*texts.pop(file, written), "\n", *(f"{line}\n" for line in _calls(fix, name))]
    shown = {**texts, code.co_filename: own}

    @contextmanager
    def applied() -> Iterator[Any]:
        with _known_as(name, made), fix.applied():
            yield made

    return replace(
        fix,
        function=cell.NAME,
        alone=name,
        capture=name,
        usage="",
        loop=fix.loop or ["launched()"],
        complete=False,  # of the cell itself
        texts=shown,
        diff=diff_of(shown),
        verified=[f"the cell's lines are a function, `{name}`, which is what a graph holds: capture `{name}`"]
        + [f"{name}: {line}".replace(AS_A_STEP, "") for line in fix.verified],
        _borrow=applied,
    )


def _in_a_function(lines: list[str], tree: ast.Module, name: str) -> list[str]:
    """The lines of a cell, of which what it does is in a function; what it begins by defining stays ahead of it."""
    whole = cell.wrapped(ast.parse("".join(lines)))
    function = whole.body[-1]
    assert isinstance(function, ast.FunctionDef)
    outer = function.body[0] if isinstance(function.body[0], ast.Global) else None
    body = [node for node in function.body if node is not outer]
    ahead = len(tree.body) - len(body)
    if not body or ahead < 0 or any(node.col_offset for node in tree.body[ahead:]):
        return []
    if any(a.end_lineno == b.lineno for a, b in zip(tree.body, tree.body[1:], strict=False)):
        return []  # several statements in a line
    begin = tree.body[ahead - 1].end_lineno or 0 if ahead else 0
    inside = _inside_of_strings(tree)
    new = [f"    {line}" if line.strip() and n not in inside else line for n, line in enumerate(lines, 1)][begin:]
    last = tree.body[-1]
    if isinstance(last, ast.Expr) and not _shows_nothing(last.value):
        at = last.lineno - 1 - begin
        new[at] = new[at].replace("    ", "    return ", 1)
    while new and not new[0].strip():
        new.pop(0)
    new[-1] = new[-1].rstrip("\n") + "\n"
    head = ["\n"] * bool(begin) + [f"def {name}():\n"]
    head += [f"    global {', '.join(outer.names)}\n"] if outer is not None else []
    return [*lines[:begin], *head, *new]


def _inside_of_strings(tree: ast.Module) -> set[int]:
    """Lines that begin inside of a text, which is another one where they move."""
    texts = [n for n in ast.walk(tree) if isinstance(n, (ast.Constant, ast.JoinedStr))]
    return {n for each in texts for n in range(each.lineno + 1, (each.end_lineno or 0) + 1)}


def _shows_nothing(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and called(value) in SHOWS_NOTHING


def _calls(fix: Rewriting, name: str) -> list[str]:
    """What the cell writes below its function."""
    return [line.removeprefix("out = ").replace("launched(", f"{name}(") for line in fix.loop] or [f"{name}()"]


def _made(text: str, file: str, name: str, space: dict[str, Any]) -> types.FunctionType:
    """The function, of which nothing else in the cell runs again."""
    code = compile(text, file, "exec", dont_inherit=True)
    own = next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name)
    return types.FunctionType(own, space, name)


@contextmanager
def _known_as(name: str, made: types.FunctionType) -> Iterator[None]:
    """While this lasts the cell's names have the function."""
    made.__globals__[name] = made
    try:
        yield
    finally:
        made.__globals__.pop(name, None)
