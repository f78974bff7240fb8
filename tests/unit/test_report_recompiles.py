"""The report names what Dynamo compiled a function again for, and says when it compiles no more."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import paramgraph_kit as pgk

DEVICE = pgk.device()

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the report's label is that of the simulator")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls, self.hook = nn.Linear(8, 8), 0, torch.relu

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.hook(self.inner(x))


def told(model: object) -> str:
    return next((line.partition("compiled again: ")[2] for line in str(pgk.report(model)).splitlines()
                 if "compiled again: " in line), "")  # fmt: skip


def test_an_attribute_that_is_another_at_each_call_is_named_with_its_line() -> None:
    # GIVEN a module that counts its calls WHEN it was called three times
    counts = Counts().to(DEVICE)
    model = torch.compile(counts, backend="paramgraph")
    with torch.no_grad():
        for _ in range(3):
            model(torch.ones(4, 8, device=DEVICE))
    # THEN the count is named, at its line
    line = inspect.getsourcelines(Counts.forward)[1] + 1
    assert told(model) == f"self.calls == 1 no longer held (test_report_recompiles.py:{line}), and once before"


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ([(torch.ones(4, 8), 0.5), (torch.ones(4, 8, 2), 0.5)], "x: rank was 2, then 3"),
        ([(torch.ones(4, 8), 0.5), (torch.ones(4, 8, dtype=torch.float64), 0.5)], "x: dtype was Float, then Double"),
        ([(torch.ones(4, 8), 0.5), (torch.ones(4, 8), 1.5)], "weight == 0.5 no longer held (test_report_"),
        ([(torch.ones(4, 8), 0.5), (torch.ones(4, 8), None)], "weight == 0.5 no longer held"),
        ([(torch.ones(4, 8), len), (torch.ones(4, 8), max)], "weight is another object"),
    ],
    ids=["rank", "dtype", "number", "none", "function"],
)  # fmt: skip
def test_each_kind_of_guard_is_told_without_addresses(calls: list[tuple[Tensor, object]], says: str) -> None:
    # GIVEN a compiled function
    @torch.compile(backend="paramgraph")
    def f(x: Tensor, weight: object) -> Tensor:
        return x.sin() * (weight if isinstance(weight, float) else 2.0 + callable(weight))

    # WHEN it is called in two ways
    with torch.no_grad():
        for x, weight in calls:
            f(x.to(DEVICE), weight)
    # THEN what told them apart is named, and nothing of where it lay
    assert told(f).startswith(says), str(pgk.report(f))
    assert "id(" not in told(f)


def test_what_another_model_of_the_same_code_is_compiled_for_is_not_told() -> None:
    # GIVEN two models of one class, each compiled once
    first, second = (torch.compile(nn.Sequential(nn.Linear(8, n)).to(DEVICE), backend="paramgraph") for n in (4, 8))
    x = torch.ones(4, 8, device=DEVICE)
    with torch.no_grad():
        first(x), second(x)
    # WHEN each is reported THEN neither was compiled again
    assert told(first) == told(second) == ""
    # AND a third graph, of the first, is told of what is the first's
    with torch.no_grad():
        first(x.double().float()[:, None])
    assert "rank was 2, then 3" in told(first)
    assert told(second) == ""


def test_a_function_that_dynamo_compiles_no_more_is_not_called_complete() -> None:
    # GIVEN a function that may be compiled three times, and is called with five numbers
    model = torch.compile(lambda x, k: x * k, backend="paramgraph", dynamic=False)
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=3):
        for k in range(2, 5):
            model(torch.ones(4, 8, device=DEVICE), k)
        assert "recompile-limit" not in str(pgk.report(model))
        model(torch.ones(4, 8, device=DEVICE), 7)
        # WHEN reported THEN it says so, at the function's line, and gives no percentage
        report = pgk.report(model)
        (reason,) = report.reasons
        assert reason.code == "recompile-limit"
        assert "torch.compile made 3 graphs of <lambda> and makes no more" in reason.message
        assert reason.frame is not None
        assert reason.message.endswith(f"k == 4 no longer held (test_report_recompiles.py:{reason.frame.line})")
        assert " %)" not in str(report)
        assert "calls that fit none of them are eager, and not counted" in str(report)
