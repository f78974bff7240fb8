"""What happens to a step's gradients and results between its calls, as far as the lines around it can be read."""

from __future__ import annotations

from dataclasses import replace
from types import CodeType
from typing import Any

from paramgraph_kit.doctor.observe.gradients import note, sets_to_none, unscaled
from paramgraph_kit.doctor.observe.gradients import problems as problems_between
from paramgraph_kit.doctor.observe.kept import kept
from paramgraph_kit.doctor.observe.notes import has_tensor
from paramgraph_kit.doctor.observe.one_call import Call
from paramgraph_kit.doctor.observe.rates_by_methods import rates_by_methods
from paramgraph_kit.doctor.observe.steps_around import StepsAround
from paramgraph_kit.trace.model import Failure


def problems(known: StepsAround, function: Any, call: Call, codes: list[CodeType], notes: list[str]) -> list[Failure]:
    """What is wrong there; ``notes`` gets what only may be."""
    if has_tensor(call.result):
        for frame in kept(known.scopes, function, codes, call.result, has_tensor, known.calls):
            text = "its results are kept, and each replay writes to the same memory: keep a clone()"
            notes.append(f"{text} at {frame.label()}")
    rates = [*rates_by_methods(function, [*call.ran()], notes)]
    if not (call.left.made or call.left.added) or sets_to_none(codes):
        return rates + unscaled(call.steps)
    around = known.scopes, function, codes, known.nulled
    found = unscaled(call.steps) + problems_between(call.left, *around)
    zeroed = problems_between(replace(call.left, stepped=False), *around) if call.left.stepped else []
    at = next((each.frame.label() for each in zeroed if each.frame is not None), "")
    if not found and (text := note(call.left, at)):
        notes.append(text)
    return rates + found
