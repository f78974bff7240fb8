"""The comparison with the frozen graph, on the simulator: what is launched and compared, not how long it takes."""

from __future__ import annotations

import pytest
import torch

from paramgraph_kit.bench.frozen import markdown_frozen, measure_frozen
from paramgraph_kit.bench.workloads import llama
from paramgraph_kit.driver.select import device

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")


def test_everything_moves_or_nothing_does_and_the_bits_are_the_frozen_graphs() -> None:
    # GIVEN a small whole model
    size = {"heads": 2, "hidden": 48, "vocab": 64, "dtype": torch.float32}
    workload = llama("frozen: small", 2, 32, 8, blocks=False, training=False, **size)  # type: ignore[arg-type]
    # WHEN its graph is launched against the frozen one
    torch._dynamo.reset()
    row = measure_frozen(workload, [2, 2], device())
    torch._dynamo.reset()
    # THEN each way of launching is what its name says
    assert row["share_patched"] == {"still": 0.0, "moved": 1.0}
    assert row["different"] == 0 < row["compared"]
    assert row["nodes"] > 50
    assert all(row["us"][way][name] > 0 for way in ("frozen", "still", "moved") for name in ("back_to_back", "alone"))
    assert row["prepared_ms_per_node"] > 0
    # AND the table has the ratios
    text = "\n".join(markdown_frozen([row, {"workload": "frozen: other", "error": "no"}]))
    assert f"({row['over_frozen']['moved']['back_to_back']:.3f} / " in text
    assert "| frozen: other | failed: no |" in text
