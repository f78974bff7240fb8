"""Words for branches and rounds that the device or a count decides, in the names of the program."""

from __future__ import annotations

import torch

import paramgraph_kit as pgk


def _fit(p: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    lam, cost = 1e-2, (p - y).pow(2).sum()
    for _ in range(3):
        d = (y - p) / (1 + lam)
        new = (p + d - y).pow(2).sum()
        if new < cost:
            p, cost, lam = p + d, new, lam / 3
        else:
            lam = lam * 2
        if d.abs().max() < 1e-5:
            break
    return p, cost


def test_a_branch_that_gives_several_names_a_value_is_chosen_for_all_at_once() -> None:
    # GIVEN a fit with a damping, which keeps a step or not
    p, y = (torch.randn(4).to(pgk.device()) for _ in range(2))

    # WHEN it is diagnosed
    told = str(pgk.diagnose(_fit, p, y))

    # THEN the words have each name's two values, and no test of what is written already
    line = "torch.where(chosen, p + d, p), torch.where(chosen, new, cost), torch.where(chosen, lam / 3, lam * 2)"
    assert f"`chosen = new < cost`, and `p, cost, lam = {line}`" in told, told


class _Tempering:
    def __init__(self) -> None:
        self.x, self.n = torch.randn(6).to(pgk.device()), 0

    def sweep(self, u: torch.Tensor) -> torch.Tensor:
        first = self.n % 2
        for i in range(first, 5, 2):
            self.x[i] = self.x[i] + u[i]
        self.n += 1
        return self.x.sum()


def test_rounds_that_begin_at_a_count_have_a_graph_for_each() -> None:
    # GIVEN a step whose loop begins at 0 or 1 in turns
    u = torch.rand(6).to(pgk.device())

    # WHEN it is diagnosed
    found = pgk.diagnose(_Tempering().sweep, u)

    # THEN there is a graph for each, and no tensor for what `range` takes
    told = str(found)
    assert "`graphs[self.n % 2]`" in told, told
    assert "first_in" not in told, told
    lines = [f.fix for f in found.failures if f.code == "size-frozen"]
    assert all("in a graph for each number that line" in each for each in lines), told
