"""The arguments of a call: their tensors, and the key of the graph that may take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramgraph_kit.backend.call_state import (
    attributes_of,
    global_state_guard,
    switches,
    tensor_guard,
    tensor_key,
    unguarded_switches,
    value_key,
)
from paramgraph_kit.backend.plain import PLAIN, flatten, is_bare, plain_key
from paramgraph_kit.capture.pair import alignment_of
from paramgraph_kit.driver.api import Driver
from paramgraph_kit.driver.native.build import checks
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason

Key = tuple[Any, ...]  # (layouts and switches, plain values)


# What code calls that asks how tensors lie in memory.
ASKS = frozenset(("data_ptr", "storage", "untyped_storage", "storage_offset", "is_set_to", "_base", "_is_view"))
LOOKS = 4  # calls that others are compared with before a key is made


class _Look:
    """What one call of tensors alone looked like, asked for in a few calls of C++."""

    def __init__(self, driver: Driver, key: Key, tensors: Sequence[torch.Tensor]) -> None:
        self.key = key
        self._address = driver.address_of
        self._global, self._more = global_state_guard(), unguarded_switches()
        self._cache = torch.is_autocast_cache_enabled()
        self._tensors = tensor_guard(tensors)
        self._alignments = [alignment_of(driver.address_of(x)) for x in tensors]
        self._given: Any = None  # the same in C++, made of tensors that are alike; False where it has none

    def fits(self, args: tuple[Any, ...]) -> bool:
        """Whether the key of these is the same."""
        return (
            self._alike(args)
            and self._global()
            and unguarded_switches() == self._more
            and torch.is_autocast_cache_enabled() is self._cache
            and not any(map(_has_gradient, args))
        )

    def _alike(self, args: tuple[Any, ...]) -> bool:
        native = checks()
        if native is not None and self._given:
            return bool(native.alike(self._given, args))
        alike = (
            len(args) == len(self._alignments)
            and self._tensors(*args)
            and [alignment_of(self._address(x)) for x in args] == self._alignments
            and not any(map(vars, args))  # each with attributes of its own has a key
        )
        if alike and native is not None and self._given is None:
            self._given = native.given(args) or False
        return alike


class Arguments:
    """Keys of calls; the structures that arguments came in are remembered, for not every torch can hash them."""

    def __init__(self, driver: Driver) -> None:
        self.asked = False  # the step's code may ask how its arguments lie in memory
        self._driver = driver
        self._specs: list[pytree.TreeSpec] = []
        self._looks: list[_Look] = []

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Key, list[torch.Tensor]]:
        """The key of a call and its tensors.

        Raises:
            RefusedError: an argument of a kind that no graph takes.
        """
        if not kwargs and not self.asked and all(isinstance(x, torch.Tensor) for x in args):
            for look in self._looks:
                if look.fits(args):
                    return look.key, list(args)
        leaves, number = self._leaves(args, kwargs)
        tensors: list[torch.Tensor] = []
        layouts: list[Any] = [number, switches(), torch.is_autocast_cache_enabled()]
        values: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                if _has_gradient(leaf):
                    text = "an argument has a gradient (.grad), which is another one at each call"
                    raise RefusedError(Reason("unknown-argument", f"{text}: give that as an argument of its own"))
                tensors.append(leaf)
                layouts.append(
                    (*tensor_key(leaf), self._alignment(leaf), *map(_attribute, attributes_of(leaf).items()))
                )
            else:
                layouts.append(None)
                values.append(value_key(leaf))
        first: dict[int, int] = {}
        layouts.append(tuple([first.setdefault(id(x), n) for n, x in enumerate(tensors)]))  # one given twice
        if self.asked:
            layouts.append(_lying(tensors))
        key = tuple(layouts), tuple(values)
        # A default device is a mode, of which only the number is asked for; one tensor given twice has no look.
        plain = not any(map(vars, tensors))
        if (
            plain
            and tensors
            and len(tensors) == len(args) == len(set(map(id, tensors)))
            and number < 0
            and not torch_name("_len_torch_function_stack")()
        ):
            self._looks = [_Look(self._driver, key, tensors), *self._looks[: LOOKS - 1]]
        return key, tensors

    def rebuilt(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Sequence[torch.Tensor]], tuple[tuple[Any, ...], dict[str, Any]]]:
        """A function from other tensors to arguments like these."""
        leaves, spec = flatten((args, kwargs))
        holes = [n for n, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        places: dict[int, int] = {}
        for n in holes:
            places.setdefault(id(leaves[n]), n)
        same = [holes.index(places[id(leaves[n])]) for n in holes]

        def rebuild(tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            filled = list(leaves)
            for n, which in zip(holes, same, strict=True):
                filled[n] = tensors[which]
                if (own := vars(leaves[n])) and not vars(tensors[which]):
                    vars(tensors[which]).update(own)
            made: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(filled, spec)
            return made

        return rebuild

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Sequence[Any], int]:
        if not kwargs and all(isinstance(x, torch.Tensor) or type(x) in PLAIN for x in args):
            return args, ~len(args)
        leaves, spec = flatten((args, kwargs))
        for number, known in enumerate(self._specs):
            if known == spec:
                return leaves, number
        self._specs.append(spec)
        return leaves, len(self._specs) - 1

    def _alignment(self, tensor: torch.Tensor) -> int:
        if tensor.device != self._driver.device:
            there = self._driver.device
            text = (
                f"an argument is on {tensor.device}, the graph on {there}: its value would be baked, so give it there"
            )
            raise RefusedError(Reason("foreign-input", text))
        return alignment_of(self._driver.address_of(tensor))


def _lying(tensors: Sequence[torch.Tensor]) -> Any:
    """What code may ask of memory, but for the addresses themselves: which are the same, and what is a view of what."""
    addresses: dict[int, int] = {}
    storages: dict[int, int] = {}
    return tuple(
        [
            (
                addresses.setdefault(x.data_ptr(), n),
                storages.setdefault(x.untyped_storage().data_ptr(), n),
                x.storage_offset(),
                x.untyped_storage().nbytes(),
                x._is_view(),
            )
            for n, x in enumerate(tensors)
        ]
    )


def _has_gradient(x: torch.Tensor) -> bool:
    return not x.requires_grad and x.grad is not None  # one that needs gradients is refused for that


def _attribute(item: tuple[str, Any]) -> Any:
    """An argument's own attribute in a key: a number that the step may read."""
    name, value = item
    if not is_bare(value):
        text = f"an argument has an attribute that is a {type(value).__name__} (.{name}): give it as an argument"
        raise RefusedError(Reason("unknown-argument", text))
    return name, plain_key(value)
