"""Which calls in lines around a step run it, directly or by a function between them, and of which object."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.explain.syntax import LOOPS, first_line, here, last_name, pairs_of
from paramgraph_kit.doctor.observe.gradients import Scope, Search
from paramgraph_kit.doctor.observe.loop_state import Function
from paramgraph_kit.doctor.observe.parts_of_results import Holds, Results

_MOST = 3  # functions that hand a result on
_NAMED = 3  # names that stand for what a call is given
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


@dataclass(frozen=True, slots=True)
class Ran:
    """A call of the step: by which text it means the step, what that names, and the sizes that it is given."""

    node: ast.AST
    of: str
    names: frozenset[str]
    sizes: frozenset[str]
    part: Any  # what it gives; None where that is no result


@dataclass(frozen=True, slots=True)
class _Hands:
    """A function of the user's that calls the step, and may hand on what that gives."""

    node: Function
    of: ast.expr  # what it calls the step by
    part: Any
    yields: bool


class CallsAround:
    """Those of one step, in all scopes around it."""

    def __init__(
        self,
        scopes: Iterable[Scope],
        function: Callable[..., Any],
        own: Iterable[CodeType],
        result: Any,
        holds: Holds,
        known: Iterable[ast.Call],
        *,
        by_key: bool,
    ) -> None:
        self.function, self.result, self.by_key = function, result, by_key
        self._known = {id(call) for call in known}
        self._handed_over = {id(call.func) for call in known}  # by map(), which calls what it is given
        mine = {(code.co_filename, code.co_firstlineno) for code in own}
        self.scopes = [s for s in scopes if isinstance(s.body, ast.Module) or (s.file, first_line(s.body)) not in mine]
        self._hands: dict[str, _Hands | None] = {}
        for _ in range(_MOST):
            found = {name: each for scope in self.scopes for name, each in self._handing(scope, holds)}
            if found.keys() == self._hands.keys():
                break
            self._hands = found

    def _handing(self, scope: Scope, holds: Holds) -> Iterator[tuple[str, _Hands | None]]:
        body = scope.body
        if isinstance(body, ast.Module):
            return
        nodes = [n for statement in body.body for n in here(statement)]
        ran = [each for n in nodes for each in [self.ran(n, scope)] if each is not None]
        stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        if not ran or len({each.of for each in ran}) > 1 or not ran[0].names.isdisjoint(stored):
            return
        part, yields = ran[0].part, any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in nodes)
        calls = {id(each.node) for each in ran}
        results = Results({}, lambda n: id(n) in calls, part, holds).named_in(nodes)
        given = [n.value for n in nodes if isinstance(n, ast.Yield if yields else ast.Return) and n.value is not None]
        whole = [results.of(each) for each in given if part is not None and results.has(each)]
        of = ast.parse(ran[0].of, mode="eval").body
        yield body.name, _Hands(body, of, whole[0] if whole else None, yields)

    def ran(self, node: ast.AST, scope: Scope) -> Ran | None:
        """What a call runs, where it runs the step; a generator does only as it is gone through."""
        if not isinstance(node, ast.Call):
            return None
        if id(node) in self._known or Search(scope.names, self.function, set()).calls(node):
            return self._ran(node, node.func, self.result, scope)
        hands = self._hands.get(last_name(node.func))
        if hands is None or hands.yields:
            return None
        return self._ran(node, _as_called(hands, node), hands.part, scope)

    def given_one_by_one(self, node: ast.expr, scope: Scope) -> Ran | None:
        """What a loop goes through that calls the step for each: a generator of the user's, or ``map(step, x)``."""
        if not isinstance(node, ast.Call):
            return None
        if last_name(node.func) in ("map", "imap") and len(node.args) > 1:
            of = node.args[0]
            call = ast.Call(of, [], [])
            if id(of) in self._handed_over or Search(scope.names, self.function, set()).calls(call):
                return self._ran(node, of, self.result, scope)
        hands = self._hands.get(last_name(node.func))
        if hands is None or not hands.yields or hands.part is None:
            return None
        return self._ran(node, _as_called(hands, node), hands.part, scope)

    def _ran(self, node: ast.Call, of: ast.expr, part: Any, scope: Scope) -> Ran:
        names = frozenset(n.id for n in ast.walk(of) if isinstance(n, ast.Name))
        return Ran(node, ast.unparse(of), names, frozenset(_sizes(node, scope.body)), part)

    def moves(self, call: ast.AST, body: ast.AST) -> bool:
        """Whether each round may give a call another size, and so another graph."""
        if not self.by_key or not isinstance(call, ast.Call):
            return False
        loops = [n for n in ast.walk(body) if isinstance(n, (*LOOPS, *_COMPREHENSIONS)) and call in ast.walk(n)]
        stored = {n.id for each in loops for n in ast.walk(each) if isinstance(n, ast.Name) and _is_store(n)}
        named = {n.id for each in _sized(_arguments(call)) for n in ast.walk(each) if isinstance(n, ast.Name)}
        return not named.isdisjoint(stored)


def _is_store(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _as_called(hands: _Hands, call: ast.Call) -> ast.expr:
    """What a function calls the step by, as its caller names that."""
    arguments = [each.arg for each in (*hands.node.args.posonlyargs, *hands.node.args.args)]
    given = [*call.args]
    if arguments[:1] == ["self"] and isinstance(call.func, ast.Attribute):
        given.insert(0, call.func.value)
    by_name = dict(zip(arguments, given, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}

    class _Named(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return by_name.get(node.id, node)

    made: ast.expr = _Named().visit(ast.parse(ast.unparse(hands.of), mode="eval").body)
    return made


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(each.value for each in call.keywords)]


def _sized(given: Iterable[ast.expr]) -> Iterator[ast.AST]:
    """What decides how large arguments are, or which of several they are, as far as it is written."""
    for each in given:
        if isinstance(each, ast.Constant):
            yield each
        for n in ast.walk(each):
            if isinstance(n, ast.Call):
                yield from _arguments(n)
            elif isinstance(n, ast.Slice):
                yield n


def _sizes(call: ast.Call, body: ast.AST) -> Iterator[str]:
    """The same as text, also of what names that are given once stand for."""
    assigns = [pair for n in ast.walk(body) for pair in pairs_of(n)]
    given = _arguments(call)
    for _ in range(_NAMED):
        yield from map(ast.unparse, _sized(given))
        names = {n.id for each in given for n in ast.walk(each) if isinstance(n, ast.Name)}
        values = [[value for to, value in assigns if isinstance(to, ast.Name) and to.id == name] for name in names]
        given = [each[0] for each in values if len(each) == 1]
