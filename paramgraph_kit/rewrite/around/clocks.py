"""A stopwatch around a step is held around its launch: in a graph only the capture would be timed.

What starts it, at the beginning of the function, goes before the launch, and what stops it and keeps the time goes
behind it. Only one stopwatch around the whole step is taken; times of its parts are not those of a graph's parts.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from paramgraph_kit.rewrite.source.clock import CLOCKS
from paramgraph_kit.rewrite.source.edits import Function, Source, is_text, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import body_of, is_closed, stored
from paramgraph_kit.trace.model import Failure


@dataclass(slots=True)
class Stopwatch:
    """The statements that start and stop it, and the variables that both need."""

    starts: list[ast.stmt] = field(default_factory=list)
    stops: list[ast.stmt] = field(default_factory=list)
    names: set[str] = field(default_factory=set)


def stopwatch(source: Source, function: Function, hosts: Collection[ast.stmt] = ()) -> Stopwatch | None:
    """The stopwatch around a step, if that is all the clock that it asks; ``hosts`` is what the host does of it."""
    order = [n for n in body_of(function) if not is_text(n) and not isinstance(n, (ast.Global, ast.Nonlocal))]
    found = Stopwatch()
    asking = {f.name for f in ast.walk(source.tree) if isinstance(f, Function) and _only_asks(f)}
    lasting = _lasting(source, function)
    for node in order:
        if _is_wait(node) or _is_record(node, found.names | lasting):
            found.starts.append(node)
        elif isinstance(node, ast.Assign) and _is_clock(node.value, asking):
            found.starts.append(node)
            found.names |= stored([node])
        else:
            break
    outer = {
        n.id
        for part in source.tree.body
        if not isinstance(part, Function)
        for n in within(part)
        if isinstance(n, ast.Name)
    }
    starting = any(_is_record(node, lasting) for node in found.starts)
    if not (found.names or starting) or found.names & outer:
        return None
    rest, known = order[len(found.starts) :], found.names | (lasting if starting else set())
    if any(isinstance(part, ast.Return) for node in rest[:-1] for part in within(node)):
        return None
    for node in rest:
        reads = bool(names_in(node) & known)
        if isinstance(node, ast.Return):
            if reads or node is not rest[-1]:
                return None
        elif reads or (found.stops and _is_wait(node)):
            found.stops.append(node)
            known |= stored([node])
        elif (
            found.stops and isinstance(node, ast.AugAssign) and not any(isinstance(n, ast.Call) for n in ast.walk(node))
        ):
            continue  # a count
        elif found.stops and node in hosts and not any(_asks(n, asking) for n in ast.walk(node)):
            continue  # `host_out.copy_(out)`, which no graph holds, whenever it is timed
        elif found.stops or any(_asks(n, asking) for n in ast.walk(node)):
            return None  # work behind the time, or a time of a part
    waits = rest[: rest.index(found.stops[0])] if found.stops else []
    while waits and _is_wait(waits[-1]):
        found.stops.insert(0, waits.pop())
    closed = all(isinstance(n, (ast.Assign, ast.AugAssign, ast.Expr)) and is_closed(n) for n in found.stops)
    return found if found.stops and closed else None


def _lasting(source: Source, function: Function) -> set[str]:
    """The events of the file between which a function takes the time, where nothing else records them."""
    calls = [n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    timed = set[str]()
    inside = {n for part in function.body for n in within(part)}
    for call in (n for n in calls if n in inside and path_of(n.func).endswith(".elapsed_time") and len(n.args) == 1):
        timed |= {path_of(call.func).rpartition(".")[0], path_of(call.args[0])}
    records = [n for n in calls if path_of(n.func).endswith(".record")]
    own = {path_of(n.func).rpartition(".")[0] for n in records if n in inside}
    other = {path_of(n.func).rpartition(".")[0] for n in records if n not in inside}
    made = stored(source.tree.body) - stored(function.body)
    return (timed & own & made) - other if timed <= own else set()


def asks_a_clock(source: Source, statement: ast.stmt) -> bool:
    """Whether a statement reads the time, which is another one wherever else it is done."""
    asking = {f.name for f in ast.walk(source.tree) if isinstance(f, Function) and _only_asks(f)}
    return any(_asks(node, asking) for node in ast.walk(statement))


def _asks(node: ast.AST, asking: set[str]) -> bool:
    if not isinstance(node, ast.Call):
        return False
    path = path_of(node.func)
    last = path.rpartition(".")[2]
    return (
        path in asking or last == "Event" or (last in CLOCKS and (path.startswith("time.") or path == last != "time"))
    )


def _is_clock(node: ast.expr, asking: set[str]) -> bool:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return all(_asks(part, asking) for part in parts)


def _is_wait(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and path_of(call.func).rpartition(".")[2] == "synchronize"


def _is_record(node: ast.stmt, names: set[str]) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    owner, _, last = path_of(call.func).rpartition(".") if isinstance(call, ast.Call) else ("", "", "")
    return last == "record" and owner in names


def _only_asks(function: Function) -> bool:
    """Whether a function does nothing but wait and tell the time."""
    *before, last = function.body
    if not isinstance(last, ast.Return) or last.value is None or not all(_is_wait(n) or is_text(n) for n in before):
        return False
    return _asks(last.value, set())


def only_called_from(source: Source, name: str, statements: Sequence[ast.stmt]) -> bool:
    """Whether a function is called in some statements, and nowhere else in its file."""
    inside = {n for each in statements for n in within(each)}
    calls = [n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and path_of(n.func) == name]
    return bool(calls) and all(call in inside for call in calls)


def is_timing(
    source: Source, failure: Failure, place: tuple[Source, ast.stmt] | None, statements: Sequence[ast.stmt]
) -> bool:
    """Whether something was found in what only a stopwatch calls, or in one of its statements."""
    if place is not None and place[1] in statements:
        return True
    return only_called_from(source, failure.frame.function if failure.frame is not None else "", statements)
