"""Runs operations as torch does where no mode looks on."""

from __future__ import annotations

from typing import Any

import torch

_OF_LENGTHS = ("_ctc_loss", "_ctc_loss_backward")
_LENGTHS = ("input_lengths", "target_lengths")


class AsEver:
    """What a mode runs operations by.

    With a mode torch takes ctc_loss for one of a subclass: it hands on lengths, which may be of the CPU, as tensors
    whose devices have to be one, and divides by them. Without, they are numbers.
    """

    __slots__ = ("_divisor", "_place")

    def __init__(self) -> None:
        self._divisor: torch.Tensor | None = None  # lengths that the mean is taken over
        self._place: torch.device | None = None

    def __call__(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation's result; ``name``: what it is called, without overload."""
        if name in _OF_LENGTHS and func._overloadname == "Tensor":
            names = [argument.name for argument in func._schema.arguments]
            given = dict(zip(names, args, strict=False)) | kwargs
            self._divisor, self._place = given[_LENGTHS[1]], given["log_probs"].device
            lengths = {each: given[each].tolist() for each in _LENGTHS}
            return getattr(torch.ops.aten, name).default(**(given | lengths))
        result = func(*args, **kwargs)
        if name == "clamp_min" and args[0] is self._divisor:
            return result.to(self._place)
        return result
