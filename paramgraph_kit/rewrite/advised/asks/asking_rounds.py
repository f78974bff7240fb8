"""Advice for loops in which the host asks in each round: one round is what can be captured, with its numbers given."""

from __future__ import annotations

import ast
from collections.abc import Callable

import torch

from paramgraph_kit.rewrite.advised.sizes.rounds_given import OF_ROUNDS
from paramgraph_kit.rewrite.source.edits import (
    COMPOUND,
    Function,
    about_gradients,
    assigned,
    heads,
    names_in,
    path_of,
    within,
)
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import TO_HOST, Place, called, fresh
from paramgraph_kit.rewrite.source.pure import candidates

_HOSTS = frozenset(
    """min max len int float abs round range zip enumerate print isinstance list tuple dict sorted reversed sum random
    np numpy time math""".split()  # noqa: SIM905 - shorter so
)
_OF_LISTS = ("append", "pop", "popleft", "get", "items", "keys", "values")


def one_round(place: Place) -> str:
    """A loop in which the host asks for what modules compute: a round of it is what can be captured."""
    loops = [each for each in place.loops() if each is not place.statement] or place.loops()
    # What the inner one asks about may come of a module in a round of one around it.
    told = next((told for loop in loops if (told := _round_of(place, loop, _is_module))), "")
    return told or (_round_of(place, loops[0], _may_compute) if loops and begins_with_it(place, loops[-1]) else "")


def begins_with_it(place: Place, loop: ast.For | ast.While) -> bool:
    """Whether nothing is computed ahead of a loop: a capture that ends there would hold nothing."""
    function = place.source.function_of(loop)
    ahead = [part for part in (function.body if function is not None else ()) if part.lineno < loop.lineno]
    plain = all(not isinstance(n, ast.BinOp | ast.Call) or _is_host(n) for part in ahead for n in within(part))
    return loop in (function.body if function is not None else ()) and plain


def _may_compute(place: Place, call: ast.Call) -> bool:
    """Whether a call may be of what computes on the device: one that gives what the statement asks about."""
    return not _is_host(call)


def _is_host(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.BinOp) and not any(isinstance(n, ast.Call) for n in ast.walk(node))
    root, _, name = path_of(node.func).partition(".")
    return root in _HOSTS or (bool(name) and called(node) in _OF_LISTS)


def _round_of(place: Place, loop: ast.For | ast.While, computes: Callable[[Place, ast.Call], bool]) -> str:
    before = [part for part in loop.body if part.lineno < place.statement.lineno and not isinstance(part, COMPOUND)]
    made = [part for part in before if any(computes(place, n) for n in _calls_in(part))]
    if not made:
        return ""
    parts = before[before.index(made[0]) :]
    asking = [k for k, part in enumerate(parts) if any(called(n) in TO_HOST for n in _calls_in(part))]
    parts = parts[: asking[0]] if asking and asking[0] else parts
    stores, reads = set[str](), set[str]()
    for part in parts:
        loads = {n.id for n in ast.walk(part) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        reads |= {name for name in loads - stores if place.is_local(name)}
        stores |= {n.id for n in ast.walk(part) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    later = [n for n in ast.walk(loop) if isinstance(n, ast.Name) and n.lineno > parts[-1].lineno]
    gives = sorted(stores & ({n.id for n in later} | reads))  # also what the next round reads
    lines = f"lines {parts[0].lineno} to {parts[-1].lineno}" if len(parts) > 1 else f"line {parts[0].lineno}"
    function, results = place.source.function_of(loop), ", ".join(gives)
    if function is None or any(called(n) == "backward" for part in parts for n in _calls_in(part)):
        return ""
    written = (n for part in parts for n in ast.walk(part) if isinstance(n, ast.Subscript))
    if not gives and not any(isinstance(n.ctx, ast.Store) for n in written):  # it writes into what it is given
        return ""
    calls = [n for part in parts for n in _calls_in(part) if computes(place, n)]
    bound = sorted(reads & ({place.text(n.func).partition(".")[0] for n in calls} | {"self"}))
    moved, name = sorted(reads - {*bound}), fresh(f"{function.name}_round", names_in(place.source.tree))
    around = next((text for n in function.decorator_list if about_gradients(text := place.text(n))), "")
    under = f" under `@{around}`" if around else ""
    step = f"functools.partial({', '.join([name, *bound])})" if bound else name
    numbers = sorted(reads & counted_by(loop))
    in_tensors = {n: f"torch.full((), {n}, device={place.device})" for n in numbers}
    return (
        f"what a round computes, {lines}, is a function of its own that is launched in the loop: `def {name}("
        f"{', '.join([*bound, *moved])}):`{under}, with these lines{f' and `return {results}`' * bool(gives)}; once "
        f"`run = pgk.parameterize({step})`, which captures a graph for each size that comes; and in their place "
        f"`{f'{results} = ' * bool(gives)}run({', '.join(in_tensors.get(n, n) for n in moved)})`: the host asks behind "
        "it, as it does now"
    )


def counted_by(loop: ast.For | ast.While) -> set[str]:
    """Numbers that a loop goes through, or that it compares and moves: ``while t < end: h = min(h, end - t)``."""
    if isinstance(loop, ast.For):
        plain = isinstance(loop.iter, ast.Call) and called(loop.iter) == "range"
        return (stored([loop.target]) if plain else set()) | _bounded_in(loop)
    return (names_in(loop.test) & stored(loop.body)) | _bounded_in(loop)


def _bounded_in(loop: ast.For | ast.While) -> set[str]:
    """Names that ``min`` or ``max`` of Python's give a number."""
    pairs = [pair for part in loop.body for n in within(part) for pair in assigned(n)]
    calls = [(t.id, n) for t, v in pairs if isinstance(t, ast.Name) for n in [v] if isinstance(n, ast.Call)]
    return {name for name, call in calls if isinstance(call.func, ast.Name) and call.func.id in ("min", "max")}


def _calls_in(node: ast.AST) -> list[ast.Call]:
    return [n for n in ast.walk(node) if isinstance(n, ast.Call)]


def _is_module(place: Place, call: ast.Call) -> bool:
    every = candidates(place, call.func)
    owners = [getattr(each, "__self__", None) for each in every]
    return any(isinstance(each, torch.nn.Module) for each in (*every, *owners))


def given_in_rounds(place: Place) -> str:
    """``mul got h`` in what a round calls, where the host moves ``h`` by what it has read: the round is given it."""
    entry = next((n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n.name == place.entry), None)
    if place.failure.code != "scalar-frozen" or entry is None:
        return ""
    loop = next(filter(lambda each: _leads_to(place, each), reversed(_asking(entry))), None)
    names = sorted(counted_by(loop) & _given_to_calls(loop)) if loop is not None else []
    if loop is None or not names:
        return ""
    made = ", ".join(f"`{name}_in = torch.full((), {name}, device={place.device})`" for name in names)
    given = " and ".join(f"`{name}_in` for `{name}`" for name in names)
    fills = [n for n in heads(place.statement) if isinstance(n, ast.Call) and path_of(n.func) == "torch.full_like"]
    here = "this line stays as it is"
    if fills and len(fills[0].args) == 2 and not fills[0].keywords:
        like, value = map(place.text, fills[0].args)
        here = f"here `torch.empty_like({like}).copy_({value})` for `{place.text(fills[0])}`"
    return (
        f"one round of the loop of line {loop.lineno} {OF_ROUNDS}; it is given "
        f"{given}, with {made} ahead of it, and {here}"
    )


def _asking(entry: Function) -> list[ast.For | ast.While]:
    """The loops of a function in which something is read of the device, the inner ones last."""
    loops = [n for part in entry.body for n in within(part) if isinstance(n, (ast.For, ast.While))]
    return [n for n in loops if any(called(c) in TO_HOST for part in n.body for c in _calls_in(part))]


def _leads_to(place: Place, loop: ast.For | ast.While) -> bool:
    """Whether a round has the statement, or calls what it is in: by its name, or an object with a ``forward``."""
    function = place.source.function_of(place.statement)
    every = {n.name: n for n in ast.walk(place.source.tree) if isinstance(n, Function)}
    todo, seen = {called(n) for part in loop.body for n in _calls_in(part)}, set[str]()
    while todo - seen:
        name = (todo - seen).pop()
        seen.add(name)
        todo |= {called(n) for n in _calls_in(every[name])} if name in every else {"forward", "__call__"}
    inside = {n for part in loop.body for n in ast.walk(part)}
    return place.statement in inside or (function is not None and function.name in seen and function.name in every)


def _given_to_calls(loop: ast.For | ast.While) -> set[str]:
    """Names that a round gives to what may compute, or computes with."""
    calls = [n for part in loop.body for n in _calls_in(part) if not _is_host(n)]
    return {name for call in calls for each in call.args for name in names_in(each)}
