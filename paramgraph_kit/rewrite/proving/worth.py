"""Whether enough of a step is in its graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from paramgraph_kit.rewrite.proving.proof import Prover

FEW = 20  # times as much behind a graph as there is in it
ENOUGH = 4  # operations in a graph, of a step without products whose rest may run behind it


class Worth(NamedTuple):
    """How many operations of a step are in its graph, and how many behind it; the same of its products."""

    inside: int = 0
    behind: int = 0
    products: int = 0
    products_behind: int = 0

    @classmethod
    def of(cls, prover: Prover) -> Worth:
        """That of the step that was run last."""
        return cls(*prover.operations, *prover.products)

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
