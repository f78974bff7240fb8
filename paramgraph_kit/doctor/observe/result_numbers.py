"""The numbers of what a call returns, also those that it has brought to the host, or made text of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from paramgraph_kit.doctor.observe.held import results_in


def numbers_of(result: Any) -> list[torch.Tensor]:
    """Copies of them, on the CPU.

    >>> [each.tolist() for each in numbers_of([torch.ones(1), 2, (0.5, "a")])]
    [[1.0], [2.0, 0.5], [97]]
    """
    found = [t.detach().cpu().clone() for t in results_in(result)]
    with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
        found += _on_host(tree_leaves(result))
    return found


def _on_host(leaves: list[Any]) -> Iterator[torch.Tensor]:
    numbers = [float(each) for each in leaves if type(each) in (bool, int, float)]
    if numbers:
        yield torch.tensor(numbers, dtype=torch.float64)
    yield from (torch.tensor([*each.encode()]) for each in leaves if type(each) is str)
    arrays = (each for each in leaves if type(each).__module__ == "numpy" and hasattr(each, "dtype"))
    for each in arrays:
        if each.dtype.kind in "biuf":
            yield torch.as_tensor(each.copy())
        elif each.dtype.kind in "US":
            yield torch.tensor([*str(each.tolist()).encode()])
