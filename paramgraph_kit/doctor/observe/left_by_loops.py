"""What lines around a function leave otherwise between two replays of its graph: it is called as they leave it."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.doctor.observe.captured_values import NOTHING
from paramgraph_kit.doctor.observe.gradients import around
from paramgraph_kit.doctor.observe.held import attributes_of, is_a, is_graph, unbound
from paramgraph_kit.doctor.observe.left_by_turns import call_as_turned, turned_lines
from paramgraph_kit.doctor.observe.loop_flow import Flow
from paramgraph_kit.doctor.observe.loop_state import ENTRIES, LEARNS, MEMORY, MODE, Found, Given, Run
from paramgraph_kit.doctor.observe.loop_values import PLAIN
from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.doctor.observe.other_entries import Change, Entries, other
from paramgraph_kit.doctor.observe.rare_turns import Given as Turned
from paramgraph_kit.doctor.observe.set_by_loops import moved, value_of
from paramgraph_kit.doctor.observe.short_names import first_of
from paramgraph_kit.doctor.observe.steps_around import StepsAround
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.driver.select import driver

_MOST = 12  # lines that are tried
_NUMBERS = ("min", "max", "abs", "float", "int", "round", "len", "math")
_DEEP = 3  # lists in dictionaries in which a graph may be


class _FlowOfReplays(Flow):
    """The same where the step replays: a line that captures, or lets a graph go, leaves all as its graph has it."""

    replays = True

    def _captured(self) -> None:
        self.state.last.clear()

    def _made_by(self, node: ast.expr, run: Run) -> Any:
        made = super()._made_by(node, run)
        if made is not NOTHING and made is self.owner:  # it has captured, or will at the first call
            self._captured()
        return made

    def _set(self, owner: Any, name: str, value: Any, text: str, node: ast.AST, run: Run) -> None:
        now = owner if name == ENTRIES else value_of(owner, name)
        if _has_graph(now):
            self._captured()
            return
        super()._set(owner, name, value, text, node, run)


@dataclass(frozen=True, slots=True)
class Left:
    """What following the lines around a function that replays has shown."""

    around: StepsAround
    anew: set[tuple[str, int]] = field(default_factory=set)  # lines behind which it captures again
    turns: list[Turned] = field(default_factory=list)  # lines of its own that a later call may run
    turned: set[tuple[str, int]] = field(default_factory=set)  # those that change what its graph reads


def call_as_left(caller: Caller, last: Call, ran: set[CodeType]) -> Left:
    """Call a function once more for each such line: what it sets is seen at the replay, if the graph reads that."""
    left = Left(StepsAround(around(caller.function), []))
    if not caller.graphs.launched_regions():
        return left
    lines = list[tuple[Given, list[tuple[Any, str, Any]]]]()
    with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
        function, given = unbound(caller.function, caller.given())
        is_ahead = all(region.code not in ran for region in caller.graphs.launched_regions())
        own = ran | {region.code for region in caller.graphs.regions or ()}
        for found in _FlowOfReplays(function, given, left.around.scopes, own).all():
            left.around.bodies.append(found)
            every = _by_line(found, is_ahead)
            lines += [each for each in every if not any(each[0].node is line.node for line, _ in lines)]
    for line, places in lines[:_MOST]:
        held = [(r.values, dict(r.values.moved)) for r in caller.graphs.regions or () if r.values is not None]
        undo = list[Callable[[], None]]()
        try:
            with suppress(Exception), torch.no_grad():
                for owner, name, value in places:
                    undo += _leave(owner, name, value)
            call = caller.call(caller.args, caller.kwargs) if undo else None
        finally:
            for each in reversed(undo):
                each()
        for values, then in held:
            more = {key: replace(each, given=_given(line)) for key, each in values.moved.items() if key not in then}
            values.moved = {**then, **more} if call is not None and call.ended is None else then
        if call is not None and call.captures and call.ended is None:
            left.anew.add((display_name(line.file), line.node.lineno))  # type: ignore[attr-defined]
    left.turns.extend(turned_lines(caller, last, caller.graphs.ran))
    left.turned.update(call_as_turned(caller, left.turns, caller.graphs.launched_regions()))
    return left


def _given(line: Given) -> tuple[Any, ...]:
    """A line, what it sets, and the value that it gives, as far as it has one."""
    node: Any = line.node
    every = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    target = next((each for each in every if each is not None and ast.unparse(each) == line.target), None)
    return line.file, line.function, node, target, getattr(node, "value", None)


def _by_line(found: Found, is_ahead: bool) -> Iterator[tuple[Given, list[tuple[Any, str, Any]]]]:
    """What each line leaves otherwise, and as what, as far as that is known."""
    lines: dict[int, tuple[Given, list[tuple[Any, str, Any]]]] = {}
    for line, now in moved(found, is_ahead=is_ahead):
        known = [v for n, e in found.given.items() if e is line for v in found.values[n] if type(v) in PLAIN]
        value = next((v for v in known if v != now or type(v) is not type(now)), NOTHING)
        table, key = _place(line.owner, line.name)
        if value is NOTHING is now and table is not None and key not in table:
            value = _given_first(line)
        lines.setdefault(id(line.node), (line, []))[1].append((line.owner, line.name, value))
    for (owner_id, name), numbers in found.at_step.items():
        late = [n for n in sorted(numbers) if n > 0 and found.given[n].is_late] if name == ENTRIES else []
        for n in late:
            line, value = found.given[n], found.values[n][-1]
            lines.setdefault(id(line.node), (line, []))[1].append(
                (found.owners[owner_id], ENTRIES, Change(line.node, value))
            )
    yield from lines.values()


def _given_first(line: Given) -> Any:
    """A value of the kind that a line gives to what was not there: a tensor of torch's, or else a number."""
    value = getattr(line.node, "value", None)
    calls = [n for n in ast.walk(value) if isinstance(n, ast.Call)] if isinstance(value, ast.expr) else []
    is_number = isinstance(value, ast.Call) and first_of(value.func) in _NUMBERS
    of_torch = any(first_of(n.func) == "torch" for n in calls) and not is_number
    return NOTHING if value is None else torch.ones((), device=driver().device) if of_torch else 1.5


def _leave(owner: Any, name: str, value: Any) -> Iterator[Callable[[], None]]:
    """Set it, and give what undoes that."""
    if name == ENTRIES:
        entries = Entries(owner, (value,)).tries()
        if next(entries, NOTHING) is not NOTHING:
            yield entries.close
        return
    if is_a(owner, torch.Tensor):
        if name == MEMORY:
            data = owner.data
            owner.data = data.clone()
            yield lambda: setattr(owner, "data", data)
        elif name == LEARNS:
            learns = owner.requires_grad
            owner.requires_grad_(not learns)
            yield lambda: setattr(owner, "requires_grad", learns)
        return
    table, key = _place(owner, name)
    if table is None:
        return
    if key not in table:  # a capture may have asked for it in vain
        if value is not NOTHING and not isinstance(owner, type):
            table[key] = value
            yield lambda: table.pop(key, None)
        return
    then = table[key]
    new = value if value is not NOTHING else (not then if name == MODE else _another(then))
    if new is then:
        return
    table[key] = new
    yield lambda: table.__setitem__(key, then)


def _place(owner: Any, name: str) -> tuple[Any, Any]:
    """Where an attribute or an entry is kept."""
    if name.startswith("["):
        key = ast.literal_eval(name[1:-1])
        if is_a(owner, torch.nn.Module):  # one in a row of them
            return owner._modules, str(key)
        return (owner, key) if isinstance(owner, dict) else (None, None)
    if isinstance(owner, type) or name == "":
        return None, None
    for held in ("_modules", "_parameters", "_buffers") if is_a(owner, torch.nn.Module) else ():
        if name in vars(owner).get(held, {}):
            return vars(owner)[held], name
    return attributes_of(owner), name


def _another(value: Any) -> Any:
    """Another one of its kind, and itself where nobody knows one."""
    if is_a(value, torch.nn.Module):
        return copy.deepcopy(value)
    if is_a(value, torch.Tensor) or type(value) in (*PLAIN, list, tuple, dict):
        return other(value)
    if callable(value) or isinstance(value, type) or not (has := attributes_of(value)):
        return value
    made = copy.copy(value)
    for name, each in has.items():
        if type(each) in NUMBERS or is_a(each, torch.Tensor):
            vars(made)[name] = other(each)
    return made


def _has_graph(value: Any, deep: int = _DEEP) -> bool:
    if is_graph(value):
        return True
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return bool(deep) and any(_has_graph(each, deep - 1) for each in parts)
