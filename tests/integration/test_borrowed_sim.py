"""Functions of torch's that our own comparing calls, replaced by users: results are eager's all the same."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paramgraph_kit as pgk

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

# Not copy_: the simulated device is made of it.
REPLACED: dict[str, tuple[Any, str, Any]] = {
    "detach": (Tensor, "detach", lambda real: lambda x: real(x) * 2),
    "clone": (Tensor, "clone", lambda real: lambda x, **named: real(x, **named) * 2),
    "cpu": (Tensor, "cpu", lambda real: lambda x: real(x) * 0),
    "view": (Tensor, "view", lambda real: lambda x, *args: real(x, *args) * 2),
    "as_strided": (Tensor, "as_strided", lambda real: lambda x, *args: real(x, *args) * 2),
    "equal": (torch, "equal", lambda real: lambda a, b: False),
    "empty": (torch, "empty", lambda real: lambda *args, **named: real(*args, **named).fill_(0)),
}


def trained(parameterized: bool, verify: Any) -> tuple[Any, nn.Module]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2).to(pgk.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    def step(x: Tensor) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach(), model.weight.detach()[0]

    return pgk.parameterize(step, state=(model, optimizer), verify=verify) if parameterized else step, model


@pytest.mark.parametrize("verify", ["first", "always"])
@pytest.mark.parametrize("which", REPLACED)
def test_a_step_is_not_captured_by_what_a_user_has_made_of_torch(
    which: str, verify: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a whole step and the same code
    (step, model), (plain, same) = trained(True, verify), trained(False, verify)
    owner, name, make = REPLACED[which]
    for n in range(14):
        # WHEN one that capturing calls too is replaced for some calls, and new shapes come meanwhile
        if n == 4:
            monkeypatch.setattr(owner, name, make(getattr(owner, name)), raising=False)
        if n == 10:
            monkeypatch.undo()
        x = torch.arange(4.0 * (3 + (n > 6))).reshape(-1, 4).add(n).div(9).to(pgk.device())
        got, wanted = step(x), plain(x)
        # THEN each call returns and leaves what eager code does
        assert [t.tolist() for t in got] == [t.tolist() for t in wanted], n
        assert [p.tolist() for p in model.parameters()] == [p.tolist() for p in same.parameters()], n
    # AND both shapes are launched once torch's own is back, with no other reason than this
    report = pgk.report(step)
    assert {reason.code for reason in report.reasons} <= {"unknown-state"}
    assert all("was replaced, and what captures and compares calls it too" in r.message for r in report.reasons)
    assert report.rows[-1].launches >= 4


@pytest.mark.parametrize("which", ["detach", "clone", "equal"])
def test_a_compiled_model_is_not_compared_by_what_a_user_has_made_of_torch(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a compiled model
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(pgk.device())
    compiled = torch.compile(model, backend="paramgraph", options={"verify": "always"})
    owner, name, make = REPLACED[which]
    for n in range(9):
        # WHEN a function that comparing calls is replaced for some calls
        if n == 3:
            monkeypatch.setattr(owner, name, make(getattr(owner, name)), raising=False)
        if n == 6:
            monkeypatch.undo()
        x = torch.full((3, 4), n / 7).to(pgk.device())
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # THEN each call is what eager code computes
            assert compiled(x).tolist() == model(x).tolist(), n
    # AND nothing was called a wrong result
    assert "wrong-result" not in {reason.code for reason in pgk.report(compiled).reasons}
