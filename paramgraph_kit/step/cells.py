"""Cells: places that a step lets hold another tensor, and that each launch therefore writes.

Gradients, a hidden state that is carried on, an average that is bound anew. A cell holds a tensor, None, or tensors in
lists, tuples and dicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramgraph_kit.backend.plain import PLAIN, flatten, same
from paramgraph_kit.driver.tensors import has_memory
from paramgraph_kit.step.holders import EMPTY, Holder
from paramgraph_kit.step.observe import Change
from paramgraph_kit.step.spent import is_spent
from paramgraph_kit.step.values import shown
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason

TENSOR = object()
Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device, bool]


def layout(tensor: torch.Tensor) -> Layout:
    """What a graph that reads a tensor depends on."""
    return (
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.dtype,
        tensor.device,
        tensor.requires_grad or tensor.is_conj() or tensor.is_neg(),
    )


@dataclass(slots=True)
class Cell:
    """One such place: what it held at the entry of the call, and how what it holds at the exit is put together."""

    holder: Holder
    key: Any
    leaves: list[Any]  # at entry; in the places of tensors TENSOR: it holds none itself
    spec: pytree.TreeSpec
    layouts: list[Layout | None]
    exits: list[int | None]  # for each leaf at exit its number among the step's tensors; None: a plain value
    plain: list[Any]
    exit_spec: pytree.TreeSpec
    reads: list[int] = field(default_factory=list)  # which of the tensors at entry a launch reads

    @property
    def place(self) -> str:
        """As the code names it."""
        return self.holder.place(self.key)

    def held(self) -> Any:
        """What it holds now."""
        return self.holder.target.grad if self.holder.kind == "gradient" else self.holder.read().get(self.key, EMPTY)

    def entering(self) -> list[torch.Tensor] | None:
        """The tensors that it holds now, or None where they are of another kind than at the captured entry."""
        held = self.held()
        if type(held) is torch.Tensor and self.spec.is_leaf():  # nearly always
            return [held] if layout(held) == self.layouts[0] else None
        leaves, spec = flatten(held)
        if spec != self.spec:
            return None
        for leaf, then, known in zip(leaves, self.leaves, self.layouts, strict=True):
            if known is None:
                if not same(leaf, then):
                    return None
            elif not isinstance(leaf, torch.Tensor) or layout(leaf) != known:
                return None
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def put(self, tensors: Sequence[torch.Tensor]) -> None:
        """Let it hold what the step leaves there."""
        leaves = [p if n is None else tensors[n] for n, p in zip(self.exits, self.plain, strict=True)]
        if self.exit_spec.is_leaf():
            self.holder.put(self.key, leaves[0])
            return
        self.holder.put(self.key, pytree.tree_unflatten(leaves, self.exit_spec))


def cells_of(changes: Iterable[Change], lazily: bool) -> list[tuple[Change, list[Any], pytree.TreeSpec]]:
    """The changes that a launch can make again, with the leaves that they leave.

    With ``lazily`` what was not there before may have been made for good, as an optimizer's state is.

    Raises:
        RefusedError: a change of something else than tensors.
    """
    found = []
    for change in changes:
        made = change.before is None or change.before is EMPTY
        grown = change.holder.kind == "sequence" and change.before is EMPTY
        if (
            change.after is EMPTY
            or grown
            or change.holder.kind in ("cached", "asked")
            or (lazily and made and change.holder.kind != "gradient")
        ):
            raise RefusedError(side_effect(change))
        leaves, spec = flatten(change.after)
        entry = pytree.tree_leaves(change.before)
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        wrappers = [x for x in (*tensors, *entry) if isinstance(x, torch.Tensor) and not _is_plain(x)]
        if wrappers:
            text = f"{change.place} holds a {type(wrappers[0]).__name__}, which no launch can put together"
            raise RefusedError(Reason("unknown-output", f"{text}: keep plain tensors there, or nothing after the step"))
        plain = [x for x in leaves if not isinstance(x, torch.Tensor)]
        clears = not tensors and all(x is None for x in plain) and any(isinstance(x, torch.Tensor) for x in entry)
        then = [x for x in entry if not isinstance(x, torch.Tensor)]
        known = all(isinstance(x, PLAIN) for x in plain) or _are_there(plain, then)
        settled = clears or (known and (not plain or same(plain, then)))
        if not (tensors or clears) or not settled:
            raise RefusedError(side_effect(change))
        if any(x.requires_grad and not is_spent(x) for x in tensors):
            whose = change.place if isinstance(change.after, torch.Tensor) else "each"
            text = f"{change.place} holds a tensor that needs gradients afterwards: keep {whose}.detach() there"
            raise RefusedError(Reason("requires-grad", text))
        found.append((change, leaves, spec))
    return found


def _are_there(now: Sequence[Any], then: Sequence[Any]) -> bool:
    """Whether values are plain, or the very objects that were there before, as ``self`` beside tensors of each call."""
    return len(now) == len(then) and all(isinstance(x, PLAIN) or x is y for x, y in zip(now, then, strict=True))


def side_effect(change: Change) -> Reason:
    """The refusal of a change that no launch would make."""
    was = "not there" if change.before is EMPTY else shown(change.before)
    text = f"{change.place} was {was} and is {'gone' if change.after is EMPTY else shown(change.after)} after the call"
    if change.holder.kind == "asked" and isinstance(change.holder.target, torch.Tensor):
        text = f"{change.holder.name} is a {type(change.holder.target).__name__} with other tensors inside"
        return Reason("side-effect", f"{text} after the call, which a launch would not put there: write into them")
    if change.before is EMPTY and change.holder.kind == "sequence":
        text = f"{change.holder.name} is longer after the call"
    if change.holder.kind == "cached":
        text = f"the cached function {change.holder.name} computes something at each call, which a launch would not do"
        return Reason("side-effect", f"{text}: keep what changes out of its arguments")
    if change.key in ("lr", "betas", "momentum", "weight_decay"):
        return Reason("changing-scalar", f"{text}, and a graph has it baked in: make it a tensor on the device")
    text += f", which a launch would not do again: {_instead(change)} (pgk.diagnose(step) shows where)"
    return Reason("side-effect", text)


def _instead(change: Change) -> str:
    """What to write for a change that no launch makes."""
    numbers = isinstance(change.before, (int, float)) and isinstance(change.after, (int, float))
    if numbers and not isinstance(change.after, bool):
        return "count behind each launch, or in a tensor on the device that the step adds to"
    if change.before is EMPTY and change.holder.kind == "sequence":
        return "return what is appended, and append it behind each launch"
    if change.after is EMPTY:
        return "take it away before the first call, or behind each launch"
    if any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves(change.after)):
        return "make it once, before the first call, and write into it"
    return f"set {change.place} before or behind each launch"


def _is_plain(x: torch.Tensor) -> bool:
    """Whether a launch gives what the call does: of a class of the user's it would give a plain tensor."""
    return has_memory(x) and type(x) in (torch.Tensor, torch.nn.Parameter)
