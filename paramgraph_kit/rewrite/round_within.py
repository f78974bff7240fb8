"""Rounds of the loops that a function comes to: its own, and those of functions that it calls.

``fit`` calls ``train_epoch`` and ``validate``, each of which goes through a loader. Each loop has one round cut out by
itself; then their lines come together, and the function is run with all of these rounds from graphs.
"""

from __future__ import annotations

import ast
import gc
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from paramgraph_kit.doctor import cell
from paramgraph_kit.driver.profiling import profiled
from paramgraph_kit.rewrite.loops.merging import merged
from paramgraph_kit.rewrite.loops.one_round import loops_around
from paramgraph_kit.rewrite.proving.launches import Launches, plainly
from paramgraph_kit.rewrite.proving.proof import STEPS, WARM_UP, Arguments, Around
from paramgraph_kit.rewrite.proving.worth import Share, Worth
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.rewrite.round_alone import rounds_of
from paramgraph_kit.rewrite.round_around import set_elsewhere
from paramgraph_kit.rewrite.round_calls import unpacks_otherwise
from paramgraph_kit.rewrite.round_left import diff_of
from paramgraph_kit.rewrite.round_run import Taken
from paramgraph_kit.rewrite.source.borrow import at_any_depth, borrowed, compiled
from paramgraph_kit.rewrite.source.edits import Function, Source, first_line, within
from paramgraph_kit.rewrite.source.moving import is_backward
from paramgraph_kit.rewrite.truths import Known
from paramgraph_kit.rewrite.ways import Ways
from paramgraph_kit.trace.model import Failure

MOST = 3  # functions with loops of their own that are tried
SIZES = "`{name}` was given tensors of {sizes} sizes: each size has a graph of its own"
ANEW = ", and no two calls had the same: that pays only where sizes come again in later ones"
TOGETHER = "`{name}`, with all of these rounds from graphs, gives the original's results and state in {steps} steps"


def one_round(
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    failures: Sequence[Failure],
    *,
    of_loader: bool,
    known: Known,
    left: list[Rewriting] | None = None,
) -> Rewriting | None:
    """The function with one round of each of its loops cut out, also of those that it calls; None where none is.

    Args:
        of_loader: of loops over a DataLoader, of which nobody wants a graph of all rounds, or of any other ones.
        known: what others have seen of the function.
        left: is given a round that is a function, and no graph yet.
    """
    found = rounds_of(function, args, kwargs, failures, of_loader=of_loader, known=known, left=left)
    own = len(found)
    try:
        whole = Ways(function, args, kwargs, known.prover())
        cut, every = set[str](), _called(whole, failures, known, of_loader=of_loader)
        rounds_in = sum(called.has_loops for called in every[:MOST])
        for called in every[: rounds_in + MOST]:
            if known.is_late() or (own and not called.has_loops):  # parts of functions only where no round is one
                break
            if not called.has_loops and called.within & cut:  # what calls it has a part that is a graph
                continue
            others = [fix.alone for fix in found]
            given = called.function, called.args, called.kwargs, failures
            with called.mode():
                about: dict[str, Any] = {"of_loader": of_loader, "others": others, "left": left}
                varying = called.varying | set_elsewhere(whole, called.name)
                rounds = rounds_of(*given, **about, known=known.further(), varying=varying, called=True)
            found += [fix for fix in rounds if fix.alone not in others]
            cut |= {called.name} if rounds else set()
        if not found or (len(found) == 1 and own):
            return found[0] if found else None
        return _together(whole, found, known) or (found[0] if own else None)
    except KeyboardInterrupt:
        raise  # it is the user's
    except Exception:  # what cannot be run so is no answer
        return found[0] if own else None
    finally:
        gc.collect()


@dataclass(slots=True)
class _Call:
    """A function of the user's as another one has called it first."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mode: Callable[[], AbstractContextManager[Any]]  # about gradients, in which it is called
    has_loops: bool = True
    varying: set[str] = field(default_factory=set)  # what is another number in later calls
    within: set[str] = field(default_factory=set)  # the names of what calls it, and of what calls that

    @property
    def name(self) -> str:
        """As it is written."""
        return getattr(inspect.unwrap(self.function), "__name__", "")


def _called(whole: Ways, failures: Sequence[Failure], known: Known, *, of_loader: bool) -> list[_Call]:
    """The functions that it calls, and in which something was found, or that train, with what they were given.

    Those with loops come first, then those that others of them call; of a DataLoader's rounds there are no others.
    """
    own = whole._definition()
    wanted: dict[tuple[str, str, int], bool] = {}
    by_loader = set[tuple[str, str, int]]()  # which a loop over one may be of
    for failure in failures:
        place = whole.place(failure)
        if place is None or cell.is_made_of(place[0].file):
            continue
        source, node = place
        helper = source.function_of(node)
        if helper is None or (own is not None and own[1] is helper):
            continue
        loops = loops_around(source, helper, [node])
        key = source.file, helper.name, first_line(helper)
        by_loader |= {key} if any(isinstance(each, ast.For) for each in loops) else set()
        wanted[key] = wanted.get(key, False) or bool(loops)
    if not (by_loader if of_loader else wanted):
        return []
    if own is not None:  # `if n % 5 == 0: self.train_generator(x)` beside what is told
        every = (n for n in ast.walk(own[0].tree) if isinstance(n, Function) and n is not own[1])
        training = (n for n in every if any(map(is_backward, within(n))))
        wanted = {(own[0].file, n.name, first_line(n)): False for n in training} | wanted
    if "calls" not in known.seen:  # of both kinds of loops, as one run shows all
        known.seen["calls"] = _first_calls(whole, set(wanted))
    found: dict[tuple[str, str, int], _Call] = known.seen["calls"]
    calls = {key: call for key, call in found.items() if key in by_loader or not of_loader}
    inner = sorted(calls, key=lambda key: not wanted[key])  # what calls others begins before them
    return [replace(calls[key], has_loops=wanted[key]) for key in inner]


def _first_calls(whole: Ways, wanted: set[tuple[str, str, int]]) -> dict[tuple[str, str, int], _Call]:
    found: dict[tuple[str, str, int], _Call] = {}
    numbers: dict[tuple[str, str, int], dict[str, float]] = {}
    entry = whole.entry.__code__ if whole.entry is not None else None
    names = {name for _, name, _ in wanted}

    def look(frame: types.FrameType, event: str, _: Any) -> None:
        if event != "call" or (code := frame.f_code).co_name not in names:  # nearly always
            return
        key = code.co_filename, code.co_name, code.co_firstlineno
        if code is entry or key not in wanted:
            return
        if key in found:
            first, now = numbers[key], _numbers_of(frame)
            found[key].varying |= {name for name in first.keys() & now.keys() if first[name] != now[name]}
        elif (call := _call(whole, frame)) is not None:
            found[key], numbers[key] = call, _numbers_of(frame)
        if key in found:
            found[key].within |= {name for _, name, _ in _above(frame) & wanted}

    with profiled(look):
        whole.prover.eager()
    return found


def _above(frame: types.FrameType) -> set[tuple[str, str, int]]:
    """What calls what begins in a frame."""
    found, above = set[tuple[str, str, int]](), frame.f_back
    while above is not None:
        code, above = above.f_code, above.f_back
        found.add((code.co_filename, code.co_name, code.co_firstlineno))
    return found


def _numbers_of(frame: types.FrameType) -> dict[str, float]:
    """The numbers that a call is given, in a frame that begins, but for whole ones, by which it may pick a layer."""
    return {name: each for name, each in frame.f_locals.items() if isinstance(each, float)}


def _call(whole: Ways, frame: types.FrameType) -> _Call | None:
    """What is called in a frame that begins, and what it is given; None where that is used up by a call."""
    # What it is given may come of a forward pass, whose backward would stay on the stream of this call.
    code = frame.f_code
    held = {name: _let_go(each) for name, each in frame.f_locals.items()}
    if code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR | inspect.CO_COROUTINE):
        return None
    plain = code.co_varnames[: code.co_argcount]
    named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    if any(name not in held or hasattr(held[name], "__next__") for name in (*plain, *named)):
        return None
    first = held[plain[0]] if plain else None
    kwargs = {name: held[name] for name in named}
    method = getattr(type(first), code.co_name, None) if plain else None
    if method is not None and getattr(inspect.unwrap(method), "__code__", None) is code:
        return _Call(getattr(first, code.co_name), tuple(held[name] for name in plain[1:]), kwargs, _mode())
    function = frame.f_globals.get(code.co_name)
    if getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None) is not code:
        function = next((each for each in whole.functions if each.__code__ is code), None)
    if function is None and all(name in held for name in code.co_freevars):  # made by the function itself
        cells = tuple(types.CellType(held[name]) for name in code.co_freevars)
        function = types.FunctionType(code, frame.f_globals, code.co_name, None, cells)
    return _Call(function, tuple(held[name] for name in plain), kwargs, _mode()) if function is not None else None


def _let_go(given: Any) -> Any:
    """A tensor without what it was computed of, also in a list, a tuple or a dictionary."""
    parts = tree_leaves(given) if isinstance(given, (torch.Tensor, list, tuple, dict)) else []
    if not any(isinstance(x, torch.Tensor) and x.grad_fn is not None for x in parts):
        return given  # itself, as a function may fill it

    def alone(x: Any) -> Any:
        return x.detach().requires_grad_() if isinstance(x, torch.Tensor) and x.grad_fn is not None else x

    return tree_map(alone, given)


def _mode() -> Callable[[], AbstractContextManager[Any]]:
    """What is as to gradients now."""
    return (
        torch.inference_mode
        if torch.is_inference_mode_enabled()
        else partial(torch.set_grad_enabled, torch.is_grad_enabled())
    )


def _merged(every: Sequence[dict[str, list[str]]]) -> dict[str, list[str]] | None:
    """The lines of each file with the changes of all."""
    texts = dict[str, list[str]]()
    for file in dict.fromkeys(file for each in every for file in each):
        source = Source.of(file)
        lines = merged(source.lines, [each[file] for each in every if file in each]) if source is not None else None
        if lines is None:
            return None
        texts[file] = lines
    return texts


def _together(whole: Ways, found: Sequence[Rewriting], known: Known) -> Rewriting | None:
    """All of it in one diff, where the function gives with launches of all rounds what it gives."""
    texts, run = _merged([fix.texts for fix in found]), _merged([fix.run or fix.texts for fix in found])
    if texts is None or run is None or any(unpacks_otherwise(texts, fix.alone) for fix in found):
        return None
    codes = {file: compiled(file, lines) for file, lines in run.items()}

    @contextmanager
    def all_of() -> Iterator[Any]:
        with ExitStack() as stack:
            made = [stack.enter_context(fix.applied()) for fix in found]
            for one, fix in zip(made, found, strict=True):
                one.__globals__[fix.alone] = plainly(one, fix.around, fix.bound)
            stack.enter_context(borrowed(whole.functions, at_any_depth(whole.functions, codes), {}))
            yield made[0]

    try:
        truth = known.truth_of(whole.prover, whole.watched, makes_one=True)
        if truth.unsteady:
            return None
        with all_of() as first:
            space = first.__globals__
            rounds = {fix.alone: (inspect.unwrap(space[fix.alone]), fix.around, fix.bound, fix.anew) for fix in found}
            share = Share(whole.prover)
            taken = {name: Taken(share.counted(plainly(*each))) for name, each in rounds.items()}
            space.update(taken)

            def begin(_: Arguments) -> None:
                for each in taken.values():
                    each.begin()

            wrong = truth.wrong(whole.prover.from_now().eager(Around(before=begin)))
            if wrong or (not found[0].is_of_loop and share.worth().share < 0.5):
                return None
            if any(each.moves for each in taken.values()):
                return None
            launches = {name: Launches(*each) for name, each in rounds.items()}
            warm, once = dict[str, int](), list[Rewriting]()
            space.update(launches)
            wrong = truth.wrong(whole.prover.from_now().launched(whole.function))
            if not wrong and (rare := [name for name, each in launches.items() if not each.replays]):
                once = [fix for fix in found if fix.alone in rare and launches[fix.alone].most < 2]
                if not once:
                    warm = {name: launches[name].most - 1 for name in rare}
                    launches = {name: Launches(*each, warm_up=warm.get(name, WARM_UP)) for name, each in rounds.items()}
                    space.update(launches)
                    wrong = truth.wrong(whole.prover.from_now().launched(whole.function))
            if wrong or not (once or all(each.replays for each in launches.values())):
                return None
            # The same with the graphs' own memory: a caller may keep that where no line that was read does.
            space.update({n: Launches(*each, handed=True, warm_up=warm.get(n, WARM_UP)) for n, each in rounds.items()})
            if not once and truth.wrong(whole.prover.from_now().launched(whole.function)):
                return None
    finally:
        whole.prover.forget()
    if once:  # no trial has come to their graphs
        rest = [fix for fix in found if fix not in once]
        return _together(whole, rest, known) if rest else None
    told = [line for fix in found for line in fix.verified]
    told += [
        SIZES.format(name=name, sizes=each.sizes) + ANEW * each.grows for name, each in taken.items() if each.sizes > 1
    ]
    told.append(TOGETHER.format(name=whole.entry_name, steps=STEPS))
    first_fix = found[0]
    return replace(
        first_fix,
        function=whole.entry_name,
        diff=diff_of(texts),
        texts=texts,
        run=run,
        verified=told,
        worth=Worth(*(-(-each // STEPS) for each in share.worth())),  # of one of them
        usage="; ".join(fix.usage for fix in found if fix.usage),
        more=list(found[1:]),
        _borrow=all_of,
    )
