"""What a trace depends on besides the function's own state: torch's switches, and what its inputs look like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrize
from torch.utils._device import DeviceContext

from paramgraph_kit.backend.plain import PLAIN, plain_key
from paramgraph_kit.driver.select import driver
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason

FEW = 1024  # values on the host, that are compared in each call
_operations, _transforms = torch_name("_len_torch_dispatch_stack"), torch_name("_are_functorch_transforms_active")
_modes = torch_name("_len_torch_function_stack")
_KINDS = (torch.Tensor, nn.Parameter, nn.Buffer)


def value_key(x: Any) -> Any:
    """What tells a plain argument; raises RefusedError for one that is not traced."""
    if not isinstance(x, PLAIN):
        text = f"an argument is a {type(x).__name__}: give tensors and plain values, in lists, tuples and dicts"
        raise RefusedError(Reason("unknown-argument", text))
    return plain_key(x)


def tensor_key(x: torch.Tensor) -> Any:
    """What tells an input's kind; raises RefusedError for one that is not traced."""
    if type(x) not in _KINDS or x.layout != torch.strided:
        what = type(x).__name__ if x.layout == torch.strided else f"tensor of layout {x.layout}"
        text = f"an argument or member is a {what}: only plain ones are traced"
        if hasattr(type(x), "__tensor_flatten__"):
            text = f"{text}. As a member, parameterize(fn, state=model) and torch.compile take it"
        raise RefusedError(Reason("unknown-argument", text))
    return type(x), x.shape, x.stride(), x.dtype, x.device, x.requires_grad, x.is_conj(), x.is_neg(), x.is_inference()


def hidden_key(x: torch.Tensor) -> Any:
    """What code may read of a tensor that is no input without using it: its kind, and on the host its values."""
    strides = x.stride() if x.layout == torch.strided else None
    graded = x.grad is None if x.is_leaf else None
    return id(x), x.shape, strides, x.dtype, x.device, x.requires_grad, graded, _values(x)


def _values(x: torch.Tensor) -> Any:
    """Of a tensor of the host what it holds, if that is little: what shares its memory writes without a version."""
    if x.device.type != "cpu":
        return None
    if type(x) in _KINDS and x.layout == torch.strided and x.numel() <= FEW and not x.is_quantized:
        # Of a copy: memory that numpy has seen may not be resized any more.
        copy = x.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        return copy.view(-1).view(torch.uint8).numpy().tobytes()
    return version_of(x)


def version_of(x: torch.Tensor) -> int | None:
    """How often a tensor was written, where that is counted."""
    return None if x.is_inference() else x._version


def attributes_of(x: torch.Tensor) -> dict[str, Any]:
    """What somebody has given a tensor; torch's compiler notes something on some."""
    return {name: value for name, value in vars(x).items() if not name.startswith("_dynamo_")}


def sharing(tensors: Sequence[torch.Tensor]) -> Any:
    """Which inputs share a storage and where they lie in it: writes to one are seen in another."""
    storages = [x.untyped_storage()._cdata for x in tensors]
    if len(set(storages)) == len(storages):
        return ()
    first: dict[int, int] = {}
    groups = [first.setdefault(storage, n) for n, storage in enumerate(storages)]
    objects: dict[int, int] = {}
    same = [objects.setdefault(id(x), n) for n, x in enumerate(tensors)]
    return tuple(zip(groups, same, [x.storage_offset() for x in tensors], strict=True))


def switches() -> Any:
    """The switches of torch that a trace, or the kernels in it, depend on."""
    kinds = (driver().device.type, "cpu")
    cuda: Any = torch.backends.cuda  # in part untyped
    return (
        torch.is_grad_enabled(),
        tuple([torch.is_autocast_enabled(k) and torch.get_autocast_dtype(k) for k in kinds]),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        cuda.matmul.fp32_precision,
        cuda.matmul.allow_fp16_reduced_precision_reduction,
        cuda.matmul.allow_bf16_reduced_precision_reduction,
        unguarded_switches(),
    )


def unguarded_switches() -> Any:
    """Those that Dynamo's guard of torch's global state leaves out."""
    inference, modes, precision, flash, efficient, math, cudnn, order, encoder, libraries = _readers()
    kernels = flash(), efficient(), math(), cudnn(), tuple(order()), encoder()
    return inference(), modes(), precision("cuda", "matmul"), kernels, libraries()


@cache
def _readers() -> tuple[Callable[..., Any], ...]:
    cuda: Any = torch.backends.cuda
    return (
        torch.is_inference_mode_enabled,
        torch_name("_len_torch_function_stack"),  # a default device is a mode
        torch_name("_get_fp32_precision_getter"),
        cuda.flash_sdp_enabled,
        cuda.mem_efficient_sdp_enabled,
        cuda.math_sdp_enabled,
        cuda.cudnn_sdp_enabled,
        torch_name("_get_sdp_priority_order"),
        torch.backends.mha.get_fastpath_enabled,
        driver().library_state,
    )


def is_heard() -> bool:
    """Whether somebody hears or transforms each operation of a call, where a launch is none: it runs as it is then.

    Modes of torch's (but for a default device, which is one), a gradient or a map that is taken of the call, tangents,
    and who keeps what parametrizations compute.
    """
    if _operations() or _transforms() or forward_ad._current_level >= 0 or parametrize._cache_enabled:
        return True
    return bool(_modes()) and not all(isinstance(each, DeviceContext) for each in torch_name("function_modes")())


def global_state_guard() -> Callable[[], bool]:
    """Whether torch's global state, as far as Dynamo guards it, is still what it is now."""
    check: Callable[[], bool] = torch_name("GlobalStateGuard")().check
    return check


def tensor_guard(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Whether tensors are of the kinds, shapes, strides and devices that these are."""
    if not tensors:
        return lambda: True
    guards = torch_name("TensorGuards")(*map(_alike, tensors), dynamic_dims_sizes=None, dynamic_dims_strides=None)
    check: Callable[..., bool] = guards.check
    return check


def _alike(x: torch.Tensor) -> torch.Tensor:
    """A tensor of the same kind: the guard refers weakly to what it is made from, and torch swaps no such tensor."""
    if x.is_inference():
        return x
    alias = x.detach()
    return (
        alias.requires_grad_(x.requires_grad)
        if type(x) is torch.Tensor
        else type(x)(alias, requires_grad=x.requires_grad)
        if type(x) is nn.Parameter
        else x
    )
