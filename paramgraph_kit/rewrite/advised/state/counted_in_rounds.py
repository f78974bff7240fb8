"""Advice for a count that each round of a loop keeps for itself: ``state = self.state[p]; state["step"] += 1``.

No line ahead of a launch has it at hand, as only its round knows where it is; the device can count it there.
"""

from __future__ import annotations

import ast

import torch

from paramgraph_kit.doctor.explain.syntax import pairs_of
from paramgraph_kit.rewrite.expressions.decisions.written import scaled_by
from paramgraph_kit.rewrite.source.edits import Function, heads, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh, integer, is_number, renamed

_COMPUTES = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.USub)
_ASK = ("float", "int", "round")
_SCALES = ("alpha", "value")
_TAKES = frozenset("mul mul_ add add_ sub sub_ div div_ true_divide true_divide_".split())  # noqa: SIM905


def counted_in_rounds(place: Place) -> str:
    """Lines for the count, and for what reads it in its round; "" where something there asks for its value."""
    count = _count(place) if place.failure.code in ("host-counter", "scalar-frozen") else None
    if count is None:
        return ""
    node, loop = count
    path, names = place.text(node.target), _comes_of_it(place, loop, node)
    if names is None:
        return _with_its_optimizer(place) if place.statement is node or place.failure.code == "scalar-frozen" else ""
    kept = f"once `{path}` is a tensor"
    if place.statement is node:
        return f"stays as it is {kept}, to which it adds in place{_begun(place, node)}"
    if not any(_is_one(place, n, path, names) for n in heads(place.statement)):
        return ""
    text = place.text(place.statement)
    new = _written(place, text, path, names)
    here = f"`{new}`" if new != text else "stays as it is"
    return f"{here} {kept}, as told of line {node.lineno}"


def _with_its_optimizer(place: Place) -> str:
    """``self.opt.step()`` behind the launch, of a class that asks for the counts of its parameters."""
    function, source = place.source.function_of(place.statement), place.source
    above = source.parents.get(function) if function is not None else None
    of_one = isinstance(above, ast.ClassDef) and any(path_of(n).endswith("Optimizer") for n in above.bases)
    entry = next((n for n in ast.walk(source.tree) if isinstance(n, Function) and n.name == place.entry), None)
    if function is None or not of_one or entry is None or function is entry:
        return ""
    calls = [n for part in entry.body for n in within(part) if isinstance(n, ast.Call)]
    steps = [n for n in calls if called(n) == function.name and isinstance(n.func, ast.Attribute)]
    if len(steps) != 1:
        return ""
    (step,) = steps
    with_it = _zeroed_with(place, calls, step)
    return (
        f"goes behind the launch with line {step.lineno}, `{place.text(step)}`, as it asks for numbers of each "
        f"parameter: take that out of the step, and do it behind each launch, on the gradients of its capture{with_it}"
    )


def _zeroed_with(place: Place, calls: list[ast.Call], step: ast.Call) -> str:
    """What lets gradients go behind a step, which is there, too, then, and keeps their memory."""
    zeros = [n for n in calls if called(n) == "zero_grad" and n.lineno > step.lineno]
    return "".join(f", and behind it `{place.text(n.func)}(set_to_none=False)` for line {n.lineno}" for n in zeros)


def stepped_behind(place: Place) -> str:
    """That a line which is an optimizer's step is taken out of the step, and done behind each launch."""
    function, step = place.source.function_of(place.statement), next(place.calls("step"))
    calls = [n for part in (function.body if function is not None else ()) for n in within(part)]
    with_it = _zeroed_with(place, [n for n in calls if isinstance(n, ast.Call)], step)
    return (
        f"take `{place.text(step)}` out of the step, and do it behind each launch, ahead of the scheduler's, on the "
        f"gradients of its capture{with_it}"
    )


def of_its_round(place: Place, name: str, made: ast.Assign) -> str:
    """That each round has another number where a line of the loop makes it of what only that round has."""
    for loop in (n for n in place.loops() if made in within(n)):
        if not names_in(made.value) & (stored([loop]) - {name}):
            continue
        asked = _asked_by_math(place, name)
        given, text = fresh(f"{name}_in", place.taken), f"{name}" if asked is None else place.text(asked)
        return (
            f"each round of the loop of line {loop.lineno} has its own `{name}` (line {made.lineno}), which belongs "
            f"before each launch: there the host goes the same rounds, with the lines that `{name}` comes of and "
            f"`{given}[k] = {text}` in round `k`, once `{given}` has an element for each of them, `torch.zeros(rounds, "
            f"device={place.device})`; here `{given}[k]` for `{text}`"
        )
    return ""


def whole_of(place: Place, name: str, made: ast.Assign) -> tuple[str, str]:
    """What is filled, and what it stands for: of ``math.sqrt(bias)`` all of it, as no tensor is given to that."""
    asked = _asked_by_math(place, name)
    if asked is None:
        return place.text(made.value), name
    text, alone = place.text(asked), all(isinstance(n, ast.Name) for n in asked.args)
    return renamed(text, {name: (place.text if alone else place.source.bracketed)(made.value)}), text


def _asked_by_math(place: Place, name: str) -> ast.Call | None:
    """The one call of ``math``, or of Python's own, that a line gives a number to, and nothing else."""
    read = [n for n in heads(place.statement) if isinstance(n, ast.Name) and n.id == name]
    found = list[ast.Call]()
    for node in read:
        above: ast.AST | None = node
        while isinstance(above := place.source.parents.get(above), ast.expr):  # type: ignore[arg-type]
            if isinstance(above, ast.Call) and (path_of(above.func).startswith("math.") or called(above) in _ASK):
                found.append(above)
    outer = [n for n in found if not any(n is not o and n in ast.walk(o) for o in found)]
    texts = {place.text(n) for n in outer}
    alone = len(texts) == 1 and all(any(n in ast.walk(o) for o in outer) for n in read)
    return outer[0] if alone and place.local(outer[0]) <= {name} else None


def computes_with_the_rate(place: Place) -> str:
    """``p.mul_(1 - group["lr"] * decay)`` of an optimizer class of the user's own, whose rate other lines set."""
    loop = next((n for n in place.loops() if isinstance(n, ast.For) and path_of(n.iter) == "self.param_groups"), None)
    if place.failure.code != "scalar-frozen" or loop is None or not isinstance(loop.target, ast.Name):
        return ""
    path = f'{loop.target.id}["lr"]'
    read = [
        n for n in heads(place.statement) if isinstance(n, ast.Subscript) and ast.unparse(n).replace("'", '"') == path
    ]
    if not read or not all(_becomes(place, n) for n in read):
        return ""
    text = place.text(place.statement)
    new = _written(place, text, place.text(read[0]), set())
    here = f"`{new}`" if new != text else "stays as it is"
    return f"{here} once `{path}` is a tensor, as told of the line that sets it"


def _count(place: Place) -> tuple[ast.AugAssign, ast.For] | None:
    """Where a loop around a statement counts in what only its round has, and that loop."""
    for loop in (n for n in place.loops() if isinstance(n, ast.For)):
        own = stored([loop.target]) | {name for n in loop.body for name in stored([n])}
        nodes = [n for part in loop.body for n in within(part) if isinstance(n, ast.AugAssign)]
        found = [
            n
            for n in nodes
            if isinstance(n.target, ast.Subscript | ast.Attribute) and names_in(n.target) & own and is_number(n.value)
        ]
        adds = len(found) == 1 and isinstance(found[0].op, ast.Add | ast.Sub)
        if adds and place.source.parents.get(found[0]) is loop:
            return found[0], loop
    return None


def _comes_of_it(place: Place, loop: ast.For, count: ast.AugAssign) -> set[str] | None:
    """Names for what a round computes of its count; None where something is done with it that no tensor does."""
    path, names = place.text(count.target), set[str]()
    function = place.source.function_of(count)
    nodes = [n for part in (function.body if function is not None else ()) for n in within(part)]
    lines = [n for part in loop.body for n in within(part) if isinstance(n, ast.stmt)]
    for node in sorted(lines, key=lambda n: n.lineno):
        read = [n for n in heads(node) if _is_one(place, n, path, names)]
        if node is count or not read:
            continue
        if isinstance(node, ast.Assign) and place.text(node.targets[0]) == path:
            if integer(node.value) is None:
                return None  # a tensor, or another count
            continue
        kinds = {_becomes(place, n) for n in read}
        if "" in kinds:
            return None
        if kinds == {"number"} and isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names.add(node.targets[0].id)
    stores = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    outside = {n.id for n in nodes if isinstance(n, ast.Name) and n.lineno > (loop.end_lineno or 0)}
    return None if any(stores.count(name) > 1 for name in names) or names & outside else names


def _is_one(place: Place, node: ast.AST, path: str, names: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in names and isinstance(node.ctx, ast.Load)
    return isinstance(node, ast.Subscript | ast.Attribute) and place.text(node) == path


def _becomes(place: Place, node: ast.AST) -> str:
    """What a number is in what stands around it, where a tensor does that: itself a number, a tensor, or ""."""
    above = place.source.parents.get(node)
    if isinstance(above, ast.BinOp | ast.UnaryOp):
        sides = [above.left, above.right] if isinstance(above, ast.BinOp) else []
        calls = (n for each in sides if each is not node for n in ast.walk(each) if isinstance(n, ast.Call))
        of_tensors = any(isinstance(n.func, ast.Attribute) and not path_of(n.func).startswith("math.") for n in calls)
        kind = _becomes(place, above) if isinstance(above.op, _COMPUTES) else ""
        return "tensor" if kind and of_tensors else kind
    if isinstance(above, ast.Call) and above.args[:1] == [node]:
        own = path_of(above.func)
        if own.startswith("math.") and hasattr(torch, own[5:]) and len(above.args) == 1:
            return _becomes(place, above)
        return "tensor" if called(above) in _TAKES and not above.keywords else ""
    if isinstance(above, ast.keyword):
        call = place.source.parents.get(above)
        scales = isinstance(call, ast.Call) and above.arg in _SCALES and scaled_by(place, call, above.value)
        return "tensor" if scales else ""
    if isinstance(above, ast.Attribute):  # `(x / bias).add_(eps)`
        return "tensor" if isinstance(node, ast.BinOp) else ""
    if isinstance(above, ast.AugAssign):
        return "tensor"
    return "number" if isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name) else ""


def _written(place: Place, text: str, path: str, names: set[str]) -> str:
    """A statement with torch's functions for those of ``math`` that are given it, and no ``value=`` of it."""
    new = text
    for call in (n for n in heads(place.statement) if isinstance(n, ast.Call)):
        reads = any(_is_one(place, n, path, names) for n in ast.walk(call))
        by = next((each.value for each in call.keywords if each.arg in _SCALES), None)
        if reads and path_of(call.func).startswith("math."):
            new = new.replace(place.text(call), f"torch.{place.text(call)[5:]}")
        elif by is not None and any(_is_one(place, n, path, names) for n in ast.walk(by)):
            new = new.replace(place.text(call), f"{place.text(call.func)}({scaled_by(place, call, by)})")
    return new


def _begun(place: Place, count: ast.AugAssign) -> str:
    """Where a count begins, as the tensor that it is from there on: in its function, or else in its class."""
    path, key = place.text(count.target), getattr(getattr(count.target, "slice", None), "value", None)
    function = place.source.function_of(count)
    own = place.source.parents.get(function) if function is not None else None
    for node in (n for each in (function, own) if each is not None for n in ast.walk(each)):
        for target, value in pairs_of(node):
            if place.text(target) == path and (first := integer(value)) is not None:
                return f"; line {value.lineno} begins it, `{path} = {_made(place, first)}`"
        for name, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            if isinstance(name, ast.Constant) and name.value == key and (first := integer(value)) is not None:
                return f"; line {value.lineno} begins it, `{_made(place, first)}` for `{place.text(value)}`"
    return f"; where it begins, a `{_made(place, 0)}` for each, with that number"


def _made(place: Place, first: int) -> str:
    given = f"zeros((), dtype=torch.float64, device={place.device})"
    return f"torch.{given}" if first == 0 else f"torch.{given.replace('zeros(()', f'full((), {first}')}"
