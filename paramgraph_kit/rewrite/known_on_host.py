"""Small tensors among the arguments that decide what a function does: on the CPU the host knows them, and asks nobody.

A solver's times, a sampler's noise levels, a schedule: each graph has those that it was captured with.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch

from paramgraph_kit.doctor.observe.examine import examine
from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite.proving.proof import Arguments, Truth
from paramgraph_kit.rewrite.rounds import LIMIT_S
from paramgraph_kit.rewrite.ways import Ways
from paramgraph_kit.trace.model import Failure

LARGEST, MOST = 4096, 3  # elements of one, and how many are tried
ASKED = ("data-dependent-branch", "sync-item", "copy-to-cpu", "compare-on-cpu", "tensor-bound")
Key = int | str


def told(attempt: Ways, failures: Sequence[Failure]) -> str:
    """Which arguments to give on the CPU, where one graph of the function as it is gives eager's numbers then."""
    if not any(failure.code in ASKED for failure in failures):
        return ""
    given: dict[Key, torch.Tensor] = {k: v for k, v in _leaves((attempt.args, attempt.kwargs)).items() if _is_small(v)}
    if not given or len(given) > MOST:
        return ""
    for some in [[key] for key in given] + ([list(given)] if len(given) > 1 else []):
        if _is_whole(attempt, {key: given[key] for key in some}):
            names = [_name(attempt, key) for key in some]
            listed = "`, `".join(names)
            there = " and ".join(f"`{name}.cpu()`" for name in names)
            return (
                f"`{listed}` decides all of this, and is small: give it on the CPU, {there}, where the host knows it, "
                "and leave the lines as they are; a graph has the values that it was captured with, so make another "
                f"one for another `{listed}` (tried so: replays of one graph give eager's results and state)"
            )
    return ""


def _leaves(inputs: Arguments) -> dict[Key, Any]:
    return dict(chain(enumerate(inputs[0]), inputs[1].items()))


def _is_small(value: object) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == device().type
        and value.dim() < 2
        and 0 < value.numel() <= LARGEST
        and not value.requires_grad
    )


def _name(attempt: Ways, key: Key) -> str:
    if isinstance(key, str):
        return key
    try:
        names = list(inspect.signature(attempt.function).parameters)
    except (TypeError, ValueError):
        return f"argument {key + 1}"
    return names[key] if key < len(names) else f"argument {key + 1}"


def _with(inputs: Arguments, known: dict[Key, torch.Tensor]) -> Arguments:
    args = tuple(known.get(n, value) for n, value in enumerate(inputs[0]))
    return args, {name: known.get(name, value) for name, value in inputs[1].items()}


def _is_whole(attempt: Ways, given: dict[Key, torch.Tensor]) -> bool:
    """Whether nothing is found any more with these on the CPU, and replays give what the function does."""
    held = {key: value.detach().cpu() for key, value in given.items()}
    args, kwargs = _with((attempt.args, attempt.kwargs), held)
    try:
        if examine(attempt.function, args, kwargs, limit_s=LIMIT_S).problems:
            return False
        start = attempt.prover.from_now()
        truth = Truth(start.given(lambda _, inputs: _with(inputs, given)))
        return not truth.unsteady and not truth.wrong(start.given(lambda _, inputs: _with(inputs, held)).captured())
    except Exception:  # it does not take it from there
        return False
