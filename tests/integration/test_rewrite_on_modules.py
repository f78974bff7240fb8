"""What a step exchanges on its module is written where the module has it: the line as it is, in place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import changed, rewritten

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu captures on a GPU"),
    pytest.mark.usefixtures("recovered"),
]
NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("level", torch.zeros(4, device=device))
        self.scale = nn.Parameter(torch.ones(4, device=device))
        self.head = nn.Linear(4, 4, device=device)

    @torch.no_grad()
    def forward(self, x):
        {line}
        return self.head(self.level + self.scale * x)
net = Net()
def f(x):
    return net(x)
args = (torch.ones(4, device=device),)
def advance():
    args[0].add_(0.5)
"""
WRITTEN = {
    'self._buffers["level"] = self.level * 0.9 + x': 'self._buffers["level"].copy_(self.level * 0.9 + x)',
    'self.register_buffer("level", self.level * 0.9 + x)': "self.level.copy_(self.level * 0.9 + x)",
    "self.scale = nn.Parameter(self.scale * 0.9)": "self.scale.data.copy_(self.scale * 0.9)",
    'self._parameters["scale"] = nn.Parameter(self.scale * 0.9)': (
        'self._parameters["scale"].data.copy_(self.scale * 0.9)'
    ),
    'self.register_parameter("scale", nn.Parameter(self.scale * 0.9))': "self.scale.data.copy_(self.scale * 0.9)",
    "self.load_state_dict({k: v * 0.9 for k, v in self.state_dict().items()}, assign=True)": (
        "self.load_state_dict({k: v * 0.9 for k, v in self.state_dict().items()})"
    ),
}


@pytest.mark.parametrize(("line", "instead"), WRITTEN.items())
def test_what_a_module_is_given_is_written_into_what_it_has(line: str, instead: str, tmp_path: Path) -> None:
    # GIVEN a step that gives its module another tensor in each call
    # WHEN a fix is asked for, and captured over ten other steps
    found = rewritten(NET.format(line=line), tmp_path)
    # THEN the line writes in place, and replays are eager's
    assert changed(found.diff) == [f"-        {line}", f"+        {instead}"]
    assert found.complete
