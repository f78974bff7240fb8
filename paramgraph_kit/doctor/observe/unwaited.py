"""Pinned memory around a step whose caller waits for no copy: read, filled for the next one, or kept."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from paramgraph_kit.doctor.explain.syntax import LOOPS, here, last_name
from paramgraph_kit.doctor.observe.gradients import Scope, Search
from paramgraph_kit.doctor.observe.held import tensors_in
from paramgraph_kit.doctor.observe.host_copies import HostCopies, noted_late, told, told_late
from paramgraph_kit.doctor.observe.kept import kept
from paramgraph_kit.doctor.observe.kept_results import SAID_OF_HOST, kept_at
from paramgraph_kit.doctor.observe.loop_names import calls_in, functions_in
from paramgraph_kit.doctor.observe.parts_of_results import Results
from paramgraph_kit.doctor.observe.steps_around import StepsAround
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure, Frame

_WAITS = frozenset({"synchronize", "item", "tolist", "cpu", "numpy", "query", "wait", "result", "join"})
_READS_ALONE = frozenset({"item", "tolist", "numpy", "cpu"})  # which wait for nothing where a tensor is the host's
_SHOW = frozenset({"print", "str", "repr", "format", "allclose", "equal", "assert_close", "info", "debug"})
_KEEPS = frozenset({"append", "add", "appendleft", "setdefault", "put", "isinstance", "len", "id"})
_ROUNDS = (*LOOPS, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_WAIT = "torch.cuda.synchronize()"


@dataclass(frozen=True, slots=True)
class _Round:
    """A loop that calls the step, and what its lines call results."""

    scope: Scope
    inside: list[ast.AST]
    results: Results
    is_loop: bool  # and no comprehension

    def frame(self, line: int) -> Frame:
        """One of its lines."""
        text = linecache.getline(self.scope.file, line).strip()
        return Frame(display_name(self.scope.file), line, getattr(self.scope.body, "name", "<module>"), text)

    def with_wait(self, node: ast.expr, line: str) -> str:
        """A line that reads a result, with a wait ahead of it."""
        calls = [
            n for n in self.inside if isinstance(n, ast.Call) and self.results.calls(n) and n.lineno == node.lineno
        ]
        call = ast.unparse(calls[0]) if calls else ""
        if not calls:
            return f"ahead of this line: {_WAIT}"
        if self.is_loop and call in line:
            return f"y = {call}; {_WAIT}; {line.replace(call, 'y')}"
        return f"a loop in its place, with {_WAIT} between `{call}` and what reads its result"

    def waits(self) -> bool:
        """Whether a line may wait for the device: also a function of the file's that is called there."""
        if any(isinstance(n, (ast.Await, ast.Yield, ast.AsyncFor, ast.AsyncWith)) for n in self.inside):
            return True
        own = {n.name: n for n in functions_in(self.scope.file)}
        for call in (n for n in self.inside if isinstance(n, ast.Call) and not self.results.calls(n)):
            name = last_name(call.func)
            on = call.func.value if isinstance(call.func, ast.Attribute) else None
            of_host = on is not None and name in _READS_ALONE and self._is_of_result(on)
            if name in _WAITS and not of_host:
                return True
            if name in own and not calls_in(own[name]).isdisjoint(_WAITS):
                return True
            if name in ("int", "float", "bool") and not all(map(self._is_of_result, call.args)):
                return True  # of a tensor it waits
        return any(map(self._shows, self.inside))

    def _shows(self, node: ast.AST) -> bool:
        """Whether numbers of what a call gives are asked for: to print them, or to decide something."""
        test = node.test if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)) else None
        shown = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and last_name(node.func) in _SHOW)
        nodes = [*ast.walk(test)] if test is not None else [*ast.walk(node)] if shown else []
        assigns = [
            n for n in self.inside if isinstance(n, ast.Assign) and any(map(self.results.calls, ast.walk(n.value)))
        ]
        made = {n.id for each in assigns for t in each.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        named = [n for n in nodes if self.results.calls(n) or (isinstance(n, ast.Name) and n.id in made)]
        return any(not self.results.has(n) for n in named if isinstance(n, ast.expr))

    def _is_of_result(self, node: ast.expr) -> bool:
        while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)) and not self.results.has(node):
            node = node.func if isinstance(node, ast.Call) else node.value
        return self.results.has(node) or isinstance(node, ast.Constant)

    def reads(self) -> Iterator[ast.expr]:
        """Where a result is read, and not only named or kept."""
        kept = [n for n in self.inside if isinstance(n, ast.Call) and last_name(n.func) in _KEEPS]
        only = {id(part) for call in kept for part in call.args}
        only |= {id(n.value) for n in self.inside if isinstance(n, ast.Assign)}
        for node in (n for n in self.inside if isinstance(n, (ast.Name, ast.Call))):
            is_read = isinstance(node, ast.Call) or isinstance(node.ctx, ast.Load)
            if is_read and id(node) not in only and self.results.has(node):
                yield node


def problems(
    around: StepsAround, function: Callable[..., Any], result: Any, hosts: HostCopies, notes: list[str]
) -> Iterator[Failure]:
    """The same, where loops around it are known; ``notes`` gets what only may be."""
    filled = [t for t in tensors_in(result) if hosts.fills(t)]
    frames = kept(around.scopes, function, (), result, lambda p: any(map(hosts.fills, tensors_in(p))), around.calls)
    yield from (kept_at(SAID_OF_HOST, *each) for each in (frames.items() if filled else ()))
    if filled and not frames:
        text = "its result is pinned memory that the copy of the next call writes to: who keeps it needs a clone()"
        notes.append(text)
    rounds = [*_rounds(around, function, result, hosts)]
    late = [each for each in rounds if not each.waits()]
    for _, known in hosts.unread[:1]:
        for at, node in ((each, node) for each in late for node in each.reads()):
            frame = at.frame(node.lineno)
            failure = told(known, frame, _WAIT, writes=False)
            yield replace(failure, fix=f"before  {frame.text}\nafter   {at.with_wait(node, frame.text)}")
            break
        if not rounds:
            said = f"its result is pinned memory that {known.named()} may still write"
            notes.append(f"{said}: who reads it waits ahead of that, as by `{_WAIT}`")
    for place, known in hosts.late:
        if late:
            yield told_late(place, known)
        elif not rounds and not hosts.unread:  # who reads that waits for this, too
            notes.append(noted_late(place, known))


def _rounds(around: StepsAround, function: Callable[..., Any], result: Any, hosts: HostCopies) -> Iterator[_Round]:
    """The innermost loops that call the step, and comprehensions."""

    def holds(part: Any) -> bool:
        return any(map(hosts.fills, tensors_in(part)))

    for scope in around.scopes:
        search = Search(scope.names, function, set())

        def calls(node: ast.AST, search: Search = search) -> bool:
            return search.calls(node) or any(node is each for each in around.calls)

        every = [n for statement in scope.body.body for n in here(statement)]
        loops = [(n, [each for part in _body(n) for each in here(part)]) for n in every if isinstance(n, _ROUNDS)]
        loops = [(n, inside) for n, inside in loops if any(map(calls, inside))]
        for loop, inside in loops:
            if not any(other in inside for other, _ in loops if other is not loop):
                results = Results({}, calls, result, holds).named_in(inside)
                yield _Round(scope, inside, results, isinstance(loop, LOOPS))


def _body(node: ast.AST) -> list[ast.AST]:
    return [*node.body] if isinstance(node, LOOPS) else [node]
