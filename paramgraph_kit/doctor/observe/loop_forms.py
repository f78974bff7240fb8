"""Other words for what a line around a step calls: either of two methods, one by its name, one through its class."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from paramgraph_kit.doctor.observe.captured_values import NOTHING
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.loop_kept import Kept
from paramgraph_kit.doctor.observe.loop_names import is_call_of
from paramgraph_kit.doctor.observe.loop_state import ANY, ENTRIES, Run, State
from paramgraph_kit.doctor.observe.loop_values import PLAIN, Held, Thing, all_of
from paramgraph_kit.doctor.observe.other_entries import given_in_place, has_entries

_MOST = 8  # rounds of a loop over what is written there, or over a dictionary


class Forms(Kept):
    """Puts calls and loops into the words that are followed."""

    def _set(self, owner: Any, name: str, value: Any, text: str, node: ast.AST, run: Run) -> None:
        raise NotImplementedError

    def _calls(self, node: ast.expr, run: Run, but: ast.AST | None = None) -> None:
        raise NotImplementedError

    def _one_of(self, ways: Iterable[Callable[[], None]]) -> None:
        """A line goes one of these ways."""
        begun, ends = self.state, list[State]()
        for go in ways:
            self.state = begun.copy()
            go()
            ends.append(self.state)
        self.state = ends[0] if ends else begun
        for other in ends[1:]:
            self.state.join(other)

    def _branches_within(self, node: ast.IfExp | ast.BoolOp, run: Run) -> None:
        """The calls of an expression that only sometimes runs a part of itself."""
        if isinstance(node, ast.BoolOp):
            self._calls(node.values[0], run)
            for each in node.values[1:]:
                self._one_of([partial(self._calls, each, run), lambda: None])
            return
        self._calls(node.test, run)
        known = self._truth(node.test, run)
        ways = [node.body, node.orelse] if known is None else [node.body if known else node.orelse]
        self._one_of(partial(self._calls, each, run) for each in ways)

    def _sets_any(self, owner: Any, node: ast.AST, run: Run) -> None:
        """A line sets something of an object, and its text does not tell what."""
        for each in all_of(owner):
            of = each.of if isinstance(each, Held) else each
            if not isinstance(of, Thing):
                self._set(of, ANY, NOTHING, ast.unparse(node).partition("\n")[0], node, run)

    def _merges_any(self, owner: Any, base: str, node: ast.AST, run: Run) -> None:
        """A dictionary gets the entries of another one, whose keys nobody knows."""
        self._sets_any(owner, node, run)
        if has_entries(owner):
            self._set(owner, ENTRIES, NOTHING, base, node, run)

    def _changes_given(self, call: ast.Call, run: Run) -> None:
        """What a function of Python's, or of NumPy's, changes that it is given: ``np.add.at(self.pos, at, 1)``."""
        for node in given_in_place(call):
            given = self._value(call.args[-1], run) if call.args else NOTHING
            for each in (each for each in all_of(self._value(node, run)) if has_entries(each)):
                self._set(each, ENTRIES, given, ast.unparse(node), call, run)

    def _ways(self, call: ast.Call, run: Run) -> Sequence[ast.Call] | None:
        """The calls of which a line makes one; None where it is that itself."""
        func = call.func
        if isinstance(func, ast.IfExp):
            return [self._by(call, each) for each in (func.body, func.orelse)]
        if isinstance(func, ast.Subscript) and isinstance(func.value, (ast.Dict, ast.Tuple, ast.List)):
            rows = func.value.values if isinstance(func.value, ast.Dict) else func.value.elts
            return [self._by(call, each) for each in rows]
        if is_call_of(func, "getattr") and isinstance(func, ast.Call) and len(func.args) > 1:
            of, names = func.args[0], self._words(func.args[1], run)
            if not names:
                self._sets_any(self._value(of, run), call, run)
            return [self._by(call, ast.Attribute(of, name, ast.Load())) for name in names]
        if isinstance(func, ast.Attribute) and call.args and func.attr != "__init__":
            kind, first = self._value(func.value, run), call.args[0]
            is_torchs = isinstance(kind, type) and kind.__module__.partition(".")[0] == "torch"
            if is_torchs and any(is_a(each, kind) for each in all_of(self._value(first, run))):
                return [self._by(call, ast.Attribute(first, func.attr, ast.Load()), call.args[1:])]
        return None

    def _by(self, call: ast.Call, func: ast.expr, args: list[ast.expr] | None = None) -> ast.Call:
        """The same call of another function; one for all rounds, as lines are known by their nodes."""
        at = (id(call), ast.unparse(func))
        if at not in self.forms:
            made = ast.Call(func, call.args if args is None else args, call.keywords)
            self.forms[at] = ast.copy_location(made, call)
        return self.forms[at]

    def _words(self, node: ast.expr, run: Run) -> list[str]:
        """The words that an expression gives one of; none where that is not known."""
        if isinstance(node, ast.IfExp):
            ways = [self._words(each, run) for each in (node.body, node.orelse)]
            return [*dict.fromkeys(word for way in ways for word in way)] if all(ways) else []
        every = all_of(self._value(node, run))
        return [*dict.fromkeys(every)] if all(type(each) is str for each in every) else []

    def _rows(self, node: ast.expr, run: Run) -> list[Any] | None:
        """What each round of a loop is given, where words are part of that: of a display, or of a dictionary."""
        if isinstance(node, (ast.Tuple, ast.List)):
            rows = [self._value(each, run) for each in node.elts]
            words = [row if isinstance(row, tuple) else (row,) for row in rows]
            known = all(any(type(each) is str for each in row) for row in words)
            return rows if known and 0 < len(rows) <= _MOST else None
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "items":
            return None
        of, held = node.func.value, self._value(node.func.value, run)
        pairs: list[tuple[Any, Any]] = []
        if isinstance(of, ast.Dict):
            keys = [self._value(k, run) if k is not None else NOTHING for k in of.keys]
            pairs = [*zip(keys, (self._value(v, run) for v in of.values), strict=True)]
        elif type(held) is dict:
            pairs = [(k, v if type(v) not in PLAIN else NOTHING) for k, v in held.items()] if len(held) <= _MOST else []
        known = all(type(key) is str for key, _ in pairs)
        return [*pairs] if known and 0 < len(pairs) <= _MOST else None
