"""``min`` and ``max`` of what may be nan: Python's keep their first one, and so does what the device chooses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

NOISE = """
def split(a, b):
    up = min(b, OF)
    return (b**2 - up**2) ** 0.5, up
def f(x, a, b):
    down, up = split(a, b)
    return x * down + up
args = (torch.randn(3, device=device), torch.tensor(3.0, device=device), torch.tensor(1.0, device=device))
"""


@pytest.mark.sweep
def test_smaller_of_a_root_is_chosen_as_python_does(tmp_path: Path) -> None:
    # GIVEN the noise of a sampler's step, which divides by its level and takes a root WHEN it is fixed
    fix = rewritten(NOISE.replace("OF", "0.5 * (b**2 * (a**2 - b**2) / a**2) ** 0.5"), tmp_path)
    # THEN it is found ahead of the line, and a nan is not chosen: inputs of zeros are tried
    assert fix.complete, fix
    assert "other = 0.5 * (b**2 * (a**2 - b**2) / a**2) ** 0.5" in lines_of(fix)
    assert "up = torch.where(other < b, other, b)" in lines_of(fix)


@pytest.mark.sweep
def test_smaller_of_a_product_stays_one_call(tmp_path: Path) -> None:
    # GIVEN the same of what is never nan of its own WHEN it is fixed THEN no name is needed
    fix = rewritten(NOISE.replace("OF", "0.5 * b * a.abs()"), tmp_path)
    assert fix.complete, fix
    assert "up = torch.minimum(b, 0.5 * b * a.abs())" in lines_of(fix)
