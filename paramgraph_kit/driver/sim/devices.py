"""Which CUDA kernels take tensors of one device only, and what torch says where another one comes.

Torch generates that check from a file that it ships: for every operation but those that leave it to TensorIterator,
which takes numbers of the CPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.resources import files
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from .machine import DEVICE_NAME

_FUNCTION = re.compile(r"^- func: (\S+?)\(", re.MULTILINE)
# Operations that call another one, which checks: its method, and how it names their arguments.
_PASSED_ON = {"embedding": ("_index_select", {"weight": "self", "indices": "index"})}

TWO_DEVICES = f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE_NAME}:0 and cpu!"
# How torch begins what it has against sizes and types, where it looks at them before it does at devices.
UNFIT = ("The size of tensor a", "output with shape", "where expected condition", "expected dtype", "result type")

# Their CUDA kernels do not take even one number of the host, as those of TensorIterator's others do.
_DEVICE_OPERANDS = frozenset({"addcdiv", "addcdiv_"})
_OF_WHOLE = frozenset({"ldexp", "ldexp_"})  # or none that is whole
# Or only where these have it, by operation and position.
_UNSUPPORTED = "CPU Scalar support for {} argument is not supported when calling addcmul on CUDA tensors."
_ASSERTED = (
    'iter.device(arg).is_cuda() INTERNAL ASSERT FAILED at "/pytorch/aten/src/ATen/native/cuda/Loops.cuh":109, please '
    "report a bug to PyTorch. argument {}: expected a CUDA device but found cpu"
)
HOST_OPERANDS = {
    ("addcmul", 0): _UNSUPPORTED.format("self"),
    (
        "addcmul",
        1,
    ): f"{_UNSUPPORTED.format('tensor1')} However, CPU Scalar support for tensor2 is supported, please "
    "swap your tensor1 and tensor2 terms.",
    ("lerp", 0): _ASSERTED.format(1),
    ("lerp", 1): _ASSERTED.format(2),
}


@cache
def _checking() -> dict[str, str]:
    """The names of the operations that check, and how torch calls the functions that do."""
    try:
        text = files("torchgen").joinpath("packaged/ATen/native/native_functions.yaml").read_text(encoding="utf-8")
    except (ModuleNotFoundError, FileNotFoundError):
        return {}
    _, *parts = _FUNCTION.split(text)
    of = dict(zip(parts[::2], parts[1::2], strict=True))
    found = {}
    for name, body in of.items():
        delegate = re.search(r"structured_delegate: (\S+)", body)
        structured = delegate is not None or "structured: True" in body
        kernels = of.get(delegate[1], "") if delegate else body
        if "device_check: NoCheck" in body or not re.search(r"^    [\w, ]*\bCUDA\b", kernels, re.MULTILINE):
            continue
        stem, _, overload = name.partition(".")
        if overload.endswith("out"):
            stem += "_out"
        found[name] = "_".join(filter(None, (stem, overload))) if structured else f"{overload}_{stem}"
    return found


def stays_away(operation: str, number: torch.Tensor) -> bool:
    """Whether an operation's CUDA kernel does not take this number of the host's."""
    return operation in _DEVICE_OPERANDS or (operation in _OF_WHOLE and not number.is_floating_point())


def check_devices(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """True; raise RuntimeError as torch does, where the operation's CUDA kernel takes tensors of one device only."""
    name = op._schema.name.removeprefix("aten::") + (f".{op._schema.overload_name}" if op._schema.overload_name else "")
    method, names = _PASSED_ON.get(name, (_checking().get(name), {}))
    if method is None:
        return True
    schema = [argument for argument in op._schema.arguments if not argument.kwarg_only or argument.is_out]
    given = {argument.name: value for argument, value in zip(op._schema.arguments, args, strict=False)} | kwargs
    common = None
    for argument in sorted(schema, key=lambda each: not each.is_out):
        value = given.get(argument.name)
        for tensor in value if isinstance(value, (list, tuple)) else [value]:
            if not isinstance(tensor, torch.Tensor):
                continue
            common = common or tensor.device
            if tensor.device != common:
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but got "
                    f"{names.get(argument.name, argument.name)} is on {tensor.device}, different from other tensors on "
                    f"{common} (when checking argument in method wrapper_CUDA_{method})"
                )
    return True


def check_sizes(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise RuntimeError for sizes that do not go together, at which TensorIterator looks before it does at devices."""

    def on(place: str) -> None:
        like = partial(torch.empty, device=place)
        given, named = tree_map_only(torch.Tensor, lambda each: like(each.shape, dtype=each.dtype), (args, kwargs))
        op(*given, **named)

    try:
        on("meta")
    except (RuntimeError, ValueError, TypeError):
        _raise_of_sizes(partial(on, "cpu"))  # whose words are CUDA's


def _raise_of_sizes(run: Callable[[], None]) -> None:
    try:
        run()
    except (RuntimeError, ValueError, TypeError) as error:
        if str(error).startswith(UNFIT):
            raise
