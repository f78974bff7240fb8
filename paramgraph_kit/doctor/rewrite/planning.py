"""Which lines are rewritten for what was found, and the user's function with those lines."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from paramgraph_kit.doctor import cell
from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.doctor.rewrite import moving, optimizers
from paramgraph_kit.doctor.rewrite.borrow import BorrowError, borrowed, companion, compiled
from paramgraph_kit.doctor.rewrite.edits import Edit, Function, Source, names_in
from paramgraph_kit.doctor.rewrite.proof import Arguments, Prover
from paramgraph_kit.doctor.rewrite.rules import Place, called, edits_for
from paramgraph_kit.driver.files import REWRITTEN, display_name
from paramgraph_kit.driver.profiling import set_profile
from paramgraph_kit.driver.select import device
from paramgraph_kit.trace.model import Failure

MOVABLE = frozenset(
    """sync-item host-counter print copy-to-cpu output-alias grad-scaler branch-frozen data-dependent-branch query
    captured-event learning-rate-frozen""".split()  # noqa: SIM905
)


@dataclass(slots=True)
class Plan:
    """Edits of one statement, and what they are for."""

    source: Source
    edits: list[Edit]
    failures: list[Failure]
    hoisted: list[str] = field(default_factory=list)


class Attempt:
    """One function with what was found in it."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.prover = Prover(function, args, kwargs)
        self.entry = entry_of(function)
        self.file = self.entry.__code__.co_filename if self.entry is not None else ""
        self.functions = [*self.prover.state.functions, *_of_classes(self.prover.state)]
        self.tensors: set[str] = set()  # local names that hold one as the function returns
        self.graded: set[str] = set()  # and one that needs gradients
        self.sources = {
            file: source
            for file in {f.__code__.co_filename for f in self.functions}
            if (source := Source.of(file)) is not None
        }
        self.space = names_of(function)
        self.device = self._device_text()
        self.rate = False
        self.steps = False
        self.unsafe: dict[int, str] = {}  # by failure: why a rewrite was taken back
        self.moved: moving.Moved | None = None

    def _device_text(self) -> str:
        space = self.space
        known = space.get("device", space.get("DEVICE"))
        if isinstance(known, (str, torch.device)) and torch.device(known).type == device().type:
            return "device" if "device" in space else "DEVICE"
        return f'"{device().type}"'

    def place(self, failure: Failure) -> tuple[Source, ast.stmt] | None:
        """Where a failure is written."""
        for source in self.sources.values():
            if failure.frame is not None and display_name(source.file) == failure.frame.file:
                statement = source.statement(failure.frame.line)
                return (source, statement) if statement is not None else None
        return None

    def plans(self, failures: Sequence[Failure]) -> list[Plan]:
        """How each failure is rewritten, where it can be."""
        left = [f for f in failures if id(f) not in self.unsafe]
        self.rate = False
        moved = self._moved(left)
        found = [moved] if moved is not None else self._detached()
        found += self._optimizers([f for f in left if self.rate or f.code != "learning-rate-frozen"])
        handled = {id(f) for plan in found for f in plan.failures}
        for failure in left:
            if id(failure) in handled:
                continue
            place = self.place(failure)
            if place is None:
                continue
            source, statement = place
            cuda = "cuda" if "cuda" in names_in(source.tree) else "torch.cuda"
            one = Place(source, statement, failure, self.device, cuda, self.space)
            if edits := edits_for(one):
                found.append(Plan(source, edits, [failure], one.hoisted))
        return found

    def at_home(self, failure: Failure) -> Failure:
        """A failure of the rewritten lines at the line of the user's that it has in common with them, if it has one."""
        frame = failure.frame
        for source in self.sources.values() if frame is not None else ():
            if frame is not None and display_name(f"{source.file}{REWRITTEN}") == frame.file:
                lines = [n for n, line in enumerate(source.lines, 1) if line.strip() == frame.text]
                if len(lines) == 1:
                    return replace(failure, frame=replace(frame, file=display_name(source.file), line=lines[0]))
        return failure

    def _optimizers(self, failures: Sequence[Failure]) -> list[Plan]:
        found = []
        self.steps = False
        seen: dict[str, list[Failure]] = {}
        for failure in failures:
            if failure.code in ("optimizer-not-capturable", "learning-rate-frozen") and (at := self.place(failure)):
                seen.setdefault(optimizers.stepped(at[1]), []).append(failure)
        for name, known in seen.items():
            made = optimizers.constructor(self.sources.values(), name) if name else None
            if made is None:
                continue
            self.steps = True
            source, call = made
            found.append(Plan(source, optimizers.options(source, call, self.device, rate=self.rate), known))
        return found

    def _moved(self, failures: Sequence[Failure]) -> Plan | None:
        """Host work of the function itself, moved behind the launch."""
        at = self._definition()
        if at is None:
            return None
        source, function = at
        wanted: dict[ast.stmt, list[Failure]] = {}
        for failure in failures:
            if failure.code in MOVABLE:
                for top in self._statements(source, function, failure):
                    wanted.setdefault(top, []).append(failure)
        schedules = [node for node in moving.body_of(function) if self._is_schedule(node)] if wanted or failures else []
        for node in schedules:  # it moves a rate that a graph would freeze, if not in the calls that were watched
            wanted.setdefault(node, [])
        chosen = moving.choose(function, wanted, self.tensors)
        if not chosen:
            return None
        self.moved = moving.move(source, function, chosen, self.graded)
        if self.moved is None:
            return None
        self.rate = bool(schedules) and set(schedules) <= set(chosen)
        return Plan(source, self.moved.edits, [f for node in chosen for f in wanted.get(node, [])])

    def _detached(self) -> list[Plan]:
        at = self._definition()
        edits = moving.detached(*at, self.graded) if at is not None else []
        return [Plan(at[0], edits, [])] if at is not None and edits else []

    def _statements(self, source: Source, function: Function, failure: Failure) -> Iterator[ast.stmt]:
        place = self.place(failure)
        if place is None or failure.frame is None:
            return
        if failure.code == "learning-rate-frozen":
            yield from (node for node in moving.body_of(function) if self._is_schedule(node))
            return
        inside = place[0] is source and source.function_of(place[1]) is function
        if inside:
            if isinstance(place[1], (ast.Return, ast.Assert)):
                return
            top = moving.top_of(source, function, place[1])
            if top is not None and not (
                isinstance(top, ast.If) and edits_for(Place(*place, failure, self.device, space=self.space))
            ):
                yield top
            return
        for node in moving.body_of(function):  # a call of the function in which it happens
            calls = {called(n) for n in ast.walk(node) if isinstance(n, ast.Call)}
            if isinstance(node, (ast.Expr, ast.If)) and failure.frame.function in calls:
                yield node

    def _is_schedule(self, node: ast.stmt) -> bool:
        """Whether a statement is the step of a learning rate's schedule."""
        name = optimizers.stepped(node) if isinstance(node, ast.Expr) else ""
        return isinstance(self._value(name), torch.optim.lr_scheduler.LRScheduler)

    def _value(self, path: str) -> Any:
        """What ``a.b`` is where the function is defined, or None."""
        first, *rest = path.split(".")
        found = owner_of(self.function) if first == "self" else self.space.get(first)
        for name in rest:
            found = getattr(found, name, None)
        return found

    def _definition(self) -> tuple[Source, Function] | None:
        """The syntax of the function itself."""
        code = self.entry.__code__ if self.entry is not None else None
        source = self.sources.get(code.co_filename) if code is not None else None
        if code is None or source is None or source.file in cell.FILES:  # a cell has nothing to return
            return None
        for node in ast.walk(source.tree):
            if isinstance(node, Function) and node.name == code.co_name:
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                if first <= code.co_firstlineno <= node.lineno:
                    return source, node
        return None

    # trying

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note which local names of the function hold tensors as it returns."""
        code, before = self.entry.__code__ if self.entry is not None else None, sys.getprofile()

        def look(frame: types.FrameType, event: str, argument: Any) -> None:
            if event == "return" and frame.f_code is code:
                found = {n: value for n, value in frame.f_locals.items() if isinstance(value, torch.Tensor)}
                self.tensors |= found.keys()
                self.graded |= {n for n, value in found.items() if value.requires_grad}

        sys.setprofile(look)
        try:
            yield
        finally:
            set_profile(before)

    def texts(self, plans: Sequence[Plan]) -> dict[str, list[str]]:
        """The rewritten lines of each file."""
        edits: dict[str, list[Edit]] = {}
        for plan in plans:
            edits.setdefault(plan.source.file, []).extend(plan.edits)
            if plan.hoisted and plan.source.file not in cell.FILES:  # there they would be part of the function
                edits[plan.source.file].append(plan.source.before(self._before(plan), plan.hoisted))
        return {file: self.sources[file].apply(each) for file, each in edits.items()}

    def edits(self, plans: Sequence[Plan], source: Source) -> list[Edit]:
        """All edits of one file."""
        own = [plan for plan in plans if plan.source is source]
        hoisted = [source.before(self._before(plan), plan.hoisted) for plan in own if plan.hoisted]
        return [edit for plan in own for edit in plan.edits] + hoisted

    def _before(self, plan: Plan) -> ast.stmt:
        return plan.source.outermost(next(n for n in ast.walk(plan.source.tree) if self._holds(plan, n)))

    @staticmethod
    def _holds(plan: Plan, node: ast.AST) -> bool:
        at = min(edit.line for edit in plan.edits)
        return isinstance(node, Function) and node.lineno <= at <= (node.end_lineno or 0)

    def borrow(self, plans: Sequence[Plan]) -> Any:
        """A context in which the rewritten lines run."""
        codes = {file: compiled(file, lines) for file, lines in self.texts(plans).items()}
        before: dict[str, list[str]] = {}
        for plan in plans:
            before.setdefault(plan.source.file, []).extend(plan.hoisted)

        optimizing = optimizers.found_in(self.prover.state) if self.steps else []

        @contextmanager
        def lent() -> Iterator[None]:
            with (
                borrowed(self.functions, codes, before),
                optimizers.prepared(optimizing, device(), rate=self.rate),
            ):
                yield

        return lent

    def after(self, plans: Sequence[Plan]) -> Any:
        """What runs after each step: the lines that were moved there."""
        moved = self.moved
        if moved is None or self.entry is None or not any(plan.edits is moved.edits for plan in plans):
            return None
        code = compiled(self.file, self.texts(plans)[self.file])
        function = companion(self.entry, code, moved.name)
        if function is None:
            raise BorrowError(f"{moved.name} would need variables that only {self.entry.__qualname__} has")
        signature = inspect.signature(self.entry)
        owner = owner_of(self.function)

        def run(inputs: Arguments, out: Any) -> Any:
            given = signature.bind(*([] if owner is None else [owner]), *inputs[0], **inputs[1]).arguments
            results = list(out) if isinstance(out, tuple) else [out]
            if moved.extra and any(not isinstance(r, torch.Tensor) for r in results[len(results) - moved.extra :]):
                raise BorrowError("what the moved lines need is no tensor")
            function(*(given[name] for name in moved.parameters[: moved.arguments]), *results[: moved.results])
            kept = results[: len(results) - moved.extra]
            if not kept:
                return None
            return tuple(kept) if isinstance(out, tuple) and (len(kept) > 1 or not moved.extra) else kept[0]

        return run


def entry_of(function: Any) -> types.FunctionType | None:
    """The user's function behind a method, a partial, a decorated one, a module or another object."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, torch.nn.Module):
        function = function.forward
    elif not isinstance(function, (types.FunctionType, types.MethodType)):
        function = getattr(function, "__call__", None)  # noqa: B004 - the bound method is wanted
    found = inspect.unwrap(getattr(function, "__func__", function))
    return found if isinstance(found, types.FunctionType) else None


def names_of(function: Any) -> dict[str, Any]:
    """Global names that a function of the user's can read, and those of the function around it."""
    entry = entry_of(function)
    if entry is None:
        return {}
    cells = dict(zip(entry.__code__.co_freevars, entry.__closure__ or (), strict=True))
    around: dict[str, Any] = {name: cell.cell_contents for name, cell in cells.items() if _is_filled(cell)}
    return entry.__globals__ | around


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def owner_of(function: Any) -> Any:
    """``self`` of what is called, or None."""
    if isinstance(function, types.FunctionType):
        return None
    return getattr(function, "__self__", function)


def _of_classes(state: HostState) -> list[types.FunctionType]:
    """Functions of the user's classes that are named without an instance, as those of an autograd.Function."""
    members = [m for holder in state.holders if holder.kind == "class" for m in vars(holder.target).values()]
    found = [getattr(member, "__func__", member) for member in members]
    return [each for each in found if isinstance(each, types.FunctionType) and each not in state.functions]
