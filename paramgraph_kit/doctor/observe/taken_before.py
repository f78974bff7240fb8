"""What only an earlier call did, as the device had it then: ``if spread < limit: resample()`` was true once."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.observe.effects import effect
from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.doctor.observe.places import Place, frame_of
from paramgraph_kit.doctor.observe.source_lines import entered_after, lines_of, written_at
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure, Frame

Lines = Collection[tuple[str, int]]  # a file and a line
_ASKED = ("sync-item", "copy-to-cpu", "data-dependent-branch")
_DRAWN = ("host-random", "branch-frozen", "size-frozen")


def problems(
    caller: Caller,
    calls: Iterable[Call],
    base: Call,
    seen: Iterable[Failure],
    codes_of: Callable[[Call], list[CodeType]],
    compare: Callable[[Call, Call], list[Failure]],
) -> list[Failure]:
    """Draws on the host, counts and logs of calls before ``base``, where a later one may do the same again."""
    told, more = {f.frame for f in (*base.found, *seen)}, list[Failure]()
    for call in calls:
        asked = lines_of(f for f in call.found if f.code in _ASKED)
        if not asked:
            continue
        codes = codes_of(call)
        asked |= {test for code in codes for test in _asks_for_told(code, asked)}
        within = _within(call, base, asked, codes)
        found = [*_left_behind(call, codes)]
        if call.random_drawn and not base.random_drawn:
            caller.state.set_to(call.before)
            other = caller.call(caller.args, caller.kwargs)
            found += [f for f in compare(call, other) if f.code in _DRAWN] if other.ended is None else []
        read = {f.frame for f in call.found}  # which says it already
        more += [f for f in found if f.frame not in told | read and within(f.frame)]
    return more


def _within(call: Call, base: Call, asked: Lines, codes: list[CodeType]) -> Callable[[Frame | None], bool]:
    """Whether a line is one that ``asked`` lines have let run in ``call``, or one of what only it has called there."""
    ran = base.ran()
    places = {id(step.place): step.place for step in call.steps}.values()  # thousands of steps have a few
    inner = {(f.file, f.function) for place in places for f in _called_there(place, asked, ran)}

    def within(frame: Frame | None) -> bool:
        if frame is None:
            return False
        own = [code for code in codes if code.co_name == frame.function]
        tests = ((frame.file, line) for code in own for line in entered_after(code, frame.line))
        return (frame.file, frame.function) in inner or any(test in asked for test in tests)

    return within


def _asks_for_told(code: CodeType, asked: Lines) -> Iterator[tuple[str, int]]:
    """Lines of tests on what a line of ``asked`` has read: ``best = y.max().item()``, ``if best > self.best:``."""
    nodes, file = list(nodes_of(code)), display_name(code.co_filename)
    told = [
        (target.id, node.lineno)
        for node in nodes
        if isinstance(node, ast.Assign) and (file, node.lineno) in asked
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    for node in (n for n in nodes if isinstance(n, ast.If)):
        read = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
        if any(name in read and line < node.lineno for name, line in told):
            yield file, node.lineno


def _left_behind(call: Call, codes: list[CodeType]) -> Iterator[Failure]:
    """What it did to Python's state."""
    for change in (entry for each in call.changes for entry in each.entries()):
        made = change.before is None and not isinstance(change.after, (int, float, str))  # for the first time
        failure = effect(change, written_at(change, codes)) if not made else None
        if failure is not None and failure.code == "host-counter":
            yield failure


def _called_there(place: Place, asked: Lines, ran: Collection[CodeType]) -> Iterator[Frame]:
    """The functions that a line of such a branch has called, as far as the other call has run none of them."""
    for i, spot in enumerate(place.stack):
        at = frame_of(spot)
        if at and any((at.file, line) in asked for line in entered_after(spot[0], at.line)):
            yield from (f for code, where in place.stack[i + 1 :] if code not in ran and (f := frame_of((code, where))))
            return
