"""What lines around a step set between two of its calls: their ways are followed, and what is set on each is kept.

Loops, conditions, helpers, methods and what a ``with`` enters are followed by their text; nothing of the user's runs.
What a step may find is what any way from its last call to this one leaves, so a mode that is put back ahead of the
next call is as ever.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, LOOPS, first_line, last_name, tree_of, walk
from paramgraph_kit.doctor.observe.captured_first import captures_when_first
from paramgraph_kit.doctor.observe.captured_values import NOTHING
from paramgraph_kit.doctor.observe.gradients import Scope
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.loop_calls import Calls
from paramgraph_kit.doctor.observe.loop_names import (
    both,
    calls_in,
    cells_at,
    classes_in,
    functions_in,
    is_named_alone,
    is_true,
    outer_in,
    stands_in,
)
from paramgraph_kit.doctor.observe.loop_state import MOST_ALIKE, Called, Found, Function, NotFollowed, Run, State
from paramgraph_kit.doctor.observe.loop_values import (
    PLAIN,
    Held,
    Names,
    Pairs,
    Some,
    Thing,
    all_of,
    are_types,
    elements,
    in_kinds,
    names_given,
    without_plain,
)
from paramgraph_kit.doctor.observe.replayed_by import captures_it, graphs_of, replays_it
from paramgraph_kit.doctor.observe.set_between import CAPTURES
from paramgraph_kit.driver.files import is_library, modules_of_users

_OF_OBJECTS = ("__call__", "forward")  # methods that are called by the names of objects


class Flow(Calls):
    """Follows the lines of scopes around a step."""

    replays = False  # the step replays a graph of its own
    captured = False  # a line has captured the step
    skipped: set[int]  # tests of a graph that is there by now

    def all(self) -> Iterator[Found]:
        """What each body finds that calls the step."""
        names = self._names_that_lead()
        own = (n for file in self.spaces for n in functions_in(file) if (file, first_line(n)) in self.own)
        if not self.replays and any(not calls_in(n).isdisjoint(CAPTURES) for n in own):
            return
        for scope in [*self.scopes, *self._elsewhere()]:
            at = None if isinstance(scope.body, ast.Module) else (scope.file, first_line(scope.body))
            if is_library(scope.file) or at in self.own:
                continue
            nodes = _nodes_in(scope.body)
            calls = (n for n in nodes if isinstance(n, ast.Call))
            graphs = self._graphs_in(scope.file)
            named = any(
                last_name(n.func) in names or any(last_name(a) in names for a in n.args) or replays_it(n, graphs)
                for n in calls
            )
            if not named and names.isdisjoint(_OF_OBJECTS):
                continue
            makers = self.kinds.keys() | self.makers | self.beside
            makes = [n for n in nodes if isinstance(n, ast.Call) and last_name(n.func) in makers]
            for self.meant in makes if 1 < len(makes) <= MOST_ALIKE else (None,):
                yield from self._body(scope, nodes)

    def _body(self, scope: Scope, nodes: Sequence[ast.AST]) -> Iterator[Found]:
        self.found, self.state, self.stack = Found(), State(), []
        self.numbers, self.before, self.exchanged, self.results = {}, {}, {}, {}
        self.captured, self.skipped = False, set()
        run = Run(self._names_of(scope), scope.file, getattr(scope.body, "name", "<module>"), NOTHING, None)
        if not isinstance(scope.body, ast.Module):
            self._name_as_given(nodes, run)
        with suppress(NotFollowed):
            self._block(scope.body.body, run)
            if self.found.at_step or self.found.steps:
                yield self.found

    def _elsewhere(self) -> Iterator[Scope]:
        """The bodies of the user's modules that name the step, or its class, and are not around it."""
        known = {scope.file for scope in self.scopes}
        meant = [self.step, *(kind for kind in self.kinds.values() if kind is not object)]
        for module in modules_of_users():
            file = vars(module).get("__file__") if type(module) is ModuleType else None
            if not isinstance(file, str) or file in known:
                continue
            named = any(each is one for each in vars(module).values() for one in meant)
            if named and (tree := tree_of(file)) is not None:
                self.spaces.setdefault(file, vars(module))
                yield Scope(file, tree, vars(module))
                yield from (Scope(file, n, vars(module)) for n in functions_in(file))

    def _name_as_given(self, nodes: Sequence[ast.AST], run: Run) -> None:
        """What variables of a body mean that it gives to the step, or calls it by."""
        for call in (n for n in nodes if isinstance(n, ast.Call) and last_name(n.func) == self.name):
            pairs: list[tuple[ast.expr, Any]] = []
            if self.owner is None:
                pairs = self._given_to(call)
            elif isinstance(call.func, ast.Attribute) and is_named_alone(call, len(self.given)):
                pairs = [(call.func.value, self.owner)]
            for node, value in pairs:
                if isinstance(node, ast.Name) and node.id not in run.names.own and value is not NOTHING:
                    run.bound[node.id] = run.names.own[node.id] = value

    def _names_that_lead(self) -> set[str]:
        """Names of functions that call the step, or call one that does."""
        found = {self.name} if self.name else {n for s in self.scopes for n, v in s.names.items() if v is self.step}
        found |= {getattr(self.asked, "__name__", "")} - {"", "<lambda>"}
        called: dict[str, set[str]] = {}
        for node in (n for file in self.spaces for n in functions_in(file)):
            called.setdefault(node.name, set()).update(calls_in(node))
        while more := {name for name, calls in called.items() if calls & found} - found:
            found |= more
        return found

    def _names_of(self, scope: Scope) -> Names:
        """The variables of a body that is looked at first: of its own, what running frames and the step know."""
        if isinstance(scope.body, ast.Module):
            return Names({}, scope.names)
        own: dict[str, Any] = {}
        first, kind = next(iter(scope.body.args.args), None), self._class_of(scope.body, scope.file)
        if first is not None and kind is not None and first.arg not in scope.names:
            own[first.arg] = self._object_of(kind, scope.file)
        cells = cells_at(self.step) if stands_in(scope, self.step) else {}
        space = scope.names if scope.file not in self.spaces else {**self.spaces[scope.file], **scope.names}
        return Names(own, space, cells, outer_in(scope.body))

    # Statements: each gives whether what follows it runs

    def _block(self, body: list[ast.stmt], run: Run) -> bool:
        return all(self._statement(statement, run) for statement in body)

    def _statement(self, node: ast.stmt, run: Run) -> bool:
        self.left -= 1
        if self.left < 0:
            raise NotFollowed
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                run.names.own.pop(node.name, None)
            return True
        if isinstance(node, (ast.If, ast.Match)):
            return self._branches(node, run)
        if isinstance(node, LOOPS):
            return self._loop(node, run)
        if isinstance(node, (ast.With, ast.AsyncWith)):
            return self._with(node, run, 0)
        if isinstance(node, ast.Try):
            return self._try(node, run)
        if isinstance(node, (ast.Break, ast.Continue)):
            (run.broken if isinstance(node, ast.Break) else run.continued).append(self.state.copy())
            return False
        value = getattr(node, "value", None)
        if isinstance(value, ast.expr):
            self._calls(value, run)
        if isinstance(node, ast.Return):
            if node.value is not None:
                run.result = self._value(node.value, run)
            run.returned.append(self.state.copy())
            return False
        if isinstance(node, ast.Raise):
            return False
        if isinstance(node, ast.Delete):
            self._delete(node, run)
        if isinstance(node, ast.Assign):
            given = self._made_by(node.value, run)
            given = self._value(node.value, run) if given is NOTHING else given
            given = without_plain(self.results.get(id(node.value), NOTHING)) if given is NOTHING else given
            for target in node.targets:
                for part, each in names_given(target, given):
                    self._assign(part, each, node, run)
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            if isinstance(node, ast.AugAssign) and self._is_in_place(node, run):
                return True
            given = self._value(node.value, run) if isinstance(node, ast.AnnAssign) else NOTHING
            self._assign(node.target, given, node, run)
        return True

    def _branches(self, node: ast.If | ast.Match, run: Run) -> bool:
        if isinstance(node, ast.Match):
            self._calls(node.subject, run)
            return self._either([case.body for case in node.cases] + [[]], run, [{}] * (len(node.cases) + 1))
        self._calls(node.test, run)
        known = self._truth(node.test, run)
        known = _makes_once(node) if known is None else known
        known = self._captured_before(node, run) if known is None else known
        if known is not None:
            return self._block(node.body if known else node.orelse, run)
        narrow, names = {}, run.names.own
        if isinstance(node.test, ast.Call) and last_name(node.test.func) == "isinstance" and len(node.test.args) == 2:
            of, kinds = node.test.args[0], self._value(node.test.args[1], run)
            held = names.get(of.id) if isinstance(of, ast.Name) else None
            if is_a(held, torch.nn.Module) and are_types(kinds):
                return self._block(node.body if is_a(held, kinds) else node.orelse, run)
            if isinstance(of, ast.Name) and isinstance(held, Some) and are_types(kinds):
                fit = tuple(each for each in held.each if is_a(each, kinds))
                if len(fit) in (0, len(held.each)):
                    return self._block(node.body if fit else node.orelse, run)
                narrow = {of.id: Some(fit)}
        return self._either([node.body, node.orelse], run, [narrow, {}])

    def _captured_before(self, node: ast.If, run: Run) -> bool | None:
        """What ``if self.graph is None:`` says ahead of a capture and behind it, where the first call captures."""
        if not captures_when_first(node, run.file) or id(node) in self.skipped:
            return False if id(node) in self.skipped else None
        self.skipped.add(id(node))
        return True

    def _either(self, ways: list[list[ast.stmt]], run: Run, narrow: list[dict[str, Any]]) -> bool:
        begun, names = self.state, dict(run.names.own)
        joined: State | None = None
        joined_names: dict[str, Any] | None = None
        for way, more in zip(ways, narrow, strict=True):
            self.state, run.names.own = begun.copy(), {**names, **more}
            if self._block(way, run):
                own = {**run.names.own, **{k: names[k] for k in more if k in names}}
                if joined is None:
                    joined, joined_names = self.state, own
                else:
                    joined.join(self.state)
                    joined_names = both(joined_names or {}, own)
        self.state = joined or begun
        run.names.own = joined_names if joined_names is not None else names
        return joined is not None

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, run: Run) -> bool:
        """Twice: what the first round sets is there in the second."""
        held = (run.broken, run.continued)
        run.broken, run.continued = [], []
        after: list[State] = []
        if isinstance(node, ast.While):
            for number in range(2):
                self._calls(node.test, run)
                if number == 0 and not is_true(node.test):
                    after.append(self.state.copy())
                self._round(node, run)
            self._calls(node.test, run)
        else:
            generator = self._generator(node.iter, run)
            self._calls(node.iter, run, but=node.iter if generator is not None else None)
            if generator is not None:
                after.append(self.state.copy())
                for _ in range(2):
                    self._follow(generator, run, lambda value: self._given_round(node, value, run))
            elif (rows := self._rows(node.iter, run)) is not None:
                for row in (*rows, *rows):
                    for part, each in names_given(node.target, row):
                        self._assign(part, each, node, run)
                    self._round(node, run)
            else:
                given = self._value(node.iter, run)
                each = elements(given)
                paired = given.parts if isinstance(given, Pairs) else ()
                if not each and not any(map(elements, paired)):
                    after.append(self.state.copy())
                few = each is not None and len(each) <= 8 and not all(is_a(e, torch.Tensor) for e in each)
                for _ in range(2):
                    for value in (each or ()) if few else in_kinds(given if each is None else Some(each)):
                        self._given_round(node, value, run)
        states = [*run.broken, *after]
        run.broken, run.continued = held
        for state in states:
            self.state.join(state)
        return self._block(node.orelse, run) if node.orelse else True

    def _given_round(self, node: ast.For | ast.AsyncFor, value: Any, run: Run) -> None:
        for part, each in names_given(node.target, value):
            self._assign(part, each if type(each) not in PLAIN else NOTHING, node, run)
        self._round(node, run)

    def _round(self, node: ast.For | ast.AsyncFor | ast.While, run: Run) -> None:
        begun, names = self.state.copy(), dict(run.names.own)
        alive = self._block(node.body, run)
        ends = [self.state] if alive else []
        ends += run.continued
        run.continued = []
        self.state = ends[0] if ends else begun
        for other in ends[1:]:
            self.state.join(other)
        run.names.own = both(names, run.names.own, keep=True)

    def _with(self, node: ast.With | ast.AsyncWith, run: Run, number: int) -> bool:
        if number == len(node.items):
            return self._block(node.body, run)
        item = node.items[number]
        if self._holds_step(item.context_expr, run):
            self._begins_again()
            return self._with(node, run, number + 1)
        if (
            isinstance(item.context_expr, ast.Call)
            and (kept := self._gradients_within(item.context_expr, run)) is not None
        ):
            return self._within(kept, item.context_expr, run, lambda: self._with(node, run, number + 1))
        followed = self._entered(item.context_expr, run)
        if followed is None:
            self._calls(item.context_expr, run)
            if item.optional_vars is not None:
                for part in ast.walk(item.optional_vars):
                    if isinstance(part, ast.Name):
                        run.names.own[part.id] = NOTHING
            return self._with(node, run, number + 1)
        kind, what = followed
        alive = [True]
        if kind == "generator":

            def inside(_: Any) -> None:
                alive[0] = self._with(node, run, number + 1)

            self._follow(what, run, inside)
            return alive[0]
        enter, leave = what
        if enter is not None:
            self._follow(enter, run)
        alive[0] = self._with(node, run, number + 1)
        if leave is not None:
            self._follow(leave, run)
        return alive[0]

    # Graphs that hold the step alone, whose replays stand for its calls

    def _graphs_in(self, file: str) -> frozenset[str]:
        return frozenset() if self.replays else graphs_of(file, self.step)

    def _holds_step(self, entered: ast.expr, run: Run) -> bool:
        graphs = self._graphs_in(run.file)
        captures = isinstance(entered, ast.Call) and last_name(entered.func) in CAPTURES and bool(entered.args)
        return captures and last_name(entered.args[0]) in graphs  # type: ignore[attr-defined]

    def _call(self, call: ast.Call, run: Run) -> None:
        if not self.replays and captures_it(call, run.file, self.step):
            self._begins_again()
            self._stepped(call)
            return
        if not replays_it(call, self._graphs_in(run.file)):
            super()._call(call, run)
            return
        launched = getattr(call.func, "value", None)  # the graph, or whose method launches it
        held = launched.value if isinstance(launched, ast.Attribute) else None
        by = self._value(held, run) if held is not None else NOTHING
        if by is NOTHING or self.owner is None or any(each is self.owner for each in all_of(by)):
            self._stepped(call)

    def _begins_again(self) -> None:
        """A line captures the step: what was set ahead of it is what the graph has."""
        if not self.captured:
            self.found.at_step.clear()
        self.captured, self.state.has_stepped = True, False
        for key, numbers in self.state.last.items():
            self.state.last[key] = frozenset(self._as_begun(n) for n in numbers)

    def _as_begun(self, number: int) -> int:
        """The same line, as one ahead of the step."""
        if not number or not self.found.given[number].is_late:
            return number
        begun = self.numbers.setdefault((0, number, "begun", False, ""), len(self.numbers) + 1)
        self.found.given[begun] = replace(self.found.given[number], is_late=False)
        self.found.values[begun] = self.found.values[number]
        return begun

    def _try(self, node: ast.Try, run: Run) -> bool:
        begun = self.state.copy()
        alive = self._block([*node.body, *node.orelse], run)
        for handler in node.handlers:
            held = self.state
            self.state = begun.copy()
            if self._block(handler.body, run):
                if alive:
                    held.join(self.state)
                else:
                    held, alive = self.state, True
            self.state = held
        return self._block(node.finalbody, run) and alive

    def _generator(self, node: ast.expr, run: Run) -> Called | None:
        """A function of the user's that yields what a loop goes over."""
        while (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "enumerate" and node.args
        ):
            node = node.args[0]
        if not isinstance(node, ast.Call):
            return None
        called = [*self._called(node, run)]
        yields = [each for each in called if any(isinstance(n, ast.Yield) for n in ast.walk(each.node))]
        return yields[0] if len(yields) == 1 else None

    def _entered(self, node: ast.expr, run: Run) -> tuple[str, Any] | None:
        """What a ``with`` runs of the user's: a generator around its body, or a method on each side of it."""
        if isinstance(node, ast.Call):
            called = [*self._called(node, run)]
            for each in called:
                if any(last_name(d) in ("contextmanager", "asynccontextmanager") for d in each.node.decorator_list):
                    return "generator", each
        made = self._value(node, run)
        if made is NOTHING and isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            kind = next(((k, f) for f in self.spaces for k in classes_in(f) if k.name == node.func.id), None)
            made = self._object_of(*kind) if kind is not None else NOTHING
            if isinstance(made, Thing):
                made = Thing(made.kind, made.file)
                self._made(made, node, run)
        if made is NOTHING or isinstance(made, (Some, Held)):
            return None
        sides = [self._method(made, name) for name in ("__enter__", "__exit__")]
        return ("object", sides) if any(sides) else None


@lru_cache(maxsize=256)
def _nodes_in(body: ast.Module | Function) -> tuple[ast.AST, ...]:
    """The nodes of a body, of which each examination asks."""
    return tuple(n for s in body.body for n in walk(s))


def _makes_once(node: ast.If) -> bool | None:
    """What ``if hasattr(self, "near"):`` says where its other way makes that: it is there behind the first time."""
    asks, absent = node.test, node.orelse
    is_not = isinstance(asks, ast.UnaryOp) and isinstance(asks.op, ast.Not)
    if isinstance(asks, ast.UnaryOp) and is_not:
        asks, absent = asks.operand, node.body
    if not isinstance(asks, ast.Call) or last_name(asks.func) != "hasattr" or len(asks.args) != 2:
        return None
    name = asks.args[1].value if isinstance(asks.args[1], ast.Constant) else None
    made = (n for s in absent for n in ast.walk(s) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
    return not is_not if any(n.attr == name for n in made) else None
