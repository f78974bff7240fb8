"""Loops of a step over what lines between two calls make shorter or longer: no fixed number of rounds is fed."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.usefixtures("recovered")
PROGRAM = """
class Server:
    def __init__(self):
        self.w = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).to(device)
        self.active = HELD
    def step(self, x):
        y = torch.tanh(x @ self.w)
        for b in self.active:
            y[b] = y[b] + self.w[3]
        return y
    def finish(self, y):
        BODY
server = Server()
args = (torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).to(device),)
def main():
    for _ in range(6):
        y = server.step(*args)
        server.finish(y)
f = server.step
"""
CHANGES = {
    "del self.active[0]": "{0: 0, 1: 0}",
    "self.active.pop(0)": "[0, 1, 2]",
    "self.active.discard(0)": "{0, 1}",
    "self.active.append(int(y.argmax()) % 4)": "[0, 1]",
    "self.active[int(y.argmax()) % 4] = 1": "{0: 0, 1: 0}",
}


@pytest.mark.parametrize("change", CHANGES)
def test_rounds_that_come_and_go_are_not_fed_from_a_fixed_number_of_places(change: str, tmp_path: Path) -> None:
    # GIVEN a step with a round for each entry, and a line behind it that takes some out, or adds some
    text = PROGRAM.replace("HELD", CHANGES[change]).replace("BODY", change)
    names = run(text, tmp_path)
    # WHEN it is diagnosed
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN it is told, and no diff gives the graph one number for each round that it had at its capture
    assert any("is set between calls, at" in each.message for each in found), str(found)
    assert "given_in" not in str(found), str(found)


def test_rounds_of_a_fixed_number_are_still_fed(tmp_path: Path) -> None:
    # GIVEN the same, and a line that only gives each entry another value
    change = "for b in range(2): self.active[b] = (self.active[b] + 1) % 4"
    names = run(PROGRAM.replace("HELD", "[0, 1]").replace("BODY", change), tmp_path)
    # WHEN it is diagnosed
    found = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN a diff says what to write
    assert found.fix is not None
    assert found.fix.complete, str(found)
