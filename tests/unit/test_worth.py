"""How much of a step is in its graph: of its products, where it is about these."""

from __future__ import annotations

import pytest

from paramgraph_kit.rewrite.proving.worth import Worth


@pytest.mark.parametrize(
    ("worth", "is_tiny"),
    [
        (Worth(24, 596, 1, 0), True),  # a camera's rotation, and all rays behind
        (Worth(12, 130, 4, 0), False),  # a detector, and what its boxes become
        (Worth(3, 0, 1, 0), False),
        (Worth(2, 60, 1, 0), False),  # one layer, and its logs
        (Worth(2, 100, 1, 0), True),
    ],
)
def test_a_graph_with_a_product_and_a_twentieth_of_a_step_is_tiny(worth: Worth, is_tiny: bool) -> None:
    # GIVEN how many operations, and products, are in a graph and behind it WHEN asked THEN it is tiny or not
    assert worth.is_tiny is is_tiny
