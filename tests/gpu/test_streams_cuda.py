"""Streams of the user's in what is captured whole, on a GPU: the programs of the simulated device."""

from __future__ import annotations

import pytest
import torch

from paramgraph_kit.driver.select import driver
from tests.integration.step_streams import PROGRAMS, compare

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", PROGRAMS)
def test_several_streams_are_lanes_of_one_graph(name: str) -> None:
    # GIVEN a function or a step on several streams WHEN called with data that lies elsewhere each time
    report, lanes = compare(name)
    # THEN each call has eager's bits, and it is launched as one graph of several lanes
    assert report.reasons == ()
    assert sum(row.launches for row in report.rows) >= 5
    assert len(lanes) >= PROGRAMS[name][1]


def test_no_stream_of_the_users_is_where_we_capture() -> None:
    # GIVEN more streams than torch has: it hands them out in turn WHEN all are asked THEN ours is none of them
    theirs = {torch.cuda.Stream().cuda_stream for _ in range(70)}
    assert len(theirs) == 32
    assert driver()._stream.cuda_stream not in theirs  # type: ignore[attr-defined]
