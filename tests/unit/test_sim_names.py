"""Each public name of torch.cuda and torch.accelerator exists on the simulated device, or is refused by its name."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk

DEVICE = pgk.device()

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

# What needs a clock, a library or a driver: refused.
REFUSED = {
    *(f"{kind}{what}" for kind in ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long")
      for what in ("Storage", "Tensor")),
    *("ComplexDoubleStorage", "ComplexFloatStorage", "ShortStorage", "ShortTensor"),
    *("CUDAPluggableAllocator", "change_current_allocator", "caching_allocator_enable", "caching_allocator_disabled"),
    *("DeferredCudaCallError", "cudaStatus"),
    *("current_solver_handle", "GreenContext", "jiterator", "list_gpu_processes"),
    *("clock_rate", "memory_usage", "power_draw", "temperature", "utilization"),
    *("get_arch_list", "get_gencode_flags", "has_half", "has_magma"),
    *("host_memory_stats", "host_memory_stats_as_nested_dict"),
    *("reset_accumulated_host_memory_stats", "reset_peak_host_memory_stats"),
    *("nccl", "sparse", "tunable"),
    *("export_dot", "export_graph_data", "graph_annotations"),
    *(f"register_graph_{when}_hook" for when in ("capture_start", "capture_end", "instantiate")),
    *(f"register_graph_{when}_hook" for when in ("replay_start", "replay_end", "destroy")),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted({*torch.cuda.__all__, "OutOfMemoryError", "AcceleratorError"}))
def test_a_name_of_torch_cuda_is_there_or_refused(name: str, cuda: Any) -> None:
    # GIVEN a public name of this torch's torch.cuda WHEN the twin is asked for it
    if name in REFUSED:
        # THEN it is refused by its name
        with pytest.raises(AttributeError, match=f"no torch.cuda.{name}: leave it out, or use a GPU"):
            getattr(cuda, name)
    else:
        # THEN it is there
        assert getattr(cuda, name) is not None


def _parameters(of: Any) -> list[str]:
    signature = inspect.signature(of)
    return [each for each in signature.parameters if each not in ("self", "cls", "args", "kwargs", "obj", "_")]


FUNCTIONS = sorted(
    name
    for name in set(torch.cuda.__all__) - REFUSED
    if inspect.isfunction(getattr(torch.cuda, name, None)) or inspect.isclass(getattr(torch.cuda, name, None))
)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_signature_is_torchs(name: str, cuda: Any) -> None:
    # GIVEN what can be called in torch.cuda
    theirs, ours = getattr(torch.cuda, name), getattr(cuda, name)
    makers = ("__new__", "__init__") if inspect.isclass(theirs) else ("__call__",)
    wanted = next(
        (found for maker in makers if (found := _parameters(getattr(theirs, maker, theirs)))), []
    ) if inspect.isclass(theirs) else _parameters(theirs)  # fmt: skip
    # THEN the twin takes every argument by the same name (or any)
    signature = inspect.signature(ours)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    missing = [each for each in wanted if each not in signature.parameters]
    assert takes_any or not missing


@pytest.mark.parametrize("part", ["graphs", "memory", "random"])
def test_the_modules_of_torch_cuda_have_the_twins_names(part: str, cuda: Any) -> None:
    # GIVEN a module of torch.cuda WHEN the twin is asked for its names
    module = getattr(cuda, part)
    for name in getattr(torch.cuda, part).__all__:
        # THEN each is the twin's own, or refused
        if name in REFUSED:
            with pytest.raises(AttributeError, match=f"no torch.cuda.{part}.{name}"):
                getattr(module, name)
        else:
            assert getattr(module, name) == getattr(cuda, name)
    with pytest.raises(AttributeError, match=r"no torch\.cuda\.memory\._record_memory_history"):
        cuda.memory._record_memory_history()


@pytest.mark.parametrize("kind", ["CUDAGraph", "Event", "Stream", "MemPool"])
def test_a_method_is_there_or_refused(kind: str, cuda: Any) -> None:
    # GIVEN an object of torch.cuda's and every public name of its class in this torch
    object_ = getattr(cuda, kind)()
    native = {"native_handle"}  # torch's own class asks the device, which has none
    for name in dir(getattr(torch.cuda, kind)):
        if name.startswith("_") or name in native:
            continue
        # WHEN the twin's object is asked for it THEN it has it, or refuses it by its name
        if not hasattr(object_, name):
            with pytest.raises(AttributeError, match=f"device's {kind} has no {name}: leave it out, or use a GPU"):
                getattr(object_, name)


def test_an_option_that_only_cuda_has_is_refused_by_name(cuda: Any) -> None:
    # GIVEN options of torch.cuda.graph WHEN they are used THEN they are refused; what torch does not have is its error
    with pytest.raises(AttributeError, match="graph has no check_input_liveness: leave it out"):
        cuda.graph(cuda.CUDAGraph(), check_input_liveness=True)
    with pytest.raises(AttributeError, match="graph has no annotation_config: leave it out"):
        cuda.graph(cuda.CUDAGraph(), annotation_config={"kernels": True})
    assert cuda.graph(cuda.CUDAGraph(), check_input_liveness=False) is not None
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        cuda.graph(cuda.CUDAGraph(), nothing=1)


def test_external_events_are_nodes_of_the_graph(cuda: Any) -> None:
    # GIVEN a capture that records one external event and waits for another, from before
    begun, done = (cuda.Event(external=True, enable_timing=True) for _ in range(2))
    begun.record()
    graph, x = cuda.CUDAGraph(), torch.ones(2, device=DEVICE)
    with cuda.graph(graph):
        begun.wait()
        y = x + 1
        done.record()
    # WHEN the graph has not run THEN the event has not happened; after a replay it has
    with pytest.raises(torch.AcceleratorError, match="invalid resource handle"):
        begun.elapsed_time(done)
    with pytest.raises(torch.AcceleratorError, match="invalid resource handle"):
        done.ipc_handle()  # CUDA has one for events that were made for other processes
    graph.replay()
    assert done.query()
    assert begun.elapsed_time(done) >= 0
    assert y.tolist() == [2.0, 2.0]
    assert [node.kind for node in graph.nodes()] == ["event wait", "kernel", "event record"]


def test_the_accelerator_is_the_simulated_device(cuda: Any) -> None:
    # GIVEN torch.accelerator WHEN it is asked for streams, memory and to wait
    graph = cuda.CUDAGraph()
    assert torch.accelerator.current_stream() == cuda.current_stream()
    assert torch.accelerator.memory_allocated() == cuda.memory_allocated()
    torch.accelerator.synchronize()
    # THEN it answers for the simulated device, and fails in a capture as torch.cuda's does
    with pytest.raises(torch.AcceleratorError, match="previous error"), cuda.graph(graph):
        torch.accelerator.synchronize()
    cuda.recover()


def test_a_stream_that_torch_makes_is_one_of_the_device(cuda: Any) -> None:
    # GIVEN a stream of torch's own class, and a capture that forks to it
    side, graph, x = torch.Stream(DEVICE), cuda.CUDAGraph(), torch.ones(2, device=DEVICE)
    assert isinstance(side, torch.Stream)
    with cuda.graph(graph):
        side.wait_stream(cuda.current_stream())
        with side:
            y = x * 3
            assert cuda.current_stream() == side
        # WHEN its work is joined, by the stream and by an event of torch's
        cuda.current_stream().wait_event(side.record_event())
        cuda.current_stream().wait_stream(side)
    x.fill_(2)
    graph.replay()
    # THEN the replay does it; without a device it is the accelerator's, and the CPU's are torch's
    assert y.tolist() == [6.0, 6.0]
    assert torch.Stream().device == torch.device(DEVICE)
    assert torch.Stream("cpu").device == torch.device("cpu")
    same = torch.Stream(stream_id=side.stream_id, device_index=side.device_index, device_type=side.device_type)
    assert same is side


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_generators_of_the_device(cuda: Any) -> None:
    # GIVEN a generator of the device, registered with a graph that draws from it
    own = torch.Generator(device=DEVICE)
    own.manual_seed(5)
    assert isinstance(own, torch.Generator)
    assert isinstance(torch.Generator(), torch.Generator)
    graph, other = cuda.CUDAGraph(), cuda.CUDAGraph()
    graph.register_generator_state(own)
    with cuda.graph(graph):
        drawn = torch.rand(2, device=DEVICE, generator=own)
    # WHEN it is replayed twice THEN it gives what eager calls give
    graph.replay()
    first = drawn.clone()
    graph.replay()
    own.manual_seed(5)
    assert torch.equal(first, torch.rand(2, device=DEVICE, generator=own))
    assert torch.equal(drawn, torch.rand(2, device=DEVICE, generator=own))
    # AND the default one was not moved; one that was not registered is refused in torch's words
    before = cuda.get_rng_state()
    torch.rand(2, device=DEVICE, generator=own)
    assert torch.equal(before, cuda.get_rng_state())
    with pytest.raises(RuntimeError, match="Attempt to increase offset for a CUDA generator"), cuda.graph(other):
        torch.rand(2, device=DEVICE, generator=own)
    with pytest.raises(RuntimeError, match="Expected a 'sim' device type for generator but found 'cpu'"):
        torch.rand(2, device=DEVICE, generator=torch.Generator())


def test_a_fraction_of_the_memory(cuda: Any) -> None:
    # GIVEN a device of which little may be used
    cuda.empty_cache()
    with pytest.raises(TypeError, match="must be `float`"):
        cuda.set_per_process_memory_fraction(1)
    cuda.set_per_process_memory_fraction(cuda.memory_reserved() / (8 << 30) + 0.01)
    # WHEN more is asked for THEN it is out of memory, and not afterwards
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 28, device=DEVICE)
    finally:
        cuda.set_per_process_memory_fraction(1.0)
    torch.empty(1 << 28, device=DEVICE)


def test_the_type_of_a_tensor_has_cudas_name_and_errors_say_it() -> None:
    # GIVEN tensors of the simulated device WHEN they are asked for their type THEN it is what a card says
    x = torch.ones(2, device="sim")
    assert (x.type(), x.long().type(), torch.nn.Parameter(x).type()) == (
        "torch.cuda.FloatTensor",
        "torch.cuda.LongTensor",
        "torch.cuda.FloatTensor",
    )
    # AND torch's own errors have it
    with pytest.raises(TypeError, match=r"cannot assign 'torch.cuda.FloatTensor' as parameter 'weight'"):
        torch.nn.Linear(2, 2).weight = x
    # AND a conversion converts, and a host tensor keeps its name
    assert (x.type(torch.int64).dtype, x.type("torch.DoubleTensor").device.type) == (torch.int64, "cpu")
    assert torch.ones(2).type() == "torch.FloatTensor"


def test_a_tensor_tells_where_it_lies_as_those_of_cuda_do() -> None:
    # GIVEN tensors of the simulated device WHEN asked for their memory, as other libraries ask THEN they tell of it
    x = torch.ones(2, 3, device="sim")
    told = x.mT.__cuda_array_interface__
    assert told == {"typestr": "<f4", "shape": (3, 2), "strides": (4, 12), "data": (x.data_ptr(), False), "version": 2}
    assert (x > 0).__cuda_array_interface__["typestr"] == "|b1"
    # AND in a capture, of which the question is no part
    graph = pgk.cuda.CUDAGraph()
    with pgk.cuda.graph(graph):
        y = x + len(x.__cuda_array_interface__["shape"])
    graph.replay()
    assert y.tolist() == [[3.0] * 3] * 2
    # AND torch's refusals are the same, of a tensor of the host too
    with pytest.raises(RuntimeError, match="on Variable that requires grad"):
        _ = torch.ones(1, device="sim", requires_grad=True).__cuda_array_interface__
    with pytest.raises(AttributeError, match=r"non-CUDA tensor type: torch.FloatTensor"):
        _ = torch.ones(1).__cuda_array_interface__
