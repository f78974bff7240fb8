"""Whether an expression may run although its branch is not taken: it computes, and nobody sees that it did."""

from __future__ import annotations

import ast
import builtins
import dis
import types
from typing import Any

import torch

from paramgraph_kit.rewrite.source.edits import names_in, path_of
from paramgraph_kit.rewrite.source.place import NUMBER, Place, called

_COMPUTES = frozenset(("min", "max", "abs", "float", "int", "len", "sum", "tuple", "list", "range", "zip", "round"))
_DRAWS = ("rand", "drop", "normal_", "sample", "bernoulli", "multinomial", "shuffle", "choice", "poisson")
_LIBRARIES = frozenset(("torch", "F", "math", "np", "numpy", "nn"))
_STORES = frozenset(("STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR", "STORE_DEREF", "DELETE_SUBSCR", "YIELD_VALUE"))
_NOISY = (
    torch.nn.modules.dropout._DropoutNd,
    torch.nn.modules.batchnorm._NormBase,
    torch.nn.RNNBase,
    torch.nn.MultiheadAttention,
    torch.nn.RReLU,
)
# What is no number for some values, and has a gradient that is none either, though nobody takes it.
SINGULAR = frozenset(
    """sqrt rsqrt log log2 log10 log1p acos asin atanh reciprocal pow div true_divide logit norm std
    normalize""".split()  # noqa: SIM905
)
# What gives a tensor of its own, which nobody else sees written: ``v.sqrt().add_(eps)``.
_OWN = SINGULAR | frozenset("exp clone square abs neg add sub mul sum mean sigmoid tanh zeros_like ones_like".split())  # noqa: SIM905
RISKY = (ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
DEEP = 3


def is_pure(place: Place, node: ast.expr) -> bool:
    """Whether an expression only computes: it writes, draws, waits and prints nothing."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, NUMBER)
    for part in ast.walk(node):
        if isinstance(part, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.Lambda)):
            return False
        if isinstance(part, ast.Call) and not (_is_quiet_call(place, part) or place.text(part) in place.lent):
            return False
    return True


def _is_quiet_call(place: Place, call: ast.Call) -> bool:
    name = called(call)
    if (
        any(word in name for word in _DRAWS)
        or (name.endswith("_") and name != "requires_grad_" and not _is_of_its_own(call))
        or name in ("step", "backward")
    ):
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
        return _is_quiet(value, DEEP)
    if isinstance(call.func, ast.Name) and place.is_local(name):
        return _is_one_of_quiet(place, name)
    reads = name in ("parameters", "named_parameters", "buffers", "items", "values", "keys")
    return isinstance(call.func, ast.Attribute) and (hasattr(torch.Tensor, name) or reads)


def _is_of_its_own(call: ast.Call) -> bool:
    """Whether a method that writes does so to what another call has just made."""
    made = call.func.value if isinstance(call.func, ast.Attribute) else None
    while isinstance(made, ast.Call) and called(made).endswith("_") and isinstance(made.func, ast.Attribute):
        made = made.func.value
    return isinstance(made, ast.Call) and called(made) in _OWN


def _is_one_of_quiet(place: Place, name: str) -> bool:
    """Whether what a loop goes through are functions and modules that only compute: ``for block in blocks``."""
    function = place.source.function_of(place.statement)
    bound = [n for n in ast.walk(function or place.statement) if isinstance(n, ast.Name) and n.id == name]
    loops = [n for n in ast.walk(function or place.statement) if isinstance(n, ast.For)]
    found: list[ast.expr] = []
    for loop in loops:
        pairs = [(loop.target, loop.iter)]
        if isinstance(loop.iter, ast.Call) and called(loop.iter) in ("enumerate", "zip"):
            targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else []
            skipped = 1 if called(loop.iter) == "enumerate" else 0
            pairs = list(zip(targets[skipped:], loop.iter.args, strict=False))
        found += [given for target, given in pairs if isinstance(target, ast.Name) and target.id == name]
    if len(found) != 1 or sum(isinstance(n.ctx, ast.Store) for n in bound) != 1:
        return False
    path = path_of(found[0])
    root = path.partition(".")[0]
    held = _value(place, path) if path and (not place.is_local(root) or root == "self") else None
    known = isinstance(held, (list, tuple, torch.nn.ModuleList, torch.nn.Sequential))
    return known and all(_is_quiet(each, DEEP) for each in held or ())


def _held(place: Place, path: str) -> Any:
    """A module that ``self.a`` is, in a class that is not the function's own."""
    first, _, rest = path.partition(".")
    held = place.attributes.get(rest) if first == "self" else None
    return held if isinstance(held, torch.nn.Module) else None


def _value(place: Place, path: str) -> Any:
    if path.startswith("self.") and "self" not in place.space:
        return _held(place, path)
    first, *rest = path.split(".")
    found = place.space.get(first)
    for name in rest:
        found = getattr(found, name, None)
    return found


def _is_quiet(value: Any, deep: int) -> bool:
    """Whether a function or a module does nothing but compute, as far as its code tells."""
    if isinstance(value, torch.nn.Module):
        for module in value.modules():
            if isinstance(module, _NOISY) and module.training:
                return False
            if module._forward_hooks or module._forward_pre_hooks:
                return False
            if not type(module).__module__.startswith("torch.nn") and not _is_quiet(type(module).forward, deep - 1):
                return False
        return True
    code = getattr(getattr(value, "__func__", value), "__code__", None)
    if not isinstance(code, types.CodeType) or deep == 0:
        return False
    if any(each.opname in _STORES for each in dis.get_instructions(code)):
        return False
    space = getattr(value, "__globals__", {})
    for name in code.co_names:
        if (name.endswith("_") and not name.endswith("__")) or any(word in name for word in _DRAWS):
            return False
        known = space.get(name, getattr(builtins, name, None))
        if isinstance(known, types.FunctionType) and not _is_quiet(known, deep - 1):
            return False
        if known in (print, open, input, exec, eval, next, setattr, delattr) or name in ("append", "extend", "write"):
            return False
    return True


def is_guarded(test: ast.expr, node: ast.expr, place: Place | None = None) -> bool:
    """Whether a branch looks something up at a place that only its condition makes sure of."""
    asked = names_in(test)
    found = [n for n in ast.walk(node) if place is not None and place.lent and place.text(n) in place.lent]
    before = {part for each in found for part in ast.walk(each)}  # the launch, if at all
    picks = [n for n in ast.walk(node) if isinstance(n, ast.Subscript) and n not in before]
    return any(names_in(n.slice) & asked and not isinstance(n.slice, ast.Compare) for n in picks)


def kept_finite(place: Place, node: ast.expr, test: ast.expr, condition: str, *, taken: bool) -> str:
    """An expression whose divisors, roots and logarithms are those of 1 where it is not taken.

    ``torch.where`` leaves out a value, and not the gradient of what has no number there: 0 times infinity is none.
    """
    asked = names_in(test)
    spots: list[ast.Name] = []
    for part in ast.walk(node):
        inside: list[ast.expr] = []
        if isinstance(part, ast.BinOp) and isinstance(part.op, RISKY):
            inside = [part.right] + [part.left] * isinstance(part.op, ast.Pow)
        elif isinstance(part, ast.Call) and called(part) in SINGULAR:
            inside = [*part.args] + ([part.func.value] if isinstance(part.func, ast.Attribute) else [])
        for each in inside:
            spots += [n for n in ast.walk(each) if isinstance(n, ast.Name) and n.id in asked and place.is_local(n.id)]
    text = place.text(node)
    if not spots or "\n" in text or not place.trains:
        return text
    for spot in sorted(set(spots), key=lambda n: -n.col_offset):
        at = spot.col_offset - node.col_offset
        one = f"torch.where({condition}, {spot.id}, 1)" if taken else f"torch.where({condition}, 1, {spot.id})"
        text = text[:at] + one + text[at + len(spot.id) :]
    return text
