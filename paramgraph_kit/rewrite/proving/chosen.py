"""Both ways of each branch that rewritten lines choose between on the device: they have to be of one kind."""

from __future__ import annotations

import linecache
import sys
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from paramgraph_kit.driver.files import REWRITTEN


class Chosen(TorchFunctionMode):
    """Notes the first choice of one whole tensor or another whose shapes or types differ: eager returns one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.unlike = ""

    def __enter__(self) -> Chosen:
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, value, trace)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.where and len(args) == 3 and not self.unlike:
            self.unlike = self._unlike(*args)
        return func(*args, **(kwargs or {}))

    def _unlike(self, condition: Any, one: Any, other: Any) -> str:
        if not all(isinstance(each, torch.Tensor) for each in (condition, one, other)) or condition.dim():
            return ""
        types = one.dtype != other.dtype and one.dim() + other.dim() > 0
        if one.shape == other.shape and not types:
            return ""
        return self._place(f"{_kind(one)} or {_kind(other)}")

    @staticmethod
    def _place(how: str) -> str:
        frame = sys._getframe()
        while frame.f_back is not None and REWRITTEN not in frame.f_code.co_filename:
            frame = frame.f_back
        file = frame.f_code.co_filename
        text = linecache.getline(file, frame.f_lineno).strip()
        own = {line.strip() for line in linecache.getlines(file.replace(REWRITTEN, ""))}
        return f"its ways give tensors of other kinds, {how}" if REWRITTEN in file and text not in own else ""


def _kind(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
