"""What a rewriting that was verified takes for granted, and its user should know."""

from __future__ import annotations

from collections.abc import Sequence

from paramgraph_kit.rewrite.expressions.picks.distinct import NOT_BELOW
from paramgraph_kit.rewrite.expressions.picks.longest import PADDED
from paramgraph_kit.rewrite.expressions.state.graded import OWN

ASSERTED = (
    "nowhere here: where `torch._assert_async` fails on a GPU, it ends the process's CUDA context; to go on instead, "
    "return what it asks and raise behind the launch"
)
GRADED = "an argument that was made to need gradients is the function's own tensor now: the caller's gets no `.grad`"
WITHIN = (
    "where `a : a + n` ends within its tensor: eager cuts a slice off at the end, and what indexes beyond it fails, "
    "on a GPU for the whole process"
)
RATED = (
    'a rate is a tensor now: what else sets it writes `group["lr"].fill_(rate)`; a number in its place, also one of a '
    "checkpoint from before, reaches no graph"
)
ONCE = (
    "where it runs once before it is captured, as a warm-up does: what `made_once` keeps is found in the first call, "
    "and a graph keeps what it was given then"
)
LARGER = "where the second of both is no nan: Python's `max(a, b)` and `min(a, b)` give `a` there, and the device nan"
NEGATIVE = (
    "where no number is negative: eager counts such from the end, so that -1 and the last are one element, which it "
    "changes twice"
)

LONGEST = (
    "where what the mask is laid over is as wide as the longest of the lengths: with another width eager fails, "
    "unless all lengths are one"
)

FROM_ZERO = "where the numbers that pick a module or a row are not below zero: eager counts such from the end"

LED = (
    "where gradients go back from what it returns, they do so in eager code, and through no launch of a graph: to "
    'train with it, compile it instead, `torch.compile(..., backend="paramgraph")`, which keeps them'
)


def provisos(new: Sequence[str]) -> list[str]:
    """What goes for a rewriting's new lines.

    >>> [each is WITHIN for each in provisos(["+    y = x[p + torch.arange(4, device=x.device)]"])]
    [True]
    """
    signs = [("_assert_async(", ASSERTED), (OWN, GRADED), (" + torch.arange(", WITHIN)]
    signs += [
        ("made_once[", ONCE),
        (PADDED, LONGEST),
        (NOT_BELOW, FROM_ZERO),
        ("lr=torch.tensor(", RATED),
        ('["lr"] = torch.tensor(', RATED),
    ]
    signs += [("torch.maximum(", LARGER), ("torch.minimum(", LARGER), ("there.index_fill(0, ", NEGATIVE)]
    found = [text for sign, text in signs if any(sign in line for line in new)]
    return list(dict.fromkeys(found))
