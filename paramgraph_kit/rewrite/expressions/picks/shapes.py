"""Results of a fixed size in the place of those whose size the values decide."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from typing import NamedTuple

import torch

from paramgraph_kit.rewrite.source.edits import Edit, combined, heads, names_in, path_of
from paramgraph_kit.rewrite.source.loop_names import counted_around
from paramgraph_kit.rewrite.source.masked import uncopied
from paramgraph_kit.rewrite.source.place import (
    Form,
    Place,
    binds_tighter,
    called,
    integer,
    is_one_place,
    renamed,
    target_of,
    width_of,
)
from paramgraph_kit.rewrite.source.pure import RISKY, SINGULAR
from paramgraph_kit.rewrite.source.rowwise import is_rowwise
from paramgraph_kit.rewrite.source.widths import takes_all
from paramgraph_kit.rewrite.source.writes import writes_through

ASKS_EACH = ("isnan", "isinf", "isfinite", "eq", "ne", "gt", "lt", "ge", "le", "logical_not", "bool")
CASTS = ("float", "double", "half", "bfloat16", "to", "type", "type_as")
MASKS = (ast.Name, ast.Compare, ast.Attribute, ast.UnaryOp, ast.BinOp)
_SAME = ("abs", "relu", "clamp", "clamp_min", "neg", "detach", "mean", "std", "var")  # also where autocast is on
IN_FULL = "dtype=torch.float32"
PER_ROW = ("cross_entropy", "nll_loss")  # one loss for a row of scores
LOSSES = (
    *PER_ROW,
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits"),
    *("binary_cross_entropy", "kl_div"),
)


def reduce_the_whole(place: Place) -> list[Edit]:
    """``(x[mask] - y[mask]).sum()`` and ``.mean()`` become reductions of the whole, with zeros elsewhere."""
    found = []
    for call in place.calls("sum", "mean"):
        inner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if inner is None or call.args or call.keywords:
            continue
        picked = _picked(place, inner)
        if picked is None or (place.trains and is_singular(inner, set(picked))):
            continue
        if not is_rowwise(place, inner, picked.__contains__):
            continue
        one, all_of = form_of(place, picked[0].slice), form_of(place, picked[0].value)
        if one is not None and all_of is not None and len(one.shape) != len(all_of.shape):
            continue  # of rows
        mask = place.source.bracketed(picked[0].slice)
        keeper = place.text(picked[0].slice) if _multiplies_gradients(place, inner, picked) else ""
        whole = f"torch.where({place.text(picked[0].slice)}, {_whole(place, inner, picked, keeper)}, 0)"
        text = f"{whole}.sum()"
        if called(call) == "mean":
            # What torch.where leaves out must not divide by zero: its gradient would be no number.
            summing = summed(place, inner, [each.value for each in picked])
            text = f"{whole}.sum({summing.of}) / {mask}.sum()" + ".clamp(min=1)" * is_chosen(place, call)
            text = summing.quotient(text)
            text = f"({text})" if binds_tighter(place.source, call) else text
        found.append(place.source.replace(call, text))
    return found


def reduce_the_selected(place: Place) -> list[Edit]:
    """``x.masked_select(mask).sum()`` and ``.mean()`` become the same of all that there is, with zeros elsewhere."""
    found = []
    for call in place.calls("sum", "mean"):
        inner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if not isinstance(inner, ast.Call) or called(inner) != "masked_select" or call.args or call.keywords:
            continue
        of_torch = isinstance(inner.func, ast.Attribute) and path_of(inner.func.value) == "torch"
        given = list(inner.args) if of_torch else [inner.func.value, *inner.args]  # type: ignore[attr-defined]
        if len(given) != 2 or inner.keywords:
            continue
        (x, mask), forms = map(place.text, given), [form_of(place, each) for each in given]
        text, one = f"torch.where({mask}, {x}, 0).sum()", summed(place, given[0], given[:1])
        if called(call) == "mean":
            if None in forms or forms[0].shape != forms[1].shape:  # type: ignore[union-attr]
                continue  # how many it counts is the mask's alone
            text = f"torch.where({mask}, {x}, 0).sum({one.of}) / {place.source.bracketed(given[1])}.sum()"
            text = one.quotient(text + ".clamp(min=1)" * is_chosen(place, call))
            text = f"({text})" if binds_tighter(place.source, call) else text
        found.append(place.source.replace(call, text))
    return found


class Summed(NamedTuple):
    """How sums are written of what may be too narrow for them: float16 ends at 65504, also for how many there are."""

    of: str = ""  # what ``.sum(...)`` is given
    whole: str = ""  # what makes the type of a quotient that of its elements again

    def quotient(self, text: str) -> str:
        """A sum by a number as the mean that eager rounds once."""
        return f"({text}){self.whole}" if self.whole else text


def summed(place: Place, node: ast.expr, picked: Collection[ast.expr]) -> Summed:
    """The same of an expression of what a mask has picked."""
    kind = re.search(r"\bb?float16\[", place.failure.message)
    wide = any(isinstance(n, ast.Call) and called(n) in CASTS for n in ast.walk(node))
    if wide or any("autocast" in line for line in place.source.lines):  # which sums up in float32
        return Summed()
    names = sorted(filter(None, map(path_of, picked)))
    if kind is None:
        return _summed_as_well(place, node, picked)
    return Summed(IN_FULL, f".type_as({names[0]})" if names else f".to(torch.{kind[0][:-1]})")


def _summed_as_well(place: Place, node: ast.expr, picked: Collection[ast.expr]) -> Summed:
    """The same of what was tried with float32, where that is right for float16 too: elements have the type of names."""
    rows = [n for n in ast.walk(node) if isinstance(n, ast.Subscript) and n.value in picked]
    outer = set(ast.walk(node)) - {n for each in (*picked, *rows) for n in ast.walk(each)}
    others = [n for n in outer if isinstance(n, ast.Name) and n.id not in ("torch", *place.plain)]
    widened = any(isinstance(n, ast.Pow) or (isinstance(n, ast.Call) and called(n) not in _SAME) for n in outer)
    forms = [form_of(place, each) for each in (*picked, *others)]
    names = sorted({path_of(each) for each in (*picked, *others)})
    known = all(form is not None and form.dtype is torch.float32 for form in forms)
    if not known or widened or "" in names or not 1 <= len(names) <= 2:
        return Summed()
    of = f".type_as({names[0]})" if len(names) == 1 else f".to(torch.result_type({', '.join(names)}))"
    return Summed(IN_FULL, of)


def is_singular(node: ast.expr, picked: set[ast.Subscript]) -> bool:
    """Whether an expression has no number, or no gradient, for some of what a mask may have kept away from it."""
    for part in ast.walk(node):
        inside = part.right if isinstance(part, ast.BinOp) and isinstance(part.op, RISKY) else None
        inside = part if isinstance(part, ast.Call) and called(part) in SINGULAR else inside
        if inside is not None and picked & set(ast.walk(inside)):
            return True
    return False


def is_chosen(place: Place, node: ast.AST) -> bool:
    """Whether an expression stands where ``torch.where`` takes it or not, and gradients go through it both ways.

    Without any, what is not taken may be nan, as that of no row is where it is taken.
    """
    if not place.trains:
        return False
    above = place.source.parents.get(node)
    while isinstance(above, ast.expr):
        if isinstance(above, ast.Call) and called(above) == "where":
            return True
        above = place.source.parents.get(above)
    return False


def weigh_the_whole(place: Place) -> list[Edit]:
    """``F.mse_loss(x[mask], y[mask])`` becomes the losses of all, with zeros elsewhere, summed and divided."""
    for call in place.calls(*LOSSES):
        given = {option.arg: option for option in call.keywords}
        kind = given.get("reduction")
        way = kind.value.value if kind is not None and isinstance(kind.value, ast.Constant) else "mean"
        picked = _picked(place, ast.Tuple(call.args[:2], ast.Load())) if len(call.args) == 2 else None
        if way not in ("sum", "mean") or picked is None or len(picked) != 2 or set(given) - {"reduction"}:
            continue
        if not all(is_rowwise(place, each, picked.__contains__) for each in call.args):
            continue
        if called(call) in PER_ROW:
            continue  # labels of what is left out may be no classes
        mask, first = place.text(picked[0].slice), place.text(picked[0].value)
        one, all_of = place.tensors.get(mask), place.tensors.get(first)
        if one is None or all_of is None:
            continue  # how many dimensions they have decides how the mask is spread
        more = len(all_of.shape) - len(one.shape) - (called(call) in PER_ROW)
        spread = mask + (f"[..., {', '.join(['None'] * more)}]" if more else "")
        keeper = spread if place.trains else ""
        values = ", ".join(_whole(place, each, picked, keeper) for each in call.args)
        whole = f'torch.where({spread}, {place.text(call.func)}({values}, reduction="none"), 0)'
        text, summing = f"{whole}.sum()", summed(place, call, [each.value for each in picked])
        if way == "mean":
            text = f"{whole}.sum({summing.of}) / {mask}.sum()"
            text = summing.quotient(text + "".join(f" / {first}.shape[{n}]" for n in range(-more, 0)))
            text = f"({text})" if binds_tighter(place.source, call) else text
        return [place.source.replace(call, text)]
    return []


def _picked(place: Place, node: ast.AST) -> list[ast.Subscript] | None:
    """What is picked below a node, all by one mask; None where it is not."""
    found = [n for n in ast.walk(node) if isinstance(n, ast.Subscript)]
    masks = {place.text(each.slice) for each in found}
    if len(masks) != 1 or not all(isinstance(each.slice, MASKS) for each in found):
        return None
    return found


def _whole(place: Place, node: ast.expr, picked: list[ast.Subscript], kept: str = "") -> str:
    """An expression without what picks a part of its tensors; zeros are in it where a mask ``kept`` does not hold."""
    all_of = place.source.bracketed if not kept else lambda part: f"torch.where({kept}, {place.text(part)}, 0)"
    return renamed(place.text(node), {place.text(each): all_of(each.value) for each in picked})


def _multiplies_gradients(place: Place, node: ast.expr, picked: list[ast.Subscript]) -> bool:
    """Whether what an expression is made of decides its gradient: that of nan is nan, however little of it counts."""
    inside = {n for each in picked for n in ast.walk(each)}
    parts = [n for n in ast.walk(node) if n not in inside]
    sums = (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    linear = all(isinstance(n, sums) and not isinstance(n, (ast.Mult, ast.MatMult, *RISKY)) for n in parts)
    return place.trains and not linear


def count_by_scatter(place: Place) -> list[Edit]:
    """``torch.bincount(x, minlength=n)`` becomes an addition at indices, whose result has ``n`` elements."""
    found = []
    for call in place.calls("bincount"):
        given = {option.arg: place.text(option.value) for option in call.keywords}
        args = call.args
        if isinstance(call.func, ast.Attribute) and path_of(call.func) != "torch.bincount":
            args = [call.func.value, *args]
        if len(args) != 1 or set(given) != {"minlength"}:
            continue
        x = place.source.bracketed(args[0])
        zeros = f"torch.zeros({given['minlength']}, dtype=torch.long, device={x}.device)"
        found.append(place.source.replace(call, f"{zeros}.scatter_add_(0, {x}, torch.ones_like({x}))"))
    return found


def assign_by_where(place: Place) -> list[Edit]:
    """``x[mask] = v`` and ``x[mask] += v`` become ``x.copy_(torch.where(mask, v, x))``; ``v[mask]`` there is ``v``."""
    node = place.statement
    if isinstance(node, (ast.Assign, ast.AugAssign)) and (text := assigned_by_where(place, node)):
        return [place.source.replace(node, text)]
    return []


def assigned_by_where(place: Place, node: ast.Assign | ast.AugAssign) -> str:
    """The same of any statement, or ""."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if len(targets) != 1 or not isinstance(targets[0], ast.Subscript):
        return ""
    index = targets[0].slice
    if isinstance(index, ast.Tuple):
        return _column_by_where(place, targets[0], node)
    if not isinstance(index, MASKS) and not (isinstance(index, ast.Call) and form_of(place, index) is not None):
        return ""
    return _by_where(place, targets[0], node.value, node if isinstance(node, ast.AugAssign) else None)


def _by_where(place: Place, to: ast.Subscript, given: ast.expr, added: ast.AugAssign | None = None) -> str:
    target, mask = to.value, place.text(to.slice)
    if _is_place(place, to.slice):
        return ""
    same = {mask, uncopied(to.slice)} - {""}
    inside = [n for n in ast.walk(given) if isinstance(n, ast.Subscript) and place.text(n.slice) in same]
    beside = [n for n in ast.walk(given) if isinstance(n, ast.Subscript) and _first_of(place, n) in same]
    if not is_rowwise(place, given, [*inside, *beside].__contains__):
        return ""  # which rows are beside one may change it, and a trial need not have seen any
    if beside and place.trains and is_singular(given, {*beside}):
        return ""
    value, text = _put(place, to.slice, given, inside), place.text(target)
    for each in beside:
        assert isinstance(each.slice, ast.Tuple)
        rest = ", ".join(place.text(n) for n in each.slice.elts[1:])
        value = value.replace(place.text(each), f"{place.source.bracketed(each.value)}[:, {rest}]")
    if added is not None and not (value := combined(added, text, value)):
        return ""
    return f"{text}.copy_(torch.where({spread(place, to.slice, target)}, {value}, {text}))"


def _column_by_where(place: Place, to: ast.Subscript, node: ast.Assign | ast.AugAssign) -> str:
    """``x[below, 1] *= -0.5`` of one column, by a mask with one dimension."""
    parts = to.slice.elts if isinstance(to.slice, ast.Tuple) else []
    if len(parts) != 2 or integer(parts[1]) is None or not isinstance(parts[0], (ast.Name, ast.Compare)):
        return ""
    mask, one = place.text(parts[0]), form_of(place, parts[0])
    if one is None or len(one.shape) != 1 or (one.dtype is not torch.bool and isinstance(parts[0], ast.Name)):
        return ""
    inside = [n for n in ast.walk(node.value) if isinstance(n, ast.Subscript)]
    picked = [n for n in inside if mask in (place.text(n.slice), _first_of(place, n))]
    if not is_rowwise(place, node.value, picked.__contains__) or (place.trains and is_singular(node.value, {*picked})):
        return ""
    wholes = {place.text(each): place.source.bracketed(each.value) for each in picked}
    for each in (n for n in picked if isinstance(n.slice, ast.Tuple)):
        rest = each.slice.elts[1:] if isinstance(each.slice, ast.Tuple) else []
        wholes[place.text(each)] += f"[:, {', '.join(map(place.text, rest))}]"
    column, value = f"{place.source.bracketed(to.value)}[:, {place.text(parts[1])}]", place.text(node.value)
    value = renamed(value, wholes) if wholes else value
    value = combined(node, column, value) if isinstance(node, ast.AugAssign) else value
    return value and f"{column}.copy_(torch.where({mask}, {value}, {column}))"


def _put(place: Place, mask: ast.expr, given: ast.expr, picked: list[ast.Subscript]) -> str:
    """What is put where a mask is, of all; with ones elsewhere where their gradient would be no number."""
    if not (place.trains and is_singular(given, {*picked})):
        return _whole(place, given, picked)
    parts = {each: f"{spread(place, mask, each.value)}, {place.text(each.value)}" for each in picked}
    return renamed(place.text(given), {place.text(each): f"torch.where({part}, 1)" for each, part in parts.items()})


def spread(place: Place, mask: ast.expr, target: ast.expr) -> str:
    """A mask with as many dimensions as what it is one of: of fewer they would be taken for the last ones."""
    one, all_of = _form_anywhere(place, mask), _form_anywhere(place, target)
    more = len(all_of.shape) - len(one.shape) if one is not None and all_of is not None else 0
    return f"{place.source.bracketed(mask)}[..., {', '.join(['None'] * more)}]" if more > 0 else place.text(mask)


def _form_anywhere(place: Place, node: ast.expr) -> Form | None:
    """What is known of a tensor, also of one that an object has."""
    held = place.value(path_of(node)) if isinstance(node, ast.Attribute) else None
    return Form.of(held) if isinstance(held, torch.Tensor) else form_of(place, node)


def _first_of(place: Place, node: ast.Subscript) -> str:
    """``mask`` of ``x[mask, e]``."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
    plain = all(isinstance(n, (ast.Name, ast.Constant)) for n in parts[1:])
    form = form_of(place, parts[0]) if len(parts) > 1 and plain else None
    return place.text(parts[0]) if form is not None and len(form.shape) == 1 else ""


def _is_place(place: Place, index: ast.expr) -> bool:
    """Whether an index is a number that a loop of the host counts, and no mask."""
    function = place.source.function_of(place.statement)
    if not isinstance(index, ast.Name) or function is None:
        return False
    loops = [n for n in ast.walk(function) if isinstance(n, ast.For) and isinstance(n.iter, ast.Call)]
    counts = [n for n in loops if called(n.iter) in ("range", "enumerate")]  # type: ignore[arg-type]
    firsts = [n.target.elts[0] if isinstance(n.target, ast.Tuple) else n.target for n in counts]
    return any(isinstance(n, ast.Name) and n.id == index.id for n in firsts)


def assign_each_by_where(place: Place) -> list[Edit]:
    """``a[m], b[~m] = x[m], y[~m]`` as one such line for each, where none reads what one before it has written."""
    node = place.statement
    target = target_of(node)
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return []
    if len(target.elts) != len(node.value.elts):
        return []
    lines, written = list[str](), set[str]()
    for to, value in zip(target.elts, node.value.elts, strict=True):
        if not isinstance(to, ast.Subscript) or not isinstance(to.slice, MASKS) or names_in(value) & written:
            return []
        if names_in(to.slice) & written or not (text := _by_where(place, to, value)):
            return []
        lines.append(text)
        written |= names_in(to.value)
    return [place.source.replace(node, f"\n{place.source.indent(node)}".join(lines))]


def _is_one_place(place: Place, index: ast.expr) -> bool:
    """Whether an index is a whole number: written, or that of a round."""
    if isinstance(index, ast.Name):
        rounds = (loop for loop in place.loops() if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call))
        return any(called(loop.iter) == "range" and place.text(loop.target) == index.id for loop in rounds)  # type: ignore[arg-type]  # a call
    return integer(index) is not None


def form_of(place: Place, node: ast.expr) -> Form | None:
    """What is known of the tensor that an expression is."""
    if isinstance(node, ast.UnaryOp):
        return form_of(place, node.operand)
    if isinstance(node, ast.Compare):
        return form_of(place, node.left)
    if isinstance(node, ast.BinOp):
        one, other = form_of(place, node.left), form_of(place, node.right)
        return one if one is not None and other is not None and one.shape == other.shape else None
    if isinstance(node, ast.Call):
        return _form_of_mask(place, node)
    if isinstance(node, ast.Subscript) and _is_one_place(place, node.slice):
        whole = form_of(place, node.value)
        return whole._replace(shape=whole.shape[1:]) if whole is not None and whole.shape else None
    known = place.space.get(node.id) if isinstance(node, ast.Name) else None
    own = isinstance(node, ast.Name) and place.is_local(node.id)
    if isinstance(node, ast.Name) and (own or node.id in place.tensors):
        return place.tensors.get(node.id)
    return Form.of(known) if isinstance(known, torch.Tensor) else None


def _form_of_mask(place: Place, node: ast.Call) -> Form | None:
    """That of ``torch.isnan(x)``, ``x.eq(y)`` and ``x.any(dim=1)``."""
    of_torch = isinstance(node.func, ast.Attribute) and path_of(node.func.value) == "torch"
    of_tensor = node.func.value if isinstance(node.func, ast.Attribute) else None
    base, given = (node.args[0], node.args[1:]) if of_torch and node.args else (of_tensor, node.args)
    known = form_of(place, base) if base is not None else None
    if known is None or (path_of(node.func) == "" and not isinstance(base, ast.BinOp)):
        return None
    if called(node) in ASKS_EACH:
        return known._replace(dtype=torch.bool)
    if called(node) == "clone" and not of_torch:
        return known
    dims = [*given, *(each.value for each in node.keywords if each.arg == "dim")]
    kept = any(each.arg != "dim" for each in node.keywords)
    along = integer(dims[0]) if len(dims) == 1 else None
    if called(node) not in ("any", "all") or kept or along is None or not known.shape:
        return None
    shape = list(known.shape)
    del shape[along]
    return Form(torch.Size(shape), torch.bool, known.device)


def mask_of(place: Place, node: ast.expr) -> str:
    """What ``torch.where(c)`` and ``c.nonzero()`` take for true, as a mask: of numbers those that are not 0."""
    form = _form_anywhere(place, node) if isinstance(node, (ast.Name, ast.Attribute)) else None
    text = place.text(node)
    return text if form is None or form.dtype == torch.bool else f"{text} != 0"


def pick_by_index(place: Place) -> list[Edit]:
    """``table[i]`` with an ``i`` of the device becomes ``table[i.reshape(1)][0]``, which is looked up there."""
    found = []
    for node in heads(place.statement) if not writes_through(place) else ():
        if isinstance(node, ast.Subscript) and (last := _last_of(place, node)) is not None:
            found.append(place.source.replace(node, last))
        if not isinstance(node, ast.Subscript) or not is_one_place(node.slice):
            continue
        form, index = form_of(place, node.slice), place.source.bracketed(node.slice)
        if isinstance(node.slice, ast.Name) and node.slice.id in counted_around(place, place.statement):
            continue
        if isinstance(place.value(path_of(node.value)), (dict, torch.nn.ModuleList)):
            continue  # a key, or a number of the host's
        if isinstance(node.ctx, ast.Store) and (form is None or form.shape.numel() == 1):
            found.append(place.source.replace(node.slice, f"{index}.reshape(1)"))
        elif isinstance(node.ctx, ast.Load) and (form is None or form.shape.numel() == 1):
            found.append(place.source.replace(node, f"{place.text(node.value)}[{index}.reshape(1)][0]"))
    return found


def _last_of(place: Place, node: ast.Subscript) -> str | None:
    """``p[t, tokens[t]]``, with a ``t`` that the host counts, as ``p[t, tokens[t].reshape(1)][0]``."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) and isinstance(node.ctx, ast.Load) else []
    counted = counted_around(place, place.statement)
    if len(parts) != 2 or not isinstance(parts[0], ast.Name) or parts[0].id not in counted:
        return None
    inner = parts[1]
    if not isinstance(inner, ast.Subscript) or not isinstance(inner.slice, ast.Name) or inner.slice.id not in counted:
        return None
    form = form_of(place, inner.value)
    if form is None or len(form.shape) != 1 or form.device == "cpu":
        return None
    return f"{place.text(node.value)}[{place.text(parts[0])}, {place.text(inner)}.reshape(1)][0]"


def put_by_index(place: Place) -> list[Edit]:
    """``x[:, i] = v`` with an ``i`` of the device becomes ``x.index_copy_(1, i.reshape(1), v.unsqueeze(1))``."""
    node = place.statement
    target = target_of(node)
    parts = target.slice.elts if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Tuple) else []
    single = [n for n in parts if not isinstance(n, ast.Slice)]
    plain = all(isinstance(n, (ast.Name, ast.Attribute, ast.BinOp, ast.Call)) for n in single)
    full = all(takes_all(n) for n in parts if isinstance(n, ast.Slice))
    if not isinstance(node, ast.Assign) or not isinstance(target, ast.Subscript) or not single or not (plain and full):
        return []
    if len(single) > 1:
        if len(single) != len(parts):
            return []
        first = single[0]
        if len(single) == 2 and isinstance(first, ast.Name) and first.id in counted_around(place, node):
            row, index = f"{place.source.bracketed(target.value)}[{first.id}]", place.source.bracketed(single[1])
            return [place.source.replace(node, f"{row}.index_fill_(0, {index}.reshape(1), {place.text(node.value)})")]
        at = ", ".join(f"{place.source.bracketed(n)}.reshape(1)" for n in single)
        text = f"{place.source.bracketed(target.value)}.index_put_(({at}), {place.text(node.value)})"
        return [place.source.replace(node, text)]
    x, dim = place.source.bracketed(target.value), parts.index(single[0])
    index, value = place.source.bracketed(single[0]), place.source.bracketed(node.value)
    text = f"{x}.index_copy_({dim}, {index}.reshape(1), {value}.unsqueeze({dim}))"
    return [place.source.replace(node, text)]


def cut_by_index(place: Place) -> list[Edit]:
    """``x[a : a + 4]`` with an ``a`` of the device becomes ``x[a + torch.arange(4, device=x.device)]``."""
    found = []
    for node in heads(place.statement):
        if not isinstance(node, ast.Subscript):
            continue
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        cut = [part for part in parts if isinstance(part, ast.Slice) and part.lower is not None]
        wide = [(part, width) for part in cut if (width := width_of(place, part))]
        rest = [p for p in parts if not isinstance(p, ast.Slice) and not isinstance(p, ast.Constant)]
        plain = all(isinstance(p, ast.Slice) for p in parts)
        counted = counted_around(place, node)
        if len(wide) > 1 and len(wide) == len(cut) and all(isinstance(n, ast.Name) and n.id in counted for n in rest):
            texts = [":" if any(p is each for each, _ in wide) else place.text(p) for p in parts]
            x = text = place.source.bracketed(node.value)
            text += f"[{', '.join(texts)}]" * any(each != ":" for each in texts)
            for part, width in wide:
                dim = sum(isinstance(p, ast.Slice) for p in parts[: parts.index(part)])
                assert part.lower is not None
                text += f".index_select({dim}, {place.text(part.lower)} + torch.arange({width}, device={x}.device))"
            found.append(place.source.replace(node, text))
            continue
        if len(wide) != 1 or rest or (parts.index(wide[0][0]) != 0 and not plain):
            continue  # several indexes would be taken together
        part, width = wide[0]
        assert part.lower is not None
        x = place.source.bracketed(node.value)
        found.append(place.source.replace(part, f"{place.text(part.lower)} + torch.arange({width}, device={x}.device)"))
    return found
