"""A replay that reads out of range because a name has another tensor, or number, than the graph has."""

from __future__ import annotations

from dataclasses import replace

from paramgraph_kit.doctor.observe.moved_values import moved_failures
from paramgraph_kit.doctor.observe.moved_words import as_replayed
from paramgraph_kit.doctor.observe.own_graphs import OwnGraphs
from paramgraph_kit.trace.model import Failure

ASSERTED = "device-assert"
OF_ITS_OWN = (
    "it replays a graph of its own, which no other capture can hold; what was done ahead of its capture, and is done "
    "between its calls, is known as far as lines tell it: diagnose the function that calls it, too"
)
READ = "the graph reads out of range in what it still has, which a check in a kernel ends, and all work with it; at"
AGAIN = "nothing behind it was looked at: ask again once that is mended"


def with_cause(ended: Failure, graphs: OwnGraphs, notes: list[str]) -> list[Failure]:
    """What has ended a call, or what a graph did not see, where a check in a kernel of its replay has ended it."""
    regions = graphs.launched_regions() if ended.code == ASSERTED else []
    told = [f for region in regions for f in moved_failures(region, [])]
    if not told:
        return [_begun_elsewhere(ended, graphs, notes) if ended.code == ASSERTED else ended]
    notes += [OF_ITS_OWN, f"{READ} {ended.frame.label()}" if ended.frame is not None else READ]
    return as_replayed(told, (region.code.co_filename for region in regions))


def _begun_elsewhere(ended: Failure, graphs: OwnGraphs, notes: list[str]) -> Failure:
    """The same with what a warm-up has left moved, as a place that is counted there: the replays begin behind it."""
    moved = graphs.warmed.notes()
    if not moved or ended.frame is None:
        return ended
    notes += [*moved, AGAIN]
    after = "the same, behind what puts back what the warm-up has moved: replays go on from there, and come too far"
    return replace(ended, fix=f"before  {ended.frame.text}\nafter   {after}")
