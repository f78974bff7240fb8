"""What a step makes of a class of the user's: a launch would give plain tensors, so it runs as it is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paramgraph_kit as pgk

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
DEVICE = pgk.device()
Body = Callable[[Any, Tensor], Any]


class Mine(torch.Tensor):
    """Of a class of its own, with memory as any other."""


def held() -> Any:
    """State, of which one tensor is of that class."""
    return SimpleNamespace(mine=torch.arange(4.0).to(DEVICE).as_subclass(Mine), last=torch.zeros(4).to(DEVICE))


def kept(self: Any, x: Tensor) -> Tensor:
    self.last = (x * 2).as_subclass(Mine)
    return x + 1


def exchanged(self: Any, x: Tensor) -> Tensor:
    self.mine = self.mine * 0.5 + x
    return x + 1


def written(self: Any, x: Tensor) -> Any:
    self.mine.mul_(0.5).add_(x)
    return self.mine


BODIES: dict[str, tuple[Body, bool]] = {
    "returned": (lambda self, x: (x * 2).as_subclass(Mine), False),
    "empty": (lambda self, x: x[:0].as_subclass(Mine), False),
    "of an argument": (lambda self, x: x.as_subclass(Mine), False),
    "of the state": (lambda self, x: self.mine[:2], False),
    "a parameter": (lambda self, x: nn.Parameter(x * 2, requires_grad=False), False),
    "kept": (kept, False),
    "exchanged": (exchanged, False),
    "written": (written, True),
    "read": (lambda self, x: (self.mine * x).as_subclass(Tensor), True),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_a_step_leaves_has_the_class_that_it_has_in_eager(name: str) -> None:
    # GIVEN a step that makes a tensor of a class of the user's, or only reads and writes one
    body, graphed = BODIES[name]
    ours, theirs = held(), held()
    step = pgk.parameterize(lambda x: body(ours, x), state=ours)
    for n in range(6):
        x = torch.arange(4.0).to(DEVICE) + n
        # WHEN it is stepped THEN what it returns and leaves is of eager's class, with eager's numbers
        pairs = [(step(x), body(theirs, x)), (ours.mine, theirs.mine), (ours.last, theirs.last)]
        assert [type(a) for a, _ in pairs] == [type(b) for _, b in pairs], n
        assert all(torch.equal(a.as_subclass(Tensor), b.as_subclass(Tensor)) for a, b in pairs), n
    # AND where a launch cannot make it, the report says so
    report = pgk.report(step)
    assert [reason.code for reason in report.reasons] == ([] if graphed else ["unknown-output"])
    assert (sum(row.launches for row in report.rows) > 0) is graphed
