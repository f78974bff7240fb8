"""What a rewriting that was verified takes for granted, and its user should know."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from paramgraph_kit.driver.select import device
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
FIRST = (
    "where it runs once before it is captured, as a warm-up does: the first call makes `{}`, and a graph captured "
    "there would make it anew in each launch; where other code sets it, capture again behind a first call"
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

SIMULATED = (
    'once `paramgraph_kit.device()` was called, ahead of `{}` in the file: only then is "{}" a device, where none is '
    "real"
)

LED = (
    "where gradients go back from what it returns, they do so in eager code, and through no launch of a graph: to "
    'train with it, compile it instead, `torch.compile(..., backend="paramgraph")`, which keeps them'
)

_PATH = r"""([A-Za-z_][\w.]*(?:\[[\w."']+\])?)"""
_ASKED = re.compile(_PATH + r" is (?:not )?None\b")
_NUMBER = re.compile(r"if not isinstance\(" + _PATH + r", torch\.Tensor\)(?::| else )")
_ENTRY = re.compile(r"if isinstance\(" + _PATH + r"\.get\(([^()]*)\), torch\.Tensor\):")
_KEPT = re.compile(_PATH + r"(?:\.copy_\(| = .*\.clone\(\))")
NEAR = 5  # lines between the question and what it decides


def provisos(new: Sequence[str], texts: Sequence[str] = (), gone: Sequence[str] = ()) -> list[str]:
    """What goes for a rewriting's new lines, which stand among others of ``texts``, in the place of those ``gone``.

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
    count = [sum(line.count(sign) for line in new) - sum(line.count(sign) for line in gone) for sign, _ in signs]
    found = [text for (_, text), more in zip(signs, count, strict=True) if more > 0]  # the rest is the user's own
    found += _of_simulated(new, texts)
    return list(dict.fromkeys([*found, *(FIRST.format(name) for name in _made_first(new, texts))]))


def _of_simulated(new: Sequence[str], texts: Sequence[str]) -> list[str]:
    """What a new line of the file itself takes for granted that names the simulated device."""
    kind, added = device().type, {line[1:].rstrip() for line in new}
    if kind == "cuda":
        return []
    for at, line in enumerate(texts):
        own = line[:1].strip() and line.rstrip() in added
        if own and f'device="{kind}"' in line and not any(".device(" in before for before in texts[:at]):
            return [SIMULATED.format(line.partition(" = ")[0], kind)]
    return []


def _made_first(new: Sequence[str], texts: Sequence[str]) -> Iterator[str]:
    """What lines write in place once the first call has made it: until then it is None, or there is no entry."""
    added = {line[1:].rstrip() for line in new}
    outer = " ".join(line for line in texts if line.lstrip().startswith(("global ", "nonlocal ")))
    for at, line in enumerate(texts):
        if line.rstrip() not in added:
            continue
        for name in _KEPT.findall(line):
            asked = "".join(texts[max(at - NEAR, 0) : at + 1])
            entries = [f"{table}[{key}]" for table, key in _ENTRY.findall(asked)]
            lasts = "." in name or "[" in name or re.search(rf"\b{name}\b", outer)
            if lasts and name in [*_ASKED.findall(asked), *_NUMBER.findall(asked), *entries]:
                yield name
