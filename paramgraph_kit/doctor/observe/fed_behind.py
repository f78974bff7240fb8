"""A replay ahead of the line that gives it its input: each result is that of the input before."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, LOOPS, last_name, nodes_of, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.callers_inputs import CallersInputs
from paramgraph_kit.doctor.observe.given_names import is_of_the_next
from paramgraph_kit.doctor.observe.places import Place, line_of
from paramgraph_kit.trace.model import Failure

_MOST = 1000  # of what is written ahead of the first replay
_ROUNDS = 2  # that go so, and no other
_TITLE = "A replay comes ahead of its input"
_CAUSE = "A replay computes with what its static input holds then; what is written behind it is the next one's."
_PLACEHOLDERS = ("zeros", "empty", "zeros_like", "empty_like", "new_zeros", "new_empty")


@dataclass(slots=True)
class _Rounds:
    """What is done between the replays of one graph."""

    ahead: set[int] = field(default_factory=set)  # memory written between its capture and its first replay
    reads: Collection[int] = ()
    results: Collection[int] = ()
    place: Place | None = None  # of its replays
    written: Place | None = None  # the line that has given it an input since the latest
    early: bool = False  # a result was read before that
    late: bool = False  # and one behind it
    good: int = 0  # rounds in which each result was read behind the next input
    off: bool = False  # it goes otherwise

    def settle(self) -> None:
        """A round has ended."""
        if self.written is not None and self.late and not self.early:
            self.good += 1
        else:
            self.off = True


class FedBehind:
    """Those of one examination."""

    def __init__(self) -> None:
        self._of: dict[int, _Rounds] = {}
        self.callers = CallersInputs()

    def begin(self, graph: object) -> None:
        """The capture of a graph begins."""
        self._of[id(graph)] = _Rounds()
        self.callers.begin()

    def launched(self, graph: object, reads: Collection[int], results: Collection[int], place: Place) -> None:
        """A graph is replayed that reads, and writes, this memory."""
        self.callers.launched(reads)
        if (own := self._of.get(id(graph))) is None or own.off:
            return
        if own.place is None:
            own.off = place.user is None or not own.ahead.isdisjoint(reads)
        elif _spot(own.place) != _spot(place):
            own.off = True
        else:
            own.settle()
        own.place, own.reads, own.results = place, reads, results
        own.written, own.early, own.late = None, False, False

    def read(self, keys: Iterable[int]) -> None:
        """An operation outside of all captures reads these."""
        keys = {*keys}
        self.callers.read(keys)
        for own in (each for each in self._of.values() if each.place is not None and not each.off):
            if not keys.isdisjoint(own.results):
                own.early, own.late = own.early or own.written is None, own.late or own.written is not None

    def wrote(self, key: int, place: Place) -> None:
        """And writes this."""
        self.callers.wrote(key)
        for own in (each for each in self._of.values() if not each.off):
            if own.place is None:
                if len(own.ahead) < _MOST:
                    own.ahead.add(key)
            elif key in own.reads and key not in own.results and not own.late:
                own.off = not _gives(own.place, place)
                own.written = place

    def failures(self) -> Iterator[Failure]:
        """The replays, with what gives them their input behind that, and lines that keep the caller's own."""
        yield from self.callers.failures()
        for own in self._of.values():
            known = own.place is not None and own.written is not None and not own.off and not own.early
            if known and own.good + own.late >= _ROUNDS:
                assert own.place is not None
                assert own.written is not None
                code = _spot(own.place)[0]
                given = _line_in(code, own.written) if code is not None else 0
                said = f"line {given} writes what it reads behind it: each result is that of the input before"
                failure = BY_ID["stale-input"].failure(said, own.place.frame_in(code))
                text = failure.frame.text if failure.frame is not None else "g.replay()"
                failure = replace(failure, title=_TITLE, cause=_CAUSE)
                yield replace(failure, fix=f"before  {text}\nafter   this line behind line {given}, and not here")


def _spot(place: Place) -> tuple[CodeType | None, int]:
    return (place.user[0], line_of(*place.user)) if place.user is not None else (None, 0)


def _line_in(code: CodeType, place: Place) -> int:
    """At which line a function is when something is done at a place, by itself or by what it calls."""
    return next((line_of(own, spot) for own, spot in place.stack if own is code), 0)


def _gives(replay: Place, place: Place) -> bool:
    """Whether a line behind a replay, of the same call or the same round, writes what that call or round is given."""
    code, at = _spot(replay)
    line = _line_in(code, place) if code is not None else 0
    if code is None or line <= at:
        return False
    nodes = [*nodes_of(code)]
    loops = [n for n in nodes if isinstance(n, LOOPS) and n.lineno <= at <= (n.end_lineno or 0)]
    if any(not n.lineno <= line <= (n.end_lineno or 0) for n in loops):
        return False
    statement = next((n for n in nodes if isinstance(n, ast.stmt) and _is_at(n, line)), None)
    names = {n.id for each in _given(statement) for n in ast.walk(each) if isinstance(n, ast.Name)}
    if any(isinstance(n, ast.Subscript) and not _is_entry(n) for each in _given(statement) for n in ast.walk(each)):
        return False
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    own = (names & ({*code.co_varnames} | {*code.co_cellvars})) - {"self"}
    arguments = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]} - stored
    if not loops:
        return bool(own) and own <= arguments and not any(map(is_of_the_next, own))
    inner = loops[-1]
    targets = {n.id for n in ast.walk(inner.target) if isinstance(n, ast.Name)} if isinstance(inner, ast.For) else set()
    return bool(own) and own <= targets and _is_placeholder(code, statement)


def _is_at(node: ast.stmt, line: int) -> bool:
    compound = isinstance(node, (*FUNCTIONS, *LOOPS, ast.With, ast.If, ast.Try, ast.ClassDef))
    return not compound and node.lineno <= line <= (node.end_lineno or node.lineno)


def _given(statement: ast.stmt | None) -> list[ast.expr]:
    """What a statement writes, or gives to what does."""
    value = getattr(statement, "value", None)
    if isinstance(statement, ast.Expr) and isinstance(value, ast.Call):
        return [*value.args, *(each.value for each in value.keywords)]
    return [value] if isinstance(statement, ast.Assign) and value is not None else []


def _is_entry(node: ast.Subscript) -> bool:
    return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)


def _is_placeholder(code: CodeType, statement: ast.stmt | None) -> bool:
    """Whether what a line writes was made with nothing in it, so that no first input is there."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "value", None)
    target = target.func.value if isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute) else target
    while isinstance(target, ast.Subscript):
        target = target.value
    name, tree = last_name(target) if target is not None else "", tree_of(code.co_filename)
    assigns = [n for n in ast.walk(tree) if isinstance(n, ast.Assign)] if tree is not None else []
    pairs = [pair for n in assigns for t in n.targets for pair in _pairs(t, n.value)]
    made = [value for t, value in pairs if isinstance(t, (ast.Name, ast.Attribute)) and last_name(t) == name]
    return bool(made) and all(isinstance(v, ast.Call) and last_name(v.func) in _PLACEHOLDERS for v in made)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        yield from zip(target.elts, value.elts, strict=False)
    else:
        yield target, value
