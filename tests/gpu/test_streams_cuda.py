"""Streams of the user's in what is captured whole, on a GPU: the programs of the simulated device."""

from __future__ import annotations

import pytest

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
