"""Advice for a helper that the host alone runs, and that gives a number: ``n = int(pacing.step() * len(x))``."""

from __future__ import annotations

import ast
from types import FunctionType

from paramgraph_kit.rewrite.source.edits import Function, heads, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called, fresh
from paramgraph_kit.rewrite.source.reached_as import class_of

_CODES = ("branch-frozen", "host-counter")
_HOST = frozenset("min max int float bool round abs len pow sum".split())  # noqa: SIM905
_DEEP = 6  # functions that call one another
_MODULES = ("math", "random", "np", "numpy", "time")


def run_ahead(place: Place) -> str:
    """Where such a helper runs: ahead of each launch, all of it, with the line that asks for its number."""
    helper = place.source.function_of(place.statement)
    if place.failure.code == "scalar-frozen":
        return _read_there(place)
    if place.failure.code not in _CODES or helper is None or not _gives(helper):
        return ""
    kind = class_of(place.source.tree, helper)
    if helper.name == place.entry and not (kind and isinstance(place.space.get(place.entry), FunctionType)):
        return ""
    every = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Call) and called(n) == helper.name]
    calls = [n for n in every if _may_call(place, n, kind)]
    if len(calls) != 1 or not _is_given_numbers(calls[0]) or not all(map(_is_of_the_host, helper.body)):
        return ""
    call = calls[0]
    above = [*place.source.above(call)]
    statement = next((n for n in above if isinstance(n, ast.stmt)), None)
    times = rounds_of(place, call)
    if statement is None or isinstance(statement, ast.Expr) or times == 0:
        return ""
    text = place.text(call)
    often = "once" if times == 1 else f"{times} times"
    one = "from a tensor" if times == 1 else f"from {times} tensors, one after the other"
    return (
        f"stays as it is: `{text}` (line {call.lineno}) runs it, which belongs before each launch with all that it "
        f"does: {often} there, and what it gives is what line {statement.lineno} reads {one}"
    )


def _read_there(place: Place) -> str:
    """The line that asks for such a number several times in one launch: a tensor for each of these."""
    calls = [n for n in heads(place.statement) if isinstance(n, ast.Call) and _is_given_numbers(n)]
    helpers = [(call, _helper_of(place, call)) for call in calls]
    found = [(call, each) for call, each in helpers if each is not None and _gives(each) and _counts(each)]
    if len(found) != 1 or not all(map(_is_of_the_host, found[0][1].body)) or (n := rounds_of(place, found[0][0])) < 2:
        return ""
    text, name = place.text(found[0][0]), fresh(f"{called(found[0][0])}_in", place.taken)
    made = f"[torch.zeros((), device={place.device}) for _ in range({n})]"
    return (
        f"`{text}` gives {n} numbers in one launch: once `{name} = {made}`, and with `import itertools` "
        f"`{name}_next = itertools.cycle({name})` ahead of what first runs this; before each launch "
        f"`for each in {name}: each.fill_({text})`, and here `next({name}_next)` for `{text}`"
    )


def _helper_of(place: Place, call: ast.Call) -> Function | None:
    every = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.FunctionDef) and n.name == called(call)]
    own = [n for n in every if _may_call(place, call, class_of(place.source.tree, n))]
    return own[0] if len(own) == 1 else None


def _counts(helper: Function) -> bool:
    """Whether a call leaves another number: what computes alone may be asked as often as one likes."""
    return any(isinstance(n, ast.AugAssign) for part in helper.body for n in within(part))


def rounds_of(place: Place, call: ast.Call) -> int:
    """How often a call runs in one launch, as far as loops over a known range tell; 0 where they do not."""
    times, function, node = 1, place.source.function_of(call), call
    for _ in range(_DEEP):
        for loop in (n for n in place.source.above(node) if isinstance(n, (ast.For, ast.While, ast.comprehension))):
            over = loop.iter if isinstance(loop, ast.For) else None
            if not isinstance(over, ast.Call) or called(over) != "range" or len(over.args) != 1:
                return 0
            end = over.args[0]
            number = end.value if isinstance(end, ast.Constant) else place.value(path_of(end)) if path_of(end) else None
            if type(number) is not int:
                return 0
            times *= number
        if function is None or function.name == place.entry:
            return times
        sites = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Call) and called(n) == function.name]
        inner = [n for n in sites if place.source.function_of(n) is not None]
        if len(inner) != 1:
            return times if times == 1 and not inner else 0
        node, function = inner[0], place.source.function_of(inner[0])
    return 0


def _gives(helper: Function) -> bool:
    inside = [n for part in helper.body for n in within(part)]
    return any(isinstance(n, ast.Return) and n.value is not None for n in inside)


def _may_call(place: Place, call: ast.Call, kind: str) -> bool:
    """Whether a call may be one of a helper, as far as it is known whose method it calls: ``opt.step()`` is torch's."""
    if not kind or not isinstance(call.func, ast.Attribute):
        return isinstance(call.func, ast.Name) is not bool(kind)
    owner = place.value(path_of(call.func.value))
    return owner is None or any(each.__name__ == kind for each in type(owner).__mro__)


def _is_given_numbers(call: ast.Call) -> bool:
    """Whether a call is given nothing of the device's: numbers that are written out, and a method's own object."""
    return all(isinstance(n, ast.Constant) for n in (*call.args, *(each.value for each in call.keywords)))


def _is_of_the_host(part: ast.stmt) -> bool:
    """Whether a statement computes with numbers of Python's alone, as far as its calls tell."""
    calls = [n for n in ast.walk(part) if isinstance(n, ast.Call)]
    known = (path_of(n.func) in _HOST or path_of(n.func).partition(".")[0] in _MODULES for n in calls)
    return all(known) and not names_in(part) & {"torch", "F", "nn"}
