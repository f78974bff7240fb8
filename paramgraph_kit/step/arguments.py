"""The arguments of a call: their tensors, and the key of the graph that may take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramgraph_kit.backend.call_state import switches, tensor_key, value_key
from paramgraph_kit.backend.plain import PLAIN
from paramgraph_kit.capture.pair import alignment_of
from paramgraph_kit.driver.api import Driver
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason

Key = tuple[Any, ...]  # (layouts and switches, plain values)


class Arguments:
    """Keys of calls; the structures that arguments came in are remembered, for not every torch can hash them."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._specs: list[pytree.TreeSpec] = []

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Key, list[torch.Tensor]]:
        """The key of a call and its tensors.

        Raises:
            RefusedError: an argument of a kind that no graph takes.
        """
        leaves, number = self._leaves(args, kwargs)
        tensors: list[torch.Tensor] = []
        layouts: list[Any] = [number, switches(), torch.is_autocast_cache_enabled()]
        values: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                tensors.append(leaf)
                layouts.append((*tensor_key(leaf), self._alignment(leaf)))
            else:
                layouts.append(None)
                values.append(value_key(leaf))
        if len(tensors) > 1:
            first: dict[int, int] = {}
            layouts.append(tuple([first.setdefault(id(x), n) for n, x in enumerate(tensors)]))  # one given twice
        return (tuple(layouts), tuple(values)), tensors

    def rebuilt(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Sequence[torch.Tensor]], tuple[tuple[Any, ...], dict[str, Any]]]:
        """A function from other tensors to arguments like these."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        values = [None if isinstance(x, torch.Tensor) else x for x in leaves]
        holes = [n for n, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        places: dict[int, int] = {}
        for n in holes:
            places.setdefault(id(leaves[n]), n)
        same = [holes.index(places[id(leaves[n])]) for n in holes]

        def rebuild(tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            filled = list(values)
            for n, which in zip(holes, same, strict=True):
                filled[n] = tensors[which]
            made: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(filled, spec)
            return made

        return rebuild

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Sequence[Any], int]:
        if not kwargs and all(isinstance(x, torch.Tensor) or type(x) in PLAIN for x in args):
            return args, -1 - len(args)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        for number, known in enumerate(self._specs):
            if known == spec:
                return leaves, number
        self._specs.append(spec)
        return leaves, len(self._specs) - 1

    def _alignment(self, tensor: torch.Tensor) -> int:
        if tensor.device != self._driver.device:
            text = f"an argument is on {tensor.device}, the graph on {self._driver.device}: its value would be baked"
            raise RefusedError(Reason("foreign-input", text))
        return alignment_of(self._driver.address_of(tensor))
