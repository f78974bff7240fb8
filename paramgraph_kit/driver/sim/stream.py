"""Streams, events and the rules of stream capture.

Work never runs asynchronously here, but order is real: a stream in capture has a *tail*, the nodes that its next node
will depend on; waiting for an event joins tails, and brings an idle stream into the capture (a fork). What CUDA forbids
fails with CUDA's code and, as on the device, invalidates the capture, so that its end fails with 901.

The default stream is the legacy one, id 0; every other stream is non-blocking, as torch's are.
"""

from __future__ import annotations

import ctypes
import operator
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from paramgraph_kit.driver.torch_names import torch_name

from . import autograd
from .errors import cuda_error, device_index, has_none, missing, require_device
from .first_use import use
from .not_known import not_known
from .streams import Pass, Streams
from .under_way import Capture, forbid_in_capture

# How the engine refuses a backward pass before a kernel of it runs.
BEFORE_IT_RUNS = ("through the graph a second time", "has been modified by an inplace operation")
MOST_PASSES = 64  # backward passes of which it is known whose they are
HIGHEST = 3  # torch has pools of streams for four priorities
_NAMES = frozenset((*dir(torch.cuda.Stream), *dir(torch.cuda.Event)))  # what one of a GPU's may be asked for
_by_no_mode = torch_name("DisableTorchFunction")
AGAIN = "what this stream has: a process has 32 of each priority, and this one served before"


class Stream(torch.Stream):
    """The twin of ``torch.cuda.Stream``; ``cuda_stream`` is its raw number, 0 for the default stream.

    One of torch's streams as that is, so that Dynamo traces it; nothing of torch's own is asked of it.
    """

    KIND = 20  # of its device, to torch: PrivateUse1, the slot of a device in Python
    external = False  # whether it is only known by its raw number
    captures = False  # whether torch.cuda.graph captures on it where nobody names another one
    instead = False  # whether it was given where a GPU gives that one again,
    again = False  # and whether it was given more than once
    generic = False  # whether torch.Stream has made it

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        """A stream of torch's with this one's number."""
        for name, value in kwargs.items():
            if name not in ("stream_id", "device_index", "device_type", "stream_ptr"):
                raise TypeError(f"{name!r} is an invalid keyword argument for this function")
            if name == "stream_ptr" and value:
                raise missing("Stream", name)
        if not kwargs:
            require_device(device)
        number = kwargs.get("stream_id")
        if not number and (again := _table.in_turn(_given(priority))) is not None:
            return again
        return super().__new__(cls, stream_id=number or _table.next_number(), device_index=0, device_type=cls.KIND)

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        if "cuda_stream" in self.__dict__:
            return
        self.priority = _given(priority)
        self.cuda_stream: int = kwargs.get("stream_id") or _table.register(self)
        self.capture: Capture | None = None
        self.tail: tuple[int, ...] = ()

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The simulated device."""
        with _by_no_mode():  # which sees nothing of a GPU's
            return torch.device("sim", 0)

    @property
    def stream_id(self) -> int:  # type: ignore[override]
        """The same number as ``cuda_stream``."""
        return self.cuda_stream

    @property
    def native_handle(self) -> int:
        """The same number once more."""
        return self.cuda_stream

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority that torch gives a stream."""
        return 0, -HIGHEST

    def wait_event(self, event: Event) -> None:  # type: ignore[override]
        """Order all later work of this stream after ``event``; raises 1, 902, 905 or 906 in or around a capture."""
        if not isinstance(event, torch.Event):
            raise has_none(event, "wait")
        if self.generic and event.given is None:
            return  # torch.Stream looks at a part of torch.cuda's events that is never recorded [H200]
        if event.external and current_stream().capture is not None:
            if self.capture is None:
                raise cuda_error(401)
            self.capture.check()
            if event.created:
                self.capture.external(self, event, False)
            return
        if event.capture is None:
            if self.capture is not None and event.created:
                self.capture.check()
                raise self.capture.fail(900 if event.interprocess else 905)
            return
        if self.capture is not None:
            self.capture.check()
        if event.capture.ended or event.capture.invalid:
            raise self.capture.fail(1) if self.capture is not None else cuda_error(1)
        if self.capture is None:
            if self.cuda_stream == 0:
                raise event.capture.fail(906)
            if self.instead:
                not_known(AGAIN)
            self.capture = event.capture
            self.tail = event.tail
            event.capture.streams.append(self)
        elif self.capture is event.capture:
            self.tail = tuple(sorted({*self.tail, *event.tail}))
        else:
            event.capture.invalid = True
            raise self.capture.fail(902)

    def wait_stream(self, stream: Stream) -> None:  # type: ignore[override]
        """Order all later work of this stream after all work now on ``stream``."""
        event = stream.record_event()
        if self.generic:
            event.given = self.device  # torch.Stream makes one of its own
        self.wait_event(event)

    def record_event(self, event: Event | None = None) -> Event:  # type: ignore[override]
        """Record an event (a new one by default) at this point of the stream."""
        if event is None:
            event = Event()
            event.given = self.device if self.generic else None
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Wait for this stream; raises 900 in a capture, a spoiled one, too."""
        if self.capture is not None and self.capture.invalid:
            raise self.capture.fail(900)
        forbid_in_capture(self)

    def query(self) -> bool:
        """Whether the stream's work is done, always true here; raises 900 in a capture."""
        if self.capture is not None:
            raise self.capture.fail(900)
        forbid_in_capture(None)
        return True

    @property
    def _as_parameter_(self) -> Any:
        return ctypes.c_void_p(self.cuda_stream)

    def is_capturing(self) -> bool:
        """Whether this stream is part of a capture."""
        return self.capture is not None

    def __getattr__(self, name: str) -> Any:
        known = name not in vars(Event) and name in _NAMES
        raise missing("Stream", name) if known else has_none(self, name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stream):
            return False
        return other.cuda_stream == self.cuda_stream and other.external == self.external

    def __ne__(self, other: object) -> bool:
        return not self == other if isinstance(other, Stream) else super().__ne__(other)  # of None, torch says no

    def __hash__(self) -> int:
        return hash(("sim stream", self.cuda_stream))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=sim:0 cuda_stream={self.cuda_stream:#x}>"

    def __enter__(self) -> Stream:
        _table.stack().append(entered(self))
        return self

    def __exit__(self, *args: object) -> None:
        leave(_table.stack().pop())


def _given(priority: int) -> int:
    """The priority that torch gives a stream."""
    return min(0, max(operator.index(priority), -HIGHEST))


class Event(torch.Event):
    """The twin of ``torch.cuda.Event``; one of torch's events for the same reason."""

    def __new__(cls, *_: Any, **given: Any) -> Event:
        """An event of torch's that is never recorded."""
        for name in given:
            if name not in ("enable_timing", "blocking", "interprocess", "external"):
                raise TypeError(f"Event.__new__() got an unexpected keyword argument {name!r}")
        return super().__new__(cls, device="cpu")

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        for given in (enable_timing, blocking, interprocess, external):
            operator.index(given)  # raises for what torch's parser takes for no flag
        self.enable_timing = enable_timing
        self.interprocess = interprocess
        self.external = external  # in a capture a node of the graph, which happens at each replay
        self.capture: Capture | None = None  # in which it was last recorded, if any
        self.tail: tuple[int, ...] = ()
        self.recorded_at: float | None = None
        self.created = False  # torch makes CUDA's event at the first record
        self.given: torch.device | None = None  # the device that the user has named

    @property
    def device(self) -> torch.device | None:  # type: ignore[override]
        """The simulated device, once it is recorded there."""
        return torch.device("sim", 0) if self.created else self.given

    @property
    def cuda_event(self) -> int:
        """Its raw number, 0 before the first record."""
        return id(self) if self.created else 0

    def record(self, stream: Stream | None = None) -> None:  # type: ignore[override]
        """Mark this point of a stream, the current one by default."""
        if stream is None:
            use()  # torch asks which stream is current
            stream = current_stream()
        _check_stream(stream)
        if self.interprocess and self.enable_timing and not self.created:
            raise cuda_error(1)  # CUDA makes none that times for other processes
        self.created = True  # torch makes the event first, also where CUDA refuses to record it then
        if self.interprocess and stream.capture is not None:
            raise cuda_error(900)  # CUDA records no such event there, and leaves the capture as it is
        if self.external and stream.capture is None and current_stream().capture is not None:
            raise cuda_error(401)  # torch asks for a node where the current stream captures
        if stream.capture is not None:
            stream.capture.check()
            if self.external:
                self.capture = None
                stream.capture.external(stream, self, True)
                return
            stream.capture.recorded[id(self)] = weakref.ref(self), stream
        self.capture = stream.capture
        self.tail = stream.tail
        self.recorded_at = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:  # type: ignore[override]
        """Order all later work of a stream, the current one by default, after this event."""
        stream = current_stream() if stream is None else stream
        _check_stream(stream)
        stream.wait_event(self)

    def query(self) -> bool:
        """Whether the event has happened; raises 900 in a capture, 907 on an event of one, 1 once that has ended."""
        self._usable()
        return True

    def synchronize(self) -> None:
        """Wait for the event; raises as ``query`` does."""
        self._usable()

    def elapsed_time(self, end: Event) -> float:  # type: ignore[override]
        """Host milliseconds between two events: the simulated device has no time of its own."""
        if not isinstance(end, torch.Event):
            raise RuntimeError("expected other to be a torch.cuda.Event object")
        if not (self.enable_timing and end.enable_timing):  # CUDA is not asked
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not (self.created and end.created):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        for event in (self, end):
            event._usable()
        if self.recorded_at is None or end.recorded_at is None:  # only in a capture that was not launched yet
            raise cuda_error(400)
        return (end.recorded_at - self.recorded_at) * 1e3

    def ipc_handle(self) -> Any:
        """Refused: there is no other process on this device; CUDA has one for events made for that alone."""
        if not self.interprocess:
            raise cuda_error(400)
        raise missing("Event", "ipc_handle")

    def _usable(self) -> None:
        if not self.created:  # CUDA is not asked
            return
        if self.capture is not None:
            if self.capture.ended or self.capture.invalid:
                raise cuda_error(1)  # what an H200 answers for an event of a finished capture, or a spoiled one
            raise self.capture.fail(907)
        forbid_in_capture(None)

    def __getattr__(self, name: str) -> Any:
        known = name not in vars(Stream) and name in _NAMES
        raise missing("Event", name) if known else has_none(self, name)

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {f'{id(self):#x}' if self.created else 'uninitialized'}>"


def _check_stream(given: Any) -> None:
    if not isinstance(given, torch.Stream):
        raise RuntimeError("expected stream to be a torch.Stream or torch.cuda.Stream object")


_table = Streams()
_default = Stream()


def default_stream(device: Any = None) -> Stream:
    """The legacy default stream."""
    _look_for(device)
    return _default


def _look_for(device: Any) -> None:
    if (index := device_index(device)) > 0:
        raise RuntimeError(f"Device index value {index} is out of index range [0, 1)")


def stream_of(number: int) -> Stream:
    """The stream with a raw number."""
    return _table.streams[number]


def current_stream(device: Any = None) -> Stream:
    """The stream that this thread's work goes to.

    Autograd runs the backward of device tensors on a thread of its own, where the engine selects the stream on which
    each of its nodes was made, and joins these streams with that of the caller. In a capture that is as good as running
    all of it on the stream of the caller.
    """
    if device is not None:
        _look_for(device)
    stream, task = _table.current(), autograd.task_id()
    node = autograd.current_node() if task != -1 else None
    if node is not None and task not in _table.passes:  # on whichever thread it runs
        _backward_begins(node, task)
    if stream is not None:
        return stream
    if node is not None:
        log = _table.passes.get(task, _table.engine_log)
        if log and log[-1][1].capture is not None:
            return log[-1][1]
        return autograd.made_on(node, log) or _default
    return _default


def _backward_begins(node: Any, task: int) -> None:
    """Look at a backward pass as it begins: it follows the thread that called it, and not one that captures beside.

    Raises:
        torch.AcceleratorError: code 906, in a capture, for a node that was made on the default stream.
    """
    begun = list(_table.begun.values())
    log = begun[-1].log if begun else _table.engine_log
    if len({id(each.log) for each in begun}) > 1:
        log = next((each.log for each in begun[::-1] if autograd.is_behind(node, each.roots)), log)
    _table.passes[task] = log
    for old in list(_table.passes)[:-MOST_PASSES]:  # the first known: one that goes on comes again, behind all others
        _table.passes.pop(old, None)
    capture = log[-1][1].capture if log else None
    if capture is None:
        return
    autograd.note_leaves_of_functions(node, log)
    run = next((each for each in begun[::-1] if autograd.is_behind(node, each.roots)), Pass([], log, (), False))
    streams = {n: autograd.made_on(n, log) or _default for n in autograd.met(node, run.inputs)}
    strangers = [n for n, stream in streams.items() if stream == _default]
    hooks = autograd.forbid_reaching(strangers, streams, node, run.accumulates, partial(capture.fail, 906))
    if hooks is None:
        raise capture.fail(906)
    run.hooks += hooks
    for stream in dict.fromkeys(streams.values()):  # they wait for one another, and the caller for all of them
        if stream.capture is capture and stream != log[-1][1]:
            log[-1][1].wait_stream(stream)
            _table.behind.append((log[-1][1], stream))


def note_leaf(tensor: torch.Tensor) -> None:
    """An operation reads a tensor that requires gradients."""
    if torch.is_grad_enabled():
        if tensor.is_leaf:
            autograd.note_leaf(tensor, current_stream())
    elif not tensor._is_view() and tensor.is_leaf and autograd.in_function():  # of a view torch may not say it here
        autograd.note_leaf_of_function(tensor, current_stream())


@contextmanager
def follow_this_thread(roots: Iterable[Any], inputs: Iterable[Any] = (), accumulates: bool = False) -> Iterator[None]:
    """A backward pass from ``roots`` runs for this thread: its nodes were made on the streams that this had chosen.

    They count for themselves on each thread; one that has made none goes through what another one has made.

    Raises:
        torch.AcceleratorError: code 905, the first gradient is of a stream that is not in the capture of its root.
    """
    task, leaves = autograd.task_id(), autograd.leaves_among(roots, current_stream())
    if task == -1:
        _follow_this_thread(roots)
    else:
        autograd.note_made_under_way(roots, [each.roots for each in _table.begun.values()], current_stream())
    key = object()
    run = _table.begun[key] = Pass([*roots], _table.passes.get(task, _table.engine_log), (*inputs,), accumulates)
    try:
        yield
    except RuntimeError as error:
        capture, root = current_stream().capture, autograd.root_stream_of(roots, _table.engine_log) or _default
        if capture and capture is not root.capture and any(words in str(error) for words in BEFORE_IT_RUNS):
            capture.fail(906)  # before the engine looked, the root's stream was to wait for this one
        raise
    finally:
        del _table.begun[key], leaves  # held until the engine has met them
        for hook in run.hooks:
            hook.remove()
        if not _table.begun:
            _join_streams_of_nodes()


def _join_streams_of_nodes() -> None:
    """A backward node runs on its own stream, which is as far then as that of the caller, on which it ran here."""
    while _table.behind:
        caller, stream = _table.behind.pop()
        if caller.capture is not None and caller.capture is stream.capture and not caller.capture.invalid:
            stream.wait_stream(caller)


def _follow_this_thread(roots: Iterable[Any]) -> None:
    if autograd.sequence_number():
        _table.engine_log = _table.log()
        return
    capture = (autograd.root_stream_of(roots, _table.engine_log) or _default).capture
    if capture is not None and (_table.current() or _default).capture is not capture:
        capture.check()
        raise capture.fail(905)


def note_made_in_backward(results: Iterable[Any], roots: Iterable[Any]) -> None:
    """A backward pass from ``roots``, called on this thread, has made gradients that can be differentiated."""
    autograd.note_made_in_backward(results, roots, current_stream())


def set_current(stream: Stream) -> None:
    """Make ``stream`` this thread's current stream."""
    if not isinstance(stream, Stream):  # torch's own for this device: one that nobody has made here is no stream
        known = _table.streams.get(stream.stream_id)
        if known is None:
            raise NotImplementedError("the simulated device has no streams that torch.Stream makes: cuda.Stream() does")
        stream = known
    _table.set(stream)
    log = _table.engine_log = _table.log()
    number = autograd.sequence_number()
    if log and log[-1][0] == number:
        log.pop()
    log.append((number, stream))
    if len(log) > 20_000:
        del log[:10_000]


Choice = tuple[Stream | None, autograd.Log[Stream]]
Before = tuple[Stream, Choice]


def choice() -> Choice:
    """Which stream this thread has chosen, if it has, and whose choices autograd's threads follow."""
    return _table.current(), _table.engine_log


def restore(before: Choice) -> None:
    """Undo every choice since ``before``: autograd's thread, which chose none, goes on following the others."""
    stream, engine_log = before
    set_current(_default if stream is None else stream)  # closes the log
    if stream is None:
        _table.forget()
    _table.engine_log = engine_log


def entered(stream: Stream) -> Before:
    """Make ``stream`` current for a while; what ``leave`` is given."""
    before = current_stream(), choice()
    set_current(stream)
    return before


def leave(before: Before) -> None:
    """Make current what was; autograd's thread, which enters streams of what it runs again, has chosen none."""
    if autograd.task_id() == -1:
        set_current(before[0])
    else:
        restore(before[1])
