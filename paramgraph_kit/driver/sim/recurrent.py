"""The fused cells that torch's LSTM and GRU call on a device; CPU has none, so they are written out here.

Gates are laid out as CUDA's kernels have them: in, forget, cell, out for LSTM; reset, update, new for GRU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .autocast import as_one_kernel
from .kernels import Kernel
from .libraries import as_one, once, use
from .machine import DEVICE_NAME
from .refused import TYPES
from .stream import current_stream
from .under_way import forbid_in_capture

Grad = Tensor | None
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
HIDDEN, DROPOUT, TRAIN = 1, 5, 6  # where these stand, of batches that are not packed; else one further


def lstm_cell(gates: Tensor, hidden: Tensor, cx: Tensor, b1: Grad = None, b2: Grad = None) -> tuple[Tensor, ...]:
    """(hy, cy, workspace) of one step."""
    total = _biased(gates, b1) + _biased(hidden, b2)
    i, f, g, o = total.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat((i, f, g, o), 1)


def lstm_cell_backward(
    grad_hy: Grad, grad_cy: Grad, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Grad, ...]:
    """(gates, cx, bias) gradients of one step."""
    i, f, g, o = workspace.chunk(4, 1)
    t = cy.tanh()
    gh = torch.zeros_like(cy) if grad_hy is None else grad_hy
    gc = gh * o * (1 - t * t)
    if grad_cy is not None:
        gc = gc + grad_cy
    gates = torch.cat(
        (gc * g * i * (1 - i), gc * cx * f * (1 - f), gc * i * (1 - g * g), gh * t * o * (1 - o)),
        1,
    )
    return gates, gc * f, gates.sum(0) if has_bias else None


def gru_cell(gates: Tensor, hidden: Tensor, hx: Tensor, b1: Grad = None, b2: Grad = None) -> tuple[Tensor, ...]:
    """(hy, workspace) of one step."""
    ir, iz, new = _biased(gates, b1).chunk(3, 1)
    hr, hz, hn = _biased(hidden, b2).chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (new + r * hn).tanh()
    return n + z * (hx - n), torch.cat((r, z, n, hx, hn), 1)


def gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Grad, ...]:
    """(input gates, hidden gates, hx, input bias, hidden bias) gradients of one step."""
    r, z, n, hx, hn = workspace.chunk(5, 1)
    gz = grad_hy * (hx - n) * z * (1 - z)
    gn = grad_hy * (1 - z) * (1 - n * n)
    gr = gn * hn * r * (1 - r)
    inputs, hidden = torch.cat((gr, gz, gn), 1), torch.cat((gr, gz, gn * r), 1)
    bias = (inputs.sum(0), hidden.sum(0)) if has_bias else (None, None)
    return inputs, hidden, grad_hy * z, *bias


def _biased(gates: Tensor, bias: Grad) -> Tensor:
    return gates if bias is None else gates + bias


def recurrent_kernels() -> dict[str, Any]:
    """The cells by the names of their operations."""
    aten = torch.ops.aten
    return {
        "_thnn_fused_lstm_cell": Kernel(aten._thnn_fused_lstm_cell.default, lstm_cell),
        "_thnn_fused_lstm_cell_backward_impl": Kernel(
            aten._thnn_fused_lstm_cell_backward_impl.default, lstm_cell_backward
        ),
        "_thnn_fused_gru_cell": Kernel(aten._thnn_fused_gru_cell.default, gru_cell),
        "_thnn_fused_gru_cell_backward": Kernel(aten._thnn_fused_gru_cell_backward.default, gru_cell_backward),
    }


def install_recurrent() -> None:
    """LSTM, GRU and RNN are cuDNN's, whose handle ``module.cuda()`` has made; here they are products."""
    for name in RECURRENT:
        setattr(torch._VF, name, _as_one(getattr(torch._VF, name)))
    base: Any = torch.nn.RNNBase
    base.flatten_parameters = _flattening(base.flatten_parameters)


def _flattening(plain: Callable[[Any], None]) -> Callable[[Any], None]:
    """Weights laid behind each other are cuDNN's work: a layer that is made or moved in a capture may want a handle."""

    @functools.wraps(plain)
    def flatten_parameters(layer: Any) -> None:
        weights = layer._flat_weights
        whole = len(weights) == len(layer._flat_weights_names) and all(map(_ours, weights))
        if whole and torch.backends.cudnn.enabled and len({each.data_ptr() for each in weights}) == len(weights):
            use("cuDNN")
        plain(layer)

    return flatten_parameters


def _ours(weight: Any) -> bool:
    plain = type(weight) in (Tensor, torch.nn.Parameter)  # none without memory, which is traced
    return plain and weight.device.type == DEVICE_NAME and weight.is_floating_point()


def _check_hidden(given: Tensor, hidden: Any) -> None:
    """Raise RuntimeError for a state of another type, as cuDNN's does."""
    for each in hidden if isinstance(hidden, (list, tuple)) else [hidden]:
        if each.dtype != given.dtype and each.device == given.device:
            raise RuntimeError(
                f"Input and hidden tensors are not the same dtype, found input tensor with {TYPES[given.dtype]} and "
                f"hidden tensor with {TYPES[each.dtype]}"
            )


def _as_one(function: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*args: Any, **kwargs: Any) -> Any:
        if args[0].device.type == DEVICE_NAME:
            _check_hidden(args[0], args[HIDDEN + _packed(args)])
        return function(*args, **kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.backends.cudnn.enabled:
            return function(*args, **kwargs)
        ours, further = args[0].device.type == DEVICE_NAME, _packed(args)
        if ours and args[DROPOUT + further] and args[TRAIN + further]:
            _make_dropout_state()
        weights = [each for each in args if isinstance(each, (list, tuple)) and isinstance(each[0], torch.Tensor)][-1]
        if ours and any(each.device.type != DEVICE_NAME for each in weights):
            use("cuDNN")  # they were never moved there, with which it was made
        with as_one():
            results = as_one_kernel(checked, *args, **kwargs)
        if ours and not args[TRAIN + further]:
            _forbid_backward(results)
        return results

    return call


def _packed(args: tuple[Any, ...]) -> bool:
    """Whether sizes of batches stand behind the input."""
    return isinstance(args[3], (list, tuple))


def _forbid_backward(results: tuple[Tensor, ...]) -> None:
    """What cuDNN computes for evaluation keeps nothing to go backward from."""
    for each in results:
        if each.grad_fn is not None:
            each.grad_fn.register_prehook(_refuse_backward)


def _refuse_backward(_: Any) -> None:
    raise RuntimeError("cudnn RNN backward can only be called in training mode")


def _make_dropout_state() -> None:
    """What cuDNN draws its masks from: made at the first call that drops anything, and not in a capture."""
    if "dropout" not in once:
        forbid_in_capture(current_stream())
        once.add("dropout")
