"""A list of the last few tensors that each step moves on by one: its tensors stay, and their numbers move.

``self.past = self.past[1:] + [x]`` would leave a graph with the tensors of its capture.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator

import torch

from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.rewrite.expressions.state.carried import held_by, keeps_or_exchanges
from paramgraph_kit.rewrite.source.edits import Edit, Function, path_of, within
from paramgraph_kit.rewrite.source.moving import is_kept
from paramgraph_kit.rewrite.source.place import Place, called, fresh, integer


def move_the_numbers(place: Place) -> list[Edit]:
    """Each tensor of a list that is read gets the numbers of the next one, and the last one those that are new."""
    function = place.source.function_of(place.statement)
    if function is None:
        return []
    edits = list[Edit]()
    read = {path_of(n) for n in ast.walk(place.statement) if isinstance(n, (ast.Name, ast.Attribute)) and _loads(n)}
    for path in sorted(filter(None, read)):
        changes = list(_changes(place, function, path)) if _is_list(place, function, path) else []
        if len(changes) != 1:
            continue
        gone, value = changes[0]
        held, new = (fresh(word, place.taken) for word in ("held", "new"))
        each = "each" if "each" not in place.taken else fresh("each", place.taken)
        lines = [
            f"for {held}, {new} in zip({path}, [{each}.clone() for {each} in {value}], strict=True):",
            f"    {held}.copy_({new}{'.detach()' * place.trains}.view_as({held}))",
        ]
        edits.append(place.source.replace(gone[-1], f"\n{place.source.indent(gone[-1])}".join(lines)))
        edits += [place.source.without(node) for node in gone[:-1]]
    return edits


def _loads(node: ast.Name | ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Load)


def _is_list(place: Place, function: Function, path: str) -> bool:
    """Whether a path leads to tensors of their own, in a list from around the function that keeps them to itself."""
    first = path.partition(".")[0]
    if path.count(".") > 1 or (first != "self" and place.is_local(first)):
        return False
    value = held_by(place, path)
    parts = list(value) if type(value) in (list, deque) else []
    if len(parts) < 2 or not all(isinstance(part, torch.Tensor) and not part.requires_grad for part in parts):
        return False
    if len({storage_key(part) for part in parts}) != len(parts):
        return False
    table = next(n for n in ast.walk(function) if isinstance(n, (ast.Name, ast.Attribute)) and path_of(n) == path)
    if keeps_or_exchanges(place, table):
        return False
    for node in (n for n in ast.walk(function) if isinstance(n, ast.Subscript) and path_of(n.value) == path):
        above = place.source.parents.get(node)
        if isinstance(node.ctx, ast.Store) and _moves(place, node, path):
            continue
        if is_kept(place.source, node) and not isinstance(node.slice, ast.Slice) and not _is_in_list(place, node):
            return False  # by another name it would be another one
        if isinstance(above, ast.Return):
            return False
    return True


def _moves(place: Place, node: ast.AST, path: str) -> bool:
    """Whether a place is one of those that get the whole list anew."""
    statement = place.source.statement_of(node)
    block = place.source.block_of(statement)
    before = block[block.index(statement) - 1] if statement in block[1:] else statement
    pairs = (each for one in (statement, before) if (each := moved_in_two(place, one, path)) is not None)
    return isinstance(statement, ast.Assign) and (
        bool(_in_places(place, statement, path)) or any(statement in gone for gone, _ in pairs)
    )


def _is_in_list(place: Place, node: ast.AST) -> bool:
    """Whether an element is put back into a list, ``[past[1], x]``, or given to torch."""
    above = place.source.parents.get(node)
    given = isinstance(above, ast.Call) and path_of(above.func).partition(".")[0] in ("torch", "F")
    return given or isinstance(above, ast.List)


def _changes(place: Place, function: Function, path: str) -> Iterator[tuple[list[ast.stmt], str]]:
    """The statements that move a list on, and the list that comes of them."""
    ends, done = list[tuple[str, ast.Expr, ast.Call]](), list[ast.AST]()
    for node in (n for part in function.body for n in within(part)):
        if (both := moved_in_two(place, node, path)) is not None:
            done += both[0]
            yield both
        elif node in done:
            continue
        elif isinstance(node, ast.Assign) and [path_of(t) for t in node.targets] == [path]:
            yield [node], place.text(node.value)
        elif isinstance(node, ast.Assign) and (whole := _in_places(place, node, path)):
            yield [node], whole
        call = node.value if isinstance(node, ast.Expr) else None
        method = call.func if isinstance(call, ast.Call) else None
        if isinstance(node, ast.Expr) and isinstance(call, ast.Call) and isinstance(method, ast.Attribute):
            ends += [(called(call), node, call)] * (path_of(method.value) == path)
    if not ends:
        return
    names = tuple(sorted((name for name, _, _ in ends), reverse=True))
    value, first = _moved_on(names, [call for _, _, call in ends], held_by(place, path))
    blocks = {id(place.source.parents[node]) for _, node, _ in ends}
    between = [n for n in place.source.block_of(ends[0][1]) if ends[0][1].lineno < n.lineno < ends[-1][1].lineno]
    asks = any(isinstance(n, (ast.Name, ast.Attribute)) and path_of(n) == path for s in between for n in ast.walk(s))
    if value is not None and len(blocks) == 1 and not asks:
        yield [node for _, node, _ in ends], first.format(path, place.text(value))


def _in_places(place: Place, node: ast.Assign, path: str) -> str:
    """The list that its places get at once, ``past[0], *past[1:] = [x, *past[:-1]]`` and ``past[:] = ...``, or ""."""
    target, value = node.targets[0], node.value
    if len(node.targets) != 1:
        return ""
    if _place_in(target, path) == ":":
        return place.text(value)
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
    stars = [isinstance(each, ast.Starred) for each in parts]
    at = [_place_in(each.value if isinstance(each, ast.Starred) else each, path) for each in parts]
    if sum(stars) == 1:
        return place.text(value) if (stars[1] and at == ["0", "1:"]) or (stars[0] and at == [":-1", "-1"]) else ""
    given = value.elts if isinstance(value, (ast.Tuple, ast.List)) and not any(stars) else []
    texts = {name: place.text(each) for name, each in zip(at, given, strict=False)} if len(given) == 2 else {}
    if texts.keys() == {"0", "1:"}:
        return f"[{texts['0']}, *{texts['1:']}]"
    return f"[*{texts[':-1']}, {texts['-1']}]" if texts.keys() == {":-1", "-1"} else ""


def moved_in_two(place: Place, node: ast.AST, path: str) -> tuple[list[ast.stmt], str] | None:
    """``past[1:] = past[:-1]`` with ``past[0] = x`` behind it, and the same at the other end: both, and the list."""
    block = place.source.block_of(node) if isinstance(node, ast.Assign) else []
    last = block[block.index(node) + 1] if isinstance(node, ast.Assign) and node in block[:-1] else None
    if not isinstance(node, ast.Assign) or not isinstance(last, ast.Assign):
        return None
    if len(node.targets) != 1 or len(last.targets) != 1:
        return None
    if any(isinstance(n, (ast.Name, ast.Attribute)) and path_of(n) == path for n in ast.walk(last.value)):
        return None
    value = node.value.args[0] if isinstance(node.value, ast.Call) and called(node.value) == "list" else node.value
    at, of, end = _place_in(node.targets[0], path), _place_in(value, path), _place_in(last.targets[0], path)
    texts = {
        ("1:", ":-1", "0"): f"[{place.text(last.value)}, *{path}[:-1]]",
        (":-1", "1:", "-1"): f"[*{path}[1:], {place.text(last.value)}]",
    }
    return ([node, last], texts[at, of, end]) if (at, of, end) in texts else None


def _place_in(node: ast.expr, path: str) -> str:
    """Which of a list's places a target is: ``0``, ``1:``."""
    is_of_it = isinstance(node, ast.Subscript) and path_of(node.value) == path
    return ast.unparse(node.slice) if isinstance(node, ast.Subscript) and is_of_it else ""


def _moved_on(names: tuple[str, ...], calls: list[ast.Call], held: object) -> tuple[ast.expr | None, str]:
    """What a list gets, and how it is written: ``pop(0)`` with ``append(x)``, ``insert(0, x)`` with ``pop()``."""
    by = {called(call): call for call in calls}
    if type(held) is deque:
        whole = names == ("append",) and len(held) == held.maxlen and len(by["append"].args) == 1
        return (by["append"].args[0], "[*list({0})[1:], {1}]") if whole else (None, "")
    if names == ("pop", "append") and [integer(each) for each in by["pop"].args] == [0]:
        return by["append"].args[0], "[*{0}[1:], {1}]"
    inserted = names == ("pop", "insert") and len(by["insert"].args) == 2 and integer(by["insert"].args[0]) == 0
    return (by["insert"].args[1], "[{1}, *{0}[:-1]]") if inserted and not by["pop"].args else (None, "")
