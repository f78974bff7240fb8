"""cuBLAS, cuDNN and cuSOLVER: nothing of theirs runs here, but their handles are made at the first call of a thread.

Making one allocates with cudaMalloc, so a capture whose mode forbids that fails then [H200, torch 2.11]. A handle is
its thread's until that ends, and then the next one's that needs one.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from paramgraph_kit.driver.torch_names import torch_name

from . import autograd
from .devices import check_devices
from .kernels import Kernel, pageable_copy_forbidden
from .machine import DEVICE_NAME, machine
from .matrices import eigenvalues, least_squares, without_pivots
from .norms import batch_norm, batch_norm_backward, check_scale, of_cudnn
from .not_known import not_known
from .pinned import forget as forget_blocks
from .refused import check_convolved, check_types
from .solver import CUSOLVER, INTERNAL, UNSOLVED, solver_error, tell_late
from .stream import current_stream
from .transforms import TRANSFORMS, forget_plans, transform_kernel
from .under_way import forbid_in_capture, forbidding

NO_HANDLE = {
    "cuBLAS": "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN": "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "cuSOLVER": CUSOLVER.format(status=INTERNAL, call="cusolverDnCreate(handle)", nan=""),
    "cuSPARSE": "CUDA error: initialization error when calling `cusparseCreate(handle)`",
}

PRODUCTS = (
    *("addbmm", "addmm", "addmv", "baddbmm", "bmm", "dot", "mm", "vdot"),
    *("_int_mm", "_scaled_mm", "linalg_solve_triangular", "triangular_solve"),
    *("_native_multi_head_attention", "_transformer_encoder_layer_fwd"),
)
SOLVERS = (
    *("_linalg_det", "_linalg_slogdet", "_linalg_solve_ex", "linalg_inv_ex", "linalg_lu", "linalg_lu_factor_ex"),
    *("linalg_lu_solve", "cholesky", "cholesky_inverse", "_cholesky_solve_helper", "linalg_cholesky_ex"),
    *("geqrf", "linalg_householder_product", "linalg_ldl_factor_ex", "linalg_qr", "ormqr"),
)
# Of no numbers at all, these ask for a handle all the same, where others have nothing to do.
EVEN_FOR_NOTHING = ("dot", "vdot", "geqrf", "linalg_qr", "linalg_lstsq")
# For many matrices at once these are cuBLAS's.
IN_BATCHES = ("_linalg_det", "_linalg_slogdet", "_linalg_solve_ex", "linalg_inv_ex", "linalg_lu", "linalg_lu_factor_ex")
BY_ELIMINATION = ("linalg_lu", "linalg_lu_factor_ex")
# These solve by triangles, which are cuBLAS's, too.
BY_TRIANGLES, FEW_ROWS = ("_linalg_solve_ex", "linalg_inv_ex"), 64
PLACES = (torch.int32, torch.int64)  # types of what tells rows
LU_SOLVE = 3  # arguments of linalg_lu_solve that stand by place: factors, pivots, right sides

DRIVERS = ("gesvd", "gesvdj", "gesvda")  # of singular values
SVD_PAGE = "Check doc at https://pytorch.org/docs/stable/generated/torch.linalg.svd.html"
UNCONVERGED = (
    "linalg.eigh: The algorithm failed to converge because the input matrix is ill-conditioned or has too many "
    "repeated eigenvalues (error code: 1)."
)
UNLIKE_TYPES = "expected m1 and m2 to have"  # of two matrices, as the CPU has it

PART_OF = "paramgraph_kit sim library"  # of a backward node that is part of a kernel: whose, or "" for nobody's

_free: Counter[str] = Counter()


class _Handles:
    """Those of one thread."""

    def __init__(self) -> None:
        self.of: set[str] = set()
        self.recurrent = False
        _everyone.add(self)

    def __del__(self, free: Counter[str] = _free) -> None:
        free.update(self.of)


_everyone: weakref.WeakSet[_Handles] = weakref.WeakSet()
_thread = threading.local()


def _mine() -> _Handles:
    found: _Handles | None = getattr(_thread, "handles", None)
    if found is None:
        found = _thread.handles = _Handles()
    return found


def use(library: str, check: Callable[[], None] = lambda: None) -> None:
    """Call a library on this thread, which makes a handle if it has none; ``check`` comes before what is forbidden.

    Raises:
        RuntimeError: a capture forbids that on this thread; it is spoiled.
    """
    mine = _mine()
    if mine.recurrent:
        return
    if autograd.task_id() != -1 and (node := autograd.current_node()) is not None:
        library = node.metadata.get(PART_OF, library)
    if not library or library in mine.of:
        return
    if _free[library]:
        _free[library] -= 1
    elif (capture := forbidding()) is not None:
        check()
        capture.fail(900)
        raise RuntimeError(NO_HANDLE[library])
    mine.of.add(library)


def handle(library: str) -> int:
    """The number of this thread's handle, made if there is none; raises as ``use``."""
    use(library)
    return id(_mine())


def forget() -> None:
    """Have no handles on any thread, no plans, no graphs and no memory to serve again, as in a fresh process."""
    machine().allocator.begin_anew()
    for generator in list(machine().generators):
        machine().take_state(generator)
    forget_blocks()
    forget_plans()
    _tried.clear()
    once.clear()
    for handles in list(_everyone):
        handles.of.clear()
    _free.clear()


def library_kernel(op: Any, library: str) -> Callable[..., Any]:
    """An operation that is a call of a library."""
    factors = op._opname == "linalg_cholesky_ex"
    doubt = _factor_doubt if factors else no_minus if op._opname in ("mm", "bmm") else None
    by: Callable[..., Any] | None = partial(_factor, op) if factors else None
    run = Kernel(op, without_pivots(op) if op._opname in BY_ELIMINATION else by, doubt)
    batched = op._opname in IN_BATCHES

    def call(*args: Any, **kwargs: Any) -> Any:
        first = args[0]
        try:
            if first.numel() or op._opname in EVEN_FOR_NOTHING:
                which = "cuBLAS" if (batched and first.dim() > 2) or _solved_by_triangles(op, args) else library
                use(which, lambda: _check(op, args, kwargs))
                tell_late(op._opname, args, kwargs)
                if op._opname in BY_TRIANGLES and first.size(-1) < FEW_ROWS:
                    use("cuBLAS")
            return run(*args, **kwargs)
        except RuntimeError as error:
            if not str(error).startswith(UNLIKE_TYPES):
                raise
            words = str(error).replace(UNLIKE_TYPES, "expected mat1 and mat2 to have")
        raise RuntimeError(words)

    return call


def _solved_by_triangles(op: Any, args: Sequence[Any]) -> bool:
    """Whether ``linalg.lu_solve`` is cuBLAS's: but for one or two larger systems, which are cuSOLVER's."""
    if op._opname != "linalg_lu_solve" or len(args) < LU_SOLVE:
        return False
    n, several = int(args[0].size(-1)), int(args[2].size(-1))
    return n == several or n < FEW_ROWS or int(args[2].numel()) > 2 * n * several


def _factor(op: Any, matrix: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """``aten::linalg_cholesky_ex``: what cuSOLVER leaves of one that has no factor is not known, and no number here."""
    found = op(matrix, *args, **kwargs)
    if not matrix.is_meta and (failed := found[1] != 0).any():
        part = torch.triu if kwargs.get("upper", bool(args and args[0])) else torch.tril
        found[0][failed] = part(torch.full_like(found[0][failed], torch.nan))
    return found


def no_minus(args: list[Any], kwargs: dict[str, Any], results: list[Any]) -> None:
    """No product of matrices is -0.0, as cuBLAS adds to 0; nor is what a soft threshold takes away whole [H200]."""
    results[0].add_(0)


def _factor_doubt(args: list[Any], kwargs: dict[str, Any], results: list[Any]) -> None:
    """Said by replays: eagerly who does not look at ``info`` himself is told by an error."""
    if machine().replaying and (results[1] != 0).any():
        not_known("what cuSOLVER leaves of a matrix that has no Cholesky factor: NaN stands for it here")


def _check(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise what torch has against devices, sizes and types, at which it looks before it asks for a handle."""
    check_devices(op, args, kwargs)
    metas, hosts = (
        tree_map_only(torch.Tensor, partial(_like, device=place), (tuple(args), kwargs)) for place in ("meta", "cpu")
    )
    try:
        op(*metas[0], **metas[1])
        kinds = {each.dtype for each in args if isinstance(each, torch.Tensor)}
        fits = len(kinds if op._opname in PRODUCTS else kinds.difference(PLACES)) == 1
    except (RuntimeError, ValueError):
        fits = False
    if not fits:
        op(*hosts[0], **hosts[1])


def _like(tensor: torch.Tensor, device: str) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)


def convolution_kernel(op: Any) -> Callable[..., Any]:
    """A convolution, forward or backward: cuDNN's, or a product where that is off."""
    run = Kernel(op)

    def call(*args: Any, **kwargs: Any) -> Any:
        if op._opname == "convolution":
            check_types(args[0], args[1], args[2], lambda: _check_places(op, args))
            if (step := min(args[5])) <= 0:
                raise RuntimeError(f"Dilation must be greater than 0 but got {step}")
        if op._opname == "convolution" and not torch.backends.cudnn.enabled:
            check_convolved(args[0])
        if args[0].numel() and not _is_depthwise(op, args):
            check = partial(_check_convolution, op, args, kwargs)
            use("cuDNN" if torch.backends.cudnn.enabled else "cuBLAS", check)
            if torch.backends.cudnn.enabled:
                _try_kernels((op._opname, *map(_shape, args)))
        if op._opname == "convolution":  # cuDNN's handle is asked for first
            check_convolved(args[0])
        return run(*args, **kwargs)

    return call


def _check_convolution(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise what torch has against a convolution, at which it looks before it asks for a handle."""
    if op._opname == "convolution":
        _check(op, args, kwargs)
        _check_places(op, args)


def _check_places(op: Any, args: Sequence[Any]) -> None:
    """Raise what torch has against a convolution's sizes, at which it looks before types and devices."""
    same = partial(torch.empty, dtype=torch.float32, device="cpu")
    op(*tree_map_only(torch.Tensor, lambda each: same(each.shape), tuple(args)))


def _is_depthwise(op: Any, args: Sequence[Any]) -> bool:
    """Whether a convolution of each channel by itself is a kernel of torch's own, and no library's."""
    forward = op._opname == "convolution"
    tensor, weight = args[:2] if forward else args[1:3]
    transposed, groups = (args[6], args[8]) if forward else (args[7], args[9])
    if (
        transposed
        or groups < 2
        or tensor.dim() not in (3, 4, 5)
        or weight.dim() != tensor.dim()
        or tensor.shape[1] != groups
        or weight.shape[0] % groups
    ):
        return False
    if not torch.backends.cudnn.enabled:
        return True
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim(), torch.contiguous_format)
    in_order = any(each.is_contiguous(memory_format=last) and not each.is_contiguous() for each in (tensor, weight))
    return not in_order and (tensor.dtype != torch.float16 or groups < CUDNN_CHANNELS)


IMAGES = 4  # dimensions
TRAINED = 4  # behind the weight of a batch norm backward: whether it is one of training
CUDNN_CHANNELS = 32  # from so many on halves may be cuDNN's
_tried: set[tuple[Any, ...]] = set()  # convolutions for which a kernel was chosen in this process


def _shape(value: Any) -> Any:
    """What a plan of cuDNN's depends on, of an argument."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype
    return tuple(value) if isinstance(value, (list, tuple)) else value


def _try_kernels(what: tuple[Any, ...]) -> None:
    """Time the kernels for a convolution that was not seen before, timed or not, which no capture can."""
    if what not in _tried and torch.backends.cudnn.benchmark and (capture := current_stream().capture) is not None:
        capture.check()
        capture.fail(900)
        raise RuntimeError("FIND was unable to find an engine to execute this computation")
    _tried.add(what)


def norm_kernel(op: Any) -> Callable[..., Any]:
    """A batch norm: cuDNN's, where there are places beside the batch and the channels."""
    run = Kernel(op, batch_norm if op is torch.ops.aten.native_batch_norm.default else None)

    def call(tensor: torch.Tensor, weight: Any, bias: Any, *args: Any, **kwargs: Any) -> Any:
        if of_cudnn(tensor, weight, bias) and tensor.numel():
            use("cuDNN")
            check_scale(tensor, weight)
        return run(tensor, weight, bias, *args, **kwargs)

    return call


def norm_backward_kernel(op: Any) -> Callable[..., Any]:
    """A batch norm backward: cuDNN's, behind one of cuDNN's in training."""
    run = Kernel(op, batch_norm_backward)

    def call(grad: torch.Tensor, tensor: torch.Tensor, weight: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) > TRAINED and args[TRAINED] and of_cudnn(tensor, weight, weight) and tensor.numel():
            use("cuDNN")
        return run(grad, tensor, weight, *args, **kwargs)

    return call


def sampling_kernel(op: Any) -> Callable[..., Any]:
    """Sampling at places of a grid: cuDNN's, between four neighbours, zeros outside, and corners aligned."""
    run = Kernel(op)
    first = [each.name for each in op._schema.arguments].index("input")

    def call(*args: Any, **kwargs: Any) -> Any:
        tensor, _, interpolation, padding, aligned = args[first : first + 5]
        if torch.backends.cudnn.enabled and tensor.numel() and (interpolation, padding, aligned) == (0, 0, True):
            use("cuDNN")
        return run(*args, **kwargs)

    return call


def unsolved_kernel(op: Any) -> Callable[..., Any]:
    """An operation that cuSOLVER fails to do in a capture, and ruins it."""
    by = {"_linalg_eigvals": eigenvalues, "_linalg_svd": _svd_in_rows}
    run = Kernel(op, by.get(op._opname) if op._overloadname == "default" else None)

    def call(matrix: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if current_stream().capture is not None and op is torch.ops.aten._linalg_eigh.default:
            op(_like(matrix, "meta"), *args, **kwargs)  # raises for sizes, and for a triangle that is none
        if not matrix.numel():
            if op._opname == "_linalg_eigvals":  # whether they were found
                forbid_in_capture(current_stream())
            return run(matrix, *args, **kwargs)
        use("cuSOLVER")
        if op._opname != "linalg_ldl_factor_ex" or current_stream().capture is None:  # which fails there all the same
            tell_late(op._opname, (matrix, *args), kwargs)
        if op._opname == "_linalg_eigh" and matrix.dim() > 2:
            forbid_in_capture(current_stream())
        if (capture := current_stream().capture) is not None:
            capture.check()
            capture.fail(900)
            machine().solver_failed = op._opname != "linalg_ldl_factor_ex"
            raise solver_error(UNSOLVED[op._opname], matrix.dtype, INTERNAL)
        if op._opname == "_linalg_eigh" and not machine().twin(matrix).isfinite().all():
            raise torch.linalg.LinAlgError(UNCONVERGED)  # type: ignore[attr-defined]  # torch leaves it out
        return run(matrix, *args, **kwargs)

    return call


def waiting_kernel(op: Any, library: str, waits: Callable[..., bool]) -> Callable[..., Any]:
    """An operation that is a call of a library, after which the host waits where ``waits`` says so of its operands."""
    run = Kernel(op, least_squares if op is torch.ops.aten.linalg_lstsq.default else None)

    def call(*args: Any, **kwargs: Any) -> Any:
        if args[0].numel() or op._opname in EVEN_FOR_NOTHING:
            use(library)
            tell_late(op._opname, args, kwargs)
            if waits(*args):
                forbid_in_capture(current_stream())
        return run(*args, **kwargs)

    return call


# Old cholesky looks whether it succeeded; matrices at once are solved by way of arrays of pointers, made on the host.
WAITS: dict[str, Callable[..., bool]] = {
    "cholesky": lambda *_: True,
    "_cholesky_solve_helper": lambda right, factor, *_: bool(right.dim() > 2),
    "cholesky_inverse": lambda matrix, *_: bool(matrix.dim() > 2),
    "linalg_ldl_solve": lambda *_: True,
    "linalg_lstsq": lambda *_: True,
}


def svd(
    matrix: torch.Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> Any:
    """``aten::_linalg_svd``: CUDA's default copies pageable memory; CPU's kernel knows none of cuSOLVER's drivers."""
    if not matrix.numel():
        return _svd(matrix, full_matrices, compute_uv)
    if driver not in (None, *DRIVERS):
        raise RuntimeError(f"torch.linalg.svd: unknown svd driver {driver} in svd_cusolver computation. {SVD_PAGE}")
    use("cuSOLVER")
    tell_late("_linalg_svd", (matrix,), {"driver": driver})
    if driver == "gesvd":
        return _svd_unsolved(matrix, full_matrices, compute_uv)
    pageable_copy_forbidden(current_stream(), after="svd")
    if machine().twin(matrix).isfinite().all():
        return _svd(matrix, full_matrices, compute_uv)
    found = _svd(torch.zeros_like(matrix), full_matrices, compute_uv)
    return tuple(each.fill_(torch.nan) for each in found)


def svd_into(*args: Any, U: torch.Tensor, S: torch.Tensor, Vh: torch.Tensor, **kwargs: Any) -> Any:  # noqa: N803 - aten's
    """``aten::_linalg_svd.U``: the same into given tensors."""
    for out, value in zip((U, S, Vh), svd(*args, **kwargs), strict=True):
        if out.shape != value.shape:
            out.resize_(value.shape)
        out.copy_(value)
    return U, S, Vh


def _svd_in_rows(*args: Any, **kwargs: Any) -> Any:
    """The last of the three lies in rows, as cuSOLVER gives its transpose in columns [H200]."""
    u, s, v = torch.ops.aten._linalg_svd.default(*args, **kwargs)
    return u, s, v.contiguous()


_svd = Kernel(torch.ops.aten._linalg_svd.default, _svd_in_rows)
_svd_unsolved = unsolved_kernel(torch.ops.aten._linalg_svd.default)


def _forms(name: str) -> Iterator[tuple[str, Any]]:
    """(full name, overload) of an operation that takes and makes tensors, and of those that write into given ones."""
    packet = getattr(torch.ops.aten, name, None)  # torch 2.15 has no cholesky of its own any more
    has_kernel = torch_name("_dispatch_has_kernel_for_dispatch_key")
    for overload in packet.overloads() if packet is not None else ():
        op = getattr(packet, overload)
        full = name if overload == "default" else f"{name}.{overload}"
        takes_results = overload == "no_stats" or any(each.is_out for each in op._schema.arguments)
        if overload == "default" or (takes_results and has_kernel(f"aten::{full}", "CPU")):
            yield full, op


def library_kernels() -> dict[str, Any]:
    """Every operation that is a call of a library, by its name."""
    found: dict[str, Any] = {}

    def kernels(names: Iterable[str], make: Callable[[Any], Any]) -> None:
        for name in names:
            found.update((full, make(op)) for full, op in _forms(name))

    for names, library in ((PRODUCTS, "cuBLAS"), (SOLVERS, "cuSOLVER")):
        kernels((*names, *(f"{name}_" for name in names)), partial(library_kernel, library=library))
    kernels(("_linalg_eigh", "_linalg_eigvals", "linalg_ldl_factor_ex"), unsolved_kernel)
    found["_linalg_svd"], found["_linalg_svd.U"] = svd, svd_into
    for name, waits in WAITS.items():
        kernels((name,), partial(waiting_kernel, library="cuSOLVER", waits=waits))
    kernels(("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"), norm_kernel)
    found["native_batch_norm_backward"] = norm_backward_kernel(torch.ops.aten.native_batch_norm_backward.default)
    kernels(("grid_sampler_2d", "grid_sampler_2d_backward"), sampling_kernel)
    kernels(TRANSFORMS, transform_kernel)
    kernels(("convolution", "convolution_backward"), convolution_kernel)
    return found


def install_convolutions() -> None:
    """Let who traces know that a convolution of images that lie channels last gives such, as cuDNN's and these do.

    On devices that are not its own torch takes it for contiguous, and code that was traced so reads it in that order.
    """
    plain = torch_name("_conv_determine_backend_memory_format")

    def determined(tensor: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
        if tensor.device.type != DEVICE_NAME or tensor.dim() != IMAGES:
            found: torch.memory_format = plain(tensor, weight, backend)
            return found
        return torch.channels_last if _lies_last(tensor) or _lies_last(weight) else torch.contiguous_format

    setattr(torch._C, plain.__name__, determined)


def _lies_last(tensor: torch.Tensor) -> bool:
    """Whether torch suggests channels last for a tensor of four dimensions: not where it lies in both orders."""
    least: Any = 1
    for n in (1, 3, 2, 0):
        step = tensor.stride(n)
        if not tensor.shape[n] or step < least or (n == 0 and least == tensor.stride(1)):
            return False
        least = step * tensor.shape[n]
    return True


once: set[str] = set()  # what is made once in a process


@contextmanager
def as_one() -> Iterator[None]:
    """Products in the body of ``with`` are parts of another library's kernel, and take no handle on this thread."""
    mine = _mine()
    mine.recurrent, before = True, mine.recurrent
    try:
        yield
    finally:
        mine.recurrent = before
