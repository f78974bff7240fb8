"""Calls of a step that lines around it make of objects without a name yet, and what those do to its gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.observe.gradients import Scope
from paramgraph_kit.doctor.observe.held import unbound
from paramgraph_kit.doctor.observe.loop_flow import Flow
from paramgraph_kit.doctor.observe.loop_state import GRADIENT, Given


@dataclass(slots=True)
class StepsAround:
    """What following the lines around a step has shown."""

    calls: list[ast.Call] = field(default_factory=list)
    nulled: list[Given] = field(default_factory=list)  # lines between two calls that set gradients to None


def steps_around(scopes: Iterable[Scope], function: Any, given: dict[str, Any], ran: Iterable[CodeType]) -> StepsAround:
    """The same for the step that is asked for."""
    around = StepsAround()
    with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
        function, given = unbound(function, given)
        for found in Flow(function, given, [*scopes], ran).all():
            around.calls += found.steps
            for (_, name), numbers in found.at_step.items():
                late = [found.given[n] for n in sorted(numbers) if n > 0 and name == GRADIENT]
                around.nulled += [each for each in late if each.is_late]
    return around
