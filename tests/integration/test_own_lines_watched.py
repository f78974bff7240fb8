"""A failure that was only seen, by watch or as an exception, has the user's own lines, whole statements of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.trace.model import Failure
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the words are those of the simulated device")
TEXT = """
net = nn.Linear(4, 4).to(device)
args = (torch.randn(8, 4, device=device),)
net(args[0])
def branch(x):
    y = net(x)
    if y.mean().item() > 0:
        y = y * 2
    return y
def spread(x):
    return torch.where(
        x > 0,
        x * torch.tensor([1.0, 2.0, 3.0, 4.0], device=device),
        x,
    )
def enclosing(limit):
    def inner(x):
        return x * (x.sum().item() > limit)
    return inner
closure = enclosing(1.0)
host = torch.empty(8, 4)
def leaves(x):
    y = x * 2
    host.copy_(y, non_blocking=True)
    return y
"""


def seen(names: dict[str, Any], name: str) -> tuple[Failure, Failure]:
    """What watch and what diagnose make of a capture of a function that fails."""
    with pgk.watch() as trace:
        graph = pgk.cuda.CUDAGraph()
        with pytest.raises(RuntimeError) as caught, pgk.cuda.graph(graph):
            names[name](*names["args"])
    (watched,), (told,) = trace.failures, pgk.diagnose(caught.value).failures
    pgk.diagnose.repair()
    return watched, told


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("branch", "if y.mean().item() > 0:\n            y = y * 2", "y = torch.where(y.mean() > 0, y * 2, y)"),
        ("spread", "return torch.where(\n", "return torch.where("),
        ("leaves", "host.copy_(y, non_blocking=True)", "host = host.pin_memory()"),
        ("closure", "return x * (x.sum().item() > limit)", "return x * (x.sum().detach() > limit)"),
    ],
)
def test_what_was_only_seen_has_the_users_own_line(tmp_path: Path, name: str, before: str, after: str) -> None:
    # GIVEN a function whose capture fails WHEN somebody watches, or has the exception diagnosed
    for failure in seen(run(TEXT, tmp_path), name):
        # THEN the card has the statement as it stands there, and what stands for it or what to do
        first, _, second = failure.fix.partition("\nafter")
        assert first.removeprefix("before  ").startswith(before), failure.fix
        assert after in second, failure.fix


def test_a_statement_of_several_lines_is_shown_whole(tmp_path: Path) -> None:
    # GIVEN a problem in the third line of a statement WHEN diagnosed, and with the rewrite tried
    names = run(TEXT, tmp_path)
    for fix in (False, True):
        (failure,) = pgk.diagnose(names["spread"], *names["args"], fix=fix).failures
        # THEN no fragment of it stands there
        lines = failure.fix.splitlines()
        assert lines[0] == "before  return torch.where("
        assert "        )" in lines
