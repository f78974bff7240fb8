"""What CUDA's kernels ask of their operands first, and the CPU's do not, or only once they have waited.

In the words of torch's C++ for CUDA; an H200 said those of which a capture was made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from .refused import TYPES
from .stream import current_stream
from .under_way import forbid_in_capture

Demand = Callable[..., None]
Lists = Sequence[Sequence[torch.Tensor]]
ROWS, EIGHT = 16, 8  # cuBLAS multiplies more rows of bytes than that, and numbers by eights
_FACTORS = 5  # their place behind the weight, of those of bags
_BYTES = "{name}.size(1) needs to be greater than 0 and a multiple of 8, but got {size}"
_ALIKE = "{names} must have same dtype, device, and layout"
_TRUE = "Expected at::native::check_fast_path_restrictions({lists}) to be true, but got false.  "
_HERE = (
    "Expected data.get_device() == {name}.get_device() to be true, but got false.  (Could this error message be "
    "improved?  If so, please report an enhancement request to PyTorch.)"
)
_REDUCTIONS = ("sum", "mean", "max", "min", "prod")
_MASK = "Mask shape should match input. mask: {mask} input: {input}"
_MOMENTS = ("params", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs")


def demanding(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that asks for it."""
    demand = _DEMANDS.get(name) or _DEMANDS.get(name.partition(".")[0])
    if demand is None:
        return run

    def call(*args: Any, **kwargs: Any) -> Any:
        demand(*args, **kwargs)
        return run(*args, **kwargs)

    return call


def _require(right: bool, words: str) -> None:
    if not right:
        raise RuntimeError(words)


def _check_bytes(one: torch.Tensor, other: torch.Tensor, **_: Any) -> None:
    """A product of int8, which cuBLAS has for some sizes."""
    for name, each in (("self", one), ("mat2", other)):
        _require(each.dim() == 2, f"Expected {name} to be of dimension 2 but got {each.dim()}")
    rows, inner = one.shape
    _require(rows > ROWS, f"self.size(0) needs to be greater than {ROWS}, but got {rows}")
    _require(inner > 0 and inner % EIGHT == 0, _BYTES.format(name="self", size=inner))
    _require(inner == other.size(0), f"self.size(1) needs to match mat2.size(0) but got {inner} and {other.size(0)}")
    columns = other.size(1)
    _require(columns > 0 and columns % EIGHT == 0, _BYTES.format(name="mat2", size=columns))


def _alike(lists: Lists) -> bool:
    """Whether what belongs to one parameter lies alike, and all is of one type and device."""
    first = lists[0][0]
    return all(
        (each.dtype, each.device, each.shape, each.stride()) == (first.dtype, first.device, one.shape, one.stride())
        for one, *others in zip(*lists, strict=True)
        for each in (one, *others)
    )


def _check_moments(*given: Any, amsgrad: bool = False, **_: Any) -> None:
    """What a fused Adam goes through at once."""
    lists = given[: len(_MOMENTS) if amsgrad else len(_MOMENTS) - 1]
    names = _MOMENTS[: len(lists)]
    _require(not given[0] or _alike(lists), _ALIKE.format(names=f"{', '.join(names[:-1])}, and {names[-1]}"))


def _check_momenta(params: Any, grads: Any, momenta: Any, **_: Any) -> None:
    """What a fused SGD goes through at once."""
    if momenta:
        _require(_alike((params, grads, momenta)), _TRUE.format(lists=" {params, grads, momentum_buffer_list}"))
    elif params:
        _require(_alike((params, grads)), _TRUE.format(lists="{params, grads}"))


def _check_selected(tensor: torch.Tensor, mask: torch.Tensor, **_: Any) -> None:
    """What is wrong with a mask, before anybody waits for how many it selects."""
    _require(mask.dtype is torch.bool, "masked_select: expected BoolTensor for mask")
    try:
        torch.broadcast_shapes(mask.shape, tensor.shape)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    except RuntimeError:
        one, other = (torch.zeros(()).expand(each.shape) for each in (mask, tensor))
        one + other  # the same in the words of C++


def _check_places(tensor: torch.Tensor, *, out: torch.Tensor) -> None:
    """Where ``nonzero`` is to write, before anybody waits for how many there are."""
    kind = _typed(out.dtype)
    _require(out.dtype is torch.int64, f"Expected object of scalar type Long as out, but got {kind}")


def _check_order(*_: Any, values: torch.Tensor, indices: torch.Tensor, **__: Any) -> None:
    """Where places in an order are to be written."""
    kind = _typed(indices.dtype)
    _require(indices.dtype is torch.int64, f"Expected out tensor to have dtype long int, but got {kind} instead")


def _check_matrix(tensor: torch.Tensor) -> None:
    _require(tensor.dim() == 2, "expected a matrix")


def _check_chosen(tensor: torch.Tensor, dim: int, index: torch.Tensor, **_: Any) -> None:
    """The rows of ``index_select``, of a dimension that there is."""
    if not -tensor.dim() <= dim < max(tensor.dim(), 1):
        return
    _require(index.dim() <= 1, "Index is supposed to be an empty tensor or a vector")
    if index.dtype not in (torch.int64, torch.int32):
        raise NotImplementedError(f"\"index_select_out_cuda_impl\" not implemented for '{TYPES[index.dtype]}'")


def _check_weights(weight: torch.Tensor, *given: Any, **_: Any) -> None:
    """What the rows of bags are multiplied by."""
    factors = given[_FACTORS] if len(given) > _FACTORS else None
    if factors is not None and factors.dtype != weight.dtype:
        raise RuntimeError(f"expected scalar type {TYPES[weight.dtype]} but found {TYPES[factors.dtype]}")


def _check_factor(*_: Any, check_errors: bool = False, **__: Any) -> None:
    """Whether a matrix has a factor: who asks for that waits for the answer."""
    if check_errors:
        forbid_in_capture(current_stream())


def _check_segments(data: torch.Tensor, reduce: str, *, lengths: Any = None, **_: Any) -> None:
    """The name of a sum of segments, and where their lengths are."""
    if reduce not in _REDUCTIONS:
        one = torch.ones(1)
        torch.segment_reduce(one, reduce, lengths=one.long(), unsafe=True)  # raises, in torch's words
    _require(lengths is None or lengths.device == data.device, _HERE.format(name="lengths_value"))


def _check_channels(
    tensor: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, least: int, most: int
) -> None:
    """How many scales there are, before anybody waits for the smallest zero point."""
    if current_stream().capture is not None:
        zeros = torch.full(zero_point.shape, least, dtype=zero_point.dtype)
        scales = torch.ones(scale.shape, dtype=scale.dtype)
        torch.fake_quantize_per_channel_affine(torch.zeros(()).expand(tensor.shape), scales, zeros, axis, least, most)


def _check_padding(source: torch.Tensor, *given: Any, heads: int, places: tuple[int, int]) -> None:
    """A mask of places that are padded, of which attention has one for each place of each row."""
    mask, kind = (given[place - 1] if place <= len(given) else None for place in places)
    if mask is not None and kind == 1 and source.dim() == 3 and mask.shape != source.shape[:2]:
        rows, n, _ = source.shape
        raise RuntimeError(_MASK.format(mask=list(mask.shape), input=[rows, given[heads - 1], n, n]))


def _typed(dtype: torch.dtype) -> str:
    """A type as C++ names it: as the CPU tells of it where it would write."""
    try:
        torch.sort(torch.empty(0), out=(torch.empty(0), torch.empty(0, dtype=dtype)))
    except RuntimeError as error:
        return str(error).rpartition("but got ")[2].removesuffix(" instead")
    return "long int"


_CHECKED = ("linalg_cholesky_ex", "linalg_inv_ex", "linalg_lu_factor_ex", "linalg_ldl_factor_ex", "_linalg_solve_ex")
_DEMANDS: dict[str, Demand] = {
    **dict.fromkeys(_CHECKED, _check_factor),
    "_int_mm": _check_bytes,
    "_native_multi_head_attention": partial(_check_padding, heads=4, places=(9, 12)),
    "_transformer_encoder_layer_fwd": partial(_check_padding, heads=2, places=(18, 19)),
    "segment_reduce": _check_segments,
    "fake_quantize_per_channel_affine_cachemask": _check_channels,
    "_fused_adam_": _check_moments,
    "_fused_adamw_": _check_moments,
    "_fused_sgd_": _check_momenta,
    "_embedding_bag": _check_weights,
    "_embedding_bag_forward_only": _check_weights,
    "index_select": _check_chosen,
    "masked_select": _check_selected,
    "nonzero.out": _check_places,
    "sort.values_stable": _check_order,
    "topk.values": _check_order,
    "trace": _check_matrix,
}
