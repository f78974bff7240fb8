"""A class of the user's that is called like one of torch's optimizers takes none of its options."""

from __future__ import annotations

import ast

import pytest

from paramgraph_kit.rewrite.counting.optimizers import constructor, makers_of
from paramgraph_kit.rewrite.source.edits import Source

MADE = {  # what stands before `opt = Muon(net.parameters())`, and whether that is torch's
    "class Muon(torch.optim.Optimizer):\n    pass": False,
    "from muon import Muon": False,
    "from optimizers import Own as Muon": False,
    "from torch.optim import Muon": True,
    "from torch.optim import *": True,
}


@pytest.mark.parametrize("before", MADE)
def test_options_are_given_to_torchs_optimizers_alone(before: str) -> None:
    # GIVEN a file that makes an optimizer
    source = Source("file.py", ast.parse(f"{before}\nopt = Muon(net.parameters())"))
    # WHEN it is asked where that is made THEN another class of the name is none that takes `capturable=True`
    assert (constructor([source], "opt") is not None) is MADE[before]
    assert bool(makers_of([source], "Muon", 1, ())) is MADE[before]
