"""The workloads of ``bench --calls`` and ``--whole-steps``, small and on the simulated device."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.bench.alone import measure_alone
from paramgraph_kit.bench.calls import calls, inference_ways, single_ways
from paramgraph_kit.bench.decoding import decoding_ways
from paramgraph_kit.bench.small_models import SmallModel
from paramgraph_kit.bench.steps import llama, step_ways, whole_steps
from paramgraph_kit.bench.ways import COMPILERS, FROZEN, NO_GRAPHS, OURS, TREES, WHOLE, Compared
from paramgraph_kit.bench.workloads import Llama

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
DEVICE = pgk.device()  # at import: before any test of this process runs a backward
SMALL: dict[str, Any] = {"layers": 1, "dim": 16, "heads": 2, "hidden": 32, "vocab": 32}
HERE = {name: compiling for name, compiling in COMPILERS.items() if name != TREES}  # which need Inductor's own device


def test_a_decoding_loop_gives_the_same_tokens_each_way() -> None:
    # GIVEN one loop each way, one after the other in one process, as a user has several compiled models
    torch._dynamo.reset()
    ways = decoding_ways(HERE, DEVICE.type, 6, length=8, **SMALL)
    ready = {name: make() for name, make in ways.items()}
    # WHEN they take turns THEN every round gives what the code without graphs gives
    for _ in range(3):
        tokens = {name: each.tokens() for name, each in ready.items() if each.tokens is not None}
        assert set(tokens) == set(HERE)
        assert len({tuple(found) for found in tokens.values()}) == 1


@pytest.mark.parametrize("gemma", [True, False])
def test_small_models_have_eagers_gradients(gemma: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = SmallModel(gemma=gemma, dim=16, hidden=32, vocab=32, layers=1).to(DEVICE)
    eager = copy.deepcopy(model)
    compiled = pgk.compile(model)
    for _ in range(3):
        ids = torch.randint(0, 32, (1, 6)).to(DEVICE)
        for module, run in ((model, compiled), (eager, eager)):
            module.zero_grad()
            torch.autograd.backward(run(ids).float().square().mean())
        for a, b in zip(model.parameters(), eager.parameters(), strict=True):
            assert a.grad is not None
            assert b.grad is not None
            assert torch.equal(a.grad, b.grad)


def _measured(workload: Compared, way: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    measure_alone(workload, way, [1, 1], (), rows.append)
    first, last = rows
    assert "total_us" not in first  # what memory it holds is told before it waits for its turn
    assert {"rest_mib", "peak_mib"} <= first.keys()
    assert last["total_us"] >= last["cpu_us"] > 0
    assert len(last["total_us_turns"]) == 2
    return last


def test_whole_steps_are_launched_and_measured() -> None:
    ways = step_ways(partial(llama, DEVICE.type, (1, 8), **SMALL), torch.float32, in_turn=True)
    assert set(ways) == {NO_GRAPHS, WHOLE, FROZEN}
    rows = {way: _measured(Compared("a step", ways, warm_up=3), way) for way in ways}
    assert rows[WHOLE]["note"] == ""
    assert all(row["total_us"] >= row["cpu_us"] > 0 for row in rows.values())


def test_a_reason_is_told_where_a_way_runs_ungraphed() -> None:
    # GIVEN a step that is refused: SGD that is not fused reads a rate in a tensor
    made = llama(DEVICE.type, (1, 8), torch.float32, **SMALL)
    optimizer = torch.optim.SGD(made.model.parameters(), lr=torch.tensor(0.1, device=DEVICE), momentum=0.9)
    ways = step_ways(lambda _: made, torch.float32)
    ways[WHOLE] = lambda: ways_of_refused(made, optimizer)
    assert _measured(Compared("a step", ways, warm_up=3), WHOLE)["note"] == "optimizer-sync"


def ways_of_refused(made: Any, optimizer: torch.optim.Optimizer) -> Any:
    from paramgraph_kit.bench.calls import reasons
    from paramgraph_kit.bench.ways import Ready

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(made.logits_of(made.model(x)), y)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()

    graphed = pgk.parameterize(step, state=(made.model, optimizer))
    return Ready(lambda: graphed(*made.batches[0]), lambda: reasons(graphed))


def test_inference_and_what_no_graph_pays_for_are_measured() -> None:
    torch._dynamo.reset()
    ways = inference_ways(lambda: Llama(**SMALL), DEVICE.type, torch.float32, vocab=32)
    for way in (OURS, FROZEN):
        assert _measured(Compared("inference", ways, warm_up=5), way)["note"] == ""
    single = Compared("one kernel", single_ways(DEVICE.type), warm_up=16)
    assert _measured(single, 'paramgraph, select="measure"')["note"].partition(":")[0] in ("", "slower-as-graph")


def test_every_workload_and_way_is_there_once_and_beside_no_graphs() -> None:
    workloads = [*calls(), *whole_steps()]
    pairs = [(workload.name, way) for workload in workloads for way in workload.ways]
    assert len(set(pairs)) == len(pairs) > 50
    assert {name for name, _ in pairs} == {name for name, way in pairs if way == NO_GRAPHS}
