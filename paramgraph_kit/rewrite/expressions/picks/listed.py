"""Lists of places become the masks that they were made of: ``keep = torch.where(c)[0]`` is ``c``, of a fixed size."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from paramgraph_kit.rewrite.expressions.makes.values import fill_by_index
from paramgraph_kit.rewrite.expressions.picks.capacities import limits_of
from paramgraph_kit.rewrite.expressions.picks.masks import bracketed
from paramgraph_kit.rewrite.expressions.picks.rows import asks_for_one, asks_whether_any, counts
from paramgraph_kit.rewrite.expressions.picks.shapes import mask_of
from paramgraph_kit.rewrite.source.edits import Edit, Function, is_method, is_text, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh, integer, target_of
from paramgraph_kit.rewrite.source.pure import is_pure

_FLAT = frozenset(("flatten", "squeeze", "view", "reshape"))


def keep_the_mask(place: Place) -> list[Edit]:
    """``keep = torch.where(c)[0]`` that is an index, or asked how long it is, becomes ``keep = c``."""
    node, function = place.statement, place.source.function_of(place.statement)
    target = target_of(node)
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Name) or function is None:
        return []
    every = [n for part in function.body for n in within(part)]
    condition, columns = listed_mask(node.value), dict[ast.AST, ast.Subscript]()
    if condition is None:
        condition, columns = _listed_rows(place, node.value, target.id, every)
    limits = limits_of(place, node, target.id) if condition is not None else {}
    limited = {part for each in limits for part in ast.walk(each)}
    every = [n for n in every if n not in limited]
    if condition is None or sum(isinstance(n, ast.Name) and n.id == target.id for n in every if _is_stored(n)) > 1:
        return []
    reads = _reads(every, target.id)
    mask = mask_of(place, condition)
    handed = isinstance(condition, ast.Attribute) and any(_taken_by(place, n) for n in reads)  # which may write it
    if mask == place.text(condition) and (handed or is_written(every, path_of(condition))):
        mask += ".clone()"
    told = [place.source.replace(node.value, mask), *(edit for each in limits.values() for edit in each)]
    read = _read_as_mask(place, target.id, every, columns)
    return [*told, *read] if read is not None else []


def ask_of_each(place: Place) -> list[Edit]:
    """``there = [c for c in range(n) if x[c].sum() > 0]``, which is an index, becomes a mask of all of them."""
    node, function = place.statement, place.source.function_of(place.statement)
    target, value = target_of(node), getattr(node, "value", None)
    if not isinstance(target, ast.Name) or not isinstance(value, ast.ListComp) or function is None:
        return []
    asked, every = asked_of_each(place, value), [n for part in function.body for n in within(part)]
    if not asked or sum(isinstance(n, ast.Name) and n.id == target.id for n in every if _is_stored(n)) > 1:
        return []
    own = set(ast.walk(value))
    read = _read_as_mask(place, target.id, [n for n in every if n not in own], {})
    return [place.source.replace(value, asked), *read] if read is not None else []


def asked_of_each(place: Place, listed: ast.ListComp) -> str:
    """The mask of what a list of numbers from 0 on has left of them, or ""."""
    loop = listed.generators[0]
    counted = loop.iter
    from_zero = isinstance(counted, ast.Call) and path_of(counted.func) == "range" and len(counted.args) == 1
    alone = len(listed.generators) == 1 and isinstance(loop.target, ast.Name) and path_of(listed.elt) == loop.target.id
    if not alone or not from_zero or len(loop.ifs) != 1:
        return ""
    test = loop.ifs[0]
    text, is_pair = place.text(test), isinstance(test, ast.Compare) and len(test.ops) == 1
    if isinstance(test, ast.Call) and called(test) not in ("bool", "int", "float", "item"):
        text += " != 0" * (called(test) not in ("any", "all"))
    elif not is_pair or isinstance(test.ops[0], (ast.In, ast.NotIn, ast.Is, ast.IsNot)):  # type: ignore[attr-defined]
        return ""
    if not is_pure(place, test):
        return ""
    return f"torch.stack([{text} for {place.text(loop.target)} in {place.text(counted)}])"


def _reads(every: Iterable[ast.AST], name: str) -> list[ast.Name]:
    return [n for n in every if isinstance(n, ast.Name) and n.id == name and not _is_stored(n)]


def _read_as_mask(
    place: Place, name: str, every: Sequence[ast.AST], columns: Mapping[ast.AST, ast.Subscript]
) -> list[Edit] | None:
    """The edits of what reads a list of places by a name, which is a mask now; None where it has another use."""
    asked = {part: n for n in every if isinstance(n, ast.expr) and counts(n, name) for part in ast.walk(n)}
    reads = _reads(every, name)
    skips = [n for n in every if isinstance(n, ast.If) and _skips_nothing(place, n, name)]
    edits = [place.source.without(n) for n in skips]
    guards = [n for n in every if isinstance(n, ast.If) and _puts_where_any(place, n, name)]
    edits += [unguarded(place, n, columns.values()) for n in guards]
    gone = {part for n in skips for part in ast.walk(n)} | {part for n in guards for part in ast.walk(n.test)}
    lengths = {n for read, n in asked.items() if read in reads and read not in gone}
    edits += [_length(place, n, name) for n in lengths if isinstance(n, ast.expr)]
    open_ = {part for n in guards for part in ast.walk(n)}
    edits += [place.source.replace(each, name) for each in columns.values() if each not in open_]
    picks = [columns.get(n, n) for n in reads if n not in asked and n not in gone]
    fits = all(_is_index(place, n) or _is_index_of_helper(place, n) for n in picks)
    return edits if picks and fits else None


def keep_the_mask_of_pairs(place: Place) -> list[Edit]:
    """``a, b = torch.where(c)`` of which only ``x[a, b]`` is read: that is ``x[c]``, in the same order."""
    node, function = place.statement, place.source.function_of(place.statement)
    target = target_of(node)
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Tuple) or function is None:
        return []
    names = [each.id for each in target.elts if isinstance(each, ast.Name)]
    condition = listed_by(node.value)
    if condition is None or len(set(names)) != len(target.elts):
        return []
    every = [n for part in function.body for n in within(part)]
    used = [n for n in every if isinstance(n, ast.Name) and n.id in names and n not in target.elts]
    picks = {above for n in used if (above := place.source.parents.get(n)) is not None}
    if not picks or not all(_picks_by(place, each, names) for each in picks):
        return []
    path, mask, edits = path_of(condition), mask_of(place, condition), [place.source.without(node)]
    given = [n for n in every if isinstance(n, ast.Name) and n.id == path and _is_stored(n)]
    if not isinstance(condition, ast.Name) or mask != path or len(given) > 1 or is_written(every, path):
        path = fresh("there", place.taken)
        mask = f"{bracketed(mask)}.clone()" if isinstance(condition, (ast.Name, ast.Attribute)) else mask
        edits = [place.source.replace(node, f"{path} = {mask}")]
    return [*edits, *(place.source.replace(each, path) for each in picks if isinstance(each, ast.Tuple))]


def listed_by(value: ast.expr) -> ast.expr | None:
    """``c`` of ``torch.where(c)`` and ``c.nonzero(as_tuple=True)``."""
    if not isinstance(value, ast.Call) or called(value) not in ("where", "nonzero"):
        return None
    if [option.arg for option in value.keywords] != ["as_tuple"] * (called(value) == "nonzero"):
        return None
    return of_call(value)


def of_call(call: ast.Call) -> ast.expr | None:
    """``c`` of ``torch.where(c)``, ``torch.nonzero(c)`` and ``c.nonzero()``."""
    if called(call) == "nonzero" and not call.args and isinstance(call.func, ast.Attribute):
        return call.func.value
    return call.args[0] if len(call.args) == 1 else None


def _picks_by(place: Place, node: ast.AST, names: list[str]) -> bool:
    """Whether a node is the index ``a, b`` of a value that is read."""
    above = place.source.parents.get(node)
    if not isinstance(node, ast.Tuple) or [path_of(each) for each in node.elts] != names:
        return False
    return isinstance(above, ast.Subscript) and above.slice is node and isinstance(above.ctx, ast.Load)


def is_written(every: Iterable[ast.AST], path: str) -> bool:
    """Whether something is written in its place anywhere: a mask that is, is not what it was when it was listed."""
    for node in every:
        targets: list[ast.expr] = [node.target] if isinstance(node, ast.AugAssign) else []
        targets += [n for n in node.targets if isinstance(n, ast.Subscript)] if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node).endswith("_"):
            targets.append(node.func.value)
        if path and path in map(path_of, targets):
            return True
    return False


def fill_unless_a_mask(place: Place) -> list[Edit]:
    """``x[at] = 3.0``, which stays as it is where ``at`` becomes a mask."""
    node, function = place.statement, place.source.function_of(place.statement)
    target = target_of(node)
    name = path_of(target.slice) if isinstance(target, ast.Subscript) else ""
    for one, listed in [(function, name), *_handed_from(place, function, name)]:
        for part in one.body if one is not None and listed else ():
            for made in (n for n in within(part) if isinstance(n, ast.Assign) and listed in map(path_of, n.targets)):
                if keep_the_mask(replace(place, statement=made)):
                    return []
    return fill_by_index(place)


def _handed_from(place: Place, function: Function | None, name: str) -> Iterator[tuple[Function | None, str]]:
    """Functions that hand a list of places to this one, and the names they have for it."""
    for call in ast.walk(place.source.tree) if function is not None else ():
        given = call.args[0] if isinstance(call, ast.Call) and len(call.args) == 1 else None
        if isinstance(given, ast.Name) and _taken_by(place, given) == (function, name):
            yield place.source.function_of(call), given.id


def _taken_by(place: Place, node: ast.expr) -> tuple[Function, str] | None:
    """The function of the file that a name is handed to, by its only call, and the name it has there."""
    call, every = place.source.parents.get(node), list(ast.walk(place.source.tree))
    if not isinstance(call, ast.Call) or call.args != [node] or call.keywords:
        return None
    helpers = [n for n in every if isinstance(n, Function) and n.name == called(call)]
    if len(helpers) != 1 or sum(isinstance(n, ast.Call) and called(n) == called(call) for n in every) != 1:
        return None
    names = arguments_of(helpers[0])[is_method(place.source, helpers[0]) :]
    return (helpers[0], names[0]) if names else None


def _is_index_of_helper(place: Place, node: ast.expr) -> bool:
    """Whether a name is handed to a function that only picks and puts by it: ``self.reset(at)``."""
    taken = _taken_by(place, node)
    every = [n for part in (taken[0].body if taken is not None else ()) for n in within(part)]
    reads = [n for n in every if isinstance(n, ast.Name) and taken is not None and n.id == taken[1]]
    return bool(reads) and all(_is_index(place, n) for n in reads)


def _puts_where_any(place: Place, node: ast.If, name: str) -> bool:
    """``if len(at) > 0:`` before lines that only put something at these places, and do nothing where there is none."""
    only = not node.orelse and all(_only_puts(place, part, name) for part in node.body)
    return only and asks_for_one(node.test, name)


def _only_puts(place: Place, node: ast.stmt, name: str) -> bool:
    """Whether a statement does nothing but put something at places, itself or in a function that it calls."""
    if isinstance(node, (ast.Assign, ast.AugAssign)) and not is_pure(replace(place, statement=node), node.value):
        return False  # without any, it would still draw, or count
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return all(isinstance(n, ast.Subscript) and path_of(n.slice) == name for n in targets)
    call = node.value if isinstance(node, ast.Expr) else None
    given = call.args[0] if isinstance(call, ast.Call) and len(call.args) == 1 else None
    if given is None or path_of(given) != name or (taken := _taken_by(place, given)) is None:
        return False
    return all(is_text(part) or _only_puts(place, part, taken[1]) for part in taken[0].body)


def unguarded(place: Place, node: ast.If, columns: Iterable[ast.Subscript] = ()) -> Edit:
    """The lines of a branch, without its question, and with the names of which they read a column."""
    first, indent = place.source.indent(node.body[0]), place.source.indent(node)
    text = "\n".join(map(place.text, node.body))
    for each in columns:
        text = re.sub(rf"(?<![\w.]){re.escape(place.text(each))}", place.text(each.value), text)
    lines = text.split("\n")
    return place.source.replace(node, f"\n{indent}".join(line.removeprefix(first) for line in lines))


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)


def _length(place: Place, node: ast.expr, name: str) -> Edit:
    """How many a mask lists, where it is asked for; ``if len(at) > 0:`` only asks whether there is one."""
    above = place.source.parents.get(node)
    test = above if isinstance(above, ast.Compare) and asks_for_one(above, name) else node
    if isinstance(branch := place.source.parents.get(test), ast.If) and branch.test is test:
        return place.source.replace(test, f"{name}.any()")
    return place.source.replace(node, f"int({name}.sum())")


def _listed_rows(
    place: Place, value: ast.expr, name: str, every: Iterable[ast.AST]
) -> tuple[ast.expr | None, dict[ast.AST, ast.Subscript]]:
    """``c`` of ``at = c.nonzero()`` with one column, and each ``at[:, 0]`` by the ``at`` in it."""
    known = place.tensors.get(name)
    if not isinstance(value, ast.Call) or called(value) != "nonzero" or value.keywords or known is None:
        return None, {}
    if list(known.shape[1:]) != [1]:
        return None, {}
    picked = (n for n in every if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Tuple))
    return of_call(value), {n.value: n for n in picked if path_of(n.value) == name and place.text(n.slice) == ":, 0"}


def _is_index(place: Place, name: ast.expr) -> bool:
    """Whether a name is an index by itself, or the first of one whose others are slices and ``None``."""
    above = place.source.parents.get(name)
    if isinstance(above, ast.Tuple) and above.elts[0] is name:
        plain = all(
            isinstance(n, ast.Slice) or (isinstance(n, ast.Constant) and n.value is None) for n in above.elts[1:]
        )
        return plain and isinstance(place.source.parents.get(above), ast.Subscript)
    return isinstance(above, ast.Subscript) and above.slice is name


def _skips_nothing(place: Place, node: ast.If, name: str) -> bool:
    """``if len(at) == 0: continue`` before lines that do nothing where there is none."""
    above = place.source.parents.get(node)
    block = getattr(above, "body", [])
    if not asks_whether_any(node, name) or node not in block:
        return False
    rest = block[block.index(node) + 1 :]
    inside = {id(n) for part in rest for n in ast.walk(part)}
    function = place.source.function_of(node)
    named = [n for n in ast.walk(function or node) if isinstance(n, ast.Name) and id(n) not in inside]
    own = stored(rest) - {n.id for n in named}
    for part in rest:
        if isinstance(part, (ast.Assign, ast.AugAssign)) and not is_pure(place, part.value):
            return False
        if isinstance(part, ast.Assign) and all(isinstance(n, ast.Name) and n.id in own for n in part.targets):
            continue  # of this round alone
        targets = part.targets if isinstance(part, ast.Assign) else []
        targets = [part.target] if isinstance(part, ast.AugAssign) else targets
        adds = isinstance(part, ast.AugAssign) and isinstance(part.op, ast.Add) and counts(part.value, name)
        into = all(isinstance(n, ast.Subscript) and path_of(n.slice) == name for n in targets)
        if not targets or not (into or adds):
            return False
    return True


def listed_mask(value: ast.expr) -> ast.expr | None:
    """``c`` of ``torch.where(c)[0]``, of ``c.nonzero().squeeze(1)`` and of what else lists where it holds."""
    if isinstance(value, ast.Subscript):
        first = value.slice.elts[-1] if isinstance(value.slice, ast.Tuple) else value.slice
        if integer(first) != 0:
            return None
        inner, listed = value.value, not isinstance(value.slice, ast.Tuple)
    elif isinstance(value, ast.Call) and called(value) in _FLAT and isinstance(value.func, ast.Attribute):
        inner, listed = value.func.value, False
    else:
        return None
    if not isinstance(inner, ast.Call):
        return None
    options = {option.arg for option in inner.keywords}
    asked = (option.value for option in inner.keywords if option.arg == "as_tuple")
    as_tuple = called(inner) == "where" or any(not isinstance(n, ast.Constant) or n.value is True for n in asked)
    if called(inner) not in ("where", "nonzero", "argwhere") or options - {"as_tuple"} or as_tuple != listed:
        return None
    return of_call(inner)
