"""Rewritten lines that six steps alike show nothing of: numbers that change nothing yet, and counts that come late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite.neutral_numbers import wrong_beside
from paramgraph_kit.rewrite.proving.proof import NOTHING, Around, Truth
from paramgraph_kit.rewrite.starts import wrong_later
from paramgraph_kit.rewrite.ways import Ways

LATE = {18, 36}


class Net:
    """A step whose loss has a weight that is 1.0 until somebody sets another one."""

    def __init__(self) -> None:
        self.weight, self.extra, self.n = 1.0, 0.0, 0
        self.kept = torch.zeros((), device=device())

    def weighted(self, x: torch.Tensor) -> torch.Tensor:
        loss = x.sum() * self.weight + self.extra * x.mean()
        self.kept.copy_(loss)
        return loss

    def left_out(self, x: torch.Tensor) -> torch.Tensor:
        loss = x.sum()
        self.kept.copy_(loss)
        return loss * self.weight + self.extra * x.mean()

    def moved(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.extra * x.mean() + self.weight * x.sum()
        self.kept.copy_(loss)
        return loss

    def decided(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum() * self.weight if self.weight == 1.0 else x.mean()

    def always(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()

    def late(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        self.kept.fill_(factor := 2.0 if self.n in LATE else 1.0)
        return x.sum() * factor

    def digits(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        self.kept.fill_(factor := float(len(str(self.n))))
        return x.sum() * factor

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()

    def given(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum() * self.kept


class Lines:
    """One method of the step's object that stands in the place of another."""

    def __init__(self, method: Any, other: Any, around: Around = NOTHING) -> None:
        self.method, self.other, self.around = method, other, around

    @contextmanager
    def applied(self) -> Iterator[None]:
        own, self.method.__code__ = self.method.__code__, self.other.__code__
        try:
            yield
        finally:
            self.method.__code__ = own


def _tried(method: str, other: str, ask: Callable[[Ways, Truth, Lines], str], *, counts: bool = False) -> str:
    net = Net()

    def before(_: Any) -> None:
        net.n += 1
        net.kept.fill_(float(len(str(net.n))) if method == "digits" else 2.0 if net.n in LATE else 1.0)

    attempt = Ways(getattr(net, method), (torch.arange(1.0, 5.0, device=device()),), {})
    truth = Truth(attempt.prover)
    with attempt.watched():
        attempt.prover.eager()
    return ask(attempt, truth, Lines(getattr(Net, method), getattr(Net, other), Around(before) if counts else NOTHING))


@pytest.mark.parametrize(
    ("method", "other", "is_wrong"),
    [("weighted", "left_out", True), ("weighted", "moved", False), ("decided", "always", False)],
)
def test_a_weight_of_one_is_tried_with_another_value(method: str, other: str, is_wrong: bool) -> None:
    # GIVEN a step with a weight of 1.0 and an offset of 0.0, and other lines in its place
    # WHEN both run with other values there
    why = _tried(method, other, wrong_beside)
    # THEN lines that keep what is without the weight are told, and those that are only written otherwise are not, nor
    # those that hold as long as the step has decided nothing else
    assert ("`weight`, `extra` has another value" in why) == is_wrong, why


@pytest.mark.parametrize(
    ("method", "other", "told"),
    [("late", "plain", "`n` comes to 18"), ("late", "given", ""), ("digits", "plain", "`n` comes to 96")],
)
def test_a_count_is_tried_where_a_set_has_it_and_much_further_on(method: str, other: str, told: str) -> None:
    # GIVEN a step that looks its count up in a set, or asks for its digits, and lines that count ahead of a launch
    # WHEN replays come there
    why = _tried(method, other, lambda *each: wrong_later(*each)[0], counts=True)
    # THEN lines that compute nothing of the count are told, and those that are given what the host finds are not
    assert told in why if told else not why, why
