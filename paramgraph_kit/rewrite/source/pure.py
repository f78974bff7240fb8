"""Whether an expression may run although its branch is not taken: it computes, and nobody sees that it did."""

from __future__ import annotations

import ast
import types
from collections.abc import Collection, Mapping
from typing import Any

import torch

from paramgraph_kit.rewrite.source.edits import Function, names_in, path_of
from paramgraph_kit.rewrite.source.place import NUMBER, Place, called, value_of
from paramgraph_kit.rewrite.source.quiet import draws, is_quiet
from paramgraph_kit.rewrite.source.writes import filled, memory_of

_COMPUTES = frozenset(
    "min max abs float int len sum tuple list range zip round str reversed enumerate".split()  # noqa: SIM905
)
_MANY = (list, tuple, dict, torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)
_LIBRARIES = frozenset(("torch", "F", "math", "np", "numpy", "nn"))
# What is no number for some values, and has a gradient that is none either, though nobody takes it.
SINGULAR = frozenset(
    """sqrt rsqrt log log2 log10 log1p acos asin atanh reciprocal pow div true_divide logit norm std
    normalize""".split()  # noqa: SIM905
)
# What gives a tensor of its own, which nobody else sees written: ``v.sqrt().add_(eps)``.
_OWN = SINGULAR | frozenset("exp clone square abs neg add sub mul sum mean sigmoid tanh zeros_like ones_like".split())  # noqa: SIM905
RISKY = (ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)


def is_pure(place: Place, node: ast.expr, own: Collection[str] = ()) -> bool:
    """Whether an expression only computes: it writes, draws, waits and prints nothing.

    ``own``: names whose tensors nobody else sees written, as by a function that is given one.
    """
    if isinstance(node, ast.Constant):
        return isinstance(node.value, NUMBER)
    at_once = {id(each) for part in ast.walk(node) if isinstance(part, ast.Call) for each in _run_at_once(part)}
    for part in ast.walk(node):
        if isinstance(part, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)):
            return False
        if isinstance(part, ast.Lambda) and id(part) not in at_once:
            return False
        quiet = isinstance(part, ast.Call) and (_is_quiet_call(place, part) or place.text(part) in place.lent)
        if isinstance(part, ast.Call) and not quiet and not _fills_its_own(place, part, own):
            return False
    return True


def _fills_its_own(place: Place, call: ast.Call, own: Collection[str]) -> bool:
    """``top_p(head(h) / 0.8)``: a function of the file that writes into what it is given, which nobody else has."""
    every = [n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n.name == path_of(call.func)]
    value = place.space.get(path_of(call.func))
    if len(every) != 1 or every[0] not in place.source.tree.body or not isinstance(value, types.FunctionType):
        return False
    names = filled(every[0])
    if names is None or value.__name__ != every[0].name or not is_quiet(value, fills=True):
        return False
    if any(isinstance(each, ast.Starred) for each in call.args) or any(o.arg is None for o in call.keywords):
        return False
    given = dict(zip((a.arg for a in (*every[0].args.posonlyargs, *every[0].args.args)), call.args, strict=False))
    given |= {str(option.arg): option.value for option in call.keywords}
    return not any(memory_of(given[name], dict.fromkeys(own, ())) for name in names if name in given)


def _run_at_once(call: ast.Call) -> list[ast.expr]:
    """``torch.autograd.functional.jacobian(lambda z: f(z, b), x)``: functions that only the call itself runs."""
    return call.args if path_of(call.func).startswith("torch.autograd.functional.") else []


def _is_quiet_call(place: Place, call: ast.Call) -> bool:
    name = called(call)
    if draws(name) or (name.endswith("_") and name != "requires_grad_" and not _is_of_its_own(call)):
        return False
    every = candidates(place, call.func)
    own = [each for each in every if not _is_of_torch(each)]
    if name in ("step", "backward") and not own:
        return False
    if isinstance(call.func, ast.Name) and name in _COMPUTES:
        return True
    path = path_of(call.func)
    root = path.partition(".")[0]
    around = not place.is_local(root) or (root == "self" and (root in place.space or _held(place, path) is not None))
    if root in _LIBRARIES and around:
        return not path.startswith(("np.random", "numpy.random"))
    value = _value(place, path) if path and around else None
    if getattr(value, "__module__", None) == "torch.nn.modules.module" and not name.startswith("_"):
        return name in ("parameters", "named_parameters", "buffers", "named_buffers", "modules", "children")
    if value is not None and not isinstance(value, types.BuiltinMethodType):
        return is_quiet(value)
    if own:
        return all(map(is_quiet, own))
    if isinstance(call.func, ast.Name) and place.is_local(name):  # ``dot = torch.dot``
        names = [str(getattr(each, "__name__", "_")) for each in every]
        return bool(names) and not any(draws(each) or each.endswith("_") for each in names)
    reads = name in ("parameters", "named_parameters", "buffers", "items", "values", "keys")
    return isinstance(call.func, ast.Attribute) and (hasattr(torch.Tensor, name) or reads)


def _is_of_its_own(call: ast.Call) -> bool:
    """Whether a method that writes does so to what another call has just made."""
    made = call.func.value if isinstance(call.func, ast.Attribute) else None
    while isinstance(made, ast.Call) and called(made).endswith("_") and isinstance(made.func, ast.Attribute):
        made = made.func.value
    return isinstance(made, ast.Call) and called(made) in _OWN


def candidates(place: Place, node: ast.expr, of: frozenset[str] = frozenset()) -> list[Any]:
    """What an expression may be of what lives around the function: an element of a list that a loop goes through, too.

    Nothing where that is not told, as of ``z = z[good]``. ``of``: the names that are looked up so far.
    """
    if isinstance(node, ast.Name) and node.id != "self" and place.is_local(node.id):
        known = _bound(place, node.id, of | {node.id}) if node.id not in of else []
        return known or ([place.called[node.id]] if node.id in place.called else [])
    if path := path_of(node):
        value = _value(place, path)
        if value is not None or not isinstance(node, ast.Attribute):
            return [value] if value is not None else []
    if isinstance(node, ast.Attribute):
        held = [getattr(each, node.attr, None) for each in candidates(place, node.value, of)]
        return held if all(each is not None for each in held) else []
    if isinstance(node, ast.Subscript):
        return [part for each in candidates(place, node.value, of) for part in _picked(each, node.slice)]
    return []


def _picked(held: Any, at: ast.expr) -> list[Any]:
    if isinstance(held, (dict, torch.nn.ModuleDict)):
        parts: dict[Any, Any] = dict(held.items())
        return list(parts.values()) if not isinstance(at, ast.Constant) else [parts[k] for k in parts if k == at.value]
    return list(held) if isinstance(held, _MANY) else []


def _bound(place: Place, name: str, of: frozenset[str]) -> list[Any]:
    """What the loops of a function, or one assignment, give to one of its names."""
    function = place.source.function_of(place.statement) or place.statement
    every = list(ast.walk(function))
    stores = [n for n in every if isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)]
    given = [each for n in every if isinstance(n, ast.For) for each in _given(n.target, n.iter, name)]
    assigned = [n for n in every if isinstance(n, ast.Assign) and len(n.targets) == 1 and n.targets[0] in stores]
    given += [(n.value, False) for n in assigned]
    found = [_gone_through(place, *each, of) for each in given]
    return [part for each in found for part in each] if len(stores) == len(given) and all(found) else []


def _gone_through(place: Place, value: ast.expr, goes: bool, of: frozenset[str]) -> list[Any]:
    if isinstance(value, ast.Call) and called(value) == "values" and isinstance(value.func, ast.Attribute):
        value = value.func.value
    held = candidates(place, value, of)
    if not goes:
        return held
    lists = [list(each.values() if isinstance(each, dict) else each) for each in held if isinstance(each, _MANY)]
    return [part for each in lists for part in each] if len(lists) == len(held) else []


def _given(target: ast.expr, value: ast.expr, name: str) -> list[tuple[ast.expr, bool]]:
    """What a loop's name goes through: ``b`` of ``for i, (a, b) in enumerate(zip(xs, ys))`` goes through ``ys``."""
    if isinstance(target, ast.Name):
        return [(value, True)] if target.id == name else []
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
        return []
    if called(value) == "enumerate" and value.args and len(target.elts) == 2:
        return _given(target.elts[1], value.args[0], name)
    pairs = zip(target.elts, value.args, strict=False) if called(value) == "zip" else ()
    return [each for one, of in pairs for each in _given(one, of, name)]


def _is_of_torch(value: Any) -> bool:
    """Whether something is a function or a method of torch's own; modules of it are known by what they do."""
    made = getattr(value, "__self__", None)
    kind = type(made) if made is not None and not isinstance(made, types.ModuleType) else value
    module = str(getattr(kind, "__module__", "") or "")
    return module.partition(".")[0] == "torch" and not isinstance(value, torch.nn.Module)


def _held(place: Place, path: str) -> Any:
    """A module that ``self.a`` is, in a class that is not the function's own."""
    first, _, rest = path.partition(".")
    held = place.attributes.get(rest) if first == "self" else None
    return held if isinstance(held, torch.nn.Module) else None


def _value(place: Place, path: str) -> Any:
    if path.startswith("self.") and "self" not in place.space:
        return _held(place, path)
    return value_of(place.space, path)


def is_guarded(test: ast.expr, node: ast.expr, place: Place | None = None, written: str = "") -> bool:
    """Whether a branch looks something up at a place that only its condition makes sure of.

    ``written``: what is written there is read in any case.
    """
    looked_up = {n for s in ast.walk(test) if isinstance(s, ast.Subscript) for n in ast.walk(s.slice)}
    asked = {n.id for n in ast.walk(test) if isinstance(n, ast.Name) and n not in looked_up}
    # What `sizes[i]` tells of `i`, a round's number, is nothing that another round's would lack.
    asked |= names_in(test) - (_counters(place) if place is not None else set())
    found = [n for n in ast.walk(node) if place is not None and place.lent and place.text(n) in place.lent]
    before = {part for each in found for part in ast.walk(each)}  # the launch, if at all
    picks = [n for n in ast.walk(node) if isinstance(n, ast.Subscript) and n not in before]
    picks = [n for n in picks if place is None or not written or place.text(n) != written]
    return any(names_in(n.slice) & asked and not isinstance(n.slice, ast.Compare) for n in picks)


def may_run(place: Place, node: ast.expr, branch: ast.IfExp | ast.If, written: str = "") -> bool:
    """Whether an expression may be computed although its branch is not taken; ``written``: what gets it."""
    return is_pure(place, node) and not is_guarded(branch.test, node, place, written)


def _counters(place: Place) -> set[str]:
    """Names of the rounds' numbers, as ``i`` of ``for i in range(n)``."""
    found = set[str]()
    for loop in place.loops():
        if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call):
            target = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) and loop.target.elts else loop.target
            counts = ("enumerate",) if isinstance(loop.target, ast.Tuple) else ("range", "trange")
            found |= {target.id} if isinstance(target, ast.Name) and called(loop.iter) in counts else set()
    return found


def _made_of_the_same(place: Place, names: set[str]) -> set[str]:
    """Some names, and tensors that are computed of the same: ``n`` of ``n = m.sum()`` where ``m.any()`` is asked."""
    function = place.source.function_of(place.statement)
    every = [n for n in ast.walk(function) if isinstance(n, ast.Assign)] if function is not None else []
    sources: dict[str, set[str]] = {}
    for node in every:
        for name in (n.id for each in node.targets for n in ast.walk(each) if isinstance(n, ast.Name)):
            sources.setdefault(name, set()).update(names_in(node.value) - {name})
    roots = {name: _roots(name, sources) for name in (*names, *sources)}
    own = {each for name in names for each in roots[name] if place.is_local(each)}
    beside = (name for name in sources if roots[name] & own)
    return names | {name for name in beside if name in place.seen or place.form(name) is not None}


def _roots(name: str, sources: Mapping[str, set[str]]) -> set[str]:
    """What a name is computed of, over all assignments, and the name itself."""
    found, left = set[str](), [name]
    while left:
        if (one := left.pop()) not in found:
            found.add(one)
            left += sources.get(one, ())
    return found


def _divides(place: Place, call: ast.Call) -> bool:
    """Whether a call is of a function of the file that divides by a variable, or takes a root or a logarithm."""
    every = [n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n.name == called(call)]
    parts = [n for each in every for n in ast.walk(each)]
    by = (n.right for n in parts if isinstance(n, ast.BinOp) and isinstance(n.op, RISKY))
    return any(not isinstance(n, ast.Constant) for n in by) or any(
        isinstance(n, ast.Call) and called(n) in SINGULAR for n in parts
    )


def kept_finite(place: Place, node: ast.expr, test: ast.expr, condition: str, *, taken: bool) -> str:
    """An expression whose divisors, roots and logarithms are those of 1 where it is not taken.

    ``torch.where`` leaves out a value, and not the gradient of what has no number there: 0 times infinity is none.
    """
    picked = [n for n in ast.walk(test) if isinstance(n, ast.Subscript)]
    below: set[ast.AST] = {n for each in picked for n in ast.walk(each)}
    parts = {ast.dump(n) for n in picked}
    asked = _made_of_the_same(place, {n.id for n in ast.walk(test) if isinstance(n, ast.Name) and n not in below})
    spots: list[ast.Name | ast.Subscript] = []
    for part in ast.walk(node):
        inside: list[ast.expr] = []
        if isinstance(part, ast.BinOp) and isinstance(part.op, RISKY):
            inside = [part.right] + [part.left] * isinstance(part.op, ast.Pow)
        elif isinstance(part, ast.Call) and (called(part) in SINGULAR or _divides(place, part)):
            inside = [*part.args] + ([part.func.value] if isinstance(part.func, ast.Attribute) else [])
        for each in inside:
            owners: set[ast.AST] = {n.value for n in ast.walk(each) if isinstance(n, ast.Attribute)}  # no numbers
            owners |= {n for s in ast.walk(each) if isinstance(s, ast.Subscript) for n in ast.walk(s.slice)}
            spots += [
                n
                for n in ast.walk(each)
                if isinstance(n, ast.Name) and n.id in asked and place.is_local(n.id) and n not in owners
            ]
            spots += [n for n in ast.walk(each) if isinstance(n, ast.Subscript) and ast.dump(n) in parts]
    text = place.text(node)
    if not spots or "\n" in text or not place.trains:
        return text
    for spot in sorted(set(spots), key=lambda n: -n.col_offset):
        at, own = spot.col_offset - node.col_offset, place.text(spot)
        form = place.tensors.get(own)
        fill = "True" if form is not None and form.dtype is torch.bool else "1"
        one = f"torch.where({condition}, {own}, {fill})" if taken else f"torch.where({condition}, {fill}, {own})"
        text = text[:at] + one + text[at + len(own) :]
    return text
