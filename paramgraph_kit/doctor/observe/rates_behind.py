"""Rates that a call sets behind its replays: the next call finds them, while each examined one begins with its own."""

from __future__ import annotations

from collections.abc import Collection

import torch

from paramgraph_kit.doctor.observe.captured_values import Moved
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.own_regions import Region


def note_rates_behind(regions: Collection[Region], told: Collection[int]) -> None:
    """Note numbers of optimizers that are others at the end of a call than at the capture of what steps them.

    ``told``: the ids of optimizers of which a scheduler has set the numbers, which is told at its line.
    """
    for region in regions:
        if (values := region.values) is None:
            continue
        others = [r.values for r in regions if r.values is not None and r is not region and r.line == region.line]
        for at, (use, then) in enumerate(zip(values.uses, values.then, strict=True)):
            if not is_a(optimizer := use.value(), torch.optim.Optimizer) or id(optimizer) in told:
                continue
            now = use.parts()
            for part in (p for p in then if p in now and then[p] != now[p] and then[p][0] == "number" == now[p][0]):
                if not any(other.knows(at, part, now[part]) for other in others):
                    moved = Moved(use, part, then[part], now[part], optimizer)
                    values.moved.setdefault((at, part), moved)
