"""Questions about hundreds of tensors at once, asked at each call: in C++ where it is built, in Python until then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import attrgetter, is_, or_
from typing import Any

import torch

from paramgraph_kit.driver.native.build import checks
from paramgraph_kit.driver.torch_names import torch_name

_address = torch.Tensor.data_ptr
_gradient = attrgetter("grad")
_version = attrgetter("_version")
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Looks:
    """What some tensors, all different ones, looked like when this was made, and where they lay; they are held.

    >>> tensors = [torch.zeros(2, 3), torch.ones(4)]
    >>> looks = Looks(tensors)
    >>> looks.same()
    True
    >>> _ = tensors[0].t_()
    >>> looks.same()
    False
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tuple(tensors)
        self._addresses = list(map(_address, self.tensors))
        guards = torch_name("TensorGuards")
        self._check: Callable[..., bool] | None = (
            guards(*self.tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check if tensors else None
        )
        self._look: Any = None
        self._asked = False  # whether C++ was asked for a look: of tensors of other kinds it has none

    @property
    def check(self) -> Any:
        """For ``unchanged`` of the module in C++, once ``same`` has made it; None where C++ has no such look."""
        return self._look

    def same(self) -> bool:
        """Whether address, type, kind, layout, and whether they need gradients, are as they were."""
        native = checks()
        if native is None:
            return self._same()
        if not self._asked:
            look = native.look(self.tensors)
            if not self._same():  # asked for second: the look is of tensors that were the same
                return False
            self._asked, self._look = True, look
        return bool(native.same(self._look)) if self._look is not None else self._same()

    def lie(self) -> bool:
        """Whether the addresses alone are as they were."""
        return list(map(_address, self.tensors)) == self._addresses

    def _same(self) -> bool:
        if not self.lie():
            return False
        return self._check is None or self._check(*self.tensors)


class Gradients:
    """Of some tensors, to be compared with others at each call.

    >>> weight, gradient = torch.nn.Parameter(torch.zeros(2)), torch.ones(2)
    >>> weight.grad = gradient
    >>> Gradients([weight]).are([gradient]), Gradients([weight]).are([None])
    (True, False)
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = list(tensors)
        self._plain = all(type(x) in _PLAIN for x in self._tensors)  # of others ``grad`` may be code

    def are(self, known: list[Any]) -> bool:
        """Whether they are these objects, or None."""
        native = checks()
        if native is not None and self._plain:
            return bool(native.gradients_are(self._tensors, known))
        return all(map(is_, map(_gradient, self._tensors), known))


def aligned_addresses(inputs: list[Any], mask: int) -> Sequence[int] | None:
    """Of tensors, and of numbers that are addresses themselves; None where any has bits of ``mask``.

    >>> x = torch.zeros(64)
    >>> aligned_addresses([x, 512], 1) == (x.data_ptr(), 512), aligned_addresses([x, 512], 512)
    (True, None)
    """
    native = checks()
    if native is not None:
        found: tuple[int, ...] | None = native.addresses(inputs, mask)
        return found
    listed = tuple([x if type(x) is int else _address(x) for x in inputs])
    return None if reduce(or_, listed, 0) & mask else listed


def shifted(address: int, offsets: tuple[int, ...]) -> tuple[int, ...]:
    """The addresses so many bytes behind one.

    >>> shifted(4096, (0, 512))
    (4096, 4608)
    """
    native = checks()
    found: tuple[int, ...] = (
        tuple([address + n for n in offsets]) if native is None else native.shifted(address, offsets)
    )
    return found


def versions_of(tensors: list[torch.Tensor]) -> list[int]:
    """How often each was written, as autograd counts.

    >>> versions_of([torch.zeros(2), torch.zeros(2).add_(1)])
    [0, 1]
    """
    native = checks()
    found: list[int] = list(map(_version, tensors)) if native is None else native.versions(tensors)
    return found


def written(tensors: list[torch.Tensor]) -> None:
    """Let autograd see that all of these were written; those of inference mode have nothing to see it by.

    >>> x = torch.zeros(2)
    >>> written([x, x])
    >>> x._version
    2
    """
    native = checks()
    if native is not None:
        native.written(tensors)
    else:
        torch_name("_increment_version")(tensors)
