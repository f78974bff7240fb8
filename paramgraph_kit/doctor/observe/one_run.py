"""A program that is run once and captures by itself, as from a terminal: what goes wrong around its replays.

It runs as it would without being watched. Nothing of it is run again and nothing is put back, so what its captures hold
is looked at only as far as its lines tell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

import torch

from paramgraph_kit.doctor.observe import around_replays
from paramgraph_kit.doctor.observe.absent import Asked, doubting
from paramgraph_kit.doctor.observe.begun_inside import begun_in_capture
from paramgraph_kit.doctor.observe.calls import WantsToExit, watched
from paramgraph_kit.doctor.observe.freed_words import is_gone
from paramgraph_kit.doctor.observe.moved_words import as_its_line_has_it, as_replayed
from paramgraph_kit.doctor.observe.notes import doubts_of
from paramgraph_kit.doctor.observe.observer import Observer, Step
from paramgraph_kit.doctor.observe.one_call import check_free, run
from paramgraph_kit.doctor.observe.own_graphs import OwnGraphs
from paramgraph_kit.doctor.observe.own_regions import work_out
from paramgraph_kit.doctor.observe.passed_words import passed_on
from paramgraph_kit.doctor.observe.places import Places, order_of
from paramgraph_kit.doctor.observe.threads import threads_watched
from paramgraph_kit.doctor.observe.unread_rounds import given_one_of_each
from paramgraph_kit.doctor.observe.zeroed_ahead import summed_up
from paramgraph_kit.doctor.restore.keeper import Keeper
from paramgraph_kit.driver.select import driver
from paramgraph_kit.trace.model import Failure

_MOST = 200_000  # operations that are looked at: a program may train for days


class _KeepsNothing(Keeper):
    """The program's work stays."""

    def before_write(self, tensor: torch.Tensor) -> None:
        """Copy nothing."""


class _Once(Observer):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Looks at so many operations, and remembers few of them."""

    def __init__(self, places: Places, graphs: OwnGraphs) -> None:
        super().__init__(places, _KeepsNothing(), driver(), graphs)
        self.steps = cast("list[Step]", deque(maxlen=16))  # no two runs are compared
        self._seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._seen += 1
        if self._seen > _MOST:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


def problems_of(program: Callable[[], Any]) -> tuple[list[Failure], int, list[str]]:
    """Run a program; what is found around its replays, how many captures it has made, and what is not known of a GPU.

    Raises:
        ParamgraphError: a capture is under way.
    """
    check_free("diagnose FILE")
    graphs = OwnGraphs(driver().device.type)
    graphs.regions, graphs.stands_in = [], True
    observer, doubted = _Once(Places(run.__code__), graphs), Asked()
    try:
        with watched(observer), threads_watched(observer), doubting(observer.places) as doubted, observer:
            graphs.returned(run(program, (), {}))
    except (SystemExit, WantsToExit) as error:  # as it would end without us
        if isinstance(error, SystemExit) and error.code:
            raise
    regions = [region for region in graphs.regions if region.whole and work_out(region)]
    told = [f for f in observer.findings.failures.values() if is_gone(f)] + graphs.misread
    told += [f for region in regions for f in around_replays.problems(region, regions)]
    for region in regions:
        told += [*begun_in_capture(region, graphs.flow), *summed_up(region, graphs.flow.sums_up, told)]
        told += given_one_of_each(region)
    told += [*graphs.around(), *passed_on(graphs.passed, graphs.device, told)]
    told = as_replayed(told, (region.code.co_filename for region in regions))
    found = around_replays.without_freed(list({(f.code, f.frame): f for f in told}.values()))
    found = sorted(map(as_its_line_has_it, found), key=lambda f: order_of(f.frame))
    return found, len(regions), doubts_of(doubted)
