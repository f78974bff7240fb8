"""A loop that no graph holds, with one round of it as a function: cut out, tried, and rewritten like any other step."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from paramgraph_kit.doctor import cell
from paramgraph_kit.doctor.observe.examine import examine
from paramgraph_kit.doctor.observe.refusals import operation
from paramgraph_kit.driver.files import REWRITTEN
from paramgraph_kit.driver.select import device, driver
from paramgraph_kit.rewrite.lending import Plan
from paramgraph_kit.rewrite.loops.one_round import Loop, Round, cut, loops_around
from paramgraph_kit.rewrite.proving.launches import Kind, Launches, kind_of, layout
from paramgraph_kit.rewrite.proving.proof import FREE, STEPS, Around, Prover, Truth
from paramgraph_kit.rewrite.proving.worth import ENOUGH
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.rewrite.rewriting import REPLAYED, rewrite
from paramgraph_kit.rewrite.rounds import LIMIT_S
from paramgraph_kit.rewrite.source.borrow import borrowed, codes_in, compiled
from paramgraph_kit.rewrite.source.edits import Function, Source, locals_of, path_of, within
from paramgraph_kit.rewrite.source.moving import is_backward
from paramgraph_kit.rewrite.source.place import called
from paramgraph_kit.rewrite.ways import Ways
from paramgraph_kit.trace.errors import CaptureError
from paramgraph_kit.trace.model import Failure

TELLS = frozenset("sync-item print host-counter copy-to-cpu data-dependent-branch branch-frozen".split())  # noqa: SIM905
_OPTIMIZING = (Optimizer, torch.amp.GradScaler)
_WORKING = (torch.nn.Module, LRScheduler, *_OPTIMIZING)
MOST_LOOPS = 2  # one in the other, of which each is tried


def one_round(
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    failures: Sequence[Failure],
    *,
    of_loader: bool,
) -> Rewriting | None:
    """The function with one round of a loop cut out and rewritten whole, or None where none is.

    ``of_loader``: of a loop over a DataLoader, of which nobody wants a graph of all rounds, or of any other one.
    """
    whole = Ways(function, args, kwargs)
    at = whole._definition()
    if at is None or at[0].file in cell.FILES or whole.entry is None or whole.entry.__code__.co_freevars:
        return None
    source, definition = at
    places = [(f, place[1]) for f in failures if (place := whole.place(f)) is not None and place[0] is source]
    loops = loops_around(source, definition, [node for _, node in places])[:MOST_LOOPS]
    loops = [loop for loop in loops if _goes_through_loader(whole, loop) is of_loader]
    if not loops:
        return None
    try:
        lines = _Lines(whole.entry.__code__)
        with lines, whole.watched():
            truth = Truth(whole.prover)
        if truth.unsteady:
            return None
        asked = (
            lambda node: _computes(node, lines.computing) or _optimizes(whole, node, lines.optimizing),
            lambda node: (
                _keeps(whole, definition, node, lines.working)
                or any(f.code in TELLS and _holds(node, n) for f, n in places)
            ),
        )
        for loop in loops:
            found = cut(source, definition, loop, *asked)
            if found is None or (run := _run(whole, source, found, truth)) is None:
                continue
            graded = run.graded if found.trains else {}  # no gradients go through a launch
            if graded or list(run.bound) != list(found.parameters[: len(run.bound)]):
                found = cut(source, definition, loop, *asked, graded, run.bound)
                run = _run(whole, source, found, truth) if found is not None else None
            if found is not None and run is not None and (fix := _tried(whole, source, found, truth, run)) is not None:
                return fix
    except KeyboardInterrupt:
        raise  # it is the user's
    except Exception:  # what cannot be run alone is no answer
        return None
    finally:
        whole.prover.forget()
    return None


@dataclass(slots=True)
class _Run:
    """A function whose loop calls one round, run eagerly."""

    made: types.FunctionType  # the round
    texts: list[str]
    applied: Callable[[], AbstractContextManager[Callable[[Any], None]]]  # while it lasts the loop calls what is given
    given: tuple[Any, ...] = ()  # the first time
    bound: tuple[str, ...] = ()  # parameters that are given no tensors
    calls: list[list[Kind]] = field(default_factory=list)  # of each run of the function, what its rounds were given
    graded: dict[str, str] = field(default_factory=dict)  # results with gradients, as they are returned without


def _run(whole: Ways, source: Source, found: Round, truth: Truth) -> _Run | None:
    """The round, where the function gives with it what it gave, and it is given the same kind each time."""
    plan = Plan(source, [*found.edits], [])
    lent, space = whole.borrow([plan]), whole.entry.__globals__ if whole.entry is not None else {}
    texts = source.apply(plan.edits)
    code = next(c for c in codes_in(compiled(source.file, texts)) if c.co_name == found.name)

    @contextmanager
    def applied() -> Iterator[Callable[[Any], None]]:
        space[found.name] = run.made
        try:
            with lent():
                yield partial(space.__setitem__, found.name)
        finally:
            del space[found.name]

    run = _Run(types.FunctionType(code, space, found.name), texts, applied)

    def noted(*values: Any) -> Any:
        run.given = run.given or values  # of the others only what they are: they may hold a backward pass
        run.bound = tuple(n for n, each in zip(found.parameters, run.given, strict=True) if not layout(each))
        run.calls[-1].append(kind_of(values))
        results = run.made(*values)
        run.graded |= _graded(found, [results] if len(found.results) < 2 else results)
        return results

    with applied() as call:
        call(noted)
        begin = Around(before=lambda _: run.calls.append([]))
        right = not truth.wrong(whole.prover.from_now().eager(begin))
    return run if right and _is_steady(run) else None


def _graded(found: Round, returned: Sequence[Any]) -> dict[str, str]:
    """Results that lead to the backward pass of a round, as they are returned without; they themselves are let go."""
    texts = {}
    for name, value in zip(found.results, returned, strict=False):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            texts[name] = f"{name}.detach()"
        elif isinstance(value, (tuple, list)) and all(isinstance(x, torch.Tensor) for x in value):
            each = f"each.detach() for each in {name}"
            texts[name] = f"tuple({each})" if isinstance(value, tuple) else f"[{each}]"
    return texts


def _tried(whole: Ways, source: Source, found: Round, truth: Truth, run: _Run) -> Rewriting | None:
    """The round rewritten like any other step, where the function that launches it so gives what it gave."""
    with run.applied() as call:
        bound = len(run.bound)
        step = partial(run.made, *run.given[:bound]) if bound else run.made
        looked_at = examine(step, run.given[bound:], {}, limit_s=LIMIT_S)
        problems = looked_at.problems
        if looked_at.operations < ENOUGH:
            return None  # not worth a launch
        fix = rewrite(step, run.given[bound:], {}, problems) if problems else _captured(step, run.given[bound:])
        if not fix.complete:
            return None
        with _with_its_lines(whole, fix):
            launches = Launches(run.made, fix.around, bound)
            call(launches)
            if truth.wrong(whole.prover.from_now().launched(whole.function)) or not launches.replays:
                return None
    return _shown(whole, source, found, fix, run, truth)


@contextmanager
def _with_its_lines(whole: Ways, fix: Rewriting) -> Iterator[None]:
    """While this lasts the round runs its rewritten lines, and so does the function, which may make what it binds."""
    file = whole.file + REWRITTEN
    codes = {file: compiled(file, fix.texts[file])} if file in fix.texts else {}
    with fix.applied(), borrowed([whole.entry] if whole.entry is not None else [], codes, {}):
        yield


def _is_steady(run: _Run) -> bool:
    """Whether rounds are given the same but for the numbers in tensors, and a last one that is smaller.

    Objects may be others in each call of the function, which makes them.
    """
    numbers = {tuple(x for x in plain if not isinstance(x, tuple)) for one in run.calls for _, plain in one}
    if not numbers or len(numbers) > 1:
        return False
    for one in run.calls:
        layouts = [known for known, _ in one]
        several = len({*layouts[:-1]}) > 1 and 2 * len({*layouts}) > len(layouts)
        if several or len({plain for _, plain in one}) > 1:
            return False
    return True


def _captured(made: Any, given: tuple[Any, ...]) -> Rewriting:
    """What comes of a round in which nothing was found."""
    prover = Prover(made, given, {})
    try:
        truth = Truth(prover)
        seen = prover.from_now().captured()
        right = not truth.unsteady and not truth.wrong(seen)
        how = "bit for bit" if right and truth.is_bitwise(seen) else truth.closeness()
    except CaptureError:
        return Rewriting("")
    finally:
        prover.forget()
    told = [REPLAYED.format(how=how, where=driver().source().label())]
    return Rewriting("", verified=told if right else [], complete=right)


def _with_calls(found: Round, fix: Rewriting, lines: Sequence[str]) -> list[str]:
    """The lines of a file whose loop also calls what goes around a launch of its round."""
    results, arguments = ", ".join(found.results), ", ".join(found.parameters)
    call = f"{results} = " * bool(results) + f"{found.name}({arguments})"
    at = next(n for n, line in enumerate(lines) if line.strip() == call)
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    around = []
    for line in fix.loop:
        gets, _, rest = _named(line, found).rpartition(" = ")
        rest = f"{found.name}({arguments})" if rest.startswith("launched(") else rest
        around.append(f"{indent}{gets} = {rest}\n" if gets else f"{indent}{rest}\n")
    return [*lines[:at], *around, *lines[at + 1 :]]


def _named(line: str, found: Round) -> str:
    """A line around a launch, with the loop's names for what a round gives."""
    results = f"{', '.join(found.results)} = " * bool(found.results)
    return results + line.removeprefix("out = ") if line.startswith("out = ") else line


def _calls_itself(whole: Ways, found: Round, fix: Rewriting, run: _Run, truth: Truth) -> list[str]:
    """The lines of the file with these calls, where the function gives what it gave as they stand; else none."""
    file = whole.file + REWRITTEN
    space = whole.entry.__globals__ if whole.entry is not None else {}
    try:
        lines = _with_calls(found, fix, fix.texts[file])
        code = compiled(file, lines)
        called_there = {line.rpartition(" = ")[2].partition("(")[0] for line in fix.loop} - {"launched"}
        made = {c.co_name: types.FunctionType(c, space, c.co_name) for c in codes_in(code) if c.co_name in called_there}
        if made.keys() != called_there or made.keys() & space.keys():
            return []
        with run.applied(), fix.applied():
            space.update(made)
            try:
                with borrowed([whole.entry] if whole.entry is not None else [], {file: code}, {}):
                    wrong = truth.wrong(whole.prover.from_now().eager())
            finally:
                for name in made:
                    del space[name]
    except KeyboardInterrupt:
        raise  # it is the user's
    except Exception:  # then what to call is told beside the diff
        return []
    return lines if not wrong else []


def _shown(whole: Ways, source: Source, found: Round, fix: Rewriting, run: _Run, truth: Truth) -> Rewriting:
    """What is shown of it: one diff from the user's own lines."""
    name = source.file + REWRITTEN
    whole_loop = _calls_itself(whole, found, fix, run, truth) if fix.usage else []
    diffs = [source.diff_to(whole_loop or fix.texts.get(name, run.texts))]
    for file, lines in fix.texts.items():
        other = Source.of(file.removesuffix(REWRITTEN)) if file != name else None
        diffs += [other.diff_to(lines)] if other is not None else []
    kinds = {layouts for one in run.calls for layouts, _ in one}
    name_of_it = whole.entry_name
    given, run.given = run.given, ()  # whoever keeps the fix may let go of them
    captured = f"partial({', '.join([found.name, *run.bound])})" if run.bound else found.name
    told = [
        f"one round of the loop of line {found.loop.lineno} is what a graph holds: capture `{captured}` for the loop",
        f"`{name_of_it}`, with rounds from graphs, gives the original's results and state in {STEPS} steps",
    ]
    if len({plain for one in run.calls for _, plain in one}) > 1:
        told.append(f"capture it where `{name_of_it}` has made what it binds, for each call anew")
    if kept := [n for n, value in zip(run.bound, given, strict=False) if isinstance(value, (int, float, str))]:
        told.append(f"its graph keeps `{'`, `'.join(kept)}`: capture it anew where that changes")
    if len(kinds) > 1:
        told.append(f"its rounds have tensors of {len(kinds)} sizes: each has a graph of its own")
    told += [f"{found.name}: {line}" for line in fix.verified]

    @contextmanager
    def both() -> Iterator[Any]:
        with run.applied(), _with_its_lines(whole, fix):
            yield run.made

    return replace(
        fix,
        function=name_of_it,
        alone=found.name,
        bound=len(run.bound),
        usage=fix.usage if not whole_loop else "",
        loop=[_named(line, found) for line in fix.loop] if fix.usage else [_called(found, len(run.bound))],
        given=given,
        capture=captured,
        complete=False,  # of the function itself
        diff="\n".join(each for each in diffs if each),
        verified=[line.replace(REWRITTEN, "") for line in told],
        _borrow=both,
    )


def _called(found: Round, bound: int) -> str:
    """What the loop writes for a round that is launched."""
    return f"{', '.join(found.results)} = " * bool(found.results) + f"launched({', '.join(found.parameters[bound:])})"


def _goes_through_loader(whole: Ways, loop: Loop) -> bool:
    """``for x, y in loader``, ``for n, batch in enumerate(tqdm(self.loader))``."""
    given = whole._given()
    paths = {path_of(n) for n in within(loop.iter) if isinstance(n, ast.expr)} if isinstance(loop, ast.For) else set()
    return any(isinstance(given.get(path, whole._value(path)), DataLoader) for path in paths if path)


def _keeps(whole: Ways, definition: Function, node: ast.stmt, working: set[str]) -> bool:
    """``meter.update(loss)``: what an object that the function makes, or is given, does with results.

    ``working``: names of modules, optimizers and their like, which belong to a round.
    """
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    first = path_of(call.func).partition(".")[0]
    return first in locals_of(definition) - whole.tensors.keys() - working - {"self"}


def _computes(node: ast.stmt, lines: set[int]) -> bool:
    """Whether the device did something as a statement ran, or has gradients taken away, which is part of a round."""
    if any(line in lines for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)):
        return True
    return any(isinstance(n, ast.Call) and (called(n) == "zero_grad" or is_backward(n)) for n in within(node))


def _optimizes(whole: Ways, node: ast.stmt, names: set[str]) -> bool:
    """``scaler.unscale_(optimizer)``, also where the scaler is off: it has its place among what computes."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    path = path_of(call.func.value)
    return path in names or isinstance(whole._value(path), _OPTIMIZING)


def _holds(node: ast.stmt, inner: ast.AST) -> bool:
    return any(part is inner for part in ast.walk(node))


class _Lines(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Notes at which lines of a function the device computes."""

    def __init__(self, code: types.CodeType) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._code = code
        self.computing: set[int] = set()
        self.working: set[str] = set()  # local names of modules, optimizers and their like
        self.optimizing: set[str] = set()  # those of optimizers and scalers

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        kind = device().type
        if operation(func).name not in FREE and any(
            isinstance(x, torch.Tensor) and x.device.type == kind for x in tree_leaves(result)
        ):
            frame = sys._getframe()
            while frame is not None and frame.f_code is not self._code:
                frame = frame.f_back  # type: ignore[assignment]  # the outermost has none
            if frame is not None:
                self.computing.add(frame.f_lineno)
                self.working |= {name for name, value in frame.f_locals.items() if isinstance(value, _WORKING)}
                self.optimizing |= {n for n in self.working if isinstance(frame.f_locals.get(n), _OPTIMIZING)}
        return result
