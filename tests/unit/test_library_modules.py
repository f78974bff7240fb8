"""Modules of installed packages that count, or hold another tensor after a call: what that decides is found."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.driver.select import driver, twin

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

DEVICE = driver().device
TEXT = """
import torch
from torch import nn

class Average(nn.Module):
    def __init__(self):
        super().__init__()
        self.total, self.calls = nn.Buffer(torch.zeros(4)), 0
    def forward(self, x):
        self.calls += 1
        self.total = self.total + x
        return self.total / self.calls

class Codebook(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.ones(4))
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls % 5 == 0:
            self.seen.mul_(0.5)
        return x * self.seen

class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.length = 2
        self.register_buffer("table", torch.arange(2.0))
    def forward(self, x):
        if len(x) > self.length:
            self.length = len(x)
            self.table = torch.arange(float(len(x)), device=x.device)
        return x * self.table[: len(x)]
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "counting_modules.py").write_text(TEXT)
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    yield importlib.import_module("counting_modules")
    sys.modules.pop("counting_modules")
    twin().recover()


@pytest.mark.parametrize(
    ("kind", "codes"),
    [("Average", {"scalar-frozen", "stale-input"}), ("Codebook", {"branch-frozen"}), ("Rotary", set[str]())],
)
def test_what_a_librarys_module_moves_is_found(library: Any, kind: str, codes: set[str]) -> None:
    # GIVEN a module of an installed package that counts its calls, or makes a table that stays
    module = getattr(library, kind)().to(DEVICE)
    before = {**vars(module)}

    def step(x: Any) -> Any:
        return module(x)

    # WHEN a step that calls it is looked at
    found = pgk.diagnose(step, torch.ones(4, device=DEVICE))

    # THEN what a graph would freeze is told, what is made once is not, and the module is as before
    assert {each.code for each in found.failures} == codes
    assert vars(module) == before
