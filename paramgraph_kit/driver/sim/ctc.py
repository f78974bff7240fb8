"""CTC loss by cuDNN: with labels in one row, and lengths in tensors, all of 32 bits."""

from __future__ import annotations

from typing import Any

import torch

from .kernels import Kernel, pageable_copy_forbidden
from .libraries import use
from .machine import DEVICE_NAME, machine
from .stream import current_stream
from .under_way import forbid_in_capture

aten = torch.ops.aten
NAME = "ctc_loss.Tensor"
HOST_LENGTHS = (
    "CTCLoss cannot be graph captured with CPU length tensors. Move CPU length tensors to GPU memory to enable graph "
    "capture."
)
_DIMS, _LONGEST = 3, 256
_MEAN, _SUM = 1, 2  # torch's numbers of reductions


def losses(
    log_probs: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor, target_lengths: torch.Tensor, blank: int,
    deterministic: bool, zero_infinity: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """``aten::_cudnn_ctc_loss.Tensor``: the loss of each sequence, and its gradient."""
    labels = targets[: int(target_lengths.sum())]  # cuDNN reads no more
    given = (log_probs, labels.long(), lengths.long(), target_lengths.long())
    loss, alpha = aten._ctc_loss.Tensor(*given, blank, zero_infinity)
    return loss, aten._ctc_loss_backward.Tensor(torch.ones_like(loss), *given, loss, alpha, blank, zero_infinity)


def ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor, target_lengths: torch.Tensor,
    blank: int = 0, reduction: int = _MEAN, zero_infinity: bool = False,
) -> torch.Tensor:  # fmt: skip
    """``aten::ctc_loss.Tensor``: by cuDNN where that takes it, as torch asks for it; else by torch's own kernel."""
    given = (log_probs, targets, lengths, target_lengths)
    if not _fits(given, blank) or not _may_be(lengths, target_lengths):
        found: torch.Tensor = aten.ctc_loss.Tensor.decompose(*given, blank, reduction, zero_infinity)
        return found
    use("cuDNN")
    on_device = [each if each.device == log_probs.device else each.to(log_probs.device) for each in given]
    found = aten._cudnn_ctc_loss.Tensor(*on_device, blank, torch.backends.cudnn.deterministic, zero_infinity)[0]
    if zero_infinity:
        found = found.where(found != torch.inf, 0)
    if reduction == _MEAN:
        return (found / target_lengths.clamp_min(1)).mean()  # by lengths of the CPU: refused
    return found.sum() if reduction == _SUM else found


def _fits(given: tuple[torch.Tensor, ...], blank: int) -> bool:
    """Whether cuDNN takes operands of these types and sizes."""
    log_probs, targets, *lengths = given
    if any(type(each) not in (torch.Tensor, torch.nn.Parameter) for each in given):  # traced
        return False
    return (
        torch.backends.cudnn.enabled
        and blank == 0
        and log_probs.device.type == DEVICE_NAME
        and (log_probs.dim(), log_probs.dtype) == (_DIMS, torch.float32)
        and (targets.dim(), targets.dtype) == (1, torch.int32)
        and targets.is_contiguous()
        and all(each.dtype == torch.int32 for each in lengths)
    )


def _may_be(lengths: torch.Tensor, target_lengths: torch.Tensor) -> bool:
    """Whether cuDNN takes these lengths, at which the host looks."""
    stream = current_stream()
    if stream.capture is not None:
        if not all(each.device.type == DEVICE_NAME for each in (lengths, target_lengths)):
            raise RuntimeError(HOST_LENGTHS)
        pageable_copy_forbidden(stream, after="max")  # of the lengths, which is compared there
    values = []
    for each in (target_lengths, lengths):
        if each.device.type == DEVICE_NAME:
            forbid_in_capture(stream)
        values.append(machine().twin(each) if each.device.type == DEVICE_NAME else each)
    return bool((values[0] < _LONGEST).all() and (values[0] <= values[1]).all())


def install_ctc(library: Any) -> None:
    """Register it above autograd, for what it is made of has gradients of its own, and below."""
    library.impl("_cudnn_ctc_loss.Tensor", Kernel(aten._cudnn_ctc_loss.Tensor, losses).__call__, "PrivateUse1")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        library.impl(NAME, ctc_loss, key)
