"""Functions of torch's that are replaced between calls of what ``pgk.parameterize(fn)`` returned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import paramgraph_kit as pgk

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

REPLACED: dict[str, tuple[Any, str]] = {
    "a method that C has": (Tensor, "square"),
    "an operator": (Tensor, "__mul__"),
    "an index": (Tensor, "__getitem__"),
    "a function": (F, "softmax"),
    "what that calls": (Tensor, "softmax"),
    "what a layer calls": (F, "layer_norm"),
    "what that calls of C": (torch, "layer_norm"),
    "the call of modules": (nn.Module, "__call__"),
    "what that calls itself": (nn.Module, "_call_impl"),
    "in attention": (torch, "bmm"),
}


@pytest.mark.parametrize("which", REPLACED)
def test_a_function_of_torchs_that_is_replaced_is_heard(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a function that is launched, and that calls one of torch's
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4)).to(pgk.device())
    attention = nn.MultiheadAttention(4, 1).to(pgk.device())  # not in eval, where eager has a kernel of its own

    @torch.no_grad()
    def fn(x: Tensor) -> Any:
        y = model(x).square() * 1.5
        return F.softmax(y + attention(x, x, x)[0], -1)[:2] * 2.0

    launched = pgk.parameterize(fn)
    owner, name = REPLACED[which]
    for n in range(9):
        # WHEN it is replaced by one that calls it, and put back later
        if n == 4:
            real = getattr(owner, name)

            def doubled(*args: Any, real: Any = real, **named: Any) -> Any:
                result = real(*args, **named)
                return torch.mul(result, 2) if isinstance(result, Tensor) else result

            monkeypatch.setattr(owner, name, doubled, raising=False)
        if n == 7:
            monkeypatch.undo()
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(n)).to(pgk.device())
        # THEN each call is what eager code computes
        torch.testing.assert_close(launched(x), fn(x))
    # AND what torch has is launched
    assert sum(row.launches for row in pgk.report(launched).rows) >= 4


def test_replaced_at_first_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a method of tensors that another function has the place of when a function is traced
    monkeypatch.setattr(Tensor, "relu", lambda x: torch.mul(x, 3), raising=False)
    launched, x = pgk.parameterize(lambda x: x.relu() + 1), torch.ones(3).to(pgk.device())
    assert launched(x).tolist() == launched(x).tolist() == [4.0, 4.0, 4.0]
    # WHEN it is put back THEN torch's own runs
    monkeypatch.undo()
    assert launched(x).tolist() == launched(x).tolist() == [2.0, 2.0, 2.0]
