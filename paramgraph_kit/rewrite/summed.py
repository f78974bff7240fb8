"""Gradients that add up over launches: a graph adds to those that were there at its capture, and makes no others.

Six steps do not show it, as the gradients are there once two of them have run; a capture before any of them has none.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from paramgraph_kit.doctor.observe.learning import ZEROS
from paramgraph_kit.rewrite.proving.proof import Truth
from paramgraph_kit.rewrite.rounds import Rounds
from paramgraph_kit.rewrite.ways import Ways

SUMMED = (
    "each launch adds to the gradients that were there as it was captured; where there were none it writes over those "
    "of the launch before: once, right before the capture, {made}, and whoever zeroes them needs `set_to_none=False`"
)
LET_GO = (
    "each launch adds to the gradients that were there as it was captured, which what goes around it lets go: their "
    "memory serves others then, and launches write there. Right before the capture {none}: the graph makes its own"
)


def told(attempt: Ways, rounds: Rounds, truth: Truth) -> list[str]:
    """What to know of them, where a capture without any gives other numbers."""
    prover = attempt.prover
    if not prover.adding:
        return []
    summed, let_go = list(prover.adding), bool(prover.let_go)
    try:
        with rounds.applied():
            seen = prover.from_now().captured(rounds.around, without=True)
        if not truth.wrong(seen):
            return [LET_GO.format(none=_of_each(attempt, summed, "None"))] if let_go else []
    except Exception:  # what asks for a gradient that is not there
        pass
    return [SUMMED.format(made=_of_each(attempt, summed, ZEROS))]


def _of_each(attempt: Ways, tensors: list[torch.Tensor], value: str) -> str:
    """What gives each of these such a gradient."""
    of = _module_of(attempt, tensors)
    return f"`for p in {of}.parameters(): p.grad = {value}`" if of else f"`p.grad = {value}` of each"


def _module_of(attempt: Ways, summed: list[torch.Tensor]) -> str:
    """The smallest of the user's modules that has all of some parameters, as it is written outside; or ""."""
    wanted = {id(each) for each in summed}
    sizes = {}
    for path, value in _held(attempt):
        if isinstance(value, torch.nn.Module):
            own = {id(each) for each in value.parameters()}
            sizes.update({path: len(own)} if wanted <= own else {})
    return min(sizes, key=lambda path: (sizes[path], path.count(".")), default="")


def _held(attempt: Ways) -> Iterator[tuple[str, object]]:
    """Variables around the function, and what their objects hold."""
    for name, value in attempt.space.items():
        yield name, value
        inside = getattr(value, "__dict__", None)
        if isinstance(inside, dict) and not isinstance(value, (torch.nn.Module, type)) and not callable(value):
            yield from ((f"{name}.{each}", held) for each, held in inside.items())
