"""Tensors within arguments: entries of dictionaries, lists and tuples, and fields of objects that have only such."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.numbers_within import parts_of, with_parts

_DEEP = 3
_IS_ONE = (torch.Tensor, np.ndarray)


def tensors_within(value: Any, path: str = "", deep: int = _DEEP) -> Iterator[tuple[str, Any]]:
    """All of them, with how each is reached: ``["lengths"]``."""
    if is_a(value, _IS_ONE):
        yield path, value
    elif deep:
        for key, each, _ in parts_of(value):
            yield from tensors_within(each, path + key, deep - 1)


def with_tensors_within(value: Any, others: Mapping[int, Any], deep: int = _DEEP) -> Any:
    """The same with other tensors, in containers of its own; itself where there are none of its ids."""
    if is_a(value, _IS_ONE):
        return others.get(id(value), value)
    parts = [(key, with_tensors_within(e, others, deep - 1), e) for key, e, _ in parts_of(value) if deep]
    return with_parts(value, parts)
