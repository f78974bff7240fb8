"""Kernels that the generic one cannot serve: allocation, views, copies, fills, and whatever makes the host wait."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from paramgraph_kit.driver.tensors import bits_of, dense, through_pageable
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.trace.model import NodeKind
from paramgraph_kit.trace.wording import bytes_text

from .asking import ASKING, asking_kernel, equal, host_copy_kernel
from .devices import check_devices, check_sizes
from .errors import require_device
from .foreach import foreach_kernels
from .graph import HOST_COPIES, pack_scalar
from .indexed import index_kernel, index_put_impl_, is_number_of_host, note_number
from .kernels import Kernel, pageable_copy_forbidden, record
from .libraries import library_kernels, no_minus
from .machine import CPU_KEY, DEVICE_NAME, machine
from .outs import resize, set_empty, set_storage
from .overlap import check_overlap, copied_within, read_before
from .pinned import is_pinned, lasting, pin, refuse_to_pin
from .solver import tell_late
from .stream import current_stream, note_leaf
from .under_way import forbid_in_capture, note_wait
from .whole import convert, require_fit

aten = torch.ops.aten
_NOBODY = torch_name("DispatchKeySet")(torch_name("DispatchKey").XLA)  # a device that has no kernels
_fills: Any = torch.utils.deterministic  # a module that is its settings

# CPU's kernels for these touch metadata only and keep the tensor's device, so they serve any device.
VIEWS = (
    "as_strided",
    "view",
    "view.dtype",
    "_reshape_alias",
    "unfold",
    "view_as_real",
    "view_as_complex",
    "set_.source_Tensor",
    "set_.source_Storage",
    "is_set_to",
)

# Operations whose CUDA kernels wait for a number from the device, and those of them that do so even for no numbers.
WAITING = (
    "_local_scalar_dense",
    "nonzero",
    "nonzero.out",
    "masked_select",
    "masked_select.out",
    "_unique",
    "_unique2",
    "unique_consecutive",
    "unique_dim_consecutive",
    "linalg_eig",
    "linalg_eig.out",
    "normal.Tensor_Tensor_out",  # whether any deviation is negative
    "normal.float_Tensor_out",
)

EVEN_FOR_NOTHING = ("_local_scalar_dense", "nonzero", "masked_select", "linalg_eig")

# Operations that CUDA has no kernel for.
HOST_ONLY = (
    *("sparse_resize_", "sparse_resize_and_clear_", "int_repr", "q_scale", "q_zero_point", "q_per_channel_axis"),
    *("q_per_channel_scales", "q_per_channel_zero_points"),
    *("histogram.bins_tensor_out", "histogram.bins_tensor", "histogram.bin_ct_out", "histogram.bin_ct"),
    *("_add_relu.Tensor", "_add_relu_.Tensor", "_add_relu.out", "_add_relu.Scalar", "_add_relu_.Scalar", "to_mkldnn"),
    *("_histogramdd_bin_edges", "_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors"),
)

# Operations that are made of others on the CPU, or ask for a device's own kernel in C++: one kernel each here.
WHOLE = (
    *("_grouped_mm", "conj_physical_", "embedding", "kaiser_window", "kaiser_window.periodic", "kaiser_window.beta"),
    *("ldexp.Tensor", "ldexp.out", "ldexp_"),
)

# Those that fill with a number, and where that is where it comes in a tensor.
VALUED = {
    "masked_fill.Tensor": 2,
    "masked_fill_.Tensor": 2,
    "index_fill.int_Tensor": 3,
    "index_fill_.int_Tensor": 3,
}


def view_kernel(op: Any) -> Callable[..., Any]:
    """A metadata-only operation."""

    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.requires_grad:
            note_leaf(tensor)
        return op.redispatch(CPU_KEY, tensor, *args, **kwargs)

    return call


def waiting_kernel(op: Any, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """An operation that makes the host wait: 900 in a capture."""
    run, always = Kernel(op, function), op._opname in EVEN_FOR_NOTHING

    def call(*args: Any, **kwargs: Any) -> Any:
        check_devices(op, args, kwargs)
        if always or any(each.numel() for each in args if isinstance(each, torch.Tensor)):
            forbid_in_capture(current_stream())
        if op._opname == "linalg_eig" and not machine().twin(args[0]).isfinite().all():
            run(*args, **kwargs)  # raises for that, at which torch looks before it calls cuSOLVER
        tell_late(op._opname, args, kwargs)
        return run(*args, **kwargs)

    return call


def host_only_kernel(op: Any) -> Callable[..., Any]:
    """An operation that CUDA has not."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            op.redispatch(_NOBODY, *args, **kwargs)
        except NotImplementedError as error:
            text = str(error).replace("'XLA' backend", "'CUDA' backend")
        raise NotImplementedError(text.replace(", PrivateUse1", ""))

    return call


def masked_fill_kernel(op: Any) -> Callable[..., Any]:
    """``aten::masked_fill`` with a number: its mask has to be where the tensor is."""
    run = Kernel(op)

    def call(tensor: torch.Tensor, mask: torch.Tensor, value: Any) -> Any:
        if mask.device != tensor.device:
            places = f"mask on {mask.device} and self on {tensor.device}"
            raise RuntimeError(f"expected self and mask to be on the same device, but got {places}")
        require_fit(tensor.dtype, value)
        return run(tensor, mask, value)

    return call


def empty(
    size: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """``aten::empty.memory_format``."""
    stride = torch.empty(tuple(size), device="meta", memory_format=memory_format or torch.contiguous_format).stride()
    return empty_strided(size, stride, dtype, layout, device, pin_memory)


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """``aten::empty_strided``."""
    require_device(device)
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")
    if layout not in (None, torch.strided):
        raise NotImplementedError(f"the simulated device has dense tensors only, not {layout}")
    return _filled(machine().empty_strided(size, stride, dtype or torch.get_default_dtype()))


def _filled(made: torch.Tensor) -> torch.Tensor:
    """Memory that nothing is written to yet: filled where torch is to be deterministic."""
    if not (torch.are_deterministic_algorithms_enabled() and _fills.fill_uninitialized_memory):
        return made
    kind = made.dtype
    unknown = torch.nan if kind.is_floating_point or kind.is_complex else True
    return _fill(made, unknown if unknown is not True or kind is torch.bool else torch.iinfo(kind).max)


def resize_(
    tensor: torch.Tensor, size: Sequence[int], memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    """``aten::resize_``."""
    item = tensor.dtype.itemsize
    before = tensor.untyped_storage().nbytes() // item
    resized = resize(tensor, size, memory_format)
    if (more := resized.untyped_storage().nbytes() // item - before) > 0:
        _filled(resized.as_strided((more,), (1,), before))
    return resized


def _copy_work(views: Sequence[torch.Tensor], state: tuple[int, int] | None) -> None:
    copied_within(views[0], read_before(*views))


def _host_copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
    m = machine()
    stream = current_stream()
    device, host = (target, source) if target.device.type == DEVICE_NAME else (source, target)
    if host.device.type != "cpu":
        raise NotImplementedError(f"the simulated device exchanges data with the CPU only, not with {host.device}")
    if stream.capture is None:
        if not (non_blocking and (device is target or is_pinned(host))):
            forbid_in_capture(stream)
        over = m.twin(device)
        if device is target:  # converted before it is sent
            over.copy_(host)
        else:
            convert(host, over)
        return
    check_sizes(aten.copy_.default, (target, source), {})
    if not is_pinned(host) or through_pageable(target, source, non_blocking, to_host=target.device.type == "cpu"):
        pageable_copy_forbidden(stream)
    stream.capture.check()
    if not non_blocking:
        forbid_in_capture(stream)
    to_device = device is target
    there = lasting(host)
    conjugated, negated = host.is_conj() != device.is_conj(), host.is_neg() != device.is_neg()

    def work(views: Sequence[torch.Tensor], state: tuple[int, int] | None) -> None:
        if to_device:
            views[0].copy_(there())
            return
        view = views[0].conj() if conjugated else views[0]
        convert(there(), torch._neg_view(view) if negated else view)

    # The host address is baked.
    name = f"{HOST_COPIES[0 if to_device else 1]}, {bytes_text(device.nbytes)}"
    record(stream.capture, stream, NodeKind.MEMCPY, name, [device], pack_scalar(host.data_ptr()), work)
    if not to_device:  # on the host torch conjugates and negates what is there now, and no replay does [H200]
        if conjugated:
            host.conj_physical_()
        if negated:
            host.neg_()


def copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """``aten::copy_`` between any two of host and device; a copy node or a kernel when captured."""
    stream = current_stream()
    source = torch.as_tensor(source)  # torch takes a number, too
    m = machine()
    if source.requires_grad:
        note_leaf(source)
    if target.device != source.device:
        if target.numel():
            _host_copy(target, source, non_blocking)
        return target
    if (
        source.data_ptr() == target.data_ptr()
        and source.dtype == target.dtype
        and (source.shape == target.shape and source.stride() == target.stride())
        and bits_of(source) == bits_of(target)
    ):
        return target
    if stream.capture is not None:
        if is_number_of_host(stream.capture, target, source):
            pageable_copy_forbidden(stream)
        stream.capture.check()
        meta = [torch.empty(each.shape, dtype=each.dtype, device="meta") for each in (target, source)]
        check_overlap(target, (source,))
        meta[0].copy_(meta[1])  # raises where the shapes do not fit
        kind, name = (NodeKind.MEMCPY, "memcpy") if _is_plain(target, source) else (NodeKind.KERNEL, "copy")
        record(stream.capture, stream, kind, name, [target, source], pack_scalar(target.nbytes), _copy_work)
    elif target.numel() and not _moved_as_bytes(target, source):
        check_overlap(target, (source,))
        if m.hearing and not _is_plain(target, source):
            m.ran("copy_")
        there = m.twin(target)
        copied_within(there, read_before(there, m.twin(source)))
    return target


def _moved_as_bytes(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Copy what lies in one piece, and apart: a third of what a copy of torch's takes. Whether that was so."""
    if target.dtype is not source.dtype or target.shape != source.shape:
        return False
    if not (target.is_contiguous() and source.is_contiguous() and bits_of(target) == bits_of(source)):
        return False
    to, begin, nbytes = target.data_ptr(), source.data_ptr(), source.nbytes
    arena = machine().arena
    if abs(to - begin) < nbytes or not (arena.is_mapped(to, nbytes) and arena.is_mapped(begin, nbytes)):
        return False
    ctypes.memmove(to, begin, nbytes)
    return True


def _is_plain(target: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether a copy on the device copies bytes as they lie; else it is a kernel."""
    same = source.dtype == target.dtype and source.shape == target.shape and source.stride() == target.stride()
    return same and dense(source) and bits_of(source) == bits_of(target)


def to_copy(
    tensor: torch.Tensor,
    *,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
    **options: Any,
) -> torch.Tensor:
    """``aten::_to_copy``: without waiting, into pinned memory of the host, as torch does for CUDA."""
    if not (non_blocking and device is not None and device.type == "cpu"):
        options |= {"device": device, "dtype": dtype, "non_blocking": non_blocking, "memory_format": memory_format}
        copied: torch.Tensor = aten._to_copy.default.redispatch(CPU_KEY, tensor, **options)
        return copied
    kept = memory_format or torch.preserve_format
    target = pin(torch.empty_like(tensor, device="cpu", dtype=dtype, memory_format=kept))
    return target.copy_(tensor, non_blocking=True)


def _fill(target: torch.Tensor, value: Any) -> torch.Tensor:
    if not target.numel():
        return target
    stream = current_stream()
    # cudaMemset writes patterns of 1, 2 or 4 bytes, or zeros of any size
    pattern = dense(target) and (target.dtype.itemsize in (1, 2, 4) or value == 0)
    if stream.capture is None:
        m = machine()
        if m.hearing and not pattern:
            m.ran("fill_")
        if target.numel() == 1:
            require_fit(target.dtype, value)
        m.twin(target).fill_(value)
        return target
    stream.capture.check()
    require_fit(target.dtype, value)
    capture = stream.capture

    def work(views: Sequence[torch.Tensor], state: tuple[int, int] | None) -> None:
        views[0].fill_(value)

    kind, name = (NodeKind.MEMSET, "memset") if pattern else (NodeKind.KERNEL, "fill")
    record(capture, stream, kind, name, [target], pack_scalar(value), work)
    return target


def fill_scalar(target: torch.Tensor, value: Any) -> torch.Tensor:
    """``aten::fill_.Scalar``."""
    return _fill(target, value)


def fill_tensor(target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """``aten::fill_.Tensor``: a host scalar is baked, a device one is read by the kernel."""
    if dims := value.dim():
        raise RuntimeError(f"fill_ only supports 0-dimension value tensor but got tensor with {dims} dimensions.")
    if value.device.type == "cpu":
        return _fill(target, value.item())
    return copy_(target, value.expand(target.shape))


def zero_(target: torch.Tensor) -> torch.Tensor:
    """``aten::zero_``."""
    return _fill(target, 0)


def record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """``aten::record_stream``: nothing to wait for, since work here is never outstanding."""


def repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    """``aten::repeat_interleave.Tensor``: without ``output_size`` the host waits for the sum."""
    if output_size is None and repeats.numel():
        forbid_in_capture(current_stream())
        note_wait()  # CUDA's kernel waits twice: for the sum, and to check the signs
    found: torch.Tensor = _repeat_interleave(repeats, output_size=output_size)
    return found


_repeat_interleave = Kernel(aten.repeat_interleave.Tensor)


def segment_reduce(data: torch.Tensor, reduce: str, **options: Any) -> torch.Tensor:
    """``aten::segment_reduce``: the host looks at the lengths, unless ``unsafe`` spares it."""
    if options.get("lengths") is not None and options.get("offsets") is None and not options.get("unsafe"):
        forbid_in_capture(current_stream())
    found: torch.Tensor = _segment_reduce(data, reduce, **options)
    return found


_segment_reduce = Kernel(aten.segment_reduce.default)


def _is_nothing(tensor: torch.Tensor, *_: Any, **__: Any) -> bool:
    return not tensor.numel()


def _is_of_numbers(matrix: torch.Tensor) -> bool:
    """Whether these are matrices of one number, whose norm need not be asked on the host; raises for no squares."""
    if matrix.dim() < 2 or matrix.size(-1) != matrix.size(-2):
        aten.linalg_matrix_exp(torch.empty(matrix.shape, dtype=matrix.dtype, device="cpu"))
    return matrix.dim() > 1 and matrix.size(-1) < 2


def empty_median_kernel(op: Any) -> Callable[..., Any]:
    """The median of no numbers is made on the host, and copied."""
    run = Kernel(op)

    def call(tensor: torch.Tensor) -> Any:
        if not tensor.numel():
            pageable_copy_forbidden(current_stream())
        return run(tensor)

    return call


def _has_bounds(tensor: torch.Tensor, bins: int = 100, low: float = 0, high: float = 0, **kwargs: Any) -> bool:
    return low != high or not tensor.numel()


def scalar_tensor(value: Any, *, dtype: torch.dtype | None = None, **options: Any) -> torch.Tensor:
    """``aten::scalar_tensor``: a number made a tensor, as an assignment to ``x[index]`` does first."""
    require_device(options.get("device"))
    found = machine().empty_strided((), (), dtype or torch.get_default_dtype())
    capture = current_stream().capture
    if capture is None or not capture.invalid:  # on a GPU it is the host's yet
        _fill(found, value)
    note_number(found)
    if capture is not None:
        capture.scalar_fill = (found.data_ptr(), value)
    return found


def valued_kernel(op: Any, position: int) -> Callable[..., Any]:
    """A filling operation whose value is a 0-d tensor: the host reads it, and waits for one on the device."""
    run = Kernel(getattr(op.overloadpacket, op._overloadname.replace("Tensor", "Scalar")))

    def call(*args: Any) -> Any:
        value = args[position]
        if value.dim():
            check_sizes(op, args, {})
            raise RuntimeError(
                f"{op._opname.rstrip('_')}_ only supports a 0-dimensional value tensor, but got tensor with "
                f"{value.dim()} dimension(s)."
            )
        return run(*args[:position], value.item(), *args[position + 1 :])

    return call


def left_aligned(*_: Any) -> bool:
    """``aten::_nested_tensor_from_mask_left_aligned``: no mask is: such nested tensors are not simulated."""
    forbid_in_capture(current_stream())
    return False


def special_kernels() -> dict[str, Any]:
    """Every special kernel by the name of its operation."""
    found: dict[str, Any] = {
        "empty.memory_format": empty,
        "empty_strided": empty_strided,
        "resize_": resize_,
        "set_": set_empty,
        "set_.source_Storage_storage_offset": set_storage,
        "copy_": copy_,
        "_to_copy": to_copy,
        "fill_.Scalar": fill_scalar,
        "fill_.Tensor": fill_tensor,
        "zero_": zero_,
        "record_stream": record_stream,
        "_index_put_impl_": index_put_impl_,
        "repeat_interleave.Tensor": repeat_interleave,
        "index.Tensor": index_kernel(aten.index.Tensor),
        "scalar_tensor": scalar_tensor,
        "equal": equal,
        "pin_memory": refuse_to_pin,
        "segment_reduce": segment_reduce,
        "_nested_tensor_from_mask_left_aligned": left_aligned,
        "masked_fill.Scalar": masked_fill_kernel(aten.masked_fill.Scalar),
        "masked_fill_.Scalar": masked_fill_kernel(aten.masked_fill_.Scalar),
        **{name: asking_kernel(_overload(name)) for name in ASKING},
        "bincount": host_copy_kernel(aten.bincount.default, _is_nothing),
        "histc": host_copy_kernel(aten.histc.default, _has_bounds),
        "histc.out": host_copy_kernel(aten.histc.out, _has_bounds),
        **{name: empty_median_kernel(_overload(name)) for name in ("median", "nanmedian")},
        "softshrink": Kernel(aten.softshrink.default, None, no_minus),
        "linalg_matrix_exp": host_copy_kernel(aten.linalg_matrix_exp.default, _is_of_numbers),
    }
    kinds = ((VIEWS, view_kernel), (WAITING, waiting_kernel))
    for names, make in (*kinds, (HOST_ONLY, host_only_kernel), (WHOLE, Kernel)):
        for name in names:
            found[name] = make(_overload(name))
    found.update(library_kernels())
    for name, position in VALUED.items():
        found[name] = valued_kernel(_overload(name), position)
    found.update(foreach_kernels())
    return found


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")
