"""Advice for what the host finds and does before a launch, and for parts of tensors that its numbers bound."""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import replace

from paramgraph_kit.rewrite.advised.asks.by_where import by_where
from paramgraph_kit.rewrite.advised.asks.cut_here import decided_here
from paramgraph_kit.rewrite.advised.asks.masked_cuts import softened
from paramgraph_kit.rewrite.source.edits import Function, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, fresh, is_number
from paramgraph_kit.rewrite.source.widths import parts_of, width_at, with_all_of
from paramgraph_kit.rewrite.source.writes import paths, touches, written

_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def moving_slice(place: Place, ends: ast.Slice, made: dict[str, ast.Assign]) -> str:
    """``x[:, a : a + 4] = v`` and ``x[:, a : a + 4]`` where ``a`` is the host's."""
    made = dict(sorted(made.items(), key=lambda each: each[1].lineno))  # drawn in their order
    above = place.source.parents.get(ends)
    whole = place.source.parents.get(above) if isinstance(above, ast.Tuple) else above
    if not isinstance(whole, ast.Subscript):
        return ""
    x, lines, tests, zeros = place.text(whole.value), list[str](), list[str](), ""
    of_one_size, parts = _of_one_size(place, whole, made), parts_of(whole)
    moving = [n for n, part in enumerate(parts) if isinstance(part, ast.Slice) and names_in(part) & made.keys()]
    x, dims = with_all_of(place.source, whole, moving) or (x, moving)
    for dim, part in zip(dims, (parts[n] for n in moving), strict=True) if not of_one_size else ():
        ends_of = (part.lower, part.upper) if isinstance(part, ast.Slice) else ()
        low, high = (place.text(end) if end is not None else "" for end in ends_of)
        for name in made:
            low, high = (_renamed(text, name, f"{name}_in") for text in (low, high))
        at = f"at_{len(lines) + 1}" if lines else "at"
        behind = f"({x}.dim() - {dim + 1})" if dim >= 0 else f"{-dim - 1}"
        places = f"torch.arange({x}.shape[{dim}], device={x}.device).view(-1, *[1] * {behind})"
        lines.append(f"`{at} = {places}`")
        tests += [f"({at} {sign} {end})" for sign, end in ((">=", low), ("<", high)) if end]
        zeros = zeros or (softened(place, x, dim, high) if not low else "")
    node, made_once, test = place.statement, ", ".join(lines), " & ".join(tests)
    if of_one_size:
        here = f"here `{of_one_size}`{_for_others(place)}"
    elif isinstance(node, ast.Assign) and whole in node.targets:
        here = f"here {made_once} and `{x} = torch.where({test}, {place.text(node.value)}, {x})`"
    elif isinstance(node, ast.AugAssign) and whole is node.target:
        new = f"{x} {_OPERATORS.get(type(node.op), '')} {place.source.bracketed(node.value)}"
        if type(node.op) not in _OPERATORS or not is_number(node.value):  # others are as large as the part
            return ""
        here = f"here {made_once} and `{x}.copy_(torch.where({test}, {new}, {x}))`"
    elif picks := _of_an_order(place, whole, test):
        here = f"here {made_once}{picks}"
    else:
        here = f"here {made_once}, and all of `{x}` with `torch.where({test}, {x}, 0)`{zeros or _COUNTED}"
    *others, (name, last) = made.items()
    first = "".join(
        f"once `{other}_in = torch.zeros((), dtype=torch.long, device={place.device})`, before each launch "
        f"`{other}_in.fill_({other})` with `{other} = {_own(place, one, other)}` of line {one.lineno}; "
        for other, one in others
    )
    together = isinstance(last.targets[0], ast.Tuple) and not isinstance(last.value, ast.Tuple)
    text = name if together else _own(place, last, name)  # `a, b = draw()` stays as it is, there
    return first + found_before(f"{name}_in", text, "torch.long", place, here, last.lineno)


_COUNTED = "; zeros count in a softmax, a mean or an attention that goes along it: give that a mask of the same"
_ORDERS = ("argsort", "randperm", "multinomial")  # whose results pick rows, and 0 is one of these
_ADDED = {"mean": ".sum() / kept.sum()", "sum": ".sum()"}


def _of_an_order(place: Place, whole: ast.Subscript, test: str) -> str:
    """``idx = losses.argsort()[:k]`` and ``losses[idx].mean()``: all rows are picked, and a mask says which count."""
    node, function = place.statement, place.source.function_of(place.statement)
    target = node.targets[0] if isinstance(node, ast.Assign) and node.value is whole else None
    every = [n for part in (function.body if function is not None else []) for n in within(part)]
    made = [n for n in every if isinstance(n, ast.Assign) and path_of(n.targets[0]) == path_of(whole.value) != ""]
    orders = [n for value in (whole.value, *(n.value for n in made)) for n in [value] if isinstance(n, ast.Call)]
    if not isinstance(target, ast.Name) or not any(called(n) in _ORDERS for n in orders):
        return ""
    picked = [n for n in every if isinstance(n, ast.Subscript) and path_of(n.slice) == target.id]
    told = list[str]()
    for pick in picked:
        method = place.source.parents.get(pick)
        added = _ADDED.get(method.attr, "") if isinstance(method, ast.Attribute) else ""
        call = place.source.parents.get(method) if added and method is not None else None
        if isinstance(call, ast.Call) and not call.args and not call.keywords:
            told.append(f"`torch.where(kept, {place.text(pick)}, 0){added}` for `{place.text(call)}`")
    rest = (
        "" if told and len(told) == len(picked) else "; zeros where it is added up, and a mean divides by `kept.sum()`"
    )
    return (
        f", `kept = {test}` and `{target.id} = {place.text(whole.value)}`, all of it: what that picks counts where "
        f"`kept` is true{''.join(f', {each}' for each in told)}{rest}"
    )


def _of_one_size(place: Place, whole: ast.Subscript, made: Collection[str]) -> str:
    """``x[:, a : a + size]`` read at a tensor ``a_in``, where only its places move; or ""."""
    parts, rest, picks = parts_of(whole), list[str](), list[str]()
    for number, part in enumerate(parts):
        moves = bool(names_in(part) & {*made})
        if not isinstance(whole.ctx, ast.Load) or not isinstance(part, ast.Slice):
            return ""  # other parts may take dimensions away
        rest.append(":" if moves else place.text(part))
        if moves:
            wide, low = width_at(place.source, whole, number), part.lower
            if not wide or low is None or names_in(ast.parse(wide)) & {*made}:
                return ""
            first = place.text(low)
            for name in made:
                first = _renamed(first, name, f"{name}_in")
            picks.append(
                f".index_select({number}, {first} + torch.arange({wide}, device={place.text(whole.value)}.device))"
            )
    some = "" if all(text == ":" for text in rest) else f"[{', '.join(rest)}]"
    return f"{place.source.bracketed(whole.value)}{some}{''.join(picks)}"


def _for_others(place: Place) -> str:
    """That other calls of a function, beside those of launches, are given their places, too."""
    function = place.source.function_of(place.statement)
    if function is None:
        return ""
    calls = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Call) and called(n) == function.name]
    lines = f"; where `{function.name}` is called outside of a launch, too, fill them ahead of that as well"
    return lines if len(calls) > 1 else ""


def with_those_beside(place: Place, ends: ast.Slice, made: dict[str, ast.Assign], names: list[str]) -> list[str]:
    """These names, and those by which other slices of the same part are bounded."""
    above = place.source.parents.get(ends)
    beside = [each for each in above.elts if isinstance(each, ast.Slice)] if isinstance(above, ast.Tuple) else []
    return [name for name in made if name in names or any(name in names_in(each) for each in beside)]


def _own(place: Place, node: ast.Assign, name: str) -> str:
    """What ``y`` is of ``y, x = a, b``."""
    target = node.targets[0]
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        names = [place.text(each) for each in target.elts]
        if name in names and len(names) == len(node.value.elts):
            return place.text(node.value.elts[names.index(name)])
    return place.text(node.value)


def _renamed(text: str, name: str, new: str) -> str:
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return text
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name:
            node.id = new
    return ast.unparse(tree)


def found_before(name: str, text: str, dtype: str, place: Place, here: str, line: int = 0) -> str:
    """That what the host has in a line is written into a tensor before each launch, and what stands ``here`` for it."""
    kind = f", dtype={dtype}" if dtype else ""
    where = f" (line {line})" if line else ""
    if decided_here(place, text):
        return ""  # before the launch it is what the last step left
    return (
        f"the host's `{text}`{where} belongs before each launch, which reads it from a tensor: once "
        f"`{name} = torch.zeros((){kind}, device={place.device})`, before each launch `{name}.fill_({text})`, {here}"
    )


def between(place: Place, node: ast.If) -> str:
    """Where a branch goes that writes what the step goes on with: a target network that gets other weights."""
    function = place.source.function_of(node)
    if function is None or node not in function.body:
        return ""
    at = function.body.index(node)
    loops = [n.iter for n in ast.walk(node) if isinstance(n, ast.For)]  # which may write what they go through
    made = {*written(node), *(path for loop in loops for path in paths(loop))}
    waits = [n for n in function.body[at + 1 :] if any(touches(a, b) for a in made for b in _read_by(n))]
    if not waits:
        return _ahead_of_writes(place, node, function.body[at + 1 :])
    if place.statement is node and (asked := asked_before(place, node)):
        return asked
    before = [n for n in function.body[:at] if any(called(c) == "step" for c in ast.walk(n) if isinstance(c, ast.Call))]
    if before:
        return (
            f"line {waits[0].lineno} goes on with what it writes, behind line {before[-1].lineno}: capture what stands "
            f"before line {node.lineno} and what stands behind it in graphs of their own, and do it between "
            "the two launches"
        )
    counts = [n.lineno for n in function.body[:at] if {*written(n)} & paths(node.test)]
    more = f", with line {counts[-1]}, which counts for it" if counts else ""
    return f"line {waits[0].lineno} goes on with what it writes: do it before each launch{more}, and take it out here"


def _ahead_of_writes(place: Place, node: ast.If, later: list[ast.stmt]) -> str:
    """``if n % 5 == 0: slow.lerp_(w, 0.02)`` above a line, or a method that it calls, which writes ``w``."""
    calls = [n for part in node.body for n in within(part) if isinstance(n, ast.Call)]
    read = {path for call in calls if called(call).endswith("_") for each in call.args for path in paths(each)}
    methods = {f"self.{n.name}": n.body for n in ast.walk(place.source.tree) if isinstance(n, Function)}
    for each in later:
        inner = [path_of(n.func) for n in within(each) if isinstance(n, ast.Call)]
        wrote = {
            path for part in (each, *(p for name in inner for p in methods.get(name, []))) for path in written(part)
        }
        if any("." in path and touches(path, other) for path in wrote for other in read - {"self"}):
            test = set(paths(node.test))
            counts = [n.lineno for n in later if isinstance(n, ast.AugAssign) and path_of(n.target) in test]
            more = f" and of line {counts[0]}, which counts for the next one" if counts else ""
            return (
                f"line {each.lineno} writes what it reads: do it before each launch, ahead of that{more}, and take it "
                "out here"
            )
    return ""


def _read_by(node: ast.stmt) -> set[str]:
    """What a statement reads: of ``self.n += 1`` not all of ``self``."""
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
        return {path_of(node.target), *paths(node.value)}
    return paths(node)


def asked_before(place: Place, node: ast.If) -> str:
    """Where only the question of a branch goes before the launch, as what it does begins with what the step has done.

    ``if count % 4 == 0: state[:, 1] += 0.1`` behind a line that writes ``state``.
    """
    function = place.source.function_of(node)
    before = function.body[: function.body.index(node)] if function is not None and node in function.body else []
    before = [n for n in before if not {*written(n)} & paths(node.test)]  # without what counts for it
    made, read = {*written(node)} - {""}, {path for part in node.body for path in paths(part)}
    names = locals_of(function) if function is not None else set[str]()
    own = any("." not in path and path in names for path in made)
    found = any(touches(a, b) for n in before for a in made for b in paths(n))
    found |= any(touches(a, b) for n in before for a in written(n) for b in made | read)
    if not own and not found:
        return ""
    flag = fresh("chosen_in", place.taken)
    here = f"behind what counts, and in place of the branch {by_where(replace(place, statement=node), flag)}"
    return found_before(flag, place.text(node.test), "torch.bool", place, here)
