"""The user's function with rewritten lines, for a while, and what runs before and after each of its launches."""

from __future__ import annotations

import ast
import difflib
import inspect
import linecache
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from paramgraph_kit.doctor import cell
from paramgraph_kit.doctor.observe.held import attribute_of
from paramgraph_kit.driver.files import REWRITTEN, display_name
from paramgraph_kit.driver.profiling import profiled
from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite.advised.host import tables
from paramgraph_kit.rewrite.around import feeding, handed
from paramgraph_kit.rewrite.around.digits_met import note_wide
from paramgraph_kit.rewrite.around.other_sizes import note_other_sizes
from paramgraph_kit.rewrite.around.watched import Shown, Values
from paramgraph_kit.rewrite.counting import advance, begun_later, counted, optimizers
from paramgraph_kit.rewrite.expressions.state import graded
from paramgraph_kit.rewrite.proving.proof import Arguments, Around, Prover
from paramgraph_kit.rewrite.source import hosts, moving, returned_kinds
from paramgraph_kit.rewrite.source.borrow import BorrowError, borrowed, companion, compiled
from paramgraph_kit.rewrite.source.edits import Edit, Function, Source, first_line, path_of, scope_of
from paramgraph_kit.rewrite.source.given import Given, expanded
from paramgraph_kit.rewrite.source.one_line import found_in
from paramgraph_kit.rewrite.source.place import NUMBER, Form, called
from paramgraph_kit.rewrite.source.reach import attributes_of, entry_of, keeps_graph, names_of, of_classes, owner_of
from paramgraph_kit.trace.model import Failure


@dataclass(slots=True)
class Plan:
    """Edits of one statement, and what they are for."""

    source: Source
    edits: list[Edit]
    failures: list[Failure]
    hoisted: list[str] = field(default_factory=list)
    brought: list[str] = field(default_factory=list)  # attributes that are on the device from now on


def apart(plans: Sequence[Plan], first: Sequence[list[Edit]]) -> list[Plan]:
    """Plans without those that would write where others do: of each all edits are made, or none; their turn comes.

    ``first``: the edits of those that go around the launch, which come before others.
    """
    kept: list[Plan] = []
    for plan in sorted(plans, key=lambda each: not any(each.edits is one for one in first)):
        own = [edit for other in kept if other.source is plan.source for edit in other.edits]
        if not any(one.overlaps(other) for one in plan.edits for other in own):
            kept.append(plan)
    return [plan for plan in plans if plan in kept]


_CALLED = (torch.nn.Module, types.FunctionType)


def _is_called(value: Any) -> bool:
    """Whether something can be asked what it does: a module, a function, one of torch's, and no tensor's method."""
    own = isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.NoneType | types.ModuleType)
    return own or isinstance(value, _CALLED)


def _is_alike(one: Any, other: Any) -> bool:
    """Whether two are one, or a function that is made anew at each call."""
    code = getattr(one, "__code__", None)
    return one is other or (code is not None and code is getattr(other, "__code__", None))


class Lending:
    """A function of the user's, its text, and what is known of its steps."""

    def __init__(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], prover: Prover | None = None
    ) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.prover = prover or Prover(function, args, kwargs)
        self.entry = entry_of(function)
        self.file = self.entry.__code__.co_filename if self.entry is not None else ""
        self.entry_name = self.entry.__code__.co_name if self.entry is not None else ""
        self.signature = inspect.signature(self.entry) if self.entry is not None else inspect.Signature()
        self.functions = [*self.prover.state.functions, *of_classes(self.prover.state)]
        self.space = names_of(function) | self._lent_by_arguments()
        self.tensors: dict[str, Form] = {}  # local names that hold one as the function returns
        self.graded: set[str] = set()  # and one that needs gradients
        self.filled: set[str] = set()  # and lists, tuples and dictionaries of tensors
        self.many: dict[str, type] = {}  # those of nothing else, by what they are
        self.tensors_in: dict[tuple[str, str, int], dict[str, Form]] = {}  # the same of each function that ran,
        self.graded_in: dict[tuple[str, str, int], set[str]] = {}  # by its scope
        self.records_in: dict[tuple[str, str, int], bool] = {}  # whether gradients were recorded
        self.plain_in: dict[tuple[str, str, int], set[str]] = {}  # numbers of Python's
        self.kinds_returned: dict[tuple[str, str, int], dict[Any, str]] = {}  # what they return of the host's each time
        self.called_in: dict[tuple[str, str, int], dict[str, Any]] = {}  # functions and modules, None for several
        self.sources = {
            file: source
            for file in {f.__code__.co_filename for f in self.functions}
            if (source := Source.of(file)) is not None
        }
        at = self._definition()
        self.read_numbers = hosts.numbers_read(at[1]) if at is not None else set()  # also once they are tensors
        self.rate = self.later = False  # the latter where a branch lets gradients begin later than others
        self.fused: set[str] = set()  # optimizers whose steps the device leaves out
        self.steps = False
        self.moved: moving.Moved | None = None
        self.only_feeds = False  # something goes behind the launch already, and nothing more does
        self.behind: list[ast.stmt] = []  # what goes behind the launch
        self.alone: list[Any] = []  # optimizers that step only there
        self.fed: feeding.Feed | None = None
        self.ran: set[types.CodeType] = set()  # what a step runs
        self.led: dict[tuple[str, str], set[int]] = {}  # by file and name of what it runs: at which lines it came there
        self.kept: advance.Kept | None = None  # numbers that are in tensors
        self.needed: set[str] = set()  # edits of arguments that have needed gradients before, or have other names
        self.shown = Shown()  # of the lines as they are now

    def at_home(self, failure: Failure) -> Failure:
        """A failure of the rewritten lines at the line of the user's that it comes from, if there is one like it."""
        frame = failure.frame
        for source in self.sources.values() if frame is not None else ():
            again = frame.file.count(REWRITTEN) - source.file.count(REWRITTEN) if frame is not None else 0
            own = display_name(source.file).replace(REWRITTEN, "")
            if frame is not None and again >= 0 and own == frame.file.replace(REWRITTEN, ""):
                texts = [line.strip() for line in source.lines]
                alike = difflib.get_close_matches(frame.text, {*texts}, n=1, cutoff=0.8)
                line = texts.index(alike[0]) + 1 if alike and texts.count(alike[0]) == 1 else 0
                line = line or _line_before(source, again, frame.line)
                if line:
                    file, text = display_name(source.file), texts[line - 1]
                    return replace(failure, frame=replace(frame, file=file, line=line, text=text))
        return failure

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note which local names of the function hold tensors as it returns."""
        entry = self.entry.__code__ if self.entry is not None else None
        files = set(self.sources)

        def look(frame: types.FrameType, event: str, argument: Any) -> None:
            if event != "call" and event != "return":  # what is written in C, which is most of it
                return
            code = frame.f_code
            known = code.co_filename in files
            if event == "call" and known:
                self.ran.add(code)
                above = frame.f_back
                while above is not None and above.f_code is not entry:
                    above = above.f_back
                if above is not None:
                    self.led.setdefault((code.co_filename, code.co_name), set()).add(above.f_lineno)
            if event != "return" or not (known or code is entry):
                return
            held = {n: value for n, value in frame.f_locals.items() if isinstance(value, torch.Tensor)}
            tensors = {n: Form.of(value) for n, value in held.items()}
            graded = {n for n, value in held.items() if value.requires_grad}
            scope = code.co_filename, code.co_name, code.co_firstlineno
            kinds = returned_kinds.kinds_of(argument)
            self.kinds_returned[scope] = returned_kinds.both(kinds, self.kinds_returned.get(scope, kinds))
            self.tensors_in.setdefault(scope, {}).update(tensors)
            self.graded_in.setdefault(scope, set()).update(graded)
            plain = {n for n, value in frame.f_locals.items() if isinstance(value, (*NUMBER, str, type(None)))}
            self.plain_in[scope] = self.plain_in.get(scope, plain) & plain
            self.records_in[scope] = torch.is_grad_enabled() or self.records_in.get(scope, False)
            by = self.called_in.setdefault(scope, {})
            for name, value in frame.f_locals.items():
                if _is_called(value) and not keeps_graph(value):
                    by[name] = value if _is_alike(by.get(name, value), value) else None
            if code is entry:
                self.tensors |= tensors
                self.graded |= graded
                self.filled |= {n for n, value in frame.f_locals.items() if handed.holds_tensors(value)}
                self.many |= {n: type(value) for n, value in frame.f_locals.items() if handed.holds_only_tensors(value)}

        with profiled(look):
            yield

    def knows(self, other: Lending) -> None:
        """Take over what has been seen of the function's steps."""
        self.ran, self.tensors, self.graded, self.filled = other.ran, other.tensors, other.graded, other.filled
        self.led, self.many = other.led, other.many
        self.tensors_in, self.graded_in, self.needed = other.tensors_in, other.graded_in, other.needed
        self.called_in, self.records_in, self.plain_in = other.called_in, other.records_in, other.plain_in
        self.kinds_returned = other.kinds_returned

    def forms_in(self, source: Source, statement: ast.stmt) -> dict[str, Form]:
        """The local names that hold a tensor in the function of a statement, as far as that was seen."""
        function = source.function_of(statement)
        own = self.tensors_in.get(scope_of(source, function)) if function is not None else None
        return self.tensors if own is None else own

    def plain_of(self, source: Source, statement: ast.stmt) -> set[str]:
        """The local names that always held a number of Python's in the function of a statement, as far as seen."""
        function = source.function_of(statement)
        return self.plain_in.get(scope_of(source, function), set()) if function is not None else set()

    def records(self, source: Source, statement: ast.stmt) -> bool:
        """Whether gradients were recorded in the function of a statement, as far as that was seen."""
        function = source.function_of(statement)
        seen = self.records_in.get(scope_of(source, function), True) if function is not None else True
        return seen or "enable_grad" in source.text(function or statement)

    def called_by(self, source: Source, statement: ast.stmt) -> dict[str, Any]:
        """The local names by which the function of a statement has one function or module, as far as that was seen."""
        function = source.function_of(statement)
        seen = self.called_in.get(scope_of(source, function), {}) if function is not None else {}
        return {name: value for name, value in seen.items() if value is not None}

    def _lent_by_arguments(self) -> dict[str, Any]:
        """Modules and optimizers that the function is given, by the names of its parameters."""
        kinds = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
        return {name: value for name, value in self.given.items() if isinstance(value, kinds)}

    @property
    def given(self) -> dict[str, Any]:
        """The arguments by their names."""
        try:
            return self._bound((self.args, self.kwargs))
        except TypeError:
            return {}

    def place(self, failure: Failure) -> tuple[Source, ast.stmt] | None:
        """Where a failure is written."""
        if (frame := failure.frame) is None:
            return None
        named = [source for source in self.sources.values() if display_name(source.file) == frame.file]
        # Cells that nobody counts have one name.
        alike = [each for each in named if "".join(each.lines[frame.line - 1 : frame.line]).strip() == frame.text]
        for source in alike or named[:1]:
            statement = found_in(source, failure)
            return (source, statement) if statement is not None else None
        return None

    def _counted(self) -> list[Plan]:
        """What keeps numbers in tensors."""
        kept = self.kept
        return [Plan(kept.source, kept.edits, kept.failures)] if kept is not None else []

    def _graded(self) -> list[Plan]:
        """Arguments that are given gradients in their place: a launch takes tensors as they come."""
        scopes = {(code.co_filename, code.co_name, code.co_firstlineno) for code in self.ran}
        every = ((s, node) for s in self.sources.values() for node in s.parents if isinstance(node, Function))
        found = ((s, graded.taken_over(s, node)) for s, node in every if scope_of(s, node) in scopes)
        return [Plan(source, edits, []) for source, edits in found if edits and repr(edits) not in self.needed]

    def _decays(self, failure: Failure) -> bool:
        """Whether a rate is that of an optimizer that lets it fall with its own count."""
        at = self.place(failure) if failure.code == "learning-rate-frozen" else None
        stepped: Any = self._value(optimizers.stepped(at[1])) if at is not None else None
        return optimizers.counts_on_host(stepped) and any(group["lr_decay"] for group in stepped.param_groups)

    def _is_behind(self, failure: Failure) -> bool:
        """Whether what was found goes behind the launch."""
        at = self.place(failure)
        return at is not None and any(part is at[1] for node in self.behind for part in ast.walk(node))

    def _steps_behind(self, name: str, moved: Sequence[ast.stmt] | None = None) -> bool:
        """Whether an optimizer's steps are all behind the launch, or in what is to move there: it may be what it is."""
        behind = {id(part) for node in (self.behind if moved is None else moved) for part in ast.walk(node)}
        every = (node for source in self.sources.values() for node in source.parents)
        steps = [node for node in every if isinstance(node, ast.Expr) and optimizers.stepped(node) == name]
        return bool(steps) and all(id(node) in behind for node in steps)

    def _calls(self, node: ast.stmt, failure: Failure) -> bool:
        """Whether a statement comes to where something was found: a step was seen to, or it calls that by its name."""
        calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
        name = failure.frame.function.rpartition(".")[2] if failure.frame is not None else ""
        if self.comes_to(node, failure):
            return True
        if name not in ("__call__", "forward") or (place := self.place(failure)) is None:
            return name in map(called, calls)
        function = place[0].function_of(place[1])
        owner = place[0].parents.get(function) if function is not None else None
        kinds = [type(self._value(path)) for n in calls if (path := path_of(n.func))]
        return any(base.__name__ == getattr(owner, "name", "") for kind in kinds for base in kind.__mro__)

    def comes_to(self, node: ast.stmt, failure: Failure) -> bool:
        """Whether a statement of the function has led to what something was found in, through whatever else."""
        frame, lines = failure.frame, range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if frame is None:
            return False
        name = frame.function.rpartition(".")[2]
        led = (at for (file, code), at in self.led.items() if code == name and display_name(file) == frame.file)
        return any(line in lines for at in led for line in at)

    def comes_only_to(self, nodes: Sequence[ast.stmt], code: types.CodeType) -> bool:
        """Whether nothing else of the function has led to what it runs."""
        lines = {line for node in nodes for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
        led = self.led.get((code.co_filename, code.co_name), set())
        return bool(led) and led <= lines

    def _is_schedule(self, node: ast.stmt) -> bool:
        """Whether a statement is the step of a learning rate's schedule, or of each of a list of them."""
        if isinstance(node, ast.For) and len(node.body) == 1 and not node.orelse:
            source, inner = self.sources[self.file], node.body[0]
            held: Any = self._value(optimizers.gone_through(source, inner, optimizers.stepped(inner)))
            each = list(held) if isinstance(held, (list, tuple)) else [None]
            return bool(each) and all(isinstance(one, torch.optim.lr_scheduler.LRScheduler) for one in each)
        name = optimizers.stepped(node) if isinstance(node, ast.Expr) else ""
        return isinstance(self._value(name), torch.optim.lr_scheduler.LRScheduler)

    def _value(self, path: str) -> Any:
        """What ``a.b`` is where the function is defined, or None."""
        first, *rest = path.split(".")
        found = owner_of(self.function) if first == "self" else self.space.get(first)
        for name in rest:
            found = attribute_of(found, name, None)
        if found is None and first == "self" and len(rest) == 1:  # of another object, which a step calls
            return attributes_of(self.prover.state).get(rest[0])
        return found

    def _definition(self, *, cells: bool = False) -> tuple[Source, Function] | None:
        """The syntax of the function itself; with ``cells`` also of one that is a cell, which has nothing to return."""
        code = self.entry.__code__ if self.entry is not None else None
        source = self.sources.get(code.co_filename) if code is not None else None
        if code is None or source is None or (cell.is_whole(source.file, code.co_name) and not cells):
            return None
        for node in source.parents:
            if not isinstance(node, Function) or node.name != code.co_name:
                continue
            if first_line(node) <= code.co_firstlineno <= node.lineno:
                return source, node
        return None

    def _host_test(self, function: Function) -> Callable[[ast.expr], bool]:
        seen = self.tensors, self.space, self._value, self.filled, self.given, self.sources, self.kinds_returned
        test = hosts.host_test(device().type, function, *seen)
        found = self.kept.counters if self.kept is not None else []
        return lambda node: test(node) and not any(one.is_at(part) for part in ast.walk(node) for one in found)

    def _watched_values(
        self,
        source: Source,
        nodes: Sequence[ast.expr],
        make: Callable[[], Values] = Values,
        more: Iterable[Edit] = (),
    ) -> list[Values]:
        """What expressions have in a few steps, watched once, with ``more`` edits for it; nothing where it fails."""
        lines = source.apply([*feeding.watching(source, nodes), *more])
        key = "".join((source.file, *lines)) if make is Values else ""
        if key in self.shown.values:
            found, self.prover.operations[:], self.prover.products[:] = self.shown.values[key]
            return found
        found = [make() for _ in nodes]
        space = self.entry.__globals__ if self.entry is not None else {}
        space[feeding.WATCH] = lambda number, value: found[number].note(value)
        try:
            code = compiled(source.file, lines)
            with borrowed(self.functions, {source.file: code}, {}):
                self.prover.from_now().eager()
                note_other_sizes(self.prover, found)
        except Exception:
            found = []
        finally:
            del space[feeding.WATCH]
        note_wide(source, nodes, found, self.forms_in, self.prover)
        if key:
            self.shown.values[key] = found, [*self.prover.operations], [*self.prover.products]
        return found

    def texts(self, plans: Sequence[Plan]) -> dict[str, list[str]]:
        """The rewritten lines of each file."""
        sources = {plan.source.file: plan.source for plan in plans}
        return {file: source.apply(self.edits(plans, source)) for file, source in sources.items()}

    def edits(self, plans: Sequence[Plan], source: Source) -> list[Edit]:
        """All edits of one file."""
        own = [plan for plan in plans if plan.source is source]
        hoisted: dict[ast.stmt, list[str]] = {}
        for plan in own:
            at = self._before(plan) if plan.hoisted else None
            if at is not None and not cell.is_whole(source.file, getattr(at, "name", "")):  # there they would be in it
                hoisted.setdefault(at, []).extend(plan.hoisted)
        return [
            *(edit for plan in own for edit in plan.edits),
            *(source.before(node, lines) for node, lines in hoisted.items()),
        ]

    def _before(self, plan: Plan) -> ast.stmt:
        held = (n for n in plan.source.parents if self._holds(plan, n))
        line = plan.edits[0].line  # of a lambda, where no function holds it
        return plan.source.outermost(next(held, None) or plan.source.statement(line) or plan.source.tree.body[0])

    @staticmethod
    def _holds(plan: Plan, node: ast.AST) -> bool:
        at = max(edit.line for edit in plan.edits)
        return isinstance(node, Function) and first_line(node) <= at <= (node.end_lineno or 0) + 1

    def borrow(self, plans: Sequence[Plan]) -> Any:
        """A context in which the rewritten lines run."""
        codes = {file: compiled(file, lines) for file, lines in self.texts(plans).items()}
        before: dict[str, list[str]] = {}
        for plan in plans:
            before.setdefault(plan.source.file, []).extend(plan.hoisted)

        names = [name for plan in plans for name in plan.brought]
        alone = [vars(each) for each in self.alone]
        optimizing = optimizers.found_in(self.prover.state) if self.steps else []
        optimizing = [each for each in optimizing if not any(each is one for one in alone)]

        space = self.entry.__globals__ if self.entry is not None else {}
        made = [name for name in (self.fed.shared if self.fed is not None else ()) if name not in space]

        @contextmanager
        def lent() -> Iterator[None]:
            with (
                _without(space, made),
                borrowed(self.functions, codes, before),
                optimizers.prepared(optimizing, device(), rate=self.rate, fuse=bool(self.fused)),
                begun_later.begun(optimizing if self.later else ()),
                tables.brought(self.prover.state, names, device()),
                counted.kept(self.kept.counters if self.kept is not None else (), device()),
            ):
                yield

        return lent

    def around(self, plans: Sequence[Plan]) -> Around:
        """What runs before and after each step: the lines that were moved there."""
        return Around(self._before_launch(plans), self._after_launch(plans))

    def _before_launch(self, plans: Sequence[Plan]) -> Callable[[Arguments], None] | None:
        fed = self.fed
        if fed is None or not any(plan.edits is fed.edits for plan in plans):
            return None
        function = self._companion(plans, fed.name)

        def run(inputs: Arguments) -> None:
            given = self._bound(inputs)
            with torch.no_grad():  # they are written in place
                function(*(given[name] for name in fed.parameters))

        return run

    def _after_launch(self, plans: Sequence[Plan]) -> Callable[[Arguments, Any], Any] | None:
        moved = self.moved
        if moved is None or not any(plan.edits is moved.edits for plan in plans):
            return None
        function = self._companion(plans, moved.name)

        def run(inputs: Arguments, out: Any) -> Any:
            given = self._bound(inputs)
            results = list(out) if isinstance(out, tuple) else [out]
            if moved.returns and moved.extra == 1 and isinstance(out, tuple):
                results = [out]
            more = results[len(results) - moved.extra :] if moved.extra else []
            if any(not isinstance(each, torch.Tensor) for each in tree_leaves(more)):
                raise BorrowError("what the moved lines need is no tensor")
            end = function(*(given[name] for name in moved.parameters[: moved.arguments]), *results[: moved.results])
            if moved.returns:
                return end
            kept = results[: len(results) - moved.extra]
            if not kept:
                return None
            return tuple(kept) if isinstance(out, tuple) and (len(kept) > 1 or not moved.extra) else kept[0]

        return run

    def _bound(self, inputs: Arguments) -> dict[str, Any]:
        """The arguments of a step by their names."""
        owner = owner_of(self.function)
        args, kwargs = inputs if isinstance(inputs[0], Given) else expanded(self.function, *inputs)
        bound = self.signature.bind(*([] if owner is None else [owner]), *args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def _companion(self, plans: Sequence[Plan], name: str) -> types.FunctionType:
        """A function that was written beside the user's."""
        assert self.entry is not None
        function = companion(self.entry, compiled(self.file, self.texts(plans)[self.file]), name)
        if function is None:
            raise BorrowError(f"{name} would need variables that only {self.entry.__qualname__} has")
        return function


@contextmanager
def _without(space: dict[str, Any], names: Sequence[str]) -> Iterator[None]:
    """Variables that are gone afterwards."""
    try:
        yield
    finally:
        for name in names:
            space.pop(name, None)


def _line_before(source: Source, times: int, line: int) -> int:
    """The line of the user's that stood where a rewritten line stands; 0 where there was none."""
    lines = linecache.getlines(source.file + REWRITTEN * times)
    for kind, first, end, begin, last in difflib.SequenceMatcher(None, source.lines, lines, False).get_opcodes():
        if begin < line <= last and kind in ("equal", "replace"):
            return min(first + line - begin, end)
    return 0
