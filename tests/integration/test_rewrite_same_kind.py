"""What is returned has the shape and the type that it had, or it is no rewrite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

KINDS = {
    "a slice of one element": "i = x.argmax().item()\n    return x[i] * 2, x[i : i + 1]",
    "a half beside one number of more precision": "return x.half().masked_fill(x > 0, s.item())",
}


@pytest.mark.parametrize("name", KINDS)
def test_what_is_rewritten_returns_tensors_of_the_same_shape_and_type(name: str, tmp_path: Path) -> None:
    # GIVEN a step whose rewrite may give another shape, or another type
    text = f"def f(x, s):\n    {KINDS[name]}\nargs = (torch.randn(8, device=device), torch.ones(1, device=device))\n"
    names = run(text, tmp_path)
    kinds = [(each.shape, each.dtype) for each in _tensors(names["f"](*names["args"]))]
    # WHEN it is rewritten
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix is not None
    with fix.applied():
        given: Any = names["args"], {}
        fix.around.prepare(given)
        results = fix.around.finish(given, names["f"](*names["args"]))
    # THEN what is said to be whole gives what the function gave
    found = [(each.shape, each.dtype) for each in _tensors(results)]
    assert not fix.complete or found == kinds, fix


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)
