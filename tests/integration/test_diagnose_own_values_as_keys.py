"""A program that keeps a graph for each value of a number freezes none of them: its table's key is what moves."""

from __future__ import annotations

from typing import Any

import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.diagnosis import Diagnosis

X = torch.ones(4, 4, device=pgk.device())
OPTIONS = {"rate": 0.5, "scale": 1.0}


def net() -> torch.Tensor:
    return X * OPTIONS["rate"]


def scaled() -> torch.Tensor:
    return X * OPTIONS["rate"] + OPTIONS["scale"]


def replayed(graphs: dict[float, Any]) -> torch.Tensor:
    rate = OPTIONS["rate"]
    if rate not in graphs:
        g = pgk.cuda.CUDAGraph()
        with pgk.cuda.graph(g):
            out = scaled()
        graphs[rate] = g, out
    g, out = graphs[rate]
    g.replay()
    result: torch.Tensor = out.clone()
    return result


def by_rate() -> list[torch.Tensor]:
    graphs: dict[float, Any] = {}
    results = []
    for epoch in range(2):
        OPTIONS["rate"] = 0.5 if epoch == 0 else 0.1
        for _ in range(2):
            rate = OPTIONS["rate"]
            if rate not in graphs:
                g = pgk.cuda.CUDAGraph()
                with pgk.cuda.graph(g):
                    out = net()
                graphs[rate] = g, out
            g, out = graphs[rate]
            g.replay()
            results.append(out.clone())
    return results


def by_rate_and_scaled() -> list[torch.Tensor]:
    graphs: dict[float, Any] = {}
    results = []
    for epoch in range(3):
        OPTIONS["rate"] = 0.1 if epoch == 1 else 0.5
        OPTIONS["scale"] = 1.0 + epoch
        results += [replayed(graphs) for _ in range(2)]
    return results


class Runner:
    def __init__(self) -> None:
        self.rate, self.graphs = 0.5, dict[float, Any]()

    def step(self) -> torch.Tensor:
        if self.rate not in self.graphs:
            g = pgk.cuda.CUDAGraph()
            with pgk.cuda.graph(g):
                out = X * self.rate
            self.graphs[self.rate] = g, out
        g, out = self.graphs[self.rate]
        g.replay()
        result: torch.Tensor = out.clone()
        return result


class Scaled:
    """Of the same file, and of no table."""

    def __init__(self) -> None:
        self.rate = 0.5

    def step(self) -> torch.Tensor:
        return X * self.rate


RUNNER, SCALED = Runner(), Scaled()


def epochs() -> None:
    for epoch in range(2):
        RUNNER.rate = 0.5 if epoch == 0 else 0.1
        SCALED.rate = 0.5 if epoch == 0 else 0.1
        RUNNER.step()
        SCALED.step()


def lines(found: Diagnosis) -> list[tuple[str, str]]:
    return [(each.code, each.frame.text if each.frame else "") for each in found.failures]


def test_a_value_that_is_the_key_of_the_table_of_graphs_is_not_told() -> None:
    # GIVEN a loop that captures for each rate that it meets, and one whose method does
    # WHEN they are asked
    found = [pgk.diagnose(each) for each in (by_rate, RUNNER.step)]

    # THEN nothing is frozen: a replay with another rate is one of another graph
    assert [lines(each) for each in found] == [[], []]


def test_a_number_beside_the_key_is_told() -> None:
    # GIVEN the same loop, that sets a scale of each epoch as well, and an object of the same attribute without a table
    # WHEN they are asked
    beside, other = pgk.diagnose(by_rate_and_scaled), pgk.diagnose(SCALED.step)

    # THEN the number that the key does not have is told, and the attribute that is no key
    assert [each.code for each in beside.failures] == ["scalar-frozen"]
    assert "'scale'" in beside.failures[0].message
    assert lines(other) == [("scalar-frozen", "return X * self.rate")]
