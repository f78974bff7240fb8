"""Rounds that the host draws: what a helper without a choice of its own ran more often is decided where it is called.

``if random.random() < p: continue`` ahead of ``x = layer(x)``: the layers are alike, and what differs is within one.
"""

from __future__ import annotations

import ast

from paramgraph_kit.doctor.explain.syntax import LOOPS, nodes_of, spans
from paramgraph_kit.doctor.observe.left_early import has_branch
from paramgraph_kit.doctor.observe.places import Place, position_of
from paramgraph_kit.doctor.observe.source_lines import frame_at, path_of
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.trace.model import Frame

_DRAWS = ("rand", "uniform", "bernoulli", "binomial")  # in the names of functions
_LEAVES = (ast.Continue, ast.Break)


def drawn_around(place: Place) -> Frame | None:
    """The test in a loop that draws whether a round goes on to the helper which runs at a place, if that has none."""
    spots = [spot for spot in place.stack if not is_library(spot[0].co_filename)]
    inner = len(spots)
    while len(spots) > 1 and not has_branch(spots[-1][0]):
        spots.pop()
    if not spots or len(spots) == inner:
        return None
    code, at = spots[-1]
    line = position_of(code, at)[0]
    for loop in (n for n in nodes_of(code) if isinstance(n, LOOPS) and spans(n, line)):
        inside = [n for s in loop.body for n in ast.walk(s)]
        given = [n for n in inside if isinstance(n, ast.Assign) and _draws(n.value)]
        drawn = {t.id for n in given for t in n.targets if isinstance(t, ast.Name)}
        for test in (n for n in inside if isinstance(n, ast.If)):
            leaves = isinstance(test.body[-1], _LEAVES) and test.lineno < line and test in loop.body
            holds = any(spans(each, line) for each in (*test.body, *test.orelse))
            names = {n.id for n in ast.walk(test.test) if isinstance(n, ast.Name)}
            if (leaves or holds) and (_draws(test.test) or names & drawn):
                return frame_at(code, test.lineno)
    return None


def _draws(node: ast.expr) -> bool:
    calls = (path_of(n.func) for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(word in path for path in calls for word in _DRAWS)
