"""Numbers that decide something: Python has them as doubles, and whole ones without an end.

A tensor of float32 is compared with ``0.1`` in float32, whose 0.1 is another number, and ``50 * 0.3`` of one is more
than 15, of which ``ceil`` makes 16. What is only computed with may be rounded as the tensors are that it is given to,
but for ``1 - 0.999 ** t``, of which float32 has few digits left.
"""

from __future__ import annotations

import ast
import math
import re
import struct
from collections.abc import Iterator, Sequence

import torch

from paramgraph_kit.rewrite.expressions.numbers.readings import read_of
from paramgraph_kit.rewrite.source.edits import heads, names_in, path_of, within
from paramgraph_kit.rewrite.source.loop_names import counted_around
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import NUMBER, Form, Place, called, renamed

_NARROW = (torch.int32, torch.int16, torch.int8, torch.uint8)
_HALF = (torch.float16, torch.bfloat16)
_ROUND = ("ceil", "floor", "trunc", "round", "rint", "int")
_STAYS = ("float", "min", "max", "abs")  # give a number that they are given
_PICKS = ("max", "min", "amax", "amin", "median", "detach", "squeeze", "view", "reshape", "flatten", "cpu", "abs")
_WHOLE = ("argmax", "argmin", "count_nonzero", "numel", "size", "len", "long", "int", "nonzero", "bincount")


def as_python_has_it(place: Place, read: ast.expr, value: ast.expr) -> str:
    """What follows a number that stays on the device, ``.double()`` or ``.long()``, so that it decides the same.

    ``read`` is where the user reads ``value``.
    """
    return _followed(place, value, [read], _seen(place) or _kind(place, value))


def where_it_decides(place: Place, read: ast.expr) -> list[ast.Name]:
    """Where a name for such a number decides, if it is given to tensors elsewhere, which may get its type."""
    statement = place.source.statement_of(read)
    value = getattr(statement, "value", None)
    if isinstance(statement, ast.AugAssign) or (value is not None and stored(_targets(statement)) & names_in(value)):
        return []  # ``total += x.item()`` is rounded before it decides
    loads = [n for name in sorted(stored(_targets(statement))) for n in _loads(place, statement, name)]
    there = [n for n in loads if _decides(place, n, real=True, computed=False)]
    return there if any(n not in there and _gives_its_type(place, n) for n in loads) else []


def each_as_python_has_it(place: Place, loop: ast.For, value: ast.expr) -> str:
    """The same for numbers that a loop goes through, once they are read as a list."""
    loads = [n for name in stored([loop.target]) for n in _loads(place, loop.iter, name)]
    return _followed(place, value, loads, _kind(place, value))


def picks_as_python_has_them(place: Place, value: ast.expr, picks: Sequence[ast.expr]) -> str:
    """The same for numbers that are picked from a list, ``counts[i]``."""
    return _followed(place, value, picks, _kind(place, value))


def is_exact(place: Place, value: ast.expr) -> bool:
    """Whether what is computed with tensors is as exact as what Python computes with numbers."""
    forms = [place.tensors[name] for name in names_in(value) & place.tensors.keys()]
    return not isinstance(value, ast.BinOp) or (bool(forms) and all(each.dtype is torch.float64 for each in forms))


def compared_exactly(place: Place, test: ast.expr) -> str:
    """A test in which what is read and has to be exact is a tensor that is."""
    new = {name: f"{name}.double()" for name in names_in(test) & {*place.exact}}
    for node in (n for n in ast.walk(test) if isinstance(n, ast.Call) and called(n) != "int"):
        value = read_of(place, node)
        if value is not None and (more := as_python_has_it(place, node, value)):
            new[place.text(node)] = f"{place.source.bracketed(value)}{more}"
    return renamed(place.text(test), new)


def _followed(place: Place, value: ast.expr, reads: Sequence[ast.expr], kind: torch.dtype | None) -> str:
    if kind in _NARROW:
        return ".long()"
    if kind in _HALF:
        return ".double()"
    real = (kind is None or kind.is_floating_point) and not _is_whole(value)
    return ".double()" if any(_decides(place, each, real=real, computed=False) for each in reads) else ""


def _gives_its_type(place: Place, node: ast.expr) -> bool:
    """Whether a number of another type may change that of what is computed with it: of a tensor without dimensions."""
    above = place.source.parents.get(node)
    if isinstance(above, ast.BinOp):
        other = above.right if above.left is node else above.left
        if isinstance(other, ast.Constant) or isinstance(place.value(path_of(other)), NUMBER):
            return _gives_its_type(place, above)
        held = place.value(path_of(other))
        form = Form.of(held) if isinstance(held, torch.Tensor) else place.form(path_of(other))
        return form is None or not form.shape
    if not isinstance(above, ast.Call) or isinstance(above.func, ast.Name):
        return False
    kept = called(above) in ("append", "add_scalar", "update") or called(above).endswith("_")  # in the type that it has
    return not kept and path_of(above.func).partition(".")[0] != "math"


def _kind(place: Place, value: ast.expr) -> torch.dtype | None:
    """The type of a tensor that is read, as far as it is seen: what picks one of its elements leaves it."""
    while not path_of(value):
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and called(value) in _PICKS:
            value = value.func.value
        elif isinstance(value, ast.Subscript):
            value = value.value
        else:
            return None
    form = place.form(path_of(value))
    return form.dtype if form is not None else None


def _seen(place: Place) -> torch.dtype | None:
    """The type of the only number that a statement reads, as it was seen."""
    seen = re.search(r"_local_scalar_dense of (\w+)\[", place.failure.message)
    calls = (n for n in heads(place.statement) if isinstance(n, ast.Call))
    one = sum(read_of(place, n) is not None for n in calls) == 1
    kind = getattr(torch, seen[1], None) if seen is not None and one else None
    return kind if isinstance(kind, torch.dtype) else None


def _is_whole(value: ast.expr) -> bool:
    """Whether a tensor holds whole numbers, as its text tells: a count, or a place."""
    if not isinstance(value, ast.Call):
        return False
    of = value.func.value if isinstance(value.func, ast.Attribute) else None
    return called(value) in _WHOLE or (called(value) == "sum" and isinstance(of, ast.Compare))


def _decides(
    place: Place, node: ast.expr, *, real: bool, computed: bool, known: set[tuple[ast.expr, bool, bool]] | None = None
) -> bool:
    """Whether a number is compared with one that float32 has not, is rounded once it is computed with, or cancels.

    ``known``: where it is read again, each followed once.
    """
    further: list[ast.expr] = []
    while (above := place.source.parents.get(node)) is not None:
        if isinstance(above, ast.BinOp):
            other = above.right if above.left is node else above.left
            if isinstance(above.op, (ast.FloorDiv, ast.Mod)) and (real or not _is_int(place, other)):
                return True
            if computed and _cancels(above, node) and not _gives_its_type(place, above):
                return True
            real |= isinstance(above.op, ast.Div) or not _is_int(place, other)
            computed |= real
        elif isinstance(above, ast.Compare):
            others = [each for each in (above.left, *above.comparators) if each is not node]
            return real and (computed or any(_is_fine(place, each) for each in others))
        elif isinstance(above, ast.Call):
            if called(above) in _ROUND and node in above.args:
                return computed
            path = path_of(above.func)
            stays = (path == "torch.where" and node in above.args[1:]) or called(above) in _STAYS
            if not stays and path.partition(".")[0] != "math":
                further = _given_to(place, above, node)
                break
            computed |= not stays
            real |= computed
        elif isinstance(above, ast.Attribute) and (call := _method(place, above, "clamp", "round")) is not None:
            if above.attr == "round":
                cut = place.source.parents.get(call)
                return computed and isinstance(cut, ast.Attribute) and cut.attr == "long"
            above = call
        elif not isinstance(above, (ast.UnaryOp, ast.Tuple, ast.IfExp)):
            break
        node = above
    if isinstance(above, (ast.Assign, ast.AugAssign)):
        computed |= isinstance(above, ast.AugAssign)
        further = [n for name in stored(_targets(above)) for n in _loads(place, above, name)]
        further += [n for each in _targets(above) if isinstance(each, ast.Attribute) for n in _reads(place, each)]
    known = known if known is not None else set()
    new = [n for n in further if (n, real, computed) not in known]
    known.update((n, real, computed) for n in new)
    return any(_decides(place, n, real=real, computed=computed, known=known) for n in new)


def _method(place: Place, node: ast.Attribute, *names: str) -> ast.Call | None:
    """``x.round()`` for its ``x.round``: rewritten lines round there, and cut it, as ``int(round(x))`` did."""
    call = place.source.parents.get(node)
    return call if isinstance(call, ast.Call) and call.func is node and node.attr in names else None


def _given_to(place: Place, call: ast.Call, node: ast.AST) -> list[ast.expr]:
    """Where a function of the user's reads what a call gives it."""
    every = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.FunctionDef) and n.name == called(call)]
    if len(every) != 1 or node not in call.args or any(isinstance(each, ast.Starred) for each in call.args):
        return []
    names = [each.arg for each in (*every[0].args.posonlyargs, *every[0].args.args)]
    names = names[names[:1] == ["self"] :]
    at = [each is node for each in call.args].index(True)
    found = (n for n in ast.walk(every[0]) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    return [n for n in found if n.id in names[at : at + 1]]


def _reads(place: Place, target: ast.Attribute) -> list[ast.expr]:
    """Where the file reads an attribute of this name."""
    every = (n for n in ast.walk(place.source.tree) if isinstance(n, ast.Attribute) and n.attr == target.attr)
    return [n for n in every if isinstance(n.ctx, ast.Load)]


def _cancels(above: ast.BinOp, node: ast.AST) -> bool:
    """Whether a power is taken from a number that may be nearly as large."""
    powers = (n for n in ast.walk(node) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Pow))
    return isinstance(above.op, ast.Sub) and node is above.right and any(powers)


def _targets(statement: ast.stmt) -> list[ast.expr]:
    """What a statement gives a value."""
    one = getattr(statement, "target", None)
    return getattr(statement, "targets", [one] if one is not None else [])


def _loads(place: Place, made: ast.AST, name: str) -> Iterator[ast.Name]:
    """Where a name is read, but for what it is made of."""
    function, own = place.source.function_of(made), set(ast.walk(made))
    every = (n for part in (function.body if function is not None else ()) for n in within(part))
    names = (n for n in every if isinstance(n, ast.Name) and n.id == name and n not in own)
    yield from (n for n in names if isinstance(n.ctx, ast.Load))


def _is_fine(place: Place, node: ast.expr) -> bool:
    """Whether a number may be one that float32 does not have: a tolerance, a rate, a part of another one."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float)) and not _is_single(node.value)
    if isinstance(node, ast.UnaryOp):
        return _is_fine(place, node.operand)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Div) or _is_fine(place, node.left) or _is_fine(place, node.right)
    if not (path := path_of(node)):
        return False
    if isinstance(held := place.value(path), NUMBER):
        return not isinstance(held, complex) and not _is_single(held)
    if place.source.function_of(node) is not place.source.function_of(place.statement):
        return True  # nobody has looked at what a helper's names hold
    return path in place.plain and place.form(path) is None and not _is_read(place, path)


def _is_read(place: Place, name: str) -> bool:
    """Whether a local name holds what the device has found, or what float32 has."""
    function = place.source.function_of(place.statement)
    every = [n for n in ast.walk(function) if isinstance(n, ast.Assign)] if function is not None else []
    made = [n.value for n in every if any(path_of(t) == name for t in n.targets)]
    return bool(made) and all(isinstance(n, (ast.Call, ast.Constant)) and not _is_fine(place, n) for n in made)


def _is_int(place: Place, node: ast.expr, met: frozenset[str] = frozenset()) -> bool:
    """Whether a number is a whole one, as far as its text and what is held tell.

    ``met`` are local names that it is asked for already.
    """
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int)
    if isinstance(node, ast.Subscript):  # a size
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    if isinstance(node, ast.Name) and place.is_local(node.id):
        return node.id not in met and _is_whole_local(place, node, met | {node.id})
    if isinstance(node, ast.Call):
        return called(node) in _WHOLE or (isinstance(node.func, ast.Attribute) and _is_whole(node.func.value))
    if isinstance(node, ast.BinOp):
        parts = (node.left, node.right)
        return not isinstance(node.op, ast.Div) and all(_is_int(place, each, met) for each in parts)
    return isinstance(place.value(path_of(node)), int) if path_of(node) else False


def _is_whole_local(place: Place, name: ast.Name, met: frozenset[str]) -> bool:
    """Whether all that a function gives one of its names are whole: ``n = x.shape[0]``, ``b, n = x.shape``, counts."""
    if name.id in counted_around(place, name):
        return True
    function = place.source.function_of(name)
    every = [n for part in (function.body if function is not None else ()) for n in within(part)]
    made = [n for n in every if isinstance(n, ast.Assign) and name.id in stored(n.targets)]
    stores = [n for n in every if isinstance(n, ast.Name) and n.id == name.id and isinstance(n.ctx, ast.Store)]
    sizes = [n for n in made if isinstance(n.value, ast.Attribute) and n.value.attr == "shape"]
    whole = [n for n in made if name.id in map(path_of, n.targets) and _is_int(place, n.value, met)]
    return bool(made) and len({*sizes, *whole}) == len(stores)


def _is_single(value: float) -> bool:
    """Whether float32 has a number.

    >>> _is_single(0.5), _is_single(0.1)
    (True, False)
    """
    try:
        return math.isnan(value) or struct.unpack("f", struct.pack("f", value))[0] == value
    except OverflowError:
        return False
