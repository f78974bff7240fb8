"""Sizes that the host makes of other whole numbers: ids in another order, as steps of a trial have them, show one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite.around.watched import Values
from paramgraph_kit.rewrite.proving.deadline import RAISES
from paramgraph_kit.rewrite.proving.proof import Arguments, Prover


def note_other_sizes(prover: Prover, found: Sequence[Values]) -> None:
    """Add the sizes that what is watched has where whole numbers that steps are given are smaller, each in its way."""
    known = [each for each in found if each.form is not None and each.form.shape]
    if not known or device().type == "cuda" or not any(map(_is_whole, tree_leaves(prover.inputs))):
        return  # on a GPU an index that is none ends the process's context

    def smaller(step: int, given: Arguments) -> Arguments:
        changed: Arguments = tree_map(lambda value: value // (step + 2) if _is_whole(value) else value, given)
        return changed

    before = [({*each.forms}, {*each.kinds}, [*each.seen], each.as_tensor, each.listed) for each in found]
    try:
        prover.from_now().given(smaller).eager()
    except RAISES:
        pass  # it does not take them
    finally:
        for each, (forms, kinds, seen, as_tensor, listed) in zip(found, before, strict=True):
            shapes = {form.shape for form in forms}
            each.forms = forms | {form for form in each.forms if forms and form.shape not in shapes}
            each.kinds, each.seen, each.as_tensor, each.listed = kinds, seen, as_tensor, listed


def _is_whole(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.numel() < 2:
        return False
    return not (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool)
