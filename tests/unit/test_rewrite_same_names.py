"""Two classes of a file that have a number of one name: that of the object that a step uses becomes a tensor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
CACHES = """
class Cache:
    def __init__(self):
        self.keys = torch.zeros(32, 4, device=device)
        self.filled = 0
    def put(self, k):
        self.keys[self.filled] = k
        self.filled += 1
        return self.keys.sum(0)
class Log:
    def __init__(self):
        self.rows, self.filled = [], 0
    def put(self, row):
        self.rows.append(row)
        self.filled += 1
        return self.filled * 2
cache, log = Cache(), Log()
args = (torch.ones(4, device=device),)
def f(k):
    return cache.put(k) * 2
"""


def test_the_number_of_the_class_that_is_used_becomes_a_tensor(tmp_path: Path) -> None:
    # GIVEN two classes with a count of one name WHEN a step moves one of them
    names = run(CACHES, tmp_path)
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN that one is a tensor, and the lines of the other class stay
    assert found.fix is not None
    assert found.fix.complete
    gone = [line for line in found.fix.diff.splitlines() if line.startswith("-") and not line.startswith("---")]
    assert [line.strip("- ") for line in gone] == ["self.filled = 0", "self.keys[self.filled] = k"]


def test_a_read_through_another_name_leaves_both_as_they_are(tmp_path: Path) -> None:
    # GIVEN lines around the step that read a count through a name WHEN a fix is asked for
    names = run(CACHES + "def told():\n    return cache.filled + log.filled\n", tmp_path)
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN no line of it asks a number of Python's for its item
    assert found.fix is not None
    assert ".item()" not in found.fix.diff
