"""One call of a function under watch, after which the device and torch's own bookkeeping are as before."""

from __future__ import annotations

import inspect
import io
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from types import CodeType, CoroutineType, FrameType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.exception import explain
from paramgraph_kit.doctor.explain.gather import text_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.known.evidence import first_line
from paramgraph_kit.doctor.observe.absent import CUDA, FOR_CUDA, Asked, asking, doubting
from paramgraph_kit.doctor.observe.calls import WantsToExit, watched
from paramgraph_kit.doctor.observe.captured_once import CapturedOnce
from paramgraph_kit.doctor.observe.constant_tables import Made
from paramgraph_kit.doctor.observe.given_to_operations import OUTPUTS, Origin
from paramgraph_kit.doctor.observe.gradients import NOTHING_LEFT, Left
from paramgraph_kit.doctor.observe.held import tensors_in
from paramgraph_kit.doctor.observe.kept_for_replays import read_by_captures, written_by_replays
from paramgraph_kit.doctor.observe.learning import name_gradients
from paramgraph_kit.doctor.observe.limit import TimeUp, at_most
from paramgraph_kit.doctor.observe.observer import Observer, Step
from paramgraph_kit.doctor.observe.optimizers import at_its_line
from paramgraph_kit.doctor.observe.own_graphs import OwnGraphs
from paramgraph_kit.doctor.observe.places import Place, Places, codes_in
from paramgraph_kit.doctor.observe.ran import noting
from paramgraph_kit.doctor.observe.rates_behind import note_rates_behind
from paramgraph_kit.doctor.observe.threads import threads_watched
from paramgraph_kit.doctor.restore.holder import Change
from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.doctor.restore.keeper import Keeper, RandomState
from paramgraph_kit.doctor.restore.on_optimizers import counted
from paramgraph_kit.doctor.restore.surroundings import Surroundings
from paramgraph_kit.driver.api import Driver
from paramgraph_kit.driver.select import driver, twin
from paramgraph_kit.driver.work import unhindered_s
from paramgraph_kit.trace.errors import ParamgraphError, UnsupportedError
from paramgraph_kit.trace.model import Failure, Frame

LED_S = 5.0  # of a call that is led, where others are quick
TIMES = 30  # as long as the longest so far
_MOST_NUMBERS = 1 << 20  # of a result that is copied
AT = " in Python, once, at "  # in a message: where a scheduler computes the rate of a step elsewhere
MOVED = " goes from "  # in a message: what a scheduler moves from call to call


@dataclass(slots=True, eq=False)
class Call:
    """What one call did, and what it left."""

    steps: list[Step]
    found: list[Failure]
    on_device: int
    changes: list[Change]
    random_drawn: bool
    numbers_drawn: bool  # by Python or numpy
    result: Any = None
    ended: Failure | None = None  # why it did not return
    threads: int = 0
    left: Left = NOTHING_LEFT
    rebound: list[Change] = field(default_factory=list)  # buffers, parameters and modules of modules
    before: list[Any] = field(default_factory=list)  # what Python held before it
    moved: dict[int, str] = field(default_factory=dict)  # memory that tensors had before it and no more; their names
    counting: list[str] = field(default_factory=list)  # optimizers whose count of steps no replay moves
    counters: bool = False  # it writes flags or counters that lie in tensors
    captures: bool = False  # the function itself
    replays: list[Place] = field(default_factory=list)  # of graphs that it has captured itself
    number: int = 0
    asked: Asked = field(default_factory=dict)  # about CUDA, where there is none
    doubted: Asked = field(default_factory=dict)  # what the simulated device does not know of it
    made: tuple[Origin, ...] = ()  # which operations have made the tensors that it returns
    numbers: list[torch.Tensor] = field(default_factory=list)  # of what it returns, where it has graphs of its own
    own_drawn: bool = False  # from generators that the program has itself: what these decide shows in other calls
    made_by: dict[int, int] = field(default_factory=dict)  # by id: which operation has made what a state has anew
    begun: bool = False  # states of optimizers that it has made first stay for the next calls
    makers: dict[tuple[Any, ...], Made | None] = field(default_factory=dict)  # of lines with numbers of the CPU's
    _ran: tuple[int, set[CodeType]] = (-1, set())

    def ran(self) -> set[CodeType]:
        """Functions of the user's that ran."""
        if self._ran[0] != len(self.steps):
            self._ran = len(self.steps), codes_in(step.place.stack for step in self.steps)
        return {*self._ran[1]}


def run(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The frame below which everything is the user's."""
    return function(*args, **kwargs)


class Caller:
    """Calls a function again and again under watch, within a limit for all calls together."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        limit_s: float,
        state: HostState | None = None,
    ) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.until: float | None = None  # from the first call on
        self.limit_s = limit_s
        self.longest_s = 0.0  # that a call has taken
        self.state = state or HostState(function, args, kwargs)
        self.random = RandomState()
        self.gradients = torch.is_grad_enabled()
        self.surroundings = Surroundings(self.state.tensors)
        # torch hands out the same few streams again and again; those of another priority are apart from the user's.
        self.stream = twin().Stream(priority=-1)
        self.number = 0
        self.left: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # counters of the CPU's, and what they held
        self.gradients_left: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}  # by parameter: those of before
        self.lost = False  # the device
        self.set_on_modules: list[tuple[dict[str, Any], str, Any]] = []  # of torch's own, as the last call left them
        self.graphs, self.once = OwnGraphs(driver().device.type), CapturedOnce(function, args, kwargs)
        self.graphs.between.may_learn = lambda: name_gradients(self.state.functions)
        self.readings: Callable[[Any, Place], Any] | None = None  # gives other values than are read from the device

    def given(self) -> dict[str, Any]:
        """The arguments by their names, as far as the function's signature tells."""
        try:
            return dict(inspect.signature(self.function).bind(*self.args, **self.kwargs).arguments)
        except Exception:  # it has none, or is an object of the user's, which answers as it likes
            return dict(self.kwargs)

    def put_back(self) -> None:
        """Undo what all calls did, on the device as far as it answers."""
        self.state.put_back()
        for parameter, gradient in self.gradients_left.values():
            parameter.grad = gradient
        with torch.no_grad():
            for flat, held in self.left.values():
                flat.copy_(held)
        self.random.put_back_host()
        if not self.lost:
            self.random.put_back_device()
        self.surroundings.put_back()

    def call(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        drawing: int = 0,
        counting: bool = False,
        plainly: bool = False,
        anew: bool = False,
        begins: bool = False,
        led: bool = False,
    ) -> Call:
        """One call, after which the device and torch's own bookkeeping are as before; Python's state is the user's.

        ``drawing``: the number of a call whose random numbers it draws on the host; else it draws others.
        ``counting``: flags and counters that it writes in tensors stay so, until all is put back.
        ``anew``: generators that the program has itself draw others all the same.
        ``begins``: states that optimizers of torch's make first in it stay, until all is put back.
        ``plainly``: it runs on the user's own stream, as a program does that captures by itself.
        ``led``: nobody has said that it ends with what it reads or is given now, so it has not all of the time.
        """
        self.number += 1
        drawing = drawing or self.number
        self.random.put_back() if drawing == 1 else self.random.perturb(drawing)
        for holder in self.state.holders if drawing > 1 else ():
            if isinstance(holder.target, torch.Generator):  # the keeper puts these back after each call
                holder.target.manual_seed(977 * (self.number if anew else drawing) + 1)
        drawn_from = RandomState()
        for attributes, name, value in self.set_on_modules:
            attributes[name] = value
        self.surroundings.freeze()
        before, memory = self.state.read(), self.state.memory()
        cuda, target = twin(), driver()
        keeper = Keeper()
        places = Places(run.__code__)
        at: list[Frame | None] = []
        current = cuda.current_stream()
        device = self.graphs.device
        for tensor in written_by_replays(self.state, before, device):
            keeper.keep(tensor)
        with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
            for tensor in read_by_captures(self.graphs.regions or (), device):
                keeper.keep(tensor)
        if not plainly:
            self.stream.wait_stream(current)
            cuda.set_stream(self.stream)
        self.graphs.fed.begin()
        self.graphs.warmed.begin()
        observer = Observer(places, keeper, target, self.graphs, self.readings)
        result, ended, asked, doubted, copies = None, None, Asked(), Asked(), list[torch.Tensor]()
        quiet = redirect_stdout(io.StringIO()) if self.number > 1 else nullcontext()
        try:
            with (
                quiet,
                _no_warnings(self.number > 1),
                self.once.call(),
                watched(observer),
                threads_watched(observer),
                asking(places) as asked,
                doubting(places) as doubted,
                noting(self.graphs.ran, bool(self.graphs) and self.graphs.regions is not None),
            ):

                def may_raise(frame: FrameType | None) -> bool:
                    at.append(places.of(frame).frame())
                    observer.stopped = True  # at the next operation at the latest, where nothing is half done
                    # From another thread the interruption arrives a moment later, who knows where.
                    return threading.get_ident() == places.thread and not places.is_inside(frame)

                # Under a mode Dynamo would give up compiled functions for ever; eagerly every operation has its line.
                # The first time this imports much of torch, which is not the function's time.
                eagerly = torch.compiler.set_stance("force_eager")
                if self.until is None:
                    self.until = unhindered_s() + self.limit_s
                with eagerly, at_most(self._left_s(led), may_raise), observer:
                    observer.unordered.hosts.watch()
                    since = unhindered_s()
                    result = run(self.function, args, kwargs)
                    self.longest_s = max(self.longest_s, unhindered_s() - since)
                    if issubclass(type(result), CoroutineType):
                        result.close()  # nobody will wait for it
        except TimeUp:
            text = f"interrupted after {self.limit_s:g} s in all, in call {self.number}"
            ended = BY_ID["time-limit"].failure(text, at[0] if at else None)
        except (SystemExit, WantsToExit) as error:
            ended = BY_ID["exits"].failure(f"{type(error).__name__}({error})", explain(error).frame)
        except KeyboardInterrupt:
            raise  # it is the user's
        except BaseException as error:
            ended = at_its_line(unknowable(raised(error, self.number), asked), observer.optimizers.stepped)
        finally:
            if observer.captures and (ended is not None or is_capturing()):
                _end_captures(target, [cuda.current_stream(), self.stream])
            cuda.set_stream(current)
            torch.set_grad_enabled(self.gradients)
            lost = synchronize(cuda)
            self.lost = lost is not None
            if lost is not None and observer.steps:
                lost = replace(lost, frame=observer.steps[-1].place.frame())  # nobody knows a better one
            if not self.lost and ended is None and (observer.captures or observer.replays):
                copies = _copied(result)
            remaining = Left(*keeper.left_gradients(), observer.optimizers.steps > 0, observer.optimizers.zeroed)
            keeper.stays |= keeper.counting if counting else set()
            self.left = {**keeper.left(), **self.left}
            self.graphs.between.leaves()
            if ended is not None and ended.code == "raises":
                self.graphs.between.breaks_off()
            with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
                graphs, writes = self.graphs, keeper.written().keys()
                graphs.early.leaves(writes, graphs.regions or (), graphs.of, graphs.flow.filled)
                graphs.warmed.leaves(graphs.written)
            if ended is None and (self.args or self.kwargs):
                self._leave_gradients(keeper)
            own = any(
                holder.kind == "generator" and holder.read() != then
                for holder, then in zip(self.state.holders, before, strict=False)
            )
            if not self.lost:
                keeper.put_back()
                cuda.synchronize()  # the copies were made on another stream, which may have their memory now
        if ended is None:
            self.graphs.returned(result, self.gradients_left)
            for place in observer.forks.unjoined():
                observer.findings.refused("CUDA error: capturing stream has unjoined work", 904, "wait_stream", place)
        of_groups = self.note_rates(observer)
        if ended is None and observer.replays:
            by_schedule = {id(getattr(each, "optimizer", None)) for each, _ in observer.optimizers.scheduled}
            note_rates_behind(self.graphs.regions or (), by_schedule)
        drawn, numbers = drawn_from.host_moved(), drawn_from.numbers_moved()
        changes, rebound = self.state.changes(before), self.state.exchanged_on_modules()
        on_torchs = counted(self.set_on_modules, on_modules := self.state.set_on_modules())
        known = {each.key for each in on_torchs}  # these say what the numbers were at the call's beginning
        changes += [*(each for each in of_groups if each.key not in known), *on_torchs]
        self.set_on_modules = on_modules  # for a capture, perhaps, or another in each call
        if observer.captures and ended is None and (self.args or self.kwargs):
            self.state.leave(self.graphs.memory())  # else the next call replays over what is gone
        begun = begins and ended is None and self.state.leave_begun()
        made_by = {id(each.after): observer.made(each.after)[0][0] >> OUTPUTS for each in rebound if each.owner}
        self.state.put_back(torchs_only=True)
        if not observer.captures:  # else it is a program of its own, which begins as ever
            self.surroundings.note_frozen()
        self.surroundings.need_no_more()
        if not self.lost:
            self.random.put_back_device()
        return Call(
            observer.steps,
            list(observer.findings.failures.values()),
            observer.on_device,
            changes,
            drawn,
            numbers,
            result,
            ended or lost,
            observer.threads,
            remaining,
            rebound,
            before,
            self.state.moved(memory),
            sorted(observer.optimizers.counting),
            bool(keeper.counting),
            observer.captures,
            observer.replays,
            self.number,
            asked,
            doubted,
            observer.made(result),
            copies,
            own,
            made_by,
            begun,
            observer.findings.makers,
        )

    def _left_s(self, led: bool) -> float:
        """How long a call may take."""
        left = (self.until or 0.0) - unhindered_s()
        return min(left, max(LED_S, TIMES * self.longest_s)) if led else left

    def _leave_gradients(self, keeper: Keeper) -> None:
        """Gradients of a graph that this call has captured stay: the next calls replay it, and find these there."""
        for parameter in self.graphs.between.captured():
            if (held := keeper.leave_gradient(parameter)) is not None:
                self.gradients_left.setdefault(id(parameter), held)

    def note_rates(self, observer: Observer) -> list[Change]:
        """Rates that the call changes: by a scheduler, or numbers of an optimizer that are others now.

        Returned are numbers that are others in groups of an optimizer's which has none of that name.
        """
        others: list[Change] = []
        known = set()
        for scheduler, place in observer.optimizers.scheduled:
            optimizer = getattr(scheduler, "optimizer", None)
            known.add(id(optimizer))
            at = next((where for one, where in observer.optimizers.stepped if one is optimizer), place)
            if any(isinstance(group.get("lr"), torch.Tensor) for group in getattr(optimizer, "param_groups", ())):
                at = place  # the kernels read it, so it is the scheduler's step that is missing
            text = f"{type(scheduler).__name__}.step() computes the next rate in Python, once"
            if at is not place and (called := place.frame()) is not None:
                text += f", at {called.label()}"
            observer.findings.silent("learning-rate-frozen", text, at)
        stepped = {id(optimizer) for optimizer, _ in observer.optimizers.stepped}
        alone = [(s.optimizer, at) for s, at in observer.optimizers.scheduled if hasattr(s, "optimizer")]
        replayed = [each for each in alone if id(each[0]) not in stepped]  # a graph has its step
        for optimizer, place in [*observer.optimizers.stepped, *(replayed if observer.replays else ())]:
            scheduled = id(optimizer) in known
            for group in optimizer.param_groups:
                before = self.state.held_by(group) or {}
                for name, now in group.items():
                    then = before.get(name, now)
                    if now is then or (scheduled and name == "lr") or not (_is_number(now) and _is_number(then)):
                        continue
                    if now != then and name not in optimizer.defaults:
                        others.append(Change("container", "param_groups", then, now, key=name))
                    elif (
                        now != then
                    ):  # a rate can be a tensor; what else a scheduler moves, such as the momentum, cannot
                        code = "scalar-frozen" if scheduled else "learning-rate-frozen"
                        observer.findings.silent(code, f"{name}{MOVED}{then} to {now} in one call", place)
        return others


def _is_number(value: Any) -> bool:
    parts = value if isinstance(value, tuple) else (value,)  # betas are two
    return all(isinstance(part, (int, float)) for part in parts)


def _copied(result: Any) -> list[torch.Tensor]:
    """The numbers of a result, which is a graph's memory perhaps, and so another one's soon."""
    found = tensors_in(result)
    is_small = sum(t.numel() for t in found) <= _MOST_NUMBERS
    return [t.detach().cpu().clone() for t in found if t.layout is torch.strided] if is_small else []


def _end_captures(target: Driver, streams: list[Any]) -> None:
    """End captures that a function has begun and left."""
    # Where only a new process could do that, the next call on the device tells so.
    with suppress(UnsupportedError, RuntimeError):
        target.repair(streams)


def raised(error: BaseException, number: int) -> Failure:
    """What a function raised in one of its calls."""
    found = explain(error)
    if found.code == "unknown":
        again = f", in call {number}: it cannot be called twice from the same state" if number > 1 else ""
        text = f"{type(error).__name__}: {first_line(text_of(error))}{again}"
        return BY_ID["raises"].failure(text, found.frame)
    return found


def unknowable(found: Failure, asked: Asked) -> Failure:
    """The same, where nothing without a GPU can tell what comes after an answer that is another one with a GPU."""
    lacks = re.search(r"ModuleNotFoundError: No module named '([a-z]+)", found.message)
    if lacks is not None and lacks[1] in FOR_CUDA and driver().device.type != CUDA:
        return BY_ID["not-simulated"].failure(found.message, found.frame)
    if not asked or found.code not in ("raises", "mixed-devices"):
        return found
    text = f"{next(iter(asked))} was asked before, and answers otherwise on a GPU; here came {found.message}"
    return BY_ID["not-simulated"].failure(text, found.frame)


def is_capturing() -> bool:
    """Whether a capture is under way."""
    try:
        return driver().is_capturing()
    except RuntimeError:  # the device answers nothing any more, which is told next
        return False


def check_free(verb: str) -> None:
    """Raise ParamgraphError where a capture is under way, which would take in all that ``verb`` runs."""
    if is_capturing():
        raise ParamgraphError(f"{verb} runs fn eagerly, and a capture is under way: end it first")


def synchronize(cuda: Any) -> Failure | None:
    """Wait for the device; the error of a kernel shows here at the latest."""
    try:
        cuda.synchronize()
    except RuntimeError as error:
        return explain(error)
    return None


@contextmanager
def _no_warnings(quiet: bool) -> Iterator[None]:
    """The same warning need not come from every call."""
    if not quiet:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
