"""Calls that are no operations, watched by wrapping them for a while: streams, events, waits, seeds, prints, exits."""

from __future__ import annotations

import builtins
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes as no_modes

from paramgraph_kit.doctor.observe.empty_captures import no_nodes_told
from paramgraph_kit.doctor.observe.observer import Observer
from paramgraph_kit.doctor.observe.own_regions import GRAPHED
from paramgraph_kit.doctor.observe.refusals import UNCAPTURED
from paramgraph_kit.doctor.observe.unseen_readings import unseen_told
from paramgraph_kit.driver.files import modules_of_users
from paramgraph_kit.driver.replaced import replaced
from paramgraph_kit.driver.select import twin
from paramgraph_kit.driver.torch_names import torch_name

A_LOG = "a line of a log"
_OF_BARS = ("update", "set_description", "set_description_str", "set_postfix", "set_postfix_str")
CAPTURED_EVENT = "CUDA error: operation not permitted on an event last recorded in a capturing stream"


class WantsToExit(BaseException):
    """The user's function called something that ends the process."""


def _bars() -> list[Any]:
    """The class of tqdm's bars of progress, where that is there."""
    bar = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    return [bar] if bar is not None else []


def _imported(functions: Container[int]) -> list[tuple[Any, str, Any]]:
    """Where modules of the user's have some functions, told by their ids, under names of their own."""
    held = ((m, name, value) for m in modules_of_users() for name, value in list(vars(m).items()))
    return [each for each in held if id(each[2]) in functions]


def _is_autograds() -> bool:
    """Whether this thread was made by torch: Python knows nothing of it but that it is there."""
    return isinstance(threading.current_thread(), threading._DummyThread)


@contextmanager
def watched(observer: Observer) -> Iterator[None]:
    """Tell ``observer`` of every such call that this thread makes."""
    thread = threading.get_ident()
    cuda = twin()
    in_backward = torch_name("_current_graph_task_id")
    whole_device, asking = cuda.synchronize, (cuda.Event.query, cuda.Stream.query)

    def mine() -> bool:
        """Whether it is this thread that calls, or autograd's for a backward: hooks run there."""
        return threading.get_ident() == thread or (in_backward() != -1 and _is_autograds())

    def before(tell: Callable[..., None], elsewhere: Callable[..., None] | None = None) -> Callable[[Any], Any]:
        """Call ``tell`` with the arguments, then the function itself; ``elsewhere``: where another thread calls."""

        def make(function: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                if mine():
                    tell(*args, **kwargs)
                elif function is whole_device:
                    observer.background("background-wait", "synchronize()")
                elif function in asking:
                    observer.background("background-query", "query()")
                elif tell == observer.replayed:
                    observer.replayed_elsewhere(*args)
                if elsewhere is not None and not mine():
                    elsewhere(*args, **kwargs)
                return function(*args, **kwargs)

            return call

        return make

    def answers(function: Any) -> Any:
        """A package that asks whether it is captured takes the way that it takes in a capture."""

        def call() -> bool:
            return bool(function()) or (mine() and observer.asked_by_package())

        return call

    def makes_graph(name: str) -> Callable[[Any], Any]:
        """What torch does on the device for a capture, such as filling in seeds, is no work of the function's."""

        def make(function: Any) -> Any:
            def call(graph: Any, *args: Any, **kwargs: Any) -> Any:
                observer.captures = observer.captures or name == "capture_begin"  # another thread may do so
                before, observer.makes_graph = observer.makes_graph, True
                try:
                    with no_nodes_told(name == "capture_end") as empty:
                        result = function(graph, *args, **kwargs)
                finally:
                    observer.makes_graph = before
                if name == "capture_end" and sys.exc_info()[1] is None:  # nothing was raised in it
                    observer.graphs.ended(graph, empty=bool(empty))
                return result

            return call

        return make

    def copies(function: Any) -> Any:
        """A copy of bare memory, as copy.deepcopy() makes of a tensor's, has its memory out of sight of modes."""

        def call(storage: Any) -> Any:
            with no_modes():
                result = function(storage)
            observer.keeper.made.add(result._cdata)
            return result

        return call

    def shares(function: Any) -> Any:
        """What numpy does with the memory of a tensor is out of sight of modes."""

        def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            result = function(tensor, *args, **kwargs)
            if mine() and observer.unordered.hosts and tensor.device.type == "cpu":
                with no_modes():
                    observer.unordered.hosts.shared(tensor, result, order, observer.places.here())
            return result

        return call

    def waits(name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: observer.findings.refused(UNCAPTURED, 900, name)

    def waits_for(name: str) -> Callable[..., None]:
        def tell(stream: Any = None) -> None:
            is_stream = isinstance(stream, torch.Stream)  # and not a device
            observer.unordered.order.host_waits(stream=number(stream) if is_stream else None)
            observer.findings.refused(UNCAPTURED, 900, name)

        return tell

    def uses_event(name: str) -> Callable[..., None]:
        def tell(event: Any, *args: Any, **kwargs: Any) -> None:
            observer.unordered.order.host_waits(event=event)
            if observer.forks.captured(event):
                observer.findings.refused(CAPTURED_EVENT, 907, name)
            elif name != "elapsed_time" and observer.forks.recorded(event):  # of one that was not, CUDA is not asked
                observer.findings.refused(UNCAPTURED, 900, name)

        return tell

    def number(stream: Any) -> int:
        chosen = cuda.current_stream() if stream is None else stream
        return int(getattr(chosen, "cuda_stream", chosen.stream_id))  # torch.Stream has only the latter

    def recorded(event: Any, stream: Any = None) -> None:
        observer.forks.record(event, number(stream))
        observer.unordered.order.record(event, number(stream))

    def waited(event: Any, stream: Any = None) -> None:
        observer.unordered.order.wait(event, number(stream))
        if observer.forks.wait(event, number(stream)):
            observer.findings.refused(
                "CUDA error: dependency created on uncaptured work in another stream", 905, "wait_event"
            )

    order = observer.unordered.order
    in_threads: dict[tuple[Any, str], Callable[..., None]] = {
        (cuda.CUDAGraph, "capture_begin"): lambda graph, *_, **__: observer.graphs.begin(graph),
        (cuda, "synchronize"): lambda *_: order.host_waits(),
        (cuda.Stream, "synchronize"): lambda stream: order.host_waits(stream=number(stream)),
        (cuda.Stream, "wait_event"): lambda stream, event: order.wait(event, number(stream)),
        (cuda.Event, "synchronize"): lambda event: order.host_waits(event=event),
        (cuda.Event, "record"): lambda event, stream=None: order.record(event, number(stream)),
        (cuda.Event, "wait"): lambda event, stream=None: order.wait(event, number(stream)),
        (torch.Tensor, "record_stream"): lambda tensor, *_: observer.unordered.freed.recorded(tensor),
    }
    process = os.getpid()

    def exits(*args: Any, **kwargs: Any) -> None:
        if os.getpid() == process:  # and not one that the function has forked
            raise WantsToExit(args[0] if args else 0)

    def kills(who: int, number: int) -> None:
        if who in (process, 0, -1):
            ends(number)

    def ends(number: int) -> None:
        if (number and signal.getsignal(number) is signal.SIG_DFL) or number == signal.SIGKILL:
            raise WantsToExit(f"signal {signal.Signals(number).name}")

    def told(*args: Any, **kwargs: Any) -> None:
        observer.findings.silent_if_own("host-counter", A_LOG)

    def smoothed(x: Any, labels: Any, weight: Any = None, reduction: int = 1, _: int = -100, by: float = 0.0) -> None:
        """With weights and smoothing a mean picks the labels that are not ignored, but where a mode sees it."""
        picks = weight is not None and by > 0 and reduction == 1 and not labels.is_floating_point()
        if picks and x.device.type == observer.findings.device:
            observer.findings.refused(UNCAPTURED, 900, "cross_entropy", sure=True)

    table: list[tuple[Any, str, Callable[..., None]]] = [
        (cuda, "synchronize", waits_for("synchronize")),
        (cuda.Stream, "synchronize", waits_for("synchronize")),
        (cuda.Stream, "query", waits_for("query")),
        (cuda.Stream, "wait_event", lambda stream, event: waited(event, stream)),
        (cuda.Event, "synchronize", uses_event("synchronize")),
        (cuda.Event, "query", uses_event("query")),
        (cuda.Event, "elapsed_time", uses_event("elapsed_time")),
        (cuda.Event, "record", recorded),
        (cuda.Event, "wait", waited),
        (torch, "manual_seed", lambda seed: observer.seeded(f"torch.manual_seed({seed})")),
        (torch, "seed", lambda: observer.seeded("torch.seed()")),
        (cuda, "manual_seed_all", lambda seed: observer.seeded(f"manual_seed_all({seed})")),
        (cuda, "manual_seed", lambda seed: observer.seeded(f"manual_seed({seed})")),
        (torch_name("_nn"), "cross_entropy_loss", smoothed),
        (torch_name("_tensor_str"), "_str", lambda tensor, *args, **kwargs: observer.shown(tensor)),
        (torch.Tensor, "record_stream", lambda tensor, *_: observer.unordered.freed.recorded(tensor)),
        (torch.Tensor, "tolist", lambda tensor: observer.listed(tensor)),
        (builtins, "print", lambda *args, **kwargs: observer.printed(args)),
        (builtins, "open", observer.opened),
        *((Path, name, lambda path, *_, **__: observer.opened(path, "w")) for name in ("write_text", "write_bytes")),
        (logging.Logger, "handle", told),
        *((bar, name, told) for bar in _bars() for name in _OF_BARS if hasattr(bar, name)),
        (cuda.graph, "__enter__", lambda *_: order.host_waits(by_work=True)),  # which begins with synchronize()
        (cuda.CUDAGraph, "capture_begin", lambda graph, *args, **kwargs: observer.nested(graph)),
        (cuda.CUDAGraph, "replay", observer.replayed),
        (cuda, GRAPHED, lambda *args, **kwargs: observer.graphs_callables()),
        (torch.optim.Optimizer, "zero_grad", lambda optimizer, *args, **kwargs: observer.optimizers.zeroes(optimizer)),
        (torch.optim.Optimizer, "load_state_dict", lambda optimizer, *_, **kw: observer.optimizers.loads(optimizer)),
        (torch.amp.GradScaler, "scale", lambda scaler, *args, **kwargs: observer.optimizers.scales(scaler)),
        (torch.nn.Module, "zero_grad", lambda module, *args, **kwargs: observer.optimizers.zeroes(module)),
    ]
    table += [(cuda.cudart(), name, waits(name)) for name in ("cudaProfilerStart", "cudaProfilerStop")]
    table += [(os, "kill", kills), (signal, "raise_signal", ends)]
    table += [(os, name, exits) for name in ("_exit", "abort", "execv", "execve") if hasattr(os, name)]
    ending = {id(getattr(owner, name)): tell for owner, name, tell in table if owner in (os, signal)}
    table += [(module, name, ending[id(value)]) for module, name, value in _imported(ending)]
    if hasattr(torch, "accelerator"):
        table.append((torch.accelerator, "synchronize", waits_for("synchronize")))
    table += [
        (kind, "step", lambda scheduler, *args, **kwargs: observer.optimizers.schedules(scheduler))
        for kind in vars(lr_scheduler).values()
        if isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler) and "step" in vars(kind)
    ]
    with ExitStack() as stack:
        for owner, name, tell in table:
            stack.enter_context(replaced(owner, name, before(tell, in_threads.get((owner, name)))))
        stack.enter_context(unseen_told(observer, mine))
        stack.enter_context(replaced(torch.UntypedStorage, "clone", copies))
        stack.enter_context(replaced(torch.Tensor, "numpy", shares))
        stack.enter_context(replaced(cuda, "is_current_stream_capturing", answers))
        for name in ("capture_begin", "capture_end", "replay"):
            stack.enter_context(replaced(cuda.CUDAGraph, name, makes_graph(name)))
        hook = register_optimizer_step_pre_hook(lambda optimizer, *_: observer.optimizers.step_of(optimizer))
        stack.callback(hook.remove)
        observer.unordered.hosts.follows(observer.unordered.order, observer.places.of)
        stack.callback(observer.unordered.hosts.ends)
        yield
