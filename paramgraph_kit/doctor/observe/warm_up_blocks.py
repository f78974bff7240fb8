"""Where a program warms up ahead of a capture: in the function that captures, or in those that have called it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import defines, every, here, last_name, tree_of
from paramgraph_kit.doctor.observe.captured_for import Caller
from paramgraph_kit.doctor.observe.own_regions import Region

_FILLS = ("copy_", "replay", "append", "next", "item")  # what a loop has that trains


@dataclass(frozen=True, slots=True)
class WarmUp:
    """A block ahead of a capture, and the capture as the function sees it that has the block."""

    region: Region
    block: ast.stmt


def warm_ups_of(region: Region) -> Iterator[WarmUp]:
    """What may have warmed up for a capture: where it was captured first, and then in the functions around that."""
    if (block := warm_up_of(region)) is not None:
        if not _is_idle(region, block):
            return
        yield WarmUp(region, block)
    for caller in region.callers:
        body = _body_of(caller.code)
        before = [n for n in _with_branches(body) if (n.end_lineno or n.lineno) < caller.line]
        plain = [
            n
            for n in before
            if isinstance(n, ast.Expr) and (_is_meant_so(n) or _runs_apart(caller.code.co_filename, n))
        ]
        block = max([*_on_streams(body, caller.line), *plain], key=lambda n: n.lineno, default=None)
        if block is not None:
            seen = _seen_by(caller, region)
            if _is_idle(seen, block):
                yield WarmUp(seen, block)


def _seen_by(caller: Caller, region: Region) -> Region:
    held = {name: value for name, ref in caller.held.items() if (value := ref()) is not None}
    there = replace(region, code=caller.code, line=caller.line, names=held, space=caller.space)
    there.own, there.called = frozenset(held), {}
    return there


def warmed_in(region: Region, block: ast.stmt) -> list[ast.Call]:
    """The calls of a capture that its warm-up makes, too: by itself, or through a function of the file."""
    captured = {ast.unparse(n): n for s in region.body for n in ast.walk(s) if isinstance(n, ast.Call)}
    same = [n for n in ast.walk(block) if isinstance(n, ast.Call) and ast.unparse(n) in captured]
    return same or list(_through_others(region, block, [*captured.values()]))


def _through_others(
    region: Region, block: ast.stmt, captured: list[ast.Call], *, repeats: bool = False
) -> Iterator[ast.Call]:
    """Captured calls whose functions another function calls, by the same name or as it is given them.

    ``repeats``: where it does so in a loop, or on another stream.
    """
    tree = tree_of(region.code.co_filename)
    makes = {n.name: n for n in every(tree) if isinstance(n, ast.FunctionDef)} if tree is not None else {}
    for call in (n for n in ast.walk(block) if isinstance(n, ast.Call)):
        other = makes.get(last_name(call.func))
        if other is None or defines(other, region.code) or any(last_name(c.func) == other.name for c in captured):
            continue
        stored = {n.id for n in ast.walk(other) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        own = [a.arg for a in (*other.args.posonlyargs, *other.args.args)]
        given = own[1:] if isinstance(call.func, ast.Attribute) and own[:1] == ["self"] else own
        means = {name: ast.unparse(value) for name, value in zip(given, call.args, strict=False)}
        means |= {k.arg: ast.unparse(k.value) for k in call.keywords if k.arg}
        means |= {name: "" for name in stored | {*own} if name not in means and name != "self"}
        parts = [n for n in ast.walk(other) if isinstance(n, (ast.For, ast.With))] if repeats else [other]
        inner = [n.func for part in parts for n in ast.walk(part) if isinstance(n, ast.Call)]
        paths = {means.get(each.id, each.id) for each in inner if isinstance(each, ast.Name)}
        paths |= {text for each in inner if (text := ast.unparse(each)).startswith("self.")}
        yield from (each for each in captured if ast.unparse(each.func) in paths)


def warm_up_of(region: Region) -> ast.stmt | None:
    """The last block on another stream ahead of a capture, in the function that captures, or what is meant as one."""
    body = _body_of(region.code)
    ahead = _on_streams(body, region.line)
    before = [n for n in _with_branches(body) if (n.end_lineno or n.lineno) < region.line] if not ahead else []
    calls = [n for part in region.body for n in ast.walk(part) if isinstance(n, ast.Call)] if before else []
    plain = [n for n in before if _is_meant_so(n)] or [
        n for n in before if isinstance(n, ast.Expr) and any(_through_others(region, n, calls, repeats=True))
    ]
    return max([*ahead, *plain], key=lambda n: n.lineno, default=None)


def idle_warm_up(region: Region) -> ast.stmt | None:
    """The same where it only warms up: first steps of the program's are in a branch apart from the capture."""
    block = warm_up_of(region)
    return block if block is not None and _is_idle(region, block) else None


def _is_idle(region: Region, block: ast.stmt) -> bool:
    tree = tree_of(region.code.co_filename)
    for test in (n for n in every(tree) if isinstance(n, ast.If)) if tree is not None else ():
        for branch, other in ((test.body, test.orelse), (test.orelse, test.body)):
            leaves = bool(branch) and isinstance(branch[-1], (ast.Return, ast.Continue))
            apart = _holds(branch, block.lineno) and not _holds(branch, region.line)
            if apart and (leaves or _holds(other, region.line)):
                return False
    return True


def _holds(branch: list[ast.stmt], line: int) -> bool:
    return any(n.lineno <= line <= (n.end_lineno or n.lineno) for n in branch)


def _body_of(code: CodeType) -> list[ast.stmt]:
    """The statements of a function, or of the file."""
    tree = tree_of(code.co_filename)
    if tree is None or code.co_name == "<module>":
        return tree.body if tree is not None else []
    found = [n for n in every(tree) if defines(n, code)]
    return list(getattr(found[-1], "body", [])) if found else []


def _with_branches(body: list[ast.stmt]) -> list[ast.stmt]:
    """The same with those in its branches, in ``with torch.no_grad():`` and ``try:``, and in theirs."""
    inside = [*(_with_branches([*n.body, *n.orelse]) for n in body if isinstance(n, (ast.If, ast.Try)))]
    inside += [_with_branches(n.body) for n in body if isinstance(n, ast.With)]
    return [*body, *(n for part in inside for n in part)]


def _on_streams(body: list[ast.stmt], line: int) -> list[ast.With]:
    """The blocks on another stream ahead of a line, without those of functions that are only defined there."""
    found = (n for each in body for n in here(each) if isinstance(n, ast.With))
    return [n for n in found if (n.end_lineno or n.lineno) < line and _is_on_stream(n)]


def _is_on_stream(block: ast.With) -> bool:
    calls = (item.context_expr for item in block.items)
    return any(isinstance(each, ast.Call) and last_name(each.func) == "stream" for each in calls)


def _runs_apart(file: str, statement: ast.Expr) -> bool:
    """Whether a statement calls a function of its file that has a block on another stream."""
    tree, called = tree_of(file), statement.value
    name = last_name(called.func) if isinstance(called, ast.Call) else ""
    return bool(name) and tree is not None and name in _apart_in(tree)


@lru_cache(64)
def _apart_in(tree: ast.Module) -> frozenset[str]:
    """The names of a file's functions that have such a block."""
    makes = (n for n in every(tree) if isinstance(n, ast.FunctionDef))
    blocks = ((f.name, n) for f in makes for each in f.body for n in here(each))
    return frozenset(name for name, n in blocks if isinstance(n, ast.With) and _is_on_stream(n))


def _is_meant_so(node: ast.stmt) -> bool:
    """Whether it is ``for _ in range(3): step()``, or a call of what is called a warm-up."""
    if isinstance(node, ast.For):
        ranged = isinstance(node.iter, ast.Call) and last_name(node.iter.func) == "range"
        names = {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        used = {n.id for part in node.body for n in ast.walk(part) if isinstance(n, ast.Name)}
        fills = any(isinstance(n, ast.Call) and last_name(n.func) in _FILLS for n in ast.walk(node))
        return ranged and names.isdisjoint(used) and not fills
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and "warm" in last_name(call.func).lower()
