"""How many kinds of results the same code gives for the same numbers: eagerly, compiled by torch, from graphs.

Usage: python -m tests.sweep.spread OPERATOR... [--dtype float32] [--sample 0] [--backward] [--runs 60]

On a GPU some kernels add in no fixed order: what a sweep finds is the launcher's fault only if eager code, and Inductor
alone, give one kind of bits where graphs give others.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from paramgraph_kit.backend import paramgraph
from paramgraph_kit.driver.select import device
from tests.sweep.checks import attempt, compiled, gradients_of, poison, program_of
from tests.sweep.operators import ready
from tests.sweep.samples import Sample, flat, operators, pairs


def kind_of(result: Any) -> str:
    """The bits of all tensors of a result, in four letters.

    >>> kind_of(torch.zeros(2)) == kind_of([torch.zeros(2)]), kind_of(torch.zeros(2)) == kind_of(-torch.zeros(2))
    (True, False)
    """
    known = hashlib.sha256()
    for tensor in tree_leaves(result):
        if isinstance(tensor, torch.Tensor):
            known.update(flat(tensor).view(torch.uint8).numpy().tobytes())
    return known.hexdigest()[:4]


def spread(run: Callable[[Sample], Any], sample: Sample, runs: int) -> Counter[str]:
    """How often each kind comes, at other addresses each time."""
    kinds, kept = Counter[str](), list[torch.Tensor]()
    for call in range(runs):
        moved = sample.on(device())
        kept = [*kept[-64:], *poison(call)]
        result, error = attempt(run, moved)
        kinds[error or kind_of(result)] += 1
    return kinds


def lines(name: str, dtype: torch.dtype, number: int, runs: int, *, backward: bool) -> Iterator[str]:
    """One line for each way of running it and each of a sample's two sets of numbers."""
    op = operators()[name]
    pair = list(pairs(op, dtype, number + 1, gradients=backward))[number]
    plain = gradients_of(op) if backward else program_of(op)
    yield f"{name} {dtype} {'backward' if backward else 'forward'}, sample {number}: {device()}"
    torchs = ("aot_eager", "inductor")[: 1 + (device().type == "cuda")]
    for way in ("eager", *torchs, "paramgraph"):
        backend = paramgraph if way == "paramgraph" else way
        run = plain if way == "eager" else compiled(op, backward, backend)
        for values, sample in enumerate(pair):
            kinds = spread(run, sample, runs)
            yield f"  {way}, numbers {values}: {len(kinds)} kinds of {runs} ({', '.join(map(str, kinds.values()))})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print it for some operators."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("operators", nargs="+", choices=sorted(operators()), metavar="OPERATOR")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--runs", type=int, default=60)
    asked = parser.parse_args(arguments)
    ready()
    for name in asked.operators:
        for line in lines(name, getattr(torch, asked.dtype), asked.sample, asked.runs, backward=asked.backward):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
