"""A step with inputs of other kinds than its own: what six steps alike do not show of lines that are rewritten.

Negated inputs take other ways of a branch, a batch of fewer rows has other sizes, a rate of 1 may be 0.5 later. Labels
that are all the same leave experts without rows, a mask may pick nothing, and where a program asks for nan it is
given one. Where the original runs with such, the rewritten lines have to give the same, or to raise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_leaves, tree_map

from paramgraph_kit.driver.select import device
from paramgraph_kit.driver.work import worked_s
from paramgraph_kit.rewrite.proving.chosen import Chosen
from paramgraph_kit.rewrite.proving.closeness import GRADIENTS, OF_ARGUMENTS, loosely_apart
from paramgraph_kit.rewrite.proving.deadline import RAISES, Deadline
from paramgraph_kit.rewrite.proving.filled import STEPS, fillings
from paramgraph_kit.rewrite.proving.handed_again import with_own_entries
from paramgraph_kit.rewrite.proving.marked import Cut, looked_up, marks, of_one_kind
from paramgraph_kit.rewrite.proving.proof import Arguments, Around, Prover, Seen, Truth
from paramgraph_kit.rewrite.source.edits import Source

LIMIT_S = 4.0
UNTRIED = "it was not run {how}: such trials had taken long enough"
# By which a program tells that it is given what is no number; others have gone wrong before.
_NAN = re.compile(r"isnan|isfinite|isinf|nan_to_num|nanmean|nansum|\bnan\b|\b(\w+) [!=]= \1\b")
AS_THEY_ARE = "as they are"
NEGATIVE = (
    "where none of the whole numbers that it is given is negative, as a length is not: eager counts such from the end"
)
Change = Callable[[Any], Any]


def _scaled(by: float) -> Change:
    def change(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        return (value.detach() * by).requires_grad_(value.requires_grad)

    return change


def _nowhere(value: Any) -> Any:
    """Masks that pick nothing."""
    masks = isinstance(value, torch.Tensor) and value.dtype is torch.bool
    return torch.zeros_like(value) if masks else value


def _more(value: Any) -> Any:
    return value + 1 if type(value) is int else value * 0.5 if type(value) is float else value


def _broken(value: Any) -> Any:
    """Half of a whole number, which may have been a rate."""
    return value + 0.5 if type(value) is int else value


def _alike(value: Any) -> Any:
    """Labels, or lengths, that are all one of them: experts that nobody has chosen, rows that are all of one kind."""
    if not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex() or value.numel() < 2:
        return value
    return value.flatten()[:1].expand(value.numel()).reshape(value.shape).clone()


def _halved(value: Any) -> Any:
    """Half of whole numbers: lengths that no longer add up to all rows."""
    whole = isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()
    return value.clone() // 2 if whole and value.dtype is not torch.bool else value


def _negative(value: Any) -> Any:
    """Below zero what is whole: places that count from the end."""
    whole = isinstance(value, torch.Tensor) and not value.is_floating_point() and not value.is_complex()
    return -value.abs() if whole and value.dtype not in (torch.bool, torch.uint8) else value


def _with_nan(number: int) -> Change:
    """One element of one of the arguments is nan, as what is missing in data is."""
    seen = count()

    def change(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or next(seen) != number:
            return value
        plain = value.detach().clone(memory_format=torch.contiguous_format)
        plain.view(-1)[plain.numel() // 2 : plain.numel() // 2 + 1] = torch.nan
        return plain.requires_grad_(value.requires_grad)

    return change


def _rows(given: Arguments, number: int | None = None) -> Change:
    """So many of the rows that all tensors have; without a number half of them."""
    sizes = {len(each) if each.dim() else 0 for each in tree_leaves(given) if isinstance(each, torch.Tensor)}
    rows = min(sizes, default=0)
    if len(sizes) != 1 or rows < 2:
        return lambda value: value
    kept = rows // 2 if number is None else number

    def change(value: Any) -> Any:
        cut = isinstance(value, torch.Tensor)
        return value.detach()[:kept].clone().requires_grad_(value.requires_grad) if cut else value

    return change


class Lent(Protocol):
    """Rewritten lines, and what goes around their launch."""

    around: Around

    def applied(self) -> AbstractContextManager[None]:
        """While this lasts the user's functions run them."""


class Conditions:
    """What the original does with such inputs, in one step each; ``names`` are those that six steps can compare."""

    def __init__(self, prover: Prover, names: Collection[str], sources: Iterable[Source], *, expects_nan: bool) -> None:
        self.prover = prover
        self._names = frozenset(names)  # of what can be compared at all
        self._known: dict[str, tuple[Prover, Seen] | None] = {}
        self.asked: list[str] = []  # in which a trial looks at each rewritten line
        self._untried: list[str] = []  # in which nobody has looked at the latest, as time was up
        floats = [t for t in tree_leaves(prover.inputs) if isinstance(t, torch.Tensor) and t.is_floating_point()]
        found: dict[str, Change] = {AS_THEY_ARE: lambda value: value}
        self._filled = fillings(prover, anything=device().type != "cuda")
        found |= dict.fromkeys(self._filled, found[AS_THEY_ARE])
        # On a GPU an index or a probability that is none ends the process's context: there only what makes none.
        if device().type != "cuda" or all(bool((t < 0).any()) for t in floats):
            found["negated"] = _scaled(-1.0)
        found["64 times as small"] = _scaled(1 / 64)
        found["that are all false where they are masks"] = _nowhere
        if device().type != "cuda":
            found["that are zero"] = _scaled(0.0)
            found["64 times as large"] = _scaled(64.0)
            found["half as large where they are whole"] = _halved
            found["that are all the same where they are whole"] = _alike
            if expects_nan:
                found |= {f"of which number {k + 1} has a nan": _with_nan(k) for k in range(len(floats))}
            found["of half the rows"] = _rows(prover.inputs)
            found["of one row"] = _rows(prover.inputs, 1)
            found["with other numbers"] = _more
            found["with fractions in the place of whole numbers"] = _broken
        # On a GPU such a number must not even be tried.
        trees = [source.tree for source in sources]
        self._marks = marks(prover.inputs, prover.state.tensors, trees) if device().type != "cuda" else {}
        self._changes = found | self._marks

    def unlike(self, lines: Lent) -> str:
        """How rewritten lines differ from the original in the first of them in which they do, and "" in none.

        From then on ``asked`` has that one, which the trial of each rewritten line runs with.
        """
        until, ran = worked_s() + LIMIT_S, dict[str, tuple[Seen, str]]()
        self._untried = []
        for name, change in self._changes.items():
            if name not in self._known and worked_s() < until:
                self._known[name] = self._plainly(name, change)
        with lines.applied():
            for name, known in self._known.items():
                if known is None or name in self.asked:
                    continue
                if worked_s() < until + LIMIT_S:
                    ran[name] = self._now(name, *known, lines.around)
                else:
                    self._untried.append(name)
        for name, (new, why) in ran.items():
            known = self._known[name]
            if why and known is not None:
                one, seen = known
                with self._states(name):
                    calm = seen if not new else steady(one, seen)
                if not new or loosely_apart(calm, new):
                    self._known[name] = one, calm
                    self.asked.append(name)
                    return why
        return ""

    def wrong(self, around: Around) -> str:
        """How lines that run now in the place of the original's differ from it in those that were asked for."""
        found = (self._now(name, *known, around)[1] for name in self.asked if (known := self._known[name]) is not None)
        return next(filter(None, found), "")

    def provided(self, lines: Lent) -> list[str]:
        """What rewritten lines take for granted of the inputs: nobody gives a negative length, and a mask has none."""
        known = self._plainly("negative", _negative) if device().type != "cuda" else None
        if known is None:
            return []
        with lines.applied():
            new, why = self._now("negative", *known, lines.around)
        return [NEGATIVE] if why and new and loosely_apart(steady(*known), new) else []

    def untried(self) -> list[str]:
        """With what the latest rewritten lines were not run, as others had taken long enough."""
        names = [*(name for name in self._changes if name not in self._known), *self._untried]
        how = ", ".join(name if name in self._filled else f"with inputs {name}" for name in names)
        return [UNTRIED.format(how=how)] if names else []

    def _states(self, name: str) -> AbstractContextManager[None]:
        """While this lasts states are filled, where that is what a name says."""
        return self._filled[name].applied() if name in self._filled else nullcontext()

    def _plainly(self, name: str, change: Change) -> tuple[Prover, Seen] | None:
        """The original's step with other inputs; None where there are none, or it does not take them."""
        if (filled := self._filled.get(name)) is not None:
            one = self.prover.from_now().given(filled.inputs, steps=STEPS)
        else:
            given = tree_map(change, self.prover.inputs)
            same = all(x is y for x, y in zip(tree_leaves(given), tree_leaves(self.prover.inputs), strict=True))
            if same and name != AS_THEY_ARE:
                return None
            given = self.prover.inputs if same else with_own_entries(given, self.prover.inputs)
            one = self.prover.from_now().given(lambda _, inputs: given, steps=1)
        one.deadline = Deadline(LIMIT_S)  # nobody has said that the function ends with such
        cut = Cut()
        with self._states(name):
            try:
                with cut if name in self._marks else nullcontext():
                    seen = {name: values for name, values in one.eager().items() if name in self._names}
            except RAISES:
                return None
        own = self._known.get(AS_THEY_ARE)
        if cut.off or (name in self._marks and not of_one_kind(seen, own[1] if own is not None else None)):
            return None
        for kind in (GRADIENTS, OF_ARGUMENTS):
            if not all(bool(each.isfinite().all()) for each in seen.get(kind, [])):
                del seen[kind]  # such a step is left out, or its network lost: nobody reads the others of them
        return one, seen

    def _now(self, name: str, one: Prover, seen: Seen, around: Around) -> tuple[Seen, str]:
        """What the lines that run now give, which is empty where the lines themselves tell, and how that differs."""
        looked = Chosen() if name == AS_THEY_ARE else None
        own = one.from_now()
        if name in self._filled and not self._filled[name].is_held_by(own):
            return seen, ""  # what is filled is no longer what they have
        with self._states(name):
            try:
                with looked if looked is not None else nullcontext():
                    new = own.eager(around)
            except RAISES as error:
                return {}, looked_up(name, error) if name in self._marks else ""  # else that is loud
        if looked is not None and looked.unlike:
            return {}, looked.unlike
        told = loosely_apart(seen, new)
        how = name if name in self._filled else f"with inputs {name}"
        return new, f"{how} the numbers would change ({told})" if told else ""


def steady(one: Prover, seen: Seen) -> Seen:
    """What another run of the original, and other roundings, leave as it was."""
    others = [one.from_now().eager(), one.from_now().rounded(), one.from_now().rounded(others=True)]
    return {name: v for name, v in seen.items() if not any(loosely_apart({name: v}, each) for each in others)}


def unlike(prover: Prover, truth: Truth, lines: Lent, sources: Collection[Source]) -> str:
    """How rewritten lines are wrong with other inputs, for which trials of each line look from then on; or ""."""
    if truth.conditions is None:
        # Of a step that is left out nobody reads the gradients which the next one, or the loop around it, clears.
        cleared = any("zero_grad" in line for source in sources for line in source.lines)
        expects_nan = any(_NAN.search(line) for source in sources for line in source.lines)
        names = truth.seen.keys() - ({GRADIENTS} if cleared else set())
        truth.conditions = Conditions(prover, names, sources, expects_nan=expects_nan)
    known: Conditions = truth.conditions
    if known.prover is not prover:
        return ""  # it is given other arguments
    with lines.applied():
        again = known.wrong(lines.around)
    return again or known.unlike(lines)
