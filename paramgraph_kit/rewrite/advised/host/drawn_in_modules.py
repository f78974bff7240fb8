"""Advice for a branch that the host draws in an object which a step calls: drawn before each launch, for each."""

from __future__ import annotations

import ast

import torch

from paramgraph_kit.rewrite.expressions.decisions.branches import choose_by_where
from paramgraph_kit.rewrite.source.edits import Function, names_in, path_of
from paramgraph_kit.rewrite.source.place import Place, called, fresh, renamed

_UNIFORM = ("random.random", "np.random.rand", "np.random.random", "numpy.random.rand", "torch.rand")


def drawn_there(place: Place) -> str:
    """``if random.random() < self.p: x = f(x)`` of a layer, which each of several asks for itself."""
    node, function = place.statement, place.source.function_of(place.statement)
    if place.failure.code not in ("branch-frozen", "host-random") or not isinstance(node, ast.If) or function is None:
        return ""
    above = place.source.parents.get(function)
    if not isinstance(above, ast.ClassDef) or place.source.parents.get(node) is not function:
        return ""
    if not any(isinstance(n, ast.Call) and _is_uniform(n) for n in ast.walk(node.test)) or function.name == place.entry:
        return ""
    chosen = fresh("chosen", place.taken)
    owner = _owner(place, above.name)
    one = owner or "m"
    test = renamed(_with_defaults(place, function, node.test), {"self": one})
    each = "" if owner else f", for each `{above.name}` as `m` that `{place.entry}` calls"
    named = f"`self` is that of `{place.entry}`, and " * one.startswith("self.")
    several = f"{named}`{function.name}` is called once in a step, else each call needs one of its own"
    texts = [edit.text.strip() for edit in choose_by_where(place, f"self.{chosen}_in") if edit.text.strip()]
    if len(texts) == 1:
        made = f"torch.zeros((), dtype=torch.bool, device={place.device})"
        return (
            f"the host draws in `{above.name}.{function.name}`: once `{one}.{chosen}_in = {made}`, before each launch "
            f"`{one}.{chosen}_in.fill_({test})`{each}, and here in place of the branch `{texts[0]}` ({several})"
        )
    return (
        f"the host draws in `{above.name}.{function.name}` which way is taken, and each is a graph of its own: before "
        f"each launch `{one}.{chosen} = {test}`{each}, here `if self.{chosen}:`, and launch `graphs[{one}.{chosen}]`, "
        f"each captured once `{place.entry}` has run with both ({several})"
    )


def _is_uniform(call: ast.Call) -> bool:
    path = path_of(call.func)
    if called(call) == "item" and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
        return path_of(call.func.value.func) == "torch.rand"
    plain = [n.value for n in call.args if isinstance(n, ast.Constant)]
    return (path in _UNIFORM[:-1] and not call.args) or (called(call) == "uniform" and plain == [0, 1])


def _with_defaults(place: Place, function: Function, test: ast.expr) -> str:
    """A test in which what no call of the file gives stands as it begins."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    given = zip(reversed(arguments), reversed(function.args.defaults), strict=False)
    known = {each.arg: place.text(value) for each, value in given if isinstance(value, ast.Constant)}
    return renamed(place.text(test), {name: text for name, text in known.items() if name in names_in(test)})


def _owner(place: Place, kind: str) -> str:
    """How the step, or the user's file, names the only object of a class; "" where that is not told."""
    steps = [n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n.name == place.entry]
    inside = {path_of(n) for step in steps for n in ast.walk(step) if isinstance(n, ast.Attribute)}
    found = [key for key, held in place.space.items() if type(held).__name__ == kind and not isinstance(held, type)]
    found += [f"self.{key}" for key, held in place.attributes.items() if type(held).__name__ == kind]
    found = [path for path in found if path in inside or not path.startswith("self.")]
    models = [held for held in (*place.space.values(), *place.attributes.values()) if isinstance(held, torch.nn.Module)]
    objects = {id(each) for held in models for each in held.modules() if type(each).__name__ == kind}
    return found[0] if len(found) == 1 and len(objects) < 2 else ""
