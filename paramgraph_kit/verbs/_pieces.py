"""What is left where no rewrite is sure: the function compiled, whose pieces between the host's lines are graphs."""

from __future__ import annotations

import functools
import logging
import types
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from paramgraph_kit.backend import paramgraph
from paramgraph_kit.backend.registry import compiled_graphs, forget
from paramgraph_kit.backend.report import Report, make_report
from paramgraph_kit.driver.files import rewritten_once
from paramgraph_kit.driver.select import driver
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.driver.work import worked_s
from paramgraph_kit.rewrite.counting.counted import counters
from paramgraph_kit.rewrite.own_lines import PLAIN
from paramgraph_kit.rewrite.proving.proof import NOTHING, STEPS, Around, Prover, Truth
from paramgraph_kit.rewrite.source.given import name_of
from paramgraph_kit.rewrite.source.modes import GRADED
from paramgraph_kit.rewrite.source.reach import names_of, owner_of
from paramgraph_kit.rewrite.truths import PIECES, Known
from paramgraph_kit.verbs._called_pieces import compiled_there, functions_called
from paramgraph_kit.verbs._lasting import LIMIT, MOST_LATE, Later, compiled_for_each, goes_on, of_few_values, settles
from paramgraph_kit.verbs._modules import by_forward, compiled_in_place, compiling, modules_called

if TYPE_CHECKING:
    from paramgraph_kit.rewrite.result import Rewriting

STEADY = 2  # calls at the end in which nothing may be compiled any more
LEAST_S = 20.0  # for what is tried last
LIMIT_S = 60.0  # for all that is tried: a step that compiles anew at each call takes minutes, and proves nothing
MOST_LINES = 4
_GIVEN_UP = "recompile-limit"
UNSPECIALIZED = "torch._dynamo.config.allow_unspec_int_on_nn_module"
LOGGERS = ("torch._dynamo", "torch._guards", "torch._inductor")
MOST_OPERATIONS = 1_500  # of a step: where a GPU compiles for minutes, nobody waits for what was not asked for
FUSED = 3  # operations that a kernel stands for, at least where so many are in launches as matter


@dataclass(frozen=True, slots=True)
class Pieces:
    """What compiling a function brings that cannot be one graph, as it was tried; false where nothing is proved."""

    text: str = ""  # what to write, and what was tried
    kernels: int = 0  # in the launches of the last call
    operations: int = 0  # of a step
    is_plain: bool = False  # whether of the lines as they are
    of_called: bool = False  # only functions that it calls are compiled

    @property
    def is_apart(self) -> bool:
        """Whether they stand beside words about the rest: so little of it is in launches."""
        return self.of_called and not self.is_most

    @property
    def is_most(self) -> bool:
        """Whether launches hold what matters of a step."""
        return bool(self) and self.kernels * FUSED >= self.operations

    def __bool__(self) -> bool:
        return bool(self.text)


NOT_PROVED = Pieces()


def in_pieces(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fix: Rewriting, known: Known | None = None
) -> Pieces:
    """What compiling a function brings that cannot be one graph, tried on moved inputs.

    As it is, or else with the lines that could be rewritten. ``known`` is what others have seen of it.
    """
    name = called(function)
    known = known or Known()
    if sum(known.operations) > MOST_OPERATIONS:
        return NOT_PROVED
    try:
        # It knows what the rewritten lines no longer name, and puts that back too.
        prover = known.prover() or Prover(function, args, kwargs)
        truth = known.in_its_form(prover)
    except KeyboardInterrupt:
        raise  # it is the user's
    except BaseException:
        return NOT_PROVED
    operations = sum(prover.operations)
    if truth.unsteady or operations > MOST_OPERATIONS:
        return NOT_PROVED
    until, later = worked_s() + LIMIT_S, Later(prover, truth)
    first = f"{UNSPECIALIZED} = True; " if _counts_in_a_module(prover) else ""
    of_few = NOT_PROVED
    # Lines that keep gradients where they lie give those that have none later ones of zeros, which an optimizer takes.
    for lines in (None, fix) if fix.diff and fix.stale != GRADED else (None,):
        with lines.applied() if lines is not None else nullcontext(), _forgotten(), _unspecialized(bool(first)):
            if lines is not None and not _is_noted(prover.from_now(), lines):
                return NOT_PROVED
            step = _Watched(compiled := torch.compile(function, backend=paramgraph), compiled, until)
            around = lines.around if lines is not None else NOTHING
            if text := _tried(step, prover.from_now(), truth, around):
                how = "with these lines" if lines is not None else PLAIN
                between = f"what the host does between them stays{_where(step.last())}{_given_up(step.last())}"
                text = f'{name} = torch.compile({name}, backend="paramgraph"), {how}: {text}, {between}'
                kernels, steady = step.launches()[1], goes_on(compiled, prover, around, later)
                others = compiled_for_each(compiled, prover, around) if steady else []
                if steady and not others:
                    return Pieces(first + text, kernels, operations, lines is None)
                if not of_few and (steady or settles(compiled, prover, around, later)):
                    text = f"{first}{LIMIT}; {text}{of_few_values(others)}"
                    of_few = Pieces(text, kernels, operations, lines is None)
    of_modules = _of_modules(function, prover, truth, later, until)
    if of_modules.is_most:
        return of_modules
    if worked_s() > until:
        known.note_left(PIECES)
    return max(of_modules, _of_called(function, prover, truth, later, until), key=lambda each: each.kernels) or of_few


def _counts_in_a_module(prover: Prover) -> bool:
    """Whether a step moves a number that is an attribute of a module: of such Dynamo compiles each value anew."""
    held = (each.holder.target for each in counters(prover) if each.holder.kind == "attributes" and not each.real)
    return any({"_parameters", "_buffers", "_modules"} <= {*target} for target in held)


def _unspecialized(on: bool) -> AbstractContextManager[None]:
    """While this lasts Dynamo compiles once for all values of a module's numbers, if it is on."""
    config = torch_name("dynamo_config")
    return config.patch({UNSPECIALIZED.rpartition(".")[2]: True}) if on else nullcontext()


def _of_modules(function: Any, prover: Prover, truth: Truth, later: Later, until: float) -> Pieces:
    """What compiling the modules brings that a function calls, where compiling the function itself brings nothing."""
    space, owner = names_of(function), owner_of(function)
    if owner is not None:
        space = {object_name(owner, space): owner, **space}
    try:
        modules = modules_called(lambda: prover.from_now().eager(), space, owner)
    except KeyboardInterrupt:
        raise  # it is the user's
    except BaseException:
        return NOT_PROVED
    if not modules:
        return NOT_PROVED
    with _forgotten(), compiled_in_place(modules.values()):
        step = _Watched(function, None, until)
        text = _tried(step, prover.from_now(), truth, NOTHING)
        text = text if text and goes_on(function, prover, NOTHING, later) else ""
        others = compiled_for_each(function, prover, NOTHING) if text else []
    launches, kernels = step.launches() if text else (0, 0)
    if kernels <= launches:  # a kernel each saves none
        return NOT_PROVED
    written = "; ".join(compiling(name, module) for name, module in modules.items())
    copied = [name for name, module in modules.items() if by_forward(module)]
    first = f"; copy.deepcopy() of {' and '.join(copied)} would call the first: copy ahead of that" if copied else ""
    text = f"{written}, {PLAIN} of {called(function)}: {text}, the rest of it stays{first}"
    text = f"{LIMIT}; {text}{of_few_values(others)}" if others else text
    return Pieces(text, kernels, sum(prover.operations), True)


def _of_called(function: Any, prover: Prover, truth: Truth, later: Later, until: float) -> Pieces:
    """What compiling the functions brings that it calls: all of those that are right so, each by itself."""
    owner = owner_of(function)
    every = functions_called(function, owner, object_name(owner, names_of(function)) if owner is not None else "")
    until, best = max(until, worked_s() + LEAST_S), NOT_PROVED
    for some in [every, *([each] for each in every if every[1:])] if every else []:
        if worked_s() > until:
            break
        with _forgotten(), compiled_there(some, owner):
            step = _Watched(function, None, until)
            text = _tried(step, prover.from_now(), truth, NOTHING)
            text = text if text and goes_on(function, prover, NOTHING, later) else ""
            others = compiled_for_each(function, prover, NOTHING) if text else []
        launches, kernels = step.launches() if text else (0, 0)
        if kernels <= max(launches, best.kernels) or others:
            continue
        written = "; ".join(each.compiling() for each in some)
        text = f"{written}, {PLAIN} of {called(function)}: {text}, the rest of it stays"
        best = Pieces(text, kernels, sum(prover.operations), True, True)
        if some is every:
            break
    return best


def _is_noted(prover: Prover, lines: Rewriting) -> bool:
    """Run the rewritten lines once where it is seen what they write: launches are not watched, and that is put back."""
    try:
        prover.eager(lines.around)
    except KeyboardInterrupt:
        raise  # it is the user's
    except BaseException:
        return False
    return True


def called(function: Any) -> str:
    """What the user calls a function: its name, with that of the object whose method it is."""
    if isinstance(function, (types.FunctionType, functools.partial)):
        return name_of(function, names_of(function))
    owner = owner_of(function)
    name = object_name(owner, names_of(function))
    return name if owner is function else f"{name}.{getattr(function, '__name__', '')}"


def object_name(value: Any, space: dict[str, Any]) -> str:
    """What the user calls an object."""
    found = (name for name, each in space.items() if each is value and not name.startswith("_"))
    return next(found, type(value).__name__.lower())


def _tried(step: _Watched, prover: Prover, truth: Truth, around: Around) -> str:
    try:
        wrong = truth.wrong(prover.launched(step, around))
        if not wrong and not step.is_steady():  # the other way of a branch may come late: now all are there
            wrong = truth.wrong(prover.from_now().launched(step, around))
    except KeyboardInterrupt:
        raise  # it is the user's
    except BaseException:  # what torch.compile cannot take; the function itself has run before
        return ""
    launches, kernels = step.launches()
    if wrong or not launches or not step.is_steady():
        return ""
    return (
        f"eager's results and state {truth.closeness()} in {STEPS} steps ({driver().source().label()}), "
        f"{launches} launch{'es' * (launches > 1)} with {kernels} kernel{'s' * (kernels > 1)} in the last"
    )


class _Endless(Exception):  # noqa: N818 - no error: nothing is proved by going on
    """It compiles anew at each call, or takes longer than anybody waits for what was not asked for."""


class _Watched:
    """A function, and after each call what there is of what it compiles; ``of`` is what that is told of, or all."""

    def __init__(self, function: Any, of: Any, until: float) -> None:
        self._function, self._of, self._until = function, of, until
        self._reports: list[Report] = []
        self._known = {graph.name for graph in compiled_graphs()}
        self.compiled: list[int] = []  # how many graphs there are after each call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._function(*args, **kwargs)
        self._reports.append(make_report(self._of))
        self.compiled.append(len(compiled_graphs()))
        grown = sum(a < b for a, b in pairwise(self.compiled))
        if grown > MOST_LATE or (worked_s() > self._until and len(self.compiled) < STEPS):
            raise _Endless
        return result

    def is_steady(self) -> bool:
        """Whether nothing was compiled in the last calls."""
        return len(set(self.compiled[-STEADY - 1 :])) == 1

    def last(self) -> Report:
        """The report after the last call."""
        return self._reports[-1]

    def launches(self) -> tuple[int, int]:
        """How many launches the last call was, and how many kernels they had."""
        before, after = self._reports[-2:]
        known = {(row.graph, row.partition): row.launches for row in before.rows}
        rows = [row for row in after.rows if row.graph not in self._known]
        new = [(row.launches - known.get((row.graph, row.partition), 0), row.kernels or 0) for row in rows]
        return sum(count for count, _ in new), sum(count * kernels for count, kernels in new)


def _where(report: Report) -> str:
    """The lines that keep it from being one piece."""
    frames = [each.frame for each in report.reasons if each.frame is not None and each.code != _GIVEN_UP]
    places = list(dict.fromkeys(rewritten_once(f"{Path(frame.file).name}:{frame.line}") for frame in frames))
    more = f" and {len(places) - MOST_LINES} more" if len(places) > MOST_LINES else ""
    return f" ({', '.join(places[:MOST_LINES])}{more})" if places else ""


def _given_up(report: Report) -> str:
    """The functions of which Dynamo makes no more graphs, whose other calls run as they are; "" without any."""
    frames = [each.frame for each in report.reasons if each.frame is not None and each.code == _GIVEN_UP]
    names = " and ".join(f"`{name}`" for name in dict.fromkeys(frame.function for frame in frames))
    return names and (
        f"; of {names} torch.compile makes {torch_name('dynamo_config').recompile_limit} graphs and no more, so its "
        f"calls with other values are eager: `{LIMIT}` ahead of that line gives those graphs, too (not tried)"
    )


@contextmanager
def _forgotten() -> Iterator[None]:
    """What the body of ``with`` compiles is gone after it, unsaid: the user's reports and limits are as they were."""
    known, reasons = {graph.order for graph in compiled_graphs()}, torch_name("graph_break_reasons")
    said, loggers = len(reasons), [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)  # of a trial that nobody has asked for, nobody wants to read
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        graphs = compiled_graphs()
        kept = {id(_code(graph)) for graph in graphs if graph.order in known}
        for graph in (graph for graph in graphs if graph.order not in known):
            if (code := _code(graph)) is not None and id(code) not in kept:
                torch_name("reset_code")(code)
                forget(graph)
        del reasons[said:]


def _code(graph: Any) -> Any:
    return graph.compilation.code() if graph.compilation is not None else None
