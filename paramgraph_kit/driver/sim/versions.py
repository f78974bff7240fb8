"""What later versions of torch do in another way in a capture, in Python: with torch 2.11 a GPU does as that did."""

from __future__ import annotations

import functools
from typing import Any

import torch

from paramgraph_kit.driver.torch_names import version

from .not_known import not_known
from .stream import current_stream

SINCE = (2, 12)
OTHERS = "what an older torch does here: {name} {what} since torch 2.13, and not in 2.11"


def tell_of_versions() -> None:
    """Let these say so, where torch is one of the later ones."""
    if tuple(map(int, version().split("."))) < SINCE:
        return
    saved: Any = torch.autograd.graph.save_on_cpu
    adagrad: Any = torch.optim.Adagrad
    torch.nn.init.trunc_normal_ = _told(torch.nn.init.trunc_normal_, "trunc_normal_", "waits for the device", _captures)
    saved.__init__ = _told(saved.__init__, "save_on_cpu", "copies to pinned memory without waiting", _pins)
    adagrad.__init__ = _told(adagrad.__init__, "Adagrad(fused=True)", "is there for CUDA", _fuses)


def _captures(*args: Any, **kwargs: Any) -> bool:
    return current_stream().capture is not None


def _pins(saver: Any, pin_memory: bool = False, *args: Any, **kwargs: Any) -> bool:
    return pin_memory and _captures()


def _fuses(*args: Any, fused: Any = None, **kwargs: Any) -> bool:
    return bool(fused)


def _told(plain: Any, name: str, what: str, when: Any) -> Any:
    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling() and when(*args, **kwargs):
            not_known(OTHERS.format(name=name, what=what))
        return plain(*args, **kwargs)

    return call
