"""A capture that fails: what it was to hold; one without a warm-up is told, and the rest is looked at warmed up."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import torch

from paramgraph_kit.doctor.observe.captured_before import written_in
from paramgraph_kit.doctor.observe.own_regions import Region, work_out
from paramgraph_kit.doctor.restore.holder import Change
from paramgraph_kit.trace.model import Failure

COLD = "cold-library"


def warm_up(kind: str) -> None:
    """Let CUDA's libraries make their handles on this thread."""
    two = torch.eye(2, device=kind)
    with torch.no_grad():
        for use in (
            lambda: two @ two,
            lambda: torch.conv1d(two[None], two[None]),
            lambda: torch.linalg.solve(two, two),
            lambda: torch.fft.fft(two),
        ):
            with suppress(Exception):  # a device may lack one
                use()


def broken_off(regions: Iterable[Region]) -> list[Region]:
    """Captures that have not ended well, as functions, where their lines tell."""
    failed = [region for region in regions if not region.whole]
    for region in failed:
        region.stand_in_for_gone()
    return [region for region in failed if work_out(region) and region.function is not None]


def with_warm_up(failure: Failure, regions: Iterable[Region], changes: Iterable[Change]) -> Failure:
    """The failure with the lines of its capture, and what a run of them ahead of it would move."""
    for region in regions:
        if region.whole or not work_out(region):
            continue
        body = "; ".join(map(ast.unparse, region.body))
        kept = (int, float, torch.Tensor)
        moved = {c.name: None for c in changes if isinstance(c.before, kept) and not isinstance(c.before, bool)}
        moved |= dict.fromkeys(path for path, _ in written_in(region))
        names = [f"`{name}`" for name in moved if f"self.{name}" not in moved]
        back = f", then put back what that moves ({', '.join(names)})" if names else ""
        side = "s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream())"
        run = f"with torch.cuda.stream(s): {body}"
        ahead = f"ahead of it  {side}; {run}; torch.cuda.current_stream().wait_stream(s){back}; then capture"
        return replace(failure, fix=f"before  with torch.cuda.graph(g): {body}\nafter   {ahead}")
    return failure
