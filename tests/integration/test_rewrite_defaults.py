"""What a step is not given by its caller, in the call of what goes behind its launch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import rewritten

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
DEFAULTS = """
from functools import partial
net, table = nn.Linear(4, 4).to(device), []
def step(x, *, scale, cache=[], told=table):
    y = net(x) * scale
    cache.append(y.mean().item())
    told.append((scale, len(cache)))
    return y
f = partial(step, scale=0.5)
args = (torch.randn(3, 4, device=device),)
"""


def test_what_a_caller_does_not_give_is_written_in_the_call_behind_the_launch(tmp_path: Path) -> None:
    # GIVEN a partial of a step with a list as its default, and one that has a name
    fix = rewritten(DEFAULTS, tmp_path)
    # WHEN its lines go behind the launch THEN the call that is told has what nobody gives, in words that can be run
    assert fix.complete
    given = 'inspect.signature(step).parameters["cache"].default, 0.5, table'
    assert fix.usage.startswith("call after_step(")
    assert set(given.split(", ")) <= set(fix.usage.partition("(")[2].rpartition(")")[0].split(", "))
