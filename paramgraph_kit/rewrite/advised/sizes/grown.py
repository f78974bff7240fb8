"""Advice for what grows by a piece in each step, as caches of keys and values: room for all, and a number beside it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from paramgraph_kit.rewrite.advised.sizes.cut_by_helpers import cut_back, cut_by_a_method, cut_on_its_way, is_last
from paramgraph_kit.rewrite.source.edits import Function, assigned, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, fresh, renamed

_GROWS = ("stale-input", "size-frozen", "host-counter", "branch-frozen", "output-alias")
AGAIN = "Then diagnose it again"


def cache(place: Place) -> str:
    """``self.k = torch.cat([self.k, k], dim=1)`` and ``past.append((k, v))``, which begin small and grow."""
    function = place.source.function_of(place.statement)
    if place.failure.code not in _GROWS or function is None:
        return ""
    for target, _ in assigned(place.statement) if place.failure.code == "size-frozen" else ():
        if told := cut_back(place, _number_beside(place, place.text(target))[0]):
            return told
    joined = list(_joined(place, function))
    texts = {place.text(n) for n in ast.walk(place.statement) if isinstance(n, ast.expr)}
    paths = {path for path in map(path_of, (n for n in ast.walk(place.statement) if isinstance(n, ast.expr))) if path}
    for held, new, dim in joined:
        asked = held in texts or held.partition("[")[0] in paths
        cut = _moved_on(place, function, held) or _window(place, function, held, new, dim)
        cut = cut or _cut_later(place, function, held) or cut_by_a_method(place, function, held)
        if asked and (told := cut or _left_over(place, function, held)):
            return _of_windows(place, function, joined) if place.failure.code == "branch-frozen" and cut else told
        if held in texts or held.partition("[")[0] in paths:
            return _static(place, held, new, dim, several=len(joined) > 1)
    appended = place.statement.value if isinstance(place.statement, ast.Expr) else None
    for path, call in _listed(function):
        given, evicted = _appended(appended, path), _evicted(place, function, path)
        if given is not None and evicted and not isinstance(given, ast.Tuple):
            return _last_of_list(place, path, given, call, evicted)
        if given is not None:
            parts = [place.text(n) for n in (given.elts if isinstance(given, ast.Tuple) else [given])]
            return _listed_static(place, path, parts, call)
        if path in paths and call in set(ast.walk(place.statement)):
            if evicted:
                here = [(one, each) for one, each in _listed(function) if each in set(ast.walk(place.statement))]
                return "; ".join(f"`{one}` is one tensor then: read it for `{place.text(each)}`" for one, each in here)
            return f"`{path}` is one tensor of the largest size then: read all of it, and mask what is not written yet"
    for call in place.calls("cat", "concat") if place.failure.code == "stale-input" else ():
        joined_parts = call.args[0].elts if call.args and isinstance(call.args[0], (ast.List, ast.Tuple)) else []
        names = {path_of(target) for target, value in assigned(place.statement) if value is call}
        if len(joined_parts) == 2 and path_of(joined_parts[0]) and names & set(map(path_of, joined_parts)):
            one, new = map(place.text, joined_parts)
            to = next(place.text(target) for target, value in assigned(place.statement) if value is call)
            if told := cut_on_its_way(place, function, one, to):
                return told
            return _static(place, one, new, _dim(place, call), to, several=True)
    return ""


def _of_windows(place: Place, function: Function, joined: Sequence[tuple[str, str, str]]) -> str:
    """A branch in which windows move: a graph for each way, once these are full."""
    told = [text for each in joined if (text := _window(place, function, *each) or _moved_on(place, function, each[0]))]
    lines = "; and ".join(text.partition("; call the step")[0] for text in told).replace("here `new", "there `new")
    test = f"bool({place.text(place.statement.test)})" if isinstance(place.statement, ast.If) else "..."
    return (
        f"{lines}; call the step without a graph until all are full, and keep then a graph for each way of this branch "
        f"(`graphs[{test}]`), with what the host asks here before the launch, captured when it first goes that way"
    )


def _moved_on(place: Place, function: Function, held: str) -> str:
    """``self.buf = torch.cat([self.buf[n:], x])``: as much goes as comes, or it fills up first."""
    part = ast.parse(held, mode="eval").body
    index = part.slice if isinstance(part, ast.Subscript) else None
    if not any(isinstance(n, ast.Slice) for n in (index.elts if isinstance(index, ast.Tuple) else [index])):
        return ""
    whole = ast.unparse(part.value) if isinstance(part, ast.Subscript) else ""
    pairs = [pair for each in function.body for n in within(each) for pair in assigned(n)]
    for target, value in pairs:
        if place.text(target) == whole and isinstance(value, ast.Call) and held in place.text(value):
            return _of_last_size(whole, place.text(value), "")
    return ""


def _of_last_size(held: str, value: str, cut: str) -> str:
    return (
        f"`{held}` is a window, which has its last size after a few steps: here `new = {value}` and "
        f"`{held} = {held}.copy_(new) if {held}.shape == new.shape else new`{cut}; call the step without a graph "
        "until it is full, and capture it then"
    )


def _window(place: Place, function: Function, held: str, new: str, dim: str) -> str:
    """``self.buf = torch.cat([self.buf, x], 1)[:, -n:]``, also cut in a line of its own: it has one size once full."""
    value, cut = "", ""
    for node in (n for part in function.body for n in within(part) if isinstance(n, ast.Assign)):
        part = node.value if isinstance(node.value, ast.Subscript) and place.text(node.targets[0]) == held else None
        if part is None or not any(is_last(each) for each in ast.walk(part.slice)):
            continue
        if isinstance(part.value, ast.Call) and called(part.value) in ("cat", "concat"):
            value = place.text(part)
        elif place.text(part.value) == held:
            index = place.text(part)[len(held) :]
            value, cut = (
                f"torch.cat([{held}, {new}], dim={dim}){index}",
                f", without what cuts it at line {node.lineno}",
            )
    if not value:
        return ""
    return _of_last_size(held, value, cut)


def _cut_later(place: Place, function: Function, held: str) -> str:
    """``if n > most: self.k = torch.cat([self.k[:, :first], self.k[:, -last:]], 1)``, behind what joins to it."""
    every = [n for part in function.body for n in within(part) if isinstance(n, ast.Assign)]
    stores = [n for n in every if place.text(n.targets[0]) == held and held in place.text(n.value)]
    cuts = [n for n in stores if any(is_last(each) for each in ast.walk(n.value))]
    if not cuts or cuts[-1] is not stores[-1] or len(stores) < 2:
        return ""
    name = fresh(f"new_{held.rpartition('.')[2]}", place.taken) if held.replace(".", "").isidentifier() else "new"
    joined, cut = place.text(stores[0].value), renamed(place.text(cuts[-1].value), {held: name})
    return (
        f"`{held}` has its last size after a few steps, as line {cuts[-1].lineno} cuts it: from line "
        f"{stores[0].lineno} to line {cuts[-1].lineno} write `{name}` for what the step makes of `{held}`, "
        f"`{name} = {joined}` and `{name} = {cut}`, and behind that `{held} = {held}.copy_({name}) if {held}.shape == "
        f"{name}.shape else {name}`; call the step without a graph until it is full, and capture it then"
    )


def _left_over(place: Place, function: Function, held: str) -> str:
    """``x = torch.cat([self.buf, x])``, ``self.buf = x[n * 8 :]``: what a step has not used up, for the next one."""
    every = [n for part in function.body for n in within(part) if isinstance(n, ast.Assign)]
    joined = {path_of(n.targets[0]) for n in every if isinstance(n.value, ast.Call) and held in place.text(n.value)}
    rest = [n for n in every if place.text(n.targets[0]) == held and isinstance(n.value, ast.Subscript)]
    if len(rest) != 1 or not isinstance(rest[0].value, ast.Subscript) or path_of(rest[0].value.value) not in joined:
        return ""
    index = rest[0].value.slice
    ends = [
        n for n in (index.elts if isinstance(index, ast.Tuple) else [index]) if isinstance(n, ast.Slice) and n.lower
    ]
    if not ends or any(n.upper is not None or n.step is not None for n in ends):
        return ""
    return (
        f"`{held}` is what a step leaves over, which is as long as before once some steps have run: this line stays, "
        f"and line {rest[0].lineno} becomes `new = {place.text(rest[0].value)}` and `{held} = {held}.copy_(new) if "
        f"{held}.shape == new.shape else new`; call the step without a graph until it leaves as much as before, and "
        f"capture it then; where what it is given has another length, it has no graph. {AGAIN}"
    )


def _evicted(place: Place, function: Function, path: str) -> tuple[ast.stmt, str] | None:
    """What takes the first out of a list, ``if len(x) > n: x.pop(0)``, and how many stay, as a text."""
    for node in (n for part in function.body for n in within(part) if isinstance(n, (ast.If, ast.While))):
        taken = [n for part in node.body for n in within(part) if isinstance(n, (ast.Call, ast.Subscript))]
        first = {path_of(whole) for n in taken if (whole := _taken_from(n)) is not None}
        test = node.test if isinstance(node.test, ast.Compare) and len(node.test.ops) == 1 else None
        if path not in first:
            continue
        if test is None or place.text(test.left) not in {f"len({each})" for each in first}:
            return None
        most = place.text(test.comparators[0])
        above = isinstance(test.ops[0], ast.Gt)
        calls = [n for part in function.body for n in within(part) if _appended(n, path) is not None]
        behind = any(n.lineno < node.lineno for n in calls if isinstance(n, ast.expr))  # one more is there already
        return node, most if above is behind else f"({most} {'+' if above else '-'} 1)"
    return None


def _taken_from(node: ast.Call | ast.Subscript) -> ast.expr | None:
    """``x`` of ``x.pop(0)``, ``x.popleft()`` and ``del x[0]``."""
    if isinstance(node, ast.Subscript):
        return node.value if isinstance(node.ctx, ast.Del) and ast.unparse(node.slice) == "0" else None
    first = called(node) == "popleft" or (called(node) == "pop" and [*map(ast.unparse, node.args)] == ["0"])
    return node.func.value if first and isinstance(node.func, ast.Attribute) else None


def _last_of_list(place: Place, path: str, given: ast.expr, call: ast.Call, evicted: tuple[ast.stmt, str]) -> str:
    """A list that keeps the last so many, as one tensor, which has its last size once it is full."""
    dim, (node, most) = _dim(place, call), evicted
    new, size = place.source.bracketed(given), most
    if called(call) == "stack":
        new = f"{new}.unsqueeze({dim})"
    else:
        size = f"{most} * {new}.shape[{dim}]"
    last = _slice(dim, f"-{size}:")
    return (
        f"`{path}` keeps the last of them, as lines {node.lineno} to {node.end_lineno} take the first out, and has one "
        f"size once it is full: let it be a tensor, None at first; here `new = {new} if {path} is None else "
        f"torch.cat([{path}, {new}], {dim}){last}` and `{path} = {path}.copy_(new) if {path} is not None and "
        f"{path}.shape == new.shape else new`, without what takes the first out, and read `{path}` for "
        f"`{place.text(call)}`; call the step without a graph until it is full, and capture it then"
    )


def _appended(call: ast.AST | None, path: str) -> ast.expr | None:
    """What ``path.append(x)`` appends."""
    if not isinstance(call, ast.Call) or called(call) != "append" or not isinstance(call.func, ast.Attribute):
        return None
    return call.args[0] if path_of(call.func.value) == path and call.args else None


def _static(place: Place, held: str, new: str, dim: str, to: str = "", *, several: bool) -> str:
    """What stands for ``held = torch.cat([held, new], dim)``; ``to``: the local name that has the result instead.

    It says the place with a number of the host's, as it would be written without graphs: from there on it is rewritten.
    """
    size = f"{new}.shape[{dim}]" if new.isidentifier() else f"({new}).shape[{dim}]"
    if room := _gathered(place, held):
        return _reordered(place, room, held, new, dim, size)
    number, made = _number_beside(place, held)
    part, read = (_slice(dim, each) for each in (f"{number} : {number} + {size}", f": {number}"))
    behind = f"count `{number} += {size}` behind that" + ", once for all that grow by the same" * several
    if to:
        read = _slice(dim, f": {number} + {size}")
        behind = (
            f"read `{to} = {held}{read}`, hand the tensors themselves on, and count `{number} += {size}` at the end "
            "of the step, once for all that grow by the same"
        )
    else:
        behind += f", and read `{held}{read}` where `{held}` is read, `{number}` where its length is"
    return (
        f"`{held}` grows at each step, and a graph has one size: make it once with room for the longest that it gets, "
        f"zeros of that size in dimension {dim}, with what it begins with at its beginning, and beside it a number of "
        f"how many are there, `{made}`; here write `{held}{part} = {new}`, {behind}. {AGAIN}: a place "
        "that steps move becomes a tensor, and what is not written yet is masked"
    )


def _gathered(place: Place, held: str) -> str:
    """``x`` of ``x = torch.cat([x[order], new], 1)``: what is written in ``x[order]`` is written in a copy."""
    part, targets = ast.parse(held, mode="eval").body, getattr(place.statement, "targets", [])
    if not isinstance(part, ast.Subscript) or isinstance(part.slice, (ast.Constant, ast.Slice, ast.Tuple, ast.UnaryOp)):
        return ""
    same = any(ast.unparse(each) == ast.unparse(part.value) for each in targets)
    return held[: part.value.end_col_offset] if same else ""


def _reordered(place: Place, room: str, held: str, new: str, dim: str, size: str) -> str:
    """What stands for ``room = torch.cat([room[order], new], dim)``."""
    at = fresh("at", place.taken)
    return (
        f"`{room}` grows at each step, and a graph has one size: make it once with room for the longest that it gets, "
        f"zeros of that size in dimension {dim}, with what it begins with at its beginning, and beside it, once, "
        f"`{at} = torch.tensor([n], device={place.device})` with the n that are there; here write "
        f"`{room}.copy_({held})`, as what an index picks is a copy, and `{room}.index_copy_({dim}, "
        f"{at} + torch.arange({size}, device={place.device}), {new})`, and count `{at}.add_({size})` behind that; its "
        f"last is `{room}.index_select({dim}, {at} - 1)` where it is read before, `{at}` stands for its length, and "
        f"`torch.arange({room}.shape[{dim}], device={place.device}) < {at}` is a mask of what is written. {AGAIN}"
    )


def _listed_static(place: Place, path: str, parts: Sequence[str], call: ast.Call) -> str:
    """The same of ``path.append(x)``, which ``torch.stack(path)`` or ``torch.cat(path, dim)`` reads."""
    number, made = _number_beside(place, path)
    dim, stacks = _dim(place, call), called(call) == "stack"
    each = [path] if len(parts) == 1 else [f"{path}[{n}]" for n in range(len(parts))]
    size = "1" if stacks else f"{parts[0]}.shape[{dim}]"
    at = number if stacks else f"{number} : {number} + {size}"
    lines = "; ".join(f"{one}{_slice(dim, at)} = {part}" for one, part in zip(each, parts, strict=True))
    read = ", ".join(f"`{one}{_slice(dim, f': {number}')}`" for one in each)
    return (
        f"`{path}` grows at each step, and a graph has one size: let it be "
        f"{'a tensor' if len(parts) == 1 else f'a list of {len(parts)} tensors'} with room for the longest that it "
        f"gets, zeros of that size in dimension {dim}, with what it begins with at its beginning, and beside it a "
        f"number of how many are there, `{made}`; here write `{lines}`, count `{number} += {size}`, and read {read} "
        f"for `{place.text(call)}`. {AGAIN}: a place that steps move becomes a tensor, and what is not "
        "written yet is masked"
    )


def _slice(dim: str, at: str) -> str:
    """``[:, :, a : b]`` for dimension 2, ``[..., a : b, :]`` for -2."""
    number = int(dim) if dim.lstrip("-").isdigit() else 0
    if number < 0:
        return f"[{', '.join(['...', at, *[':'] * (-1 - number)])}]"
    return f"[{', '.join([*[':'] * number, at])}]"


def _number_beside(place: Place, held: str) -> tuple[str, str]:
    """How a number is written that lies beside a tensor, and how it is made: one for each of a list."""
    owner, _, index = held.partition("[")
    name = fresh("filled", names_in(place.source.tree) | set(place.attributes))
    head, dot, _ = owner.rpartition(".")
    function = place.source.function_of(place.statement)
    own = locals_of(function) - {"self"} if function is not None else set[str]()
    if not dot and owner in own:
        return name, f"{name} = 0` around the function, which `global {name}` can count"
    path = f"{head}{dot}{name}"
    known = place.attributes.get(owner.rpartition(".")[2]) if dot else place.space.get(owner)
    if index.rstrip("]").strip("\"'") != index.rstrip("]"):  # a key, not a place
        return f'{owner}["{name}"]', f'{owner}["{name}"] = 0'
    if index:
        return f"{path}[{index}", f"{path} = [0] * {len(known) if isinstance(known, (list, tuple)) else 'n'}"
    return path, f"{path} = 0" + f"` (`global {name}`)" * (not dot)


def _joined(place: Place, function: Function) -> Iterator[tuple[str, str, str]]:
    """What a function hands on to its next call, what is joined to it, and along which dimension."""
    every = [n for part in function.body for n in within(part)]
    nodes = (n for n in every if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript)))
    stored = {path_of(_whole(n)) for n in nodes if isinstance(n.ctx, ast.Store)}
    outer = {path for path in stored if "." in path or path not in locals_of(function)}
    for node in every:
        if not isinstance(node, ast.Call) or path_of(node.func) not in ("torch.cat", "torch.concat") or not node.args:
            continue
        parts = node.args[0].elts if isinstance(node.args[0], (ast.List, ast.Tuple)) else []
        first = path_of(_whole(parts[0])) if len(parts) == 2 else ""
        if first and first in outer and first in _given(every, node):
            yield place.text(parts[0]), place.text(parts[1]), _dim(place, node)


def _whole(node: ast.expr) -> ast.expr:
    """``self.keys`` of ``self.keys[i]``."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def _given(every: list[ast.AST], made: ast.expr) -> set[str]:
    """What is given an expression, or a part of it, also by way of a local name."""
    pairs = [pair for node in every for pair in assigned(node)]
    first = {path_of(_whole(target)) for target, value in pairs if any(_core(each) is made for each in _sides(value))}
    return first | {path_of(target) for target, value in pairs if path_of(_core(value)) in first}


def _sides(value: ast.expr) -> tuple[ast.expr, ...]:
    """Both of ``k if self.k is None else torch.cat([self.k, k], 1)``."""
    return (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)


def _core(value: ast.expr) -> ast.expr:
    """What a part is taken of, or what a method is called on: ``x`` of ``x[-n:].detach()``."""
    while True:
        if isinstance(value, ast.Subscript):
            value = value.value
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and not value.args:
            value = value.func.value
        else:
            return value


def _listed(function: Function) -> Iterator[tuple[str, ast.Call]]:
    """Lists from around a function that it appends to and joins to one tensor."""
    every = [n for part in function.body for n in within(part)]
    calls = [n for n in every if isinstance(n, ast.Call)]
    grown = {path_of(n.func.value) for n in calls if isinstance(n.func, ast.Attribute) and n.func.attr == "append"}
    for node in calls:
        if path_of(node.func) in ("torch.cat", "torch.concat", "torch.stack") and node.args:
            given = node.args[0]
            source = given.generators[0].iter if isinstance(given, (ast.ListComp, ast.GeneratorExp)) else given
            path = path_of(source)
            if path in grown and path.partition(".")[0] not in locals_of(function) - {"self"}:
                yield path, node


def _dim(place: Place, call: ast.Call) -> str:
    given = [*call.args[1:], *(option.value for option in call.keywords if option.arg in ("dim", "axis"))]
    return place.text(given[0]) if given else "0"
