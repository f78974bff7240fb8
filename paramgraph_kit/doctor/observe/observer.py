"""Sees every operation of one call of the user's function: what a capture would refuse, and what it would freeze."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.as_ever import AsEver
from paramgraph_kit.doctor.observe.findings import Findings, through_torch
from paramgraph_kit.doctor.observe.forks import Forks
from paramgraph_kit.doctor.observe.given_to_operations import (
    NO_KERNELS,
    OUTPUTS,
    Origin,
    Value,
    custom_kernel,
    filled_by,
    made_by,
    origin,
    sort,
    written_by,
)
from paramgraph_kit.doctor.observe.graphed_by_torch import is_of_graphs
from paramgraph_kit.doctor.observe.held import tensors_in
from paramgraph_kit.doctor.observe.host_copies import blocks
from paramgraph_kit.doctor.observe.limit import TimeUp
from paramgraph_kit.doctor.observe.optimizers import Optimizers
from paramgraph_kit.doctor.observe.own_graphs import VIEWS, OwnGraphs
from paramgraph_kit.doctor.observe.places import Place, Places
from paramgraph_kit.doctor.observe.refusals import UNCAPTURED, Operation, copies_pinned, is_staged, operation, refusal
from paramgraph_kit.doctor.observe.sums import sum_of
from paramgraph_kit.doctor.observe.taken_apart import taken_apart, without_autograd
from paramgraph_kit.doctor.restore.keeper import Keeper, storage_key, weak_ref
from paramgraph_kit.driver.api import Driver
from paramgraph_kit.driver.files import OURS, is_library, package_of
from paramgraph_kit.driver.tensors import on_device
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.trace.model import Failure

_ASKING = {"CumprodBackward": "cumprod", "ProdBackward": "prod"}
_sequence_number, _current_node = torch_name("_get_sequence_nr"), torch_name("_current_autograd_node")


@dataclass(slots=True)
class Step:
    """One operation, as far as two calls are compared."""

    name: str
    place: Place
    values: tuple[Value, ...]  # numbers among its arguments
    from_cpu: tuple[Value, ...]  # values of CPU tensors of one element among its arguments
    outside: tuple[int, ...]  # memory from outside the call that it reads
    shapes: tuple[torch.Size, ...] = ()
    on_device: bool = False
    made: tuple[Origin, ...] = ()  # of what it reads on the device, which operation of the call has made it last
    copied: int = 0  # a sum of what it copies, or reads to decide something, from the CPU

    @property
    def key(self) -> tuple[Any, ...]:
        """What has to be equal for two operations to be the same one."""
        return self.name, self.place.ids


COPIED_THERE = ("where", "_to_copy", "copy_", "index", "index_put_", "_index_put_impl_", "bernoulli_")


class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Watches the thread in which it is made."""

    supports_higher_order_operators = True

    def __init__(
        self,
        places: Places,
        keeper: Keeper,
        target: Driver,
        graphs: OwnGraphs,
        readings: Callable[[Any, Place], Any] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.readings = readings  # what is read instead of a value of the device
        self.places = places
        self.keeper = keeper
        self.forks = Forks(target.current_stream())
        self.steps: list[Step] = []
        self.on_device = 0
        self._makers: dict[int, int] = {}  # by memory, which operation on the device has written it last
        self.findings = Findings(places, target.device.type)
        self.optimizers = Optimizers(self.findings, keeper, graphs.beginnings)
        self.stopped, self.threads = False, 0  # time is up; started meanwhile
        self.given_work: dict[int, Place] = {}  # by thread: where it was given what it does
        self.captures = False  # the function begins a capture of its own
        self.graphs = graphs  # of the function's own
        self.unordered = graphs.unordered
        self.optimizers.between, self.optimizers.states = graphs.between, graphs.states
        self.replays: list[Place] = []  # of those
        self.makes_graph = False  # torch begins, ends or replays a capture just now
        self._device = target.device.type
        self._is_there = on_device(self._device)
        self._casts = torch.is_autocast_enabled(self._device) and torch.is_autocast_cache_enabled()
        torch.clear_autocast_cache()
        self._stream = target.current_stream
        self._is_capturing = target.is_capturing
        self._as_ever = AsEver()
        self._hooked: dict[int, tuple[Any, Any]] = {}  # weak references: what nobody else has is freed, as ever
        self._forward: dict[int, tuple[str, Place]] = {}  # by autograd's number: what is now differentiated
        self._made_in_backward: set[int] = set()  # numbers of nodes for gradients of gradients
        self._of_cpu: set[int] = set()  # storages of what was computed on the CPU from tensors of before
        self._custom = 0  # operations of the user's own that run now, one in another
        self._number = 0  # id of the latest tensor that torch made of a number that is assigned
        self._aside: tuple[int, object] | None = None  # the stream that the latest work should not be on, and where
        self._waits = False  # the host, for the latest operation

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # In the function's own capture nothing of ours may get into it, and what makes a capture is none of its work.
        if self._is_capturing() or self.makes_graph:
            return self._captured(func, args, kwargs or {})
        if self.stopped and threading.get_ident() == self.places.thread:
            raise TimeUp
        kwargs = kwargs or {}
        whole = self._custom or without_autograd(args)
        if whole and (result := taken_apart(self, func, args, kwargs)) is not NotImplemented:
            return result
        op = operation(func)
        tensors: list[torch.Tensor] = []
        values: list[Value] = []
        sort((*args, *kwargs.values()), tensors, values)
        if any(map(is_lazy, tensors)):
            return func(*args, **kwargs)  # of a lazy module, which has no shape yet
        place = self._caused_by(self.places.here(), op, tensors)
        keys = [storage_key(tensor) for tensor in tensors]
        if op.name == "lift_fresh":  # torch.tensor() has just made it, out of sight
            self.keeper.note_made(keys[0])
        there = True in (on := [*map(self._is_there, tensors)])
        self._before(op, args, kwargs, tensors, keys, on, values, place)
        pending, written, views = list[Failure](), written_by(op, args), op.name in VIEWS
        if (has_graphs := bool(self.graphs)) and not views:
            pending = self.graphs.read([t for t in tensors if id(t) not in written], place)
            self.graphs.wrote((t for t in tensors if id(t) in written), place)
            self.graphs.flow.wrote(op, args, kwargs, place)
            self.graphs.samples.saw(op.name, tensors, written, place)
            if op.name == "copy_":
                self.graphs.copied(tensors, place)
        inside = None if op.is_torchs else custom_kernel(func, tensors, self._device)
        if inside is None:
            result = self._as_ever(op.name, func, args, kwargs)
        else:
            self._custom += 1
            try:
                with self:  # what a custom operation does is the user's, too
                    result = func.redispatch(inside, *args, **kwargs)
            finally:
                self._custom -= 1
            has_graphs = bool(self.graphs)
        if there and self.readings is not None and op.name in ("_local_scalar_dense", "_to_copy"):
            result = self.readings(result, place)
        if self.graphs.regions:
            self.graphs.filled.saw(op.name, tensors, written, result, place)
            self.graphs.tails.saw(tensors, written, self.keeper, place, result)
            if not views:
                self.graphs.kept.read(op.name, tensors, self.graphs.filled_by_all, self.graphs.writes, place)
        elif self.graphs.tails.watches and op.written:
            self.graphs.tails.saw_ahead([args[i] for i in op.written if i < len(args)], place)
        elif has_graphs and self.graphs.regions is not None and op.written:  # whose captures no line shows
            self.graphs.tails.saw(tensors, written, self.keeper, place, result)
        if has_graphs and views:
            self.graphs.viewed(op.name, tensors, result, place)
        if pending:
            outside = [t for t in tensors if id(t) in written and self.keeper.is_outside(t)]
            self.graphs.computed(pending, result, outside)
        if op.written:  # as set_() does, which gives a tensor other memory
            keys = [storage_key(tensor) for tensor in tensors]
        made = made_by(result)
        if not views:  # also ahead of a capture
            self.graphs.fed.saw(op.name, tensors, keys, written, made, place)
        self._after(op, result, made, keys, place, there)
        if (has_graphs or self.unordered.order.has_several()) and not views:
            self._ordered(tensors, dict(zip(map(id, tensors), keys, strict=True)), filled_by(op, args), result, place)
            if tensors and threading.get_ident() == self.places.thread:
                waits, stream = self._waits or blocks(op, args, kwargs), self._stream()
                tensors += [result] if op.name == "_to_copy" else []
                self.unordered.hosts.saw(op, tensors, written, waits, self.unordered.order, stream, place)
        return result

    def place_in_thread(self) -> Place:
        """What runs now in this thread of the user's; where it was given its work, if that is nothing of the user's."""
        place = self.places.of(sys._getframe(1))
        return place if place.user is not None else self.given_work.get(threading.get_ident(), place)

    def _ordered(
        self, tensors: list[torch.Tensor], keys: dict[int, int], filled: set[int], result: Any, place: Place
    ) -> None:
        """Work is put on a stream; ``keys`` is the memory of what it is given."""
        if threading.get_ident() != self.places.thread:
            self.unordered.order.host_waits(by_work=True)  # autograd joins its streams
            return
        self.on_stream(tensors, keys, filled, result, place)
        if self._waits:
            self.unordered.order.host_waits(stream=self._stream(), by_work=True)

    def on_stream(
        self, tensors: list[torch.Tensor], keys: dict[int, int], filled: set[int], result: Any, place: Place
    ) -> None:
        """Work is put on the current stream of a thread."""
        stream, made = self._stream(), {key for key, _ in made_by(result)}
        written = {key for each, key in keys.items() if each in filled} | (made - set(keys.values()))
        self.unordered.work(stream, set(keys.values()) - written, written, place, host=getattr(result, "is_cpu", False))
        self.unordered.takes(stream, tensors, filled, result, self._device, place)

    def _captured(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        whole = self.graphs and not self.makes_graph and without_autograd(args)
        if whole and (result := taken_apart(self, func, args, kwargs)) is not NotImplemented:
            return result
        result = func(*args, **kwargs)
        if self.graphs and not self.makes_graph:
            given: list[torch.Tensor] = []
            sort((*args, *kwargs.values()), given, [])
            op, place = operation(func), self.places.here()
            self.graphs.saw(op.name, given, result, place)
            self.graphs.follow(op, args, kwargs, result, place)
        return result

    def _caused_by(self, place: Place, op: Operation, tensors: list[torch.Tensor]) -> Place:
        """The place of an operation; of one of a backward pass, that of the operation in the forward pass."""
        if not place.in_backward:
            if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
                # The first that sees a number has made its node: detach and comparisons make none.
                self._forward.setdefault(_sequence_number() - 1, (op.name.replace("_", ""), place))
                if threading.get_ident() != self.places.thread:  # what a checkpoint computes again
                    self._made_in_backward.add(_sequence_number() - 1)
            return place
        self.graphs.between.has_learned = True
        if torch.is_grad_enabled():
            self._made_in_backward.add(_sequence_number() - 1)
        if op.name == "_local_scalar_dense" and torch.is_anomaly_enabled():
            return place  # autograd itself asks
        node = _current_node()
        name, forward = self._forward.get(node._sequence_nr(), ("", place)) if node is not None else ("", place)
        made = node.name().lower() if name else ""  # AddmmBackward0; another thread's nodes have other numbers
        if name and (made.startswith(name[:5]) or name.startswith(made.partition("backward")[0])):
            return replace(forward, in_backward=True)
        return place

    def _before(
        self,
        op: Operation,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
        keys: list[int],
        on: list[bool],
        values: list[Value],
        place: Place,
    ) -> None:
        keeper, on_device = self.keeper, True in on
        for i in op.written:
            written = args[i] if i < len(args) else kwargs.get(op.names[i])
            for tensor in written if isinstance(written, (list, tuple)) else (written,):
                if isinstance(tensor, torch.Tensor):
                    self._host_write(op, tensor, tensors, place)
                    keeper.before_write(tensor)
        generator = kwargs.get("generator")
        is_noted = generator is not None or op.written or op.random
        if is_noted and (own := self.graphs.warmed.runs(op, args, kwargs, place)) is not None:
            keeper.note_generator(own)
        from_cpu, outside, made, decided = list[Value](), list[int](), list[Origin](), 0
        for tensor, key, is_there in zip(tensors, keys, on, strict=True):
            if tensor.requires_grad:
                if tensor.is_leaf:
                    self._note_leaf(tensor)
                elif key not in keeper.made:
                    for leaf in keeper.leaves_of(tensor):
                        self._note_leaf(leaf)
            if is_there:
                outside.append(key if key not in keeper.made else 0)
                made.append(origin(tensor, self._makers.get(key, 0)))
        # Attention takes its seed and offset so, and leaves them undefined where nothing is dropped.
        if on_device and not all(on) and "attention" not in op.name and op.name not in COPIED_THERE:
            for tensor, key in zip(tensors, keys, strict=True):
                decided = hash((decided, sum_of(tensor))) if tensor.dim() else decided  # 0 for those of the device
                if tensor.device.type == "cpu" and tensor.dim() == 0:
                    value = tensor.item()
                    from_cpu.append(value)
                    if key not in keeper.made or key in self._of_cpu:
                        self.findings.scalar(value, op.name, place)
        casts = self._casts and torch.is_grad_enabled() and op.name == "_to_copy"
        if casts and tensors[0].requires_grad and tensors[0].is_leaf:
            what = f"a weight of {str(tensors[0].dtype).removeprefix('torch.')} is cast here, and the cast is kept"
            self.findings.silent("autocast-cache", what, place)
        asks = tensors or generator is not None
        refused = refusal(op, args, kwargs, tensors, self._device, self._number) if asks else None
        self._waits = refused is not None and not is_staged(op, args, kwargs, self._device)
        if refused is not None:
            shapes = ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors[:2])
            what = f"{op.name} of {shapes}"
            self.findings.refused(refused.message, refused.code, refused.operation, place, what, sure=refused.sure)
        elif keys and keys[-1] in keeper.made and copies_pinned(op, tensors, self._device):
            self.findings.silent(
                "copy-to-gpu", "its pinned memory is of this call: a graph would read where it was", place
            )
        node = _current_node() if place.in_backward and on_device and tensors[0].numel() > 1 else None
        if node is not None and (name := _ASKING.get(node.name().rstrip("0123456789"))) is not None:
            said = f"the backward pass of {name} asks whether a factor is 0"  # only where no mode is on
            self.findings.add(BY_ID["sync-item"].failure(said, place.frame(), (name,)))
        sizes = tuple([tensor.shape for tensor in tensors])
        copied = sum_of(tensors[-1]) if tensors and op.name in ("_to_copy", "copy_") else decided
        copied = hash(tuple(values)) if op.name == "scalar_tensor" else copied  # which is assigned
        self.steps.append(
            Step(op.name, place, tuple(values), tuple(from_cpu), tuple(outside), sizes, made=tuple(made), copied=copied)
        )

    def _host_write(self, op: Operation, tensor: torch.Tensor, tensors: list[torch.Tensor], place: Place) -> None:
        if tensor.device.type != "cpu" or not self.keeper.is_outside(tensor):
            return
        if any("torch/optim/" in file and "swa_utils" not in file for file in place.files):
            return  # counters of optimizers, which torch refuses itself
        if any(other.device.type == self._device for other in tensors):
            return  # a copy to the host, which the graph holds or torch refuses
        if tensor.numel() == 1:
            self.keeper.stays.add(storage_key(tensor))  # a counter goes on, as Python's do
        self.findings.silent("host-counter", f"{op.name} changes a tensor on the CPU", place)

    def _after(
        self,
        op: Operation,
        result: Any,
        made: list[tuple[int, torch.Tensor]],
        keys: list[int],
        place: Place,
        on_device: bool,
    ) -> None:
        if result is not None:
            of_cpu = not on_device and any(key not in self.keeper.made or key in self._of_cpu for key in keys)
            for key, tensor in made:
                on_device = on_device or self._is_there(tensor)
                if key not in keys:
                    self.keeper.note_made(key)
                    (self._of_cpu.add if of_cpu else self._of_cpu.discard)(key)
            if op.name == "scalar_tensor" or id(result) == self._number:  # an id comes again when a tensor has gone
                self._number = id(result) if op.name == "scalar_tensor" else 0
        if on_device:
            self.steps[-1].on_device = True
        if on_device and op.name not in NO_KERNELS:
            self.on_device += 1
            self._makers |= {key: (self.on_device << OUTPUTS) + i for i, (key, _) in enumerate(made)}
            stream = self._stream()
            if threading.get_ident() != self.places.thread:  # autograd, on the stream of the forward pass
                if stream:
                    self.forks.work_of_autograd(stream)
                elif (node := _current_node()) is None or not (
                    node._sequence_nr() in self._made_in_backward or self._learns_late(node)
                ):
                    self.findings.stale("a backward operation")
            else:
                self._work(op.name, stream, place)

    def made(self, value: Any) -> tuple[Origin, ...]:
        """Of each tensor in a value, which operation on the device has made it, and where it lies there."""
        return tuple(origin(each, self._makers.get(storage_key(each), 0)) for each in tensors_in(value))

    def _work(self, name: str, stream: int, place: Place) -> None:
        in_capture = self.forks.work(stream, place)
        here = None if in_capture else (stream, user[0] if (user := place.user) else None)
        if here is not None and self._aside != here:  # what follows it there has the same cause
            where = "another stream" if stream else "the default stream"
            self.findings.silent("work-elsewhere", f"{name} ran on {where}", place)
        self._aside = here

    def replayed(self, graph: object) -> None:
        """The function replays a graph, which no capture takes in; one of its own is not meant for another."""
        if not self._is_launched(graph):
            return
        self.replays.append(self.places.here())
        is_outside, self.makes_graph = self.makes_graph, True  # what is done there is none of the function's work
        self.graphs.tails.launched(self.keeper, *self.graphs.read_and_written(graph, self.keeper))
        self.graphs.launched(graph, self.replays[-1], self._stream())
        self.makes_graph = is_outside
        for failure in self.graphs.lost(graph):
            self.findings.add(failure)

    def replayed_elsewhere(self, graph: object) -> None:
        """A thread of the function's replays a graph: on what stream the rest of its work is, the function orders."""
        if not self._is_launched(graph):
            return
        self.replays.append(self.place_in_thread())
        self.graphs.launched(graph, self.replays[-1], self._stream())

    def _is_launched(self, graph: object) -> bool:
        """Whether a replay does work, which is counted, and is not part of a capture."""
        if self._is_capturing():
            return False
        self.on_device += 1
        if graph not in self.graphs:
            self.graphs.adopt(graph)
        return True

    def _note_leaf(self, leaf: Any) -> None:
        """Remember a parameter's gradient, and look at the stream on which the next one is accumulated."""
        self.keeper.note_leaf(leaf)
        if not (torch.is_grad_enabled() and leaf.requires_grad and self._is_there(leaf)):  # it may be frozen since
            return
        known = self._hooked.get(id(leaf))
        if known is None or known[0]() is None:
            self._hooked[id(leaf)] = weak_ref(leaf), leaf.register_post_accumulate_grad_hook(self._accumulated)

    def _accumulated(self, leaf: torch.Tensor) -> None:
        # Where it needs no operation, nothing else tells on which stream that is.
        node = _current_node()
        known = node is None or not self._learns_late(node)
        if known and not self._stream() and not self._is_capturing():
            self.findings.stale("what accumulates a gradient")

    def _learns_late(self, node: Any) -> bool:
        """Whether nobody knows on which stream a node was made that accumulates a gradient.

        A simulated device marks nodes with it, and those of leaves that a Function alone has used in a capture only.
        """
        return self._device != "cuda" and hasattr(node, "variable") and not node.metadata

    def __exit__(self, *exc: Any) -> None:
        for _, hook in self._hooked.values():
            hook.remove()
        super().__exit__(*exc)  # type: ignore[no-untyped-call]

    # what the function calls that is no operation

    def asked_by_package(self) -> bool:
        """Whether a package, and none of torch's own, asks if it is captured; where the user does, that is told."""
        frame = sys._getframe(1)
        while frame.f_back and (frame.f_code.co_filename.startswith(OURS) or is_of_graphs(frame.f_code.co_filename)):
            frame = frame.f_back
        if (package := package_of(frame.f_code.co_filename)) not in ("", "torch"):
            return True
        if not package and not is_library(frame.f_code.co_filename):
            self.findings.silent("capture-aware-code", "", self.places.here())
        return False

    def seeded(self, said: str) -> None:
        """The device's generator gets a seed, from the user's code or from a package."""
        place = self.places.here()
        if place.stack and not through_torch(place):
            self.findings.silent("reseeded", said, place)

    def printed(self, args: tuple[Any, ...]) -> None:
        """Something was printed; tensors of the device are told by what that does."""
        if not any(isinstance(arg, torch.Tensor) and arg.device.type == self._device for arg in args):
            self.findings.silent_if_own("host-counter", f"print(...) of {len(args)} values")

    def opened(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
        """A file is opened, perhaps to write."""
        if any(letter in str(mode) for letter in "wax+"):
            self.findings.silent_if_own("host-counter", f"open({str(file)!r}, {mode!r})")

    def in_thread(self, name: str, given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        """Another thread of the function's runs an operation, on a stream of its own choice."""
        known = {storage_key(tensor) for tensor in given}
        for tensor in made:
            if (key := storage_key(tensor)) not in known:
                self.keeper.note_made(key)
        if name in ("empty", "empty_strided"):
            self.background("background-memory", f"another thread runs {name}")
        elif not self._is_capturing():
            self.background("work-elsewhere", f"another thread runs {name} on its own current stream", self._stream())

    def background(self, code: str, said: str, stream: int = 0) -> None:
        """Another thread does what the capture has not, or not allowed."""
        place = self.place_in_thread()
        if not (stream and self.forks.work(stream, place)):
            self.findings.silent(code, said, place)

    def nested(self, graph: object) -> None:
        """The function captures on its own."""
        self.captures = True
        self.graphs.begin(graph)
        place = self.places.here()
        self.findings.refused(UNCAPTURED, 900, "capture_begin", place, "a capture in the function", "cuda/graphs.py")

    def graphs_callables(self) -> None:
        """The function has torch capture; arguments that this refuses are no capture's either."""
        self.captures = True

    def shown(self, tensor: torch.Tensor) -> None:
        """A tensor is turned into text, which torch does out of sight of modes."""
        if tensor.device.type == self._device:
            self.findings.refused(UNCAPTURED, 900, "print")

    def listed(self, tensor: torch.Tensor) -> None:
        """A tensor is turned into a list, which torch does out of sight of modes where the host has it."""
        if self.unordered.hosts and tensor.device.type == "cpu":
            self.unordered.hosts.used([tensor], (), self.unordered.order, self.places.here())
