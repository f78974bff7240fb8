"""Sparse tensors: torch's own, over indices and values that are dense tensors of the device.

What torch does by calls of dense operations is done so. Its other kernels are loops in C++: these are computed on the
CPU from the parts, and in a capture are nodes over the parts where they give dense tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from paramgraph_kit.driver.asked import COUNTING
from paramgraph_kit.driver.torch_names import torch_name

from .kernels import Kernel, pageable_copy_forbidden
from .libraries import use
from .machine import CPU_KEY
from .stream import current_stream
from .ties import thrust
from .under_way import forbid_in_capture

aten = torch.ops.aten
_KEYS, _KEY = torch_name("DispatchKeySet"), torch_name("DispatchKey")
COO, CSR = "SparsePrivateUse1", "SparseCsrPrivateUse1"
_ON_CPU = {COO: _KEYS(_KEY.SparseCPU), CSR: _KEYS(_KEY.SparseCsrCPU)}
_OF_VALUES = """abs asin asinh atan atanh ceil deg2rad erf erfinv expm1 floor frac isinf isnan isneginf isposinf log1p
nan_to_num neg rad2deg relu round sgn sign signbit sin sinh sqrt tan tanh trunc""".split()  # noqa: SIM905 - shorter so
# Those whose kernels for the CPU are made of calls of dense operations.
BY_PARTS = {
    COO: (
        """_coalesced_ _dimI _dimV _indices _nnz _sparse_broadcast_to _sparse_coo_tensor_with_dims _values cat clone
        _sparse_coo_tensor_with_dims_and_tensors _to_dense any copy_ copy_sparse_to_sparse_ dense_dim
        empty.memory_format empty_like indices is_coalesced mv narrow_copy native_norm norm.ScalarOpt_dim permute
        native_norm.ScalarOpt_dim_dtype norm.ScalarOpt_dim_dtype pow.Tensor_Scalar resize_as_sparse_ sparse_dim
        sparse_resize_ sparse_resize_and_clear_ _to_sparse_csr sum sum.dim_IntList unsqueeze values zero_""".split()  # noqa: SIM905 - shorter so
    ),
    CSR: (
        """_nnz ccol_indices clone col_indices copy_ crow_indices dense_dim empty.memory_format empty_like mul.Scalar
        mul_.Scalar resize_as_sparse_ row_indices sparse_dim sum values zero_""".split()  # noqa: SIM905 - shorter so
    ),
}
# Those that loop over numbers.
LOOPS = {
    COO: (
        """addmm addmm_ bmm hspmm index_select mm _sparse_log_softmax _sparse_softmax
        _sparse_log_softmax_backward_data _sparse_mask_projection _sparse_softmax_backward_data _sparse_sparse_matmul
        _sparse_sum_backward _to_sparse_bsc _to_sparse_bsr _to_sparse_csc""".split()  # noqa: SIM905 - shorter so
    ),
    CSR: (
        """add.Tensor addmm mm mv sparse_mask sparse_sampled_addmm _to_dense _to_sparse _to_sparse.sparse_dim
        _to_sparse_bsc _to_sparse_bsr _to_sparse_csc _to_sparse_csr""".split()  # noqa: SIM905 - shorter so
    ),
}
MAKING = ("_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_bsc", "_to_sparse_bsr", "_to_sparse_csc", "_to_sparse_csr")
# Those of these that are cuSPARSE's.
CUSPARSE = "addmm addmm_ bmm hspmm mm mv sparse_sampled_addmm _sparse_sparse_matmul".split()  # noqa: SIM905 - shorter so
THRUST = ("_sparse_softmax", "_sparse_log_softmax")  # of COO, where Thrust's algorithms wait
COUNTED = (*COUNTING, "_to_sparse_csc")  # how many numbers these give of COO is asked
_SORTED = 2  # numbers that have an order
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
# What the gradient of bags is given, whether it is divided by how often rows are asked for, and whether it is sparse.
_BAGS, _LARGEST, _OFTEN, _SPARSE = 3, 5, 7, 9
INSTEAD = "make them dense, or use a GPU"
UNKNOWN = "the simulated device has no sparse {name} in a capture: how many numbers it gives is not known there"


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is not torch.strided


class _Form:
    """What of a sparse tensor is no tensor, to make another of parts that are like its own."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.layout, self.size = tensor.layout, tuple(tensor.shape)
        self.coalesced = self.layout is torch.sparse_coo and tensor.is_coalesced()

    @staticmethod
    def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
        """Indices and values."""
        if tensor.layout is torch.sparse_coo:
            return [tensor._indices(), tensor._values()]
        return [*(getattr(tensor, name)() for name in _COMPRESSED[tensor.layout]), tensor.values()]

    def of(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The sparse tensor of such parts."""
        made: Any = aten._sparse_compressed_tensor_unsafe.default
        how: dict[str, Any] = {"dtype": parts[-1].dtype, "layout": self.layout, "device": parts[-1].device}
        if self.layout is torch.sparse_coo:
            made, how = aten._sparse_coo_tensor_unsafe.default, {"is_coalesced": self.coalesced}
        found: torch.Tensor = made(*parts, self.size, **how)
        return found


class _Parts(Kernel):
    """One call of an operation, with the parts of sparse operands in place of those, and of its results."""

    def __init__(self, op: Any, args: Sequence[Any]) -> None:
        super().__init__(op, self._whole)
        self.forms = {n: _Form(each) for n, each in enumerate(args) if _is_sparse(each)}
        self.made: list[_Form | None] = []

    def _whole(self, *args: Any, **kwargs: Any) -> Any:
        flat = [each for value in args for each in (value if isinstance(value, list) else [value])]
        if any(isinstance(each, torch.Tensor) and each.is_meta for each in flat):
            raise NotImplementedError("sizes of sparse tensors are those of the CPU's kernel")
        # Torch's loops add the offset in a storage twice: they get storages that begin with their tensor.
        given = [_alone(each) for each in args]
        try:
            found = self.op(
                *(self.forms[n].of(each) if n in self.forms else each for n, each in enumerate(given)), **kwargs
            )
        except RuntimeError as error:  # of the stand-ins for a capture MKL makes nothing
            if "MKL error" not in str(error) or current_stream().capture is None:
                raise
            raise NotImplementedError(UNKNOWN.format(name=self.op._opname)) from error
        results = list(found) if isinstance(found, (list, tuple)) else [found]
        if self.in_place:
            results = [args[0].copy_(results[0])]
        self.made = [_Form(each) if _is_sparse(each) else None for each in results]
        if any(self.made) and current_stream().capture is not None:
            raise NotImplementedError(UNKNOWN.format(name=self.op._opname))
        return [part for each in results for part in (_Form.parts(each) if _is_sparse(each) else [each])]

    def _returned(self, values: list[Any]) -> Any:
        left = iter(values)
        found = []
        for form in self.made:
            count = 1 if form is None else 2 if form.layout is torch.sparse_coo else 3
            parts = [next(left) for _ in range(count)]
            found.append(parts[0] if form is None else form.of(parts))
        return found[0] if len(found) == 1 else tuple(found)


def _alone(value: Any) -> Any:
    if isinstance(value, list):
        return [_alone(each) for each in value]
    return value.clone() if isinstance(value, torch.Tensor) else value


def by_parts(op: Any, key: str) -> Callable[..., Any]:
    """An operation as the CPU does it, whose calls of dense operations are the device's."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return op.redispatch(_ON_CPU[key], *args, **kwargs)

    return call


def loop(op: Any) -> Callable[..., Any]:
    """An operation that loops over numbers; products are cuSPARSE's, of what is coalesced."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if op._opname in CUSPARSE:
            args = tuple(each.coalesce() if _is_coo(each) else each for each in args)
            use("cuSPARSE")
            if any(isinstance(each, torch.Tensor) and each.layout is torch.sparse_csc for each in args):
                pageable_copy_forbidden(current_stream())  # columns are made rows, on the host
        if op._opname in THRUST and _is_coo(args[0]):
            thrust("transform")
        if op._opname in COUNTED and _is_coo(args[0]):
            forbid_in_capture(current_stream())
        given = [_Form.parts(each) if _is_sparse(each) else each for each in args]
        return _Parts(op, args)(*given, **kwargs)

    return call


def _is_coo(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo


def coalesce(tensor: torch.Tensor) -> torch.Tensor:
    """``aten::_coalesce``: Thrust sorts what is more than one number, and waits."""
    if tensor._nnz() < _SORTED:
        found: torch.Tensor = tensor.clone()
        aten._coalesced_.default(found, True)
        return found
    thrust("transform")
    return loop(aten._coalesce.default)(tensor)  # type: ignore[no-any-return]


def add(one: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    """``aten::add.Tensor``: of two sparse ones CUDA keeps the numbers of both, one behind the other."""
    if not (_is_sparse(one) and _is_sparse(other)):
        dense, sparse = (other, one) if _is_sparse(one) else (one, other)
        if _is_sparse(one):
            raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
        return add_(dense.clone(), sparse, alpha=alpha)
    if one.shape != other.shape:
        raise RuntimeError(
            f"add: expected 'self' and 'other' to have same size, but self has size {list(one.shape)} while other has "
            f"size {list(other.shape)} (FYI: dense-sparse addition does not currently support broadcasting)"
        )
    indices = torch.cat([one._indices(), other._indices()], 1)
    values = torch.cat([one._values(), other._values() if alpha == 1 else other._values() * alpha])
    found: torch.Tensor = aten._sparse_coo_tensor_unsafe.default(indices, values, one.shape)
    return found.coalesce() if found._nnz() > found.numel() else found


def add_(target: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    """``aten::add_.Tensor``: into a dense tensor, or a sparse one."""
    operation = into(add) if _is_sparse(target) else loop(aten.add_.Tensor)
    found: torch.Tensor = operation(target, other, alpha=alpha)
    return found


def mul(one: Any, other: Any) -> torch.Tensor:
    """``aten::mul.Tensor``: by one number, or a dense tensor, the places stay."""
    sparse, factor = (one, other) if _is_sparse(one) else (other, one)
    *places, values = _Form.parts(sparse)
    if isinstance(factor, torch.Tensor) and factor.dim():
        if factor is sparse and _is_coo(sparse) and sparse.is_coalesced():  # the places that both have are its own
            return _Form(sparse).of([*places, values * values])
        alike = not _is_sparse(factor) and _is_coo(sparse) and factor.shape == sparse.shape
        if not alike:
            found: torch.Tensor = loop(aten.mul.Tensor)(one, other)
            return found
        factor = factor[tuple(places[0])]
    factor = factor.to_dense() if _is_sparse(factor) else factor
    return _Form(sparse).of([*places, values * factor])


def mask(tensor: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """``aten::sparse_mask``: the numbers of a dense tensor where a sparse one has some."""
    tensor = tensor.to_dense() if _is_coo(tensor) else tensor
    if tensor.shape != by.shape:
        found: torch.Tensor = loop(aten.sparse_mask.default)(tensor, by)
        return found
    return _Form(by).of([by._indices(), tensor[tuple(by._indices())]])


def divide(one: torch.Tensor, other: Any) -> torch.Tensor:
    """``aten::div.Tensor``: by one number alone."""
    if isinstance(other, torch.Tensor) and other.dim():
        raise RuntimeError(
            "Sparse division requires a scalar or zero-dim dense tensor divisor "
            f"(got shape {list(other.shape)} for divisor)"
        )
    return _Form(one).of([one._indices(), one._values() / other])


def into(operation: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """The same into its first operand, a sparse one."""

    def call(target: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return aten.copy_sparse_to_sparse_.default(target, operation(target, *args, **kwargs))

    return call


def scaling(name: str, operation: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """The same where the numbers lie, if it is by one number."""

    def call(target: torch.Tensor, other: Any) -> Any:
        if isinstance(other, torch.Tensor) and (other.dim() or not _is_sparse(target)):
            return into(operation)(target, other)
        getattr(target._values(), name)(other)
        return target

    return call


def multiplied_into(one: Any, other: Any, *, out: torch.Tensor) -> torch.Tensor:
    """``aten::mul.out``."""
    found: torch.Tensor = scaling("mul_", mul)(one, other) if out is one else into(lambda _: mul(one, other))(out)
    return found


def subtract(one: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    """``aten::sub.Tensor``."""
    return add(one, other, alpha=-alpha)


def subtract_(target: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    """``aten::sub_.Tensor``."""
    return add_(target, other, alpha=-alpha)


def _dense_made(op: Any) -> Callable[..., Any]:
    """A dense tensor made sparse: by the places of what is not zero, for whose number the host waits."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return op.redispatch(CPU_KEY, *args, **kwargs)

    return call


def _by_how_often(*given: Any) -> torch.Tensor:
    """Gradients of bags' rows, each divided by how often its row is asked for: the CPU counts others [H200]."""
    found: torch.Tensor = aten._embedding_bag_backward.default(*given[:_OFTEN], False, *given[_OFTEN + 1 :])
    counts = torch.bincount(given[1], minlength=len(found)).clamp_(min=1)
    return found / counts[:, None].to(found.dtype)


def _bag_backward(dense: Any) -> Callable[..., Any]:
    """``aten::_embedding_bag_backward``, whose gradient may be sparse."""
    often = Kernel(aten._embedding_bag_backward.default, _by_how_often)

    def call(*given: Any) -> Any:
        if not given[_SPARSE]:
            return (often if given[_OFTEN] else dense)(*given)
        kept = [each for n, each in enumerate(given) if n not in (_LARGEST, _SPARSE)]
        _, indices, offsets, bags, *_ = given
        if indices.numel() and not bags.numel():  # which bag each is of, as torch finds it out then
            places = torch.arange(indices.numel(), dtype=offsets.dtype, device=offsets.device)
            kept[_BAGS] = torch.bucketize(places, offsets, right=True) - 1
        return aten._embedding_bag_sparse_backward.default(*kept)

    return call


def _from_the_first(op: Any) -> Callable[..., Any]:
    """Bags of rows: on CUDA the first begins at the first row, wherever it is told to."""

    def run(weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, *rest: Any) -> Any:
        if not offsets.is_meta and offsets.numel() and int(offsets[0]):
            offsets = offsets.clone()
            offsets[0] = 0
        return op(weight, indices, offsets, *rest)

    return run


def making_sparse(kernels: Mapping[str, Any]) -> dict[str, Any]:
    """Kernels of operations of dense tensors that make sparse ones."""
    found = {name: _dense_made(_overload(name)) for name in MAKING}
    for op in (aten._embedding_bag.default, aten._embedding_bag_forward_only.default):
        found[op._opname] = Kernel(op, _from_the_first(op))
    return found | {"_embedding_bag_backward": _bag_backward(kernels["_embedding_bag_backward"])}


OWN: dict[str, Callable[..., Any]] = {
    "_coalesce": coalesce,
    "add.Tensor": add,
    "add_.Tensor": add_,
    "div.Tensor": divide,
    "div_.Tensor": scaling("div_", divide),
    "mul.Tensor": mul,
    "mul_.Tensor": scaling("mul_", mul),
    "mul.out": multiplied_into,
    "sparse_mask": mask,
    "sub.Tensor": subtract,
    "sub_.Tensor": subtract_,
}


def install_sparse(library: Any) -> None:
    """Register all of these, and refuse what else the CPU does with sparse tensors."""
    has_kernel = torch_name("_dispatch_has_kernel_for_dispatch_key")
    known = [name[6:] for name in torch_name("_dispatch_get_all_op_names")() if name.startswith("aten::")]
    unary = {each for name in _OF_VALUES for each in (name, f"{name}_", f"{name}.out")}
    for key, on_cpu in ((COO, "SparseCPU"), (CSR, "SparseCsrCPU")):
        for name in known:
            if (key == COO and name in OWN) or name == "mul.Tensor":
                library.impl(name, OWN[name], key)
            elif name in LOOPS[key]:
                library.impl(name, loop(_overload(name)), key)
            elif name in BY_PARTS[key] or (name in unary and has_kernel(f"aten::{name}", on_cpu)):
                library.impl(name, by_parts(_overload(name), key), key)
            elif has_kernel(f"aten::{name}", on_cpu):
                library.impl(name, _refused(name.partition(".")[0]), key)


def _refused(name: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"the simulated device has no {name} of sparse tensors: {INSTEAD}")

    return call


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")
