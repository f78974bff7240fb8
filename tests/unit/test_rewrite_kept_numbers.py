"""What a number from outside of a step is given to each launch in."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paramgraph_kit.rewrite import kept_numbers

MADE = {
    "x * self.i": ("float({})", "`i_in` for `self.i`"),
    "x * self.abar[self.i]": ("[{}]", "`self.abar.index_select(0, i_in).squeeze(0)` for `self.abar[self.i]`"),
    "x * self.rates[self.i]": None,
    "x * self.abar[:self.i].sum()": None,
    "x * self.abar[self.i - 1] * self.i": None,
    "x * (2 if self.i > 0 else 1)": None,
    "x.add_(v, alpha=self.i)": ("float({})", "`x.add_(v * i_in)` for `x.add_(v, alpha=self.i)`"),
    "x.mul_(self.i).sub_(v, alpha=1 - self.i)": (
        "float({})",
        "`x.mul_(i_in).sub_(v * (1 - i_in))` for `x.mul_(self.i).sub_(v, alpha=1 - self.i)`, `i_in` for `self.i`",
    ),
    "torch.addcmul(x, v, v, value=-self.i)": (
        "float({})",
        "`torch.addcmul(x, v * (-i_in), v)` for `torch.addcmul(x, v, v, value=-self.i)`",
    ),
    "x.masked_fill(x > 0, value=self.i)": None,
    "F.dropout(x, p=self.i)": None,
    "F.dropout(x, self.i)": None,
    "F.leaky_relu(x, self.i * 0.5)": None,
    "F.leaky_relu(x, negative_slope=self.i)": None,
    "x * math.exp(-self.i)": None,
    "x.clamp(0.0, self.i)": None,
    "x.clamp(-self.i, self.i)": ("float({})", "`i_in` for `self.i`"),
    "torch.lerp(x, v, self.i)": ("float({})", "`i_in` for `self.i`"),
}


@pytest.mark.parametrize("read", MADE)
def test_a_number_that_picks_is_an_index_on_the_device_and_one_that_decides_has_no_tensor(read: str) -> None:
    # GIVEN a step that reads a number, and an object with a table on the device and one of Python's
    (function,) = ast.parse(f"def step(self, x):\n    y = {read}\n    return y").body
    held = SimpleNamespace(abar=torch.ones(4), rates=[1.0, 2.0])
    attempt: Any = SimpleNamespace(function=SimpleNamespace(__self__=held), space={})
    # WHEN THEN an index is a whole number of one dimension, and a size or a branch takes no tensor
    assert isinstance(function, ast.FunctionDef)
    assert kept_numbers._given(function, "self.i", attempt) == MADE[read]
