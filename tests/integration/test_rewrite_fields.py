"""Fields of a dataclass that count become tensors once an object is made, all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

SESSIONS = """\
from dataclasses import dataclass
@dataclass
class Session:
    ring: torch.Tensor
    pos: int = 0
    served: int = 0
session = Session(torch.zeros(16, 4, device=device))
args = (torch.randn(4, device=device),)
def f(x):
    session.ring[session.pos] = x
    session.pos = (session.pos + 1) % 16
    session.served += 1
    return session.ring.sum(0) / session.served
"""


def test_all_fields_of_a_dataclass_that_count_are_tensors(tmp_path: Path) -> None:
    # GIVEN an object with two counts, which are fields of a dataclass WHEN it is rewritten
    found = rewritten(SESSIONS, tmp_path)
    # THEN each is made a tensor in the one method that is run once an object is made
    lines = lines_of(found)
    assert lines.count("def __post_init__(self):") == 1, found
    assert {
        "self.pos = torch.tensor(self.pos, device=device)",
        "self.served = torch.tensor(self.served, device=device)",
    } <= {*lines}
