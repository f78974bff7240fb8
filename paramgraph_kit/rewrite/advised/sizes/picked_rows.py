"""Advice for what a mask picks, and that is only averaged, added up and counted afterwards."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import Function, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh

_INSTEAD = {
    "mean": "(torch.where({keep}, {x}, 0).sum() / {keep}.sum())",
    "sum": "torch.where({keep}, {x}, 0).sum()",
    "numel": "{keep}.sum()",
    "max": "{x}.masked_fill(~{keep}, -torch.inf).max()",
    "min": "{x}.masked_fill(~{keep}, torch.inf).min()",
}

_NOT_OF_ZEROS = frozenset(("log", "sqrt", "rsqrt", "reciprocal", "div", "norm", "normalize", "cosine_similarity"))


def averaged_and_counted(place: Place) -> str:
    """``hard = x[mask]`` with ``hard.mean()``, ``hard.numel()`` and ``len(hard)`` below it."""
    node, function = place.statement, place.source.function_of(place.statement)
    if place.failure.code != "dynamic-shape" or function is None or not isinstance(node, ast.Assign):
        return ""
    value, target = node.value, node.targets[0]
    if not isinstance(value, ast.Subscript) or not isinstance(target, ast.Name) or len(node.targets) != 1:
        return ""
    if isinstance(value.slice, (ast.Slice, ast.Tuple, ast.Constant)):
        return ""
    name, x, mask = target.id, place.text(value.value), place.text(value.slice)
    every = [n for part in function.body for n in within(part)]
    reads = [n for n in every if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    keep = (
        mask if isinstance(value.slice, ast.Name) else fresh("keep", {n.id for n in every if isinstance(n, ast.Name)})
    )
    found = dict[str, str]()
    for read in reads:
        above = place.source.parents.get(read)
        call = place.source.parents.get(above) if isinstance(above, ast.Attribute) else above
        if not isinstance(call, ast.Call) or (called(call) != "len" and (call.args or call.keywords)):
            return ""
        what = "numel" if called(call) == "len" else called(call)
        if what not in _INSTEAD or (isinstance(above, ast.Attribute) and call.func is not above):
            return ""
        found[place.text(call)] = _INSTEAD[what].format(keep=keep, x=x)
    if not found:
        return ""
    made = f"`{keep} = {mask}` here, and " if keep != mask else ""
    return f"keep all of `{x}`: {made}" + ", ".join(f"`{new}` for `{old}`" for old, new in found.items())


_OF_THE_LEAST = ("min", "argmin", "amin", "sort", "argsort", "cummin", "softmin")
_RANKS = (*_OF_THE_LEAST, "max", "argmax", "amax", "topk", "softmax", "log_softmax", "logsumexp")
# The option that turns an order round, its place among a method's arguments, and whether the largest come first.
_TURNED = {
    "sort": ("descending", 1, False),
    "argsort": ("descending", 1, False),
    "topk": ("largest", 2, True),
}


def divides(place: Place, target: ast.expr) -> bool:
    """Whether what comes of a name is divided by, or goes where zeros have no value or no gradient."""
    function = place.source.function_of(place.statement)
    every = [n for part in function.body for n in within(part)] if function is not None else []
    own, of_it = {n.name for n in ast.walk(place.source.tree) if isinstance(n, Function)}, stored([target])
    given = [n for n in every if isinstance(n, ast.Assign) and n is not place.statement]
    while more := stored([n for n in given if names_in(n.value) & of_it]) - of_it:
        of_it |= more
    for node in every:
        below = node.right if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) else None
        if isinstance(node, ast.Call) and (called(node) in _NOT_OF_ZEROS or path_of(node.func) in own):
            below = node
        if below is not None and names_in(below) & of_it:
            return True
    return False


def beside(place: Place, mask: str) -> str:
    """What a function ranks needs the mask, too: zeros would be the least, or take a place in an order."""
    function = place.source.function_of(place.statement)
    every = [n for part in function.body for n in within(part)] if function is not None else []
    after = [n for n in every if isinstance(n, ast.Call) and n.lineno > place.statement.lineno]
    of_it = stored([place.statement])
    given = [n for n in every if isinstance(n, ast.Assign) and n.lineno > place.statement.lineno]
    while more := stored([n for n in given if names_in(n.value) & of_it]) - of_it:
        of_it |= more
    after = [n for n in after if names_in(n) & of_it]
    helpers = {called(n) for n in after}
    own = [
        n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n.name in helpers and n is not function
    ]
    calls = [*after, *(n for each in own for n in ast.walk(each) if isinstance(n, ast.Call))]
    calls = [n for n in calls if isinstance(n.func, ast.Attribute) and path_of(n.func.value) not in ("np", "numpy")]
    found = dict.fromkeys((called(n), _last(place, n)) for n in calls if called(n) in _RANKS)
    if not found:
        return ""
    (ranks, last), *others = found
    nor = "".join(f"; nor in `{name}`: `values.masked_fill(~{mask}, {sign})`" for name, sign in others)
    return (
        f"; the rows of zeros must not take part in `{ranks}`: where it goes over them, it is given "
        f"`values.masked_fill(~{mask}, {last})`, with the mask along that dimension{nor}"
    )


def _last(place: Place, call: ast.Call) -> str:
    """What comes behind all others in an order: the largest, or the least where the largest come first."""
    least, most = 'float("inf")', '-float("inf")'
    of_torch = isinstance(call.func, ast.Attribute) and path_of(call.func.value) in ("torch", "th")
    option, at, falls = _TURNED.get(called(call), ("", 0, called(call) not in _OF_THE_LEAST))
    given = {each.arg: each.value for each in call.keywords if each.arg}
    value = given.get(option) or next(iter(call.args[at + of_torch :][:1]), None) if option else None
    if value is None:
        return most if falls else least
    if not isinstance(value, ast.Constant):
        text = place.text(value)
        return f"{most} if {text} else {least}"  # both options are true where the largest come first
    return most if value.value else least
