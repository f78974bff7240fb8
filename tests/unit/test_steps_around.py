"""What following the lines around a step has shown is there for all who ask."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from paramgraph_kit.doctor.observe.loop_state import GRADIENT
from paramgraph_kit.doctor.observe.steps_around import StepsAround


def test_lines_that_null_gradients_are_there_for_a_second_who_asks() -> None:
    # GIVEN a body with one line that nulls gradients between two calls, one ahead of the first, and one of another kind
    late, early = SimpleNamespace(is_late=True), SimpleNamespace(is_late=False)
    numbers = {(7, GRADIENT): {2, 3, -1}, (7, "lr"): {4}}
    found: Any = SimpleNamespace(steps=["step(x)"], at_step=numbers, given={2: early, 3: late, 4: late})
    # WHEN its lines are gone through twice THEN both find that line alone
    known: Any = StepsAround([], [found])
    nulled = known.nulled
    assert [*nulled] == [late]
    assert [*nulled] == [late]
    assert known.calls == ["step(x)"]
