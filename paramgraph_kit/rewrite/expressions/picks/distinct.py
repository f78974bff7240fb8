"""Values that are there, each once: all of them are computed instead, or all that there may be are gone through.

``u, back = torch.unique(ids, return_inverse=True)`` with ``table(u)[back]`` at the end computes for each of ``ids``
what it would for one of each kind; ``for e in torch.unique(top)`` goes through all ``e`` that ``top = p.argmax(-1)``
can have, where what is done does nothing for those that are not there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import torch

from paramgraph_kit.rewrite.source.edits import Edit, Function, heads, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh, integer, target_of
from paramgraph_kit.rewrite.source.pure import is_pure
from paramgraph_kit.rewrite.source.rowwise import is_rowwise

NOT_BELOW = "# no number is below zero"  # by which what a rewriting takes for granted is found
_RANKS = ("argmax", "argmin")
_PAIRS = ("max", "min", "topk", "sort")


def compute_each(place: Place) -> list[Edit]:
    """``u, back = torch.unique(x, return_inverse=True)`` keeps all of ``x``, where each use is put back by ``back``."""
    node, function = place.statement, place.source.function_of(place.statement)
    target = target_of(node)
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Tuple) or function is None:
        return []
    names = [each.id for each in target.elts if isinstance(each, ast.Name)]
    x = given_to_unique(node.value)
    options = {o.arg for o in node.value.keywords} if isinstance(node.value, ast.Call) else set()
    if len(names) != 2 or x is None or not options <= {"return_inverse", "sorted"} or "return_inverse" not in options:
        return []
    rows, back = {names[0]}, names[1]
    if not _ends_in(place, function, rows, back):
        return []
    text = place.source.bracketed(x)
    all_of = f"{text}.flatten(), torch.arange({text}.numel(), device={text}.device).view({text}.shape)"
    return [place.source.replace(node.value, all_of)]


def _ends_in(place: Place, function: Function, rows: set[str], back: str) -> bool:
    """Whether what is computed of rows is computed for each alone, until ``[back]`` puts all back."""
    every = [n for part in function.body for n in within(part) if isinstance(n, ast.stmt)]

    def is_row(node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in rows

    for node in every:
        if node is place.statement:
            continue
        ends = [n for n in heads(node) if _is_put_back(n, back) and any(map(is_row, ast.walk(n)))]
        inside = {part for end in ends for part in ast.walk(end)}
        if any(isinstance(n, ast.Name) and n.id == back and n not in inside for n in heads(node)):
            return False
        if any(not is_rowwise(place, end.value, is_row) for end in ends if isinstance(end, ast.Subscript)):
            return False
        left = [n for n in heads(node) if is_row(n) and n not in inside]
        if not left:
            continue
        named = isinstance(node, ast.Assign) and all(isinstance(each, ast.Name) for each in node.targets)
        if node.lineno < place.statement.lineno or not named or not isinstance(node, ast.Assign):
            return False
        if not is_rowwise(place, node.value, is_row) or any(_is_size(place, n) for n in left):
            return False
        rows |= {each.id for each in node.targets if isinstance(each, ast.Name)}
    return True


def _is_put_back(node: ast.AST, back: str) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name) and node.slice.id == back


def _is_size(place: Place, node: ast.AST) -> bool:
    """Whether a name is asked how many there are."""
    above = place.source.parents.get(node)
    return isinstance(above, ast.Attribute) or (isinstance(above, ast.Call) and called(above) == "len")


def given_to_unique(value: ast.AST) -> ast.expr | None:
    """``x`` of ``torch.unique(x)`` and ``x.unique()``."""
    if not isinstance(value, ast.Call) or called(value) != "unique" or not isinstance(value.func, ast.Attribute):
        return None
    if path_of(value.func.value) == "torch":
        return value.args[0] if len(value.args) == 1 else None
    return value.func.value if not value.args else None


def go_through_all(place: Place) -> list[Edit]:
    """``for e in torch.unique(top).tolist()`` goes through all numbers that ``top`` can have."""
    node, function = place.statement, place.source.function_of(place.statement)
    if not isinstance(node, ast.For) or not isinstance(node.target, ast.Name) or function is None or node.orelse:
        return []
    given = node.iter
    while isinstance(given, ast.Call) and called(given) in ("tolist", "cpu", "numpy"):
        if not isinstance(given.func, ast.Attribute):
            return []
        given = given.func.value
    x = given_to_unique(given)
    options = given.keywords if isinstance(given, ast.Call) else []
    count = _how_many(place, function, x) if x is not None and not options else ""
    told = "" if count or x is None or options else _how_many_parts(place, node)
    if x is not None and not (options or told or count):
        return _keep_rows_of_none(place, node, x)
    if not (count or told) or not _does_nothing_for_none(place, node, place.text(x) if x is not None else ""):
        return []
    if not told:
        return [place.source.replace(node.iter, f"range({count})")]
    return _through_numbers(place, node, told)


def _through_numbers(place: Place, loop: ast.For, count: str) -> list[Edit]:
    """``for e in range(count):``, with what is taken for granted."""
    line = place.source.lines[loop.lineno - 1].rstrip()
    if not line.endswith(":") or loop.iter.end_lineno != loop.lineno:
        return []
    end = Edit(loop.lineno, len(line), loop.lineno, len(line), f"  {NOT_BELOW}")
    return [place.source.replace(loop.iter, f"range({count})"), end]


def _keep_rows_of_none(place: Place, loop: ast.For, x: ast.expr) -> list[Edit]:
    """``for c in y.unique()`` with ``rows[c] = f(z[y == c], rows[c])``: all rows, of which those of none stay.

    Eager fails with a number that ``rows`` does not have.
    """
    assert isinstance(loop.target, ast.Name)
    source, name = place.source, loop.target.id
    uses = _uses(place, loop)
    parts = [part for part in loop.body if isinstance(part, (ast.Assign, ast.AugAssign))]
    rows = {path_of(n.value): n for n in uses or () if isinstance(n, ast.Subscript)}
    sizes = {path: len(held) for path in rows if (held := _held_rows(place, path)) is not None}
    if uses is None or len(parts) != len(loop.body) or not sizes or sizes.keys() != rows.keys():
        return []
    names = stored(loop.body)
    if not _leaves_nothing(place, loop, names) or {name, *names_in(x)} & names or path_of(x) in rows:
        return []
    if not all(is_pure(place, part.value) for part in parts) or not all(map(place.is_local, names)):
        return []
    there = fresh("there", place.taken)
    edits = [source.replace(n, name) for n in uses if isinstance(n, ast.Call)]
    # No other rewrite is to take its ``c`` for a tensor.
    edits += [source.replace(n, place.text(n)) for n in uses if path_of(getattr(n, "slice", n)) == name]
    for part in parts:
        target = part.target if isinstance(part, ast.AugAssign) else target_of(part)
        if isinstance(target, ast.Name) and isinstance(part, ast.Assign):
            continue
        if not isinstance(target, ast.Subscript) or target not in uses:
            return []
        if isinstance(part, ast.AugAssign) and not isinstance(part.op, (ast.Add, ast.Sub)):
            return []
        kept = "0" if isinstance(part, ast.AugAssign) else place.text(target)
        value = source.replace(part.value, "")
        edits.append(Edit(value.line, value.column, value.line, value.column, f"torch.where({there}, ", -1))
        edits.append(Edit(value.end_line, value.end_column, value.end_line, value.end_column, f", {kept})"))
    least = min(sizes, key=lambda path: (sizes[path], path))
    head = _through_numbers(place, loop, f"len({least})")
    begin = source.before(loop.body[0], [f"{there} = ({place.text(x)} == {name}).any()"], rank=-1)
    return [*head, begin, *edits] if head and loop.body[0].lineno != loop.lineno else []


def _uses(place: Place, loop: ast.For) -> list[ast.expr] | None:
    """``rows[c]``, ``int(c)`` and ``c.item()`` in the rounds of a loop, which only compares ``c`` beside; else None."""
    assert isinstance(loop.target, ast.Name)
    found = list[ast.expr]()
    for name in (n for part in loop.body for n in within(part) if isinstance(n, ast.Name) and n.id == loop.target.id):
        use: ast.expr = name
        above = place.source.parents[use]
        if isinstance(above, ast.Attribute) and above.attr == "item":
            use, above = above, place.source.parents[above]
        if isinstance(above, ast.Call) and (use is not name or path_of(above.func) == "int"):
            use, above = above, place.source.parents[above]
            found.append(use)
        if isinstance(above, ast.Subscript) and above.slice is use:
            found.append(above)
        elif not isinstance(above, ast.Compare):
            return None
    return found


def _held_rows(place: Place, path: str) -> torch.Tensor | None:
    """A tensor from around the function, to which no gradients come."""
    first, _, last = path.rpartition(".")
    if not first and place.is_local(last):
        return None
    held = place.attributes.get(last) if first else place.space.get(last)
    return held if isinstance(held, torch.Tensor) and held.dim() and not held.requires_grad else None


def _how_many_parts(place: Place, loop: ast.For) -> str:
    """``len(heads)`` where a round calls ``heads[e]``: eager fails with a number that none of them has."""
    assert isinstance(loop.target, ast.Name)
    for node in (n for part in loop.body for n in within(part) if isinstance(n, ast.Subscript)):
        path = path_of(node.value)
        last = path.rpartition(".")[2]
        held = place.attributes.get(last) if "." in path else place.space.get(path)
        if path_of(node.slice) == loop.target.id and isinstance(held, (torch.nn.ModuleList, torch.nn.ParameterList)):
            return f"len({path})"
    return ""


def _how_many(place: Place, function: Function, x: ast.expr) -> str:
    """How many numbers an index of the largest can be: ``p.shape[-1]`` for ``top = p.argmax(-1)``, or ""."""
    every = [n for part in function.body for n in within(part)]
    if not isinstance(x, ast.Name) or not place.is_local(x.id):
        return ""
    stores = [n for n in every if isinstance(n, ast.Name) and n.id == x.id and not isinstance(n.ctx, ast.Load)]
    for made in (n for n in every if isinstance(n, ast.Assign) and len(stores) == 1):
        target, value = made.targets[0], made.value
        second = isinstance(target, ast.Tuple) and len(target.elts) == 2 and target.elts[1] is stores[0]
        if not (target is stores[0] or second):
            continue
        if isinstance(value, ast.Attribute) and value.attr == "indices" and not second:
            value, second = value.value, True
        if not isinstance(value, ast.Call) or called(value) not in (_PAIRS if second else _RANKS):
            return ""
        own = isinstance(value.func, ast.Attribute) and path_of(value.func.value) != "torch"
        scores = value.func.value if own and isinstance(value.func, ast.Attribute) else next(iter(value.args), None)
        at = (not own) + (called(value) == "topk")
        given = [o.value for o in value.keywords if o.arg == "dim"] or value.args[at : at + 1]
        dim = integer(given[0]) if given else -1
        if not given and called(value) in _RANKS and not _is_row(place, scores):
            return ""  # of all of it
        if not isinstance(scores, ast.Name) or dim is None or _moves(every, scores.id, made, place.statement):
            return ""
        return f"{scores.id}.shape[{dim}]"
    return ""


def _is_row(place: Place, scores: ast.expr | None) -> bool:
    form = place.tensors.get(scores.id) if isinstance(scores, ast.Name) else None
    return form is not None and len(form.shape) == 1


def _moves(every: list[ast.AST], name: str, begin: ast.stmt, end: ast.stmt) -> bool:
    """Whether a name gets another value between two statements."""
    stores = [n for n in every if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)]
    return any(begin.lineno < n.lineno <= (end.end_lineno or end.lineno) for n in stores)


def _does_nothing_for_none(place: Place, loop: ast.For, x: str) -> bool:
    """Whether the rounds of a loop change only what ``x == e`` marks, and nothing where it marks nothing."""
    assert isinstance(loop.target, ast.Name)
    names, masks = set[str](), set[str]()
    for part in loop.body:
        if not isinstance(part, (ast.Assign, ast.AugAssign)):
            return False
        targets = part.targets if isinstance(part, ast.Assign) else [part.target]
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(part, ast.Assign):
                names.add(target.id)
                masks.discard(target.id)
                if _marks(place, part.value, x, loop.target.id):
                    masks.add(target.id)
            elif not isinstance(target, ast.Subscript) or not (
                path_of(target.slice) in masks or _marks(place, target.slice, x, loop.target.id)
            ):
                return False
    return loop.target.id not in names and _leaves_nothing(place, loop, names)


def _leaves_nothing(place: Place, loop: ast.For, names: set[str]) -> bool:
    """Whether names that a round gives a value are read in it alone: a round may be of one that is not there."""
    known = set[str]()
    for part in loop.body:
        if names & {name for n in within(part) for name in _loaded(n)} - known:
            return False
        known |= {n.id for n in within(part) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    function = place.source.function_of(loop)
    inside = set(ast.walk(loop))
    outside = (n for part in (function.body if function is not None else ()) for n in within(part) if n not in inside)
    return not names & {name for n in outside for name in _loaded(n)}


def _marks(place: Place, node: ast.AST, x: str, name: str) -> bool:
    """``x == e``."""
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or not isinstance(node.ops[0], ast.Eq):
        return False
    return {place.text(node.left), place.text(node.comparators[0])} == {x, name}


def _loaded(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield from names_in(node)
