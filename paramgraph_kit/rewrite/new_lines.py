"""New lines that are told where no diff shows them: where one goes, and what it must not ask for."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence
from contextlib import suppress

from paramgraph_kit.rewrite.source.ahead_of import is_sized
from paramgraph_kit.rewrite.source.edits import Function, Source, first_line, path_of, within
from paramgraph_kit.rewrite.source.place import called

_OF_HOST = ("min", "max", "float", "int", "bool")
_OF_DEVICE = {"detach", "clamp"}  # what a rewrite puts in place of a read
_MARK = re.compile(r"  # once, (?:before|in) `\w+`$")


def once_before(source: Source, statement: ast.stmt, line: int) -> str:
    """Where a new line behind ``line`` others of the file goes, unless it stays in the statement's function."""
    function = source.function_of(statement)
    if function is None or first_line(function) - 1 < line <= (function.end_lineno or function.lineno):
        return ""
    around = [n for n in ast.walk(source.tree) if isinstance(n, Function) and n.lineno <= line < (n.end_lineno or 0)]
    if around:
        return f"in `{around[-1].name}`"
    return f"before `{function.name}`" if line < function.lineno else ""


def marked(lines: Sequence[str], where: str) -> list[str]:
    """New lines with where they go, at the end of each."""
    return [f"{line}  # once, {where}" for line in lines] if where else [*lines]


def unmarked(line: str) -> str:
    """The same line as a diff has it."""
    return _MARK.sub("", line)


def picks_by_masks(lines: Sequence[str]) -> int:
    """How often some lines pick by a comparison, ``x[i < n]``, whose result has no size that the host knows."""
    try:
        tree = ast.parse("\n".join(lines).replace("return ", "", 1))
    except SyntaxError:  # a part of a statement
        return 0
    stored = (n for n in ast.walk(tree) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load))
    return sum(isinstance(part, ast.Compare) for n in stored for part in _parts(n.slice))


def picks_the_same(gone: Sequence[str], new: Sequence[str]) -> bool:
    """Whether all that some lines pick is picked in others, too: ``e, w = e[:, keep], w[keep]`` as two lines."""
    try:
        old, made = (ast.parse("\n".join(lines)) for lines in (gone, new))
    except SyntaxError:  # a part of a statement, or a return
        return False
    one, other = ({ast.dump(n) for n in ast.walk(t) if isinstance(n, ast.Subscript)} for t in (old, made))
    return bool(one) and one <= other


def _parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def chooses_sized(lines: Sequence[str]) -> bool:
    """Whether lines choose what the device counts, ``torch.where(c, mask.nonzero(), old)``: none is of its size.

    Or a piece of what they choose otherwise, ``torch.where(c, x[1:], x)``, which is shorter.
    """
    try:
        nodes = [*ast.walk(ast.parse(textwrap.dedent("\n".join(lines))))]
    except SyntaxError:  # a part of a statement
        return False
    chosen = [n.args[1:] for n in nodes if isinstance(n, ast.Call) and len(n.args) == 3]
    return any(any(map(is_sized, pair)) or _is_piece(*pair) or _is_piece(*pair[::-1]) for pair in chosen)


def _is_piece(one: ast.expr, other: ast.expr) -> bool:
    """``x[1:]`` of ``x``."""
    ends = [n for n in _parts(one.slice) if isinstance(n, ast.Slice)] if isinstance(one, ast.Subscript) else []
    cut = any(n.lower is not None or n.upper is not None for n in ends)
    return cut and isinstance(one, ast.Subscript) and ast.dump(one.value) == ast.dump(other)


def is_behind_its_head(statement: ast.stmt, changes: Sequence[tuple[int, int, int, int]]) -> bool:
    """Whether lines of an ``if`` are changed, its ``else:`` perhaps, and its test is left as it is."""
    if not isinstance(statement, ast.If):
        return False
    last = statement.end_lineno or statement.lineno
    inside = [begin for begin, end, *_ in changes if statement.lineno <= begin < end <= last]
    head = any(begin < (statement.test.end_lineno or 0) and end >= statement.lineno for begin, end, *_ in changes)
    return bool(inside) and not head


_HEAD = re.compile(r"\s*if .*:$")


def still_asks(gone: Sequence[str], new: Sequence[str]) -> bool:
    """Whether the host would ask as before: ``min(1, x.item())`` as ``min(1, x.detach())``, ``if x > 0`` by a name."""
    before, after = _tree(gone), _tree(new)
    if _asks_by_a_name(gone, new):
        return True
    if before is None or after is None:
        return False
    if isinstance(before.body[0], ast.If) and isinstance(after.body[-1], ast.If):
        test = after.body[-1].test
        named = {n.id for part in after.body[:-1] for n in ast.walk(part) if isinstance(n, ast.Name)}
        if isinstance(test, ast.Name) and test.id in named:
            return True
    return _read(before, of_host=True) > 0 and _read(after, of_host=False) > 0


def _asks_by_a_name(gone: Sequence[str], new: Sequence[str]) -> bool:
    """``chosen = x > 0`` with ``if chosen:`` twice, of which a trial makes a choice and a line behind the launch."""
    given = {line.partition(" = ")[0].strip() for line in new if " = " in line}
    asked = [line.strip().removeprefix("if ").removeprefix("not ").rstrip(":") for line in new if _HEAD.match(line)]
    return any(_HEAD.match(line) for line in gone) and any(each in given for each in asked)


def _tree(lines: Sequence[str]) -> ast.Module | None:
    text = textwrap.dedent("\n".join(lines))
    for whole in (text, f"{text}\n    pass", f"def f():\n{textwrap.indent(text, '    ')}"):
        with suppress(SyntaxError):
            tree = ast.parse(whole)
            if tree.body:
                return tree
    return None


def _read(tree: ast.Module, *, of_host: bool) -> int:
    """How many functions of the host's are given what ``item()`` reads; or what it has read, and is a tensor now."""
    found = 0
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
        of_math = isinstance(call.func, ast.Attribute) and path_of(call.func.value) == "math"
        if not of_math and not (isinstance(call.func, ast.Name) and call.func.id in _OF_HOST):
            continue
        calls = [n.func for each in call.args for n in ast.walk(each) if isinstance(n, ast.Call)]
        inside = [each.attr for each in calls if isinstance(each, ast.Attribute)]
        found += "item" in inside if of_host else "item" not in inside and bool({*inside} & _OF_DEVICE)
    return found


def leaves_gradients(source: Source, statement: ast.stmt) -> bool:
    """Whether it is a branch with a backward pass, or one that leaves ahead of one."""
    function = source.function_of(statement)
    if function is None or not isinstance(statement, ast.If):
        return False
    inside = [n for part in (*statement.body, *statement.orelse) for n in within(part)]
    leaves = any(isinstance(n, (ast.Return, ast.Continue, ast.Break)) for n in inside)
    last = statement.end_lineno or statement.lineno
    later = [n for part in function.body for n in within(part) if getattr(n, "lineno", 0) > last] if leaves else []
    return any(isinstance(n, ast.Call) and called(n) == "backward" for n in (*inside, *later))
