"""What a line of a generated program may be; {a} and {b} are values that there are, {n} a small number."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Tensor = torch.Tensor

VIEWS = (
    *("{a}.mT", "{a}[1:]", "{a}[::2]", "{a}[..., 1:]", "{a}[0]", "{a}[..., ::2]", "{a}.unsqueeze({n})", "{a}[:0]"),
    *("{a}.view(-1)", "{a}.expand(3, *{a}.shape)", "{a}.conj()", "{a}.imag", "{a}.real", "torch._neg_view({a})"),
    *("{a}.unfold(0, 2, 1)", "{a}.as_strided((2, 2), (1, 1))", "{a}.detach()", "{a}.view({a}.dtype)", "{a}.squeeze()"),
    *("torch.view_as_real({a})", "{a}.chunk(2)[-1]", "{a}.diagonal()", "{a}.swapaxes(0, -1)", "{a}.movedim(0, -1)"),
    *("{a}.permute(*range({a}.dim() - 1, -1, -1))", "{a}.flatten()", "{a}.unflatten(0, (2, -1))", "{a}.mH"),
    *("{a}[None]", "{a}.narrow(0, {n}, 1)", "{a}.select(-1, {n})", "{a}.expand_as({b})"),
    *("torch.broadcast_tensors({a}, {b})[0]", "{a}.view(torch.int32)", "{a}.view(torch.uint8)"),
    *("{a}.view(torch.float32)", "torch.view_as_complex({a})", "{a}.as_strided((2, 3), (0, 1), {n})"),
    *("{a}.as_strided({a}.shape, {a}.stride())", "{a}.unbind(0)[-1]", "{a}.tensor_split(2)[1]", "{a}.split(1)[{n}]"),
    *("{a}.view_as({b})", "{a}.reshape_as({b})", "{a}.adjoint()", "{a}.unfold(-1, 2, 2)"),
    *("{a}.as_strided((2,), (2,), {n})", "{a}[..., {n}]", "{a}[{n}:{n} + 2]"),
)
NEW = (
    *("{a} + {b}", "{a} * {b}", "{a} - 1", "{a} * 2", "{a}.sin()", "{a}.abs()", "{a}.clone()", "{a}.contiguous()"),
    *("{a}.sum()", "{a}.sum(0)", "torch.cat([{a}, {b}])", "torch.stack([{a}, {a}])", "{a}.flip(0)", "{a}.reshape(-1)"),
    *("torch.where({a} == {b}, {a}, {b})", "{a}.roll({n})", "torch.zeros_like({a})", "{a}.cumsum(0)", "-{a}"),
    *("torch.empty_like({a}).fill_({n})", "{a}.to(torch.float64)", "{a}.max()", "{a}.resolve_conj()", "{a} @ {b}"),
    *("{a}.new_zeros(0, 3)", "{a}.conj_physical()", "torch.fft.fft({a})", "torch.fft.ihfft({a})", "{a}.repeat(2)"),
    *("{a}.to(torch.float16)", "{a}.to(torch.bfloat16)", "{a}.to(torch.bool)", "{a}.to(torch.complex64)"),
    *("{a}.long()", "{a}[[0, -1]]", "{a}.index_put(({i},), {b})", "{a}.index_select(0, {i})"),
    *("{a}.take_along_dim({z}, 0)", "{a} != {b}", "{a}.scatter(0, {z}, {b})", "{a}.scatter_add(0, {z}, {b})"),
    *("{a}.gather(-1, {z})", "{a}.amax(-1)", "{a}.mean(0)", "{a}.masked_fill({a} == {b}, {n})", "{a}.clamp(-1, {n})"),
    *("{a}.tril()", "{a}.square()", "{a}.prod(-1)", "{a} / 4", "torch.nn.functional.pad({a}, (1, 0))"),
    *("torch.addcmul({a}, {b}, {b})", "torch.lerp({a}, {b}, 0.5)", "{a}.any()"),
    *("torch.arange(3, device={a}.device) + {n}", "torch.full_like({a}, {n}, dtype=torch.float16)", "{a}.argsort(0)"),
    *("torch.tensor(2.5, device={a}.device) * {a}", "{a}.softmax(-1)", "{a}.logical_not()", "{a}.kron({b})"),
    *("{a}.diag_embed()", "{a}.select_scatter({b}, 0, 0)", "{a}.slice_scatter({b}, 0, 1)"),
    "{a}.as_strided_scatter({b}, {b}.shape, {b}.stride())",
)
WRITES = (
    *("{a}.add_(1)", "{a}.mul_({b})", "{a}.copy_({b})", "{a}.zero_()", "{a}.fill_({n})", "{a}[1:].add_({b}[:-1])"),
    *("{a}[0] = {b}", "{a}[..., ::2].mul_(2)", "{a}.mT.add_({n})", "{a}.view(-1)[{n}:] = {n}", "{a}.neg_()"),
    *("{a}.conj().add_(1j)", "{a}.imag.fill_({n})", "torch.add({a}, {b}, out={a})", "{a}.index_fill_(0, {i}, 5)"),
    *("{a}.masked_fill_({a} == {b}, {n})", "{a}.sub_({a})", "{a}.transpose_(0, -1)", "{a}.squeeze_()"),
    *("{a}.index_put_(({i},), {b})", "{a}.index_add_(0, {i}, {b}[:1])", "{a}.index_copy_(0, {i}, {b}[:1])"),
    *("{a}.t_()", "{a}.scatter_(0, {z}, {n})", "{a}.scatter_add_(0, {z}, {b})", "{a}[{a} == {b}] = {n}"),
    *("{a}.unsqueeze_({n})", "{a}.clamp_(-1, 1)", "{a}.diagonal().add_(1)", "{a}.fill_diagonal_({n})"),
    *("{a}.real.mul_(2)", "{a}.lerp_({b}, 0.5)", "torch.view_as_real({a})[..., 0].zero_()"),
    *("{a}.view(torch.int32).bitwise_xor_(1)", "{a}.cumsum_(0)", "{a}.copy_({b}.flip(0))", "torch.sin({a}, out={b})"),
    *("{a}.addcmul_({b}, {b})", "{a}.transpose(0, -1).copy_({b})", "{a}[[0]] += {b}", "{a}.detach().add_({n})"),
    *("torch._neg_view({a}).add_(1)", "{a}.swapaxes_(0, -1)", "{a}.tril_()", "torch._foreach_add_([{a}, {b}], 1)"),
    *("{a}.set_({b}.clone())", "{a}.exp_()", "torch.cat([{b}, {b}], out={a})"),
)

# What only programs of the wide kind have.
MORE_VIEWS = (
    *("{a}.view(torch.int16)", "{a}.view(torch.float64)", "{a}.real[..., None]", "{a}.imag.view(torch.int32)"),
    *("{a}.T", "{a}.ravel()", "{a}.hsplit(2)[-1]", "{a}.index_select(0, {i}).expand_as({a})", "{a}.unsqueeze(0).mT"),
    *("{a}.conj().mT.imag", "torch.view_as_real({a}.resolve_conj())[..., 1]", "{a}[-1:]", "{a}[..., None, :]"),
    *("{a}.expand(2, *{a}.shape)[1]", "{a}.as_strided({a}.shape[:1], {a}.stride()[:1])", "{a}.positive()"),
)
MORE_NEW = (
    *("torch.linalg.vector_norm({a})", "{a}.var(0)", "{a}.std()", "{a}.logsumexp(0)", "{a}.log_softmax(-1)"),
    *("{a}.nan_to_num()", "{a}.sign() * {b}", "{a}.frac()", "{a}.floor_divide(2)", "{a}.remainder(3)", "{a} // 2"),
    *("{a}.to(torch.int8)", "{a}.to(torch.uint8) << 1", "{a}.bool() & {b}.bool()", "{a}.isnan()", "{a}.sort(-1)[0]"),
    *("{a}.topk(1, 0)[1]", "{a}.cummax(0)[0]", "{a}.median()", "{a}.max(0)[1]", "{a}.amin()", "{a}.argmax()"),
    *("torch.outer({a}.flatten(), {b}.flatten())", "torch.einsum('...i,...i->...', {a}, {b})", "{a}.diff()"),
    *("torch.nn.functional.layer_norm({a}, {a}.shape[-1:])", "torch.nn.functional.gelu({a})", "{a}.sigmoid()"),
    *("torch.nn.functional.one_hot({a}.long().clamp(0, 3), 4)", "torch.nn.functional.relu({a})", "{a}.exp().log1p()"),
    *("torch.fft.rfft({a}.real).imag", "torch.fft.ifft({a}).real", "{a}.conj().sum()", "({a} * 1j).conj().imag"),
    *("torch.block_diag({a}, {b})", "torch.meshgrid({a}.flatten(), {b}.flatten(), indexing='ij')[0]", "{a}.tile(2)"),
    *("torch.vstack([{a}, {b}])", "torch.hstack([{a}, {a}])", "{a}.repeat_interleave(2, 0)", "{a}.rot90()"),
    *("torch.tril_indices(3, 3, device={a}.device)", "torch.eye(3, device={a}.device)", "{a}.new_full((2,), {n})"),
    *("torch.linspace(0, 1, 3, device={a}.device)", "{a}.trace()", "{a}.dot({b})", "torch.atleast_2d({a}) + 0"),
    *("{a}.where({a} > {n}, {b})", "{a}.heaviside({b})", "torch.complex({a}.real, {a}.real)", "{a}.angle()"),
)
MORE_WRITES = (
    *("{a}[..., 0] = {b}[..., 0]", "{a}[1:] = {a}[:-1].clone()", "{a}.sign_()", "{a}.clamp_min_({n})", "{a}.floor_()"),
    *("{a}.imag.add_({b}.real)", "{a}.view(torch.uint8).zero_()", "{a}.T.copy_({b}.T)", "{a}.flatten()[0] = {n}"),
    *("torch._foreach_mul_([{a}, {b}], 2)", "torch._foreach_copy_([{a}], [{b}])", "{a}.sub_({b}, alpha=2)"),
    *(
        "torch.mul({a}, 2, out={b})",
        "torch.sum({a}, 0, out={b})",
        "{a}.unbind(0)[0].add_({n})",
        "{a}.masked_fill_({b} > 0, 1)",
    ),
    *("{a}.where({a} > 0, {b}, out={a}) if False else {a}.abs_()", "{a}.scatter_reduce_(0, {z}, {b}, 'amax')"),
    *(
        "{a}.put_({i}, {b}.flatten()[:1])",
        "{a}.select(0, 0).copy_({b}.select(0, -1))",
        "{a}.triu_()",
        "{a}.conj().mul_(2)",
    ),
    *("{a}.expand(1, *{a}.shape).add_(1)", "{a}.bitwise_not_()", "{a} += {b}", "{a} *= 2", "{a}.cumprod_(0)"),
)


class Defined(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Raises ValueError where torch leaves the result open.

    It does for writes to a tensor that overlaps itself, and for writes to memory that the same operation reads in
    another order; it says so only where that is quickly seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, _: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.inplace_view not in func.tags:
            _check(func, args, kwargs)
        return func(*args, **kwargs)


def _check(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    read: list[Tensor] = []
    written: list[Tensor] = []
    for k, argument in enumerate(func._schema.arguments):
        value = args[k] if k < len(args) else kwargs.get(argument.name)
        found = [x for x in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(x, Tensor)]
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        (written if is_written else read).extend(x for x in found if x.numel())
    for k, x in enumerate(written):
        mine = _places(x)
        if len(set(mine.tolist())) < len(mine):
            raise ValueError(f"{func} writes to a tensor that overlaps itself")
        for other in (*read, *written[:k]):
            same = (other.data_ptr(), other.shape, other.stride()) == (x.data_ptr(), x.shape, x.stride())
            if not same and torch.isin(_places(other), mine).any():
                raise ValueError(f"{func} reads what it writes")


def _places(x: Tensor) -> Tensor:
    """The address of each byte of each element."""
    steps = torch.zeros(1, dtype=torch.int64)
    for size, stride in zip(x.shape, x.stride(), strict=True):
        steps = (steps[:, None] + stride * torch.arange(size)).reshape(-1)
    return (x.data_ptr() + x.element_size() * steps[:, None] + torch.arange(x.element_size())).reshape(-1)
