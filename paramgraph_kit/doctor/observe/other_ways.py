"""What stands in branches that no call has taken, and that a later one may: a few more calls are led into them.

``if done.any():`` of an environment, ``if step % 100 == 0:``, ``if self.good == self.interval:``. What led calls show
there is told at its line; what they leave in Python, and a call behind them reads, is told where it is read.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import CodeType

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.number_kinds import AMOUNTS
from paramgraph_kit.doctor.observe import (
    chance,
    counted_by_size,
    drawn_copies,
    kept_by_choice,
    memory_given,
    read_tests,
    written_when_run,
)
from paramgraph_kit.doctor.observe.always_given import is_always_so
from paramgraph_kit.doctor.observe.compare import differences, of_tensors_alone
from paramgraph_kit.doctor.observe.effects import effect
from paramgraph_kit.doctor.observe.held import code_of, tensors_in
from paramgraph_kit.doctor.observe.led import Key, Led
from paramgraph_kit.doctor.observe.moving import Moving, Test, Within, of_host
from paramgraph_kit.doctor.observe.observer import Step
from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.doctor.observe.other_readings import grow
from paramgraph_kit.doctor.observe.places import Place, frame_of, reached
from paramgraph_kit.doctor.observe.source_lines import Line, frame_at, lines_of, path_of, takes_away, written_in
from paramgraph_kit.doctor.restore.holder import Change, same
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.driver.select import driver
from paramgraph_kit.driver.work import worked_s
from paramgraph_kit.trace.model import Failure, Frame

MOST = 12  # ways that are gone
SECONDS = 3.0  # that they may take together
MANY = 256  # entries
DEEP = 3  # turns of one call
LED = "no call came here by itself, and a later one may"
BEHIND = "once a branch is taken that none of these calls took"
_ENDS = ("raises", "exits", "time-limit", "not-simulated", "empty-graph")
_WAITS = ("sync-item", "copy-to-cpu", "data-dependent-branch")
_SIZED = ("dynamic-shape", "hidden-size")
_MOVED = ("scalar-frozen", "learning-rate-frozen", "host-random", "cpu-scalar-frozen")
_BEHIND = ("scalar-frozen", "size-frozen", "branch-frozen", "learning-rate-frozen", "stale-input")
_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_MAY_ASSERT = frozenset(
    "gather scatter scatter_ index_select index_copy_ take multinomial one_hot embedding cross_entropy nll_loss".split()  # noqa: SIM905
)


@dataclass(slots=True)
class _Way:
    """A way that some turns lead to."""

    turns: dict[Key, bool]
    code: CodeType
    node: Test
    part: Sequence[ast.stmt | ast.expr]  # what runs there


@dataclass(slots=True)
class OtherWays:
    """Those of one examination."""

    caller: Caller
    base: Call
    codes: list[CodeType]
    seen: Collection[Failure]
    more: list[Failure] = field(default_factory=list)
    moving: Moving = field(init=False)
    plain: Call = field(init=False)  # that asks, and goes its own ways
    second: Call | None = None
    passed: frozenset[Key] = frozenset()  # that a call comes by which is not led
    tests: dict[Key, tuple[CodeType, Test]] = field(default_factory=dict)

    def problems(self) -> None:
        """Find what such ways have, beside what is told already."""
        self._read()
        known = (*self.base.found, *self.seen)
        self.more += read_tests.problems(self.moving, self.base.steps, lines_of(known))
        if not self.tests:
            return
        led, begun, gone = Led(self.caller.state.functions), worked_s(), 0
        held = self.caller.state.read()
        try:
            grow(self.caller, self.base)
            self.plain = self._call(led, {}, self.base.number)
            todo, self.passed = self._open(led, {}), frozenset(led.asked)
            while todo and gone < MOST and worked_s() - begun < SECONDS:
                way = todo.pop(0)
                gone += 1
                todo += self._go(led, way)
        finally:
            self.caller.state.set_to(held)

    def _read(self) -> None:
        """Find the tests, with all that is known by now."""
        told = [*self.base.found, *self.seen, *self.more]
        given = {"branch-frozen", "data-dependent-branch"}
        numbers = [name for name, value in self.caller.given().items() if type(value) is int]
        self.moving = Moving(
            self.codes,
            of_host(self.base.changes),
            lines_of(f for f in told if f.code in _WAITS),
            lines_of(f for f in told if f.code in _SIZED),
            lines_of(f for f in told if f.code in given) | self._drawn_tests(),
            numbers,
            reached(self.base.ran(), self.codes),
        )
        self.tests = {_key(code, node): (code, node) for code, node in self.moving.tests()}

    def _drawn_tests(self) -> set[Line]:
        """Tests that ask for what is drawn on the host, by whatever name its generator has."""
        drawn = self.base.random_drawn or self.base.own_drawn
        return {(at.file, at.line) for at in chance.tests(self.codes)} if drawn else set()

    def _numbers(self) -> dict[str, list[float]]:
        """Those that objects, arguments and modules have, by their names."""
        found: dict[str, list[float]] = {}
        held = [holder.read() for holder in self.caller.state.holders if holder.kind in ("attributes", "slots")]
        spaces = [space for space in held if isinstance(space, dict)] + [self.caller.given()]
        singles = [{h.name: h.read()} for h in self.caller.state.holders if h.kind in ("cell", "global")]
        for name, value in (pair for space in (*spaces, *singles) for pair in space.items()):
            if type(value) in AMOUNTS and isinstance(name, str):
                found.setdefault(name, []).append(value)
        return found

    def _call(self, led: Led, turns: dict[Key, bool], drawing: int = 0, *, filled: bool = False) -> Call:
        if drawing:
            self.caller.state.set_to(self.base.before)
        if filled:
            self._fill()
        with led.to(turns):
            return self.caller.call(self.caller.args, self.caller.kwargs, drawing=drawing, led=bool(turns))

    def _fill(self) -> None:
        """Let what grows with the calls have many entries: a branch may draw more of them than there are."""
        state = self.caller.state
        for holder, then in zip(state.holders, self.base.before, strict=False):
            held = holder.target
            grows = isinstance(held, (list, deque)) and not holder.of_torch and isinstance(then, (list, deque))
            if grows and len(held) and any(c.name == holder.name and c.kind == holder.kind for c in self.base.changes):
                held.extend([held[-1]] * MANY)

    def _open(self, led: Led, turns: dict[Key, bool]) -> list[_Way]:
        """Ways that a call has come by and not gone, those of statements first."""
        return sorted(self._opened(led, turns), key=lambda way: isinstance(way.node, Within) + self._is_plain(way.node))

    def _is_plain(self, node: Test) -> bool:
        """Whether a test within an expression picks one of two numbers, or leads to one, and to nothing more."""
        return isinstance(node, Within) and self.moving.is_known([*node.body, *node.orelse])

    def _opened(self, led: Led, turns: dict[Key, bool]) -> Iterator[_Way]:
        for key, ways in led.asked.items():
            if key not in self.tests or key in turns or key in self.passed or len(ways) != 1:
                continue
            code, node = self.tests[key]
            other = not next(iter(ways))
            part: Sequence[ast.stmt | ast.expr] = node.body if other else node.orelse
            if not other and not part and isinstance(node, ast.If) and isinstance(node.body[-1], _LEAVES):
                part = _behind(node, code)
            if isinstance(node, ast.For | ast.While) and not other:
                continue
            leads = _is_work(part)
            if isinstance(node, Within):
                leads = bool(part) and (node.asks or not self._is_plain(node))
            leads = leads and not chance.is_decided(_test(node), code, self._numbers())
            leads = leads and not self._is_always_so(node, code)
            if leads and (driver().device.type != "cuda" or not _may_assert(part, self.codes)):
                yield _Way({**turns, key: other}, code, node, part)

    def _is_always_so(self, node: Test, code: CodeType) -> bool:
        """Whether all calls in the step give what is asked for, or none does."""
        tensors = [name for name, value in self.caller.given().items() if isinstance(value, torch.Tensor)]
        return is_always_so(_test(node), code, self.codes, code_of(self.caller.function), tensors)

    def _go(self, led: Led, way: _Way) -> list[_Way]:
        """Go one way, and look; the ways that are open there."""
        one = self._call(led, way.turns, self.base.number)
        if filled := one.ended is not None and one.ended.code == "raises":
            one = self._call(led, way.turns, self.base.number, filled=True)
        if one.ended is not None and one.ended.code == "time-limit":
            return []
        inside = _Inside(way, self.codes)
        found = [f for f in one.found if f.code not in _ENDS and inside(f.frame)]
        found += filter(lambda f: inside(f.frame), self._given_memory(one))
        base = [c for each in (*self.base.changes, *self.plain.changes) for c in each.entries()]
        changes = [c for each in one.changes for c in each.entries()]
        changes = [c for c in changes if not any(_is_same(c, each) for each in base)]  # which is told
        counted = [f for c in changes if (f := _effect_there(c, inside.nodes))]
        counted += kept_by_choice.problems(changes, self.codes, self.moving.waited)
        counted += counted_by_size.problems(inside.nodes, self.moving, one.steps)
        later = [f for f in one.found if f.code == "learning-rate-frozen" and not inside(f.frame)]
        if one.ended is None:
            two = self._call(led, way.turns, filled=filled)
            if two.ended is not None and two.ended.code == "raises" and not filled:
                two = self._call(led, way.turns, filled=True)  # it has drawn a place that is not there yet
            drawn = one.random_drawn or two.random_drawn
            found += [f for f in two.found if f.code not in _ENDS and inside(f.frame)]
            found = drawn_copies.told(found, drawn_copies.where_drawn(one, two, self.codes))
            moved = differences(one.steps, two.steps, random_drawn=drawn) if two.ended is None else []
            if self.base.changes and any(f.code == "host-random" and inside(f.frame) for f in moved):
                moved = chance.counted_instead(moved, self._drawing_the_same(led, way, one))
            found += [f for f in moved if f.code in _MOVED and inside(f.frame)]
            found += self._drawn(inside, one) if drawn else []
            if changes:
                behind = self.caller.call(self.caller.args, self.caller.kwargs, drawing=self.base.number)
                second = self._second()
                told = second.moved if any(f.code == "parameter-rebound" for f in self.seen) else ()
                steps = (second.steps, behind.steps) if behind.ended is None else ([], [])
                moved = differences(*steps, random_drawn=False, told=told)
                later += [f for f in moved if f.code in _BEHIND]
        known = {(f.code, f.frame) for f in (*self.base.found, *self.seen)}
        later = [f for f in later if (f.code, f.frame) not in known]  # a rate that moves either way has its problem
        # Where the host decides, and nothing of the device's is there, it all is done ahead of or behind a launch.
        of_device = [*later, *(f for f in found if f.code != "host-counter")]
        is_test = isinstance(way.node, ast.If) or (isinstance(way.node, Within) and way.node.asks)
        if of_device or not is_test or self.moving.is_read(_test(way.node), way.code):
            self._tell([*found, *counted], LED)
        self._tell(later, BEHIND)
        self._read()
        inner = self._open(led, way.turns) if len(way.turns) < DEEP else []
        if of_device or self._is_other(way, inside, one):
            self._tell_test(way)
        return inner

    def _drawing_the_same(self, led: Led, way: _Way, one: Call) -> list[Failure]:
        """What is another number in a later call that goes the same way, and draws the same."""
        with led.to(way.turns):
            other = self.caller.call(self.caller.args, self.caller.kwargs, drawing=self.base.number)
        return differences(one.steps, other.steps, random_drawn=False) if other.ended is None else []

    def _second(self) -> Call:
        """What a call does that comes behind another one, and is not led: a first one makes an optimizer's state."""
        if self.second is None:
            self.caller.state.set_to(self.base.before)
            for _ in range(2):
                self.second = self.caller.call(self.caller.args, self.caller.kwargs, drawing=self.base.number)
        return self.second if self.second is not None and self.second.ended is None else self.base

    def _given_memory(self, call: Call) -> list[Failure]:
        """What has other memory behind a call, and is read by it or by those that go the other way."""
        return memory_given.problems(call, self.codes, self.caller.state.names, self.plain.steps)

    def _is_other(self, way: _Way, inside: _Inside, call: Call) -> bool:
        """Whether the device does other things that way, as far as that is read from where its operations stand."""
        drawn = (display_name(way.code.co_filename), way.node.lineno) in self._drawn_tests()
        if not isinstance(way.node, Within) and not drawn:
            there = [step for step in call.steps if step.on_device]
            returns = isinstance(way.part[-1], ast.Return) and call.ended is None and not call.captures
            returns = returns and not _moves_away(_test(way.node), way.part is way.node.body, self.base.changes)
            leaves_out = returns and _within(there, way.code) < _within(self.plain.steps, way.code)
            return leaves_out or any(inside.runs(step.place) for step in there)
        if call.ended is not None:
            return False
        lines = lines_of((*self.base.found, *self.seen, *self.more))  # a rate that moves is told where it is used
        ats = (f.frame for f in differences(self.plain.steps, call.steps, random_drawn=False))
        return any(at is not None and (at.file, at.line) not in lines for at in ats)

    def _drawn(self, inside: _Inside, call: Call) -> Iterator[Failure]:
        """Branches on what the host draws, and what it picks of a list of tensors, where the device works there."""
        if not any(step.on_device and inside.runs(step.place) for step in call.steps):
            return
        for at in filter(inside, chance.tests(self.codes)):
            yield BY_ID["branch-frozen"].failure("it asks for what the host draws", at)
        lists = {c.name for c in self.base.changes if isinstance(c.after, (list, deque)) and tensors_in(c.after)}
        for at in filter(inside, chance.reads(self.codes, lists)):
            yield BY_ID["host-random"].failure("which one it reads is drawn on the host", at)

    def _tell(self, found: Iterable[Failure], how: str) -> None:
        known = (*self.base.found, *self.seen, *self.more)
        told, lines = {(f.code, f.frame) for f in known}, {f.frame for f in known}
        of_tensors = of_tensors_alone(known)
        for each in found:
            is_number = each.code == "scalar-frozen" and each.frame in of_tensors  # which is another thing there
            has_its = each.code in _BEHIND and each.frame in lines and not is_number
            if each.frame is None or (each.code, each.frame) in told or has_its:
                continue  # of what moves, that line has its problem
            told.add((each.code, each.frame))
            self.more.append(replace(each, message=f"{each.message} ({how})"))

    def _tell_test(self, way: _Way) -> None:
        """A branch is frozen, where what stands in it matters to the device."""
        node = way.node
        if isinstance(node, ast.For | ast.While) or (isinstance(node, Within) and not node.asks):
            return
        at, lines = frame_at(way.code, node.lineno), lines_of((*self.base.found, *self.seen, *self.more))
        if not any((at.file, line) in lines for line in range(node.lineno, (node.test.end_lineno or 0) + 1)):
            # What was read is kept apart: a rewriter that takes it for the host's own has nothing that tries its way.
            is_read = self.moving.is_read(node.test, way.code)
            text = read_tests.READ if is_read else "none of these calls took its other way, and a later one may"
            self.more.append(BY_ID["branch-frozen"].failure(text, at))


def _within(steps: Iterable[Step], code: CodeType) -> int:
    """How many operations of the device came of a function's lines, or of what they called."""
    of = display_name(code.co_filename), code.co_name
    frames = (map(frame_of, step.place.stack) for step in steps if step.on_device)
    return sum(any(at is not None and (at.file, at.function) == of for at in each) for each in frames)


class _Inside:
    """Whether a line is one that runs only where some way is gone."""

    def __init__(self, way: _Way, codes: list[CodeType]) -> None:
        last = max(part.end_lineno or part.lineno for part in way.part)
        self.file, self.lines = display_name(way.code.co_filename), range(way.part[0].lineno, last + 1)
        called = _called(way.part, codes)
        self.functions = {(display_name(c.co_filename), c.co_name) for c in called}
        self.nodes = [(way.code, n) for each in way.part for n in ast.walk(each)]
        self.nodes += [(code, n) for code in called for n in nodes_of(code)]

    def runs(self, place: Place) -> bool:
        """Whether an operation came of a line that stands there."""
        return any(
            at is not None and at.file == self.file and at.line in self.lines for at in map(frame_of, place.stack)
        )

    def __call__(self, frame: Frame | None) -> bool:
        if frame is None:
            return False
        is_here = frame.file == self.file and frame.line in self.lines
        return is_here or (frame.file, frame.function) in self.functions


def _called(part: Iterable[ast.AST], codes: list[CodeType]) -> list[CodeType]:
    """The user's functions that a part of a branch calls, and those that they call."""
    found: list[CodeType] = []
    names = {last_name(n.func) for each in part for n in ast.walk(each) if isinstance(n, ast.Call)} - {""}
    while True:
        more = [code for code in codes if code.co_name in names and code not in found]
        if not more:
            return found
        found += more
        names |= {last_name(n.func) for code in more for n in nodes_of(code) if isinstance(n, ast.Call)} - {""}


def _effect_there(change: Change, nodes: list[tuple[CodeType, ast.AST]]) -> Failure | None:
    """What a change means, where some lines have made it: those that only take out of a container keep nothing."""
    frame = written_in(change, nodes)
    failure = effect(change, frame)
    if failure is None or frame is None or failure.code != "output-alias":
        return failure
    here = [node for code, node in nodes if display_name(code.co_filename) == frame.file]
    calls = [n for n in here if getattr(n, "lineno", 0) == frame.line and isinstance(n, (ast.Call, ast.Delete))]
    if not any(map(takes_away, calls)) or written_in(change, [n for n in nodes if not takes_away(n[1])]) is not None:
        return failure
    return BY_ID["host-counter"].failure(f"{change.name} loses an entry", frame)


def _is_same(one: Change, other: Change) -> bool:
    """Whether both changes are of the same thing; of a dictionary's lists each is one of its own."""
    named = [(each.kind, each.owner, each.name, each.key, _length(each.after)) for each in (one, other)]
    return named[0] == named[1] and same(one.before, other.before)


def _length(value: object) -> int:
    """How many there are in a list that grows in one call, and of which another exchanges some."""
    return len(value) if isinstance(value, (list, deque)) else 0


def _test(node: Test) -> ast.expr:
    return node.iter if isinstance(node, ast.For) else node.test


def _moves_away(test: ast.expr, wanted: bool, changes: Iterable[Change]) -> bool:
    """Whether a number only goes further from a limit each time: ``if self.seen < 4:``, of a count that is 9 by now."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.comparators[0], ast.Constant):
        return False
    name, below = path_of(test.left).rpartition(".")[2], isinstance(test.ops[0], (ast.Lt, ast.LtE))
    if not name or not (below or isinstance(test.ops[0], (ast.Gt, ast.GtE))):
        return False
    found = [c for c in changes if c.name.rpartition(".")[2] == name and type(c.before) is type(c.after) is int]
    return bool(found) and all((c.after > c.before) == (below == wanted) for c in found)


def _key(code: CodeType, node: Test) -> Key:
    return code.co_filename, node.lineno, node.col_offset


def _behind(node: ast.stmt, code: CodeType) -> list[ast.stmt]:
    """What stands behind a branch that leaves: in its block, and behind the statements that this is within."""
    for each in nodes_of(code):
        for block in (getattr(each, name, None) for name in ("body", "orelse", "finalbody")):
            if isinstance(block, list) and node in block:
                outer = _behind(each, code) if isinstance(each, (ast.If, ast.With, ast.Try)) else []
                return block[block.index(node) + 1 :] + outer
    return []


def _is_work(part: Sequence[ast.stmt | ast.expr]) -> bool:
    """Whether a part of a branch does more than to leave, or to refuse."""
    plain = (ast.Raise, ast.Pass, ast.Break, ast.Continue, ast.Assert)
    does = [each for each in part if not isinstance(each, plain)]
    if part and isinstance(part[-1], ast.Raise):
        return False
    calls = (ast.Call, ast.Assign, ast.AugAssign, ast.If, ast.Subscript)
    results = (each.value for each in does if isinstance(each, ast.Return))
    if any(value is not None and not isinstance(value, ast.Constant) for value in results):
        return True  # another result than that of what stands behind
    return any(isinstance(n, calls) for each in does for n in ast.walk(each))


def _may_assert(part: Sequence[ast.AST], codes: list[CodeType]) -> bool:
    """Whether a kernel there may find an index that is none, which would end a GPU's context."""
    nodes = [n for each in part for n in ast.walk(each)]
    nodes += [n for code in _called(part, codes) for n in nodes_of(code)]
    return any(
        (isinstance(n, ast.Subscript) and not isinstance(n.slice, ast.Constant))
        or (isinstance(n, ast.Call) and last_name(n.func) in _MAY_ASSERT)
        for n in nodes
    )


def problems(caller: Caller, base: Call, seen: Collection[Failure], codes: list[CodeType]) -> list[Failure]:
    """What ways have that no call has gone, behind what these calls change by other names than it has."""
    written = written_when_run.problems(caller, base, codes, [*base.found, *seen])
    found = OtherWays(caller, base, codes, [*seen, *written])
    waited = lines_of(f for f in (*base.found, *seen) if f.code in _WAITS)
    with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
        found.more += kept_by_choice.problems(base.changes, codes, waited)
        found.problems()
    return [*written, *found.more]


def is_led(failure: Failure) -> bool:
    """Whether a problem is one of a line that only calls have run which were led there."""
    return f"({LED})" in failure.message
