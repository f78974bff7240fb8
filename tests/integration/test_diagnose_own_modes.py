"""Modes that torch's graphed callables mind by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
MODES = """
def f():
    net = nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.BatchNorm1d(6), nn.ReLU())).to(device)
    net = cuda.make_graphed_callables(net, (torch.randn(3, 4, device=device),))
    for i in range(2):
        net(torch.full((3, 4), float(i), device=device))
    net.eval()
    return net(torch.ones(3, 4, device=device)).detach()
args = ()
"""


@pytest.mark.parametrize(("module", "told"), [("net", []), ("net[1]", ["branch-frozen"])])
def test_torchs_graphed_modules_leave_their_graph_out_in_the_other_mode(
    module: str, told: list[str], tmp_path: Path
) -> None:
    # GIVEN a module that torch has graphed, and the mode of it, or of a part alone that torch does not ask for
    names = run(MODES.replace("net.eval()", f"{module}.eval()"), tmp_path)
    # WHEN
    found = pgk.diagnose(names["f"])
    # THEN
    assert [each.code for each in found] == told
