"""Callers of what a program captures by itself, where its rewritten lines return more than before.

``self.loss = self.body(self.x)`` stands in the program's own capture, and would get a tuple.
"""

from __future__ import annotations

import ast

from paramgraph_kit.doctor.observe.own_managers import CAPTURES
from paramgraph_kit.rewrite.source.edits import Source, path_of
from paramgraph_kit.rewrite.source.moving import Moved
from paramgraph_kit.rewrite.source.place import called, fresh, names_of
from paramgraph_kit.rewrite.ways import Ways

RETURNS = (
    "`{name}` returns `{values}` now, and whoever calls it takes that: {lines}; `{behind}` is given these behind each "
    "replay"
)
BESIDE = ", and behind the call at line{s} {lines}, too, which runs all of it without a graph"
MOST = 4


def take_more(mover: Ways, moved: Moved) -> list[str]:
    """What the callers of a captured function write now, where one of them stands in a capture of the program's own."""
    if not moved.extra or mover.entry is None:
        return []
    found = [
        (source, node)
        for source in mover.sources.values()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and called(node) == mover.entry_name and not _is_in_it(source, node, mover)
    ]
    if not any(_is_captured(source, node) for source, node in found):
        return []
    written = [(source, node, text) for source, node in found if (text := _written(source, node, moved))]
    lines = [text for *_, text in written]
    values = ", ".join(moved.parameters[moved.arguments :])
    told = ", ".join(dict.fromkeys(lines[:MOST]))
    said = RETURNS.format(name=mover.entry_name, values=values, lines=told, behind=moved.name)
    eager = dict.fromkeys(f"{node.lineno}" for source, node, _ in written if not _is_captured(source, node))
    said += BESIDE.format(lines=", ".join(eager), s="s" if len(eager) > 1 else "") if eager else ""
    return [said] if lines else []


def _is_in_it(source: Source, node: ast.AST, mover: Ways) -> bool:
    function = source.function_of(node)
    return function is not None and function.name == mover.entry_name


def _is_captured(source: Source, node: ast.AST) -> bool:
    """Whether a node stands in a ``with cuda.graph(g):``."""
    blocks = [each for each in source.above(node) if isinstance(each, ast.With)]
    items = [item.context_expr for each in blocks for item in each.items]
    return any(isinstance(each, ast.Call) and called(each) in CAPTURES for each in items)


def _written(source: Source, call: ast.Call, moved: Moved) -> str:
    """The line of a caller that takes all of the results; "" where it takes none, and has no use for more."""
    statement, text = source.statement_of(call), source.text(call)
    names = moved.parameters[moved.arguments :]
    kept = moved.results - moved.extra
    # Of an object's graph they are asked for in later calls, too.
    own = "self." if isinstance(call.func, ast.Attribute) and path_of(call.func.value) == "self" else ""
    prefix = own if _is_captured(source, call) else ""
    # A name that is any other's, too, is given another tensor there, perhaps by what runs behind each replay.
    taken = names_of(source.tree) | {n.attr for n in ast.walk(source.tree) if isinstance(n, ast.Attribute)}
    new = [f"{prefix}{fresh(f'{name}_out', taken)}" for name in names[kept:]]
    more, line = ", ".join(new), f"line {call.lineno} "
    if isinstance(statement, ast.Expr) and statement.value is call:
        return f"{line}`{'*_, ' if kept else ''}{more} = {text}`" if _is_captured(source, call) else ""
    if isinstance(statement, ast.Assign) and statement.value is call and len(statement.targets) == 1:
        target = source.text(statement.targets[0])
        if moved.returns:
            return f"{line}`{more} = {text}`, and `{target}` is what `{moved.name}` returns"
        several = isinstance(statement.targets[0], (ast.Tuple, ast.List))
        return f"{line}`{target if several or kept == 1 else '*' + target}, {more} = {text}`"
    if moved.returns or not kept:
        return f"{line}gets what is needed behind the launch from `{text}`, and no result"
    after = f"{ast.unparse(call.func).rpartition('.')[0]}.{moved.name}".lstrip(".")
    given = ", ".join([*(each for each in moved.parameters[: moved.arguments] if each != "self"), "*results"])
    result = "results[0]" if kept == 1 else f"results[:{kept}]"
    return f"{line}`results = {text}`, `{after}({given})` and `{result}` for `{text}`"
