"""torch.compile(..., backend=paramgraph) on a GPU: bits, sharing, held outputs, what is left behind."""

from __future__ import annotations

import gc
import importlib
import itertools
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch_config
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.backend import paramgraph
from paramgraph_kit.backend.registry import compiled_graphs
from paramgraph_kit.bench.measure import compare_bits
from paramgraph_kit.bench.workloads import Llama, Workload, llama

pytestmark = pytest.mark.gpu
SIZE: dict[str, Any] = {"layers": 3, "dim": 256, "tokens": 48, "hidden": 512, "heads": 4, "vocab": 512}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("blocks", [False, True], ids=["whole", "by block"])
def test_llama_has_the_bits_of_the_same_code_ungraphed(blocks: bool, training: bool) -> None:
    # GIVEN a Llama-like model WHEN every step is compared with the same compiled code without graphs
    before = {id(g) for g in compiled_graphs()}
    result = compare_bits(llama("test", **SIZE, blocks=blocks, training=training))
    # THEN nothing differs, and the graphs really ran
    assert result["different"] == 0
    assert result["reasons"] == []
    mine = [g for g in compiled_graphs() if id(g) not in before]
    calls = 6 * (SIZE["layers"] if blocks else 1)
    assert all(v.state.launches >= calls for g in mine for x in g.launchers for v in x.variants.values() if v)
    assert sum(len(x.variants) for g in mine for x in g.launchers) == 1 + training  # one executable for all layers


def test_stages_give_memory_back_with_the_same_bits() -> None:
    # GIVEN training by block, large enough for one stage to hold much more than no graphs
    size = SIZE | {"dim": 1024, "tokens": 2048, "hidden": 4096}
    result = compare_bits(llama("test", **size, blocks=True, training=True), steps=3)
    # THEN some backward is launched in stages, and nothing differs
    variants = [v for g in compiled_graphs() for x in g.launchers for v in x.variants.values() if v]
    assert max(len(v.plan.stages) for v in variants) > 1
    assert any(v.plan.shelf_bytes for v in variants)
    assert result["different"] == 0


def test_offloaded_activations_leave_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a training step whose large activations torch takes to the host and back
    offloading: Any = importlib.import_module("torch._functorch._activation_offloading.activation_offloading")
    choose, marked = offloading.choose_offload_sets, []

    def marking(forward: torch.fx.GraphModule, *rest: Any) -> Any:
        for node in forward.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default):
            node.meta["should_offload"] = True
            marked.append(node)
        return choose(forward, *rest)

    monkeypatch.setattr(offloading, "choose_offload_sets", marking)
    # No cache: whoever finds the compiled code there marks nothing.
    with functorch_config.patch(enable_activation_offloading=True, enable_autograd_cache=False):
        result = compare_bits(llama("test", **SIZE, blocks=False, training=True), steps=3)
    # WHEN compared with the same compiled code without graphs THEN nothing differs, and the copies are between graphs
    assert marked
    assert result["different"] == 0
    assert {reason.partition(" (")[0] for reason in result["reasons"]} == {
        "a copy from cuda to cpu",
        "a copy from cpu to cuda",
    }


def test_every_launch_can_be_verified_and_the_quicker_way_kept() -> None:
    # GIVEN a training step with dropout whose launches are all compared, and that is timed both ways
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Dropout(0.3), nn.GELU(), nn.Linear(256, 8)).cuda()
    compiled: Any = pgk.compile(model, verify="always", select="measure")
    # WHEN called
    for _ in range(40):  # it takes up to twelve calls each way
        compiled(torch.randn(32, 64, device="cuda")).square().sum().backward()
    # THEN nothing differed, and the report has what was compared and measured
    report = pgk.report(compiled)
    print(report)
    assert {reason.code for reason in report.reasons} <= {"slower-as-graph"}
    assert all(row.verified > 0 or not row.graphed for row in report.rows)
    assert "us from a graph" in f"{report} {' '.join(reason.message for reason in report.reasons)}"


def test_dropout_in_training_draws_what_it_draws_without_graphs() -> None:
    # GIVEN a model with dropout
    def build(device: torch.device) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 256), nn.Dropout(0.3), nn.GELU(), nn.Linear(256, 8)).to(device)

    def step(model: nn.Module, inputs: list[torch.Tensor], optimizer: Any) -> list[torch.Tensor]:
        model(inputs[0]).square().sum().backward()
        found = [p.grad for p in model.parameters() if p.grad is not None]
        model.zero_grad(set_to_none=True)
        return found

    workload = Workload("dropout", build, lambda seed, d: [torch.randn(32, 64, device=d)], step, "", True)
    # WHEN compared THEN every gradient is the same
    assert compare_bits(workload)["different"] == 0


def test_outputs_of_earlier_calls_stay_valid() -> None:
    # GIVEN a compiled model WHEN called again and again
    model = torch.compile(Llama(2, 128, 4, 256, 128).cuda(), backend=paramgraph)
    outputs, copies = [], []
    with torch.no_grad():
        for seed in range(4):
            torch.manual_seed(seed)
            outputs.append(model(torch.randint(0, 128, (1, 16), device="cuda")))
            copies.append(outputs[-1].clone())
    # THEN what it returned before is untouched
    assert all(torch.equal(a, b) for a, b in zip(outputs, copies, strict=True))


def test_retained_graphs_and_second_backwards_are_right() -> None:
    # GIVEN a compiled model whose backward runs twice on the same saved activations
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(512, 4096), nn.GELU(), nn.Linear(4096, 512)).cuda()
    model = torch.compile(base, backend=paramgraph)
    for _ in range(3):
        x = torch.randn(512, 512, device="cuda")
        base.zero_grad(set_to_none=True)
        loss = model(x).square().sum()
        try:
            loss.backward(retain_graph=True)
        except RuntimeError as error:  # Inductor itself refuses where it has planned to write into what is saved
            if "donated" not in str(error):
                raise
            return
        first = [p.grad.clone() for p in base.parameters() if p.grad is not None]
        loss.backward()
        # THEN the second adds the same gradients
        assert all(
            torch.allclose(p.grad, 2 * g) for p, g in zip(base.parameters(), first, strict=True) if p.grad is not None
        )


def test_nothing_is_left_of_a_dropped_model() -> None:
    # GIVEN a device at rest
    def used() -> int:
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()  # eager work's own, 32 MiB a stream
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    warm = torch.compile(nn.Linear(64, 64).cuda(), backend=paramgraph)
    warm(torch.randn(64, 64, device="cuda")).sum().backward()
    del warm
    torch._dynamo.reset()
    before = used()
    # WHEN a model is compiled, trained and dropped
    model = torch.compile(Llama(2, 512, 8, 1024, 512).cuda(), backend=paramgraph)
    for _ in range(3):
        model(torch.randint(0, 512, (1, 64), device="cuda")).sum().backward()
    del model
    torch._dynamo.reset()
    # THEN its memory and its graphs are gone
    assert used() <= before + (2 << 20)
    assert compiled_graphs() == []


def test_running_out_of_memory_in_a_launch_leaks_nothing_and_the_next_is_right() -> None:
    # GIVEN a function launched from a graph, and room for one of its two outputs
    compiled = torch.compile(lambda x: (x * 2, x.sin() + 1), backend=paramgraph)
    x = torch.randn(16 << 20, device="cuda")
    for _ in range(3):
        compiled(x)
    gc.collect()
    torch.cuda.empty_cache()
    before, total = torch.cuda.memory_allocated(), torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (96 << 20)) / total)
    try:
        # WHEN called THEN torch's own error is raised, and what was allocated is given back
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                compiled(x)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.cuda.memory_allocated() == before
    # AND with room again it is launched, and right
    launches = sum(v.state.launches for g in compiled_graphs() for n in g.launchers for v in n.variants.values() if v)
    doubled, moved = compiled(x)
    assert torch.equal(doubled, x * 2)
    assert torch.allclose(moved, x.sin() + 1)
    assert launches < sum(
        v.state.launches for g in compiled_graphs() for n in g.launchers for v in n.variants.values() if v
    )


def test_an_item_in_the_middle_is_right_and_explained() -> None:
    # GIVEN a model that looks at a value on the host
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.sum().item() > 0:
            y = y + 1
        return y * 3

    compiled = torch.compile(run, backend=paramgraph)
    for seed in range(3):
        x = torch.full((64,), float(seed - 1), device="cuda")
        # WHEN called THEN the numbers are right on either branch
        assert torch.equal(compiled(x), run(x))


def test_watched_launches_say_when_they_ran_on_the_device() -> None:
    # GIVEN a model whose kernels take a while, that has been captured
    model = torch.compile(nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).cuda(), backend=paramgraph)
    x = torch.randn(4096, 2048, device="cuda")
    with torch.no_grad():
        kept = [model(x) for _ in range(3)]
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        # WHEN it is watched
        with pgk.watch() as trace:
            begin.record()
            kept += [model(x.clone()) for _ in range(5)]
            end.record()
    # THEN launches come one after the other, and together take no longer than all of it
    times = [(launch.gpu_start_us, launch.gpu_us) for launch in trace.launches]
    assert len(times) == 5
    took = sum(us for _, us in times if us is not None)
    assert took > 500
    assert took <= begin.elapsed_time(end) * 1000 + 50
    for (start, us), (following, _) in itertools.pairwise(times):
        assert start is not None
        assert us is not None
        assert following is not None
        assert start + us <= following + 5
    assert all(launch.start_us is not None for launch in trace.launches)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_rows_of_one_tensor_share_a_graph_of_generated_kernels(dtype: torch.dtype) -> None:
    # GIVEN a compiled function of Inductor's kernels alone, and one with a product of a library's beside them
    def own(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2 + x.sin(), -1) * x.sum(-1, keepdim=True)

    def mixed(x: torch.Tensor) -> torch.Tensor:
        return own(x) @ x.mT

    for fn, counts in ((own, range(1, 3)), (mixed, range(1, 9))):
        before = {id(g) for g in compiled_graphs()}
        compiled = torch.compile(fn, backend=paramgraph, dynamic=False)
        # WHEN it is called with one row after the other, of 16 bytes' alignment at least, and with one of less
        flat = torch.randn(1 << 16, device="cuda", dtype=dtype)
        starts = [16 * k for k in range(40)] + [1, 3, 17, 0, 16]
        rows = [flat[start : start + 24 * 64].view(24, 64) for start in starts]
        found = [compiled(row) for row in rows]
        launchers = [x for g in compiled_graphs() if id(g) not in before for x in g.launchers]
        for launcher in launchers:
            launcher.pause()
        # THEN each has the bits of the same code without graphs, and the first one graph for all that 16 divides
        for row, ours in zip(rows, found, strict=True):
            assert torch.equal(compiled(row), ours)
        assert [len([v for v in x.variants.values() if v]) in counts for x in launchers] == [True] * len(launchers)
        assert sum(v.state.launches for x in launchers for v in x.variants.values() if v) >= 30
