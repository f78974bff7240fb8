"""What torch does for CUDA alone is done for the simulated device, too: libraries it asks, profilers, checks."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import paramgraph_kit as pgk
from paramgraph_kit.driver.select import device

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")


def test_what_has_no_factor_leaves_no_numbers(cuda: Any) -> None:
    # GIVEN matrices of which one is not positive definite
    given = torch.stack([torch.eye(2), -torch.eye(2)]).to(device())
    eager = torch.linalg.cholesky_ex(given)
    with cuda.graph(graph := cuda.CUDAGraph()):
        found = torch.linalg.cholesky_ex(given)
    # WHEN factored, eagerly and in a graph THEN nobody takes what is left of it for a factor, and a replay says so
    with pytest.warns(UserWarning, match="no Cholesky factor"):
        graph.replay()
    for factor, info in (found, eager):
        assert info.tolist() == [0, 1]
        assert torch.equal(factor[0], given[0])
        assert factor[1].isnan().tolist() == [[True, False], [True, True]]


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_number_of_the_device_is_loaded_in_the_type_of_the_halves_beside_it(kind: torch.dtype, cuda: Any) -> None:
    # GIVEN halves, and numbers that halves do not have, on the host and on the device, as an H200 computes with them
    x = torch.tensor([1000.0, 3.0], dtype=torch.float16, device=device())
    small, large = (torch.tensor(each, dtype=kind, device=device()) for each in (1e-8, 1e5))
    # WHEN computed with, eagerly and in a graph THEN those of the device are loaded as halves
    with cuda.graph(graph := cuda.CUDAGraph()):
        captured = x * small
    graph.replay()
    assert (x * small).tolist() == captured.tolist() == x.clone().mul_(small).tolist() == [0.0, 0.0]
    assert (x * 1e-8).tolist() == pytest.approx([1.00136e-5, 5.96046e-8], rel=1e-4)
    assert (x / large).tolist() == [0.0, 0.0]
    assert (x / 1e5).tolist() == pytest.approx([0.01000214, 2.99811e-5], rel=1e-4)
    assert (x.float() * small).tolist() == pytest.approx([1e-5, 3e-8], rel=1e-4)


def test_ctc_loss_of_labels_in_a_row_is_cudnns(cuda: Any) -> None:
    # GIVEN what cuDNN takes: labels in a row and lengths, of 32 bits
    torch.manual_seed(0)
    source = torch.randn(20, 2, 6).log_softmax(2)
    host = [torch.tensor(each, dtype=torch.int32) for each in ([1, 2, 3, 4, 5, 1, 2, 3, 4], [20, 18], [5, 4])]
    x, labels, lengths, wanted = (each.to(device()) for each in (source, *host))

    def run(*given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = given[0].detach().requires_grad_()
        loss = F.ctc_loss(leaf, given[1], given[2], given[3])
        return loss.detach().cpu(), torch.autograd.grad(loss, leaf)[0].cpu()

    # WHEN it runs THEN its numbers are the CPU's, also where torch has to be deterministic, which its own kernel is not
    torch.use_deterministic_algorithms(True)
    try:
        for mine, expected in zip(run(x, labels, lengths, wanted), run(source, *host), strict=True):
            assert torch.allclose(mine, expected)
    finally:
        torch.use_deterministic_algorithms(False)
    # AND the mean by lengths of the CPU is refused, as torch refuses it
    with pytest.raises(RuntimeError, match="at least two devices, sim:0 and cpu"):
        F.ctc_loss(x, host[0], host[1], host[2])
    assert F.ctc_loss(x, host[0], host[1], host[2], reduction="sum").shape == ()
    # AND in a capture it is refused: lengths of the CPU by a check of its own, others where they are copied
    with cuda.graph(cuda.CUDAGraph()):
        with pytest.raises(RuntimeError, match="CTCLoss cannot be graph captured with CPU length tensors") as caught:
            F.ctc_loss(x, labels, host[1], host[2])
        assert "[ctc-loss]" in str(pgk.diagnose(caught.value))
        with pytest.raises(RuntimeError, match="Cannot copy between CPU and CUDA tensors"):
            F.ctc_loss(x, labels, lengths, wanted)


def test_events_without_times_are_refused_before_cuda_is_asked(cuda: Any) -> None:
    # GIVEN two events of a capture that were made without times
    graph, begun, done = cuda.CUDAGraph(), cuda.Event(), cuda.Event()
    with cuda.graph(graph):
        begun.record()
        done.record()
        # WHEN the time between them is asked for THEN torch refuses, and the capture goes on
        with pytest.raises(ValueError, match="must be created with argument 'enable_timing=True'"):
            begun.elapsed_time(done)
        y = torch.ones(2, device=device()) + 1
    graph.replay()
    assert y.tolist() == [2.0, 2.0]


def test_profilers_of_cuda_find_nothing_and_wait_as_they_do(cuda: Any) -> None:
    # GIVEN torch's ranges for Nsight, around a capture
    emit: Any = torch.autograd.profiler.emit_nvtx
    x, graph = torch.ones(2, device=device()), cuda.CUDAGraph()
    with emit(record_shapes=True) as ranges, cuda.profiler.profile():
        with cuda.graph(graph):
            y = x * 2
        with pytest.raises(RuntimeError, match="is not reentrant"):
            ranges.__enter__()
    graph.replay()
    assert y.tolist() == [2.0, 2.0]
    # WHEN they begin in one THEN they wait for the device, which a capture forbids
    with pytest.raises(torch.AcceleratorError, match="previous error"), cuda.graph(cuda.CUDAGraph()):
        emit().__enter__()
    cuda.recover()
    with emit(enabled=False) as nothing:
        assert nothing is None


def test_the_largest_of_a_bag_has_no_deterministic_gradient() -> None:
    # GIVEN torch that is to be deterministic WHEN bags of embeddings are differentiated THEN one kind is refused
    table = torch.ones(4, 3, device=device(), requires_grad=True)
    index = torch.tensor([[0, 1]], device=device())
    torch.use_deterministic_algorithms(True)
    try:
        torch.autograd.backward(F.embedding_bag(index, table, mode="sum").sum())
        with pytest.raises(RuntimeError, match="embedding_bag_backward_cuda_max does not have a deterministic"):
            torch.autograd.backward(F.embedding_bag(index, table, mode="max").sum())
    finally:
        torch.use_deterministic_algorithms(False)


def test_memory_that_a_tensor_grows_into_is_filled_where_torch_is_deterministic() -> None:
    # GIVEN torch that is to be deterministic WHEN tensors grow THEN what is new of them is as torch fills it
    torch.use_deterministic_algorithms(True)
    try:
        grown = torch.ones(2, dtype=torch.int32, device=device()).resize_(3)
        made = torch.empty(0, device=device()).resize_(2)
        again = torch.ones(4, device=device()).resize_(1).resize_(4)
    finally:
        torch.use_deterministic_algorithms(False)
    assert grown.tolist() == [1, 1, torch.iinfo(torch.int32).max]
    assert made.isnan().all()
    assert again.tolist() == [1.0] * 4


def test_a_spoiled_capture_takes_no_copies_of_pinned_memory(cuda: Any) -> None:
    # GIVEN a capture that a read has spoiled WHEN pinned memory is copied THEN it is told so
    pinned, x = torch.ones(4).pin_memory(), torch.zeros(4, device=device())

    def body() -> None:
        with pytest.raises(torch.AcceleratorError, match="not permitted when stream is capturing"):
            x.sum().item()
        with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
            x.copy_(pinned, non_blocking=True)

    with pytest.raises(torch.AcceleratorError, match="previous error"), cuda.graph(cuda.CUDAGraph()):
        body()
    cuda.recover()


def test_emptying_the_cache_is_forbidden_in_a_capture_where_a_pool_is_to_be_freed(cuda: Any) -> None:
    # GIVEN what is left in the pool of a graph that is gone WHEN it goes in a capture, and the cache is emptied there
    x = torch.ones(3, device=device())

    def empties(mode: str, *, drops: bool) -> None:
        first = cuda.CUDAGraph()
        with cuda.graph(first):
            kept = [x * 2]
        first.reset()
        with cuda.graph(cuda.CUDAGraph(), capture_error_mode=mode):
            x.add_(1)
            if drops:
                kept.clear()
            cuda.empty_cache()

    # THEN CUDA's cudaFree fails, unless the capture's mode allows it; and nothing happens where nothing is to be freed
    empties("global", drops=False)
    empties("relaxed", drops=True)
    with pytest.raises(torch.AcceleratorError, match="operation failed due to a previous error"):
        empties("global", drops=True)
    cuda.recover()


def test_autocast_of_the_cpu_leaves_the_device_as_it_is(cuda: Any) -> None:
    # GIVEN autocast of the CPU WHEN matrices of the device are multiplied, eagerly and by a graph
    x, graph = torch.ones(2, 2, device=device()), cuda.CUDAGraph()
    x @ x  # cuBLAS's handle
    with torch.autocast("cpu", torch.bfloat16):
        with cuda.graph(graph):
            y = x @ x
        graph.replay()
        eager, host = x @ x, torch.ones(2, 2) @ torch.ones(2, 2)
    # THEN they are as precise as without, and the CPU's are not
    assert (y.dtype, eager.dtype, host.dtype) == (torch.float32, torch.float32, torch.bfloat16)
    assert y.tolist() == eager.tolist() == [[2.0, 2.0], [2.0, 2.0]]


IN_FLOAT32: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "norm": torch.linalg.norm,
    "vector norm": torch.linalg.vector_norm,
    "logsumexp": lambda x: x.logsumexp(0),
    "log10": torch.log10,
    "interpolation": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "a distance": lambda x: torch.dist(x, x + 1),
    "a triplet's loss": lambda x: F.triplet_margin_loss(x, x + 1, x + 2),
}


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_autocast_runs_in_float32_what_cuda_does(name: str) -> None:
    # GIVEN a product in half precision WHEN what CUDA's list has follows THEN it is in float32
    x = torch.ones(2, 2, device=device())
    with torch.autocast("sim", torch.float16):
        assert IN_FLOAT32[name](x @ x).dtype == torch.float32


def test_autocast_casts_for_a_root_mean_square_as_the_torch_that_runs() -> None:
    # GIVEN torch 2.11, whose list has no rms_norm, or a newer one WHEN half precision is normalised THEN it is in that
    x = torch.ones(2, 2, device=device())
    with torch.autocast("sim", torch.bfloat16):
        kind = F.rms_norm(x @ x, (2,)).dtype
    assert kind == (torch.bfloat16 if torch.__version__.startswith("2.11.") else torch.float32)


def test_what_a_soft_threshold_takes_away_has_no_minus() -> None:
    # GIVEN numbers below zero, within the bounds WHEN eagerly or captured THEN they are 0.0, as CUDA's kernel has it
    x, g = torch.tensor([-1.0, -0.5, -2.0], device=device()), pgk.cuda.CUDAGraph()
    with pgk.cuda.graph(g):
        captured = F.softshrink(x, 1.0)
    g.replay()
    for found in (F.softshrink(x, 1.0), captured):
        assert found.signbit().tolist() == [False, False, True]


def test_an_index_of_another_type_is_named_as_cuda_has_it() -> None:
    # GIVEN flags and numbers for indices WHEN rows are looked up THEN the error has CUDA's names of their types
    rows = torch.ones(3, 2, device=device())
    for index, name in (([True], "CUDABoolType"), ([1.0], "torch.cuda.FloatTensor")):
        with pytest.raises(RuntimeError, match=f"Long, Int; but got {name} instead"):
            F.embedding(torch.tensor(index, device=device()), rows)


def test_vectors_of_two_types_have_no_product() -> None:
    # GIVEN whole numbers and others WHEN multiplied THEN what is said is about their types
    x = torch.ones(3, device=device())
    with pytest.raises(RuntimeError, match="expected both vectors to have same dtype, but found Long and Float"):
        x.long() @ x


def test_factories_say_so_where_the_cpp_of_torch_is_not_known() -> None:
    # GIVEN a torch that nobody has looked at WHEN a factory is asked for pinned memory THEN it is refused, not guessed
    program = (
        "import torch; torch.__version__ = '2.99.0'; import paramgraph_kit as pgk; pgk.device()\n"
        "print(torch.ones(2).pin_memory().is_pinned(), torch.ones(2).is_pinned())\n"
        "print(pgk.diagnose(lambda: torch.ones(2, pin_memory=True)).failures[0].code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "not-simulated"]


def test_factories_make_pinned_memory(cuda: Any) -> None:
    # GIVEN what factories make with pin_memory=True WHEN asked THEN it is pinned, and its views, but no copy of it
    sim, host = device(), torch.zeros(4, pin_memory=True)
    made = (
        torch.tensor([1.0], pin_memory=True),
        torch.empty_like(host, pin_memory=True),
        torch.ones(2).new_empty(3, pin_memory=True),
    )
    assert all(each.is_pinned() for each in (host, host[1:], *made))
    assert all(torch.from_numpy(each).is_pinned() for each in (host.numpy(), host.numpy()[1:]))
    assert not torch.from_numpy(host.clone().numpy()).is_pinned()
    assert not any(each.is_pinned() for each in (host.clone(), torch.empty_like(host), torch.empty(0, pin_memory=True)))
    # and a captured copy into it, and out of it, is copied again
    x, graph = torch.ones(4, device=sim), cuda.CUDAGraph()
    with cuda.graph(graph):
        y = host.to(sim, non_blocking=True) + 1
        host.copy_(x, non_blocking=True)
    x.fill_(3)
    graph.replay()
    graph.replay()
    assert host.tolist() == [3.0] * 4
    assert y.tolist() == [4.0] * 4
    del made
    # and what a graph still copies from when it is freed is told of, once, but for what its own capture has made
    with cuda.graph(other := cuda.CUDAGraph()):
        x.copy_(torch.full((4,), 2.0, pin_memory=True), non_blocking=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph.replay()
        other.replay()
    del host
    with pytest.warns(UserWarning, match="pinned memory that is freed by now"):
        graph.replay()
    # and the device's own memory is not pinned
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(3, device=sim, pin_memory=True)
    with pytest.raises(RuntimeError, match=r"cannot pin 'torch\.cuda\.FloatTensor' only dense CPU tensors"):
        x.pin_memory()


def test_what_lies_in_rows_behind_some_operations(cuda: Any) -> None:
    # GIVEN an image whose channels lie last WHEN it is rolled, or its groups are normed THEN rows lie last [H200]
    x = torch.arange(16.0, device=device()).view(1, 2, 2, 4).contiguous(memory_format=torch.channels_last)

    def both() -> list[torch.Tensor]:
        return [x.roll(1, 1), F.group_norm(x, 1)]

    with cuda.graph(cuda.CUDAGraph()):
        captured = both()
    for found in (*both(), *captured):
        assert found.stride() == (16, 8, 4, 1)
    assert torch.equal(both()[0].cpu(), x.cpu().roll(1, 1))
