"""Results of a rewritten step that are of float64, since a number that it kept is a tensor of it now."""

from __future__ import annotations

import torch

from paramgraph_kit.rewrite.proving.closeness import RETURNS
from paramgraph_kit.rewrite.proving.proof import Truth
from paramgraph_kit.rewrite.rounds import Rounds
from paramgraph_kit.rewrite.ways import Ways

WIDER = (
    "{what} is of float64 now, as a number that it kept is a tensor of it: where that goes into tensors of {dtype}, "
    "`.to({dtype})` makes it what it was"
)


def told(attempt: Ways, rounds: Rounds, truth: Truth) -> list[str]:
    """What to know of them."""
    if not any("float64" in line for lines in rounds.texts.values() for line in lines):
        return []
    then = truth.seen.get(RETURNS, [])
    try:
        with rounds.applied():
            now = attempt.prover.from_now().eager(rounds.around).get(RETURNS, [])
    except Exception:  # what was proved once more
        return []
    if len(then) != len(now):
        return []
    wide = [(x.dtype, k) for k, (x, y) in enumerate(zip(then, now, strict=True)) if _is_wider(x, y)]
    if not wide:
        return []
    what = RETURNS if len(then) == len({k for _, k in wide}) else f"a part of {RETURNS}"
    return [WIDER.format(what=what, dtype=wide[0][0])]


def _is_wider(then: object, now: object) -> bool:
    tensors = isinstance(then, torch.Tensor) and isinstance(now, torch.Tensor)
    return tensors and then.is_floating_point() and then.dtype != now.dtype == torch.float64  # type: ignore[attr-defined]
