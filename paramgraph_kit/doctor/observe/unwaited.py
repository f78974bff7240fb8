"""Pinned memory around a step whose caller waits for no copy: read, filled for the next one, or kept."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import LOOPS, ROUNDS, here, last_name
from paramgraph_kit.doctor.observe.captured_values import NOTHING
from paramgraph_kit.doctor.observe.gradients import Scope, Search
from paramgraph_kit.doctor.observe.held import attributes_of, is_a, results_in
from paramgraph_kit.doctor.observe.host_copies import HostCopies, noted_late, told, told_handed, told_late
from paramgraph_kit.doctor.observe.kept import kept
from paramgraph_kit.doctor.observe.kept_results import SAID_OF_HOST, kept_at, of_host
from paramgraph_kit.doctor.observe.loop_names import functions_in
from paramgraph_kit.doctor.observe.loop_state import Function
from paramgraph_kit.doctor.observe.parts_of_results import Results
from paramgraph_kit.doctor.observe.steps_around import StepsAround
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure, Frame

_WAITS = frozenset({"synchronize", "item", "tolist", "cpu", "query", "wait", "result", "join"})
_READS_ALONE = frozenset({"item", "tolist", "cpu"})  # which wait for nothing where a tensor is the host's
_SHOW = frozenset({"print", "str", "repr", "format", "allclose", "equal", "assert_close", "info", "debug"})
_OF_HOST = frozenset({"len", "time", "perf_counter", "monotonic", "range", "isinstance", "hasattr", "id", "type"})
_KEEPS = frozenset({"append", "add", "appendleft", "setdefault", "put", "isinstance", "len", "id"})
_ABOUT = frozenset({"numel", "size", "dim", "stride", "is_pinned", "data_ptr", "element_size"})
_WAIT = "torch.cuda.synchronize()"


@dataclass(frozen=True, slots=True)
class _Round:
    """A loop that calls the step, and what its lines call results."""

    scope: Scope
    inside: list[ast.AST]
    results: Results  # that are pinned memory
    whole: Results  # whatever they are
    is_loop: bool  # and no comprehension
    around: list[ast.AST]  # all lines of its scope
    ends: int  # its last line
    value: Callable[[ast.expr], Any]  # what names and attributes mean around it

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

    def waits(self) -> bool | None:
        """Whether a line waits for the device: also a function of the file's that is called there; None: perhaps."""
        if any(isinstance(n, (ast.Await, ast.Yield, ast.AsyncFor, ast.AsyncWith)) for n in self.inside):
            return True
        own = {n.name: n for n in functions_in(self.scope.file)}
        asked = list[ast.expr]()
        for call in (n for n in self.inside if isinstance(n, ast.Call) and not self.results.calls(n)):
            name = last_name(call.func)
            on = call.func.value if isinstance(call.func, ast.Attribute) else None
            of_host = on is not None and name in _READS_ALONE and self._is_of_result(on)
            if name in _WAITS and not of_host:
                return True
            if name in own and self._is_waiting(call, own[name]):
                return True
            asked += call.args if name in ("int", "float", "bool", *_SHOW) else []
        asked += [n.test for n in self.inside if isinstance(n, (ast.If, ast.IfExp, ast.While, ast.Assert))]
        asked += [n.value for n in self.inside if isinstance(n, ast.FormattedValue)]
        found = [self._is_of_device(each) for each in asked]
        return True if any(found) else None if None in found else False

    def _is_waiting(self, call: ast.Call, function: Function) -> bool:
        """Whether a function that a line calls waits for the device, and does not only read what the host has."""
        value = self._value_in(call, function)
        asked = [n.func for n in _here_in(function) if isinstance(n, ast.Call) and last_name(n.func) in _WAITS]
        return any(last_name(f) not in _READS_ALONE or not _is_of_host(f, value) for f in asked)

    def _value_in(self, call: ast.Call, function: Function) -> Callable[[ast.expr], Any]:
        """What paths of a function mean that is called here: its object's, and what it is given."""
        names = [each.arg for each in function.args.args]
        on = call.func.value if isinstance(call.func, ast.Attribute) and names[:1] == ["self"] else None
        given = dict(zip(names[on is not None :], call.args, strict=False))
        given |= {each.arg: each.value for each in call.keywords if each.arg} | ({"self": on} if on is not None else {})
        return lambda node: self.value(_as_called(node, given))

    def _is_of_device(self, node: ast.expr) -> bool | None:
        """Whether the numbers of an expression are the device's, for which who asks waits; None: nobody knows."""
        if is_a(held := self.value(node), torch.Tensor):
            return bool(held.device.type != "cpu")
        if isinstance(node, (ast.Attribute, ast.Subscript, ast.Name)) or self.results.calls(node):
            part = self.whole.of(node)
            if part is not NOTHING:
                return any(t.device.type != "cpu" for t in results_in(part))
        if isinstance(node, ast.Name):
            return False if node.id in self._counted() else None
        if isinstance(node, ast.Call) and last_name(node.func) in _OF_HOST:
            return False
        if isinstance(node, ast.Compare) and all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            return False
        parts = [n.value if isinstance(n, ast.keyword) else n for n in ast.iter_child_nodes(node)]
        inner = [node.func.value] if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else []
        func = [node.func] if isinstance(node, ast.Call) else []
        found = [self._is_of_device(n) for n in [*inner, *parts] if isinstance(n, ast.expr) and n not in func]
        if func and not found:
            return None
        return True if any(found) else None if None in found else False

    def _counted(self) -> set[str]:
        """Names that a loop counts with."""
        loops = [n for n in self.around if isinstance(n, ast.For) and isinstance(n.iter, ast.Call)]
        names = [n.target for n in loops if last_name(n.iter.func) == "range"]  # type: ignore[attr-defined]
        pairs = [n.target for n in loops if last_name(n.iter.func) == "enumerate"]  # type: ignore[attr-defined]
        names += [each.elts[0] for each in pairs if isinstance(each, ast.Tuple)]
        return {n.id for n in names if isinstance(n, ast.Name)}

    def _is_of_result(self, node: ast.expr) -> bool:
        while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)) and self.whole.of(node) is NOTHING:
            if is_a(held := self.value(node), torch.Tensor):
                return bool(held.device.type == "cpu")
            node = node.func if isinstance(node, ast.Call) else node.value
        return isinstance(node, ast.Constant) or self._is_of_device(node) is False

    def reads_of(self, memory: int) -> Iterator[Frame]:
        """Where lines of the round read a tensor that something keeps, ``reader.loss.item()``, or what they call."""
        yield from (self.frame(n.lineno) for n in self._used(self.inside, self.value, memory))
        own = {n.name: n for n in functions_in(self.scope.file)}
        for call in (n for n in self.inside if isinstance(n, ast.Call) and not self.results.calls(n)):
            if (function := own.get(last_name(call.func))) is not None:
                for node in self._used([*_here_in(function)], self._value_in(call, function), memory):
                    yield replace(self.frame(node.lineno), function=function.name)

    def _used(self, nodes: list[ast.AST], value: Callable[[ast.expr], Any], memory: int) -> Iterator[ast.expr]:
        calls = [n for n in nodes if isinstance(n, ast.Call) and last_name(n.func) not in (*_KEEPS, *_OF_HOST)]
        used = [n for call in calls for n in call.args if not self.results.calls(call)]
        used += [n.func.value for n in calls if isinstance(n.func, ast.Attribute) and n.func.attr not in _ABOUT]
        used += [n.value for n in nodes if isinstance(n, (ast.Subscript, ast.FormattedValue))]
        used += [part for n in nodes if isinstance(n, ast.BinOp) for part in (n.left, n.right)]
        held = ((n, value(n)) for n in used if isinstance(n, (ast.Name, ast.Attribute)))
        yield from (n for n, value in held if is_a(value, torch.Tensor) and storage_key(value) == memory)

    def reads(self) -> Iterator[ast.expr]:
        """Where a result is read, and not only named or kept: in the loop, else behind it, ahead of any wait."""
        found = [*self._reads_in(self.inside)]
        behind = [n for n in self.around if getattr(n, "lineno", 0) > self.ends] if not found else []
        stored = {n.id: n.lineno for n in reversed(behind) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        waits = [n for n in behind if isinstance(n, ast.Call) and last_name(n.func) in _WAITS - _READS_ALONE]
        first = min((n.lineno for n in waits), default=self.ends + len(self.around) + 1)
        for node in self._reads_in(behind):
            name = node.id if isinstance(node, ast.Name) else ""
            if name and node.lineno < min(first, stored.get(name, first)):
                found.append(node)
        yield from found

    def _reads_in(self, nodes: list[ast.AST]) -> Iterator[ast.expr]:
        kept = [n for n in nodes if isinstance(n, ast.Call) and last_name(n.func) in _KEEPS]
        only = {id(part) for call in kept for part in call.args}
        only |= {id(n.value) for n in nodes if isinstance(n, (ast.Assign, ast.Return))}
        for node in (n for n in nodes if isinstance(n, (ast.Name, ast.Call))):
            is_read = isinstance(node, ast.Call) or isinstance(node.ctx, ast.Load)
            if is_read and id(node) not in only and self.results.has(node):
                yield node


def problems(
    around: StepsAround, function: Callable[..., Any], result: Any, hosts: HostCopies, notes: list[str]
) -> Iterator[Failure]:
    """The same, where loops around it are known; ``notes`` gets what only may be."""
    filled = [t for t in results_in(result) if hosts.fills(t)]
    frames = kept(around.scopes, function, (), result, lambda p: any(map(hosts.fills, results_in(p))), around.calls)
    yield from (of_host(kept_at(SAID_OF_HOST, *each)) for each in (frames.items() if filled else ()))
    if filled and not frames:
        text = "its result is pinned memory that the copy of the next call writes to: who keeps it needs a clone()"
        notes.append(text)
    rounds = [*_rounds(around, function, result, hosts)]
    waits = [(each, each.waits()) for each in rounds]
    late = [each for each, waited in waits if waited is False]
    unsure = not rounds or any(waited is None for _, waited in waits)
    for _, known in hosts.unread[:1]:
        if read := next(((at, node) for at in late for node in at.reads()), None):
            frame = read[0].frame(read[1].lineno)
            failure = told(known, frame, _WAIT, writes=False)
            yield replace(failure, fix=f"before  {frame.text}\nafter   {read[0].with_wait(read[1], frame.text)}")
        elif late or unsure:
            said = f"its result is pinned memory that {known.named()} may still write"
            notes.append(f"{said}: who reads it waits ahead of that, as by `{_WAIT}`")
    for place, known, by_event in hosts.handed:
        if (late or not rounds) and not by_event:
            yield told_handed(place, known)
        elif late or unsure:
            said = f"its result is an array of pinned memory that {known.named()} may still write"
            notes.append(f"{said}: who reads it waits ahead of that, as by `{_WAIT}`")
    for known in hosts.left[:1]:
        if at := next((frame for each in late for frame in each.reads_of(known.memory)), None):
            yield told(known, at, _WAIT, writes=False)
        elif late or unsure:
            said = f"{known.named()} may still write to pinned memory that lives on behind it"
            notes.append(f"{said}: who reads that waits ahead of it, as by `{_WAIT}`")
    for place, known in hosts.late:
        if late:
            yield told_late(place, known)
        elif unsure and not hosts.unread:  # who reads that waits for this, too
            notes.append(noted_late(place, known))


def _rounds(around: StepsAround, function: Callable[..., Any], result: Any, hosts: HostCopies) -> Iterator[_Round]:
    """The innermost loops that call the step, and comprehensions."""

    def holds(part: Any) -> bool:
        return any(map(hosts.fills, results_in(part)))

    for scope in around.scopes:
        search = Search(scope.names, function, set())

        def calls(node: ast.AST, search: Search = search) -> bool:
            return search.calls(node) or any(node is each for each in around.calls)

        every = [n for statement in scope.body.body for n in here(statement)]
        loops = [(n, [each for part in _body(n) for each in here(part)]) for n in every if isinstance(n, ROUNDS)]
        loops = [(n, inside) for n, inside in loops if any(map(calls, inside))]
        for loop, inside in loops:
            if not any(other in inside for other, _ in loops if other is not loop):
                results = Results({}, calls, result, holds).named_in(inside)
                whole = Results({}, calls, result, lambda _: True).named_in(inside)
                kept_there = attributes_of(getattr(function, "__self__", None))
                value = partial(_value, search=search, own=_owners(inside, calls), holds=kept_there)
                rounds = scope, inside, results, whole, isinstance(loop, LOOPS), every, loop.end_lineno or 0
                yield _Round(*rounds, value)


def _owners(inside: list[ast.AST], calls: Callable[[ast.AST], bool]) -> set[str]:
    """What lines call the object whose method is the step."""
    made = (n.func.value for n in inside if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and calls(n))
    return {*map(ast.unparse, made)}


def _value(node: ast.expr, search: Search, own: Collection[str], holds: Mapping[str, Any]) -> Any:
    """What a path means around the step; of its object also where a variable of another function has that."""
    found = search._value(node)
    is_own = found is None and isinstance(node, ast.Attribute) and ast.unparse(node.value) in own
    return holds.get(node.attr) if is_own and isinstance(node, ast.Attribute) else found


def _here_in(function: Function) -> Iterator[ast.AST]:
    """What a function runs itself."""
    return (n for statement in function.body for n in here(statement))


def _as_called(node: ast.expr, given: Mapping[str, ast.expr]) -> ast.expr:
    """A path of a function's as its caller would write it."""
    if isinstance(node, ast.Name):
        return given.get(node.id, node)
    if isinstance(node, ast.Attribute):
        return ast.Attribute(_as_called(node.value, given), node.attr, node.ctx)
    return node


def _is_of_host(read: ast.AST, value: Callable[[ast.expr], Any]) -> bool:
    """Whether what is read, ``self.host[0].item``, begins with a tensor of the host's."""
    while isinstance(read, (ast.Attribute, ast.Subscript, ast.Call)):
        read = read.func if isinstance(read, ast.Call) else read.value
        if isinstance(read, (ast.Name, ast.Attribute)) and is_a(held := value(read), torch.Tensor):
            return bool(held.device.type == "cpu")
    return False


def _body(node: ast.AST) -> list[ast.AST]:
    return [*node.body] if isinstance(node, LOOPS) else [node]
