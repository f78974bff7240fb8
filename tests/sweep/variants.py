"""Torch's pointwise operators and reductions with operands as they come: any layout, lazy bits, sizes, types and out=.

``python -m tests.sweep.variants --seconds 60 --seed 1`` goes on as long as it is told; a test makes many hundred calls.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from paramgraph_kit.driver.select import device, twin
from tests.sweep.samples import Mover, difference, operators

Tensor = torch.Tensor
TYPES = (
    *(torch.float32, torch.int64, torch.complex64, torch.bool, torch.bfloat16, torch.float64, torch.uint8),
    *(torch.float16, torch.int32),
)
FEW = 8  # samples of an operator to choose from
# What either of CPU and CUDA has no kernel for, and what is random.
EITHER = re.compile(
    "not implemented for|not supported on the CPU|could not be performed|Cannot copy between CPU and CUDA"
)
VALUED = "device-side assert"  # of a GPU, for what a CPU tells of numbers


@dataclass(frozen=True, slots=True)
class Trial:
    """One call: on the host, and with the same operands on the device."""

    name: str
    what: str  # how it is called
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def operands(self) -> str:
        """Its tensors, in words."""
        tensors = [x for x in tree_leaves((self.args, self.kwargs)) if isinstance(x, Tensor)]
        return ", ".join(
            f"{str(x.dtype)[6:]}{list(x.shape)} by {x.stride()}{' conj' * x.is_conj()}{' neg' * x.is_neg()}"
            for x in tensors
        )

    def run(self, place: torch.device, *, captured: bool = False) -> tuple[Any, Exception | None]:
        """(what it returns and has written to, None), or (None, what it raises)."""
        move = Mover(place)
        args, kwargs = tree_map_only(Tensor, move, (self.args, dict(self.kwargs)))
        cuda, graph = twin(), twin().CUDAGraph()
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if not captured:
                    return (self.function(*args, **kwargs), args, kwargs), None
                with cuda.graph(graph):
                    found = self.function(*args, **kwargs)
                graph.replay()
                return (found, args, kwargs), None
        except (ArithmeticError, IndexError, RuntimeError, TypeError, ValueError) as error:
            if captured:
                cuda.recover()
            return None, error


def variant(x: Tensor, draw: random.Random) -> Tensor:
    """The same numbers, or some of them, in another order of memory, or lazily."""
    x = x.detach()
    axes = list(range(x.dim()))
    draw.shuffle(axes)
    kind = draw.randrange(8)
    if kind == 0 and x.dim():
        return x.permute(axes).contiguous().permute([axes.index(i) for i in range(x.dim())])
    if kind == 1:
        return torch.stack([x, x], -1)[..., 1]
    if kind == 2 and x.dtype.is_complex:
        return x.conj()
    if kind == 3 and (x.is_floating_point() or x.dtype.is_complex):
        return torch._neg_view(x)
    if kind == 4 and x.dim() and x.shape[0]:
        return x[:1].expand(x.shape)
    if kind == 5 and x.dim():
        return x[:0]
    if kind == 6 and x.numel():
        return x.flatten()[0]
    return x


def out_for(result: Tensor, draw: random.Random) -> Tensor:
    """An ``out=``: with gaps, empty, of another type, in another order, or too large."""
    axes = list(range(result.dim()))[::-1]
    return (
        lambda: torch.zeros(*result.shape, 2, dtype=result.dtype)[..., 1],
        lambda: torch.zeros(0, dtype=result.dtype),
        lambda: torch.zeros(result.shape, dtype=draw.choice(TYPES)),
        lambda: torch.zeros(result.shape[::-1], dtype=result.dtype).permute(axes),
        lambda: torch.zeros(3, *result.shape, dtype=result.dtype),
    )[draw.randrange(5)]()


def trials(seed: int) -> Iterator[Trial]:
    """Calls without end, the same for the same seed."""
    draw = random.Random(seed)
    kinds = ("UnaryUfuncInfo", "BinaryUfuncInfo", "ReductionOpInfo")
    others = re.compile("polynomial|jiterator|masked|rrelu")  # of numbers on the host, or of those that have none
    chosen = [(n, op) for n, op in operators().items() if type(op).__name__ in kinds and not others.search(n)]
    while True:
        name, op = draw.choice(chosen)
        dtype = draw.choice([each for each in TYPES if each in op.dtypes])
        torch.manual_seed(draw.randrange(1 << 30))
        sample = draw.choice(list(itertools.islice(op.sample_inputs_func(op, "cpu", dtype, False), FEW)))
        given = tree_map_only(Tensor, lambda x: variant(x, draw), ((sample.input, *sample.args), dict(sample.kwargs)))
        args, kwargs = given
        if len(args) > 1 and isinstance(args[-1], Tensor) and draw.random() < 0.3:
            args = (*args[:-1], args[-1].to(draw.choice(TYPES)))
        what, function = "", op.get_op()
        if (chance := draw.random()) < 0.3 and op.get_inplace() is not None:
            what, function = "in place", op.get_inplace()
        elif chance < 0.6 and op.supports_out:
            result, _ = Trial(name, "", function, args, kwargs).run(torch.device("cpu"))
            if result is not None and isinstance(result[0], Tensor):
                what, kwargs = "out=", {**kwargs, "out": out_for(result[0], draw)}
        yield Trial(name, what, function, args, kwargs)


def unlike(trial: Trial, *, captured: bool) -> str:
    """In which way the device differs from the host; "" if in none."""
    expected, raised = trial.run(torch.device("cpu"))
    found, refused = trial.run(device(), captured=captured)
    if any(error is not None and EITHER.search(str(error)) for error in (raised, refused)):
        return ""
    if raised is None and refused is None:
        return difference(found, expected, exact=False)
    if raised is None or refused is None:
        return f"host: {raised or 'returns'}; device: {refused or 'returns'}"
    if VALUED in str(refused) or type(raised) is type(refused):
        return ""
    return f"host: {raised!r}; device: {refused!r}"


def main() -> None:
    """Go on for a while, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    until, calls, differ = time.monotonic() + chosen.seconds, 0, 0
    for trial in trials(chosen.seed):
        if time.monotonic() > until:
            break
        for captured in (False, True):
            calls += 1
            if why := unlike(trial, captured=captured):
                differ += 1
                place = "in a capture" if captured else "eagerly"
                print(f"{trial.name} {trial.what} {place}: {why[:200]} | {trial.operands()}", flush=True)
    print(f"{calls} calls, {differ} differ")


if __name__ == "__main__":
    main()
