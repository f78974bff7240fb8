"""Rows that a mask picks stay with all the others, which are left out where they would be added up.

``h = emb(ids)[keep]`` keeps all rows, and ``F.cross_entropy(head(h), y[keep])`` leaves out those of ``-100``;
``x[keep].mean(0)`` becomes a sum with zeros, divided by how many are kept. ``best[keep] = net(x[keep]).max(1).values``
is computed for all rows, and put where ``keep`` is. Only where every use of such rows ends in a sum, a mean, a loss, in
rows of the same mask, or asks how many there are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import torch

from paramgraph_kit.rewrite.expressions.picks.shapes import (
    ASKS_EACH,
    LOSSES,
    MASKS,
    PER_ROW,
    assigned_by_where,
    form_of,
    is_chosen,
    summed,
)
from paramgraph_kit.rewrite.expressions.picks.zeroed import kept_rows
from paramgraph_kit.rewrite.source.edits import Edit, Function, heads, names_in, path_of, within
from paramgraph_kit.rewrite.source.masked import mask_of_put, uncopied
from paramgraph_kit.rewrite.source.place import Place, binds_tighter, called, renamed, target_of
from paramgraph_kit.rewrite.source.pure import RISKY, SINGULAR
from paramgraph_kit.rewrite.source.rowwise import is_rowwise

_BLOCKS = ("body", "orelse", "finalbody")
_WAYS = ("sum", "mean")
_SPREAD = {"std": ".sqrt()", "var": ""}
_FILLED = {
    "max": "-math.inf",
    "amax": "-math.inf",
    "logsumexp": "-math.inf",
    "min": "math.inf",
    "amin": "math.inf",
    "prod": "1",
    "norm": "0",
    "any": "False",
    "all": "True",
}  # what changes nothing
_INDEXED = ("gather", "take_along_dim", "one_hot", "embedding")  # by what they are given
_MODULES = {
    "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll_loss",
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
}


def leave_out(place: Place) -> list[Edit]:
    """Picks of rows by one mask, from the statement on."""
    found = next(picks(place), None)
    function = place.source.function_of(place.statement)
    if found is None or function is None:
        return []
    index = mask_of(place, found)
    mask = place.text(index)
    order = [node for part in function.body for node in within(part) if isinstance(node, ast.stmt)]
    order = order[order.index(place.statement) :]
    cut = next((n for n, node in enumerate(order) if n and assigns(node, names_in(index))), len(order))
    own = next((n + 1 for n, node in enumerate(order) if mask_of_put(node) == mask == _put_into(node)), len(order))
    order, after = order[: min(cut, own)], order[min(cut, own) :]  # from there on it is another mask
    rows: set[str] = set()
    every: set[str] = set()  # what was such rows once
    edits: list[Edit] = []
    outer = place.source.parents[place.statement]
    one, all_of = form_of(place, index), form_of(place, found.value)
    flat = one is not None and all_of is not None and len(one.shape) == len(all_of.shape)  # elements are picked

    def is_row(node: ast.AST) -> bool:
        return is_row_of(place, node, mask, rows)

    for node in order:
        if (value := _put_by(place, node, mask)) is not None and any(is_row(n) for n in within(value)):
            text = assigned_by_where(place, node) if isinstance(node, (ast.Assign, ast.AugAssign)) else ""
            if not text or not is_rowwise(place, value, is_row):
                return []
            if place.trains and any(is_singular(place, n, mask, rows) for n in within(value)):
                return []
            edits.append(place.source.replace(node, text))
            continue
        ends = list(ends_of(place, node, mask, rows))
        inside = {part for end in ends for part in ast.walk(end)}
        left = [n for n in heads(node) if n not in inside and is_row_of(place, n, mask, rows)]
        counts = [n for n in heads(node) if n not in inside and (is_count(n, rows) or (flat and is_numel(n, rows)))]
        counted = {part for each in counts for part in ast.walk(each)}
        left = [n for n in left if n not in counted]
        anew = _given_by(node) & rows
        if anew and (isinstance(node, ast.AugAssign) or place.source.parents[node] is not outer):
            return []  # it may be these rows behind that, or something else
        if left:
            if not isinstance(node, ast.Assign) or not all(
                isinstance(n, ast.Name) for t in node.targets for n in parts_of(t)
            ):
                return []
            if not is_rowwise(place, node.value, is_row):
                return []
            rows.update(_given_by(node))
            every |= rows
            anew = set()
            chooses = _is_index(place, node.value, order, mask)
            whole = _left_whole(place, node.value) if isinstance(node.value, ast.Subscript) else ""
            if not chooses and left == [node.value] and [whole] == [place.text(target) for target in node.targets]:
                edits.append(place.source.without(node))  # ``x = x``
                continue
            edits += [
                place.source.replace(
                    n,
                    f"torch.where({mask}, {_all_of(place, n)}, 0)" if chooses else _left_whole(place, n),
                )
                for n in left
                if isinstance(n, ast.Subscript)
            ]
        for end in ends:
            given = list(end.args) if loss_of(place, end) or _of_torch(end) else [end.func]
            if not all(is_rowwise(place, each, is_row) for each in given):
                return []
            text = reduced(place, end, mask, rows)
            if not text:
                return []
            edits.append(place.source.replace(end, text))
        number, some = f"{bracketed(mask)}.sum()" + ".item()" * keeps(place, node), f"{bracketed(mask)}.any()"
        asked = [n for n in counts if is_asked(place, n)]
        edits += [place.source.replace(n, some if n in asked else number) for n in counts if isinstance(n, ast.expr)]
        if place.trains and (left or ends) and any(is_singular(place, n, mask, rows) for n in heads(node)):
            return []  # the gradient of a row that is left out would be no number
        rows -= anew
    if any(names_in(node) & every for node in after) or may_be_others(place, [*order, *after], every):
        return []
    return edits


def may_be_others(place: Place, order: list[ast.stmt], rows: set[str]) -> bool:
    """Whether names of rows are read where they may be other rows: in a loop's next round, or behind a branch."""
    inner: ast.AST = place.statement
    while not isinstance(above := place.source.parents[inner], Function):
        block = next((b for b in (getattr(above, k, []) for k in _BLOCKS) if isinstance(b, list) and inner in b), [])
        inside = {part for each in block for part in ast.walk(each)}
        if any(node not in inside and _reads(node) & rows for node in order):
            return True
        if isinstance(above, (ast.For, ast.While)):
            again = _reads(above) if isinstance(above, ast.While) else set()
            known = set[str]()  # what each round gives a value of its own first
            for part in block[: block.index(inner)]:
                again |= {name for node in within(part) for name in _loaded(node)} - known
                if isinstance(part, ast.Assign):
                    known |= {n.id for t in part.targets for n in parts_of(t) if isinstance(n, ast.Name)}
            if again & rows:
                return True
        inner = above
    return False


def _reads(node: ast.stmt) -> set[str]:
    return {name for part in heads(node) for name in _loaded(part)}


def _loaded(node: ast.AST) -> set[str]:
    return {node.id} if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else set()


def _given_by(node: ast.stmt) -> set[str]:
    """The names that a statement itself gives a value."""
    target = ast.walk(node.target) if isinstance(node, ast.For) else ()
    names = (n for n in (*heads(node), *target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return {n.id for n in names}


def _put_by(place: Place, node: ast.stmt, mask: str) -> ast.expr | None:
    """What is put into the rows of a mask."""
    target = target_of(node)
    target = node.target if isinstance(node, ast.AugAssign) else target
    if not isinstance(node, (ast.Assign, ast.AugAssign)) or not isinstance(target, ast.Subscript):
        return None
    return node.value if mask in (place.text(target.slice), uncopied(target.slice)) else None


def _put_into(node: ast.stmt) -> str:
    """The name of what a statement puts something into."""
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return path_of(target.value) if isinstance(target, ast.Subscript) else ""


def is_singular(place: Place, node: ast.AST, mask: str, rows: set[str]) -> bool:
    """Whether an expression has no number, or no gradient, for some rows that a mask may have kept away from it."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, RISKY):
        counts = {part for n in ast.walk(node.right) if is_count(n, rows) for part in ast.walk(n)}
        return any(is_row_of(place, n, mask, rows) for n in ast.walk(node.right) if n not in counts)
    if not isinstance(node, ast.Call) or called(node) not in SINGULAR:
        return False
    return _has_rows(place, node, mask, rows)


def parts_of(target: ast.expr) -> list[ast.expr]:
    """What an assignment gives a value to, each by itself."""
    return target.elts if isinstance(target, ast.Tuple) else [target]


def assigns(node: ast.stmt, names: set[str]) -> bool:
    """Whether a statement gives one of some names a value."""
    return any(isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.id in names for n in within(node))


def picks(place: Place) -> Iterator[ast.Subscript]:
    """What a statement picks by a mask."""
    for part in within(place.statement):
        loaded = isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Load)
        mask = mask_of(place, part) if loaded and isinstance(part, ast.Subscript) else None
        asks = isinstance(mask, ast.Call) and called(mask) in ASKS_EACH and isinstance(mask.func, ast.Attribute)
        above = place.source.parents.get(part)
        if isinstance(above, ast.Call) and above.func is part:
            continue  # ``experts[e](x[at])``
        if isinstance(mask, ast.Name) and _is_number(place, mask.id):
            continue  # ``centers[c] - x[at].mean(0)``
        if isinstance(part, ast.Subscript) and (isinstance(mask, MASKS) or asks or _is_row(place, mask)):
            yield part


def _is_number(place: Place, name: str) -> bool:
    """Whether a local name holds one whole number, which picks a row."""
    form = place.form(name)
    one = form is not None and not form.shape and form.dtype is not torch.bool
    return one or (form is None and name in place.plain)


def _is_row(place: Place, mask: ast.expr | None) -> bool:
    """Whether a mask is a row of one with a row for each: ``same[i]``."""
    form = form_of(place, mask) if isinstance(mask, ast.Subscript) else None
    return form is not None and form.dtype is torch.bool and len(form.shape) == 1


def mask_of(place: Place, node: ast.Subscript) -> ast.expr:
    """The index of rows: ``mask`` of ``x[mask]`` and of ``x[mask, 1:]``, where it is known to have one dimension."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
    if len(parts) < 2 or not all(isinstance(n, (ast.Slice, ast.Constant)) for n in parts[1:]):
        return node.slice
    form = form_of(place, parts[0])
    compared = isinstance(parts[0], ast.Compare) or (form is not None and form.dtype is torch.bool)
    return parts[0] if form is not None and len(form.shape) == 1 and compared else node.slice


def _all_of(place: Place, node: ast.Subscript) -> str:
    """The same of all rows."""
    whole = place.source.bracketed(node.value)
    if mask_of(place, node) is node.slice or not isinstance(node.slice, ast.Tuple):
        return whole
    return f"{whole}[:, {', '.join(map(place.text, node.slice.elts[1:]))}]"


def _left_whole(place: Place, node: ast.Subscript) -> str:
    return kept_rows(place, node, _all_of(place, node))


def _is_index(place: Place, value: ast.expr, order: list[ast.stmt], mask: str) -> bool:
    """Whether picked labels say what is taken of other rows: those that a mask leaves out, as -100, are no index."""
    target, one = target_of(place.source.parents.get(value)), form_of(place, ast.parse(mask, mode="eval").body)
    if not isinstance(value, ast.Subscript) or not isinstance(target, ast.Name):
        return False
    form, names = form_of(place, target), {target.id}
    if form is None or one is None or form.dtype is not torch.int64 or len(form.shape) != 1 or len(one.shape) != 1:
        return False
    calls = (n for node in order for n in heads(node) if isinstance(n, ast.Call) and called(n) in _INDEXED)
    return any(names_in(given) & names for call in calls for given in (*call.args, *(o.value for o in call.keywords)))


def keeps(place: Place, node: ast.stmt) -> bool:
    """Whether a statement gives what it has found to something that outlives the function, as a log."""
    if isinstance(node, ast.Expr):
        return True
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    names = [each for each in targets if isinstance(each, ast.Name) and place.is_local(each.id)]
    return isinstance(node, (ast.Assign, ast.AugAssign)) and len(names) < len(targets)


def is_row_of(place: Place, node: ast.AST, mask: str, rows: set[str]) -> bool:
    """Whether a node is rows that a mask has picked."""
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Load) and node.id in rows
    loaded = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
    return loaded and isinstance(node, ast.Subscript) and place.text(mask_of(place, node)) == mask


def is_count(node: ast.AST, rows: set[str]) -> bool:
    """``len(x)``, ``x.shape[0]`` and ``x.size(0)``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
        return len(node.args) == 1 and isinstance(node.args[0], ast.Name) and node.args[0].id in rows
    if isinstance(node, ast.Call) and called(node) == "size" and isinstance(node.func, ast.Attribute):
        first = len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
        return first and isinstance(node.func.value, ast.Name) and node.func.value.id in rows
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
        first = isinstance(node.slice, ast.Constant) and node.slice.value == 0
        return first and isinstance(node.value.value, ast.Name) and node.value.value.id in rows
    return False


def is_numel(node: ast.AST, rows: set[str]) -> bool:
    """``x.numel()`` of what is one row of elements."""
    owner = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id in rows and isinstance(node, ast.Call) and called(node) == "numel"


def is_asked(place: Place, node: ast.AST) -> bool:
    """Whether a number is all that a branch asks for, which then is whether there are any."""
    above = place.source.parents.get(node)
    if isinstance(above, ast.UnaryOp) and isinstance(above.op, ast.Not):
        return is_asked(place, above)
    return node is getattr(above, "test", None)


def ends_of(place: Place, node: ast.stmt, mask: str, rows: set[str]) -> Iterator[ast.Call]:
    """The calls of a statement that add rows up, the outermost ones that are given some."""
    inside: set[ast.AST] = set()
    for part in heads(node):
        if not isinstance(part, ast.Call) or part in inside or not _adds_up(place, part, mask, rows):
            continue
        deeper = (
            n for n in ast.walk(part) if n is not part and isinstance(n, ast.Call) and _adds_up(place, n, mask, rows)
        )
        added = {n for each in deeper for n in ast.walk(each)}
        if any(is_row_of(place, n, mask, rows) and n not in added for n in ast.walk(part)):
            inside |= set(ast.walk(part))
            yield part


def _adds_up(place: Place, part: ast.Call, mask: str, rows: set[str]) -> bool:
    ending = called(part) in (*_WAYS, *_FILLED, *_SPREAD) and isinstance(part.func, ast.Attribute)
    if not (ending or loss_of(place, part)):
        return False
    if ending and is_rowwise(place, part, lambda n: is_row_of(place, n, mask, rows)):
        return False  # along another dimension: each row has its own
    return any(is_row_of(place, n, mask, rows) for n in ast.walk(part))


def _of_torch(call: ast.Call) -> bool:
    """``torch.sum(x)`` for ``x.sum()``."""
    return isinstance(call.func, ast.Attribute) and path_of(call.func.value) == "torch" and bool(call.args)


def bracketed(text: str) -> str:
    """A text that stands for one thing."""
    return text if text.isidentifier() else f"({text})"


def _whole(place: Place, node: ast.expr, mask: str) -> str:
    """An expression without the picks of a mask."""
    parts = (n for n in ast.walk(node) if isinstance(n, ast.Subscript) and place.text(mask_of(place, n)) == mask)
    return renamed(place.text(node), {place.text(part): _left_whole(place, part) for part in parts})


def reduced(place: Place, call: ast.Call, mask: str, rows: set[str]) -> str:
    """What adds up the rows that are kept, or ""."""
    given = {option.arg: option.value for option in call.keywords}
    count = f"{bracketed(mask)}.sum()" + ".clamp(min=1)" * is_chosen(place, call)
    summing = summed(place, call, picked_in(place, call, mask, rows))
    if (loss := loss_of(place, call)) is not None:
        kind, way, function = loss
        given.pop("reduction", None)
        if way not in (*_WAYS, "batchmean") or len(call.args) != 2:
            return ""
        if not all(_has_rows(place, a, mask, rows) for a in call.args):
            return ""
        one, other = (_whole(place, each, mask) for each in call.args)
        if kind in PER_ROW:
            if given.keys() - {"label_smoothing", "weight"}:
                return ""
            rest = "".join(f", {place.text(o)}" for o in call.keywords)
            labels = f"torch.where({mask}, {other}, -100).flatten()"
            scores = _call(call.args[0], one)
            if place.trains:  # of a row that is left out nan would come back, whatever its label says
                scores = f"torch.where({bracketed(mask)}[..., None], {one}, 0)"
            return f"{place.text(call.func)}({scores}.flatten(0, -2), {labels}{rest})"
        if given.keys() - {"beta", "delta", "log_target"}:
            return ""
        rest = "".join(f", {place.text(o)}" for o in call.keywords if o.arg in given)
        mask, flat = _flat(place, mask, rows, call)
        each = f'{function}({one}, {other}{rest}, reduction="none"){flat}'
        text = f"torch.where({mask}, {each}.movedim(0, -1), 0).sum({summing.of * (way != 'sum')})"
        if way == "mean":
            text = summing.quotient(f"{text} / ({each}[0].numel() * {count})")
        elif way == "batchmean":
            text = summing.quotient(f"{text} / {count}")
        return f"({text})" if binds_tighter(place.source, call) else text
    assert isinstance(call.func, ast.Attribute)
    inner, others = (call.args[0], call.args[1:]) if _of_torch(call) else (call.func.value, call.args)
    dims = [*others, *(given[name] for name in given if name == "dim")]
    whole = not dims
    spread = {"unbiased", "correction"} if called(call) in _SPREAD else set()
    if (
        given.keys() - {"dim"} - spread
        or len(dims) > 1
        or (dims and not (isinstance(dims[0], ast.Constant) and dims[0].value == 0))
    ):
        return ""
    whole_of = _whole(place, inner, mask)
    mask, flat = _flat(place, mask, rows, call)
    value = f"{_call(inner, whole_of)}{flat}"
    if called(call) in _FILLED:
        if called(call) == "norm" and others:
            return ""
        filled = _FILLED[called(call)].replace("math", "math" if "math" in place.space else "torch")
        along = "" if whole else "dim=-1" if called(call) == "norm" else "-1"
        return f"torch.where({mask}, {value}.movedim(0, -1), {filled}).{called(call)}({along})"
    if called(call) in _SPREAD:
        if others and not isinstance(others[0], ast.Constant):
            return ""
        value += ".float()" * bool(summing.of)
        mean = f"torch.where({mask}, {value}.movedim(0, -1), 0).sum(-1, keepdim=True) / {count}"
        squares = f"torch.where({mask}, ({value}.movedim(0, -1) - {mean}) ** 2, 0).sum(-1)"
        less = next((given[name] for name in ("unbiased", "correction") if name in given), ast.Constant(1))
        if not isinstance(less, ast.Constant) or not isinstance(less.value, int):
            return ""
        divisor = count
        if less.value:  # of no row 0 / 0, as eager has it
            divisor = f"({bracketed(mask)}.sum() - {int(less.value)}).clamp(min=0)"
        return f"({squares} / {divisor}){_SPREAD[called(call)]}{summing.whole}"
    divides = called(call) == "mean"
    along = ", ".join(filter(None, ("" if whole else "-1", summing.of * divides)))
    text = f"torch.where({mask}, {value}.movedim(0, -1), 0).sum({along})"
    if divides:
        text = summing.quotient(text + (f" / ({value}[0].numel() * {count})" if whole else f" / {count}"))
    return f"({text})" if binds_tighter(place.source, call) else text


def _flat(place: Place, mask: str, rows: set[str], call: ast.Call) -> tuple[str, str]:
    """A mask as one dimension, and what makes one of those that it goes along, where it has several."""
    index = ast.parse(mask, mode="eval").body
    form = form_of(place, index)
    many = len(form.shape) if form is not None else 1
    return (f"{bracketed(mask)}.flatten()", f".flatten(0, {many - 1})") if many > 1 else (mask, "")


def loss_of(place: Place, call: ast.Call) -> tuple[str, str, str] | None:
    """The function that a call of a loss, or of a module of one, comes to, how it reduces, and how it is written."""
    if called(call) in LOSSES:
        given = next((option.value for option in call.keywords if option.arg == "reduction"), ast.Constant("mean"))
        return called(call), str(given.value) if isinstance(given, ast.Constant) else "", place.text(call.func)
    path = path_of(call.func)
    known: Any = None
    if "." not in path and place.is_local(path):
        function = place.source.function_of(place.statement)
        every = [n for part in (function.body if function is not None else ()) for n in within(part)]
        made = [n.value for n in every if isinstance(n, ast.Assign) and path in map(place.text, n.targets)]
        if len(made) == 1 and isinstance(made[0], ast.Call) and called(made[0]) in _MODULES and not made[0].args:
            options = {str(o.arg): o.value.value for o in made[0].keywords if isinstance(o.value, ast.Constant)}
            if len(options) == len(made[0].keywords) and options.keys() <= {"reduction", "label_smoothing"}:
                known = getattr(torch.nn, called(made[0]))(**options)
    elif path:
        known = place.attributes.get(path.rpartition(".")[2]) if "." in path else place.space.get(path)
    kind = _MODULES.get(type(known).__name__, "") if type(known).__module__ == "torch.nn.modules.loss" else ""
    if not kind or getattr(known, "ignore_index", -100) != -100:
        return None
    weights = [getattr(known, name, None) for name in ("weight", "pos_weight")] if kind not in PER_ROW else []
    if any(each is not None for each in weights) or any(getattr(known, n, 1.0) != 1.0 for n in ("beta", "delta")):
        return None
    return kind, known.reduction, f"torch.nn.functional.{kind}"


def _has_rows(place: Place, node: ast.expr, mask: str, rows: set[str]) -> bool:
    return any(is_row_of(place, n, mask, rows) for n in ast.walk(node))


def picked_in(place: Place, node: ast.AST, mask: str, rows: set[str]) -> list[ast.expr]:
    """Rows that an expression has, by name, or what they are picked from."""
    every = (n for n in ast.walk(node) if isinstance(n, ast.expr) and is_row_of(place, n, mask, rows))
    return [n.value if isinstance(n, ast.Subscript) else n for n in every]


def _call(node: ast.expr, text: str) -> str:
    """A text of an expression, so that ``.attribute`` can follow."""
    plain = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
    return text if plain else f"({text})"
