"""A step that launches a part already, by an earlier diff: nothing is cut out around that once more."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from paramgraph_kit.doctor.diagnosis import Fix
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.rewrite.source.edits import Function, path_of
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import called

HOLDS = "what a graph holds"  # followed by how it is captured
ALREADY = "stays as it is, in `{}`, which a graph holds already"
_COPIES = ("torch.empty", "torch.empty_like", "torch.zeros", "torch.zeros_like", "copy_", "clone")
_RETURNS = ("detach",)  # what one clones may be kept by who calls it


def settled(fix: Rewriting) -> Rewriting:
    """The part that is there, as proved, where the one that was cut out only copies its inputs and calls that."""
    if not fix.alone or fix.more or fix.usage or fix.left or fix.instead:
        return fix
    for lines in fix.texts.values():
        tree = ast.parse("".join(lines))
        functions = {n.name: n for n in tree.body if isinstance(n, Function)}
        if (outer := functions.get(fix.alone)) is None or (statement := _calls_alone(outer)) is None:
            continue
        call = statement.value
        assert isinstance(call, ast.Call)
        inner = functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
        if inner is None or not _is_marked(lines, inner, fix) or call.keywords:
            continue
        given = [ast.unparse(each) for each in call.args]
        bound = arguments_of(outer)[: fix.bound]
        if given[: fix.bound] == bound and not {*given[fix.bound :]} & {*bound}:
            return _as_it_was(fix, inner.name, given, statement)
    return fix


def is_settled(fix: Fix) -> bool:
    """Whether a part is what a graph holds, and no line has to be another one for that."""
    return bool(fix.alone) and not fix.diff


def _calls_alone(outer: Function) -> ast.Assign | ast.Expr | None:
    """The one statement of a function that calls something of the user's, where others copy what it is given."""
    found = list[ast.Assign | ast.Expr]()
    for node in outer.body:
        if isinstance(node, ast.Return):
            calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
            if any(called(n) not in _RETURNS for n in calls):
                return None
        elif not isinstance(node, ast.Assign | ast.Expr):
            return None
        elif _only_copies(node):
            continue
        elif isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
            found.append(node)
        else:
            return None
    return found[0] if len(found) == 1 else None


def _only_copies(node: ast.Assign | ast.Expr) -> bool:
    """``temp_in = torch.empty((), device=device).copy_(temp_in_2)``."""
    paths = [path_of(n.func) or called(n) for n in ast.walk(node) if isinstance(n, ast.Call)]
    return bool(paths) and all(path in _COPIES or path.rpartition(".")[2] in _COPIES for path in paths)


def _is_marked(lines: list[str], function: Function, fix: Rewriting) -> bool:
    """Whether an earlier diff has cut a function out of this one."""
    name = re.escape(fix.function.rpartition(".")[2])
    return bool(re.search(rf"# (?:a part|one round of a loop) of {name}\s*$", lines[function.lineno - 1]))


def _as_it_was(fix: Rewriting, name: str, given: list[str], statement: ast.Assign | ast.Expr) -> Rewriting:
    captured = f"partial({', '.join([name, *given[: fix.bound]])})" if fix.bound else name
    results = f"{ast.unparse(statement.targets[0]).strip('()')} = " if isinstance(statement, ast.Assign) else ""
    held = f"{HOLDS}: capture `{fix.capture}`"
    told = [line.replace(held, f"{HOLDS} already: capture `{captured}`") for line in fix.verified]
    return replace(
        fix,
        alone=name,
        capture=captured,
        diff="",
        texts={},
        run={},
        loop=[f"{results}launched({', '.join(given[fix.bound :])})"],
        verified=[re.sub(rf"\b{re.escape(fix.alone)}\b", name, line) for line in told],
    )
