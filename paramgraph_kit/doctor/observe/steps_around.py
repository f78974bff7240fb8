"""Calls of a step that lines around it make of objects without a name yet, and what those do to its gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.observe.gradients import Scope, around
from paramgraph_kit.doctor.observe.held import unbound
from paramgraph_kit.doctor.observe.loop_flow import Flow
from paramgraph_kit.doctor.observe.loop_state import GRADIENT, Found, Given


@dataclass(frozen=True, slots=True)
class StepsAround:
    """What following the lines around a step has shown."""

    scopes: list[Scope]
    bodies: list[Found]  # what each finds that calls the step

    @property
    def calls(self) -> list[ast.Call]:
        """Those of the step."""
        return [call for found in self.bodies for call in found.steps]

    @property
    def nulled(self) -> list[Given]:
        """Lines between two calls that set gradients to None."""
        rows = ((found, name, numbers) for found in self.bodies for (_, name), numbers in found.at_step.items())
        given = (found.given[n] for found, name, numbers in rows if name == GRADIENT for n in sorted(numbers) if n > 0)
        return [each for each in given if each.is_late]


def steps_around(function: Any, given: dict[str, Any], ran: Iterable[CodeType]) -> StepsAround:
    """The same for the step that is asked for."""
    known = StepsAround(around(function), [])
    with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
        function, given = unbound(function, given)
        known.bodies.extend(Flow(function, given, known.scopes, ran).all())
    return known
