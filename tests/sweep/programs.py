"""Programs that nobody wrote: views, writes in place, aliases, lazy bits, empty and overlapping tensors, by chance.

A program is Python source; whoever draws its numbers (hypothesis, or a seed) decides what it is. Every line has run on
the CPU before it is taken, so that a program is valid, and as odd as PyTorch allows. Some are differentiated. Each is
called with arguments elsewhere, with some that share memory where they did not, and with some at odd addresses.
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
from tests.sweep.lines import MORE_NEW, MORE_VIEWS, MORE_WRITES, NEW, VIEWS, WRITES, Defined
from tests.sweep.samples import Mover, Tensor, difference

Draw = Callable[[int], int]  # a number from 0 to below n

SHAPES = ((4, 6), (6, 4), (6,), (4,), (2, 4, 6), (), (0, 4), (1, 6), (4, 1))
DTYPES = (torch.float32, torch.float32, torch.complex64, torch.int64)

TORCHS = "AOTAutograd alone: "
KINDS = (VIEWS, NEW, WRITES, VIEWS, NEW)
WIDE = (MORE_VIEWS + VIEWS, MORE_NEW + NEW, MORE_WRITES + WRITES, VIEWS, MORE_NEW)
WRITTEN = (WRITES, WIDE[2])
MORE_DTYPES = (*DTYPES, torch.float16, torch.bool, torch.uint8, torch.float64, torch.bfloat16)
CALLS = 6
Arrangement = Callable[[list[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class Generated:
    """A program: its source, and what makes its arguments on the host."""

    source: str
    names: tuple[str, ...]
    made: Callable[[int], list[Tensor]]  # by seed
    arrangements: tuple[Arrangement, ...]  # of the arguments, one call after the other
    differentiated: bool = False  # whether its results' gradients are computed, too
    packed: bool = False  # whether its arguments come in a dict and a list

    def given(self, arguments: list[Tensor]) -> tuple[Any, ...]:
        """What the function is called with."""
        return ({"first": arguments[0], "rest": arguments[1:]},) if self.packed else tuple(arguments)

    def arguments(self, call: int) -> list[Tensor]:
        """Arguments of a call, on the host."""
        return self.arrangements[call % len(self.arrangements)](self.made(call))

    def function(self) -> Callable[..., Any]:
        """The program itself, compiled from its source."""
        plain = _function(self.source)
        return (lambda given: plain(given["first"], *given["rest"])) if self.packed else plain

    def __repr__(self) -> str:
        shown = [
            f"{n}: {x.dtype}{tuple(x.shape)} {x.stride()}" for n, x in zip(self.names, self.arguments(0), strict=True)
        ]
        how = [each.__name__.strip("_") for each in self.arrangements] + ["differentiated"] * self.differentiated
        return f"# {', '.join(shown)}\n# {', '.join(how)}\n{self.source}"


def _function(source: str) -> Callable[..., Any]:
    space: dict[str, Any] = {"torch": torch}
    exec(compile(source, "<generated program>", "exec"), space)
    found: Callable[..., Any] = space["program"]
    return found


def generate(draw: Draw, wide: bool = False) -> Generated:
    """A program of up to ten lines over one to three tensors, some of which may share memory.

    A ``wide`` one is of more operations and types, may take its arguments in a dict and a list, and may begin with any
    arrangement of them.
    """
    kinds = WIDE if wide else KINDS
    makers = [_tensor(draw, MORE_DTYPES if wide else DTYPES) for _ in range(1 + draw(3))]
    shared = len(makers) > 1 and draw(3) == 0

    def made(seed: int) -> list[Tensor]:
        found = [make(seed + 10 * k) for k, make in enumerate(makers)]
        if shared and found[0].dim():
            found[1] = found[0][..., 1:]
        return found

    names = tuple("xyz"[: len(makers)])
    differentiated = draw(4) == 0
    values, lines = list(names), list[str]()
    for number in range(2 + draw(9)):
        kind = kinds[draw(len(kinds))]
        a, b = (values[draw(len(values))] for _ in "ab")
        index = f"torch.tensor([0], device={a}.device)"
        first = f"torch.zeros_like({a}[:1], dtype=torch.int64)"
        text = kind[draw(len(kind))].format(a=a, b=b, n=draw(3), i=index, z=first)
        name = f"v{number}"
        line = text if kind in WRITTEN else f"{name} = {text}"
        if _valid(_source([*lines, line], values[:1], names), made(0), differentiated):
            lines.append(line)
            values += [] if kind in WRITTEN else [name]
    results = [values[draw(len(values))] for _ in range(1 + draw(3))]
    # Where all is in the arguments already, something is computed after all.
    results += ["x + 1"] if draw(4) == 0 else []
    source = _source(lines, results, names)
    other = (_twice, _inside, _apart, _together, _plain)[draw(5)]
    wanted = (
        _plain,
        _plain,
        other,
        other,
        _shifted,
        _shifted,
    )  # the first of each kind may capture, the second launches
    differentiated = differentiated and _valid(source, made(0), True)
    arrangements = [each if _valid(source, each(made(0)), differentiated) else _plain for each in wanted]
    turned = 2 * draw(3) if wide else 0
    arrangements = arrangements[turned:] + arrangements[:turned]
    return Generated(source, names, made, tuple(arrangements), differentiated, wide and draw(3) == 0)


def _plain(arguments: list[Tensor]) -> list[Tensor]:
    return arguments


def _twice(arguments: list[Tensor]) -> list[Tensor]:
    """The first one in the place of the second, too."""
    return [arguments[0], *arguments[:1], *arguments[2:]][: len(arguments)]


def _inside(arguments: list[Tensor]) -> list[Tensor]:
    """The second one is a part of the first."""
    return [arguments[0], *(x[1:] if x.dim() else x for x in arguments[:1]), *arguments[2:]][: len(arguments)]


def _apart(arguments: list[Tensor]) -> list[Tensor]:
    """None shares memory with another."""
    return [x.clone() for x in arguments]


def _together(arguments: list[Tensor]) -> list[Tensor]:
    """All in one storage, one behind the other."""
    whole = torch.zeros(16 + sum(x.untyped_storage().nbytes() + 16 for x in arguments), dtype=torch.uint8)
    found, end = [], 16
    for x in arguments:
        found.append(_moved(x, whole, end))
        end += -(-x.untyped_storage().nbytes() // 16) * 16
    return found


def _shifted(arguments: list[Tensor]) -> list[Tensor]:
    """Each one element behind where an allocation begins."""
    room = [torch.zeros(x.untyped_storage().nbytes() + x.itemsize, dtype=torch.uint8) for x in arguments]
    return [_moved(x, whole, x.itemsize) for x, whole in zip(arguments, room, strict=True)]


def _moved(x: Tensor, whole: Tensor, start: int) -> Tensor:
    """The same tensor on a copy of its storage, which begins at a byte of another one."""
    storage = x.untyped_storage()
    whole[start : start + storage.nbytes()] = torch.empty(0, dtype=torch.uint8).set_(storage)
    offset = start // x.itemsize + x.storage_offset()
    found = torch.empty(0, dtype=x.dtype).set_(whole.untyped_storage(), offset, x.size(), x.stride())
    return found.conj() if x.is_conj() else found


def _tensor(draw: Draw, dtypes: Sequence[torch.dtype] = DTYPES) -> Callable[[int], Tensor]:
    shape, dtype, layout = SHAPES[draw(len(SHAPES))], dtypes[draw(len(dtypes))], draw(6)

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


def _valid(source: str, arguments: Sequence[Tensor], differentiated: bool) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some are given once a process, and here an error is an answer
            mine = _leaves(Mover(torch.device("cpu")).all(arguments), differentiated)
            with Defined():
                results = _function(source)(*mine)
                return not differentiated or _gradients(results, mine) is not None
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
        return False


def _leaves(arguments: list[Tensor], differentiated: bool) -> list[Tensor]:
    """What a program is called with: one tensor where the same one is given twice."""
    known: dict[tuple[object, ...], Tensor] = {}
    found: list[Tensor] = []
    for x in arguments:
        key = (x.data_ptr(), x.shape, x.stride(), x.dtype, x.is_conj()) if x.numel() else (len(found),)
        found.append(known.setdefault(key, x))
    if not differentiated:
        return found
    return [x.requires_grad_() if x.is_floating_point() or x.is_complex() else x for x in found]


def _gradients(results: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor | None] | None:
    """Of all results' squares; None where nothing depends on a leaf."""
    wanted = [y for y in results if y.requires_grad]
    if not wanted:
        return None
    sum((y * y.conj()).real.float().sum() for y in wanted).backward()  # type: ignore[union-attr]
    return [x.grad for x in leaves]


def wrong(program: Generated, calls: int = CALLS) -> str:
    """How a program differs from eager, compiled by this backend, parameterized or as a whole step; "" if nowhere.

    What AOTAutograd alone gets wrong too begins with TORCHS.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _wrong(program, calls)


def _wrong(program: Generated, calls: int) -> str:
    function = program.function()
    expected = [_outcome(function, program, seed, 0) for seed in range(calls)]
    ways: dict[str, Callable[..., Any]] = {
        "compile": partial(_compiled, backend=paramgraph),
        "parameterize": _parameterized,
        **({} if program.differentiated else {"step": _whole}),
    }
    torchs = ""
    for how, make in ways.items():
        if unlike := _first_unlike(make, program, expected):
            # What AOTAutograd alone gets wrong is no excuse for what runs as it is where a trace is in doubt: there
            # sums of what has other strides in a trace may be rounded otherwise, and no more.
            mine = how == "compile" or not _first_unlike(make, program, expected, exact=False)
            if not mine or not _first_unlike(partial(_compiled, backend="aot_eager"), program, expected):
                return f"{how}, {unlike}"
            torchs = torchs or f"{TORCHS}{how}, {unlike}"
    return torchs


def _first_unlike(
    make: Callable[..., Any], program: Generated, expected: Sequence[_Outcome], exact: bool = True
) -> str:
    torch._dynamo.reset()
    gc.collect()
    changed = make(program.function(), program)
    # A step's first calls are ungraphed: each kind of arguments comes again.
    for call, seed in enumerate([*range(len(expected))] * (2 if make is _whole else 1)):
        if unlike := _unlike(_outcome(changed, program, seed, call), expected[seed], exact):
            return f"call {call + 1}: {unlike}"
    return ""


def _compiled(function: Callable[..., Any], _: Generated, backend: Any) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(function, backend=backend, dynamic=False)
    return compiled


def _parameterized(function: Callable[..., Any], program: Generated) -> Callable[..., Any]:
    example = Mover(device()).all(program.made(9))
    changed: Callable[..., Any] = parameterize(function, *program.given(_leaves(example, program.differentiated)))
    return changed


def _whole(function: Callable[..., Any], _: Generated) -> Callable[..., Any]:
    changed: Callable[..., Any] = parameterize(function, state=(), verify="off")
    return changed


@dataclass
class _Outcome:
    results: Any  # on the host
    arguments: list[Tensor]  # as they are afterwards, on the host
    aliases: list[int | None]  # the argument whose memory a result is in
    gradients: Any = ()
    error: str = ""


def _outcome(function: Callable[..., Any], program: Generated, seed: int, call: int) -> _Outcome:
    kept = poison(call)
    mine = _leaves(Mover(device()).all(program.arguments(seed)), program.differentiated)
    try:
        results = function(*program.given(mine))
        gradients = _gradients(results, mine) if program.differentiated else ()
    except Exception as error:
        return _Outcome((), [], [], error=type(error).__name__)
    del kept
    homes = {
        x.untyped_storage().data_ptr(): k for k, x in reversed(list(enumerate(mine))) if x.untyped_storage().nbytes()
    }
    # What has no elements lies nowhere.
    aliases = [homes.get(y.untyped_storage().data_ptr()) if y.numel() else None for y in results]
    on_host = [None if g is None else g.cpu() for g in gradients or ()]
    return _Outcome([y.detach().cpu() for y in results], [x.detach().cpu() for x in mine], aliases, on_host)


def _unlike(got: _Outcome, expected: _Outcome, exact: bool = True) -> str:
    if got.error or expected.error:
        return "" if bool(got.error) == bool(expected.error) else f"{got.error or 'no error'}, eager: {expected.error}"
    for what in ("results", "arguments", "gradients"):
        if found := difference(getattr(got, what), getattr(expected, what), layouts=False, exact=exact):
            return f"{what}: {found}"
    return "" if got.aliases == expected.aliases else f"results lie in arguments {got.aliases}, not {expected.aliases}"
