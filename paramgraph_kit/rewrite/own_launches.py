"""What is captured by a program itself, which replays it as it is: nothing of Python's is done again at a replay.

A rewriting is tried with this package's launcher, which also puts gradients back to what the capture left. A plain
``graph.replay()`` does not.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType
from typing import TYPE_CHECKING

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, here, last_name
from paramgraph_kit.doctor.observe.around_replays import keeps
from paramgraph_kit.rewrite.source.more_of_a_net import APART

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paramgraph_kit.rewrite.result import Rewriting

_WAYS, _PLAIN = 3, ("torch", "F", "math")
THIN = 1 / 8  # of a step's operations
_replayed = ContextVar("replayed", default=False)


@contextmanager
def replayed_as_it_is(*, learns_apart: bool = False) -> Iterator[None]:
    """While this lasts what is rewritten is launched by a program's own replays.

    ``learns_apart``: an optimizer that nobody sees here takes its gradients, as behind ``make_graphed_callables``.
    """
    token, apart = _replayed.set(True), APART.set(learns_apart)
    try:
        yield
    finally:
        _replayed.reset(token)
        APART.reset(apart)


def is_replayed_as_it_is() -> bool:
    """Whether what is rewritten is launched by a program's own replays."""
    return _replayed.get()


def is_thin(found: Rewriting) -> bool:
    """Whether a graph has next to nothing of a step."""
    inside, behind = found.worth.inside, found.worth.behind
    return inside < THIN * (inside + behind)


def is_wrong_there(found: Rewriting, ran: Iterable[CodeType]) -> bool:
    """Whether a whole rewriting is none for a program's own replays: next to nothing, or a frozen zero, is captured."""
    if APART.get() and _leaves_out(found):
        return True
    return _replayed.get() and (is_thin(found) or _keeps_zeros(found, {code.co_name for code in ran}))


def _leaves_out(found: Rewriting) -> bool:
    """Whether a layer that was left out is computed and not taken: it has gradients of zeros then, where it had none.

    An optimizer with a decay, or with moments, moves it on.
    """
    texts = {file: "".join(line.rstrip("\n") + "\n" for line in lines) for file, lines in found.texts.items()}
    return any(_chosen(text) > _chosen("".join(linecache.getlines(file))) for file, text in texts.items())


def _chosen(text: str) -> int:
    """How often ``torch.where`` chooses between a name and what a function of the user's gives."""
    calls = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and len(n.args) == _WAYS]
    wheres = [n.args[1:] for n in calls if last_name(n.func) == "where"]
    wheres = [ways for ways in wheres if any(isinstance(each, ast.Name) for each in ways)]
    given = [[n for each in ways for n in ast.walk(each) if isinstance(n, ast.Call)] for ways in wheres]
    return sum(any(ast.unparse(c.func).split(".")[0] not in _PLAIN for c in each) for each in given)


def _keeps_zeros(found: Rewriting, ran: set[str]) -> bool:
    """Whether gradients are set to None in the capture, once, and made behind each replay."""
    trees = [ast.parse("\n".join(line.rstrip("\n") for line in lines)) for lines in found.texts.values()]
    functions = [n for tree in trees for n in ast.walk(tree) if isinstance(n, FUNCTIONS[:2])]
    behind = [f for f in functions if f.name.startswith("after_")]
    captured = [f for f in functions if f.name in ran and f not in behind]
    makes = any(last_name(call.func) == "backward" for f in behind for call in _calls(f))
    return makes and any(last_name(c.func) == "zero_grad" and not keeps(c) for f in captured for c in _calls(f))


def _calls(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.Call]:
    """The calls in a function, and in none that is defined in it."""
    nodes = (n for part in function.body for n in here(part, FUNCTIONS[:2]))
    return (n for n in nodes if isinstance(n, ast.Call))
