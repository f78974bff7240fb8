"""Advice for what a step does in one of two ways, and with boxes, as the host draws it: CutMix, erasing, mixing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import torch

from paramgraph_kit.rewrite.source.digits import zeros_for
from paramgraph_kit.rewrite.source.edits import Function, locals_of, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place, called, target_of

_SIZES = ("shape", "size", "ndim", "dim", "device", "dtype", "numel")
_DRAWS = ("rand", "beta", "uniform", "normal", "choice", "binomial", "gauss", "gamma", "dirichlet")
HOST = ("random", "np", "numpy")


def two_ways(place: Place) -> str:
    """``if np.random.rand() < p: ... model(mixed) ... else: ... model(x) ...``: a graph for each way.

    Of the function that is captured itself one way alone may compute: a helper's draws may be several in each step.
    """
    node, function = place.statement, place.source.function_of(place.statement)
    if place.failure.code not in ("branch-frozen", "host-random") or not isinstance(node, ast.If) or function is None:
        return ""
    ways = (node.body, node.orelse) if node.orelse or function.name != place.entry else (node.body,)
    if not all(_computes(place, way) for way in ways) or place.loops():
        return ""
    made = [n for n in _before(function, node) if stored([n]) & _read(place, node.test)]
    made = [n for n in made if _draws(n)]
    if not (made or _draws(node.test)) or not _is_hosts(place, node.test, node.lineno):
        return ""
    lines = " and ".join(f"`{place.text(n)}` (line {n.lineno})" for n in made)
    name = "chosen"
    return (
        f"the host draws which way is taken, and each is a graph of its own: give `{function.name}` one more argument, "
        f"`{name}`, a bool, of which each value has a graph, and write `if {name}:` here; before each launch "
        f"{f'do {lines} and ' if lines else ''}find `{name} = bool({place.text(node.test)})`, and launch the graph of "
        f"that{_kept_gradients(function)}"
    )


def _kept_gradients(function: Function) -> str:
    """What gradients need that graphs of several ways fill, where an optimizer's step is in none of them."""
    calls = [n for part in function.body for n in within(part) if isinstance(n, ast.Call)]
    nulled = [n for n in calls if called(n) == "zero_grad" and not n.args]
    nulled = [n for n in nulled if not any(getattr(o.value, "value", None) is False for o in n.keywords)]
    if not nulled:
        return ""
    return "; where gradients are read behind a launch, both graphs need the same, `zero_grad(set_to_none=False)`"


def box(place: Place) -> str:
    """``x[:, :, a:b, c:d] = x[order, :, a:b, c:d]``, where a helper of the host has drawn the ends."""
    node, function = place.statement, place.source.function_of(place.statement)
    part = target_of(node)
    if place.failure.code not in ("size-frozen", "host-random", "scalar-frozen", "tensor-bound") or function is None:
        return ""
    if not isinstance(part, ast.Subscript) or not isinstance(node, ast.Assign):
        return ""
    ends = part.slice.elts if isinstance(part.slice, ast.Tuple) else [part.slice]
    names = list(dict.fromkeys(n.id for each in ends if isinstance(each, ast.Slice) for n in _names(each)))
    made = [n for n in _before(function, node) if isinstance(n, ast.Assign) and stored([n]) & set(names)]
    if not names or len(made) != 1 or not set(names) <= stored(made) or not isinstance(made[0].value, ast.Call):
        return ""
    if not _is_hosts(place, made[0].value, node.lineno) or (value := _whole(place, node, ends)) is None:
        return ""
    x, lines, tests = place.text(part.value), list[str](), list[str]()
    for dim, each in enumerate(ends):
        if isinstance(each, ast.Slice) and (each.lower is not None or each.upper is not None):
            at = f"at_{len(lines) + 1}"
            last = f".view(-1, *[1] * ({x}.dim() - {dim + 1}))"
            lines.append(f"`{at} = torch.arange({x}.shape[{dim}], device={x}.device){last}`")
            bounds = ((">=", each.lower), ("<", each.upper))
            tests += [f"({at} {sign} {_with_in(place, end, names)})" for sign, end in bounds if end is not None]
    held, made_so = (
        ", ".join(f"{name}_in" for name in names),
        f"torch.zeros((), dtype=torch.long, device={place.device})",
    )
    filled = ", ".join(f"`{name}_in.fill_({name})`" for name in names)
    chosen = f"torch.where({' & '.join(tests)}, {value}, {x})"
    return (
        f"line {made[0].lineno}, `{place.text(made[0])}`, is the host's and belongs before each launch"
        f"{_of(place, made[0])}: once `{held} = ({made_so} for _ in range({len(names)}))`, there {filled}, here "
        f"{', '.join(lines)} and `{x}.copy_({chosen})`"
    )


def mixed(place: Place) -> str:
    """``loss = a * lam + b * (1 - lam)``, where the lines before have drawn ``lam`` and computed it again."""
    node, function = place.statement, place.source.function_of(place.statement)
    if place.failure.code not in ("host-random", "scalar-frozen") or function is None or isinstance(node, ast.If):
        return ""
    for name in sorted(_read(place, node)):
        made = [n for n in _before(function, node) if name in stored([n])]
        if len(made) < 2 or name in place.tensors or place.loops() or not _is_hosts(place, ast.Name(name), node.lineno):
            continue
        if not any(_draws(n) for n in _sources(place, name, node.lineno)):
            continue
        every = sorted({n.lineno for n in _sources(place, name, node.lineno)})
        lines = f"{', '.join(map(str, every[:-1]))} and {every[-1]}"
        return (
            f"`{name}` is the host's number, which lines {lines} make: do these before each launch, in this order, and "
            f"no more in the step; once `{name}_in = {zeros_for(place)}`, there "
            f"`{name}_in.fill_({name})`, here `{name}_in` for `{name}`"
        )
    return ""


def _computes(place: Place, way: list[ast.stmt]) -> bool:
    """Whether statements call a model."""
    calls = [n for part in way for n in within(part) if isinstance(n, ast.Call)]
    found = (place.space.get(path_of(n.func), place.attributes.get(called(n))) for n in calls)
    return any(isinstance(value, torch.nn.Module) for value in found)


def _draws(node: ast.AST) -> bool:
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    return any(path_of(n.func).partition(".")[0] in HOST and any(word in called(n) for word in _DRAWS) for n in calls)


def _before(function: Function, node: ast.stmt) -> list[ast.stmt]:
    every = (n for part in function.body for n in within(part) if isinstance(n, (ast.Assign, ast.AugAssign)))
    return [n for n in every if n.lineno < node.lineno]


def _names(node: ast.AST) -> list[ast.Name]:
    return [n for n in ast.walk(node) if isinstance(n, ast.Name)]


def _read(place: Place, node: ast.AST) -> set[str]:
    """Local names whose values a node reads: of `x.size(0)` none."""
    function = place.source.function_of(place.statement)
    own = locals_of(function) if function is not None else set()
    found = set()
    for each in _names(node):
        above = place.source.parents.get(each)
        sized = isinstance(above, ast.Attribute) and above.attr in _SIZES
        if (
            not sized
            and each.id in own
            and each.id != "self"
            and isinstance(getattr(each, "ctx", ast.Load()), ast.Load)
        ):
            found.add(each.id)
    return found


def _is_hosts(place: Place, node: ast.AST, line: int, above: frozenset[str] = frozenset()) -> bool:
    """Whether something is made of sizes, settings and what the host draws."""
    function = place.source.function_of(place.statement)
    if function is None:
        return False
    for name in _read(place, node) - above:
        made = [n for n in _before(function, place.statement) if name in stored([n]) and n.lineno < line]
        if name in place.tensors or (name in arguments_of(function) and not made and name not in place.plain):
            return False
        values = (n.value for n in made if isinstance(n, (ast.Assign, ast.AugAssign)))
        if not all(_is_hosts(place, value, line, above | {name}) for value in values):
            return False
    return True


def _sources(place: Place, name: str, line: int, above: frozenset[str] = frozenset()) -> Iterator[ast.stmt]:
    """The statements that make a name, and what they read."""
    function = place.source.function_of(place.statement)
    for node in _before(function, place.statement) if function is not None else ():
        if name in stored([node]) and node.lineno < line:
            yield node
            for other in sorted(_read(place, node) - above - {name}):
                yield from _sources(place, other, line, above | {name})


def _of(place: Place, *made: ast.stmt) -> str:
    """What else has to be done there, for what statements read."""
    lines = {
        n.lineno: n for each in made for name in sorted(_read(place, each)) for n in _sources(place, name, each.lineno)
    }
    lines = {number: n for number, n in lines.items() if n not in made}
    told = " and ".join(f"`{place.text(lines[number])}` (line {number})" for number in sorted(lines))
    return f", after {told}" if told else ""


def _whole(place: Place, node: ast.Assign, ends: list[ast.expr]) -> str | None:
    """What stands for ``y[order, :, a:b]`` where all of it is chosen from; None where that is not told."""
    value = node.value
    if not isinstance(value, ast.Subscript):
        return place.source.bracketed(value) if not _read(place, value) - set(place.plain) else None
    parts = value.slice.elts if isinstance(value.slice, ast.Tuple) else [value.slice]
    if len(parts) != len(ends):
        return None
    rest: list[str] = []
    for one, other in zip(parts, ends, strict=True):
        same = place.text(one) == place.text(other)
        if isinstance(other, ast.Slice) and not same and (other.lower is not None or other.upper is not None):
            return None
        rest.append(":" if isinstance(one, ast.Slice) and same else place.text(one))
    while rest and rest[-1] == ":":
        rest.pop()
    return place.source.bracketed(value.value) + (f"[{', '.join(rest)}]" if rest else "")


def _with_in(place: Place, end: ast.expr, names: list[str]) -> str:
    text = ast.parse(place.text(end), mode="eval").body
    for node in ast.walk(text):
        if isinstance(node, ast.Name) and node.id in names:
            node.id += "_in"
    return ast.unparse(text)


DRAWN_WAYS = (two_ways, box, mixed)
