"""Networks of one's own that compute each row alone, and those that mix rows, as far as their text tells."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.rewrite.source.row_modules import is_rowwise_module
from paramgraph_kit.trace.model import Failure

NET = """\
from torch import nn
class Enc(nn.Module):
    def forward(self, x):
        return torch.cat([x, torch.sin(x)], -1)
class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.trunk, self.sigma = Enc(), nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 1)
        self.color = nn.Sequential(Enc(), nn.Linear(16, 3))
    def forward(self, x, d):
{body}
def step(x):
    return x
"""
WHOLE = """
h = self.trunk(self.enc(x))
sigma = F.softplus(self.sigma(h)).squeeze(-1)
return self.color(h).softmax(dim=-1), sigma
"""


def keeps_rows(path: Path, body: str, *, wide: bool = True) -> bool:
    """Whether the network is known to."""
    file = path / f"net{len([*path.iterdir()])}.py"
    file.write_text(NET.format(body=textwrap.indent(body.strip(), " " * 8)))
    source = Source.of(str(file))
    assert source is not None
    names: dict[str, Any] = {"torch": torch, "F": F, "__name__": "net"}
    exec(compile(source.tree, str(file), "exec"), names)
    step = source.tree.body[-1]
    assert isinstance(step, ast.FunctionDef)
    place = Place(source, step.body[0], Failure("dynamic-shape", "", ""), "device")
    module = names["Field"]()
    assert isinstance(module, nn.Module)
    return is_rowwise_module(place, module, wide=wide)


def test_what_goes_along_the_last_dimension_keeps_rows(tmp_path: Path) -> None:
    # GIVEN a network that joins, squeezes and weighs along the last dimension
    # WHEN asked about rows of several elements THEN each is computed alone
    assert keeps_rows(tmp_path, WHOLE)
    # AND of rows of one element nobody knows: they may be joined into one
    assert not keeps_rows(tmp_path, WHOLE, wide=False)


@pytest.mark.parametrize(
    "line",
    [
        "return sigma.softmax(-1)",
        "return torch.cat([sigma, sigma], -1)",
        "return self.enc(sigma)",
        "return h - h.mean(0)",
        "return torch.cat([h, h])",
        "h = sigma\nreturn h.cumsum(-1)",
        "return h.softmax(-2)",
    ],
)
def test_what_may_go_along_the_rows_does_not(line: str, tmp_path: Path) -> None:
    # GIVEN the same with a line along the rows, or along what may be these WHEN asked THEN it is not taken
    assert not keeps_rows(tmp_path, WHOLE.replace("return self.color(h).softmax(dim=-1), sigma", line))
