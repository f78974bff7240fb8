"""Advice for a number that a step moves itself and reads on the device: a weight, a baseline, a coefficient."""

from __future__ import annotations

import ast
from dataclasses import replace

from paramgraph_kit.doctor.explain.syntax import pairs_of
from paramgraph_kit.rewrite.advised.host.asked_whole import whole_call
from paramgraph_kit.rewrite.advised.host.from_host import assignments
from paramgraph_kit.rewrite.advised.host.several_numbers import is_chosen
from paramgraph_kit.rewrite.expressions.numbers.extremes import larger_on_device
from paramgraph_kit.rewrite.source.digits import zeros_for
from paramgraph_kit.rewrite.source.edits import path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, target_of
from paramgraph_kit.rewrite.source.writes import paths

_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def moved_by_itself(place: Place) -> str:
    """``loss = a + weight * b`` where the step gives ``weight`` another number, from what it has read or not."""
    function = place.source.function_of(place.statement)
    if place.failure.code != "scalar-frozen" or function is None:
        return ""
    every = [n for part in function.body for n in within(part)]
    giving = [n for n in every if isinstance(n, (ast.Assign, ast.AugAssign)) and n is not place.statement]
    told = [_told(place, path, giving) for path in sorted(p for p in paths(place.statement) if _is_number(place, p))]
    return "; and ".join(filter(None, told))  # a graph keeps each of them


def moved_by_what_is_read(place: Place) -> str:
    """``self.low = min(self.low, x.min().item())``, or another number, where the device goes on with ``self.low``."""
    function = place.source.function_of(place.statement)
    counted = place.failure.code == "host-counter" and any(place.calls("item"))  # the same line, told twice
    if not (counted or place.failure.code in ("sync-item", "stale-input")) or function is None:
        return ""
    every = [n for part in function.body for n in within(part)]
    line = [n for n in place.source.block_of(place.statement) if n.lineno == place.statement.lineno]
    told = [text for node in line if (text := _kept_there(replace(place, statement=node), every))]
    rounds = any(isinstance(n, ast.Call) and path_of(n.func) == "round" for n in every)
    more = ", and `torch.round(x)` for `int(round(x))` of what comes of it" * rounds
    return f"the device goes on with what is kept here, so keep it there: {'; '.join(told)}{more}" if told else ""


def _kept_there(place: Place, every: list[ast.AST]) -> str:
    """Where one such number begins as a tensor, and how it is written."""
    node, target = place.statement, target_of(place.statement)
    path = path_of(target) if target is not None else ""
    if not isinstance(node, ast.Assign) or not _is_number(place, path) or place.is_local(path):
        return ""
    if path not in paths(node.value) and (read := _read_as_tensor(node.value)) is not None:
        begins = f"torch.tensor({_begun(place, path)}, dtype=torch.float64, device={place.device})"
        filled = f"`{path} = {begins}` where it begins, here `{path}.fill_({place.text(read)}.detach().squeeze())`"
        return filled if place.computes_with(path) else ""
    later = [n for n in every if isinstance(n, (ast.Name, ast.Attribute)) and n.lineno > node.lineno]
    if path not in paths(node.value) or not any(path_of(n) == path and isinstance(n.ctx, ast.Load) for n in later):
        return ""
    made = [edit.text for edit in larger_on_device(place)]
    new = (made[0] if made else place.text(node.value)).replace(".item()", "")
    begins = f"torch.tensor({_begun(place, path)}, device={place.device})"
    return f"`{path} = {begins}` where it begins, here `{path}.copy_({new})`"


def _read_as_tensor(value: ast.expr) -> ast.expr | None:
    """``x`` of ``x.item()``, or None."""
    call = value if isinstance(value, ast.Call) and called(value) == "item" and not value.args else None
    return call.func.value if call is not None and isinstance(call.func, ast.Attribute) else None


def _begun(place: Place, path: str) -> str:
    """What a number is where it begins, as the line there has it: by now it has another value."""
    source, found = place.source, list[ast.expr]()
    for node in (n for n in source.parents if isinstance(n, ast.Assign | ast.AnnAssign)):
        function = source.function_of(node)
        if (function is None and "." not in path) or (path.startswith("self.") and function is not None):
            begins = function is None or function.name == "__init__"
            found += [value for target, value in pairs_of(node) if begins and path_of(target) == path]
    return place.text(found[0]) if len(found) == 1 else _written(_value(place, path))


def _written(value: object) -> str:
    return repr(value) if value not in (float("inf"), float("-inf")) else f'float("{value}")'


def _told(place: Place, path: str, giving: list[ast.Assign | ast.AugAssign]) -> str:
    """The same of one number."""
    made = [n for n in giving if path in map(path_of, n.targets if isinstance(n, ast.Assign) else [n.target])]
    if len(made) != 1 or place.is_local(path):
        return ""
    one, name = made[0], path.rpartition(".")[2]
    line = f"line {one.lineno}, `{place.text(one)}`,"
    given = path
    if picked := _picked_by(place, path):  # no tensor is an index of a list's
        given, name = place.text(picked), path_of(picked.value).rpartition(".")[2]
    elif asking := _asking(place, path) or whole_call(place, path):
        given = place.text(asking)
    once = f"once `{name}_in = {zeros_for(place)}`, before each launch `{name}_in.fill_({given})`"
    if not _reads_device(place, one, giving):
        where = "behind" if one.lineno > place.statement.lineno else "before"
        return f"{line} belongs {where} each launch; {once}, here `{name}_in` for `{given}`"
    if one.lineno > place.statement.lineno:
        return f"{line} belongs behind each launch, {_read_with(place, one)}; {once}, here `{name}_in` for `{given}`"
    value = place.text(one.value)
    if isinstance(one, ast.AugAssign):
        if type(one.op) not in _OPERATORS:
            return ""
        value = f"{path} {_OPERATORS[type(one.op)]} ({value})"
    kept = value.replace(".item()", ".detach()")
    return (
        f"keep `{path}` on the device, `{path} = torch.tensor({_begun(place, path)}, device={place.device})` "
        f"where it begins, line {one.lineno} `{path}.copy_({kept})` with tensors for all that it reads, and make a "
        "number of it behind the launch"
    )


def _read_with(place: Place, one: ast.Assign | ast.AugAssign) -> str:
    """The lines that read the device for what another goes behind the launch with."""
    made = [n for n in dict(assignments(replace(place, statement=one))).values() if _reads(n.value)]
    there = [f"with line {n.lineno}, `{place.text(n)}`, of tensors that are returned" for n in made]
    return ", and ".join(there) or "with what it reads"


def _picked_by(place: Place, path: str) -> ast.Subscript | None:
    """The entry of a list of numbers that a line reads by a number, where it reads that for nothing else."""
    nodes = [*ast.walk(place.statement)]
    read = [n for n in nodes if isinstance(n, (ast.Name, ast.Attribute)) and path_of(n) == path]
    picked = [n for n in nodes if isinstance(n, ast.Subscript) and n.slice in read]
    entries = [place.value(path_of(n.value)) for n in picked[:1]]
    numbers = entries and type(entries[0]) in (list, tuple) and all(type(n) in (int, float) for n in entries[0])
    return picked[0] if numbers and len({ast.unparse(n) for n in picked}) == 1 and len(picked) == len(read) else None


def _asking(place: Place, path: str) -> ast.IfExp | None:
    """``0.5 if n < 4 else 0.05``, which asks for a number that a line reads for nothing else: the host answers that."""
    nodes = [*ast.walk(place.statement)]
    read = [n for n in nodes if isinstance(n, (ast.Name, ast.Attribute)) and path_of(n) == path]
    found = [
        n for n in nodes if isinstance(n, ast.IfExp) and any(n.test is a or n.test in _above(place, a) for a in read)
    ]
    inside = [a for a in read if len(found) == 1 and found[0] in _above(place, a)]
    return found[0] if inside and inside == read and is_chosen(place, found[0]) else None


def _above(place: Place, node: ast.AST) -> list[ast.AST]:
    """What a part of a statement stands in, within that."""
    found, parents = [], place.source.parents
    while node is not place.statement and node in parents:
        found.append(node := parents[node])
    return found


def _value(place: Place, path: str) -> object:
    return place.space.get(path) if "." not in path else place.attributes.get(path.rpartition(".")[2])


def _is_number(place: Place, path: str) -> bool:
    return type(_value(place, path)) in (int, float)


def _reads_device(place: Place, node: ast.Assign | ast.AugAssign, giving: list[ast.Assign | ast.AugAssign]) -> bool:
    """Whether what a statement gives comes of something that was read of the device, through the step's own names."""
    names, seen = set(paths(node.value)), set[ast.AST]()
    todo: list[ast.expr] = [node.value]
    while todo:
        value = todo.pop()
        if _reads(value):
            return True
        for other in giving:
            target = other.targets[0] if isinstance(other, ast.Assign) else other.target
            if other not in seen and path_of(target) in names and other is not node:
                seen.add(other)
                names |= paths(other.value)
                todo.append(other.value)
    return bool(names & place.tensors.keys())


def _reads(value: ast.expr) -> bool:
    return any(isinstance(n, ast.Call) and called(n) in ("item", "tolist", "cpu", "numpy") for n in ast.walk(value))
