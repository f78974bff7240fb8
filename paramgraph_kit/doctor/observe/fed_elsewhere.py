"""Inputs that go to memory of another graph's: a name has grown, and the graph that is replayed has the smaller one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from paramgraph_kit.doctor.observe.captured_values import CapturedValues, Moved, parts
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.restore.keeper import storage_key


def note_fed_elsewhere(
    values: CapturedValues, reads: Mapping[int, tuple[Any, Any, int]], since: Collection[int]
) -> None:
    """Note what a name has at a replay that was written since the graph's last one, while what it reads was not.

    ``reads``: memory from outside that the graph reads, with the address of what read it first. Another graph of the
    same line may read what the name has now; this one was meant to, too, as nothing else was written for it.
    """
    if any(key in since for key in reads):
        return
    for number, (use, then) in enumerate(zip(values.uses, values.then, strict=True)):
        first, now = then.get(""), use.value()
        if first is None or first[0] != "memory" or not is_a(now, torch.Tensor) or (number, "") in values.moved:
            continue
        known = {address for _, _, address in reads.values()}
        if first[1] in known and storage_key(now) in since and storage_key(now) not in reads:
            values.moved[number, ""] = Moved(use, "", first, parts(now)[""], now)
