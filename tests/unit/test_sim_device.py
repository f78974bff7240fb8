"""The simulated device as a torch device: addresses, aliasing, reuse, copies, random numbers, files."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import operator
import re
import struct
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.driver.select import driver
from paramgraph_kit.driver.sim.arena import Arena
from paramgraph_kit.driver.sim.machine import machine
from paramgraph_kit.driver.torch_names import missing

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")


def test_nothing_is_registered_by_importing_the_package() -> None:
    # GIVEN a fresh process WHEN the drivers are imported THEN torch has no new backend until one is asked for
    code = (
        "import torch, paramgraph_kit, paramgraph_kit.driver.select as s, paramgraph_kit.driver.api\n"
        "assert torch._C._get_privateuse1_backend_name() == 'privateuseone'\n"
        "assert not hasattr(torch, 'sim')\n"
        "assert s.device() == torch.device('sim:0') and hasattr(torch, 'sim')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("torch.utils.rename_privateuse1_backend('npu')", "PrivateUse1 slot, which 'npu' has taken"),
        ("torch.__version__ = '2.10.1'", "needs torch 2.11 or newer, this is 2.10.1"),
        ("del torch._C._acc.create_empty_tensor", "has no torch._C:_acc.create_empty_tensor"),
    ],
)
def test_a_device_that_cannot_be_made_is_refused_in_one_line(before: str, message: str) -> None:
    # GIVEN a process in which the device cannot exist WHEN it is asked for
    code = (
        f"import torch, torch.utils.backend_registration\n{before}\n"
        "from paramgraph_kit.driver.select import device\n"
        "from paramgraph_kit.trace.errors import UnsupportedError\n"
        "try:\n device()\nexcept UnsupportedError as e:\n print(e)\n"
        "print(hasattr(torch, 'sim'), torch._C._get_privateuse1_backend_name() == 'sim')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    # THEN one line says why, and nothing is half-registered
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert message in lines[0]
    assert lines[1] == "False False"


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_every_private_name_of_torch_is_there() -> None:
    # GIVEN this torch THEN nothing that the package relies on is gone
    assert missing() == []


def test_a_tensor_lies_at_the_address_of_its_block(sim: torch.device) -> None:
    # GIVEN a tensor of the device
    x = torch.arange(6.0, device=sim)
    # THEN its address is aligned, live memory of the allocator, and holds its bytes
    address = driver().address_of(x)
    assert address == x.data_ptr()
    assert address % 512 == 0
    assert machine().allocator.is_live(address)
    assert machine().arena.read(address + 4, 4) == struct.pack("<f", 1.0)


def test_views_alias_and_in_place_writes_show_everywhere(sim: torch.device) -> None:
    # GIVEN a matrix and views of it
    x = torch.zeros(4, 6, device=sim)
    row, column, block = x[1], x[:, 2], x.view(2, 12)[1]
    # THEN they lie inside its storage
    assert row.data_ptr() == x.data_ptr() + 24
    assert block.untyped_storage().data_ptr() == x.data_ptr()
    # WHEN one is written in place THEN all see it
    column.add_(1)
    row.mul_(5)
    x.t()[3] = 7
    assert row.tolist() == [0, 0, 5, 7, 0, 0]
    assert block.tolist() == [0, 0, 1, 7, 0, 0, 0, 0, 1, 7, 0, 0]


def test_freed_memory_is_used_again_and_a_stale_pointer_reads_other_data(sim: torch.device) -> None:
    # GIVEN a tensor that is gone, and its address
    x = torch.full((1000,), 1.0, device=sim)
    address = x.data_ptr()
    stale = machine().tensor_at(address, 4000, (1000,), (1,), 0, torch.float32)
    allocated = driver().memory()[0]
    del x
    assert driver().memory()[0] < allocated
    # WHEN the same size is asked for
    y = torch.full((1000,), 2.0, device=sim)
    # THEN the same memory serves, and whoever kept the address reads the newcomer
    assert y.data_ptr() == address
    assert stale[0].item() == 2.0


def test_a_block_lives_as_long_as_any_view_or_saved_tensor(sim: torch.device) -> None:
    # GIVEN a tensor saved for backward, and nothing else that holds it
    w = torch.ones(300, device=sim, requires_grad=True)
    x = torch.full((300,), 3.0, device=sim)
    address = x.data_ptr()
    y = (w * x).sum()
    tail = x[200:]
    del x
    gc.collect()
    # THEN its block is live until both are gone
    assert machine().allocator.is_live(address)
    torch.autograd.backward(y)
    assert w.grad is not None
    assert w.grad[0].item() == 3.0
    del y
    assert tail.sum().item() == 300.0
    del tail
    assert not machine().allocator.is_live(address)


def test_memory_that_is_not_there_is_an_illegal_access(sim: torch.device) -> None:
    # GIVEN tensors over phantom addresses and over a segment that was given back
    nowhere = machine().tensor_at(1 << 45, 40, (10,), (1,), 0, torch.float32)
    big = torch.empty(30 << 20, dtype=torch.uint8, device=sim)
    gone = machine().tensor_at(big.data_ptr(), 40, (10,), (1,), 0, torch.float32)
    del big
    machine().allocator.empty_cache()
    for bad in (nowhere, gone):
        # WHEN a kernel reads them THEN it is CUDA's error 700, not a crash
        with pytest.raises(torch.AcceleratorError, match="an illegal memory access was encountered") as caught:
            bad.sum()
        assert caught.value.error_code == 700  # type: ignore[attr-defined]


def test_the_device_can_be_full() -> None:
    # GIVEN a process whose device has 64 MiB
    code = (
        "import torch\n"
        "from paramgraph_kit.driver.select import device, twin\n"
        "from paramgraph_kit.driver.sim.device import set_memory\n"
        "set_memory(64 << 20)\n"
        "x = torch.empty(32 << 20, dtype=torch.uint8, device=device())\n"
        "try:\n y = torch.empty(48 << 20, dtype=torch.uint8, device=device())\n"
        "except torch.OutOfMemoryError as e:\n print(e)\n"
        "del x\n"
        "y = torch.empty(48 << 20, dtype=torch.uint8, device=device())\n"
        "print(twin().memory_reserved() >> 20)\n"
    )
    # WHEN more is asked for THEN torch's error says so, and cached memory makes room later
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("CUDA out of memory. Tried to allocate 48.00 MiB. The simulated device has a total")
    assert lines[1] == "48"


def test_copies_between_host_and_device(sim: torch.device) -> None:
    # GIVEN a host tensor WHEN it goes there and back THEN it is the same
    c = torch.randn(3, 4, 5).permute(2, 0, 1)
    assert torch.equal(c.to(sim).cpu(), c)
    assert torch.equal(c.to(sim, torch.float64).cpu(), c.double())
    x = torch.empty(5, 3, 4, device=sim)
    x.copy_(c)
    assert x.tolist() == c.tolist()
    assert torch.tensor([1, 2], device=sim).tolist() == [1, 2]
    assert torch.ones(3).pin_memory().is_pinned()
    assert not torch.ones(3).is_pinned()


def test_printing_shows_values_and_the_device(sim: torch.device) -> None:
    # GIVEN a tensor WHEN it is printed THEN it reads like any device tensor
    assert repr(torch.tensor([1.5, 2], device=sim)) == "tensor([1.5000, 2.0000], device='sim:0')"


def test_host_tensors_are_refused_but_scalars_pass(sim: torch.device) -> None:
    # GIVEN a device tensor WHEN it meets host tensors
    x = torch.ones(2, device=sim)
    # THEN a number passes and a vector does not, in torch's words
    assert (x * torch.tensor(3.0)).tolist() == [3, 3]
    with pytest.raises(RuntimeError, match="found at least two devices, sim:0 and cpu!"):
        x + torch.ones(2)


def test_out_and_resize(sim: torch.device) -> None:
    # GIVEN an empty tensor WHEN it receives results THEN it grows
    x = torch.arange(4.0, device=sim)
    out = torch.empty(0, device=sim)
    torch.add(x, 1, out=out)
    assert out.tolist() == [1, 2, 3, 4]
    out.resize_(2, 3)
    assert out.shape == (2, 3)
    assert out.flatten()[:4].tolist() == [1, 2, 3, 4]


def test_a_torch_whose_storages_cannot_change_places_resizes_tensors(
    sim: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN torch 2.11, which has no way of giving a storage other memory
    monkeypatch.setattr("paramgraph_kit.driver.sim.outs.SWAP", "no_such_name")
    # WHEN a result or the user resizes a tensor THEN it has the size, and its numbers
    x = torch.arange(4.0, device=sim)
    out = torch.empty(0, device=sim)
    torch.add(x, 1, out=out)
    out.resize_(2, 3)
    assert out.flatten()[:4].tolist() == [1, 2, 3, 4]
    assert "1., 2., 3." in repr(torch.masked_select(x, x > 0))
    # AND one that shares its memory is refused: on a GPU the other's moves along, and here it would stay behind
    part = out[:1]
    with pytest.raises(NotImplementedError, match="resizes a tensor that shares its memory"):
        out.resize_(4096)
    del part
    assert out.resize_(4096)[:2].tolist() == [1, 2]


def test_random_numbers_follow_the_seed(sim: torch.device, cuda: Any) -> None:
    # GIVEN a seed
    torch.manual_seed(3)

    def draw() -> list[torch.Tensor]:
        kept = torch.nn.functional.dropout(torch.ones(8, device=sim))
        return [torch.rand(4, device=sim), kept, torch.randperm(9, device=sim)]

    a = draw()
    state = cuda.get_rng_state()
    b = torch.randn(3, device=sim)
    # WHEN it is set again THEN the numbers come again, and the host's own numbers are untouched
    torch.manual_seed(3)
    host = torch.random.get_rng_state()
    assert all(torch.equal(x, y) for x, y in zip(a, draw(), strict=True))
    assert torch.equal(host, torch.random.get_rng_state())
    cuda.set_rng_state(state)
    assert torch.equal(b, torch.randn(3, device=sim))
    assert not torch.equal(torch.rand(4, device=sim), torch.rand(4, device=sim))


def test_deepcopy_and_files(sim: torch.device) -> None:
    # GIVEN a module and views of one storage
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(sim)
    x = torch.arange(6.0, device=sim)
    # WHEN they are copied deeply THEN storages are new and shared as before
    twins = copy.deepcopy([x, x[2:]])
    assert twins[1].data_ptr() == twins[0].data_ptr() + 8
    assert twins[0].data_ptr() != x.data_ptr()
    assert twins[0].tolist() == x.tolist()
    other = copy.deepcopy(module)
    assert torch.equal(other.state_dict()["0.weight"], module.state_dict()["0.weight"])
    # WHEN they are saved and loaded THEN they come back on the device, or where map_location says
    file = io.BytesIO()
    torch.save({"module": module.state_dict(), "views": [x, x[2:]]}, file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded["views"][1].device == sim
    assert loaded["views"][1].data_ptr() == loaded["views"][0].data_ptr() + 8
    module.load_state_dict(loaded["module"])
    file.seek(0)
    assert torch.load(file, map_location="cpu")["views"][0].tolist() == x.tolist()


def test_compiled_functions_run_forward_and_backward(sim: torch.device) -> None:
    # GIVEN a function compiled with a backend built on aot_autograd
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ w).sum()

    compiled = torch.compile(f, backend="aot_eager")
    x = torch.randn(4, 3, device=sim)
    w = torch.randn(3, 5, device=sim, requires_grad=True)
    # WHEN both run THEN loss and gradient agree
    (grad,) = torch.autograd.grad(f(x, w), w)
    torch.autograd.backward(compiled(x, w))
    assert w.grad is not None
    assert torch.equal(w.grad, grad)


def test_the_twin_counts_memory_as_torch_cuda_does(sim: torch.device, cuda: Any) -> None:
    # GIVEN a clean cache
    gc.collect()
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    before, reserved = cuda.memory_allocated(), cuda.memory_reserved()
    # WHEN 3 MiB come and go
    x = torch.empty(3 << 20, dtype=torch.uint8, device=sim)
    assert cuda.memory_allocated() - before == 3 << 20
    assert cuda.memory_reserved() - reserved == 20 << 20
    del x
    # THEN what is allocated is gone, what is reserved stays, the peaks remember
    assert cuda.memory_allocated() == before
    assert cuda.memory_reserved() - reserved == 20 << 20
    assert cuda.max_memory_allocated() - before == 3 << 20
    snapshot = cuda.memory_snapshot()
    assert sum(s["total_size"] for s in snapshot) == cuda.memory_reserved()
    assert sum(b["size"] for s in snapshot for b in s["blocks"] if b["state"] == "active_allocated") == before
    cuda.empty_cache()
    assert cuda.memory_reserved() == reserved
    free, total = cuda.mem_get_info()
    assert total - free == driver().memory()[2]


def test_everything_is_labelled_as_simulated(cuda: Any) -> None:
    # GIVEN the simulator WHEN it names itself THEN nobody takes it for a GPU
    assert cuda.get_device_name() == "simulated device"
    label = driver().source().label()
    assert re.fullmatch(r"simulated: simulated device, torch [\d.]+\S*, \d{4}-\d\d-\d\d", label)


NUMBERS = (2, 2.5, True)
KINDS = (torch.int64, torch.int32, torch.float32)
OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift", "eq")


@pytest.mark.parametrize("name", OPERATORS)
def test_numbers_on_either_side_of_an_operator_are_as_on_the_cpu(name: str, sim: torch.device, cuda: Any) -> None:
    # GIVEN an operator that Python knows for tensors and numbers
    function, count = getattr(operator, name), 0
    for kind, number, turned in itertools.product(KINDS, NUMBERS, (False, True)):
        on_cpu = torch.tensor([1, 0, 3, 5]).to(kind)

        def run(x: torch.Tensor, function: Any = function, number: Any = number, turned: bool = turned) -> torch.Tensor:
            found: torch.Tensor = function(number, x) if turned else function(x, number)
            return found

        try:
            expected = run(on_cpu)
        except (RuntimeError, TypeError):
            continue  # there is no such operation: neither is there one on a device
        # WHEN it runs on the simulated device, and in a capture THEN type and bits are those of the CPU
        x, graph = on_cpu.to(sim), cuda.CUDAGraph()
        eager = run(x)
        with cuda.graph(graph):
            captured = run(x)
        graph.replay()
        for got in (eager, captured):
            assert got.dtype == expected.dtype, (kind, number, turned)
            assert torch.equal(got.cpu().nan_to_num(7), expected.nan_to_num(7)), (kind, number, turned)
        count += 1
    assert count


def test_a_copy_to_the_host_without_waiting_is_into_pinned_memory(sim: torch.device, cuda: Any) -> None:
    # GIVEN a tensor WHEN copied to the CPU without waiting, eagerly and in a capture
    x, graph = torch.arange(6.0, device=sim).reshape(2, 3).t(), cuda.CUDAGraph()
    eager = x.to("cpu", non_blocking=True)
    with cuda.graph(graph):
        captured = x.to("cpu", non_blocking=True)
    x.add_(1)
    graph.replay()
    # THEN both are pinned, of the same layout, and the replay has copied again
    assert eager.is_pinned()
    assert captured.is_pinned()
    assert eager.stride() == captured.stride() == x.stride()
    assert eager.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert captured.tolist() == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
    # and other copies are as ever
    assert x.to(torch.int32).dtype == torch.int32
    assert x.to("cpu", torch.int64).tolist() == captured.to(torch.int64).tolist()


def test_memory_first_looked_at_in_inference_mode_can_be_written_afterwards() -> None:
    # GIVEN an arena whose first view of a type is made in inference mode
    arena = Arena(1 << 22)
    address = arena.map(1 << 21)
    assert address is not None
    with torch.inference_mode():
        arena.view(address, (2,), (1,), torch.float32)
    # WHEN written through another one later THEN it is an ordinary tensor
    later = arena.view(address, (2,), (1,), torch.float32)
    later.copy_(torch.tensor([1.0, 2.0]))
    assert later.tolist() == [1.0, 2.0]


def test_in_a_capture_the_generator_s_state_is_what_the_capture_has_drawn() -> None:
    # GIVEN a capture that draws, goes back to where it began, and draws again (as a checkpoint's second run does)
    device = pgk.device()
    torch.rand(3, device=device)
    before, graph = pgk.cuda.get_rng_state(), pgk.cuda.CUDAGraph()
    with pgk.cuda.graph(graph):
        state = pgk.cuda.get_rng_state()
        one = torch.rand(3, device=device)
        pgk.cuda.set_rng_state(state)
        other = torch.rand(3, device=device)

    # WHEN it is replayed  THEN both are the same numbers, and the generator has moved on once
    assert torch.equal(pgk.cuda.get_rng_state(), before)
    graph.replay()
    assert torch.equal(one.cpu(), other.cpu())
    after = pgk.cuda.get_rng_state()
    pgk.cuda.set_rng_state(before)
    assert torch.equal(torch.rand(3, device=device).cpu(), one.cpu())
    assert torch.equal(pgk.cuda.get_rng_state(), after)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize(
    ("function", "x", "expected"),
    [
        # histc of integers is how transformers' mixtures of experts count tokens
        (lambda x: torch.histc(x, bins=4, min=0, max=3), torch.tensor([0, 1, 1, 3], dtype=torch.int32), [1, 2, 0, 1]),
        (torch.abs, torch.tensor([True, False]), [True, False]),
        (torch.trace, torch.eye(2, dtype=torch.bool), 2),
        (lambda x: nn.functional.avg_pool3d(x, 2).flatten(), torch.ones(1, 2, 2, 2, dtype=torch.bfloat16), [1.0]),
    ],
)
def test_types_that_only_cuda_has_kernels_for_are_computed_too(
    function: Any, x: torch.Tensor, expected: Any, captured: bool, sim: torch.device, cuda: Any
) -> None:
    # GIVEN an operation that the CPU does not do in this type
    with pytest.raises(NotImplementedError, match="not implemented for '"):
        function(x)
    # WHEN the simulated device does it, eagerly or from a graph
    there, graph = x.to(sim), cuda.CUDAGraph()
    result = function(there)
    if captured:
        with cuda.graph(graph):
            result = function(there)
        graph.replay()
    # THEN the numbers are right, in CUDA's type
    assert result.tolist() == expected
    assert result.dtype == (torch.int64 if function is torch.trace else x.dtype)


def test_a_module_whose_parameters_autograd_holds_moves_all_the_same(sim: torch.device) -> None:
    # GIVEN a layer of old weight_norm, whose weight was computed on the CPU from its parameters
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        layer = nn.utils.weight_norm(nn.Linear(4, 8))
    x = torch.ones(2, 4)
    expected = layer(x)
    # WHEN it moves THEN it computes what it did
    assert torch.allclose(layer.to(sim)(x.to(sim)).cpu(), expected)


@pytest.mark.parametrize(
    "made", ["torch.UntypedStorage(16, device={0!r})", "torch.ones(4, device={0!r}).untyped_storage().new()"]
)
def test_storages_are_made_on_the_device_without_a_tensor(made: str, sim: torch.device) -> None:
    # GIVEN torch's storages, which ask an allocator in C++ WHEN one is made by itself THEN it is the device's memory
    storage = eval(made.format("sim"))
    assert storage.device == sim
    assert storage.nbytes() == eval(made.format("cpu")).nbytes()
    storages: Any = torch.UntypedStorage  # torch leaves it untyped
    assert storages([1, 2], device=sim).tolist() == storages([1, 2]).tolist() == [1, 2]


def test_a_device_that_is_not_there_is_refused_everywhere(sim: torch.device, cuda: Any) -> None:
    # GIVEN a program for two GPUs WHEN it runs on one THEN what asks for the second fails in CUDA's words
    x = torch.ones(2, device=sim)
    refused = "invalid device ordinal"
    for ask in (
        lambda: torch.ones(2, device="sim:1"),
        lambda: torch.tensor([1.0], device="sim:1"),
        lambda: torch.randn(2, device="sim:1"),
        lambda: x.to("sim:1"),
        lambda: torch.ones(2).to("sim:1"),
        lambda: cuda.Stream("sim:1"),
        lambda: cuda.Stream(1),
        lambda: cuda.synchronize(1),
        lambda: cuda.set_device(1),
        lambda: cuda.device("sim:1").__enter__(),
    ):
        with pytest.raises(torch.AcceleratorError, match=refused):
            ask()
    # WHEN torch.cuda looks it up itself THEN in torch's, and the CPU is none of its devices
    with pytest.raises(AssertionError, match="Invalid device id"):
        cuda.get_device_properties(1)
    with pytest.raises(RuntimeError, match=r"Device index value 1 is out of index range \[0, 1\)"):
        cuda.current_stream(1)
    with pytest.raises(RuntimeError, match="Invalid device argument"):
        cuda.memory_allocated(1)
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        cuda.set_device("cpu")
    # AND the first one is there under every name
    assert torch.ones(2, device="sim:0").to(0).device == cuda.Stream("sim").device == sim
    assert cuda.memory_allocated(0) == cuda.memory_allocated("sim:0")


def test_a_property_that_the_device_has_not_is_told_as_not_simulated(cuda: Any) -> None:
    # GIVEN the device's properties WHEN its sizes are asked THEN they are those of the GPU whose captures are followed
    properties = cuda.get_device_properties(0)
    assert (properties.warp_size, properties.max_threads_per_multi_processor, properties.is_integrated) == (32, 2048, 0)
    # and what nothing here has is no attribute of Python's own
    with pytest.raises(AttributeError, match="the simulated device's hardware has no uuid: leave it out, or use a GPU"):
        _ = properties.uuid
