"""Whether enough of a step is in its graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paramgraph_kit.doctor.observe.refusals import operation
from paramgraph_kit.driver.profiling import unseen
from paramgraph_kit.driver.select import device
from paramgraph_kit.driver.tensors import on_device
from paramgraph_kit.rewrite.proving.proof import Around, Prover
from paramgraph_kit.rewrite.proving.written import FREE, PRODUCTS

FEW = 20  # times as much behind a graph as there is in it
ENOUGH = 4  # operations in a graph, of a step without products whose rest may run behind it


class Worth(NamedTuple):
    """How many operations of a step are in its graph, and how many around it; the same of its products."""

    inside: int = 0
    behind: int = 0
    products: int = 0
    products_behind: int = 0
    ahead: int = 0  # of those behind it: what comes before the launch

    @classmethod
    def of(cls, prover: Prover, ahead: Ahead | None = None) -> Worth:
        """That of the step that was run last, with what the device did before its launch."""
        (inside, behind), (products, others) = prover.operations, prover.products
        more, of_them = ahead.most if ahead is not None else (0, 0)
        return cls(inside, behind + more, products, others + of_them, more)

    @property
    def told(self) -> str:
        """How much of a step is in the graph, in words."""
        where = "around" if 0 < self.ahead < self.behind else "ahead of" if self.ahead else "behind"
        every = self.inside + self.behind
        return f"{self.inside} of {every} operations of a step are in the graph, the others run {where} it"

    @property
    def is_worth_telling(self) -> bool:
        """Whether the graph lacks so much that a reader of the lines might take it for more than it is."""
        return self.behind >= ENOUGH or self.behind > self.inside

    @property
    def share(self) -> float:
        """How much of it is in the graph: of its products, where it has any."""
        inside, behind = self.inside, self.behind
        if self.products or self.products_behind:
            inside, behind = self.products, self.products_behind
        return inside / (inside + behind) if inside + behind else 1.0

    @property
    def is_little(self) -> bool:
        """Whether less than half of it is, and what is not would be worth a graph of its own."""
        only_counts = self.inside < ENOUGH and self.products_behind > self.products == 0  # ``n.add_(1)``, and no layer
        return self.share < 0.5 and (self.behind >= ENOUGH or only_counts)

    @property
    def is_tiny(self) -> bool:
        """Whether it is so little of all operations that the products in it are not what the step is about."""
        return self.behind >= FEW * max(self.inside, ENOUGH)


ALL = Worth()


class Ahead(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts what the device does before launches, of the step in which that is most."""

    def __init__(self, around: Around) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._before, self._count = around.before, (0, 0)
        self.most = (0, 0)
        self.around = replace(around, before=self._counted) if around.before is not None else around

    def _counted(self, inputs: Any) -> None:
        self._count = (0, 0)
        if self._before is not None:
            with self:
                self._before(inputs)
        self.most = max(self.most, self._count)

    @unseen
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made, name, (every, products) = func(*args, **(kwargs or {})), operation(func).name, self._count
        tensors = (each for each in tree_leaves(made) if isinstance(each, torch.Tensor))
        if name not in FREE and any(map(on_device(device().type), tensors)):
            self._count = every + 1, products + (name in PRODUCTS)
        return made


class Share:
    """How much of all that a function does functions have that it calls."""

    def __init__(self, prover: Prover) -> None:
        self._count, self._inside = prover.counted, [0, 0]
        self._begun = [*self._count]

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, counted."""

        def one(*given: Any) -> Any:
            before = [*self._count]
            try:
                return function(*given)
            finally:
                for kind, number in enumerate(before):
                    self._inside[kind] += self._count[kind] - number

        return one

    def worth(self) -> Worth:
        """What it comes to since this was made, launches aside."""
        (inside, products), (every, of_them) = self._inside, map(int.__sub__, self._count, self._begun)
        return Worth(inside, every - inside, products, of_them - products)


def is_mostly_inside(prover: Prover) -> bool:
    """Whether more of a step is in the graph than behind it."""
    return Worth.of(prover).share >= 0.5
