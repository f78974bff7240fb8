"""Which operations a capture forbids, told from the operation and its arguments before it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from paramgraph_kit.doctor.known.evidence import PAGEABLE
from paramgraph_kit.driver.generators import generator_of
from paramgraph_kit.driver.select import twin

UNCAPTURED = "CUDA error: operation not permitted when stream is capturing"

# Operations whose CUDA kernels wait for a number from the GPU, and what a user calls them.
WAITING = {
    "_local_scalar_dense": "item",
    "equal": "equal",
    "allclose": "allclose",
    "is_nonzero": "bool",
    "nonzero": "nonzero",
    "masked_select": "masked_select",
    "masked_scatter_backward": "masked_select",
    "_unique": "unique",
    "_unique2": "unique",
    "unique_dim": "unique",
    "unique_consecutive": "unique_consecutive",
    "unique_dim_consecutive": "unique_consecutive",
    "_to_sparse": "to_sparse",
    "_linalg_check_errors": "inv",
    "_linalg_svd": "svd",
    "_linalg_eigh": "eigh",
    "linalg_eig": "eig",
    "linalg_pinv": "pinv",
    "linalg_lstsq": "lstsq",
    "linalg_ldl_factor_ex": "ldl_factor",
    "linalg_ldl_solve": "ldl_solve",
    "cholesky": "cholesky",  # the old one, which looks whether it succeeded
    "_nested_tensor_from_mask_left_aligned": "_nested_tensor_from_mask_left_aligned",
}
# Those that do for matrices at once, by way of arrays of pointers that are made on the host.
_AT_ONCE = {"_cholesky_solve_helper": "cholesky_solve", "cholesky_inverse": "cholesky_inverse"}
# Those that copy numbers from or to the CPU.
_COPYING = {"bincount": "bincount", "_ctc_loss": "ctc_loss", "_cudnn_ctc_loss": "ctc_loss"}
FACTORIES_AND_VIEWS = frozenset(
    """slice narrow view _unsafe_view expand arange empty zeros ones full rand randn as_strided select split
    split_with_sizes repeat unfold pad constant_pad_nd new_empty new_zeros new_ones new_full randint randperm reshape
    tile linspace eye roll topk""".split()  # noqa: SIM905 - shorter so
)
NUMBER = "x[i]=number"  # where the line assigns one, and no tensor that it makes of one
_MASK = (torch.bool, torch.uint8)


@dataclass(slots=True)
class Operation:
    """What never changes about one aten overload."""

    name: str  # "index_put_"
    written: tuple[int, ...]  # positions of arguments that it writes
    written_names: tuple[str, ...]
    random: bool
    names: tuple[str, ...] = field(default=())


@cache
def operation(func: Any) -> Operation:
    """The facts of an overload; for what has no schema, such as torch.cond, nothing but its name."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return Operation(str(func), (), (), False)
    arguments = schema.arguments
    written = [i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
    name = schema.name.rpartition("::")[2]
    if "batch_norm" in name and not name.endswith("backward"):  # writes its statistics without saying so
        written += [i for i, a in enumerate(arguments) if a.name in ("running_mean", "running_var")]
    return Operation(
        name,
        tuple(written),
        tuple(arguments[i].name for i in written),
        torch.Tag.nondeterministic_seeded in func.tags,
        tuple(a.name for a in arguments),
    )


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a capture would say to an operation."""

    message: str
    code: int | None
    operation: str  # what a user calls it
    sure: bool = False  # whatever the line looks like


def _waits(name: str) -> Refusal:
    return Refusal(UNCAPTURED, 900, name)


def _pageable(name: str) -> Refusal:
    return Refusal(PAGEABLE, None, name)


def refusal(
    op: Operation,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: list[torch.Tensor],
    device: str,
    known: set[int],
    number: int,
) -> Refusal | None:
    """Why a capture would refuse this call, or None.

    ``known`` are ids of tensors just filled with a number; ``number`` is that of the latest that torch made of one.
    """
    name = op.name
    if name in ("_to_copy", "copy_"):
        if name == "copy_" and not args[0].dim() and not args[1].dim() and id(args[1]) == number:
            return Refusal(PAGEABLE, None, NUMBER, sure=True)  # x[0, 1] = 5.0 is copied; wider places are filled
        return _copy(name, args, kwargs, device)
    if name == "_foreach_copy_":  # between devices they are copied one by one
        rest = args[2:] if len(args) > 2 else (kwargs.get("non_blocking", False),)
        each = (_copy("copy_", (*pair, *rest), {}, device) for pair in zip(args[0], args[1], strict=True))
        return next((found for found in each if found is not None), None)
    if name == "lift_fresh":  # torch.tensor(..., device=...) has copied already when it gets here
        return _pageable("tensor") if tensors[0].device.type == device and tensors[0].numel() else None
    generator = generator_of(kwargs.get("generator"))
    there = any(tensor.device.type == device for tensor in tensors)
    made_there = torch.device(kwargs.get("device") or "cpu").type == device
    if (
        generator is not None
        and generator.device.type == device
        and (there or made_there)
        and not _is_default(generator)
    ):
        return Refusal("Attempt to increase offset for a CUDA generator not in capture mode.", None, name)
    if not there:
        return None
    if name in WAITING:
        return _waits(WAITING[name])
    if name in _AT_ONCE and tensors[0].dim() > 2:
        return _waits(_AT_ONCE[name])
    if name in _COPYING:
        return _pageable(_COPYING[name])
    if name == "normal" and isinstance(args[1] if len(args) > 1 else kwargs.get("std"), torch.Tensor):
        return _waits("normal")  # whether any deviation is negative
    if name in ("masked_fill", "masked_fill_") and _is_on(args[2] if len(args) > 2 else kwargs.get("value"), device):
        return Refusal(UNCAPTURED, 900, "item", sure=True)  # a number of the GPU's becomes a kernel's argument
    if name in ("index_fill", "index_fill_") and _is_on(args[3] if len(args) > 3 else kwargs.get("value"), device):
        return Refusal(UNCAPTURED, 900, "item", sure=True)
    if name in ("linspace", "logspace") and any(_is_on(bound, device) for bound in args[:2]):
        return Refusal(UNCAPTURED, 900, "item", sure=True)
    if name == "segment_reduce" and kwargs.get("lengths") is not None and not kwargs.get("unsafe"):
        return _waits(name)  # whether the lengths add up
    if name == "linalg_matrix_exp":
        return _pageable("matrix_exp") if tensors[0].size(-1) > 1 else None
    if name == "histc":
        low, high = (kwargs.get(key, args[i] if len(args) > i else 0) for key, i in (("min", 2), ("max", 3)))
        return _pageable("histc") if low == high else None
    if name == "repeat_interleave":
        return _waits(name) if kwargs.get("output_size") is None and len(tensors) == 1 else None
    if name in ("index", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"):
        return _index(name, args, kwargs, device, known)
    if name in ("where", "bernoulli_") and any(tensor.device.type == "cpu" for tensor in tensors):
        return _pageable(name)
    return None


def _is_on(value: Any, device: str) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == device


def _is_default(generator: torch.Generator) -> bool:
    return any(generator is one for one in twin().default_generators)


def _copy(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], device: str) -> Refusal | None:
    blocking = not kwargs.get("non_blocking", args[2] if name == "copy_" and len(args) > 2 else False)
    if name == "copy_":
        target, source = args[0], args[1]
        to, pinned = target.device.type, target.device.type == "cpu" and target.is_pinned()
        one_type = isinstance(source, torch.Tensor) and source.dtype == target.dtype
        alike = one_type and source.shape == target.shape and source.stride() == target.stride()
        part = target if to == "cpu" else source  # the host's; of a part of it torch makes a tensor of its own
        apart = not alike and isinstance(part, torch.Tensor) and not part.is_contiguous()
    else:
        source, apart = args[0], False
        to = torch.device(kwargs.get("device") or source.device).type
        pinned = not blocking and to == "cpu"  # torch makes pinned memory for it
    if not isinstance(source, torch.Tensor) or source.device.type == to or not source.numel():
        return None
    if source.device.type == device and to == "cpu":
        if not pinned or apart:
            return _pageable("cpu")
        return _waits("copy_") if blocking else None
    if source.device.type == "cpu" and to == device:
        if not source.is_pinned() or apart:
            return _pageable("to")
        return _waits("to") if blocking else None
    return None


def _index(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], device: str, known: set[int]) -> Refusal | None:
    indices = [i for i in (args[1] if len(args) > 1 else kwargs.get("indices") or ()) if i is not None]
    masks = [i for i in indices if i.dtype in _MASK]
    if args[0].device.type == "cpu" and any(i.device.type == device for i in indices):
        return None  # a table of the CPU: torch itself says that its index has to be there
    if name in ("index", "_unsafe_index"):
        if masks:
            return _waits("x[mask]")
        return _pageable("x[list]") if any(i.device.type == "cpu" and i.dim() for i in indices) else None
    values = args[2] if len(args) > 2 else kwargs["values"]
    if masks:
        from_host = values.device.type == "cpu" or id(values) in known
        return None if values.numel() == 1 and from_host and len(masks) == 1 else _waits("x[mask]=")
    if any(i.device.type == "cpu" and i.dim() for i in indices):
        return _pageable("x[list]=")
    if values.device.type == "cpu":
        if device != "cuda" and not values.dim():  # Python's numbers are on the simulated device already
            return Refusal(PAGEABLE, None, "to", sure=True)
        return _pageable("copy_" if values.dim() else NUMBER)
    # A GPU gets the number as a CPU tensor; a simulated device has it already.
    return _pageable(NUMBER) if id(values) in known and device != "cuda" else None
