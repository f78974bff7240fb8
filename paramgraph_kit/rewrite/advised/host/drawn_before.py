"""Advice for what the CPU draws in the middle of a step: drawn before each launch it has the same numbers."""

from __future__ import annotations

import ast
from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import torch

from paramgraph_kit.doctor.observe.compare import ANOTHER
from paramgraph_kit.rewrite.advised.host.exchanged import computes
from paramgraph_kit.rewrite.advised.host.from_host import assignments, called_again
from paramgraph_kit.rewrite.expressions.picks.sizes import DRAWN
from paramgraph_kit.rewrite.source.edits import Function, is_text, locals_of, names_in, path_of
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh, lines_of, target_of

_DRAWS = (*DRAWN, "bernoulli", "multinomial", "bernoulli_", "normal_", "uniform_", "random_", "exponential_")
_COPIES = ("to", "cuda", "type_as")
_BARE = ("FloatTensor", "Tensor")  # which take sizes one by one, and a tuple for numbers
_SIZED = ("randn", "rand", "empty", *_BARE)
_DEEP = 4  # names that come of others


class Drawn(NamedTuple):
    """What the CPU draws for a statement of its own."""

    name: str  # that it is given
    value: ast.Call  # the copy of it
    made: str  # a tensor for it, as it would be written
    text: str  # what draws it, with sizes in numbers


def drawn_of(place: Place) -> Drawn | None:
    """``hidden = torch.bernoulli(p).bool().to(d)`` with ``p = torch.full(x.shape, 0.3)``, all of it the host's."""
    node, function = place.statement, place.source.function_of(place.statement)
    target = target_of(node)
    if place.failure.code != "copy-to-gpu" or not isinstance(target, ast.Name) or function is None or place.loops():
        return None
    call = node.value if isinstance(node, ast.Assign) else None
    if not isinstance(call, ast.Call) or called(call) not in _COPIES or not isinstance(call.func, ast.Attribute):
        return None
    form = place.forms.get(target.id)
    text = _of_the_host(place, function, call.func.value)
    if form is None or not text or called_again(place) is not None:
        return None
    size = ", ".join(map(str, form.shape)) if form.shape else "()"
    kind = "" if form.dtype is torch.get_default_dtype() else f", dtype={form.dtype}"
    return Drawn(target.id, call, f"torch.zeros({size}{kind}, device={place.device})", text)


def drawn_before_each_launch(place: Place) -> str:
    """The advice for it."""
    if (drawn := drawn_of(place)) is None:
        return ""
    name, number = drawn.name, _drawn_ahead(place)
    given = f"{name}_in" + f"_{number + 1}" * bool(number)
    return (
        f"`{name}` is drawn on the CPU: once `{given} = {drawn.made}`, before each launch "
        f"`{given}.copy_({drawn.text})`, which draws the same numbers, and here `{name} = {given}.clone()`"
    )


def _drawn_ahead(place: Place) -> int:
    """How many lines ahead of one draw what has the same name: each needs a tensor of its own."""
    function, target = place.source.function_of(place.statement), target_of(place.statement)
    name = path_of(target) if target is not None else ""
    every = [n for n in ast.walk(function) if isinstance(n, ast.Assign)] if function is not None else []
    ahead = [n for n in every if n.lineno < place.statement.lineno and path_of(n.targets[0]) == name]
    return sum(any(isinstance(c, ast.Call) and called(c) in _DRAWS for c in ast.walk(n.value)) for n in ahead)


def sized_again(place: Place, drawn: Drawn) -> str | None:
    """``.view(std.size())``, so that a batch of another size raises as it is no longer drawn for; None if unknown."""
    value: ast.expr = drawn.value.func.value if isinstance(drawn.value.func, ast.Attribute) else drawn.value
    while (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and path_of(value.func.value) != "torch"
    ):
        value = value.func.value
    if not isinstance(value, ast.Call) or called(value) not in _SIZED or value.keywords or not value.args:
        return None
    sizes = [place.text(each) for each in value.args]
    return f".view({', '.join(sizes)})" if any(map(names_in, value.args)) else ""


def picked_tensors(place: Place) -> str:
    """``states = torch.cat(batch.state)`` with rows that the host has drawn of a list of tensors."""
    node, function = place.statement, place.source.function_of(place.statement)
    if place.failure.code != "host-random" or ANOTHER not in place.failure.message or function is None:
        return ""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or place.loops():
        return ""
    target, value = node.targets[0], node.value
    both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts)
    pairs = [*zip(target.elts, value.elts, strict=True)] if both else [(target, value)]  # type: ignore[attr-defined]
    names = [each.id for each, _ in pairs if isinstance(each, ast.Name)]
    if len(names) != len(pairs) or any(name in names_in(value) for name in names):
        return ""
    if given := [*dict.fromkeys(name for _, made in pairs for name in computes(place, made))]:
        copied, read = (", ".join(f"`{text.format(n)}`" for n in given) for text in ("{0}_in.copy_({0})", "{0}_in"))
        return (
            f"the host draws what {', '.join(f'`{n}`' for n in given)} stands for: do what it draws before each "
            f"launch, and there {copied}, with tensors of the device that stay; this line computes in the graph, with "
            f"{read} in their place"
        )
    texts = [_with_all(place, made) or place.text(made) for _, made in pairs]
    written = "`, `".join(f"{name}_in.copy_({text})" for name, text in zip(names, texts, strict=True))
    rest = "" if texts == [place.text(made) for _, made in pairs] else (
        "; what is none of them has a row of zeros so, and where these are used `torch.where` takes what there was"
    )  # fmt: skip
    return (
        f"the host draws which tensors these are: do what it draws before each launch, and there `{written}`, with "
        f"tensors of the device that stay; read these here{rest}"
    )


def drawn_until(place: Place) -> str:
    """``while (neg == pos).any(): neg = ...``, which draws anew until all fit to what the step is given."""
    loop, function = place.statement, place.source.function_of(place.statement)
    if place.failure.code != "data-dependent-branch" or not isinstance(loop, ast.While) or function is None:
        return ""
    if loop not in function.body or loop.orelse or not _only_draws(place, function, loop):
        return ""
    made = [n for n in function.body[: function.body.index(loop)] if stored([n]) & names_in(loop)]
    name = min(names_in(loop.test) & stored([loop]), default="")
    form = place.forms.get(name)
    if not name or form is None:
        return ""
    size = ", ".join(map(str, form.shape)) if form.shape else "()"
    kept = fresh(f"{name}_in", place.taken)
    once = f"once `{kept} = torch.zeros({size}, dtype={form.dtype}, device={place.device})`"
    if function.name == place.entry:
        lines = lines_of([*made, loop])
        return (
            f"{lines} draw `{name}` anew until all fit to what the step is given, and read nothing else: they belong "
            f"before each launch. {once[0].upper()}{once[1:]}, do them there, with `{kept}.copy_({name})` behind them, "
            f"and write `{name} = {kept}` in their place"
        )
    calls = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Call) and called(n) == function.name]
    caller = place.source.function_of(calls[0]) if len(calls) == 1 else None
    last = function.body[-1]
    returns = isinstance(last, ast.Return) and last.value is not None and path_of(last.value) == name
    given = {n for each in calls[:1] for arg in each.args for n in names_in(arg)}
    if caller is None or caller.name != place.entry or not returns or not given <= set(arguments_of(caller)):
        return ""
    text = place.text(calls[0])
    return (
        f"`{function.name}` draws anew until all fit to what it is given, and reads nothing else: it belongs before "
        f"each launch. {once[0].upper()}{once[1:]}, before each launch `{kept}.copy_({text})`, with the lines of "
        f"`{function.name}` as they were, and in line {calls[0].lineno} `{kept}` for `{text}`"
    )


def _only_draws(place: Place, function: Function, loop: ast.While) -> bool:
    """Whether a loop, and what its function does before it, gives names values alone, of arguments and of draws."""
    before = [n for n in function.body[: function.body.index(loop)] if not is_text(n)]
    every = [*before, *loop.body]
    plain = all(isinstance(n, ast.Assign) and all(isinstance(t, ast.Name) for t in n.targets) for n in every)
    reads = {n for node in (*every, loop.test) for n in names_in(node)} - locals_of(function)
    held = (place.space.get(name) for name in reads)
    calls = [n for node in loop.body for n in ast.walk(node) if isinstance(n, ast.Call)]
    drawn = any(called(n) in _DRAWS or "rand" in path_of(n.func) for n in calls)
    changes = any(isinstance(n, (torch.Tensor, torch.nn.Module)) for n in held)
    return plain and drawn and "self" not in reads and not changes


def _with_all(place: Place, value: ast.expr) -> str:
    """``torch.cat([s for s in xs if s is not None])`` with as many rows each time, or ""."""
    for part in ast.walk(value):
        if not isinstance(part, ast.ListComp) or len(part.generators) != 1 or not isinstance(part.elt, ast.Name):
            continue
        loop, name = part.generators[0], part.elt.id
        test = place.text(loop.ifs[0]) if len(loop.ifs) == 1 else ""
        if test == f"{name} is not None" and path_of(loop.target) == name:
            rows = place.text(loop.iter)
            some = f"torch.zeros_like(next(row for row in {rows} if row is not None))"
            whole = f"[{name} if {test} else {some} for {name} in {rows}]"
            return place.text(value).replace(place.text(part), whole)
    return ""


def _of_the_host(place: Place, function: Function, value: ast.expr) -> str:
    """What is drawn, with the sizes of tensors in numbers, and without names that only the function has; or ""."""
    draws = False
    tree = ast.parse(place.text(value), mode="eval").body
    known = place
    for _ in range(_DEEP):
        draws = draws or any(isinstance(n, ast.Call) and called(n) in _DRAWS for n in ast.walk(tree))
        tree = _Sizes(place).visit(tree)
        own = names_in(tree) & locals_of(function)
        if not own:
            return ast.unparse(tree) if draws and not _picks_by_chance(tree) else ""
        made = {name: one.value for name, one in assignments(replace(known, statement=_as_statement(known, tree)))}
        if own - made.keys():
            return ""
        tree = _Names({name: ast.parse(place.text(made[name]), mode="eval").body for name in own}).visit(tree)
    return ""


def _picks_by_chance(tree: ast.expr) -> bool:
    """Whether other draws pick more or fewer: ``edges[:, torch.rand(n) > 0.3]``."""
    masks = [n.slice for n in ast.walk(tree) if isinstance(n, ast.Subscript)]
    picked = [n for mask in masks for n in ast.walk(mask) if isinstance(n, ast.Compare)]
    calls = {called(n) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    masked = any(isinstance(n, ast.Call) and called(n) == "bool" for mask in masks for n in ast.walk(mask))
    return bool(picked or masked or calls & {"nonzero", "masked_select", "unique", "where"})


def _as_statement(place: Place, tree: ast.expr) -> ast.stmt:
    """A statement that reads these names, where the statement of the place is."""
    made = ast.Expr(tree)
    place.source.parents[made] = place.source.parents[place.statement]
    return ast.copy_location(made, place.statement)


class _Sizes(ast.NodeTransformer):
    """``x.shape``, ``x.shape[0]``, ``x.size(0)`` and ``len(x)`` of tensors whose form is known, as numbers."""

    def __init__(self, place: Place) -> None:
        self.forms = place.forms

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        form = self.forms.get(node.value.id) if isinstance(node.value, ast.Name) and node.attr == "shape" else None
        return node if form is None else ast.parse(repr(tuple(form.shape)), mode="eval").body

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        at = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if isinstance(node.value, ast.Tuple) and type(at) is int and at < len(node.value.elts):
            return node.value.elts[at]
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if called(node) in _BARE and len(node.args) == 1 and isinstance(node.args[0], ast.Tuple):
            return ast.Call(node.func, node.args[0].elts, node.keywords)
        owner = node.func.value if isinstance(node.func, ast.Attribute) and called(node) == "size" else None
        owner = node.args[0] if called(node) == "len" and len(node.args) == 1 else owner
        form = self.forms.get(owner.id) if isinstance(owner, ast.Name) else None
        if form is None or not form.shape:
            return node
        if called(node) == "len":
            return ast.Constant(form.shape[0])
        at = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        if not node.args:
            return ast.parse(repr(tuple(form.shape)), mode="eval").body
        return ast.Constant(form.shape[at]) if isinstance(at, int) and at < len(form.shape) else node


class _Names(ast.NodeTransformer):
    """Names in whose place comes what they were given."""

    def __init__(self, values: dict[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return deepcopy(self.values.get(node.id, node))  # one for each place: they are changed where they stand
