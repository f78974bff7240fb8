"""Inputs that go to memory of another graph's: a name has grown, and the graph that is replayed has the smaller one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from paramgraph_kit.doctor.observe.captured_values import CapturedValues, Moved, Use, parts
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


def without_given_anew(values: Sequence[CapturedValues], touched: Sequence[Collection[int]]) -> list[CapturedValues]:
    """The same, of graphs of one line, without names of which not all of them can have read what they have by now.

    ``touched``: the addresses of memory that each reads or writes. A loop has given such a name anew for each graph.
    """
    every = {address for own in touched for address in own}
    anew = {
        u.text for each, own in zip(values, touched, strict=True) for u in each.uses if _is_of_others(u, own, every)
    }
    return [CapturedValues([u for u in each.uses if u.text not in anew]) if anew else each for each in values]


def _is_of_others(use: Use, own: Collection[int], every: Collection[int]) -> bool:
    value = use.value()
    address = value.untyped_storage().data_ptr() if is_a(value, torch.Tensor) and value.device.type != "cpu" else 0
    return bool(own) and address in every and address not in own
