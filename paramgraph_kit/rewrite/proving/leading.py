"""Whether gradients go back from what a step returns, those that have come back, and what optimizers keep of them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

from paramgraph_kit.doctor.restore.holder import Holder
from paramgraph_kit.doctor.restore.host_state import is_optimizers
from paramgraph_kit.rewrite.proving.closeness import WRITES
from paramgraph_kit.rewrite.proving.results import flat

MOST = 200  # nodes of its graph that are looked at
NEAR = 3  # those that have tensors: what a checkpoint keeps farther back would be computed again to be seen


def leads_back(value: Any) -> bool:
    """Whether a backward pass can begin at a value.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> loss = (weight * weight).sum()
    >>> leads_back(loss), loss.backward(), leads_back(loss), leads_back(loss.detach())
    (True, None, False, False)
    """
    todo: list[Any] = [value.grad_fn] if isinstance(value, torch.Tensor) and value.grad_fn is not None else []
    led, known = bool(todo), 0
    for node in todo:
        kept = _keeps(node)
        if kept is False:
            return False
        known += kept is True
        if known == NEAR:
            return True
        todo += [each for each, _ in node.next_functions if each is not None and len(todo) < MOST]
    return led


def gradients_of(leaves: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of gradients: none and zeros are the same to whoever adds to them; a step that differs shows elsewhere."""
    found = (leaf.grad if leaf.grad is not None else torch.zeros_like(leaf) for leaf in leaves)
    return [each.detach().cpu().clone() for each in found]


def _keeps(node: Any) -> bool | None:
    """Whether a node still has the tensors that it needs; None where it needs none."""
    found = None
    for name in _named(node.__class__):
        try:
            found = found or any(isinstance(part, torch.Tensor) for part in _parts(getattr(node, name))) or None
        except RuntimeError as error:
            if "freed" in str(error):
                return False  # and not written over, which a graph's replay does to its own
    return found


def _parts(saved: Any) -> tuple[Any, ...]:
    return tuple(saved) if isinstance(saved, (tuple, list)) else (saved,)


@cache
def _named(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_saved_") or name == "saved_tensors")


def kept_by_optimizers(holders: Iterable[Holder]) -> dict[str, list[Any]]:
    """What optimizers of torch's keep of their parameters, and what lines of the user's have put there.

    No counts: these are numbers, or lie elsewhere, in a form for a capture.
    """
    found = dict[str, list[Any]]()
    for number, holder in enumerate(each for each in holders if is_optimizers(each)):
        parameters = [p for group in holder.target["param_groups"] for p in group["params"]]
        for kept in (holder.target["state"].get(p) for p in parameters):
            for name, value in kept.items() if isinstance(kept, dict) else ():
                if isinstance(value, torch.Tensor) and value.dim():
                    found.setdefault(f"{WRITES} (`{name}` of an optimizer)#{number}", []).extend(flat(value))
    return found
