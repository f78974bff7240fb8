"""Results that one line keeps of several replays, for lines behind it: ``rows = [run(x) for x in xs]``.

Nothing is replayed behind such a line, so that what it keeps is looked at where a result is read first.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of, pairs_of, spans
from paramgraph_kit.doctor.observe.captured_values import path_value
from paramgraph_kit.doctor.observe.held_in_line import of_what

_Launch = tuple[int, CodeType, int]  # a graph, and where its replay stands
_MAKE_LISTS = ("list", "tuple")
_LISTS = (list, tuple, dict)
_PATHS = (ast.Name, ast.Attribute)
_ROWS = (ast.ListComp, ast.DictComp, ast.List, ast.Dict, ast.Call)


@dataclass(frozen=True, slots=True)
class AtOnce:
    """What a line keeps of several replays."""

    code: CodeType
    name: str
    line: ast.AST  # what is written anew
    what: ast.expr | None  # an entry, as the line names it; None where it is what something else gives one by one
    held: Any


class LinesOfReplays:
    """The lines at which functions of the user's were while graphs were replayed."""

    def __init__(self) -> None:
        self._lines: dict[tuple[CodeType, int], set[_Launch]] = {}
        self.waits = False  # a graph was replayed, and none of its results was read since
        self._times: dict[int, int] = {}  # how often each was

    def replayed(self, graph: int, frames: Iterator[FrameType], is_first: bool) -> None:
        """A graph is replayed now; ``is_first``: not before, as by what makes it and gives away where it writes."""
        self.waits = True
        self._times[graph] = self._times.get(graph, 0) + 1
        lines = [(frame.f_code, frame.f_lineno) for frame in frames]
        for line in lines:
            self._lines.setdefault(line, set()).update([] if is_first else [(graph, *lines[0])])

    def lines_of(self, code: CodeType, by: _Launch | None = None) -> set[int]:
        """Those of one function; ``by``: at which this graph was replayed, by this line."""
        return {line for (each, line), at in self._lines.items() if each is code and (by is None or by in at)}

    def by_function(self) -> dict[CodeType, set[int]]:
        """The same of all functions, without those of graphs' first replays."""
        return {
            code: {line for (each, line), at in self._lines.items() if each is code and at} for code, _ in self._lines
        }

    def read(self, frames: Iterator[FrameType], several: Callable[[list[Any]], bool]) -> Iterator[AtOnce]:
        """A result is read now: what such lines keep that is read there; ``several``: whether of several replays."""
        if not self.waits:
            return
        self.waits, often = False, max(self._times.values(), default=0) > 1
        self._times.clear()
        for frame in frames:
            lines = self.lines_of(frame.f_code)
            for made in _gone_through(frame, lines) if often else ():
                yield AtOnce(frame.f_code, "", made, _entry(made), [])
            for node, name, value in _kept_in(frame, lines):
                if several([*value]):
                    yield from self._told(frame.f_code, node, name, value)

    def ended(self, result: Any, several: Callable[[list[Any]], bool]) -> Iterator[AtOnce]:
        """A call gives this back, and nothing has read it: the one line that has made a list of several replays."""
        parts = [*(result.values() if type(result) is dict else result if type(result) in (list, tuple) else ())]
        rows = [parts, *([*each.values()] if type(each) is dict else [*each] for each in parts if type(each) in _LISTS)]
        wrong = next((each for each in rows if several(each)), None)
        made: dict[ast.expr, CodeType] = {}
        for code, line in self._lines if wrong is not None else ():
            there = [n for n in nodes_of(code) if isinstance(n, (ast.Assign, ast.Return)) and spans(n, line)]
            made |= {each: code for n in there for each in map(_makes, _each_of(n.value)) if each is not None}
        innermost = [each for each in made if _entry(each) is not None] or [*made]
        if wrong is not None and len(innermost) == 1:
            yield AtOnce(made[innermost[0]], "", innermost[0], _entry(innermost[0]), wrong)

    def _told(self, code: CodeType, node: ast.Assign, name: str, value: Sequence[Any]) -> Iterator[AtOnce]:
        is_row = isinstance(node.value, ast.Tuple)
        for target, given in pairs_of(node) if is_row else [(node.targets[0], node.value)]:
            if not is_row or ast.unparse(target) == name:
                yield from self._given(code, node, given, name, value)

    def _given(
        self, code: CodeType, node: ast.Assign, given: ast.expr, name: str, value: Sequence[Any]
    ) -> Iterator[AtOnce]:
        if isinstance(given, (ast.List, ast.Dict)):  # who reads the last has what is there
            parts = given.elts if isinstance(given, ast.List) else given.values
            calls = [each for each in parts if isinstance(of_what(each), ast.Call)]
            yield from (AtOnce(code, f"{name}[{n}]", node, each, None) for n, each in enumerate(calls[:-1]))
        elif made := _makes(given) or (_gives(node) if given is node.value else None):
            yield AtOnce(code, name, made, _entry(made), [*value])
        elif inner := [*self._returned(given)]:
            yield from (AtOnce(other, name, made, _entry(made), [*value]) for other, made in inner)
        elif given is not node.value and (type(value) is tuple or not isinstance(given, ast.Call)):
            yield AtOnce(code, name, node, given, [*value])  # a list that a call gives is told where that fills it

    def _returned(self, given: ast.expr) -> Iterator[tuple[CodeType, ast.expr]]:
        """What makes the list that a function of the user's gives back."""
        called = last_name(given.func) if isinstance(given, ast.Call) else ""
        for other, line in self._lines:
            returns = [n for n in nodes_of(other) if isinstance(n, ast.Return) and spans(n, line)]
            for inner in returns if called == other.co_name else ():
                if made := _makes(inner.value):
                    yield other, made


def _each_of(value: ast.expr | None) -> list[ast.expr]:
    """What a line gives, and the parts of that where they stand side by side."""
    parts = (
        value.values if isinstance(value, ast.Dict) else value.elts if isinstance(value, (ast.Tuple, ast.List)) else ()
    )
    return [*filter(None, [value, *parts])]


def _gone_through(frame: FrameType, lines: set[int]) -> Iterator[ast.expr]:
    """Lists that a loop makes of replays and goes through, where a line of its body reads what it gives."""
    for node in (n for n in nodes_of(frame.f_code) if isinstance(n, ast.For)) if lines else ():
        made, names = _makes(node.iter), {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        body = [n for n in node.body if spans(n, frame.f_lineno)]
        read = {n.id for each in body for n in ast.walk(each) if isinstance(n, ast.Name)}
        if made is not None and read & names and any(spans(node.iter, line) for line in lines):
            yield made


def _makes(value: ast.expr | None) -> ast.expr | None:
    """What makes a list, or a dictionary, of what it calls for each of its entries."""
    if isinstance(value, (ast.ListComp, ast.DictComp)):
        return value
    if isinstance(value, ast.Call) and last_name(value.func) in _MAKE_LISTS and len(value.args) == 1:
        return value if isinstance(value.args[0], (ast.Call, ast.GeneratorExp)) else None
    return None


def _gives(node: ast.Assign) -> ast.expr | None:
    """The same of a line, which may also unpack what is made one by one: ``a, b = map(run, (x, y))``."""
    value = node.value
    lazy = isinstance(value, ast.GeneratorExp) or (isinstance(value, ast.Call) and last_name(value.func) == "map")
    return value if lazy and isinstance(node.targets[0], (ast.Tuple, ast.List)) else _makes(value)


def _entry(made: ast.expr) -> ast.expr | None:
    inner = made.args[0] if isinstance(made, ast.Call) and last_name(made.func) in _MAKE_LISTS else made
    if isinstance(inner, (ast.ListComp, ast.GeneratorExp)):
        return inner.elt
    return inner.value if isinstance(inner, ast.DictComp) else None


def _kept_in(frame: FrameType, lines: set[int]) -> Iterator[tuple[ast.Assign, str, Sequence[Any]]]:
    """The assignments of a function at such lines, with the names that they give, and what these hold by now.

    Of ``a, b = run(x), run(y)`` the two that may be one are a tuple.
    """
    nodes = [*nodes_of(frame.f_code)] if lines else []
    for node in nodes:
        if not isinstance(node, ast.Assign) or len(node.targets) > 1 or not any(spans(node, line) for line in lines):
            continue
        target = node.targets[0]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = [*zip(target.elts, node.value.elts, strict=False)]
            calls = [each for each, given in pairs if isinstance(of_what(given), ast.Call)]
            values = [path_value(each, frame.f_locals, frame.f_globals) for each in calls]
            for number, each in enumerate(calls[:-1]):  # the last one's is what is there
                if _is_read(nodes, node, each):
                    later = ((values[number], other) for other in values[number + 1 :])
                    yield from ((node, ast.unparse(each), pair) for pair in later)
            rows = [each for each, given in pairs if isinstance(given, _ROWS) and isinstance(each, _PATHS)]
            yield from ((node, *row) for each in rows if (row := _row_of(frame, nodes, node, each)) is not None)
        elif isinstance(target, (ast.Tuple, ast.List)) and _gives(node) is not None:
            read = [each for each in target.elts[:-1] if _is_read(nodes, node, each)]
            values = [path_value(each, frame.f_locals, frame.f_globals) for each in target.elts]
            yield from ((node, ast.unparse(each), values) for each in read[:1])
        elif isinstance(target, _PATHS) and (row := _row_of(frame, nodes, node, target)) is not None:
            yield (node, *row)


def _row_of(frame: FrameType, nodes: list[ast.AST], node: ast.Assign, target: ast.expr) -> tuple[str, list[Any]] | None:
    """The name of a list that a line makes and others read, and what it has by now."""
    value: Any = path_value(target, frame.f_locals, frame.f_globals) if _is_read(nodes, node, target) else None
    kind = type(value)
    return (ast.unparse(target), [*value.values()] if kind is dict else [*value]) if kind in _LISTS else None


def _is_read(nodes: list[ast.AST], kept: ast.Assign, target: ast.expr) -> bool:
    """Whether a function reads a name behind the line that gives it, and more of it than the last entry."""
    path = ast.unparse(target)
    last = {id(n.value) for n in nodes if isinstance(n, ast.Subscript) and ast.unparse(n.slice) == "-1"}
    own = {id(n) for n in ast.walk(kept)}
    there = [n for n in nodes if isinstance(n, type(target)) and id(n) not in own and ast.unparse(n) == path]
    read = [n for n in there if isinstance(n.ctx, ast.Load) and id(n) not in last]  # type: ignore[attr-defined]
    return bool(read) or (isinstance(target, ast.Attribute) and not there)  # who has the object may read it
