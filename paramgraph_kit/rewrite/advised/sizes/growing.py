"""Advice for what has another size at each step, or is left early: picks, bad losses."""

from __future__ import annotations

import ast
import dis
import re

import torch

from paramgraph_kit.doctor.observe.held import attribute_of
from paramgraph_kit.rewrite.advised.asks.chosen_together import chosen_together, one_of_both
from paramgraph_kit.rewrite.advised.sizes.grown import cache
from paramgraph_kit.rewrite.advised.sizes.left_together import any_test
from paramgraph_kit.rewrite.advised.sizes.picked_rows import beside, divides
from paramgraph_kit.rewrite.advised.sizes.uniques import picked_of_unique, unique
from paramgraph_kit.rewrite.counting.optimizers import is_fusable, momentum_of, stepped
from paramgraph_kit.rewrite.expressions.decisions.branches import condition_of
from paramgraph_kit.rewrite.expressions.picks.rows import masks_of
from paramgraph_kit.rewrite.expressions.picks.shapes import assigned_by_where, form_of
from paramgraph_kit.rewrite.expressions.picks.sizes import DRAWN
from paramgraph_kit.rewrite.source.ahead_of import is_sized
from paramgraph_kit.rewrite.source.edits import heads, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place, called, is_training
from paramgraph_kit.rewrite.source.pure import candidates

_LEAVES = (ast.Return, ast.Continue, ast.Break)


def picked_together(place: Place) -> str:
    """``boxes, scores = boxes[keep], scores[keep]``."""
    node = place.statement
    value = node.value if isinstance(node, (ast.Assign, ast.Return)) else None
    if place.failure.code != "dynamic-shape" or not isinstance(value, ast.Tuple):
        return ""
    picks = [n for n in value.elts if isinstance(n, ast.Subscript)]
    masks = {place.text(n.slice) for n in picks}
    shrinks = any(isinstance(loop, ast.While) and stored([node]) & names_in(loop.test) for loop in place.loops())
    calls = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Call)]
    if len(picks) < 2 or len(masks) != 1 or shrinks:
        return ""
    if place.trains and any(called(n) in ("backward", "grad") for n in calls):
        return ""  # a loss may be made of what is picked
    mask, names = masks.pop(), [place.text(n.value) for n in picks]
    function = place.source.function_of(node)
    calls = [
        n for n in ast.walk(function or node) if isinstance(n, ast.Call) and called(n) in ("topk", "sort", "argsort")
    ]
    later = [n for n in calls if n.lineno > node.lineno and isinstance(n.func, ast.Attribute)]
    ranked = [place.text(n.func.value) for n in later if isinstance(n.func, ast.Attribute)]
    more = "".join(
        f"; `{x}.{called(n)}` behind it takes `torch.where({mask}, {x}, {_last_of(n)})`, so that these come last"
        for n, x in list(zip(later, ranked, strict=True))[:1]
        if x in names
    )
    for made in (n for n in within(function or node) if isinstance(n, ast.Assign) and n.lineno > node.lineno):
        again = made.value.elts[0] if isinstance(made.value, ast.Tuple) and made.value.elts else made.value
        if more and mask.isidentifier() and isinstance(again, ast.Subscript) and place.text(again.value) in names:
            more += f", and `{mask} = {mask}[{place.text(again.slice)}]` goes with line {made.lineno}"
            break
    listed = ", ".join(f"`{name}`" for name in names)
    return f"keep all of {listed}, return `{mask}` with them, and pick `[{mask}]` behind the launch{more}"


def _last_of(call: ast.Call) -> str:
    """What comes last in an order."""
    falls = any(o.arg == "descending" and isinstance(o.value, ast.Constant) and o.value.value for o in call.keywords)
    return "-torch.inf" if falls or called(call) == "topk" else "torch.inf"


def longest(place: Place) -> str:
    """``x = x[:, : lengths.max()]``."""
    if place.failure.code not in ("tensor-bound", "sync-item", "size-frozen"):
        return ""
    for node in heads(place.statement):
        if not isinstance(node, ast.Subscript):
            continue
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for dim, part in enumerate(parts):
            end = part.upper if isinstance(part, ast.Slice) and part.lower is None else None
            while isinstance(end, ast.Call) and called(end) in ("int", "item"):
                end = end.args[0] if end.args else end.func.value if isinstance(end.func, ast.Attribute) else None
            if not isinstance(end, ast.Call) or called(end) not in ("max", "amax") or end.args:
                continue
            x = place.text(node.value)
            return (
                f"leave the cut out: `{x}` has room for the longest already. Where what lies behind the cut counts (a "
                f"mean, a softmax, a length), mask it with `torch.arange({x}.shape[{dim}], device={place.device}) < "
                f"{place.text(end)}`; or give the length as a number among the arguments, of which each has a graph"
            )
    return ""


def _counted_by_masks(function: ast.AST, place: Place, test: str) -> str:
    """``hard.numel() == 0`` of ``hard = x[mask]`` as ``(mask).sum() == 0``: whoever keeps all of ``x`` has no other."""
    for node in (n for n in ast.walk(function) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Subscript)):
        index = node.value.slice if isinstance(node.value, ast.Subscript) else node
        if isinstance(index, (ast.Compare, ast.Name, ast.UnaryOp)):
            for target in node.targets:
                name = re.escape(place.text(target))
                counted = rf"(?<![\w.]){name}\.(?:numel\(\)|shape\[0\]|size\(0\))|len\({name}\)"
                mask = f"({place.text(index)}).sum()".replace("\\", r"\\")
                test = re.sub(counted, mask, test)
    return test


def bad_loss(place: Place) -> str:
    """``if not torch.isfinite(loss): return`` before the backward pass."""
    node, function = place.statement, place.source.function_of(place.statement)
    if place.failure.code != "data-dependent-branch" or not isinstance(node, ast.If) or function is None:
        return ""
    if not any(isinstance(n, _LEAVES) for part in node.body for n in within(part)):
        return ""
    inside = [n for loop in place.loops()[:1] for n in within(loop)]  # a round left out leaves out no step behind them
    for later in (n for part in function.body for n in within(part) if isinstance(n, ast.Expr)):
        if inside and later not in inside:
            continue
        name = stepped(later, scaled=False) if later.lineno > node.lineno else ""
        if name and any(later in within(n) for n in (inside or within(function)) if isinstance(n, ast.If)):
            return _asked_between(place, function)
        if name and is_fusable(place.space, name) and not momentum_of(place, name):
            test = any_test(place, later, lambda text: _counted_by_masks(function, place, text))
            return (
                f"take the branch out, and write `{name}.found_inf = ({test}).float()` before `{name}.step()` at line "
                f"{later.lineno}, with `fused=True` where `{name}` is made: the device leaves the step out then, with "
                f"all that `{name}` keeps; return what is asked, and tell it behind the launch"
            )
    return ""


def _asked_between(place: Place, function: ast.AST) -> str:
    """Where gradients of several calls add up, one that is left out has no part in them, nor in their count."""
    paths = [path_of(n.func) for n in ast.walk(function) if isinstance(n, ast.Call)]
    names = dict.fromkeys(each for each in paths if each and isinstance(place.value(each), torch.nn.Module))
    if len(names) != 1:
        return ""
    (name,) = names
    return (
        f"leave it as it is, with all lines behind it, and graph the passes alone: `{name} = torch.compile({name}, "
        'backend="paramgraph")`; the host asks between them. In one graph such a call would be counted, and its loss '
        "would be in the gradients that are kept for later calls"
    )


def asked_first(place: Place) -> str:
    """``if done.any():`` around lines that do nothing where there is none."""
    node = place.statement
    if place.failure.code != "data-dependent-branch" or not isinstance(node, ast.If) or node.orelse:
        return ""
    for mask in masks_of(place, node.test):
        put = [n for n in node.body if isinstance(n, (ast.Assign, ast.AugAssign)) and _is_at(place, n, mask)]
        rest = [n for n in node.body if n not in put]
        if not put or not mask:
            continue
        lines = "`, `".join(assigned_by_where(place, n) or place.text(n) for n in put)
        text = (
            f"leave the question out, and write for all rows: `{lines}`, with `{mask}[:, None]` where these are rows; "
            f"it changes nothing where `{mask}` has nothing"
        )
        made, text = _for_all_rows(place, put, rest, mask, text)
        rest = [n for n in rest if n not in made]
        if any(called(n) in DRAWN for each in (*put, *made) for n in ast.walk(each) if isinstance(n, ast.Call)):
            text += ", but draws in each step: other numbers than before, so it was not rewritten"
        if rest:
            text += f"; `{place.text(rest[0])}` belongs behind the launch: return what it reads, taken before that"
        return text
    return ""


def _for_all_rows(
    place: Place, put: list[ast.Assign | ast.AugAssign], rest: list[ast.stmt], mask: str, text: str
) -> tuple[list[ast.stmt], str]:
    """What a branch makes for as many rows as a mask has, made for all of them: those lines, and the longer text."""
    read = {name for each in put for name in names_in(each.value)}
    given = [(n, t.id) for n in rest if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)]
    counts = [name for n, name in given if f"{mask}.sum()" in place.text(n)]
    made = list[ast.stmt]()
    for node, name in given:
        if name not in read or name in counts:
            continue
        new = place.text(node)
        for each in counts:
            new = re.sub(rf"\b{re.escape(each)}\b", f"{mask}.shape[0]", new)
        made.append(node)
        text += f"; before that, `{new}`"
    return made, text


def _is_at(place: Place, node: ast.Assign | ast.AugAssign, mask: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return all(isinstance(each, ast.Subscript) and place.text(each.slice) == mask for each in targets)


def weighed(place: Place) -> str:
    """``e[mask].softmax(0)``."""
    if place.failure.code != "dynamic-shape":
        return ""
    for call in place.calls("softmax", "log_softmax"):
        inner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if isinstance(inner, ast.Subscript) and isinstance(inner.slice, (ast.Name, ast.Compare)):
            x, mask = place.source.bracketed(inner.value), place.source.bracketed(inner.slice)
            rest = ", ".join(place.text(each) for each in [*call.args, *call.keywords])
            text = f"{x}.masked_fill(~{mask}, -torch.inf).{called(call)}({rest})"
            more = "with `.nan_to_num(0.0)` also where it has nothing"
            return f"`{text}` has weights for all, which are 0 outside of `{mask}`, {more}"
    return ""


def shuffled(place: Place) -> str:
    """Indices that numpy or Python has shuffled."""
    function = place.source.function_of(place.statement)
    if place.failure.code not in ("cpu-index", "copy-to-gpu", "host-random") or function is None:
        return ""
    every = [n for part in function.body for n in within(part)]
    names = names_in(place.statement)
    for _ in range(3):  # through names in between
        made = [n for n in every if isinstance(n, ast.Assign) and {t for e in n.targets for t in _names(e)} & names]
        names = names | {name for n in made for name in names_in(n.value)}
    for node in every:
        if not isinstance(node, ast.Call) or called(node) not in ("shuffle", "permutation") or not node.args:
            continue
        x = place.text(node.args[0])
        if called(node) == "shuffle" and x in names:
            drawn = f"`order = torch.randperm(len({x}), device={place.device})` in place of line {node.lineno}, and "
            drawn += f"`order` for `{x}` behind it,"
        elif called(node) == "permutation" and isinstance(place.source.parents.get(node), ast.Assign):
            drawn = f"`torch.randperm({x}, device={place.device})` for `{place.text(node)}` in line {node.lineno}"
        else:
            continue
        return (
            f"the host draws the order, which the device needs: {drawn} draws it there, and every part of it is an "
            "index there; other numbers than the host's, so it was not rewritten"
        )
    return ""


def looked_up(place: Place) -> str:
    """``rules[int(room[i])]`` with a dictionary or a list of the host's."""
    if place.failure.code not in ("sync-item", "copy-to-cpu"):
        return ""
    for node in heads(place.statement):
        if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Call):
            continue
        table, key = path_of(node.value), node.slice
        if called(key) not in ("int", "item") or not isinstance(place.space.get(table), (dict, list, tuple)):
            continue
        value = key.args[0] if key.args else key.func.value if isinstance(key.func, ast.Attribute) else key
        x, held = place.text(value), place.space[table]
        texts = [type(each) for each in (held.values() if isinstance(held, dict) else held)]
        if str in texts:
            loops = place.loops()
            where = "between two launches, of one round each" if loops else "behind the launch"
            what = "yield" if any(isinstance(n, ast.Yield) for n in heads(place.statement)) else "look up"
            return f"`{table}` has texts, which no tensor is: keep `{x}`, and {what} `{place.text(node)}` {where}"
        return (
            f"`{table}` is the host's: make a tensor of it once, with a row for each key, `{table}_there = "
            f"torch.tensor(..., device={place.device})`, and look up all of it there, `{table}_there[{x}]` (where it "
            "says what is left out, as a mask for `torch.where`)"
        )
    return ""


def rows_of_a_mask(place: Place) -> str:
    """``tokens = x[keep]``, whatever is made of them."""
    node = place.statement
    if place.failure.code != "dynamic-shape" or not isinstance(node, ast.Assign):
        return ""
    value = node.value
    if not isinstance(value, ast.Subscript) or not isinstance(value.slice, (ast.Name, ast.Compare, ast.UnaryOp)):
        return ""
    if _is_an_index(place, node.targets[0]):
        return ""  # zeros would pick the first row again and again
    x, mask = place.text(value.value), place.source.bracketed(value.slice)
    one, whole = form_of(place, value.slice), form_of(place, value.value)
    if one is None or whole is None:
        spread, more = place.text(value.slice), f", with `{mask}[:, None]` where these are rows"
    else:
        deeper = len(whole.shape) > len(one.shape)
        spread, more = f"{mask}[:, None]" if deeper else place.text(value.slice), ""
    name = f"{place.text(node.targets[0])} = " if isinstance(node.targets[0], ast.Name) else ""
    if (picked := _picked(place, node.targets[0])) is not None:  # of zeros in between some would be picked, too
        ends = _ends_of(place, picked.slice)
        if ends is None or (one is not None and len(one.shape) != 1):
            return ""
        order, others = (f"(~{mask})", "the others behind") if ends == "first" else (mask, "the others before")
        return (
            f"`{name}{x}[{order}.byte().argsort(stable=True)]` has those of `{mask}` {ends}, in their order, {others}: "
            f"`{place.text(picked)}` stays as it is where there are as many; `{mask}.sum()` says how many there are"
        )
    if one is None or len(one.shape) == 1:
        more += _numbered(place, node.targets[0], mask)
    if divides(place, node.targets[0]):
        return (
            f"keep all of `{x}`, ones elsewhere, as zeros would be divided, and the mask beside it: "
            f"`{name}torch.where({spread}, {x}, 1)`{more}; take `torch.where({mask}, values, 0)` of what comes of it "
            f"before each sum; there are `{mask}.sum()` of them, by which a mean divides its sum"
        )
    return (
        f"keep all of `{x}`, zeros elsewhere, and the mask beside it: `{name}torch.where({spread}, {x}, 0)`{more}; "
        f"there are `{mask}.sum()` of them, by which a mean divides its sum{beside(place, mask)}"
    )


def _numbered(place: Place, target: ast.expr, mask: str) -> str:
    """What numbers those that are kept where a function does so: ``torch.arange(len(kept))``."""
    if not isinstance(target, ast.Name):
        return ""
    name, function = target.id, place.source.function_of(place.statement)
    counts = {f"len({name})", f"{name}.shape[0]", f"{name}.size(0)", f"{name}.numel()"}
    for call in (n for n in ast.walk(function) if isinstance(n, ast.Call)) if function is not None else ():
        if called(call) == "arange" and len(call.args) == 1 and place.text(call.args[0]) in counts:
            return f", for `{place.text(call)}`, which numbers those that are kept, `({mask}.cumsum(0) - 1)`"
    return ""


def _is_an_index(place: Place, target: ast.expr) -> bool:
    """Whether a function picks by what a statement gives a name to."""
    function = place.source.function_of(place.statement)
    every = [n for n in ast.walk(function) if isinstance(n, ast.Subscript)] if function is not None else []
    return isinstance(target, ast.Name) and any(target.id in names_in(n.slice) for n in every)


def _picked(place: Place, target: ast.expr) -> ast.Subscript | None:
    """Where the function picks rows of what it keeps under a name by their place: ``kept[:3]``."""
    function = place.source.function_of(place.statement)
    if function is None or not isinstance(target, ast.Name):
        return None
    every = (n for part in function.body for n in within(part) if isinstance(n, ast.Subscript))
    return next((n for n in every if path_of(n.value) == target.id and _is_place(n.slice)), None)


def _is_place(index: ast.expr) -> bool:
    """Whether an index says which rows by their places: ``[0]``, ``[-1]``, ``[:3]``; not ``[:]``."""
    first = _of_rows(index)
    if isinstance(first, ast.Slice):
        return any(end is not None for end in (first.lower, first.upper, first.step))
    if isinstance(first, ast.UnaryOp):
        return isinstance(first.op, ast.USub)  # ``[~mask]`` picks by values
    return isinstance(first, ast.Constant) and isinstance(first.value, int)


def _of_rows(index: ast.expr) -> ast.expr:
    return index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index


def _ends_of(place: Place, index: ast.expr) -> str | None:
    """From which end an index of rows counts, "first" or "last"; None where it leads to where the rows end."""
    rows = _of_rows(index)
    if not isinstance(rows, ast.Slice):
        return "last" if _is_negative(place, rows) else "first"
    if rows.step is not None and _is_negative(place, rows.step):
        return None
    lower, upper = (each is not None and _is_negative(place, each) for each in (rows.lower, rows.upper))
    if not lower and not upper:
        return "first" if rows.upper is not None else None
    return "last" if lower and (upper or rows.upper is None) else None


def _is_negative(place: Place, node: ast.expr) -> bool:
    value = place.space.get(node.id) if isinstance(node, ast.Name) else None
    return (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)) or (isinstance(value, int) and value < 0)


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def rounds(place: Place) -> str:
    """``if finished.all(): break`` in a loop with a fixed number of rounds."""
    node = place.statement
    loop = place.source.parents.get(node)
    if place.failure.code not in ("data-dependent-branch", "compare-on-cpu", "sync-item"):
        return ""
    if (
        not isinstance(node, ast.If)
        or not isinstance(loop, (ast.For, ast.While))
        or not any(isinstance(n, ast.Break) for part in node.body for n in within(part))
    ):
        return ""
    if any(is_training(n) for part in loop.body for n in within(part)):
        return ""
    if isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant):
        return ""  # nothing else ends it
    parts = node.test.values if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or) else [node.test]
    known = [each for each in parts if _is_of_shapes(each)] if len(parts) > 1 else []
    asked = [each for each in parts if each not in known]
    test = asked[0] if len(asked) == 1 else ast.BoolOp(ast.Or(), asked)
    ended, stays = condition_of(place, test).replace(".item()", ""), ""
    if known and asked:
        texts = " or ".join(place.text(each) for each in known)
        stays = f" (the host knows `{texts}`: `if {texts}:` may stay)"
    return (
        f"a launch cannot end early: leave the branch out{stays}, so that all rounds of line {loop.lineno} run, have "
        f"what has ended stay as it is (`torch.where({ended}, old, new)`), and cut off what is too much behind the "
        "launch, also of what grows by one in each round"
    )


def _is_of_shapes(test: ast.expr) -> bool:
    """Whether a comparison asks for sizes alone, and numbers."""
    sized: set[ast.expr] = {n for n in ast.walk(test) if isinstance(n, ast.Attribute) and n.attr in ("shape", "ndim")}
    sized |= {n for n in ast.walk(test) if isinstance(n, ast.Call) and called(n) in ("size", "len", "dim", "numel")}
    return isinstance(test, ast.Compare) and bool(sized)


def computed_anyway(place: Place) -> str:
    """A branch that assigns something, which may be computed in any case."""
    node = place.statement
    if place.failure.code != "data-dependent-branch" or not isinstance(node, ast.If):
        return ""
    inside = [n for block in (node.body, node.orelse) for part in block for n in within(part)]
    if any(isinstance(n, (*_LEAVES, ast.Raise)) for n in inside):
        return ""
    calls = (n for n in inside if isinstance(n, ast.Call))
    if any(called(n) in ("backward", "step", "item", "append", "print", "save") for n in calls):
        return ""
    if any(isinstance(n, ast.Assign) and is_sized(n.value) for n in inside):
        return ""  # what is there has another size, and nothing keeps it
    if told := _changed_by_call(place, node):
        return told
    targets = [each for n in inside if isinstance(n, ast.Assign) and not _is_of_form(n.value) for each in n.targets]
    targets += [n.target for n in inside if isinstance(n, ast.AugAssign)]
    if any(_is_of_host(place, each) for each in targets):
        return ""  # what an object counts is no tensor
    last = [place.text(each) for each in targets if not isinstance(each, ast.Tuple)][-1:]
    if not last or _begins_here(place, node):
        return ""
    return chosen_together(place, node) or one_of_both(place, node, last[0])


def _is_of_form(value: ast.expr) -> bool:
    """Whether it is no tensor but where or of which kind one is: ``x.device``."""
    return isinstance(value, ast.Constant) or (
        isinstance(value, ast.Attribute) and value.attr in ("device", "dtype", "shape", "ndim", "requires_grad")
    )


def _begins_here(place: Place, node: ast.If) -> bool:
    """Whether one way of a branch gives a first value to names that the other one leaves without."""
    function = place.source.function_of(node)
    before = set(arguments_of(function)) if function is not None else set[str]()
    before |= {n.id for n in ast.walk(function or node) if isinstance(n, ast.Name) and n.lineno < node.lineno}
    one, other = stored(node.body), stored(node.orelse)
    later = {n.id for n in ast.walk(function or node) if isinstance(n, ast.Name) and n.lineno > (node.end_lineno or 0)}
    return bool((one ^ other) & later - before)


def _changed_by_call(place: Place, node: ast.If) -> str:
    """``if c: tracker.update(z)``: the call in any case, and what it changes as it was where it is not meant."""
    for block, taken in ((node.body, True), (node.orelse, False)):
        for part in block:
            call = part.value if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call) else None
            if call is None or not isinstance(call.func, ast.Attribute):
                continue
            owner, names = place.text(call.func.value), list[str]()
            for method in candidates(place, call.func):
                code, held = getattr(method, "__code__", None), getattr(method, "__self__", None)
                stores = [i.argval for i in dis.get_instructions(code) if i.opname == "STORE_ATTR"] if code else []
                names += [n for n in dict.fromkeys(stores) if isinstance(attribute_of(held, n, None), torch.Tensor)]
            if not names:
                continue
            before = "; ".join(f"{n}_kept, {n}_then = {owner}.{n}, {owner}.{n}.clone()" for n in names)
            test = condition_of(place, node.test)
            ways = (f"{owner}.{{0}}, {{0}}_then" if taken else f"{{0}}_then, {owner}.{{0}}").format
            after = "; ".join(f"{n}_kept.copy_(torch.where({test}, {ways(n)})); {owner}.{n} = {n}_kept" for n in names)
            return (
                f"call it in any case and keep what it changes or not, without the branch: `{before}` before "
                f"`{place.text(call)}`, behind it `{after}`; what the branch counts adds `torch.where(...)` of the same"
            )
    return ""


GROWING = (
    looked_up,
    bad_loss,
    asked_first,
    rounds,
    cache,
    unique,
    picked_of_unique,
    picked_together,
    longest,
    shuffled,
)


def _is_of_host(place: Place, target: ast.expr) -> bool:
    """Whether a branch gives another value to what an object, or the file, has as a number or as nothing yet."""
    if isinstance(target, ast.Attribute):
        return target.attr in place.attributes and not isinstance(place.attributes[target.attr], torch.Tensor)
    known = isinstance(target, ast.Name) and not place.is_local(target.id) and target.id in place.space
    return known and not isinstance(place.space[getattr(target, "id", "")], torch.Tensor)
