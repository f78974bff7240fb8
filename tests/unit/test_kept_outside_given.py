"""Advice for a number of the host's that a graph reads: what it is given to decides what it has to be."""

from __future__ import annotations

import pytest

from paramgraph_kit.rewrite.advised.state.kept_outside import kept_outside

PROGRAM = """
class Cache:
    def forward(self, x, pos):
        return READ
class Model:
    def forward(self, x, pos):
        return self.cache(x, pos)
class Engine:
    def step(self):
        self.y = self.model(self.x, self.pos)
    def after_step(self):
        self.pos += 1
"""
EACH = "give it to the step as a number among its arguments, of which each has a graph of its own"


@pytest.mark.parametrize(("read", "cuts"), [("x[:, : pos + 1].sum(1)", True), ("x * pos", False)])
def test_a_number_that_is_given_to_what_cuts_by_it_gets_a_graph_for_each(read: str, cuts: bool) -> None:
    # GIVEN a number that goes through a model to a function which cuts by it, or computes with it
    lines = PROGRAM.replace("READ", read).splitlines(keepends=True)
    ran = ["Cache.forward", "Model.forward", "Engine.step"]
    # WHEN
    told = kept_outside("pos", lines, lines, ["after_step"], ran, "'sim'")
    # THEN a tensor is offered only where one could stand there, and else a graph for each
    assert (EACH in told) == cuts, told
    assert ("keep it as a tensor" in told) == (not cuts), told
