"""Which operations a capture forbids, told from the operation and its arguments before it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from paramgraph_kit.doctor.known.evidence import PAGEABLE
from paramgraph_kit.driver.asked import ASKS, COALESCING, COUNTING, sorts
from paramgraph_kit.driver.generators import generator_of
from paramgraph_kit.driver.select import twin
from paramgraph_kit.driver.tensors import same_place, through_pageable

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
    **dict.fromkeys(("_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"), "to_sparse"),
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
# Those of both kinds that have nothing to ask where there are no numbers.
_OF_SOME = (
    *("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive", "bincount", "histc"),
    *("_linalg_svd", "_linalg_eigh", "linalg_pinv", "linalg_ldl_factor_ex", "normal", "repeat_interleave"),
)
# What else runs its kernels is somebody's own: of torch.library, or of an extension.
_TORCHS_OWN = frozenset(
    """aten prim prims rngprims profiler quantized quantized_decomposed sparse mkldnn mkl onednn c10d _c10d_functional
    _c10d_functional_autograd _dtensor inductor _inductor_test higher_order debugprims symm_mem streams""".split()  # noqa: SIM905
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
    is_torchs: bool = True  # and nobody's own


@cache
def operation(func: Any) -> Operation:
    """The facts of an overload; for what has no schema, such as torch.cond, nothing but its name."""
    schema = getattr(func, "_schema", None)
    is_torchs = getattr(func, "namespace", "aten") in _TORCHS_OWN
    if schema is None:
        return Operation(str(func), (), (), False, is_torchs=is_torchs)
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
        is_torchs,
    )


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a capture would say to an operation."""

    message: str
    code: int | None
    operation: str  # what a user calls it
    sure: bool = False  # whatever the line looks like


_FLAG = 2  # where copy_ has non_blocking
Rule = Callable[["_Asked"], Refusal | None]


@dataclass(slots=True)  # one is made for every other operation, and a frozen one takes three times as long
class _Asked:
    """A call that is about to run on the device, or next to it."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: list[torch.Tensor]
    device: str
    number: int

    def argument(self, i: int, name: str, default: Any = None) -> Any:
        """An argument that may be given by its place or by its name."""
        return self.args[i] if len(self.args) > i else self.kwargs.get(name, default)


def _waits(name: str, *, sure: bool = False) -> Refusal:
    return Refusal(UNCAPTURED, 900, name, sure)


def _pageable(name: str, *, sure: bool = False) -> Refusal:
    return Refusal(PAGEABLE, None, name, sure)


def refusal(
    op: Operation,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    tensors: list[torch.Tensor],
    device: str,
    number: int,
) -> Refusal | None:
    """Why a capture would refuse this call, or None.

    ``number`` is the id of the latest tensor that torch itself made of a number which is assigned.
    """
    name = op.name
    if kwargs.get("generator") is not None and _draws_elsewhere(kwargs, tensors, device):
        return Refusal("Attempt to increase offset for a CUDA generator not in capture mode.", None, name)
    rule = _RULES.get(name)  # every operation is asked, and few have one
    if rule is None or not (name in _WHEREVER or any(tensor.device.type == device for tensor in tensors)):
        return None
    return rule(_Asked(name, args, kwargs, tensors, device, number))


def is_staged(op: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], device: str) -> bool:
    """Whether the host goes on while a copy from pageable memory, which CUDA has set aside, is still under way."""
    given = kwargs.get("non_blocking", args[2] if op.name == "copy_" and len(args) > _FLAG else False)
    source = args[1:2] if op.name == "copy_" else args[:1]
    to = _is_on(args[0], device) if op.name == "copy_" else torch.device(kwargs.get("device") or "cpu").type == device
    copies = op.name in ("copy_", "_to_copy") and to and isinstance(source[0], torch.Tensor)
    return bool(given) and copies and source[0].device.type == "cpu"


def _draws_elsewhere(kwargs: dict[str, Any], tensors: list[torch.Tensor], device: str) -> bool:
    generator = generator_of(kwargs["generator"])
    there = any(tensor.device.type == device for tensor in tensors)
    made_there = torch.device(kwargs.get("device") or "cpu").type == device
    return generator.device.type == device and (there or made_there) and not _is_default(generator)


def _is_on(value: Any, device: str) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == device


def _is_default(generator: torch.Generator) -> bool:
    return any(generator is one for one in twin().default_generators)


def _copied(a: _Asked) -> Refusal | None:
    if a.name == "copy_" and not a.args[0].dim() and not a.args[1].dim() and id(a.args[1]) == a.number:
        return _pageable(NUMBER, sure=True)  # x[0, 1] = 5.0 is copied; wider places are filled
    return _copy(a.name, a.args, a.kwargs, a.device)


def _copied_each(a: _Asked) -> Refusal | None:
    rest = a.args[2:] if len(a.args) > 2 else (a.kwargs.get("non_blocking", False),)
    each = (_copy("copy_", (*pair, *rest), {}, a.device) for pair in zip(a.args[0], a.args[1], strict=True))
    return next((found for found in each if found is not None), None)


def _lifted(a: _Asked) -> Refusal | None:
    return _pageable("tensor") if _is_on(a.tensors[0], a.device) and a.tensors[0].numel() else None


def _host_number(i: int, name: str) -> Rule:
    # A number of the GPU's becomes a kernel's argument.
    return lambda a: _waits("item", sure=True) if _is_on(a.argument(i, name), a.device) else None


def _bounded(a: _Asked) -> Refusal | None:
    return _waits("item", sure=True) if any(_is_on(bound, a.device) for bound in a.args[:2]) else None


def _normal(a: _Asked) -> Refusal | None:
    return _waits("normal") if isinstance(a.argument(1, "std"), torch.Tensor) else None  # whether any is negative


def _segments(a: _Asked) -> Refusal | None:
    # Whether the lengths add up.
    return _waits(a.name) if a.kwargs.get("lengths") is not None and not a.kwargs.get("unsafe") else None


def _matrix_exp(a: _Asked) -> Refusal | None:
    return _pageable("matrix_exp") if a.tensors[0].size(-1) > 1 else None


def _histogram(a: _Asked) -> Refusal | None:
    return _pageable("histc") if a.argument(2, "min", 0) == a.argument(3, "max", 0) else None


def _mode(a: _Asked) -> Refusal | None:
    tensor, dim = a.tensors[0], a.argument(1, "dim", -1)
    return _waits("mode") if tensor.dim() and tensor.size(dim) > ONE_BLOCK else None


def _predicate(a: _Asked) -> Refusal | None:
    return _waits("cond") if _is_on(a.args[0], a.device) else None


def _round(a: _Asked) -> Refusal | None:
    return _waits("while_loop") if any(_is_on(tensor, a.device) for tensor in a.tensors) else None


def _repeated(a: _Asked) -> Refusal | None:
    return _waits(a.name) if a.kwargs.get("output_size") is None and len(a.tensors) == 1 else None


def _beside_the_cpu(a: _Asked) -> Refusal | None:
    return _pageable(a.name) if any(tensor.device.type == "cpu" for tensor in a.tensors) else None


def _copy(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], device: str) -> Refusal | None:
    blocking = not kwargs.get("non_blocking", args[2] if name == "copy_" and len(args) > 2 else False)
    if name == "copy_":
        target, source = args[0], args[1]
        to, pinned = target.device.type, target.device.type == "cpu" and target.is_pinned()
    else:
        source = args[0]
        to = torch.device(kwargs.get("device") or source.device).type
        pinned = not blocking and to == "cpu"  # torch makes pinned memory for it
        target = None
    if not isinstance(source, torch.Tensor) or source.device.type == to or not source.numel():
        return None
    apart = _through_pageable(target, source, kwargs, not blocking, to_host=to == "cpu")
    if source.device.type == device and to == "cpu":
        if not pinned or apart:
            return _pageable("cpu")
        return _waits("copy_") if blocking else None
    if source.device.type == "cpu" and to == device:
        if not source.is_pinned() or apart:
            return _pageable("to")
        return _waits("to") if blocking else None
    return None


def copies_pinned(op: Operation, tensors: list[torch.Tensor], device: str) -> bool:
    """Whether it copies the last of some tensors from pinned memory to the device: a graph does from that address."""
    if op.name not in ("_to_copy", "copy_") or not tensors or tensors[-1].device.type != "cpu":
        return False
    there = op.name == "_to_copy" or tensors[0].device.type == device
    return there and tensors[-1].numel() > 0 and bool(tensors[-1].is_pinned())


def _through_pageable(
    target: Any, source: torch.Tensor, kwargs: dict[str, Any], non_blocking: bool, *, to_host: bool
) -> bool:
    if source.layout is not torch.strided:
        return False
    if target is None:
        kept = kwargs.get("memory_format") or torch.preserve_format
        target = torch.empty_like(source, dtype=kwargs.get("dtype"), device="meta", memory_format=kept)
    try:
        return through_pageable(target, source, non_blocking, to_host=to_host)
    except RuntimeError:  # sizes that do not fit, of which torch tells itself
        return False


def _indexed(a: _Asked) -> Refusal | None:
    indices = [i for i in a.argument(1, "indices") or () if i is not None]
    masks = [i for i in indices if i.dtype in _MASK]
    if a.args[0].device.type == "cpu" and any(i.device.type == a.device for i in indices):
        return None  # a table of the CPU: torch itself says that its index has to be there
    on_host = [i for i in masks if i.device.type == "cpu"]  # whose places the host finds itself
    if a.name in ("index", "_unsafe_index"):
        if len(masks) > len(on_host):
            return _waits("x[mask]")
        copied = any(i.device.type == "cpu" and i.dim() for i in indices if i.dtype not in _MASK)
        return _pageable("x[list]") if copied else None
    values = a.argument(2, "values")
    if on_host:
        return _pageable("x[list]=")
    if masks:
        from_host = values.device.type == "cpu" or id(values) == a.number
        return None if values.numel() == 1 and from_host and len(masks) == 1 else _waits("x[mask]=")
    if any(i.device.type == "cpu" and i.dim() for i in indices):
        return _pageable("x[list]=")
    if values.device.type == "cpu":
        if a.device != "cuda" and not values.dim():  # Python's numbers are on the simulated device already
            return _pageable("to", sure=True)
        return _pageable("copy_" if values.dim() else NUMBER)
    # A GPU gets the number as a CPU tensor; a simulated device has it already.
    return _pageable(NUMBER) if id(values) == a.number and a.device != "cuda" else None


def _asking(name: str, said: str) -> Rule:
    return lambda a: _waits(said) if ASKS[name](*a.args, **a.kwargs) else None


def _is_in(a: _Asked) -> Refusal | None:
    if ASKS["isin"](*a.args, **a.kwargs):
        return _waits("isin")
    return _pageable("isin") if sorts(*a.args, **a.kwargs) else None  # put in order by a number of the host's


def _compared(a: _Asked) -> Refusal | None:
    one, other = a.args[:2]
    if one.shape != other.shape or not one.numel() or same_place(one, other):
        return None  # that answers it
    return _waits("equal")


def _of_some(rule: Rule) -> Rule:
    return lambda a: rule(a) if any(tensor.numel() for tensor in a.tensors) else None


def _always(found: Refusal) -> Rule:
    return lambda a: found


def _at_once(found: Refusal) -> Rule:
    return lambda a: found if a.tensors[0].dim() > 2 else None


_IN_RANGE = {
    "fake_quantize_per_channel_affine_cachemask": "fake_quantize_per_channel_affine",
    "_fake_quantize_learnable_per_channel_affine": "fake_quantize_per_channel_affine",
    "_fake_quantize_learnable_per_tensor_affine": "fake_quantize_per_channel_affine",
}
ONE_BLOCK = 2048  # numbers that one block of threads sorts: of more, mode waits
_WHEREVER = ("_to_copy", "copy_", "_foreach_copy_", "lift_fresh")  # also where nothing of it is on the device yet
_RULES: dict[str, Rule] = {
    **{name: _always(_waits(said)) for name, said in WAITING.items()},
    **{name: _at_once(_waits(said)) for name, said in _AT_ONCE.items()},
    **{name: _always(_pageable(said)) for name, said in _COPYING.items()},
    **dict.fromkeys(("_to_copy", "copy_"), _copied),
    "_foreach_copy_": _copied_each,  # between devices they are copied one by one
    "lift_fresh": _lifted,  # torch.tensor(..., device=...) has copied already when it gets here
    "normal": _normal,
    **dict.fromkeys(("masked_fill", "masked_fill_"), _host_number(2, "value")),
    **dict.fromkeys(("index_fill", "index_fill_"), _host_number(3, "value")),
    **dict.fromkeys(("linspace", "logspace"), _bounded),
    "segment_reduce": _segments,
    "linalg_matrix_exp": _matrix_exp,
    "histc": _histogram,
    "repeat_interleave": _repeated,
    "mode": _mode,
    "cond": _predicate,
    "while_loop": _round,
    **dict.fromkeys(
        ("index", "index_put_", "index_put", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"), _indexed
    ),
    **dict.fromkeys(("where", "bernoulli_"), _beside_the_cpu),
    "isin": _is_in,
    "equal": _compared,
    "searchsorted": _asking("searchsorted", "searchsorted"),
    **{name: _asking(name, said) for name, said in _IN_RANGE.items()},
    **{name: _asking(name, "to_sparse") for name in ("_to_sparse", "_to_sparse_csr")},
    **{name: _asking(name, "coalesce") for name in (*COALESCING, *COUNTING, "_sparse_sum")},
}
_RULES |= {name: _of_some(_RULES[name]) for name in _OF_SOME}
