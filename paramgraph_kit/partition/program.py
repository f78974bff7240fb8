"""Run the regions of a split one after the other, holding no value longer than it is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paramgraph_kit.partition.region import Region
from paramgraph_kit.partition.split import Split

Run = Callable[[list[Any]], Sequence[Any]]


def program(cut: Split, runs: Sequence[Run]) -> Run:
    """A boxed function that runs ``runs``, one for each region of ``cut``, and drops every value after its last use."""
    steps = _steps(cut, runs)
    constants, outputs = cut.constants, cut.outputs
    used = {*outputs, *(name for step in steps for name in step.takes)}
    inputs = [(index, name) for index, name in enumerate(cut.inputs) if name in used]

    def run(arguments: list[Any]) -> list[Any]:
        values = {**constants, **{name: arguments[index] for index, name in inputs}}
        arguments.clear()
        for step in steps:
            boxed = [values[name] for name in step.takes]
            for name in step.drops:
                del values[name]
            values.update(zip(step.makes, step.run(boxed), strict=True))
        return [values[name] for name in outputs]

    run._boxed_call = True  # type: ignore[attr-defined]  # how AOTAutograd knows that the list is ours to empty
    return run


@dataclass(frozen=True, slots=True)
class _Step:
    run: Run
    takes: tuple[str, ...]
    drops: tuple[str, ...]  # dropped before the call, so that the callee holds the last reference
    makes: tuple[str, ...]


def _steps(cut: Split, runs: Sequence[Run]) -> list[_Step]:
    regions: list[tuple[Region, Run]] = list(zip(cut.regions, runs, strict=True))
    if cut.epilogue is not None:
        regions.append((cut.epilogue, cut.epilogue.run))
    needed = set(cut.outputs)
    steps: list[_Step] = []
    for region, run in reversed(regions):
        drops = tuple(name for name in region.inputs if name not in needed)
        needed.update(region.inputs)
        steps.append(_Step(run, region.inputs, drops, region.outputs))
    return steps[::-1]
