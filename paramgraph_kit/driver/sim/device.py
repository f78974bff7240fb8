"""Registers the device ``sim`` with torch: lazily, once, and only where the PrivateUse1 slot is free."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from paramgraph_kit.driver.host_memory import host_memory
from paramgraph_kit.driver.torch_names import SIMULATOR, torch_name
from paramgraph_kit.trace.errors import UnsupportedError

_library: Any = None


def registered() -> bool:
    """Whether the simulated device exists in this process."""
    return _library is not None


def register() -> torch.device:
    """Make the device, once; returns it.

    Raises:
        UnsupportedError: this torch cannot have a device in Python, or another backend has taken the slot.
    """
    global _library
    if _library is not None:
        return torch.device("sim", 0)
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 11):
        raise UnsupportedError(
            f"the simulated device needs torch 2.11 or newer, this is {torch.__version__}: upgrade torch"
        )
    taken = torch_name("_get_privateuse1_backend_name")()
    if taken != "privateuseone":
        raise UnsupportedError(
            f"the simulated device needs torch's PrivateUse1 slot, which {taken!r} has taken: start a fresh process "
            "without that backend"
        )
    for needed in SIMULATOR:
        torch_name(needed.key)
    from . import cuda_twin
    from .attention import install_attention
    from .autocast import install_autocast
    from .autocast_names import install_names
    from .ctc import install_ctc
    from .cuda_runtime import install_ranges
    from .data import install_data
    from .demands import demanding
    from .draws import drawing_kernels
    from .evenly import nobody_asks
    from .graphed import install_offloading
    from .guard import DeviceGuard, install, outlive_threads
    from .halves import halves_kernels
    from .kernels import Kernel
    from .libraries import install_convolutions
    from .moving import moving_kernels
    from .pinned import install_factories, is_pinned, pin
    from .recurrent import install_recurrent, recurrent_kernels
    from .refused import install_int_mm, refusing
    from .sparse import install_sparse, making_sparse
    from .special import special_kernels
    from .stream import follow_this_thread, note_made_in_backward
    from .ties import sorting_kernels
    from .transforms import install_transforms
    from .twice import writing_kernels
    from .type_names import install_type_names
    from .until import until_kernels
    from .versions import tell_of_versions

    kernels = _for_every_cpu_operation(Kernel)
    kernels.update(special_kernels() | recurrent_kernels() | sorting_kernels() | drawing_kernels() | until_kernels())
    kernels.update(moving_kernels() | writing_kernels() | halves_kernels())
    kernels.update(nobody_asks(kernels))
    kernels.update(making_sparse(kernels))
    setup = torch_name("_setup_privateuseone_for_python_backend")
    setup("sim", backend_module=cuda_twin, device_guard=DeviceGuard())
    install(follow_this_thread, note_made_in_backward)
    outlive_threads()
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]  # torch leaves it untyped
    for name, kernel in kernels.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns where a composite operation gets a kernel of its own
            run = kernel if isinstance(kernel, types.FunctionType) else kernel.__call__
            library.impl(name, demanding(name, refusing(name, run)), "PrivateUse1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        install_attention(library)
        install_ctc(library)
        install_sparse(library)
        install_transforms(library)
        install_data(library)
    library.impl("_pin_memory", pin, "CPU")
    library.impl("is_pinned", is_pinned, "CPU")
    install_factories()
    _library = (library, install_autocast(library))
    register_optimizer_step_pre_hook(refuse_uncapturable)
    _register_serialization()
    _share_with_nobody()
    _accept_our_streams()
    _make_our_own()
    _be_the_accelerator()
    _tell_of_captures()
    _give_to_others()
    install_type_names()
    _tell_where_they_lie()
    install_recurrent()
    install_convolutions()
    install_int_mm()
    install_offloading()
    install_ranges()
    install_names()
    tell_of_versions()
    if "torch._dynamo.utils" in sys.modules:  # otherwise the backend does it, once it is asked for
        from .tracing import teach_dynamo

        teach_dynamo()
    return torch.device("sim", 0)


def _for_every_cpu_operation(make: Callable[[torch._ops.OpOverload], Any]) -> dict[str, Any]:
    """``make(op)`` by name for every aten operation with a CPU kernel that fits dense tensors."""
    unfit = ("mkldnn", "quantize", "fbgemm", "sparse", "_nested", "_cslt", "_to_dense", "_test_")
    found = {}
    has_kernel = torch_name("_dispatch_has_kernel_for_dispatch_key")
    for full in torch_name("_dispatch_get_all_op_names")():
        if not full.startswith("aten::") or not has_kernel(full, "CPU"):
            continue
        name, _, overload = full[6:].partition(".")
        if any(word in name for word in unfit) and not name.lstrip("_").startswith("fake_quantize"):
            continue
        op = getattr(getattr(torch.ops.aten, name), overload or "default", None)
        if op is not None:
            found[full[6:]] = make(op)
    return found


def set_memory(capacity: int) -> None:
    """Give the device ``capacity`` bytes instead of 8 GiB; only before its first use."""
    register()
    from .machine import make

    make(capacity)


def set_coherent(coherent: bool = True) -> None:
    """Let kernels read the host's memory where it is, as on GH200, GB200 and MI300A; graphs made before stay.

    Raises:
        UnsupportedError: this system does not tell which memory a process has: only Linux does.
    """
    register()
    from .machine import machine

    if coherent and not host_memory()(id(machine())):
        raise UnsupportedError("a coherent machine can be simulated on Linux only: it needs /proc/self/maps")
    machine().arena.coherent = coherent


def refuse_uncapturable(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Torch's own check of ``capturable``, which asks CUDA alone whether a capture is under way."""
    from .stream import current_stream

    if current_stream().capture is None:
        return
    code = getattr(inspect.unwrap(type(optimizer).step), "__code__", None)
    checks = code is not None and any(name.endswith("_graph_capture_health_check") for name in code.co_names)
    if checks and any("capturable" not in group for group in optimizer.param_groups):
        raise KeyError("capturable")  # torch looks for it in vain: it checks Adafactor too
    if not all(group.get("capturable", True) for group in optimizer.param_groups):
        raise RuntimeError(
            f"Attempting CUDA graph capture of step() for an instance of {type(optimizer).__name__} "
            "but param_groups' capturable is False."
        )


def _register_serialization() -> None:
    """Storages of the device are copied and loaded by us: torch's own way needs an allocator in C++."""
    from .machine import machine
    from .outs import resize_storage

    def copied(storage: Any) -> Any:
        copy = machine().storage(storage.nbytes())
        copy.copy_(storage)
        return copy

    def tag(storage: Any) -> str | None:
        return "sim:0" if storage.device.type == "sim" else None

    def restore(storage: Any, location: str) -> Any:
        return copied(storage) if location.startswith("sim") else None

    torch.serialization.register_package(5, tag, restore)
    clone: Any = torch.UntypedStorage.clone

    def clone_anywhere(storage: Any) -> Any:
        return copied(storage) if storage.device.type == "sim" else clone(storage)

    torch.UntypedStorage.clone = clone_anywhere  # type: ignore[method-assign]
    resize: Any = torch.UntypedStorage.resize_

    def resize_anywhere(storage: Any, size: int) -> Any:
        if storage.device.type != "sim":
            return resize(storage, size)
        resize_storage(storage, size)
        return storage

    torch.UntypedStorage.resize_ = resize_anywhere  # type: ignore[method-assign,assignment]
    plain: Any = torch.UntypedStorage.__new__

    def made(cls: Any, *args: Any, device: Any = None, **options: Any) -> Any:
        if device is None or torch.device(device).type != "sim":
            return plain(cls, *args, device=device, **options)
        if args and not isinstance(args[0], int):
            return copied(plain(cls, *args, **options))
        return machine().storage(args[0] if args else options.get("size", 0))

    torch.UntypedStorage.__new__ = made  # type: ignore[method-assign]
    empty: Any = torch.UntypedStorage.new

    def another(storage: Any) -> Any:
        return machine().storage(0) if storage.device.type == "sim" else empty(storage)

    torch.UntypedStorage.new = another  # type: ignore[method-assign,assignment]


def _share_with_nobody() -> None:
    """Other processes get a handle to CUDA's memory, which a capture may forbid; none of them is on this device."""
    from multiprocessing import reduction

    from torch.multiprocessing import reductions

    from .under_way import forbid_unsafe_call

    plain: Any = reductions.reduce_tensor

    @functools.wraps(plain)
    def reduce_tensor(tensor: Any) -> Any:
        if tensor.device.type == "sim" and tensor.layout is torch.strided:
            forbid_unsafe_call()
            raise NotImplementedError(
                "no other process shares the simulated device's memory: send .cpu(), or use a GPU"
            )
        return plain(tensor)

    reductions.reduce_tensor = reduce_tensor
    for kind in (torch.Tensor, torch.nn.Parameter):
        reduction.register(kind, reduce_tensor)


def _accept_our_streams() -> None:
    """``tensor.record_stream`` takes no stream that is not torch's own; a capture alone has to know of it here."""
    from .machine import machine
    from .stream import Stream

    record: Any = torch.Tensor.record_stream

    def record_stream(tensor: torch.Tensor, stream: Any) -> None:
        if not isinstance(stream, Stream):
            record(tensor, stream)
        elif tensor.device.type == "sim":
            machine().allocator.share(tensor.untyped_storage().data_ptr(), stream.cuda_stream)
        else:  # torch has none for other devices
            record(tensor, torch.Stream(device="cpu"))

    torch.Tensor.record_stream = record_stream  # type: ignore[assignment]


def _give_to_others() -> None:
    """``torch.from_dlpack(tensor)``: torch names no kind of device for one in Python, and orders no streams of it."""
    from torch.utils.dlpack import DLDeviceType

    from .external import order_for_others

    plain: Any = torch.Tensor.__dlpack_device__
    give: Any = torch.Tensor.__dlpack__
    default = inspect.signature(give).parameters["stream"].default

    def kind_and_number(tensor: torch.Tensor) -> Any:
        return (DLDeviceType.kDLExtDev, 0) if tensor.device.type == "sim" else plain(tensor)

    def given(tensor: torch.Tensor, **options: Any) -> Any:
        found = give(tensor, **options)
        # torch.from_dlpack, which alone asks for a version here, means the current stream
        if tensor.device.type == "sim" and "max_version" not in options:
            order_for_others(options.get("stream", default))
        return found

    torch.Tensor.__dlpack_device__ = kind_and_number  # type: ignore[assignment]
    torch.Tensor.__dlpack__ = given  # type: ignore[assignment]


class _AsOfCuda:
    """A tensor of the simulated device that says that it is one of CUDA's."""

    is_cuda = True

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __getattr__(self, name: str) -> Any:
        if name == "__torch_function__":  # by which torch would ask this one instead
            raise AttributeError(name)
        return getattr(self.tensor, name)


def _tell_where_they_lie() -> None:
    """``tensor.__cuda_array_interface__``, which torch has in Python, and refuses where ``is_cuda`` is False."""
    plain: Any = torch.Tensor.__dict__["__cuda_array_interface__"]

    def interface(tensor: torch.Tensor) -> Any:
        ours = tensor.device.type == "sim" and not torch.overrides.has_torch_function_unary(tensor)
        return plain.fget(_AsOfCuda(tensor) if ours else tensor)

    torch.Tensor.__cuda_array_interface__ = property(interface)  # type: ignore[assignment,method-assign]


def _make_our_own() -> None:
    """``torch.Generator(device="sim")``, ``torch.Event("sim")``, ``torch.Stream("sim")``: torch's ask one in C++."""
    from .generators import Generator
    from .stream import Event, Stream, stream_of

    def generator(plain: Any, device: Any = None) -> Any:
        known = isinstance(device, (str, int, torch.device)) and torch.device(device)
        return Generator(device) if known and known.type == "sim" else plain(device=device)

    def event(plain: Any, device: Any = None, **options: Any) -> Any:
        if device is not None and torch.device(device).type != "sim":
            return plain(device, **options)
        made = Event(**options)
        made.given = torch.device("sim" if device is None else device)
        return made

    def stream(plain: Any, *args: Any, **options: Any) -> Any:
        if "stream_id" in options:  # one that there is
            ours = options.get("device_type") == Stream.KIND
            return stream_of(options["stream_id"]) if ours else plain(*args, **options)
        device = args[0] if args else options.get("device")
        if device is not None and torch.device(device).type != "sim":
            return plain(*args, **options)
        made = Stream(*args, **options)
        made.generic = not made.again
        return made

    for name, make in (("Generator", generator), ("Event", event), ("Stream", stream)):
        setattr(torch, name, _made_by(make, getattr(torch, name)))


def _made_by(make: Any, plain: Any) -> Any:
    """A class in place of torch's ``plain``, whose calls make instances of that, or of ours."""

    class Kind(type(plain)):  # type: ignore[misc]  # whatever kind of class torch's is
        def __instancecheck__(cls, found: object) -> bool:
            return isinstance(found, plain)

        def __subclasscheck__(cls, found: type) -> bool:
            return issubclass(found, plain)

        def __call__(cls, *args: Any, **options: Any) -> Any:
            return make(plain, *args, **options)

    return Kind(plain.__name__, (plain,), {"__doc__": plain.__doc__, "__module__": "torch"})


# torch.accelerator's names, where the twin has another for the same.
_ACCELERATOR = {
    "current_stream": "current_stream",
    "current_device_index": "current_device",
    "current_device_idx": "current_device",
    "empty_cache": "empty_cache",
    "get_memory_info": "mem_get_info",
    "max_memory_allocated": "max_memory_allocated",
    "max_memory_reserved": "max_memory_reserved",
    "memory_allocated": "memory_allocated",
    "memory_reserved": "memory_reserved",
    "memory_stats": "memory_stats",
    "reset_accumulated_memory_stats": "reset_accumulated_memory_stats",
    "reset_peak_memory_stats": "reset_peak_memory_stats",
    "set_device_idx": "set_device",
    "set_device_index": "set_device",
    "set_stream": "set_stream",
    "synchronize": "synchronize",
}


def _be_the_accelerator() -> None:
    """``torch.accelerator`` asks for streams and memory in C++, where a device in Python has none."""
    from . import cuda_twin

    for name, ours in _ACCELERATOR.items():
        if hasattr(torch.accelerator, name):
            setattr(torch.accelerator, name, getattr(cuda_twin, ours))


def _tell_of_captures() -> None:
    """``torch.cuda.is_current_stream_capturing()`` is what libraries ask; without CUDA it is there, and raises."""
    from . import cuda_twin

    def asked() -> bool:
        return bool(cuda_twin.is_current_stream_capturing())

    setattr(sys.modules[torch.cuda.CUDAGraph.__module__], "_cuda_isCurrentStreamCapturing", asked)  # noqa: B010
