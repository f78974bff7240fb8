"""Names of types in what torch's C++ says of a tensor itself, and not of the CPU's in its place: they are CUDA's."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch

_IN_PYTHON = re.compile(r"\btorch\.sim\.(?=\w*Tensor)")
_IN_CPP = re.compile(r"\bsim(?=[A-Z])(\w+?)Type\b")
_LACKING = re.compile(r"(?<=arguments from the )'sim'(?= backend)")
_OLD = ("Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")  # which torch says as Python has them
_FUNCTIONS = ("istft", "stft")  # in the module of those that torch.functional calls


def as_cudas(text: str) -> str:
    """The same with CUDA's names of types.

    >>> as_cudas("can't assign a str to a torch.sim.BoolTensor"), as_cudas("expand(simFloatType{[3]}, size=[])")
    ("can't assign a str to a torch.cuda.BoolTensor", 'expand(torch.cuda.FloatTensor{[3]}, size=[])')
    """
    if "sim" not in text:
        return text

    def named(found: re.Match[str]) -> str:
        return f"torch.cuda.{found[1]}Tensor" if found[1] in _OLD else f"CUDA{found[1]}Type"

    return _LACKING.sub("'CUDA'", _IN_CPP.sub(named, _IN_PYTHON.sub("torch.cuda.", text)))


def install_type_names() -> None:
    """What users call, and what tells a tensor's type where it refuses, tells that of CUDA; ``type()`` does, too.

    Tensors' own methods stay torch's: what is called through Python has other arguments for who watches operations.
    """
    torch.Tensor.type = _returning(torch.Tensor.type)  # type: ignore[method-assign]
    for name in _FUNCTIONS:
        setattr(torch._VF, name, saying(getattr(torch._VF, name)))


def saying(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose errors have CUDA's names of types."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (RuntimeError, TypeError) as error:
            if len(error.args) == 1 and isinstance(error.args[0], str):
                error.args = (as_cudas(error.args[0]),)
            raise

    return call


def _returning(plain: Any) -> Any:
    @functools.wraps(plain)
    def named(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        found = plain(tensor, *args, **kwargs)
        return as_cudas(found) if isinstance(found, str) else found

    return named
