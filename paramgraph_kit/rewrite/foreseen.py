"""What loops ask the host for, round by round, is found before the launch; the step takes one after the other.

Of ``for _ in range(epochs): np.random.shuffle(order)``, with ``x[order[a:b]]`` in a loop below it, the function before
the launch has the same loops without the device's lines. It keeps what they ask for, in its order, and copies that to
where the graph reads it: ``rows = next(given)``. A branch that the host decides in a round is the device's then,
``x = torch.where(next(given), f(x), x)``, and what is drawn in it alone is drawn before the launch where it is taken.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from paramgraph_kit.doctor.observe.compare import RANDOM_WORDS
from paramgraph_kit.doctor.observe.set_between import SET_BETWEEN
from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite.around import feeding, parts
from paramgraph_kit.rewrite.helping import Helping
from paramgraph_kit.rewrite.lending import Plan
from paramgraph_kit.rewrite.loops.asks import (
    Ask,
    Seen,
    asks_of,
    is_asked,
    is_needed,
    loops_around,
    of_a_step,
    room,
    skipped,
)
from paramgraph_kit.rewrite.proving.proof import STEPS
from paramgraph_kit.rewrite.source import hosts, moving, writes
from paramgraph_kit.rewrite.source.edits import (
    COMPOUND,
    Edit,
    Function,
    Source,
    first_line,
    is_method,
    locals_of,
    names_in,
    path_of,
    within,
)
from paramgraph_kit.rewrite.source.place import Form, around_launch, called, fresh, names_of, renamed
from paramgraph_kit.trace.model import Failure

_SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)
_REPEATED = ("next", "pop", "popleft", "perm", *RANDOM_WORDS)
Choose = Callable[[ast.If, str, Sequence[ast.expr]], list[Edit]]


class Foreseeing(Helping):
    """One function whose loops may ask the host for something in each round."""

    foresees = False

    def _fed(self, failures: Sequence[Failure], others: Sequence[str]) -> Plan | None:
        at = self._definition()
        if not self.foresees or at is None:
            return super()._fed(failures, others)
        source, function = at
        places = {place[1]: f for f in failures if f.code in feeding.FED and (place := self.place(f)) is not None}
        here = {n for part in function.body for n in within(part)}
        wanted = [node for node in places if node in here]
        host = self._host_test(function)
        found = asks_of(source, function, wanted, host)
        if not found or not any(loops_around(source, ask) for ask in found) or self._gets_rounds(found, failures):
            return None
        order: list[tuple[Seen, Form | None]] = []
        known = self.device, self._value
        loops = [each for each in _Foresight(source, function, found, host, *known).loops if not is_asked(each, found)]
        nodes = [*(ask.node for ask in found), *(loop.iter for loop in loops)]
        seen = self._watched_values(source, nodes, lambda: Seen(order=order), skipped(source, found))
        told = {node: values for node, values in zip(nodes, seen, strict=False) if isinstance(values, Seen)}
        needed = [ask for ask in found if ask.node in told and is_needed(told[ask.node])]
        asked = {id(told[ask.node]) for ask in needed}
        forms = of_a_step([(values, form) for values, form in order if id(values) in asked])
        if not needed or not forms:
            return None

        def choose(branch: ast.If, condition: str, given: Sequence[ast.expr]) -> list[Edit]:
            return self._choose(self._place_of(source, branch, places[branch]), branch.test, condition, given)

        self.fed = _Foresight(source, function, needed, host, *known).feed(forms, others, told, choose)
        if self.fed is None:
            return None
        handled = [f for f in failures if (place := self.place(f)) is not None and place[1] in wanted]
        return Plan(source, self.fed.edits, handled, self.fed.hoisted)

    def _gets_rounds(self, asks: Sequence[Ask], failures: Sequence[Failure]) -> bool:
        """Whether a line between two calls gives a loop around them more rounds, or fewer, than a graph has taken."""
        at = self._definition()
        if at is None:
            return False
        loops = [loop for ask in asks for loop in loops_around(at[0], ask)]
        lines = {number for each in loops for number in range(each.lineno, (each.end_lineno or each.lineno) + 1)}
        between = [f for f in failures if f.code == "branch-frozen" and SET_BETWEEN in f.message]
        places = [place[1] for f in between if (place := self.place(f)) is not None and place[0] is at[0]]
        return any(getattr(node, "lineno", 0) in lines for node in places)


class _Foresight:
    """The host's part of a step whose loops ask for something."""

    def __init__(
        self,
        source: Source,
        function: Function,
        asks: Sequence[Ask],
        is_host: Callable[[ast.expr], bool],
        device_text: str,
        value_of: Callable[[str], Any],
    ) -> None:
        self.source, self.function, self.asks, self.is_host = source, function, asks, is_host
        self.device, self.value_of = device_text, value_of
        self.arguments = moving.arguments_of(function)
        self.owner = self.arguments[:1] if is_method(source, function) else []
        self.every = [n for part in function.body for n in within(part) if isinstance(n, ast.stmt)]
        self.kept: list[ast.stmt] = []  # what the host does for it
        self.loops = {loop for ask in asks for loop in loops_around(source, ask)}
        self.both: list[ast.stmt] = []  # what the step does, too
        self.counted: list[ast.For] = []  # loops of the step that only count their rounds
        self._slice()

    def feed(
        self, forms: Sequence[Form], others: Sequence[str], seen: Mapping[ast.expr, Seen], choose: Choose
    ) -> feeding.Feed | None:
        """What runs before the launch, and the edits of both; None where the device's lines decide some of it."""
        if not self._is_of_host() or not self._splits():
            return None
        source, function = self.source, self.function
        taken = names_of(source.tree) | {line.partition(" = ")[0] for line in others}
        names: list[str] = []
        for hint in ("given_in", "given", "asked", "held", "value", "chosen"):
            names.append(fresh(hint, taken))
            taken.add(names[-1])
        held_in, given, asked, held, value, self.chosen = names
        self.fillers = {ask.node: seen[ask.node].filler for ask in self.asks if ask.branch is not None}
        changed = self._changed(given, seen, choose)
        if changed is None or not all(self.fillers.values()):
            return None
        name = around_launch(source, function, "before")
        read = {n for node in (*self.kept, *(ask.node for ask in self.asks)) for n in names_in(node)}
        read |= {n for loop in self.loops for n in names_in(loop.iter)}
        parameters = [each for each in self.arguments if each in read or each in self.owner]
        blank = not source.lines[first_line(function) - 2].strip()
        top = [*[""] * (not blank), f"def {name}({', '.join(parameters)}):  # before each launch"]
        for word, kind in (("global", ast.Global), ("nonlocal", ast.Nonlocal)):
            outer = {n for node in ast.walk(function) if isinstance(node, kind) for n in node.names}
            if here := sorted(outer & {path for each in self.kept for path in writes.written(each)}):
                top.append(f"    {word} {', '.join(here)}")
        top += [f"    {asked} = []", *self._lines(function.body, asked, "")]
        top += [
            f"    for {held}, {value} in zip({held_in}, {asked}, strict=True):",
            f"        {held}.copy_({value}.view_as({held}))",
        ]
        edits = [source.before(function, [*top, ""], rank=1), *moving.handed_out(source, function, name)]
        gone = [each for each in self.kept if each not in self.both and not any(a.at is each for a in self.asks)]
        edits += [*changed, *source.without_all(gone)]
        first = min((self._top(ask.at) for ask in self.asks), key=lambda node: node.lineno)
        edits.append(source.before(first, [f"{given} = iter({held_in})"]))
        away = {part for each in (*gone, *(ask.node for ask in self.asks)) for part in ast.walk(each)}
        edits += moving.fewer_globals(source, [n for part in function.body for n in ast.walk(part) if n not in away])
        hoisted = [f"{held_in} = {room(forms, self.device)}"]
        return feeding.Feed(source, edits, name, parameters, hoisted, list(self.kept), [])

    def _slice(self) -> None:
        """All that the asks, and the loops around them, need; each with the loops around it."""
        own = [ask.at for ask in self.asks if ask.names and isinstance(ask.at, ast.Assign)]
        self.kept += list(dict.fromkeys(own))
        while True:
            nodes = [*(ask.node for ask in self.asks), *(loop.iter for loop in self.loops), *self.kept]
            needed = {path for node in nodes for path in self._paths(node)}
            rest = [each for each in self.every if isinstance(each, _SIMPLE) and each not in self.kept]
            # What comes after all that asks is for the next step: `epoch += 1`, which belongs behind the launch.
            rest = [each for each in rest if each.lineno <= self._last_line()]
            more = [each for each in rest if self._writes(each, needed)]
            if not more:
                return
            self.kept += more
            self.loops |= {node for each in more for node in self.source.above(each) if isinstance(node, ast.For)}

    def _last_line(self) -> int:
        """Where the last of the asks ends, or the last loop around one."""
        return max(node.end_lineno or node.lineno for node in (*(ask.at for ask in self.asks), *self.loops))

    def _paths(self, node: ast.AST) -> set[str]:
        """What is read below a node, but for sizes."""
        return {
            path for path in writes.paths(node) if path.partition(".")[0] not in hosts.only_sized(self.source, node)
        }

    def _writes(self, node: ast.stmt, needed: set[str]) -> bool:
        paths = set(writes.written(node)) | moving.stored([node])
        calls = [n for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
        of_owner = [n for n in calls if [path_of(n.func.value)] == self.owner]  # type: ignore[attr-defined]
        if all(isinstance(self.value_of(path_of(n.func)), torch.nn.Module) for n in of_owner):
            paths -= set(self.owner)
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call):  # ``random.shuffle(x)``
            paths |= {each.id for each in call.args if isinstance(each, ast.Name)}
        return any(writes.touches(a, b) for a in paths for b in needed)

    def _is_of_host(self) -> bool:
        """Whether all of it is the host's alone, and runs in every round."""
        own, asking = locals_of(self.function) - set(self.arguments), [*self.kept, *(ask.at for ask in self.asks)]
        for loop in self.loops:
            inside = set(ast.walk(loop))
            for stop in (n for n in inside if isinstance(n, moving.STOPS)):
                branch = self.source.parents.get(stop)
                skips = isinstance(stop, ast.Continue) and isinstance(branch, ast.If) and branch in loop.body
                if isinstance(branch, ast.If) and stop in branch.body and self._is_off(branch.test):
                    continue
                if not skips or any(each in inside and each.lineno > stop.lineno for each in asking):
                    return False
        iters = [each for loop in self.loops for each in _strict(loop.iter)]
        parts: list[ast.stmt | ast.expr] = [*self.kept, *iters, *(ask.node for ask in self.asks)]
        for node in parts:
            if isinstance(node, ast.stmt) and not moving.is_closed(node):
                return False
            sized = hosts.only_sized(self.source, node)
            if any(not self._is_gone_through(name, node.lineno) for name in sized & own - moving.stored(self.kept)):
                return False
            value = node if isinstance(node, ast.expr) else getattr(node, "value", None)
            copied = isinstance(value, ast.expr) and feeding.is_copy(value, self._is_known)
            if not copied and not all(map(self._is_known, _reads(node, sized))):
                return False
        around = {above for each in asking for above in self.source.above(each)}
        return not any(loop.orelse for loop in self.loops) and all(isinstance(n, (ast.For, ast.With)) for n in around)

    def _is_off(self, test: ast.expr) -> bool:
        """Whether an option rules a branch out: ``args.target_kl is not None and kl > args.target_kl``."""
        first = test.values[0] if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else test
        against_none = isinstance(first, ast.Compare) and isinstance(first.ops[0], ast.IsNot) and len(first.ops) == 1
        node = first.left if isinstance(first, ast.Compare) and against_none else first
        path = path_of(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
        root, _, option = path.rpartition(".")
        of_owner = root.partition(".")[0] in self.owner
        if not option or (not of_owner and path.partition(".")[0] in locals_of(self.function)):
            return False
        value = self.value_of(path)
        if value is None:  # or there is no such thing
            return bool(root) and hasattr(self.value_of(root), option)
        return value is False and not against_none

    def _is_gone_through(self, name: str, line: int) -> bool:
        """Whether a name is what a loop goes through, and by then still what that has given."""
        loops = [loop for loop in self.loops if name in moving.stored([loop.target])]
        stores = [n for loop in loops for part in loop.body for n in ast.walk(part) if isinstance(n, ast.Name)]
        return bool(loops) and not any(
            n.id == name and isinstance(n.ctx, ast.Store) and n.lineno < line for n in stores
        )

    def _is_known(self, node: ast.expr) -> bool:
        """Whether the host knows something that is read, without the device."""
        path = path_of(node)
        if [path] == self.owner:
            return True
        if path.partition(".")[0] in self.owner:
            value = self.value_of(path)
            on_device = isinstance(value, torch.Tensor) and value.device.type == device().type
            return not on_device and not isinstance(value, torch.nn.Module)
        named = isinstance(node, ast.Name)
        for loop in self.loops if named else ():
            if path in moving.stored([loop.target]):
                first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else None
                counted = isinstance(loop.iter, ast.Call) and called(loop.iter) == "enumerate"
                of_host = all(map(self._is_known, _reads(loop.iter, set())))
                return of_host or (counted and isinstance(first, ast.Name) and first.id == path)
        return (named and path in moving.stored(self.kept)) or self.is_host(node)

    def _splits(self) -> bool:
        """Whether what stays needs nothing of it but what it is given, and what the host may do twice."""
        moved = {part for each in self.kept for part in ast.walk(each)}
        moved |= {part for ask in self.asks for part in ast.walk(ask.node)}
        given = {name for ask in self.asks for name in ask.names}
        made = moving.stored(self.kept) - given
        every = [n for part in self.function.body for n in within(part) if isinstance(n, ast.Name)]

        def is_read(names: set[str]) -> bool:
            return any(isinstance(n.ctx, ast.Load) and n.id in names and n not in moved for n in every)

        for loop in self.loops:
            text = self.source.text(loop.iter)
            if not is_asked(loop, self.asks) and (names_in(loop.iter) & made or any(w in text for w in _REPEATED)):
                self.counted.append(loop)
                moved |= set(ast.walk(loop.iter))
        if any(is_read(moving.stored([loop.target]) - given) for loop in self.counted):
            return False
        left = {name for name in made if is_read({name})}
        while left:
            name = left.pop()
            for each in (each for each in self.kept if name in moving.stored([each])):
                plain = isinstance(each, ast.Assign) and not any(w in self.source.text(each) for w in _REPEATED)
                if not plain or moving.stored([each]) & given or name not in locals_of(self.function):
                    return False
                if each not in self.both:
                    self.both.append(each)
                    left |= names_in(each) & made
            gives = [each for each in self.kept if name in moving.stored([each])]
            if any(self._writes(each, {name}) for each in self.kept if each not in gives):
                return False  # the host changes what it reads
        outer = {path for each in self.kept for path in writes.written(each)} - locals_of(self.function)
        reads = set[str]()
        for node in (n for n in self.every if n not in self.kept):
            tops: list[ast.AST | None] = [getattr(node, name, None) for name in ("test", "iter")]
            tops = tops if isinstance(node, COMPOUND) else [node]
            parts = [n for top in tops if top is not None for n in ast.walk(top) if n not in moved]
            reads |= {path_of(n) for n in parts if isinstance(n, (ast.Name, ast.Attribute)) and path_of(n) != "self"}
        return not any(writes.touches(a, b) for a in outer for b in reads)

    def _lines(self, statements: Sequence[ast.stmt], asked: str, deep: str) -> Iterator[str]:
        """The host's part of some statements."""
        source = self.source
        for node in statements:
            own = [ask for ask in self.asks if ask.at is node]
            if isinstance(node, ast.With):
                yield from self._lines(node.body, asked, deep)
            elif isinstance(node, ast.For) and node in self.loops:
                yield f"    {deep}for {source.text(node.target)} in {source.text(node.iter)}:"
                yield from (f"        {deep}{asked}.append({_copied(name)})" for ask in own for name in ask.names)
                yield from self._lines(node.body, asked, f"{deep}    ")
            elif isinstance(node, ast.If) and any(ask.branch is node for ask in own):
                condition = source.text(node.test)
                if any(ask.node is node.test for ask in own):
                    yield f"    {deep}{self.chosen} = {condition}"
                    condition = self.chosen
                    yield f"    {deep}{asked}.append({_copied(condition)})"
                for each in (ask.node for ask in own if ask.branch is node):
                    text = f"{source.text(each)} if {condition} else {self.fillers[each]}"
                    yield f"    {deep}{asked}.append({_copied(text)})"
            else:
                unnamed = [ask for ask in own if not ask.names]
                yield from (f"    {deep}{asked}.append({_copied(source.text(ask.node))})" for ask in unnamed)
                if node in self.kept:
                    depth = len(source.indent(node))
                    yield from (f"    {deep}{line[depth:].rstrip()}" for line in source.part(node, source.lines))
                yield from (f"    {deep}{asked}.append({_copied(name)})" for ask in own for name in ask.names)

    def _changed(self, given: str, seen: Mapping[ast.expr, Seen], choose: Choose) -> list[Edit] | None:
        """The asks, as the step reads what was found."""
        edits, rounds = list[Edit](), dict[ast.For, int]()
        for loop in self.loops:
            own = next((ask.node for ask in self.asks if ask.at is loop), loop.iter)
            rounds[loop] = seen[own].times if own in seen else 0
        branches = {ask.branch for ask in self.asks if ask.branch is not None}
        for branch in branches:
            edit = self._branch(branch, f"next({given})", choose)
            if edit is None:
                return None
            edits.append(edit)
        for ask in (ask for ask in self.asks if ask.at not in branches):
            if isinstance(ask.at, ast.For):
                if any(ask.at in loops_around(self.source, other) for other in self.asks if other is not ask):
                    return None  # it takes all of its own at once
                count = self._rounds(ask.at, rounds)
                edits.append(self.source.replace(ask.node, f"[next({given}) for _ in range({count})]"))
                continue
            text = ", ".join([f"next({given})"] * max(1, len(ask.names)))
            edits.append(self.source.replace(ask.node, text))
        for loop in self.counted:
            edits.append(self.source.replace(loop.target, "_"))
            edits.append(self.source.replace(loop.iter, f"range({self._rounds(loop, rounds)})"))
        return [*edits, *self._cut()]

    def _cut(self) -> Iterator[Edit]:
        """The parts of tensors that the step writes at what was found, by a mask; others are a later round's."""
        names = {name for ask in self.asks for name in ask.names}
        for node in (n for n in self.every if not isinstance(n, COMPOUND) and n not in self.kept):
            ends: dict[ast.Subscript, dict[ast.Slice, tuple[str, str, int | None]]] = {}
            for each in (n for n in ast.walk(node) if isinstance(n, ast.Slice) and names_in(n) & names):
                part = parts.subscript_of(self.source, each)
                if part is not None and each.lower is not None and each.upper is not None:
                    low, high = self.source.text(each.lower), self.source.text(each.upper)
                    ends.setdefault(part, {})[each] = low, high, None
            for part, known in ends.items():
                if (edit := parts.edit(self.source, node, part, known)) is not None:
                    yield edit

    def _branch(self, branch: ast.If, given: str, choose: Choose) -> Edit | None:
        """A branch that asks for something itself, which the device takes or not."""
        inner = [ask.node for ask in self.asks if ask.branch is branch]
        asked = any(ask.node is branch.test for ask in self.asks)
        found = choose(branch, self.chosen if asked else self.source.text(branch.test), inner)
        if len(found) != 1:
            return None
        text = renamed(found[0].text, {self.source.text(node): given for node in inner})
        if text.count(given) != len(inner):
            return None  # asked for once more, or not where it was
        head = f"{self.chosen} = {given}\n{self.source.indent(branch)}" if asked else ""
        return replace(found[0], text=head + text)

    def _rounds(self, loop: ast.For, rounds: Mapping[ast.For, int]) -> int:
        """How many rounds a loop has each time."""
        outer = next((above for above in self.source.above(loop) if isinstance(above, ast.For)), None)
        return rounds[loop] // max(1, STEPS if outer is None else rounds[outer])

    def _top(self, node: ast.stmt) -> ast.stmt:
        return moving.top_of(self.source, self.function, node) or node


def _strict(node: ast.expr) -> list[ast.expr]:
    """What the host has to know of what a loop goes through: modules and parameters come to it as they are."""
    if isinstance(node, ast.Call) and called(node) in ("enumerate", "zip"):
        return [part for each in node.args for part in _strict(each)]
    given = isinstance(node, ast.Call) and called(node) in ("parameters", "named_parameters", "children", "modules")
    return [] if given or isinstance(node, (ast.Name, ast.Attribute)) else [node]


def _reads(node: ast.AST, sized: set[str]) -> Iterator[ast.expr]:
    """The names and attributes that are read below a node, as they are written."""
    bound = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    inner = {n.value for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    for each in ast.walk(node):
        if not isinstance(each, (ast.Name, ast.Attribute)) or not isinstance(each.ctx, ast.Load) or each in inner:
            continue
        first = path_of(each).partition(".")[0]
        if first and first not in sized and first not in bound:
            yield each


def _copied(text: str) -> str:
    return f"torch.as_tensor({text}).clone()"
