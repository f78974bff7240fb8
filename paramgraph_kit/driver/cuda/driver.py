"""The CUDA driver: driver.api.Driver over torch.cuda and cuda-bindings."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property, partial
from typing import Any

import torch
from cuda.bindings import driver as cu
from cuda.bindings import nvml

from paramgraph_kit.driver.api import Binding, RawNode, Recording
from paramgraph_kit.driver.cuda import aftermath, random
from paramgraph_kit.driver.cuda.calls import call, is_device_address
from paramgraph_kit.driver.cuda.describe import nodes_of
from paramgraph_kit.driver.cuda.executable import CudaExecutable
from paramgraph_kit.driver.cuda.forks import capture_stream, captures, known_streams, stream_of
from paramgraph_kit.driver.cuda.phantom import was_phantom
from paramgraph_kit.driver.cuda.record import CudaPhantom, record
from paramgraph_kit.driver.cuda.recover import settle
from paramgraph_kit.driver.host_memory import host_memory
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.trace.errors import UnsupportedError
from paramgraph_kit.trace.model import Origin, Source

_PAGEABLE = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS


class CudaDriver:
    """One CUDA device; see driver.api.Driver for what each member does."""

    name = "cuda"
    event_type: type = torch.cuda.Event
    listen = None
    hear = None
    doubt = None

    def __init__(self, device: int | None = None) -> None:
        torch.empty(1, device="cuda")  # the driver API needs torch's context to exist
        index = torch.cuda.current_device() if device is None else device
        self.device = torch.device("cuda", index)
        self._index = index
        self.address_of = torch.Tensor.data_ptr
        self.empty_strided: Callable[..., torch.Tensor] = torch_name("_empty_strided_cuda")
        self.reinterpret: Callable[..., torch.Tensor] = torch_name("_reinterpret_tensor")
        self.allocate: Callable[[int, int], int] = torch_name("_cuda_cudaCachingAllocator_raw_alloc")
        self.free: Callable[[int], None] = torch_name("_cuda_cudaCachingAllocator_raw_delete")
        self.current_stream: Callable[[], int] = partial(torch_name("_cuda_getCurrentRawStream"), index)
        self.is_capturing: Callable[[], bool] = torch_name("_cuda_isCurrentStreamCapturing")
        self.library_state: Callable[[], tuple[Any, ...]] = _library_state()

    def __repr__(self) -> str:
        return f"CudaDriver({self.device})"

    def source(self) -> Source:
        """GPU, driver, versions, and today's date."""
        try:  # the driver's own release, where it is readable
            nvml.init_v2()
            release = str(nvml.system_get_driver_version())
        except Exception:  # NVML is absent in some containers: CUDA's version still says which driver this is
            version = call(cu.cuDriverGetVersion)
            release = f"CUDA {version // 1000}.{version % 1000 // 10}"
        return Source(
            Origin.LIVE,
            torch.cuda.get_device_name(self.device),
            release,
            str(torch.__version__),
            platform.python_version(),
            datetime.datetime.now(datetime.UTC).date().isoformat(),
        )

    def storage_of(self, tensor: torch.Tensor) -> tuple[int, int]:
        """(address, bytes) of the storage that a tensor views."""
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()

    def tensor_at(
        self, address: int, nbytes: int, size: Sequence[int], stride: Sequence[int], offset: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """A tensor over foreign memory."""
        storage = torch_name("_construct_storage_from_data_pointer")(address, self.device, nbytes)
        return torch.empty(0, dtype=dtype, device=self.device).set_(storage, offset, size, stride)

    def phantom(self, side: int) -> CudaPhantom:
        """Phantom memory for one capture."""
        return CudaPhantom(self._index, side)

    def random_position(self) -> int:
        """How far the generator has advanced."""
        return random.position(self._index)

    def random_state(self) -> Any:
        """The default generator's state."""
        return torch.cuda.get_rng_state(self._index)

    def set_random_state(self, state: Any) -> None:
        """Bring the default generator back."""
        torch.cuda.set_rng_state(state, self._index)

    def mark(self) -> torch.cuda.Event:
        """A moment of the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._index))
        return event

    @staticmethod
    def elapsed_us(first: torch.cuda.Event, last: torch.cuda.Event) -> float:
        """Microseconds between two moments, to about half of one."""
        last.synchronize()
        return float(first.elapsed_time(last)) * 1000

    def wait(self) -> None:
        """Wait for the current stream."""
        torch.cuda.current_stream(self._index).synchronize()

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return capture_stream(self._index)

    def record(self, run: Callable[[], Any], phantom: CudaPhantom, *, survey: bool, eager: bool = False) -> Recording:
        """Capture ``run`` on a side stream."""
        if survey:
            settle(self._index, self._stream)
        tick = random.ticker(self._index)  # before the capture: it allocates what random kernels read
        recording = record(run, phantom, self._stream, self._index, survey=survey, eager=eager)
        recording.static_ranges += tick.static_ranges()
        return recording

    def recorded_nodes(self) -> int:
        """How many nodes the capture of the current stream has so far."""
        if not self.is_capturing():
            return 0
        status, _, graph = call(cu.cuStreamGetCaptureInfo, cu.CUstream(self.current_stream()))[:3]
        if status != cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
            return 0  # it is spoiled: whoever ends it is told
        return int(call(cu.cuGraphGetNodes, graph, 0)[1])

    def describe(self, graph: Any) -> list[RawNode]:
        """The nodes of a ``CUDAGraph`` that somebody else captured."""
        try:
            raw = graph.raw_cuda_graph()
        except RuntimeError:  # torch throws the graph away once it is instantiated
            raise UnsupportedError(
                "this graph cannot be looked at: make it with torch.cuda.CUDAGraph(keep_graph=True), and capture first"
            ) from None
        return nodes_of(cu.CUgraph(raw))

    @staticmethod
    def freed(graph: Any) -> list[tuple[int, tuple[str, int] | None]]:
        """Nothing: which of a kernel's words were addresses, and whose memory that was, nobody has noted."""
        return []

    @staticmethod
    def touched(graph: Any) -> list[int]:
        """Nothing, for the same reason."""
        return []

    @staticmethod
    def pooled(graph: Any) -> list[tuple[int, int, int, bool]]:
        """Nothing, for the same reason."""
        return []

    @staticmethod
    def pool_number(tensor: torch.Tensor) -> int:
        """None, for the same reason."""
        return 0

    def instantiate(
        self, recording: Recording, nodes: range, bindings: Sequence[Binding], slots: int, *, patching: str
    ) -> CudaExecutable:
        """An executable graph of some nodes of ``recording``."""
        return CudaExecutable(recording, nodes, bindings, slots, patching, self._index)

    def discard(self, recording: Recording) -> None:
        """Free a recorded graph."""
        recording.graph.close()

    def join_streams(self, before: int, after: int) -> None:
        """Make stream ``after`` wait for what is queued on stream ``before``."""
        stream_of(after, self.device).wait_stream(stream_of(before, self.device))

    def stream_kept(self) -> AbstractContextManager[None]:
        """Put back which stream is current."""
        kept: Any = torch.cuda.stream(torch.cuda.current_stream(self.device))
        return kept  # type: ignore[no-any-return]

    def keep_for(self, tensor: torch.Tensor, stream: int) -> None:
        """Keep a tensor's memory for what is queued on a stream."""
        tensor.record_stream(stream_of(stream, self.device))

    def left_behind(self, suspects: Sequence[Any] = ()) -> tuple[str, ...]:
        """What failed captures have left wrong in this process."""
        return aftermath.left_behind(self._index, suspects)

    def repair(self, suspects: Sequence[Any] = (), error: BaseException | None = None) -> None:
        """Put that right."""
        aftermath.repair(self._index, self._stream, suspects, error)

    def memory(self) -> tuple[int, int, int]:
        """(allocated, reserved, used on the device) in bytes."""
        free, total = torch.cuda.mem_get_info(self.device)
        return torch.cuda.memory_allocated(self.device), torch.cuda.memory_reserved(self.device), total - free

    def release_cached(self) -> None:
        """Give unused segments back, and cuBLAS's workspaces, tens of MiB for each thread that has multiplied."""
        with suppress(RuntimeError):  # somebody captures
            if not any(captures(stream.cuda_stream) for stream in known_streams(self._index)):
                torch_name("_cuda_clearCublasWorkspaces")()
                torch.cuda.empty_cache()

    def live_segments(self) -> list[tuple[int, int]]:
        """(address, bytes) of every segment of the caching allocator."""
        return [(s["address"], s["total_size"]) for s in torch.cuda.memory_snapshot(include_traces=False)]

    def knows_address(self, value: int) -> bool:
        """Whether CUDA knows a value as an address, or a capture did, which may have left it in a library's cache."""
        return is_device_address(value) or was_phantom(value)

    @cached_property
    def reads_host(self) -> bool:
        """Whether kernels can read pageable memory: by the host's page tables (GH200, GB200), or by faults (HMM)."""
        device = call(cu.cuDeviceGet, self._index)
        return bool(call(cu.cuDeviceGetAttribute, _PAGEABLE, device))

    def host_addresses(self) -> Callable[[int], bool]:
        """A test for addresses of this process's own readable memory that CUDA knows nothing of."""
        on_host = host_memory()
        return lambda value: on_host(value) and not is_device_address(value)


def _library_state() -> Callable[[], tuple[Any, ...]]:
    enabled, benchmark, deterministic = (
        torch_name(f"_get_cudnn_{n}") for n in ("enabled", "benchmark", "deterministic")
    )
    accumulation, blas = torch_name("_get_cublas_allow_fp16_accumulation"), torch_name("_get_blas_preferred_backend")
    precision = torch_name("_get_fp32_precision_getter")

    def state() -> tuple[Any, ...]:
        cudnn = enabled(), benchmark(), deterministic(), precision("cuda", "conv"), precision("cuda", "rnn")
        return *cudnn, accumulation(), blas()

    return state
