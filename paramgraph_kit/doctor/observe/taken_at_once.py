"""Containers that a step fills and that each round around it empties, ahead of the next replay: nothing is kept there.

``step(x)`` puts a result into a queue, and ``out.get().tolist()`` behind it in the same round takes it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, LOOPS, here, last_name, nodes_of
from paramgraph_kit.doctor.observe.gradients import Scope, Search
from paramgraph_kit.doctor.observe.kept import kept
from paramgraph_kit.doctor.observe.loop_names import functions_in
from paramgraph_kit.doctor.observe.named_lists import TAKES
from paramgraph_kit.doctor.observe.parts_of_results import Holds
from paramgraph_kit.doctor.observe.steps_around import StepsAround
from paramgraph_kit.doctor.restore.holder import Change
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure

_PUTS = ("append", "appendleft", "put", "put_nowait")
_COPIES = ("clone", "item", "tolist", "cpu", "numpy", "deepcopy")
_ASKS = ("empty", "qsize", "len")


def without_taken(
    told: list[Failure],
    around: StepsAround,
    function: Callable[..., Any],
    own: Collection[CodeType],
    changes: Iterable[Change],
    holds: Holds,
) -> list[Failure]:
    """The same without lines that put a result where each round around the step takes it at once.

    Args:
        told: what is told so far.
        around: the code around the step, and calls of it that their names alone do not tell.
        function: the step.
        own: the functions that it runs.
        changes: what one call leaves otherwise.
        holds: whether a replay writes to a part of something.
    """
    filled = {c.name: [*c.after] for c in changes if c.kind == "container" and _is_row(c.after) and len(c.after)}
    kept_at = [f.frame for f in told if f.code == "output-alias" and f.frame is not None] if filled else []
    fine = set[tuple[str, int]]()
    for code in own if kept_at else ():
        nodes, file = [*nodes_of(code)], display_name(code.co_filename)
        lines = {frame.line for frame in kept_at if frame.file == file}
        puts = [n for n in nodes if isinstance(n, ast.Call) and last_name(n.func) in _PUTS and n.lineno in lines]
        loops = {id(inner) for n in nodes if isinstance(n, LOOPS) for inner in here(n)}
        for call in puts:
            name = last_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
            same = [n for n in puts if last_name(n.func.value) == name]  # type: ignore[attr-defined]
            once = len(same) == 1 and id(call) not in loops
            entry = next((each[-1] for n, each in filled.items() if n.rpartition(".")[2] == name), None)
            if name and entry is not None and _are_taken(name, around, function, entry, holds, once=once):
                fine.add((file, call.lineno))
    return [f for f in told if f.code != "output-alias" or f.frame is None or (f.frame.file, f.frame.line) not in fine]


def _is_row(value: Any) -> bool:
    return hasattr(value, "__len__") and hasattr(value, "__iter__") and not isinstance(value, (dict, set, str))


def _are_taken(
    name: str, around: StepsAround, function: Callable[..., Any], entry: Any, holds: Holds, *, once: bool
) -> bool:
    """Whether all loops that call the step take what it has put there, and no line keeps what they take."""
    takes, asked = list[ast.Call](), False
    for scope in around.scopes:
        search = Search(scope.names, function, set())
        every = [n for statement in scope.body.body for n in here(statement)]
        calls = [n for n in every if isinstance(n, ast.Call)]
        calls = [n for n in calls if search.calls(n) or any(n is each for each in around.calls)]
        for call in calls:
            asked = True
            loops = [n for n in every if isinstance(n, LOOPS) and any(call is inner for inner in here(n))]
            at = _statement_of(loops[-1].body, call) if loops else -1
            taken = [*_taken(name, loops[-1].body[at + 1 :], scope, once=once)] if at >= 0 else []
            if not taken:
                return False
            takes += [each for each in taken if each is not None]
    frames = kept(around.scopes, _nobody, (), entry, holds, takes) if asked else ()
    return asked and not frames


def _nobody() -> None:
    """Stands for a step that no line calls."""


def _statement_of(body: list[ast.stmt], call: ast.Call) -> int:
    """Which statement of a round calls the step itself; -1 where one of its branches, or of its inner loops, does."""
    plain = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign)
    return next((n for n, s in enumerate(body) if isinstance(s, plain) and any(call is x for x in here(s))), -1)


def _taken(name: str, body: list[ast.stmt], scope: Scope, *, once: bool) -> Iterator[ast.Call | None]:
    """The calls of a round's last statements that empty a container of this name; none where something may stay.

    None is that of a helper, which gives no memory of a graph's.
    """
    for statement in body:
        inside = [*here(statement)]
        whole = isinstance(statement, ast.While) and _asks(statement.test, name)
        if whole and not any(isinstance(n, (ast.Break, ast.Continue, ast.Return)) for n in inside):
            yield from (n for n in inside if isinstance(n, ast.Call) and _takes(n, name, TAKES))
        elif isinstance(statement, (ast.Expr, ast.Assign, ast.AnnAssign)):
            for call in (n for n in inside if isinstance(n, ast.Call)):
                if _takes(call, name, (*TAKES, "clear") if once else ("clear",)):
                    yield call
                elif once and any(_gives_a_copy(n, name) for n in _named(call, scope.file)):
                    yield None


def _asks(test: ast.expr, name: str) -> bool:
    """Whether a loop goes on until that is empty: ``while not out.empty():``, ``while waiting:``."""
    calls = [n for n in ast.walk(test) if isinstance(n, ast.Call)]
    known = all(last_name(n.func) in _ASKS for n in calls) and not isinstance(test, (ast.BoolOp, ast.Compare))
    return known and any(last_name(n) == name for n in ast.walk(test))


def _takes(node: ast.AST, name: str, by: Collection[str]) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in by
    return is_call and last_name(node.func.value) == name  # type: ignore[attr-defined]


def _named(call: ast.Call, file: str) -> list[Any]:
    """The one function of the file that a call may mean."""
    found = [n for n in functions_in(file) if n.name == last_name(call.func)]
    return found if len(found) == 1 else []


def _gives_a_copy(function: Any, name: str) -> bool:
    """Whether a helper takes one entry, and reads it where it stands: ``return self.out.get()[0].tolist()``."""
    statements = [s for s in function.body if isinstance(s, (ast.Return, ast.Expr, ast.Assign))]
    inside = [n for s in statements for n in here(s, FUNCTIONS)]
    takes = [n for n in inside if _takes(n, name, TAKES)]
    return len(takes) == 1 and _is_copied(takes[0], inside)


def _is_copied(node: ast.AST, nodes: list[ast.AST]) -> bool:
    above = {id(child): n for n in nodes for child in ast.iter_child_nodes(n)}
    while isinstance(parent := above.get(id(node)), (ast.Attribute, ast.Subscript, ast.Call)):
        if isinstance(parent, ast.Attribute) and parent.attr in _COPIES:
            return True
        node = parent
    return False
