"""Advice for a helper that returns early as the host draws it: ``if random() < p: return mixed``, ``return plain``.

What calls it goes on with either, so that nothing can be launched "where it has not returned".
"""

from __future__ import annotations

import ast
from copy import deepcopy

from paramgraph_kit.rewrite.source.edits import Function, names_in, path_of, within
from paramgraph_kit.rewrite.source.hosts import draws
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh

_ROUNDS = (ast.For, ast.While, ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)


def a_graph_for_its_answers(place: Place, node: ast.stmt) -> str:
    """How each way of a helper has a graph of the step that calls it."""
    function = place.source.function_of(node)
    if function is None or not is_left_by_draws(place, node) or not isinstance(node, ast.If):
        return ""
    name, flag, test = function.name, fresh("drawn", place.taken), place.text(node.test)
    begins = (
        f"the host draws which way `{name}` goes on, and each is a graph of its own: give `{name}` one more argument, "
        f"`{flag}`, a bool, and write `if {flag}:` here; "
    )
    calls = _calls_in_the_step(place, name)
    asked = [_asked_by(place, function, node.test, call) for call in calls]
    if not calls or not all(asked):
        return (
            f"{begins}before each launch draw `bool({test})` once for each call of it, in their order, with what it "
            "comes of, hand these down to the calls, and launch the graph of these answers, captured when they first "
            "come"
        )
    flags = [flag] if len(calls) == 1 else [f"{flag}_{number + 1}" for number in range(len(calls))]
    lines = " and ".join(f"`{one}` at line {call.lineno}" for one, call in zip(flags, calls, strict=True))
    found = " and then ".join(f"`{one} = bool({text})`" for one, text in zip(flags, asked, strict=True))
    has = "it as an argument" if len(calls) == 1 else "one for each call as arguments"
    graphs = f"`graphs[{', '.join(flags)}]`, a graph for each of their answers, captured when it first comes"
    return f"{begins}`{place.entry}` has {has} and hands on {lines}; before each launch {found}, and launch {graphs}"


def is_left_by_draws(place: Place, node: ast.stmt) -> bool:
    """Whether a branch of a helper returns early, as the host draws it, to what goes on with what it returns."""
    if not place.helper or not isinstance(node, ast.If) or not draws(node.test):
        return False
    if not any(isinstance(n, ast.Return) and n.value is not None for part in node.body for n in within(part)):
        return False
    return not _is_handed_on(place, place.helper)


def _is_handed_on(place: Place, name: str) -> bool:
    """Whether all that a step does is to return what a helper returns."""
    entry = _entry(place, name)
    own = (
        [n for n in entry.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))] if entry else []
    )
    only = own[0].value if len(own) == 1 and isinstance(own[0], ast.Return) else None
    return isinstance(only, ast.Call) and called(only) == name


def _entry(place: Place, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The step that calls a helper: of several of its name, as methods are, the one that does."""
    found = [n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n.name == place.entry]
    found = [n for n in found if any(isinstance(c, ast.Call) and called(c) == name for c in ast.walk(n))]
    return found[0] if len(found) == 1 else None


def _calls_in_the_step(place: Place, name: str) -> list[ast.Call]:
    """The calls of a helper, where all are in the step itself, and none in a round or a branch of it."""
    entry = _entry(place, name)
    inside = [n for part in entry.body for n in ast.walk(part)] if entry is not None else []
    calls = [n for n in inside if isinstance(n, ast.Call) and called(n) == name]
    for call in calls:
        above = place.source.parents.get(call)
        while above is not None and above is not entry:
            if isinstance(above, (*_ROUNDS, ast.If, ast.IfExp, ast.Lambda)):
                return []
            above = place.source.parents.get(above)
    return sorted(calls, key=lambda call: (call.lineno, call.col_offset))


def _asked_by(place: Place, function: ast.stmt, test: ast.expr, call: ast.Call) -> str:
    """What a branch asks, in the names of one of the calls; "" where the helper or the step makes them first."""
    entry = _entry(place, called(call))
    if not isinstance(function, Function) or entry is None or any(isinstance(n, ast.Starred) for n in call.args):
        return ""
    names = arguments_of(function)
    given = dict[str, ast.expr]()
    if names[:1] == ["self"] and isinstance(call.func, ast.Attribute):
        names, given = names[1:], {"self": call.func.value}
    given |= dict(zip(names, call.args, strict=False)) | {o.arg: o.value for o in call.keywords if o.arg}
    defaults = function.args.defaults
    given = dict(zip(names[len(names) - len(defaults) :], defaults, strict=False)) | given
    read = place.local(test)
    made = stored([n for part in function.body for n in within(part) if isinstance(n, ast.stmt)])
    if not read <= given.keys() or read & made:
        return ""
    own = stored([n for part in entry.body for n in within(part) if isinstance(n, ast.stmt)])
    if any(names_in(given[name]) & own for name in read):
        return ""
    text = ast.unparse(_Given({name: given[name] for name in read}).visit(deepcopy(test)))
    return text if path_of(call.func) else ""


class _Given(ast.NodeTransformer):
    """Puts what a call gives in the place of a function's arguments."""

    def __init__(self, given: dict[str, ast.expr]) -> None:
        self.given = given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return deepcopy(self.given.get(node.id, node))
