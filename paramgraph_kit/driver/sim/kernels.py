"""The device's kernels: every aten operation that CPU has, run on CPU tensors over device memory, or recorded.

One kernel per operation is registered for PrivateUse1 through torch.library. Eagerly it runs the CPU kernel at once;
while the current stream captures it executes nothing: output shapes come from the meta device, and what would have
been launched becomes a node. Both go through the same ``Work``, so eager and replayed results are equal bit for bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from paramgraph_kit.driver.recorders import recording
from paramgraph_kit.driver.tensors import bits_of, lazily
from paramgraph_kit.trace.model import NodeKind

from .devices import HOST_OPERANDS, TWO_DEVICES, check_devices, check_sizes, stays_away
from .errors import PAGEABLE_COPY, require_device
from .generators import known
from .graph import Layout, SimNode, Work, pack_scalar
from .machine import DEVICE_NAME, machine
from .not_known import doubt_beyond
from .outs import as_meta, fit_out, new_like, on_device, shared_with_outs, signature, stand_in
from .overlap import READS_FIRST, check_overlap, in_one_place, overlaps_itself, written_over
from .rng import STEP, DeviceGenerator, steps_of, with_default_generator
from .stream import Stream, current_stream, note_leaf
from .threads import OnOneThread
from .under_way import Capture, forbid_drawing
from .wider import as_loaded, is_of_types, say_as_cuda, uncast, wider

CPU = torch.device("cpu")
META = torch.device("meta")
DIVIDED = "the simulated device cannot compute this: a whole number divided by 0 is some number on a GPU"
ADDS_UP = frozenset({"repeat_interleave", "segment_reduce"})  # sizes that its numbers have to add up to: unknown
MOST_KNOWN = 1 << 12  # arguments of an operation of which the results are kept
FEW = 1 << 16  # numbers that are worth a look

# Operations whose results have other strides, types or sizes than on the meta device: torch's operator database tells.
UNLIKE_META = frozenset(
    (
        *("_batch_norm_with_update", "_native_batch_norm_legit", "native_batch_norm", "native_layer_norm"),
        *("_embedding_bag", "_embedding_bag_forward_only", "_fft_c2r", "_fft_r2c", "convolution", "max_unpool2d"),
        *("linalg_lstsq", "linalg_solve_triangular", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle"),
        *("native_channel_shuffle", *(f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3))),
    )
)


def record(
    capture: Capture,
    stream: Stream,
    kind: NodeKind,
    name: str,
    operands: Sequence[torch.Tensor],
    scalars: bytes,
    work: Work,
    random: DeviceGenerator | None = None,
    steps: int = STEP,
) -> None:
    """Append a node to the capture, after the tail of its stream; it moves the generator ``random`` on by ``steps``."""
    delta = None if random is None else capture.advance(random, steps)
    layouts: list[Layout] = [(tuple(t.shape), t.stride(), t.dtype, bits_of(t)) for t in operands]
    node = SimNode(
        kind, name, [t.data_ptr() for t in operands], layouts, scalars, work, stream.tail, random_delta=delta,
        random_state=machine().state_of(random) if random is not None else 0,
    )  # fmt: skip
    node.origin = recording_line()
    if capture.phantom is None:
        machine().note_owners(operands, node.origin, capture.touched)
        machine().note_pooled(operands, node.overwrites, capture.began, capture.pooled)
    capture.scalar_fill = None
    stream.tail = (len(capture.nodes),)
    capture.nodes.append(node)


def recording_line() -> tuple[str, int] | None:
    """(file, line) of code that torch has generated from a graph and that runs now, else of the user's own, or None."""
    return recording(sys._getframe(1))[1]


Run = Callable[..., Any]
Doubt = Callable[[list[Any], dict[str, Any], list[Any]], None]  # of arguments, and of results
Spec = tuple[tuple[int, ...], tuple[str, ...]]  # per argument its length if it is a list, else -1; keyword names


def flatten(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], Spec]:
    """Arguments as one flat list: aten nests lists one level deep, so this is all that is needed, and fast."""
    flat: list[Any] = []
    lengths = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, (list, tuple)):
            lengths.append(len(value))
            flat.extend(value)
        else:
            lengths.append(-1)
            flat.append(value)
    return flat, (tuple(lengths), tuple(kwargs))


def unflatten(flat: Sequence[Any], spec: Spec) -> tuple[list[Any], dict[str, Any]]:
    """The opposite of ``flatten``."""
    lengths, names = spec
    values = []
    at = 0
    for n in lengths:
        if n < 0:
            values.append(flat[at])
            at += 1
        else:
            values.append(list(flat[at : at + n]))
            at += n
    if not names:
        return values, {}
    count = len(values) - len(names)
    return values[:count], dict(zip(names, values[count:], strict=True))


def leaves(result: Any) -> list[Any]:
    """What an operation returned, as a flat list."""
    if isinstance(result, (list, tuple)):
        return [leaf for value in result for leaf in leaves(value)]
    return [result]


# Given a CPU tensor, CUDA's kernels copy it to the device first, also where a number would do; "where" a number only.
COPIES_CPU_OPERANDS = frozenset({"where", "index", "index_put", "index_put_", "_index_put_impl_", "bernoulli_"})


class Kernel:
    """One aten overload on the device."""

    def __init__(self, op: torch._ops.OpOverload, function: Run | None = None, doubt: Doubt | None = None) -> None:
        self.op = op
        self.doubt = doubt  # looks at what has run for what a GPU may do in another way
        self.function = function or op  # what runs on CPU (and meta) tensors
        schema = op._schema
        self.name = f"{op._opname}" + ("" if op._overloadname in ("default", "") else f".{op._overloadname}")
        self.random = torch.Tag.nondeterministic_seeded in op.tags
        self.takes_generator = any(a.name == "generator" for a in schema.arguments)
        self.argument_names = [a.name for a in schema.arguments]
        self.out_names = [a.name for a in schema.arguments if a.is_out]
        self.pivot_names = [name for name in self.argument_names if name.endswith("pivots")]
        self.written = [i for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
        self.in_place = bool(self.written)
        self.written_names = [schema.arguments[i].name for i in self.written]
        self.returned = len(schema.returns)
        self.returns_list = self.returned == 1 and str(schema.returns[0].type).startswith("List")
        self.pointwise = torch.Tag.pointwise in op.tags
        self.scalar_cpu_ok = op._opname not in COPIES_CPU_OPERANDS
        self.inferred: dict[Any, list[Any]] = {}  # meta results, or which argument, by arguments
        self.agreed: set[Any] = set()  # types, sizes and numbers that the CPU's kernel has nothing against

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the operation on device tensors, or record it."""
        stream = current_stream()
        capture = stream.capture
        if self.takes_generator and args and isinstance(args[-1], torch.Generator):  # it may be given by its place
            args, kwargs = args[:-1], kwargs | {"generator": args[-1]}
        random = machine().generator if self.random else None
        if (given := kwargs.get("generator")) is not None:
            if (generator := known(given)) is None:
                raise RuntimeError(f"Expected a '{DEVICE_NAME}' device type for generator but found 'cpu'")
            random = generator.state
            kwargs["generator"] = None
            if capture is not None:
                capture.follows(random)
        if capture is not None:
            capture.check()
        flat, spec = flatten(args, kwargs)
        operands, slots = list[torch.Tensor](), list[int]()  # and their positions in flat
        checked, numbers = False, -1  # numbers of the host; not counted yet
        for i, value in enumerate(flat):
            if isinstance(value, torch.Tensor):
                if value.device.type != DEVICE_NAME:
                    checked = checked or check_devices(self.op, args, kwargs)
                    if numbers < 0:
                        numbers = sum(isinstance(v, torch.Tensor) and v.is_cpu and not v.dim() for v in flat)
                    value = flat[i] = self._foreign(value, i, numbers, args, kwargs)
                if value.device.type == DEVICE_NAME:
                    operands.append(value)
                    slots.append(i)
                    if value.requires_grad:
                        note_leaf(value)
            elif isinstance(value, torch.device):
                if value.type == DEVICE_NAME:
                    require_device(value)
                flat[i] = CPU
        if capture is None:
            return self._eager(flat, spec, slots, operands, random)
        return self._captured(stream, capture, flat, spec, slots, operands, random)

    def _foreign(self, value: torch.Tensor, position: int, numbers: int, args: Any, kwargs: Any) -> torch.Tensor:
        if not self.scalar_cpu_ok and not (self.op._opname == "where" and value.dim()):
            return value.to(machine().device)
        written = position in self.written and not self.op._opname.startswith("_foreach")
        if value.dim() == 0 and not written and not stays_away(self.op._opname, value):
            if numbers > 1 and not self.op._opname.startswith("_f"):  # lists take one each
                raise RuntimeError("Trying to pass too many CPU scalars to non-CPU kernel!")
            if (refused := HOST_OPERANDS.get((self.op._opname.rstrip("_"), position))) is not None:
                raise RuntimeError(refused)
            return value.clone()  # its value is read at launch: baked
        check_sizes(self.op, args, kwargs)
        raise RuntimeError(TWO_DEVICES)

    def invoke(self, flat: Sequence[Any], spec: Spec, state: tuple[int, int] | None) -> list[Any]:
        """Run the CPU kernel on CPU arguments; its results as a flat list."""
        args, kwargs = unflatten(flat, spec)
        if state is None:
            result = self._run(args, kwargs)
        elif self.takes_generator:
            kwargs["generator"] = machine().generator.cpu_generator(*state)
            result = self._run(args, kwargs)
        else:
            result = with_default_generator(*state, lambda: self._run(args, kwargs))
        return leaves(result)

    def _run(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if self.pointwise and self.written == [0] and not args[0].is_meta and overlaps_itself(args[0]):
            return written_over(args[0], self._run([args[0].contiguous(), *args[1:]], kwargs))
        try:
            with uncast(), OnOneThread(args):
                return self.function(*args, **kwargs)
        except NotImplementedError as error:
            types = wider(self.op._opname, error) if len(self.written) <= len(self.out_names) else None
            if types is None:
                say_as_cuda(error, self.op._opname)
                raise
            return self._instead_of(*types, args, kwargs)
        except RuntimeError as error:
            if str(error).startswith("ZeroDivisionError"):
                raise NotImplementedError(DIVIDED) from error
            if "not implemented on the CPU" in str(error):
                raise NotImplementedError(f"the simulated device cannot compute this: {error}") from error
            if self.function is not self.op or "Expected a value of type 'Tensor' for argument" not in str(error):
                say_as_cuda(error, self.op._opname)
                raise
        # torch has made a number of a tensor that stood for one, as in x % 2: another overload takes it.
        try:
            return self.op._overloadpacket(*args, **kwargs)
        except RuntimeError as error:
            say_as_cuda(error, self.op._opname)
            raise (NotImplementedError(DIVIDED) if str(error).startswith("ZeroDivisionError") else error) from None

    def _instead_of(self, dtype: torch.dtype, other: torch.dtype, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """The same computed in another type, with results in this one."""
        written: dict[int, torch.Tensor] = {}  # by id of what is written instead
        outs = {id(kwargs.get(name)) for name in self.out_names}

        def widen(value: torch.Tensor) -> torch.Tensor:
            if value.dtype is not dtype:
                return value
            wide = value.to(other)
            if id(value) in outs:
                written[id(wide)] = value
            return wide

        def narrow(value: torch.Tensor) -> torch.Tensor:
            if (out := written.get(id(value))) is not None:
                return out.resize_(value.shape).copy_(value)
            return value.to(dtype) if value.dtype is other else value

        wide_args, wide_kwargs = tree_map_only(torch.Tensor, widen, (args, kwargs))
        try:
            found = self.function(*wide_args, **wide_kwargs)
        except NotImplementedError:
            raise
        except RuntimeError:  # others of its operands, as indices, have to be of that very type
            if not args or not isinstance(args[0], torch.Tensor) or args[0].dtype is not dtype:
                raise
            found = self.function(widen(args[0]), *args[1:], **kwargs)
        return tree_map_only(torch.Tensor, narrow, found)

    # eager

    def _eager(
        self, flat: list[Any], spec: Spec, slots: list[int], operands: list[torch.Tensor],
        random: DeviceGenerator | None,
    ) -> Any:  # fmt: skip
        m = machine()
        if m.hearing:
            m.ran(self.op._opname)
        state = None
        if random is not None:
            forbid_drawing(random)
            state = random.seed, random.advance(steps_of(self.name, flat[0]))
        twins: dict[int, torch.Tensor] = {}
        cpu_flat = list(flat)
        outs = self._positions(self.out_names, flat, spec)
        shared = shared_with_outs(flat, outs, operands) if outs else {}
        for i, tensor in zip(slots, operands, strict=True):
            twin = shared.get(id(tensor))
            if twin is None and i in outs:
                twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=CPU)
            elif twin is None:
                twin = m.twin(tensor)
            cpu_flat[i] = twin
            twins[id(twin)] = tensor
        if self.pointwise and len(slots) > 1:
            as_loaded(cpu_flat, slots)
        try:
            results = self.invoke(cpu_flat, spec, state)
        except (IndexError, RuntimeError) as error:
            doubt_beyond(error)
            raise
        if self.doubt is not None:
            self.doubt(*unflatten(cpu_flat, spec), results)
        for i in outs:
            fit_out(flat[i], cpu_flat[i])
            m.twin(flat[i]).copy_(cpu_flat[i])
        wrapped: list[Any] = []
        for value in results:
            if not isinstance(value, torch.Tensor):
                wrapped.append(value)
                continue
            known = twins.get(id(value))
            if known is None:
                known = on_device(value)
            wrapped.append(known)
        return self._returned(wrapped)

    def _positions(self, names: Sequence[str], flat: list[Any], spec: Spec) -> tuple[int, ...]:
        """Where in ``flat`` arguments stand."""
        if not names:
            return ()
        args, kwargs = unflatten(range(len(flat)), spec)
        marks = dict(zip(self.argument_names, args, strict=False)) | kwargs
        return tuple(i for name in names for i in leaves(marks.get(name, [])))

    def _returned(self, values: list[Any]) -> Any:
        if self.returned != 1:
            return tuple(values) if self.returned else None
        return values if self.returns_list else (values[0] if values else None)

    # captured

    def _captured(
        self, stream: Stream, capture: Capture, flat: list[Any], spec: Spec, slots: list[int],
        operands: list[torch.Tensor], random: DeviceGenerator | None,
    ) -> Any:  # fmt: skip
        meta_flat = list(flat)
        metas: dict[int, torch.Tensor] = {}
        same: dict[int, torch.Tensor] = {}  # one that is given twice is one there, too
        for i, tensor in zip(slots, operands, strict=True):
            meta = same.get(id(tensor))
            if meta is None:
                meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
                meta = same[id(tensor)] = lazily(meta, bits_of(tensor))
            meta_flat[i] = meta
            metas[id(meta)] = tensor
        for target in [flat[i] for i in self._positions(self.written_names, flat, spec) if i in slots]:
            if self.pointwise:
                check_overlap(target, operands)
            elif self.op._opname not in READS_FIRST and (there := in_one_place(target, operands)):
                self.invoke([there.get(id(each), each) for each in flat], spec, (0, 0) if self.random else None)
        outs = self._positions(self.out_names, flat, spec)
        if any(sum(x is flat[i] for x in operands) > 1 for i in outs):
            self._check(meta_flat, spec, slots, few=sys.maxsize)
        shapes = self._infer(meta_flat, spec, slots)
        for i in outs:
            fit_out(flat[i], meta_flat[i])
        results, fresh, copies = list[Any](), list[torch.Tensor](), list[tuple[int, int]]()  # a result, its operand
        for k, value in enumerate(shapes):
            if not isinstance(value, torch.Tensor):
                results.append(value)
                continue
            known = metas.get(id(value))
            if known is None:
                known = new_like(value)
                copies.append((k, len(operands) + len(fresh)))
                fresh.append(known)
            results.append(known)

        def work(views: Sequence[torch.Tensor], state: tuple[int, int] | None) -> None:
            cpu_flat = list(flat_constants)
            for i, view in zip(slots, views, strict=False):
                cpu_flat[i] = view
            if self.pointwise and len(slots) > 1:
                as_loaded(cpu_flat, slots)
            values = self.invoke(cpu_flat, spec, state)
            if self.doubt is not None:
                self.doubt(*unflatten(cpu_flat, spec), values)
            for k, operand in copies:
                if values[k] is not None:  # the weights of an attention that nobody asked for
                    views[operand].copy_(values[k])

        filled = (*fresh, *(operands if self.in_place else ()))
        if random is None and filled and not any(each.numel() for each in filled):
            return self._returned(results)  # torch launches nothing for that
        flat_constants = [None if i in set(slots) else v for i, v in enumerate(flat)]
        scalars = b"".join(pack_scalar(v) for v in flat_constants)
        steps = steps_of(self.name, flat[0]) if random is not None else 0
        record(capture, stream, NodeKind.KERNEL, self.name, [*operands, *fresh], scalars, work, random, steps)
        return self._returned(results)

    def _infer(self, meta_flat: list[Any], spec: Spec, slots: list[int]) -> list[Any]:
        """The results' sizes, strides and types, without running anything on data, and once for the same arguments."""
        if self.out_names:
            return self._inferred(meta_flat, spec, slots)
        key = (spec, torch.get_default_dtype(), *map(signature, meta_flat))
        known = self.inferred.get(key)
        if known is None:
            found = self._inferred(meta_flat, spec, slots)
            given = {id(each): i for i, each in enumerate(meta_flat)}
            if all(isinstance(each, torch.Tensor) and each.layout is torch.strided for each in found):
                if len(self.inferred) >= MOST_KNOWN:
                    self.inferred.clear()
                self.inferred[key] = [given[id(each)] if id(each) in given else as_meta(each) for each in found]
            return found
        return [meta_flat[each] if isinstance(each, int) else each for each in known]

    def _inferred(self, meta_flat: list[Any], spec: Spec, slots: list[int]) -> list[Any]:
        flat = [META if isinstance(v, torch.device) else v for v in meta_flat]
        args, kwargs = unflatten(flat, spec)
        # Meta kernels lose the order of strides here and there, and refuse in words of their own.
        if self.op._opname not in UNLIKE_META and all(meta_flat[i].is_contiguous() for i in slots):
            self._check(meta_flat, spec, slots)  # first: meta kernels resize what they may not
            with suppress(AssertionError, IndexError, RuntimeError, TypeError, ValueError):
                return leaves(self._run(args, kwargs))
            return self._infer_on_cpu(meta_flat, spec, slots)
        try:
            return self._infer_on_cpu(meta_flat, spec, slots)
        except RuntimeError as error:  # perhaps it looks at values
            looked = error
        try:
            if self._always(looked, meta_flat, spec, slots):
                raise looked
            with suppress(AssertionError, IndexError, RuntimeError, TypeError, ValueError):
                return leaves(self._run(args, kwargs))
            raise looked
        finally:
            del looked  # with it this frame would stay, and what the user's frames hold

    def _check(self, meta_flat: list[Any], spec: Spec, slots: list[int], few: int = FEW) -> None:
        """Raise what the CPU's kernel has against types and sizes, whatever the numbers: meta kernels check fewer."""
        if self.op._opname in ADDS_UP or sum(meta_flat[i].numel() for i in slots) >= few:
            return
        key = (spec, *map(signature, meta_flat))
        if key in self.agreed:
            return
        found = self._refusal(meta_flat, spec, slots, 0)
        try:
            if found is not None and self._always(found, meta_flat, spec, slots):
                raise found
        finally:
            del found
        self.agreed.add(key)

    def _refusal(self, meta_flat: list[Any], spec: Spec, slots: list[int], number: int) -> Exception | None:
        """What the CPU's kernel raises with this number everywhere."""
        try:
            self._infer_on_cpu(meta_flat, spec, slots, number)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            return error
        return None

    def _always(self, found: Exception, meta_flat: list[Any], spec: Spec, slots: list[int]) -> bool:
        """Whether the CPU's kernel refuses the call for that with other numbers, too; lacking it is no refusal."""
        if is_of_types(found):
            return True
        lacking = (NotImplementedError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]  # torch leaves it out
        if isinstance(found, lacking) or self.op._opname in ADDS_UP:
            return False
        return _said(found) == _said(self._refusal(meta_flat, spec, slots, 1))  # a name for it would hold this frame

    def _infer_on_cpu(self, meta_flat: list[Any], spec: Spec, slots: list[int], number: int = 0) -> list[Any]:
        """The same by the CPU's kernel on stand-ins, which no reader ever sees."""
        flat = list(meta_flat)
        pivots = self._positions(self.pivot_names, flat, spec)
        same: dict[int, torch.Tensor] = {}
        for i in slots:
            flat[i] = same.setdefault(id(meta_flat[i]), stand_in(meta_flat[i]))
            if number:
                flat[i].fill_(number)
            if i in pivots:  # LAPACK counts from 1, and looks before the matrix for a pivot of 0
                flat[i].fill_(1)
        results = self.invoke(flat, spec, (0, 0) if self.random else None)
        back = {id(flat[i]): meta_flat[i] for i in slots}
        for i in self._positions(self.out_names, flat, spec):
            fit_out(meta_flat[i], flat[i])
        return [back.get(id(r), r) for r in results]


def _said(error: Exception | None) -> tuple[type, str]:
    return type(error), str(error)


def pageable_copy_forbidden(stream: Stream, after: str = "") -> None:
    """Raise torch's refusal of pageable copies in a capture, which leaves the capture valid; ``after`` some kernels."""
    if stream.capture is not None:
        if after:
            stream.capture.check()
            record(stream.capture, stream, NodeKind.KERNEL, after, [], b"", lambda *_: None)
        raise RuntimeError(PAGEABLE_COPY)
