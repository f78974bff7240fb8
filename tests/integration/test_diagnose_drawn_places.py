"""A batch of NumPy's at places that torch draws on the host is filled before the launch, wherever these are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.apart import APART
from tests.programs.running import load

pytestmark = [
    APART,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device"),
]
BATCH = """import numpy as np, torch, paramgraph_kit as pgk
device = pgk.device()
data = np.arange(500, dtype=np.int64)
w, rows = torch.ones(8, device=device), torch.arange(500)
def step():
    ix = torch.randint(len(data) - 8, (4,))
    x = MADE
    x = x.to(device)
    return (x * w).sum()
"""


@pytest.mark.parametrize(
    ("made", "drawn_there"),
    [
        ("torch.stack([torch.from_numpy(data[i : i + 8]) for i in ix])", False),
        ("torch.stack([rows[i : i + 8] for i in ix])", True),
    ],
)
def test_a_copy_of_an_array_stays_one(tmp_path: Path, made: str, drawn_there: bool) -> None:
    """GIVEN a step that draws places on the host, and copies what NumPy has there, or what torch makes of them
    WHEN it is diagnosed
    THEN only of the other one it is said that it copies nothing once they are drawn on the device.
    """
    told = str(pgk.diagnose(load(BATCH.replace("MADE", made), tmp_path / "batch.py")["step"]))
    assert ("copies nothing, once that is drawn on the device" in told) == drawn_there
