"""What loops ask the host for, round by round, is found before the launch; the step takes one after the other.

Of ``for _ in range(epochs): np.random.shuffle(order)``, with ``x[order[a:b]]`` in a loop below it, the function before
the launch has the same loops without the device's lines. It keeps what they ask for, in its order, and copies that to
where the graph reads it: ``rows = next(given)``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from paramgraph_kit.doctor.observe.compare import RANDOM_WORDS
from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite import feeding, hosts, moving
from paramgraph_kit.rewrite.edits import (
    COMPOUND,
    Edit,
    Function,
    Source,
    first_line,
    locals_of,
    names_in,
    path_of,
    within,
)
from paramgraph_kit.rewrite.helping import Helping
from paramgraph_kit.rewrite.lending import Plan
from paramgraph_kit.rewrite.place import Form, called, fresh
from paramgraph_kit.rewrite.proof import STEPS
from paramgraph_kit.trace.model import Failure

MOST = 256  # values of a step
_COUNTED = ("",)  # the names of what a loop counts, in every step alike
_ARITHMETIC = (ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)
_SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)
_REPEATED = ("next", "pop", "popleft", "perm", *RANDOM_WORDS)


@dataclass(slots=True, eq=False)
class Ask:
    """Something of the host's that a step asks for, perhaps in each round of a loop."""

    at: ast.stmt
    node: ast.expr
    names: tuple[str, ...] = ()  # those it is given, where the statement does nothing else, or is a loop through such


@dataclass(slots=True)
class Seen(feeding.Values):
    """What an ask has had, in the order of all."""

    order: list[tuple[Seen, Form | None]] = field(default_factory=list)
    times: int = 0

    def note(self, value: Any) -> Any:
        """Note one value, or several that are given names together; returns it."""
        self.times += 1
        for each in value if isinstance(value, tuple) else (value,):
            try:
                form = Form.of(torch.as_tensor(each))
            except (TypeError, ValueError, RuntimeError):
                form = None
            self.order.append((self, form))
            feeding.Values.note(self, each)
        return value


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
        found = _asks(source, function, wanted, host)
        if not found or not any(_loops(source, ask) for ask in found):
            return None
        order: list[tuple[Seen, Form | None]] = []
        known = self.device, self._value
        loops = [each for each in _Foresight(source, function, found, host, *known).loops if not _is_asked(each, found)]
        nodes = [*(ask.node for ask in found), *(loop.iter for loop in loops)]
        seen = self._watched_values(source, nodes, lambda: Seen(order=order))
        told = dict(zip(nodes, seen, strict=False))
        needed = [ask for ask in found if ask.node in told and _is_needed(told[ask.node])]
        asked = {id(told[ask.node]) for ask in needed}
        forms = _of_a_step([form for values, form in order if id(values) in asked])
        if not needed or not forms:
            return None
        self.fed = _Foresight(source, function, needed, host, *known).feed(forms, others, told)
        if self.fed is None:
            return None
        handled = [f for f in failures if (place := self.place(f)) is not None and place[1] in wanted]
        return Plan(source, self.fed.edits, handled, self.fed.hoisted)


def _is_needed(values: feeding.Values) -> bool:
    return values.moves or values.form is not None


def _is_asked(loop: ast.For, asks: Iterable[Ask]) -> bool:
    return any(ask.at is loop for ask in asks)


def _of_a_step(forms: Sequence[Form | None]) -> list[Form]:
    """What each step asks for, where all of them do alike; else nothing."""
    each, rest = divmod(len(forms), STEPS)
    known = [form for form in forms if form is not None]
    if rest or not 0 < each <= MOST or len(known) != len(forms):
        return []
    first = known[:each]
    return first if all(known[k * each : (k + 1) * each] == first for k in range(STEPS)) else []


def _asks(
    source: Source, function: Function, wanted: Iterable[ast.stmt], is_host: Callable[[ast.expr], bool]
) -> list[Ask]:
    """What statements ask the host for, each once; names by what gives them their value."""
    every = [n for part in function.body for n in within(part)]
    local, found = locals_of(function) - set(moving.arguments_of(function)), list[Ask]()

    def known(node: ast.expr) -> bool:
        return is_host(node) or (isinstance(node, ast.Name) and _is_of_a_loop(source, every, node, is_host))

    for statement in wanted:
        for node in feeding.candidates([statement], known):
            if isinstance(statement, ast.If) and node is not statement.test:
                continue
            own = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in local]
            plain = all(isinstance(n, _ARITHMETIC) for n in ast.walk(node))
            asks = [_given(source, every, n.id) for n in own] if own and plain else [Ask(statement, node)]
            if None in asks:
                return []
            for ask in asks:
                assert ask is not None
                targets = statement.targets if isinstance(statement, ast.Assign) and statement.value is node else []
                if ask.at is statement and len(targets) == 1 and isinstance(targets[0], ast.Name):
                    ask.names = (targets[0].id,)
                if ask.names != _COUNTED and not any(ask.node is other.node for other in found):
                    found.append(ask)
    return found


def _is_of_a_loop(
    source: Source, every: Sequence[ast.AST], node: ast.Name, is_host: Callable[[ast.expr], bool]
) -> bool:
    """Whether a name is what a loop of the host's goes through, although it is given another value in its rounds."""
    stores = [n for n in every if isinstance(n, ast.Name) and n.id == node.id and not isinstance(n.ctx, ast.Load)]
    loops = [above for n in stores if isinstance(above := source.parents.get(n), ast.For)]
    others = [n for n in stores if source.parents.get(n) not in loops]
    return len(loops) == 1 and is_host(loops[0].iter) and all(n.lineno >= node.lineno for n in others)


def _given(source: Source, every: Sequence[ast.AST], name: str) -> Ask | None:
    """What gives a name its value, once: a statement, or the loop that goes through such values."""
    stores = [n for n in every if isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)]
    above = source.parents.get(stores[0]) if len(stores) == 1 else None
    outer = source.parents.get(above) if isinstance(above, ast.Tuple) else above
    if isinstance(outer, ast.Assign) and len(outer.targets) == 1:
        target = outer.targets[0]
        given = target.elts if isinstance(target, ast.Tuple) else [target]
        names = tuple(each.id for each in given if isinstance(each, ast.Name))
        return Ask(outer, outer.value, names) if len(names) == len(given) else None
    over = _gone_through(outer, name) if isinstance(outer, ast.For) else None
    if isinstance(outer, ast.For):
        return Ask(outer, over, (name,)) if over is not None else Ask(outer, outer.iter, _COUNTED)
    return None


def _gone_through(loop: ast.For, name: str) -> ast.expr | None:
    """``x`` of ``for name in x`` and of ``for i, name in enumerate(x)``."""
    if isinstance(loop.target, ast.Name):
        counts = isinstance(loop.iter, ast.Call) and called(loop.iter) in ("range", "enumerate", "zip")
        return None if counts else loop.iter
    target = loop.target.elts if isinstance(loop.target, ast.Tuple) else []
    counted = isinstance(loop.iter, ast.Call) and called(loop.iter) == "enumerate" and len(loop.iter.args) == 1
    if counted and len(target) == 2 and isinstance(target[1], ast.Name) and target[1].id == name:
        assert isinstance(loop.iter, ast.Call)
        return loop.iter.args[0]
    return None


def _loops(source: Source, ask: Ask) -> list[ast.For]:
    """The loops around an ask, with its own."""
    return [node for node in (ask.at, *source.above(ask.at)) if isinstance(node, ast.For)]


def in_loop(source: Source, node: ast.stmt) -> bool:
    """Whether a statement runs in the rounds of a loop."""
    return any(isinstance(above, ast.For) for above in (node, *source.above(node)))


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
        self.owner = self.arguments[:1] if moving.is_method(source, function) else []
        self.every = [n for part in function.body for n in within(part) if isinstance(n, ast.stmt)]
        self.kept: list[ast.stmt] = []  # what the host does for it
        self.loops = {loop for ask in asks for loop in _loops(source, ask)}
        self.both: list[ast.stmt] = []  # what the step does, too
        self.counted: list[ast.For] = []  # loops of the step that only count their rounds
        self._slice()

    def feed(
        self, forms: Sequence[Form], others: Sequence[str], seen: Mapping[ast.expr, feeding.Values]
    ) -> feeding.Feed | None:
        """What runs before the launch, and the edits of both; None where the device's lines decide some of it."""
        if not self._is_of_host() or not self._splits():
            return None
        source, function = self.source, self.function
        taken = names_in(source.tree) | locals_of(function) | {line.partition(" = ")[0] for line in others}
        names: list[str] = []
        for hint in ("given_in", "given", "asked", "held", "value"):
            names.append(fresh(hint, taken))
            taken.add(names[-1])
        held_in, given, asked, held, value = names
        changed = self._changed(given, seen)
        if changed is None:
            return None
        name = f"before_{function.name.strip('_')}"
        read = {n for node in (*self.kept, *(ask.node for ask in self.asks)) for n in names_in(node)}
        read |= {n for loop in self.loops for n in names_in(loop.iter)}
        parameters = [each for each in self.arguments if each in read or each in self.owner]
        blank = not source.lines[first_line(function) - 2].strip()
        top = [*[""] * (not blank), f"def {name}({', '.join(parameters)}):  # before each launch"]
        for word, kind in (("global", ast.Global), ("nonlocal", ast.Nonlocal)):
            outer = {n for node in ast.walk(function) if isinstance(node, kind) for n in node.names}
            if here := sorted(outer & {path for each in self.kept for path in moving.written(each)}):
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
        hoisted = [f"{held_in} = {_room(forms, self.device)}"]
        return feeding.Feed(source, edits, name, parameters, hoisted, list(self.kept), [])

    def _slice(self) -> None:
        """All that the asks, and the loops around them, need; each with the loops around it."""
        own = [ask.at for ask in self.asks if ask.names and isinstance(ask.at, ast.Assign)]
        self.kept += list(dict.fromkeys(own))
        while True:
            nodes = [*(ask.node for ask in self.asks), *(loop.iter for loop in self.loops), *self.kept]
            needed = {path for node in nodes for path in self._paths(node)}
            rest = [each for each in self.every if isinstance(each, _SIMPLE) and each not in self.kept]
            more = [each for each in rest if self._writes(each, needed)]
            if not more:
                return
            self.kept += more
            self.loops |= {node for each in more for node in self.source.above(each) if isinstance(node, ast.For)}

    def _paths(self, node: ast.AST) -> set[str]:
        """What is read below a node, but for sizes."""
        return {path for path in moving.paths(node) if path.partition(".")[0] not in _only_sized(self.source, node)}

    def _writes(self, node: ast.stmt, needed: set[str]) -> bool:
        paths = set(moving.written(node)) | moving.stored([node])
        calls = [n for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
        of_owner = [n for n in calls if [path_of(n.func.value)] == self.owner]  # type: ignore[attr-defined]
        if all(isinstance(self.value_of(path_of(n.func)), torch.nn.Module) for n in of_owner):
            paths -= set(self.owner)
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call):  # ``random.shuffle(x)``
            paths |= {each.id for each in call.args if isinstance(each, ast.Name)}
        return any(moving.touches(a, b) for a in paths for b in needed)

    def _is_of_host(self) -> bool:
        """Whether all of it is the host's alone, and runs in every round."""
        own, asking = locals_of(self.function) - set(self.arguments), [*self.kept, *(ask.at for ask in self.asks)]
        for loop in self.loops:
            inside = set(ast.walk(loop))
            for stop in (n for n in inside if isinstance(n, moving.STOPS)):
                branch = self.source.parents.get(stop)
                skips = isinstance(stop, ast.Continue) and isinstance(branch, ast.If) and branch in loop.body
                if not skips or any(each in inside and each.lineno > stop.lineno for each in asking):
                    return False
        iters = [each for loop in self.loops for each in _strict(loop.iter)]
        for node in (*self.kept, *iters, *(ask.node for ask in self.asks)):
            if isinstance(node, ast.stmt) and not moving.is_closed(node):
                return False
            sized = _only_sized(self.source, node)
            if sized & own - moving.stored(self.kept):
                return False
            value = node if isinstance(node, ast.expr) else getattr(node, "value", None)
            copied = isinstance(value, ast.expr) and feeding.is_copy(value, self._is_known)
            if not copied and not all(map(self._is_known, _reads(node, sized))):
                return False
        around = {above for each in asking for above in self.source.above(each)}
        return not any(loop.orelse for loop in self.loops) and all(isinstance(n, (ast.For, ast.With)) for n in around)

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
            if not _is_asked(loop, self.asks) and (names_in(loop.iter) & made or any(w in text for w in _REPEATED)):
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
            writes = [each for each in self.kept if name in moving.stored([each])]
            if any(self._writes(each, {name}) for each in self.kept if each not in writes):
                return False  # the host changes what it reads
        outer = {path for each in self.kept for path in moving.written(each)} - locals_of(self.function)
        reads = set[str]()
        for node in (n for n in self.every if n not in self.kept):
            tops: list[ast.AST | None] = [getattr(node, name, None) for name in ("test", "iter")]
            tops = tops if isinstance(node, COMPOUND) else [node]
            parts = [n for top in tops if top is not None for n in ast.walk(top) if n not in moved]
            reads |= {path_of(n) for n in parts if isinstance(n, (ast.Name, ast.Attribute)) and path_of(n) != "self"}
        return not any(moving.touches(a, b) for a in outer for b in reads)

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
            else:
                unnamed = [ask for ask in own if not ask.names]
                yield from (f"    {deep}{asked}.append({_copied(source.text(ask.node))})" for ask in unnamed)
                if node in self.kept:
                    depth = len(source.indent(node))
                    yield from (f"    {deep}{line[depth:].rstrip()}" for line in source.part(node, source.lines))
                yield from (f"    {deep}{asked}.append({_copied(name)})" for ask in own for name in ask.names)

    def _changed(self, given: str, seen: Mapping[ast.expr, feeding.Values]) -> list[Edit] | None:
        """The asks, as the step reads what was found."""
        edits, rounds = list[Edit](), dict[ast.For, int]()
        for loop in self.loops:
            own = next((ask.node for ask in self.asks if ask.at is loop), loop.iter)
            values = seen.get(own)
            rounds[loop] = values.times if isinstance(values, Seen) else 0
        for ask in self.asks:
            if isinstance(ask.at, ast.For):
                if any(ask.at in _loops(self.source, other) for other in self.asks if other is not ask):
                    return None  # it takes all of its own at once
                count = self._rounds(ask.at, rounds)
                edits.append(self.source.replace(ask.node, f"[next({given}) for _ in range({count})]"))
                continue
            text = ", ".join([f"next({given})"] * max(1, len(ask.names)))
            edits.append(self.source.replace(ask.node, text))
        for loop in self.counted:
            edits.append(self.source.replace(loop.target, "_"))
            edits.append(self.source.replace(loop.iter, f"range({self._rounds(loop, rounds)})"))
        return edits

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


def _only_sized(source: Source, node: ast.AST) -> set[str]:
    """Names of which only the size is read below a node."""
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    return {n.id for n in names if _is_sized(source, n)} - {n.id for n in names if not _is_sized(source, n)}


def _is_sized(source: Source, node: ast.Name) -> bool:
    above = source.parents.get(node)
    if isinstance(above, ast.Attribute):
        return above.attr in hosts.METADATA
    return isinstance(above, ast.Call) and called(above) == "len" and node in above.args


def _copied(text: str) -> str:
    return f"torch.as_tensor({text}).clone()"


def _room(forms: Sequence[Form], device: str) -> str:
    """Tensors for all that a step asks for, as they would be written."""

    def zeros(form: Form, first: tuple[int, ...] = ()) -> str:
        size = ", ".join(map(str, (*first, *form.shape))) or "()"
        kind = "" if form.dtype is torch.get_default_dtype() else f", dtype={form.dtype}"
        return f"torch.zeros({size}{kind}, device={device})"

    if len({(form.shape, form.dtype) for form in forms}) == 1:
        return zeros(forms[0], (len(forms),))
    turns = (
        n for n in range(1, len(forms)) if not len(forms) % n and all(f == forms[k % n] for k, f in enumerate(forms))
    )
    turn = next(turns, len(forms))
    each = ", ".join(map(zeros, forms[:turn]))
    return f"[each for _ in range({len(forms) // turn}) for each in ({each})]" if turn < len(forms) else f"[{each}]"
