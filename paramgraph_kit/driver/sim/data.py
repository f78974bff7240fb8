"""``tensor.data = other`` between host and device, for which torch's C++ knows its own devices alone."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import has_torch_function

from paramgraph_kit.driver.torch_names import torch_name

from .machine import DEVICE_NAME, machine
from .not_known import not_known
from .stream import current_stream

WHOLE = "data set to a tensor that requires gradients must be floating point or complex dtype"
HELD = (
    "the simulated device cannot give data of another device to a tensor that a backward to come, or a view, holds: "
    "assign it before they are made, or use a GPU"
)
GRADIENT = "a gradient on another device than its tensor, which a GPU leaves where it is: it goes along here"
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def install_data() -> None:
    """Let ``data`` be assigned between host and device, as torch does for CUDA."""
    plain: Any = torch.Tensor.data

    def assign(tensor: torch.Tensor, value: Any) -> None:
        if _crosses(tensor, value):
            _exchange(tensor, value)
        elif _differs_in_inference(tensor, value):
            plain.__set__(tensor, _as_made_with(tensor, value))
        else:
            plain.__set__(tensor, value)

    torch.Tensor.data = property(plain.__get__, assign, plain.__delete__)  # type: ignore[assignment]


def _crosses(tensor: torch.Tensor, value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or has_torch_function((tensor,)):
        return False
    if {tensor.device.type, value.device.type} != {DEVICE_NAME, "cpu"}:
        return False
    dispatch = torch.Tensor.__torch_dispatch__  # others, as while somebody traces, are no tensors of a device
    return all(each.layout is torch.strided and type(each).__torch_dispatch__ is dispatch for each in (tensor, value))


def _differs_in_inference(tensor: torch.Tensor, value: Any) -> bool:
    """Whether one of two tensors of the device is an inference tensor, which torch's C++ minds here and not on CUDA."""
    if not isinstance(value, torch.Tensor) or has_torch_function((tensor, value)):
        return False
    if {tensor.device.type, value.device.type} != {DEVICE_NAME}:
        return False
    plain = all(type(each).__torch_dispatch__ is torch.Tensor.__torch_dispatch__ for each in (tensor, value))
    return plain and tensor.is_inference() != value.is_inference()


def _as_made_with(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The same memory in a tensor that is, or is not, an inference tensor as this one."""
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        empty = torch.empty(0, dtype=value.dtype, device=value.device)
        storage = value.untyped_storage()
        return empty.set_(storage, value.storage_offset(), value.shape, value.stride())


def _exchange(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Put another tensor of torch's behind this object, with all that is this one's but for what it holds."""
    if tensor.requires_grad and not (value.is_floating_point() or value.is_complex()):
        raise RuntimeError(WHOLE)
    if tensor.grad_fn is not None or tensor._is_view() or not _let_go(tensor):
        raise NotImplementedError(HELD)
    hooks = {name: found for name in _HOOKS if (found := getattr(tensor, name, None)) is not None}
    gradient, version = tensor.grad, tensor._version
    other = value.data.requires_grad_(tensor.requires_grad)
    for name in hooks:
        setattr(tensor, name, None)
    tensor.grad = None
    torch_name("_swap_tensor_impl")(tensor, other)
    torch_name("_unsafe_set_version_counter")((tensor,), (version,))
    for name, found in hooks.items():
        setattr(tensor, name, found)
    if gradient is not None:
        _take_along(tensor, gradient)


def _let_go(tensor: Any) -> bool:
    """Whether nobody else holds it, or the end of a graph alone, as of one that has run: that must not run any more."""
    if tensor._use_count() > 1 and tensor.is_leaf and tensor.requires_grad:
        node = torch.autograd.graph.get_gradient_edge(tensor).node
        if tensor._use_count() > 2:  # the object and this node
            return False
        node.register_prehook(_refuse)
        return True
    return bool(tensor._use_count() == 1)


def _refuse(*_: Any) -> None:
    raise NotImplementedError(HELD)


def _take_along(tensor: torch.Tensor, gradient: torch.Tensor) -> None:
    """Move a tensor's gradient to where the tensor is: torch has none elsewhere in Python."""
    not_known(GRADIENT)
    fits = (gradient.shape, gradient.dtype) == (tensor.shape, tensor.dtype)
    if not fits or current_stream().capture is not None:
        return
    with torch.no_grad():
        moved = machine().twin(gradient).clone() if tensor.is_cpu else gradient.detach().to(tensor.device)
    gradient.data = moved
    tensor.grad = gradient
