"""What something that is called is called in a heading."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

_WHERE = {"torch": torch, "Tensor": torch.Tensor, "torch.nn.functional": torch.nn.functional}


def name_of(what: Any) -> str:
    """The name of a function or an object as the user would write it, without torch's own holders of functions."""
    try:
        while type(what) is functools.partial:
            what = what.func
        own = getattr(what, "__qualname__", None)
        if not isinstance(own, str):
            return type(what).__name__
        last = own.rpartition(".")[2]
        if last == "__call__" and isinstance(what, types.MethodType):
            return type(what.__self__).__name__
        for where, holder in _WHERE.items():
            if isinstance(what, type(torch.sum)) and getattr(holder, last, None) is what:
                return f"{where}.{last}"
        return own.replace("TensorBase.", "Tensor.")
    except Exception:  # it answers as it likes
        return type(what).__name__
