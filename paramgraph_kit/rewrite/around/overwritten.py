"""What a line reads that the step writes once more behind it: done after the launch it would find the later numbers.

``if x.norm() > 300: big += 1`` ahead of ``x.mul_(0.5)`` keeps its question in the graph, under a name, and only what
the host does with the answer goes behind the launch. That steps agree does not tell: the answer may be the same in all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import torch

from paramgraph_kit.rewrite.expressions.decisions.branches import condition_on_device
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, is_method, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import TO_HOST, Place, called, fresh
from paramgraph_kit.rewrite.source.pure import is_pure
from paramgraph_kit.rewrite.source.writes import touches

_DEEP = 3  # functions that others call
_SAME = (
    *TO_HOST,
    "detach",
    "view",
    "reshape",
    "squeeze",
    "flatten",
    "unsqueeze",
    "t",
    "transpose",
    "permute",
    "narrow",
)
_HOST = (ast.If, ast.Expr, ast.Assign, ast.AugAssign)


def overwritten(place: Place, node: ast.stmt) -> set[str]:
    """Tensors that a statement reads, and that the step writes in place before what comes behind its launch."""
    function = place.source.function_of(node)
    if function is None:
        return set()
    named = {path_of(n) for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute)) and _is_read(n)}
    read = {path: {path, *_origins(function, path)} for path in named if _is_tensor(place, path)}
    every = {path for origins in read.values() for path in origins}
    written = set(_written_behind(place, function, node, every, _DEEP)) if every else set[str]()
    return {path for path, origins in read.items() if origins & written}


def keep_the_answer(place: Place) -> list[Edit]:
    """What the host reads of such a tensor is computed where the line stands, and read under its name."""
    node, source = place.statement, place.source
    if not isinstance(node, _HOST) or node not in source.block_of(node) or _is_elif(source, node):
        return []
    if not (lost := overwritten(place, node)):
        return []
    edits, lines, kept = list[Edit](), list[str](), set[ast.AST]()
    spots = list(_read_there(node))
    if isinstance(node, ast.If) and not any(_names(each, lost) for each in spots):
        spots = [node.test]
    taken = place.taken
    for spot in (each for each in spots if each not in kept and _names(each, lost)):
        if not is_pure(place, spot):
            return []
        name = fresh("asked" if spot is getattr(node, "test", None) else "then", taken)
        taken |= {name}
        text = condition_on_device(place, spot) if spot is getattr(node, "test", None) else place.text(spot)
        lines.append(f"{name} = {text if _is_new(spot) else f'{source.bracketed(spot)}.clone()'}")
        edits.append(source.replace(spot, name))
        kept |= set(ast.walk(spot))
    left = {path_of(n) for n in ast.walk(node) if n not in kept and isinstance(n, (ast.Name, ast.Attribute))}
    return [source.before(node, lines), *edits] if lines and not left & lost else []


def _is_read(node: ast.Name | ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Load)


def _is_elif(source: Source, node: ast.stmt) -> bool:
    above = source.parents[node]
    return isinstance(node, ast.If) and isinstance(above, ast.If) and node in above.orelse


def _read_there(node: ast.stmt) -> Iterator[ast.expr]:
    """What a statement brings to the host, the outermost first."""
    for part in ast.walk(node):
        if not isinstance(part, ast.Call):
            continue
        if isinstance(part.func, ast.Attribute) and part.func.attr in TO_HOST:
            yield part.func.value
        elif isinstance(part.func, ast.Name) and part.func.id in ("float", "int", "bool") and len(part.args) == 1:
            yield part.args[0]


def _names(node: ast.AST, lost: set[str]) -> bool:
    return any(isinstance(n, (ast.Name, ast.Attribute)) and path_of(n) in lost for n in ast.walk(node))


def _is_new(node: ast.expr) -> bool:
    """Whether what an expression gives is in memory of its own."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node) in _SAME:
        return _is_new(node.func.value)
    return not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))


def _is_tensor(place: Place, path: str) -> bool:
    name = path.partition(".")[0]
    if "." not in path and place.is_local(name):
        return name in place.seen or place.form(name) is not None
    return isinstance(place.value(path), torch.Tensor)


def _origins(function: Function, path: str) -> Iterator[str]:
    """Other paths whose memory a local name may have: ``self.x`` where ``x = self.x.view(-1)``."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == path for t in node.targets):
            value: ast.expr = node.value
            while isinstance(value, (ast.Call, ast.Subscript)):
                if isinstance(value, ast.Call) and (not isinstance(value.func, ast.Attribute) or _is_new(value)):
                    break
                value = value.func.value if isinstance(value, ast.Call) else value.value  # type: ignore[attr-defined]
            if origin := path_of(value):
                yield origin


def _written_behind(place: Place, function: Function, node: ast.stmt, read: set[str], deep: int) -> Iterator[str]:
    """Those of some paths that something behind a statement writes, as far as the step goes."""
    source = place.source
    for behind in _behind(source, node):
        for path in _written(source, behind, _DEEP):
            yield from (each for each in read if touches(path, each))
    if deep == 0 or function.name == place.entry.rpartition(".")[2]:
        return
    for call in (n for n in source.parents if isinstance(n, ast.Call) and called(n) == function.name):
        around = source.function_of(call)
        if around is None or around is function:
            continue
        theirs = {each: there for each in read if (there := _at_call(source, function, call, each))}
        found = set(_written_behind(place, around, source.statement_of(call), set(theirs.values()), deep - 1))
        yield from (each for each, there in theirs.items() if there in found)


def _behind(source: Source, node: ast.stmt) -> Iterator[ast.stmt]:
    """What runs behind a statement in its function: what follows it, and all of the loops that it is in."""
    at: ast.AST = node
    while isinstance(at, ast.stmt) and not isinstance(at, Function):
        block, above = source.block_of(at), source.parents[at]
        yield from block[block.index(at) + 1 :] if at in block else ()
        if isinstance(above, (ast.For, ast.While)):
            yield from (each for each in above.body if each is not at)
        at = above


def _written(source: Source, node: ast.stmt, deep: int) -> Iterator[str]:
    """The paths by which a statement, and what it calls in this file, writes tensors in place."""
    for part in within(node):
        target: ast.expr | None = None
        if isinstance(part, ast.AugAssign):
            target = part.target
        elif isinstance(part, (ast.Subscript, ast.Attribute)) and isinstance(part.ctx, ast.Store):
            target = part
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and _fills(part.func.attr):
            target = part.func.value
        if path := _owner(target):
            yield path
        if not isinstance(part, ast.Call) or not deep:
            continue
        for one in (n for n in source.parents if isinstance(n, Function) and n.name == called(part)):
            inside = {path for each in one.body for path in _written(source, each, deep - 1)}
            yield from filter(None, (_at_call(source, one, part, path) for path in inside))


def _fills(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__") and name not in ("requires_grad_", "clip_grad_norm_")


def _owner(node: ast.expr | None) -> str:
    """The path whose memory is written: ``self.x`` of ``self.x[0]`` and of ``self.x.mul_(2).add_``."""
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.value if isinstance(node, ast.Subscript) else getattr(node.func, "value", None)
    return path_of(node) if node is not None else ""


def _at_call(source: Source, function: Function, call: ast.Call, path: str) -> str:
    """How a path of a function is written where it is called; "" for what is its own alone."""
    root, dot, rest = path.partition(".")
    names = arguments_of(function)
    given = [call.func.value] if is_method(source, function) and isinstance(call.func, ast.Attribute) else []
    known = dict(zip(names, [*given, *call.args], strict=False))
    known |= {option.arg: option.value for option in call.keywords if option.arg}
    if root in known:
        origin = _owner(known[root])
        return f"{origin}{dot}{rest}" if origin else ""
    own = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return "" if root in names or root in own else path
