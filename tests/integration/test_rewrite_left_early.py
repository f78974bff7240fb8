"""A loop that a network leaves with a result goes on, and whoever calls the network gets what it left with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.rewritten import rewritten

NETS = """
class Net(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in widths])
        self.heads = nn.ModuleList([nn.Linear(8, width) for width in widths])
    def forward(self, x):
        for layer, head in zip(self.layers, self.heads):
            x = torch.relu(layer(x))
            logits = head(x)
            if {test}:
                return {left}
        return {last}
class Served:
    def __init__(self, widths):
        torch.manual_seed(0)
        self.net = Net(widths).to(device)
    def prep(self, x):
        return (x - x.mean(0)) / (x.std(0) + 1e-5)
    def predict(self, x):
        x = self.prep(x)
        return self.net(x)
served = Served({widths})
f = served.predict
args = (torch.randn(4, 8).to(device),)
"""
SURE = "torch.softmax(logits, -1).max(-1).values.mean().item() > 0.45"


def nets(test: str, left: str, last: str, widths: str = "(3, 3, 3)") -> str:
    """A program whose step calls such a network."""
    return NETS.format(test=test, left=left, last=last, widths=widths)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("program", "line"),
    [
        (nets(SURE, "logits", "logits"), "return torch.where(done, early_logits, logits)"),
        (
            nets(SURE, "{'logits': logits, 'h': x * 2}", "{'logits': logits, 'h': x}"),
            "return {'logits': torch.where(done, early_logits, logits), 'h': torch.where(done, early, x)}",
        ),
    ],
    ids=["logits", "a dictionary"],
)
def test_a_step_gets_what_a_network_left_with(program: str, line: str, tmp_path: Path) -> None:
    # GIVEN a step of two lines, which calls a network that leaves its loop where it is sure
    # WHEN it is fixed
    fix = rewritten(program, tmp_path)
    # THEN one graph has all of it, and the device keeps what the network left with
    assert fix.complete, fix
    assert line in fix.diff


@pytest.mark.sweep
@pytest.mark.parametrize(
    "program",
    [
        nets("logits.mean().item() > 0.7", "logits", "logits", widths="(1, 3, 3)"),
        nets(SURE, "logits, 0", "logits, 1"),
        nets(SURE, "logits", "logits.tolist()"),
    ],
    ids=["another width", "numbers", "a list"],
)
def test_results_that_no_tensor_can_stand_for_are_not_kept_so(program: str, tmp_path: Path) -> None:
    # GIVEN such a network whose first result is narrower than others, or is no tensor alone
    # WHEN it is fixed
    fix = rewritten(program, tmp_path)
    # THEN no diff chooses between them
    assert "early" not in fix.diff
