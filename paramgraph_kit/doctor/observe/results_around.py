"""Results of a step alone that lines around it go on reading behind a further call, as failures."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.calls_around import CallsAround
from paramgraph_kit.doctor.observe.copied_names import with_copies
from paramgraph_kit.doctor.observe.held_around import HeldAround
from paramgraph_kit.doctor.observe.parts_of_results import Holds
from paramgraph_kit.doctor.observe.steps_around import StepsAround
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure, Frame


def held_around(
    said: str,
    around: StepsAround,
    function: Callable[..., Any],
    own: Iterable[CodeType],
    result: Any,
    holds: Holds,
    told: Collection[Frame],
    *,
    by_key: bool,
) -> Iterator[Failure]:
    """The lines around a step that hold what it returns over a further call, and read it behind that.

    Args:
        said: what is told of them.
        around: the code around it, and calls of it that their names alone do not tell.
        function: what is called.
        own: the functions that it runs.
        result: one of its results.
        holds: whether a replay writes to a part of it.
        told: lines that are told already.
        by_key: whether it may have a graph for each of several keys: results of as many are not the same memory.
    """
    calls = CallsAround(around.scopes, function, own, result, holds, around.calls, by_key=by_key)
    lines = {(frame.file, frame.line) for frame in told}
    for scope in calls.scopes:
        for line, copies in HeldAround(calls, scope, holds).lines():
            node = _shown(line, [*copies])
            at: Any = (display_name(scope.file), node.lineno)
            if at in lines:
                continue
            lines.add(at)
            text, name = linecache.getline(scope.file, at[1]).strip(), getattr(scope.body, "name", "<module>")
            before, after = with_copies(node, copies)
            failure = BY_ID["output-alias"].failure(said, Frame(at[0], at[1], name, text))
            yield replace(failure, fix=f"before  {before}\nafter   {after}")


def _shown(line: ast.AST, parts: list[ast.expr]) -> Any:
    """A line as it is shown: of a loop, or a condition, what it asks for alone."""
    if not hasattr(line, "body") or isinstance(line, ast.expr):
        return line
    heads = [n for n in ast.iter_child_nodes(line) if isinstance(n, (ast.expr, ast.withitem))]
    whole = [each for each in heads if any(n is parts[0] for n in ast.walk(each))]
    return (whole[0].context_expr if isinstance(whole[0], ast.withitem) else whole[0]) if whole else line
