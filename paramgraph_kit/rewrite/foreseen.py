"""What loops ask the host for, round by round, is found before the launch; the step takes one after the other.

Of ``for _ in range(epochs): np.random.shuffle(order)``, with ``x[order[a:b]]`` in a loop below it, the function before
the launch has the same loops without the device's lines. It keeps what they ask for, in its order, and copies that to
where the graph reads it: ``rows = next(given)``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from paramgraph_kit.doctor.observe.compare import RANDOM_WORDS
from paramgraph_kit.rewrite import feeding, hosts, moving
from paramgraph_kit.rewrite.edits import Edit, Function, Source, first_line, locals_of, names_in, within
from paramgraph_kit.rewrite.helping import Helping
from paramgraph_kit.rewrite.lending import Plan
from paramgraph_kit.rewrite.place import Form, called, fresh
from paramgraph_kit.rewrite.proof import STEPS
from paramgraph_kit.trace.model import Failure

MOST = 256  # values of a step
_SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)
_REPEATED = ("next", "pop", "popleft", "perm", *RANDOM_WORDS)


@dataclass(slots=True, eq=False)
class Ask:
    """Something of the host's that a step asks for, perhaps in each round of a loop."""

    at: ast.stmt
    node: ast.expr
    name: str = ""  # where it is given one, and the statement does nothing else, or is a loop that goes through such


@dataclass(slots=True)
class Seen(feeding.Values):
    """What an ask has had, in the order of all."""

    order: list[tuple[Seen, Form | None]] = field(default_factory=list)

    def note(self, value: Any) -> Any:
        """Note one value; returns it."""
        try:
            form = Form.of(torch.as_tensor(value))
        except (TypeError, ValueError, RuntimeError):
            form = None
        self.order.append((self, form))
        return feeding.Values.note(self, value)


class Foreseeing(Helping):
    """One function whose loops may ask the host for something in each round."""

    foresees = False

    def _fed(self, failures: Sequence[Failure], others: Sequence[str]) -> Plan | None:
        at = self._definition()
        if not self.foresees or at is None:
            return super()._fed(failures, others)
        source, function = at
        places = {place[1]: f for f in failures if f.code in feeding.FED and (place := self.place(f)) is not None}
        here = set(within(function)) | {n for part in function.body for n in within(part)}
        wanted = [node for node in places if node in here]
        host = self._host_test(function)
        found = _asks(source, function, wanted, host)
        if not found or not any(_loops(source, ask) for ask in found):
            return None
        order: list[tuple[Seen, Form | None]] = []
        seen = self._watched_values(source, [ask.node for ask in found], lambda: Seen(order=order))
        needed = [ask for ask, values in zip(found, seen, strict=False) if values.moves or values.form is not None]
        kept_by = {id(values) for values in seen if values.moves or values.form is not None}
        forms = _of_a_step([form for values, form in order if id(values) in kept_by])
        if not needed or not forms:
            return None
        self.fed = _Foresight(source, function, needed, host).feed(forms, self.device, others, seen, found)
        if self.fed is None:
            return None
        handled = [f for node, f in places.items() if node in here]
        handled = [f for f in failures if (place := self.place(f)) is not None and place[1] in wanted] or handled
        return Plan(source, self.fed.edits, handled, self.fed.hoisted)


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
    for statement in wanted:
        for node in feeding.candidates([statement], is_host):
            if isinstance(statement, ast.If) and node is not statement.test:
                continue
            name = node.id if isinstance(node, ast.Name) and node.id in local else ""
            ask = _given(source, every, name) if name else Ask(statement, node)
            if ask is None:
                return []
            targets = statement.targets if isinstance(statement, ast.Assign) and statement.value is node else []
            if len(targets) == 1 and isinstance(targets[0], ast.Name):
                ask.name = targets[0].id
            if not any(ask.node is other.node for other in found):
                found.append(ask)
    return found


def _given(source: Source, every: Sequence[ast.AST], name: str) -> Ask | None:
    """What gives a name its value, once: a statement, or the loop that goes through such values."""
    stores = [n for n in every if isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)]
    above = source.parents.get(stores[0]) if len(stores) == 1 else None
    if isinstance(above, ast.Assign) and len(above.targets) == 1 and above.targets[0] is stores[0]:
        return Ask(above, above.value, name)
    loop = source.parents.get(above) if isinstance(above, ast.Tuple) else above
    over = _gone_through(loop, name) if isinstance(loop, ast.For) else None
    return Ask(loop, over, name) if isinstance(loop, ast.For) and over is not None else None


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
    return [node for node in (ask.at, *_above(source, ask.at)) if isinstance(node, ast.For)]


def in_loop(source: Source, node: ast.stmt) -> bool:
    """Whether a statement runs in the rounds of a loop."""
    return any(isinstance(above, ast.For) for above in (node, *_above(source, node)))


def _above(source: Source, node: ast.AST) -> Iterator[ast.stmt]:
    """The statements around one, up to its function."""
    above = source.parents.get(node)
    while above is not None and not isinstance(above, Function):
        if isinstance(above, ast.stmt):
            yield above
        above = source.parents.get(above)


class _Foresight:
    """The host's part of a step whose loops ask for something."""

    def __init__(
        self, source: Source, function: Function, asks: Sequence[Ask], is_host: Callable[[ast.expr], bool]
    ) -> None:
        self.source, self.function, self.asks, self.is_host = source, function, asks, is_host
        self.arguments = set(moving.arguments_of(function))
        self.every = [n for part in function.body for n in within(part) if isinstance(n, ast.stmt)]
        self.kept: list[ast.stmt] = []  # what the host does for it
        self.loops = {loop for ask in asks for loop in _loops(source, ask)}
        self.both: list[ast.stmt] = []  # what the step does, too

    def feed(
        self, forms: Sequence[Form], device: str, others: Sequence[str], seen: Sequence[feeding.Values],
        found: Sequence[Ask],
    ) -> feeding.Feed | None:  # fmt: skip
        """What runs before the launch, and the edits of both; None where the device's lines decide some of it."""
        self._slice()
        if not self._is_of_host() or not self._splits():
            return None
        source, function = self.source, self.function
        taken = names_in(source.tree) | locals_of(function) | {line.partition(" = ")[0] for line in others}
        names: list[str] = []
        for hint in ("given_in", "given", "asked", "held", "value"):
            names.append(fresh(hint, taken))
            taken.add(names[-1])
        held_in, given, asked, held, value = names
        lines = list(self._lines(function.body, asked, ""))
        name = f"before_{function.name.strip('_')}"
        owner = moving.arguments_of(function)[:1] if moving.is_method(source, function) else []
        read = {n for line in (*self.kept, *(ask.node for ask in self.asks)) for n in names_in(line)}
        read |= {n for loop in self.loops for n in names_in(loop.iter)}
        parameters = [each for each in moving.arguments_of(function) if each in read or each in owner]
        blank = not source.lines[first_line(function) - 2].strip()
        top = [*[""] * (not blank), f"def {name}({', '.join(parameters)}):  # before each launch"]
        for word, kind in (("global", ast.Global), ("nonlocal", ast.Nonlocal)):
            outer = {n for node in ast.walk(function) if isinstance(node, kind) for n in node.names}
            if here := sorted(outer & {path for each in self.kept for path in moving.written(each)}):
                top.append(f"    {word} {', '.join(here)}")
        top += [f"    {asked} = []", *lines]
        top += [f"    for {held}, {value} in zip({held_in}, {asked}, strict=True):", f"        {held}.copy_({value})"]
        edits = [source.before(function, [*top, ""], rank=1), *moving.handed_out(source, function, name)]
        changed = self._changed(given, {id(ask): values for ask, values in zip(found, seen, strict=True)})
        if changed is None:
            return None
        gone = [each for each in self.kept if each not in self.both and not any(a.at is each for a in self.asks)]
        edits += [*changed, *source.without_all(gone)]
        first = min((self._top(ask.at) for ask in self.asks), key=lambda node: node.lineno)
        edits.append(source.before(first, [f"{given} = iter({held_in})"]))
        away = {part for each in (*gone, *(ask.node for ask in self.asks)) for part in ast.walk(each)}
        edits += moving.fewer_globals(source, [n for part in function.body for n in ast.walk(part) if n not in away])
        hoisted = [f"{held_in} = {_room(forms, device)}"]
        return feeding.Feed(source, edits, name, parameters, hoisted, list(self.kept), [])

    def _slice(self) -> None:
        """All that the asks, and the loops around them, need; each with the loops around it."""
        while True:
            nodes = [*(ask.node for ask in self.asks), *(loop.iter for loop in self.loops), *self.kept]
            nodes += [ask.at for ask in self.asks if ask.name and isinstance(ask.at, ast.Assign)]
            needed = {path for node in nodes for path in self._paths(node)}
            more = [
                each
                for each in self.every
                if isinstance(each, _SIMPLE) and each not in self.kept and self._writes(each, needed)
            ]
            more += [
                a.at for a in self.asks if a.name and isinstance(a.at, ast.Assign) and a.at not in (*self.kept, *more)
            ]
            if not more:
                return
            self.kept += more
            self.loops |= {node for each in more for node in _above(self.source, each) if isinstance(node, ast.For)}

    def _paths(self, node: ast.AST) -> set[str]:
        """What is read below a node, but for sizes."""
        return {path for path in moving.paths(node) if path.partition(".")[0] not in _only_sized(self.source, node)}

    def _writes(self, node: ast.stmt, needed: set[str]) -> bool:
        paths = set(moving.written(node)) | moving.stored([node])
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call):  # ``random.shuffle(x)``
            paths |= {each.id for each in call.args if isinstance(each, ast.Name)}
        return any(moving.touches(a, b) for a in paths for b in needed)

    def _is_of_host(self) -> bool:
        """Whether all of it is the host's alone, and runs in every round."""
        own = locals_of(self.function) - self.arguments
        for loop in self.loops:
            inner = [n for part in loop.body for n in within(part)]
            if loop.orelse or any(isinstance(n, moving.STOPS) for n in inner):
                return False
        for node in (*self.kept, *(loop.iter for loop in self.loops), *(ask.node for ask in self.asks)):
            if not moving.is_closed(node) if isinstance(node, ast.stmt) else False:
                return False
            sized = _only_sized(self.source, node)
            if sized & own - moving.stored(self.kept):
                return False
            copied = isinstance(node, ast.expr) and feeding.is_copy(node, self.is_host)
            value = getattr(node, "value", None)
            copied = copied or (isinstance(value, ast.expr) and feeding.is_copy(value, self.is_host))
            if not copied and not hosts.is_of_host(node, self.is_host, self.arguments | sized):  # type: ignore[arg-type]
                return False
        around = {above for each in (*self.kept, *(a.at for a in self.asks)) for above in _above(self.source, each)}
        return all(isinstance(node, (ast.For, ast.With)) for node in around)

    def _splits(self) -> bool:
        """Whether what stays needs nothing of it but what it is given, and what the host may do twice."""
        moved = {part for each in self.kept for part in ast.walk(each)}
        moved |= {part for ask in self.asks for part in ast.walk(ask.node)}
        given = {ask.name for ask in self.asks if ask.name}
        made = moving.stored(self.kept) - given
        reads = [n for part in self.function.body for n in within(part) if isinstance(n, ast.Name) and n not in moved]
        left = {n.id for n in reads if isinstance(n.ctx, ast.Load) and n.id in made}
        while left:
            name = left.pop()
            writes = [each for each in self.kept if name in moving.stored([each])]
            for each in writes:
                plain = isinstance(each, ast.Assign) and not any(w in self.source.text(each) for w in _REPEATED)
                if not plain or moving.stored([each]) & given:
                    return False
                if each not in self.both:
                    self.both.append(each)
                    left |= names_in(each) & made
            changed = [each for each in self.kept if each not in writes and self._writes(each, {name})]
            sized = {id(n) for n in reads if n.id == name and _is_sized(self.source, n)}
            if changed and any(n.id == name and isinstance(n.ctx, ast.Load) and id(n) not in sized for n in reads):
                return False
        outer = {path for each in self.kept for path in moving.written(each) if path not in moving.stored(self.kept)}
        rest = {path for n in reads if (path := n.id) in outer}
        return not rest & {path for each in self.kept for path in moving.stored([each])} - locals_of(self.function)

    def _lines(self, statements: Sequence[ast.stmt], asked: str, deep: str) -> Iterator[str]:
        """The host's part of some statements."""
        source = self.source
        for node in statements:
            own = [ask for ask in self.asks if ask.at is node]
            if isinstance(node, ast.With):
                yield from self._lines(node.body, asked, deep)
            elif isinstance(node, ast.For) and node in self.loops:
                yield f"    {deep}for {source.text(node.target)} in {source.text(node.iter)}:"
                yield from (f"        {deep}{asked}.append({_copied(ask.name)})" for ask in own)
                yield from self._lines(node.body, asked, f"{deep}    ")
            else:
                unnamed = [ask for ask in own if not ask.name]
                yield from (f"    {deep}{asked}.append({_copied(source.text(ask.node))})" for ask in unnamed)
                if node in self.kept:
                    depth = len(source.indent(node))
                    yield from (f"    {deep}{line[depth:].rstrip()}" for line in source.part(node, source.lines))
                yield from (f"    {deep}{asked}.append({_copied(ask.name)})" for ask in own if ask.name)

    def _changed(self, given: str, seen: dict[int, feeding.Values]) -> list[Edit] | None:
        """The asks, as the step reads what was found."""
        edits: list[Edit] = []
        for ask in self.asks:
            if not isinstance(ask.at, ast.For):
                edits.append(self.source.replace(ask.node, f"next({given})"))
                continue
            if any(ask.at in _loops(self.source, other) for other in self.asks if other is not ask):
                return None  # it takes all of its own at once
            outer = [loop for loop in _loops(self.source, ask) if loop is not ask.at]
            entered = 1
            for loop in outer:
                count = _count(loop)
                if count is None:
                    return None
                entered *= count
            rounds, rest = divmod(len(seen[id(ask)].seen), STEPS * entered)
            if rest:
                return None
            edits.append(self.source.replace(ask.node, f"[next({given}) for _ in range({rounds})]"))
        return edits

    def _top(self, node: ast.stmt) -> ast.stmt:
        return moving.top_of(self.source, self.function, node) or node


def _count(loop: ast.For) -> int | None:
    """How many rounds ``for _ in range(4)`` has."""
    call = loop.iter
    plain = isinstance(call, ast.Call) and called(call) == "range" and len(call.args) == 1
    end = call.args[0] if plain and isinstance(call, ast.Call) else None
    return end.value if isinstance(end, ast.Constant) and type(end.value) is int else None


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
    return f"[{', '.join(map(zeros, forms))}]"
