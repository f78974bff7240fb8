"""What a step asks the host for, perhaps in each round of a loop: where that is written, and what it has been.

``lam = np.random.beta(1, 1)``, ``rows`` of ``for rows in order.split(32)``, ``img * random.uniform(0.8, 1.2)`` below
``if random.random() < 0.5``: each is an ``Ask``; a few steps are watched for its values, in the order of all.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from paramgraph_kit.rewrite.around import feeding
from paramgraph_kit.rewrite.around.watched import Values
from paramgraph_kit.rewrite.proving.proof import STEPS
from paramgraph_kit.rewrite.source import moving
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, locals_of, within
from paramgraph_kit.rewrite.source.place import NUMBER, Form, called

MOST = 256  # values of a step
_COUNTED = ("",)  # the names of what a loop counts, in every step alike
_ARITHMETIC = (ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)


@dataclass(slots=True, eq=False)
class Ask:
    """Something of the host's that a step asks for, perhaps in each round of a loop."""

    at: ast.stmt
    node: ast.expr
    names: tuple[str, ...] = ()  # those it is given, where the statement does nothing else, or is a loop through such

    @property
    def branch(self) -> ast.If | None:
        """The branch that asks for it, where the host has decided so."""
        return self.at if isinstance(self.at, ast.If) and self.node is not self.at.test else None


@dataclass(slots=True)
class Seen(Values):
    """What an ask has had, in the order of all."""

    order: list[tuple[Seen, Form | None]] = field(default_factory=list)
    known: set[Form] = field(default_factory=set)
    times: int = 0

    def note(self, value: Any) -> Any:
        """Note one value, or several that are given names together; returns it. ``...``: its branch is not taken."""
        self.times += 1
        if value is ...:
            self.order.append((self, None))
            return value
        for each in value if isinstance(value, tuple) else (value,):
            try:
                form = Form.of(torch.as_tensor(each))
            except (TypeError, ValueError, RuntimeError):
                form = None
            self.known |= {form} if form is not None else set()
            self.order.append((self, form))
            Values.note(self, each)
        return value

    @property
    def filler(self) -> str:
        """What stands for it where its branch is not taken, or "": a zero might make gradients that are no numbers."""
        value = next((each for each in self.seen if type(each) in NUMBER), None)
        return "" if value is None else repr(float(f"{value:.3g}") if type(value) is float else value)


def is_needed(values: Values) -> bool:
    """Whether a graph has to be given it."""
    return values.moves or values.form is not None


def is_asked(loop: ast.For, asks: Iterable[Ask]) -> bool:
    """Whether what a loop goes through is one of them."""
    return any(ask.at is loop for ask in asks)


def skipped(source: Source, asks: Sequence[Ask]) -> list[Edit]:
    """Edits that have it noted, too, where a branch does not ask; ``asks`` are watched by their numbers."""
    found: dict[ast.If, list[str]] = {}
    for number, ask in enumerate(asks):
        if ask.branch is not None:
            found.setdefault(ask.branch, []).append(f"    {feeding.WATCH}({number}, ...)")
    return [source.after(branch, ["else:", *lines]) for branch, lines in found.items()]


def of_a_step(order: Sequence[tuple[Seen, Form | None]]) -> list[Form]:
    """What each step asks for, where all of them do alike; else nothing."""
    forms = [form or (next(iter(one.known)) if len(one.known) == 1 else None) for one, form in order]
    each, rest = divmod(len(forms), STEPS)
    known = [form for form in forms if form is not None]
    if rest or not 0 < each <= MOST or len(known) != len(forms):
        return []
    first = known[:each]
    return first if all(known[k * each : (k + 1) * each] == first for k in range(STEPS)) else []


def asks_of(
    source: Source, function: Function, wanted: Iterable[ast.stmt], is_host: Callable[[ast.expr], bool]
) -> list[Ask]:
    """What statements ask the host for, each once; names by what gives them their value."""
    every = [n for part in function.body for n in within(part)]
    local, found = locals_of(function) - set(moving.arguments_of(function)), list[Ask]()

    def known(node: ast.expr) -> bool:
        return is_host(node) or (isinstance(node, ast.Name) and _is_of_a_loop(source, every, node, is_host))

    for statement in wanted:
        for node in feeding.candidates([statement], known):
            if isinstance(statement, ast.If) and node is not statement.test and statement.orelse:
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


def loops_around(source: Source, ask: Ask) -> list[ast.For]:
    """The loops around an ask, with its own."""
    return [node for node in (ask.at, *source.above(ask.at)) if isinstance(node, ast.For)]


def in_loop(source: Source, node: ast.stmt) -> bool:
    """Whether a statement runs in the rounds of a loop."""
    return any(isinstance(above, ast.For) for above in (node, *source.above(node)))


def room(forms: Sequence[Form], device: str, *, alone: bool = False) -> str:
    """Tensors for all that a step asks for, as they would be written; ``alone``: the one that there is."""

    def zeros(form: Form, times: int = 0) -> str:
        size = ", ".join(map(str, (*[times] * bool(times), *form.shape))) or "()"
        kind = "" if form.dtype is torch.get_default_dtype() else f", dtype={form.dtype}"
        return f"torch.zeros({size}{kind}, device={device})"

    if alone:
        return zeros(forms[0])
    if len({(form.shape, form.dtype) for form in forms}) == 1:
        return zeros(forms[0], len(forms))
    turns = (
        n for n in range(1, len(forms)) if not len(forms) % n and all(f == forms[k % n] for k, f in enumerate(forms))
    )
    turn = next(turns, len(forms))
    if turn < len(forms):
        return f"[each for _ in range({len(forms) // turn}) for each in ({', '.join(map(zeros, forms[:turn]))})]"
    runs = [(form, len(list(alike))) for form, alike in groupby(forms)]
    return f"[{', '.join(f'*{zeros(form, many)}' if many > 1 else zeros(form) for form, many in runs)}]"
