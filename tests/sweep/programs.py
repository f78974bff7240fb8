"""Programs that nobody wrote: views, writes in place, aliases, lazy bits, empty and overlapping tensors, by chance.

A program is Python source; whoever draws its numbers (hypothesis, or a seed) decides what it is. Every line has run on
the CPU before it is taken, so that a program is valid, and as odd as PyTorch allows.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from paramgraph_kit import parameterize
from paramgraph_kit.backend import paramgraph
from paramgraph_kit.driver.select import device
from tests.sweep.checks import poison
from tests.sweep.samples import Mover, Tensor, difference

Draw = Callable[[int], int]  # a number from 0 to below n

SHAPES = ((4, 6), (6, 4), (6,), (4,), (2, 4, 6), (), (0, 4), (1, 6), (4, 1))
DTYPES = (torch.float32, torch.float32, torch.complex64, torch.int64)

# What a line may be; {a} and {b} are values that there are, {n} a small number.
VIEWS = (
    *("{a}.mT", "{a}[1:]", "{a}[::2]", "{a}[..., 1:]", "{a}[0]", "{a}[..., ::2]", "{a}.unsqueeze({n})", "{a}[:0]"),
    *("{a}.view(-1)", "{a}.expand(3, *{a}.shape)", "{a}.conj()", "{a}.imag", "{a}.real", "torch._neg_view({a})"),
    *("{a}.unfold(0, 2, 1)", "{a}.as_strided((2, 2), (1, 1))", "{a}.detach()", "{a}.view({a}.dtype)", "{a}.squeeze()"),
    *("torch.view_as_real({a})", "{a}.chunk(2)[-1]", "{a}.diagonal()", "{a}.swapaxes(0, -1)", "{a}.movedim(0, -1)"),
)
NEW = (
    *("{a} + {b}", "{a} * {b}", "{a} - 1", "{a} * 2", "{a}.sin()", "{a}.abs()", "{a}.clone()", "{a}.contiguous()"),
    *("{a}.sum()", "{a}.sum(0)", "torch.cat([{a}, {b}])", "torch.stack([{a}, {a}])", "{a}.flip(0)", "{a}.reshape(-1)"),
    *("torch.where({a} == {b}, {a}, {b})", "{a}.roll({n})", "torch.zeros_like({a})", "{a}.cumsum(0)", "-{a}"),
    *("torch.empty_like({a}).fill_({n})", "{a}.to(torch.float64)", "{a}.max()", "{a}.resolve_conj()", "{a} @ {b}"),
    *("{a}.new_zeros(0, 3)", "{a}.conj_physical()", "torch.fft.fft({a})", "torch.fft.ihfft({a})", "{a}.repeat(2)"),
)
WRITES = (
    *("{a}.add_(1)", "{a}.mul_({b})", "{a}.copy_({b})", "{a}.zero_()", "{a}.fill_({n})", "{a}[1:].add_({b}[:-1])"),
    *("{a}[0] = {b}", "{a}[..., ::2].mul_(2)", "{a}.mT.add_({n})", "{a}.view(-1)[{n}:] = {n}", "{a}.neg_()"),
    *("{a}.conj().add_(1j)", "{a}.imag.fill_({n})", "torch.add({a}, {b}, out={a})", "{a}.index_fill_(0, {i}, 5)"),
    *("{a}.masked_fill_({a} == {b}, {n})", "{a}.sub_({a})", "{a}.transpose_(0, -1)", "{a}.squeeze_()"),
)
TORCHS = "AOTAutograd alone: "
KINDS = (VIEWS, NEW, WRITES, VIEWS, NEW)


@dataclass(frozen=True)
class Generated:
    """A program: its source, and what makes its arguments on the host."""

    source: str
    names: tuple[str, ...]
    arguments: Callable[[int], list[Tensor]]  # by seed

    def function(self) -> Callable[..., Any]:
        """The program itself, compiled from its source."""
        return _function(self.source)

    def __repr__(self) -> str:
        shown = [
            f"{n}: {x.dtype}{tuple(x.shape)} {x.stride()}" for n, x in zip(self.names, self.arguments(0), strict=True)
        ]
        return f"# {', '.join(shown)}\n{self.source}"


def _function(source: str) -> Callable[..., Any]:
    space: dict[str, Any] = {"torch": torch}
    exec(compile(source, "<generated program>", "exec"), space)
    found: Callable[..., Any] = space["program"]
    return found


def generate(draw: Draw) -> Generated:
    """A program of up to eight lines over one to three tensors, some of which may share memory."""
    makers = [_tensor(draw) for _ in range(1 + draw(3))]
    shared = len(makers) > 1 and draw(3) == 0

    def arguments(seed: int) -> list[Tensor]:
        found = [make(seed + 10 * k) for k, make in enumerate(makers)]
        if shared and found[0].dim():
            found[1] = found[0][..., 1:]
        return found

    names = tuple("xyz"[: len(makers)])
    values, lines = list(names), list[str]()
    for number in range(2 + draw(7)):
        kind = KINDS[draw(len(KINDS))]
        a, b = (values[draw(len(values))] for _ in "ab")
        index = f"torch.tensor([0], device={a}.device)"
        text = kind[draw(len(kind))].format(a=a, b=b, n=draw(3), i=index)
        name = f"v{number}"
        line = text if kind is WRITES else f"{name} = {text}"
        if _valid([*lines, line], values, arguments(0), names):
            lines.append(line)
            values += [] if kind is WRITES else [name]
    results = [values[draw(len(values))] for _ in range(1 + draw(3))]
    # Where all is in the arguments already, something is computed after all.
    results += ["x + 1"] if draw(4) == 0 else []
    return Generated(_source(lines, results, names), names, arguments)


def _tensor(draw: Draw) -> Callable[[int], Tensor]:
    shape, dtype, layout = SHAPES[draw(len(SHAPES))], DTYPES[draw(len(DTYPES))], draw(6)

    def make(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        size = (*shape[:-1], 2 * shape[-1] + 1) if shape else (3,)
        whole = torch.randn(size, generator=generator).mul(4).to(dtype)
        if dtype.is_complex:
            whole = torch.complex(whole.real, torch.randn(size, generator=generator))
        if not shape:
            return whole[layout % 3]
        part = {1: whole[..., 1 : shape[-1] + 1], 2: whole[..., : 2 * shape[-1] : 2]}.get(
            layout, whole[..., : shape[-1]]
        )
        if layout == 3 and part.dim() > 1:
            return part[:1].expand(shape) if shape[0] else part
        if layout == 4:
            return part.clone().mT.contiguous().mT if part.dim() > 1 else part.conj()
        return part if layout in (1, 2) else part.clone()

    return make


def _source(lines: Sequence[str], results: Sequence[str], names: Sequence[str]) -> str:
    body = "\n".join(f"    {line}" for line in [*lines, f"return ({', '.join(results)},)"])
    return f"def program({', '.join(names)}):\n{body}\n"


def _valid(lines: Sequence[str], values: Sequence[str], arguments: Sequence[Tensor], names: Sequence[str]) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some are given once a process, and here an error is an answer
            _function(_source(lines, values[:1], names))(*Mover(torch.device("cpu")).all(arguments))
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
        return False
    return True


def wrong(program: Generated, calls: int = 3) -> str:
    """How a program differs from eager, compiled by this backend or parameterized; "" if nowhere.

    What AOTAutograd alone gets wrong too begins with TORCHS.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _wrong(program, calls)


def _wrong(program: Generated, calls: int) -> str:
    function = program.function()
    expected = [_outcome(function, program.arguments(seed), 0) for seed in range(calls)]
    ways: dict[str, Callable[..., Any]] = {
        "compile": partial(_compiled, backend=paramgraph),
        "parameterize": _parameterized,
    }
    for how, make in ways.items():
        if unlike := _first_unlike(make, program, expected):
            torchs = _first_unlike(partial(_compiled, backend="aot_eager"), program, expected)
            return f"{TORCHS if torchs else ''}{how}, {unlike}"
    return ""


def _first_unlike(make: Callable[..., Any], program: Generated, expected: Sequence[_Outcome]) -> str:
    torch._dynamo.reset()
    gc.collect()
    changed = make(program.function(), program)
    for seed, wanted in enumerate(expected):
        if unlike := _unlike(_outcome(changed, program.arguments(seed), seed), wanted):
            return f"call {seed + 1}: {unlike}"
    return ""


def _compiled(function: Callable[..., Any], _: Generated, backend: Any) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(function, backend=backend, dynamic=False)
    return compiled


def _parameterized(function: Callable[..., Any], program: Generated) -> Callable[..., Any]:
    changed: Callable[..., Any] = parameterize(function, *Mover(device()).all(program.arguments(9)))
    return changed


@dataclass
class _Outcome:
    results: Any  # on the host
    arguments: list[Tensor]  # as they are afterwards, on the host
    aliases: list[int | None]  # the argument whose memory a result is in
    error: str = ""


def _outcome(function: Callable[..., Any], arguments: Sequence[Tensor], call: int) -> _Outcome:
    kept = poison(call)
    mine = Mover(device()).all(arguments)
    try:
        results = function(*mine)
    except Exception as error:
        return _Outcome((), [], [], type(error).__name__)
    del kept
    homes = {
        x.untyped_storage().data_ptr(): k for k, x in reversed(list(enumerate(mine))) if x.untyped_storage().nbytes()
    }
    aliases = [homes.get(y.untyped_storage().data_ptr()) for y in results]
    return _Outcome([y.detach().cpu() for y in results], [x.detach().cpu() for x in mine], aliases)


def _unlike(got: _Outcome, expected: _Outcome) -> str:
    if got.error or expected.error:
        return "" if bool(got.error) == bool(expected.error) else f"{got.error or 'no error'}, eager: {expected.error}"
    for what in ("results", "arguments"):
        if found := difference(getattr(got, what), getattr(expected, what), layouts=False):
            return f"{what}: {found}"
    return "" if got.aliases == expected.aliases else f"results lie in arguments {got.aliases}, not {expected.aliases}"
