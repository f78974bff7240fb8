"""What the host draws in helpers, however deep and often, is drawn before the launch, in the order of a step."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from paramgraph_kit.doctor import cell
from paramgraph_kit.doctor.observe.chance import DRAWN
from paramgraph_kit.rewrite.around.feeding import WATCH, Feed
from paramgraph_kit.rewrite.around.watched import Values
from paramgraph_kit.rewrite.expressions.picks import sizes
from paramgraph_kit.rewrite.fetching import Fetching
from paramgraph_kit.rewrite.lending import Plan
from paramgraph_kit.rewrite.proving.proof import STEPS
from paramgraph_kit.rewrite.source import moving
from paramgraph_kit.rewrite.source.edits import (
    Edit,
    Function,
    Source,
    first_line,
    is_method,
    locals_of,
    names_in,
    path_of,
    scope_of,
)
from paramgraph_kit.rewrite.source.place import Form, around_launch, called, fresh, names_of
from paramgraph_kit.trace.model import Failure

_DRAWS = frozenset(f"torch.{name}" for name in sizes.DRAWN if name != "normal")
SHUFFLES = ("random.shuffle", "np.random.shuffle", "numpy.random.shuffle")
_ONE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return)
KEEPER = """\
class {Drawn}:  # what the host draws within a step, in the order in which it asks
    def __init__(self, *draws):
        self.draws, self.at = draws, None

    def again(self):
        for held, draw in self.draws:
            held.copy_(draw())

    def since(self, at):
        self.at = at
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.at = None

    def __call__(self, draw, *given):
        if self.at is None:  # around a launch
            return draw(*given)
        self.at += 1
        return self.draws[self.at - 1][0].view(*given if draw in (torch.rand, torch.randn) else given[-1:]).clone()
"""
ORDER = """\
def {order}(n):
    order = list(range(n))
    {shuffle}(order)
    return torch.tensor(order)
"""
_BEGIN, _IN, _OUT = "begin", "in", "out"
_Draw = tuple[Function, ast.Call]


class Drawing(Fetching):
    """One function in whose helpers the host may draw."""

    draws = False  # what it draws there is drawn before the launch, as it lies in the order of the step

    def draws_within(self) -> bool:
        """Whether the host draws in what a step runs, in a way that may be done before its launch."""
        at = self._definition()
        return at is not None and not cell.is_made_of(at[0].file) and any(self._draws(at[0]))

    def _opening(self, failures: Sequence[Failure]) -> list[ast.stmt]:
        return [] if self.draws else super()._opening(failures)  # what draws ahead has its own order

    def _fed(self, failures: Sequence[Failure], others: Sequence[str]) -> Plan | None:
        at = self._definition()
        if not self.draws or at is None or self.forced or self.ahead or self.watch is not None:
            return super()._fed(failures, others)
        source, function = at
        found = [call for _, call in self._draws(source)]
        inside = self._statements_that_draw(source, function)
        step = self._draws_of_a_step(source, found, inside) if inside else None
        if not step:
            return None
        taken = names_of(source.tree) | self.space_in(source).keys() | {line.partition(" = ")[0] for line in others}
        name, kind, device = fresh("drawn", taken), fresh("Drawn", taken), self.device_in(source)
        paths = dict.fromkeys(path for call in found if (path := path_of(call.func)) in SHUFFLES)
        orders = {path: fresh(f"an_order_{n}" if n else "an_order", taken) for n, path in enumerate(paths)}
        held = [_held(source, found[n], form, orders, device) for _, n, form in step]
        if not all(held):
            return None
        hoisted = [ORDER.format(order=each, shuffle=path) for path, each in orders.items()]
        hoisted += [
            KEEPER.format(Drawn=kind),
            "\n".join([f"{name} = {kind}(", *(f"    {each}," for each in held), ")"]),
        ]
        edits = [_taken(source, call, name, orders) for call in found]
        for number, node in enumerate(inside):
            first = next((n for n, (block, *_) in enumerate(step) if block == number), None)
            edits += _within(source, node, f"{name}.since({first})") if first is not None else []
        given = moving.arguments_of(function)[:1] if is_method(source, function) else []
        before = around_launch(source, function, "before")
        blank = not source.lines[first_line(function) - 2].strip()
        top = [*[""] * (not blank), f"def {before}({', '.join(given)}):  # before each launch"]
        edits.append(source.before(function, [*top, f"    {name}.again()", ""], rank=1))
        self.fed = Feed(source, edits, before, given, hoisted, [], [])
        handled = [f for f in failures if f.code == "host-random" or (f.code == "copy-to-gpu" and DRAWN in f.message)]
        return Plan(source, edits, handled, hoisted)

    def _draws_of_a_step(
        self, source: Source, found: Sequence[ast.Call], inside: Sequence[ast.stmt]
    ) -> list[tuple[int, int, Form]] | None:
        """What a step draws, in its order: within which statement, where, and what of; None where that changes."""
        seen, kept, at = list[list[tuple[int, int, Form]]](), list[_Watched](), [-1]

        def make() -> _Watched:
            kept.append(_Watched(own=len(kept), steps=seen, at=at))
            return kept[-1]

        more = [source.before(node, [f"{WATCH}(0, {_IN if n else _BEGIN!r})"], rank=1) for n, node in enumerate(inside)]
        more += [source.after(node, [f"{WATCH}(0, {_OUT!r})"]) for node in inside if not isinstance(node, ast.Return)]
        nodes = [call.args[0] if path_of(call.func) in SHUFFLES else call for call in found]
        self._watched_values(source, nodes, make, more)
        first = seen[0] if len(seen) >= STEPS else []
        return first if first and all(each == first for each in seen[:STEPS]) else None

    def _draws(self, source: Source) -> Iterator[_Draw]:
        """Where the host draws in what a step runs: numbers for the device, and the order of a list."""
        scopes = {(code.co_filename, code.co_name, code.co_firstlineno) for code in self.ran}
        for node in (n for n in source.parents if isinstance(n, ast.Call)):
            helper = source.function_of(node)
            if helper is None or scope_of(source, helper) not in scopes:
                continue
            settled = bool(node.keywords) or any(isinstance(each, ast.Starred) for each in node.args)
            path, statement = path_of(node.func), source.statement_of(node)
            if path in _DRAWS and not settled:
                yield helper, node
            is_alone = isinstance(statement, ast.Expr) and statement.value is node and len(node.args) == 1
            if path in SHUFFLES and is_alone and isinstance(node.args[0], ast.Name):
                yield helper, node

    def _statements_that_draw(self, source: Source, function: Function) -> list[ast.stmt]:
        """The statements of a step that come to its draws and are in its graph; nothing where one is no single line."""
        found = list[ast.stmt]()
        helpers = {helper for helper, _ in self._draws(source)}
        lines = {line for each in helpers for line in self.led.get((source.file, each.name), ())}
        own = {id(call) for helper, call in self._draws(source) if helper is function}
        for node in moving.body_of(function):
            inside = range(first_line(node), (node.end_lineno or node.lineno) + 1)
            comes = any(line in inside for line in lines) or any(id(each) in own for each in ast.walk(node))
            if not comes or node in self.behind:
                continue
            if not isinstance(node, _ONE) or source.shares_lines(node):
                return []
            found.append(node)
        return found


@dataclass(slots=True)
class _Watched(Values):
    """What one draw gives, in the order of all that a step has within some of its statements."""

    own: int = 0
    steps: list[list[tuple[int, int, Form]]] = field(default_factory=list)
    at: list[int] = field(default_factory=list)  # the statement that runs, or -1, and those that have run before

    def note(self, value: Any) -> Any:
        """Note one draw, or where a statement begins and ends; returns it."""
        if isinstance(value, str) and value == _BEGIN:
            self.steps.append([])
            self.at[:] = [0, 1]
        elif isinstance(value, str):
            self.at[:] = [-1, *self.at[1:]] if value == _OUT else [self.at[1], self.at[1] + 1]
        elif self.at[0] >= 0 and isinstance(value, torch.Tensor):
            self.steps[-1].append((self.at[0], self.own, Form.of(value)))
        elif self.at[0] >= 0:
            self.steps[-1].append((self.at[0], self.own, Form(torch.Size([len(value)]), torch.int64, "cpu")))
        return value


def _held(source: Source, call: ast.Call, form: Form, orders: Mapping[str, str], device: str) -> str:
    """The tensor that has what one draw gives, and how it is drawn, of the sizes of today; "" where nobody knows."""
    path, size = path_of(call.func), ", ".join(map(str, form.shape))
    kind = "" if form.dtype is torch.get_default_dtype() else f", dtype={form.dtype}"
    zeros = f"torch.zeros({size or '()'}{kind}, device={device})"
    if path in orders:
        return f"({zeros}, lambda: {orders[path]}({size}))"
    helper = source.function_of(call)
    rest = call.args[:-1] if called(call) == "randint" else []
    if helper is None or any(names_in(each) & locals_of(helper) for each in rest):
        return ""
    sized = f"({size}{',' * (len(form.shape) == 1)})" if called(call) == "randint" else size or "()"
    given = [*map(source.text, rest), sized]
    return f"({zeros}, lambda: {source.text(call.func)}({', '.join(given)}))"


def _taken(source: Source, call: ast.Call, name: str, orders: Mapping[str, str]) -> Edit:
    """``drawn(torch.rand, n, 1)`` for ``torch.rand(n, 1)``, and the order of a list that is shuffled."""
    if order := orders.get(path_of(call.func)):
        many = source.text(call.args[0])
        text = f"{many}[:] = torch.stack(list({many}))[{name}({order}, len({many}))]"
        return source.replace(source.statement_of(call), text)
    return source.replace(call, f"{name}({', '.join(map(source.text, [call.func, *call.args]))})")


def _within(source: Source, node: ast.stmt, context: str) -> list[Edit]:
    """A statement in a block of its own, with all of its lines one step deeper."""
    lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
    deeper = [Edit(line, 0, line, 0, "    ", rank=2) for line in lines]
    return [source.before(node, [f"with {context}:"], rank=1), *deeper]
