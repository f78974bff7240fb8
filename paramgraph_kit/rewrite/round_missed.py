"""What rounds that were cut out do not have: problems of loops of which none was, told by hand beside them."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from typing import Any

from paramgraph_kit.rewrite import by_hand
from paramgraph_kit.rewrite.around.later import reached
from paramgraph_kit.rewrite.loops.one_round import Loop, loops_around
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.rewrite.source.edits import Function, Source, names_in
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import called
from paramgraph_kit.rewrite.ways import Ways
from paramgraph_kit.trace.model import Failure

OF_ROUNDS = ("copy-to-gpu", "blocking-copy", "optimizer-not-capturable")  # a loop that has these is one to cut


def tell_missed(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], failures: Sequence[Failure], fix: Rewriting
) -> list[Failure]:
    """Those of a loop that goes on as it was, put into what is left of ``fix``, with what to write there."""
    try:
        whole = Ways(function, args, kwargs)
        left = _missed(whole, failures, fix)
        fix.left, told = [*fix.left, *left], by_hand.lines(whole, left, known=failures)
        if sized := _sized(whole, failures, fix):
            moves = f"what is picked before it decides the size of `{'`, `'.join(sized)}`"
            fix.verified = [
                *fix.verified,
                f"{moves}, also where these trials had one: each size has a graph of its own",
            ]
    except Exception:  # an object of the user's may raise whatever it likes where it is looked at
        return []
    fix.instead = [*fix.instead, *told]
    return left


def _sized(whole: Ways, failures: Sequence[Failure], fix: Rewriting) -> list[str]:
    """What a part is given that is as long as what the device has counted before it."""
    calls = [n for line in fix.loop for n in ast.walk(ast.parse(line)) if isinstance(n, ast.Call)]
    given, found = {name for call in calls for each in call.args for name in names_in(each)}, set[str]()
    for failure in failures:
        place = whole.place(failure) if failure.code == "dynamic-shape" else None
        function = place[0].function_of(place[1]) if place is not None else None
        if place is None or function is None or place[1] not in function.body:
            continue
        end = min((n for n in _lines_with(place[0], {fix.alone}, fix) if n > place[1].lineno), default=0)
        grown = stored([place[1]])
        for node in (n for n in function.body if place[1].lineno < n.lineno < end):
            grown |= stored([node]) if names_in(node) & grown else set()
        found |= grown if end else set()
    return sorted(found & given)


def _missed(whole: Ways, failures: Sequence[Failure], fix: Rewriting) -> list[Failure]:
    names = {fix.alone, *(each.alone for each in fix.more)}
    at = whole._definition(cells=True)
    loops = dict[int, tuple[Source, Loop, list[Failure]]]()
    for failure in failures:
        place = whole.place(failure)
        if place is None:
            continue
        helper = place[0].function_of(place[1])
        if helper is None and at is not None and at[0] is place[0]:
            helper = at[1]  # of a cell
        if helper is None:
            continue
        for loop in loops_around(place[0], helper, [place[1]])[:1]:
            loops.setdefault(id(loop), (place[0], loop, []))[2].append(failure)
    return [
        failure
        for source, loop, found in loops.values()
        if any(each.code in OF_ROUNDS for each in found) and not _has_round(whole, source, loop, names, fix)
        for failure in found
    ]


def _has_round(whole: Ways, source: Source, loop: Loop, names: set[str], fix: Rewriting) -> bool:
    """Whether a loop calls a round, or a function that does, or is in a loop whose rounds these are."""
    calls = reached(whole.sources.values(), {called(part) for part in ast.walk(loop) if isinstance(part, ast.Call)})
    around = {loop, *source.above(loop)}
    for each in {id(one): one for one in (source, *whole.sources.values())}.values():
        for line in _lines_with(each, names, fix):
            holding = [n for n in ast.walk(each.tree) if isinstance(n, ast.stmt) and _holds(n, line)]
            loops = [n for n in holding if isinstance(n, Loop)]
            if any(isinstance(n, Function) and n.name in calls for n in holding):
                return True
            if loops and max(loops, key=lambda n: n.lineno) in around:
                return True
    return False


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno < line <= (node.end_lineno or node.lineno)


def _lines_with(source: Source, names: set[str], fix: Rewriting) -> list[int]:
    """The lines of a file in whose place a round is called."""
    new = fix.texts.get(source.file, source.lines)
    return [
        at + 1
        for _, begin, end, first, last in difflib.SequenceMatcher(None, source.lines, new, False).get_opcodes()
        if any(f"{name}(" in line and not line.startswith("def ") for line in new[first:last] for name in names)
        for at in range(begin, max(begin + 1, end))
    ]
