"""Advice for a function that keeps a table of graphs: each has a tensor of its own for what it is given."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramgraph_kit.rewrite.advised.given_kinds import made_and_filled
from paramgraph_kit.rewrite.source.edits import Function, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, called

_WHY = "the graph reads the tensor that was there at its capture"


def with_each_graph(place: Place, function: Function, *, freed: bool) -> str:
    """``self.held_x[key]``: what the capture of each key reads, and what is written ahead of its replay.

    ``freed``: it is told of a line of a capture that reads a tensor which is freed by now.
    """
    given = [name for name in arguments_of(function) if name != "self"]
    blocks = [n for n in _nodes(function) if is_capture(n)]
    if len(blocks) != 1:
        return ""
    inside = [n for part in blocks[0].body for n in ast.walk(part)]  # type: ignore[attr-defined]
    if freed and place.statement not in inside:
        return ""
    read = {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    line = names_in(place.statement) if freed else read
    names = [name for name in given if name in read & line and not _is_number(function, name)]
    if len(names) != 1 or _is_given_anew(function, names[0]):
        return ""  # of several nobody knows which is meant, or what it is where it is replayed
    (name,) = names
    own = "self." if "self" in arguments_of(function)[:1] else ""
    held, first = f"{own}held_{name}", ""
    if has_several(function):
        table = _table(function)
        if table is None or not _is_asked_alike(function, table):
            return ""
        path = ast.unparse(table.value)
        made = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.stmt) and _makes(n, path)]
        beside = f"beside line {made[0].lineno}, `{place.text(made[0])}`" if len(made) == 1 else f"beside `{path}`"
        first = f"`{held} = {{}}` {beside}, "
        held = f"{held}[{ast.unparse(table.slice)}]"
    elif not own:
        first = f"`global {held}` begins the function, "
    ahead = "ahead of the replay comes" if freed else "before this line comes"
    each = ": one tensor for all graphs would be that of the last capture, and " if "[" in held else ": "
    copied, filled = made_and_filled(name, held, inside, place.source.tree)
    return (
        f"{first}before the capture `{held} = {copied}`, the capture reads `{held}` for `{name}`, and "
        f"{ahead} `{filled}`{each}{_WHY}"
    )


def keeps_several(function: Function) -> bool:
    """Whether it puts graphs into a table, by what they are for: a tensor of each capture would be another one."""
    return _table(function) is not None


def has_several(function: Function) -> bool:
    """The same of a function that captures itself: what an object has as `self.graph` is one."""
    items = (item.context_expr for n in _nodes(function) if is_capture(n) for item in n.items)  # type: ignore[attr-defined]
    graphs = [call.args[0] for call in items if isinstance(call, ast.Call) and call.args]
    return keeps_several(function) and not (graphs and all(isinstance(graph, ast.Attribute) for graph in graphs))


def is_capture(node: ast.AST) -> bool:
    """Whether it is a `with` that captures."""
    items = node.items if isinstance(node, ast.With) else []
    calls = [item.context_expr for item in items if isinstance(item.context_expr, ast.Call)]
    return any(called(call) in ("graph", "capture") for call in calls)


def _nodes(function: Function) -> Iterator[ast.AST]:
    return (n for part in function.body for n in within(part))


def _table(function: Function) -> ast.Subscript | None:
    """``self.graphs[key]``, as it is filled."""
    for node in (n for n in _nodes(function) if isinstance(n, ast.Assign)):
        target = node.targets[0]
        is_entry = isinstance(target, ast.Subscript) and not isinstance(target.slice, (ast.Constant, ast.Slice))
        if isinstance(target, ast.Subscript) and is_entry and path_of(target.value):
            return target
    return None


def _makes(node: ast.AST, path: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return any(ast.unparse(target) == path for target in targets)


def _is_given_anew(function: Function, name: str) -> bool:
    """Whether a function gives an argument something else, or a variable more than once."""
    stored = [n.id for n in _nodes(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return stored.count(name) > (name not in arguments_of(function))


def _is_asked_alike(function: Function, table: ast.Subscript) -> bool:
    """Whether all lines that ask a table have its key by the same words, which mean the same."""
    path, key, asked = ast.unparse(table.value), ast.unparse(table.slice), list[str]()
    for node in _nodes(function):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and ast.unparse(node.value) == path:
            asked.append(ast.unparse(node.slice))
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func) == f"{path}.get":
            asked.append(ast.unparse(node.args[0]))
    return {*asked} == {key} and not any(_is_given_anew(function, name) for name in names_in(table.slice))


def _is_number(function: Function, name: str) -> bool:
    """Whether an argument is said to be a number or a text, which no graph reads."""
    parts = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    kinds = {a.arg: ast.unparse(a.annotation) for a in parts if a.annotation is not None}
    return kinds.get(name) in ("int", "float", "bool", "str")
