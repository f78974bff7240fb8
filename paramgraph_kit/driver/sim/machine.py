"""The machine itself: memory, allocator and generator in one place, and real tensors made over them.

Tensors are real PrivateUse1 tensors, not wrappers: a c10 storage is built over the address that the allocator gave
(``torch._C._construct_storage_from_data_pointer``) and set into an empty tensor of the device by CPU's metadata-only
``set_`` kernel. So ``data_ptr()`` is the device address, views alias in C++ without any Python, autograd and
FakeTensor see an ordinary device tensor, and making one costs about 4 us. A weak reference to the storage's Python
object, which torch keeps alive as long as the C++ storage, returns the block the moment the last tensor dies.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from paramgraph_kit.driver.recorders import Line
from paramgraph_kit.driver.tensors import bits_of, extent, lazily
from paramgraph_kit.driver.torch_names import torch_name

from .allocator import DEFAULT_POOL, CachingAllocator, PoolId
from .arena import GRANULE, Arena
from .errors import out_of_memory
from .first_use import at_first_use, use
from .not_known import not_known
from .rng import STATE_BYTES, DeviceGenerator
from .stream import AGAIN, Stream, current_stream
from .under_way import forbid_unsafe_call, forbidding

CPU_KEY = torch_name("DispatchKeySet")(torch_name("DispatchKey").CPU)
SET_STORAGE = torch.ops.aten.set_.source_Storage_storage_offset
_construct = torch_name("_construct_storage_from_data_pointer")
_create = torch_name("create_empty_tensor")
DEVICE_NAME = "sim"
SWAP = "_swap_data_ptr_"  # a storage's, in torch 2.13
MEMORY_BYTES = 8 << 30


class Touched(NamedTuple):
    """Memory of the default pool that a capture reads or writes."""

    owner: object  # what it belonged to then
    since: int  # how many requests the allocator had served
    line: Line | None  # of the user's, where it was touched first


class Pooled(NamedTuple):
    """Memory of a pool of graphs that a capture reads or writes."""

    owner: object  # what it belonged to then
    address: int
    size: int
    made: bool  # by this capture
    read: bool  # as another one has left it


class _StorageRef(weakref.ref[Any]):
    __slots__ = ("address", "free", "maker")

    address: int
    maker: int | None  # of memory in a graph's pool: when the capture began that has touched it first
    free: Callable[[int], None]


class Machine:
    """A simulated device with ``capacity`` bytes of memory."""

    def __init__(self, capacity: int = MEMORY_BYTES) -> None:
        self.device = torch.device(DEVICE_NAME, 0)
        self.arena = Arena(capacity)
        self.allocator = CachingAllocator(self.arena)
        self.hearing: list[Callable[[str], None]] = []  # who is told of operations that run in no graph
        self.replaying = False  # whether a graph's nodes run
        self.solver_failed = False  # cuSOLVER, in a capture; it tells of that once more, outside
        self.generator = DeviceGenerator()
        self.generator.manual_seed(torch.initial_seed())  # as with CUDA, a seed counts that was set before
        # It counts more than a state that was, too: torch keeps both until the start, and seeds last.
        self.seeded = self.generator.seed if torch_name("_lazy_seed_tracker").get_calls() else None
        at_first_use(self._seed_again)
        self.user_pools: list[tuple[int, int, PoolId]] = []  # (thread, moment, pool) of use_mem_pool, innermost last
        self._owned: dict[int, _StorageRef] = {}  # keeps the weak references alive
        context = self.arena.map(GRANULE)  # what a device holds beside the allocator
        assert context is not None
        self._random_states = context
        self.generators: weakref.WeakSet[DeviceGenerator] = weakref.WeakSet()
        self.state_of(self.generator)
        self.static_ranges = [(context, STATE_BYTES, "generator state")]

    def _seed_again(self) -> None:
        if self.seeded is not None:
            self.generator.manual_seed(self.seeded)

    def ran(self, operation: str) -> None:
        """An operation runs by itself, in no graph."""
        for tell in self.hearing:
            tell(f"aten.{operation}")

    def state_of(self, generator: DeviceGenerator) -> int:
        """Where in device memory kernels find a generator's seed and offset."""
        if generator.place is None:
            used = {each.place for each in self.generators}
            generator.place = next(i for i in range(GRANULE // STATE_BYTES) if i not in used)
            self.generators.add(generator)
        return self._random_states + STATE_BYTES * generator.place

    def lend_state(self, generator: DeviceGenerator, graph: int) -> None:
        """A generator has one graph more: with the first come a seed and an offset on the device, for graphs alone."""
        if not generator.graphs:
            generator.lent = [self.allocate(8, current_stream()) for _ in range(2)]
        generator.graphs.add(graph)

    def take_state(self, generator: DeviceGenerator, graph: int | None = None) -> None:
        """A generator has one graph less, or none any more: with the last one that memory goes."""
        if graph is None:
            generator.graphs.clear()
        generator.graphs.discard(graph or 0)
        if not generator.graphs:
            for address, free in generator.lent:
                free(address)
            generator.lent = []

    def allocate(self, nbytes: int, stream: Stream) -> tuple[int, Callable[[int], None]]:
        """(address, how to free it) for a request of this stream, from the pool that it must come from."""
        capture = stream.capture
        began, pool = self._chosen()
        if capture is not None and not capture.ended:
            if capture.phantom is not None:
                return capture.phantom.allocate(nbytes), capture.phantom.free
            if capture.began > began:
                pool = capture.pool
            address = self.allocator.alloc(nbytes, stream.cuda_stream, pool)
        else:
            # A capturing stream may ask the device for memory, any other one only where no capture forbids it.
            asks = _ask_for_more if stream.again else forbid_unsafe_call
            address = self.allocator.alloc(nbytes, stream.cuda_stream, pool, asks)
        if address is None:
            stats = self.allocator.stats
            raise out_of_memory(nbytes, self.arena.capacity, stats.reserved, stats.allocated)
        return address, self.allocator.free

    def _chosen(self) -> tuple[int, PoolId]:
        """When this thread has chosen a pool with ``use_mem_pool``, and which."""
        mine = threading.get_ident()
        for thread, began, pool in reversed(self.user_pools):
            if thread == mine:
                return began, pool
        return -1, DEFAULT_POOL

    def storage(self, nbytes: int) -> torch.UntypedStorage:
        """A storage of fresh device memory, freed with its last tensor."""
        use()
        if not nbytes:
            return self.storage_at(0, 0)
        address, free = self.allocate(nbytes, current_stream())
        storage = self.storage_at(address, nbytes)
        self._own(storage, address, free)
        return storage

    def storage_at(self, address: int, nbytes: int) -> torch.UntypedStorage:
        """A storage over foreign memory, which stays its owner's."""
        return _construct(address, self.device, nbytes)  # type: ignore[no-any-return]

    def move(self, storage: torch.UntypedStorage, fresh: torch.UntypedStorage) -> None:
        """Let a storage have the memory of another one, under every tensor over it; its own is freed."""
        swap: Any = getattr(storage, SWAP, None)
        if swap is None:
            raise NotImplementedError(f"the simulated device resizes storages with torch 2.13, not {torch.__version__}")
        old, new = self._ref_of(storage), self._ref_of(fresh)
        swap(self.storage_at(0, 0))  # torch swaps storages of two sizes only if one is empty
        swap(fresh)
        if new is not None:
            del self._owned[new.address]
            self._own(storage, new.address, new.free)
        if old is not None:
            self._died(old)

    def _own(self, storage: torch.UntypedStorage, address: int, free: Callable[[int], None]) -> None:
        ref = _StorageRef(storage, self._died)
        ref.address, ref.free, ref.maker = address, free, None
        self._owned[address] = ref

    def note_owners(self, tensors: Sequence[torch.Tensor], line: Line | None, into: dict[int, Touched]) -> None:
        """Note who owns the memory under tensors, by its address, where that is in no graph's pool."""
        for tensor in tensors:
            address = tensor.untyped_storage().data_ptr()
            if address in into or (owner := self._owned.get(address)) is None:
                continue
            if self.allocator.blocks[address].segment.pool.id == DEFAULT_POOL:
                into[address] = Touched(owner, self.allocator.requests, line)

    def note_pooled(
        self, tensors: Sequence[torch.Tensor], overwrites: int | None, capture: int, into: dict[int, Pooled]
    ) -> None:
        """The same of memory in the pools of graphs; ``overwrites``: which of them is written over, and not read."""
        for number, tensor in enumerate(tensors):
            storage = tensor.untyped_storage()
            owner = self._owned.get(storage.data_ptr())
            if owner is None or id(owner) in into:
                continue
            if self.allocator.blocks[owner.address].segment.pool.id != DEFAULT_POOL:
                owner.maker = capture if owner.maker is None else owner.maker
                made, nbytes = owner.maker == capture, storage.nbytes()
                reads = number != overwrites or tensor.nbytes < nbytes
                into[id(owner)] = Pooled(owner, owner.address, nbytes, made, not made and reads)

    def number_of(self, tensor: torch.Tensor) -> int:
        """Who owns the memory under a tensor, as a number; 0 where nobody does."""
        owner = self._owned.get(tensor.untyped_storage().data_ptr())
        return 0 if owner is None else id(owner)

    def gone(self, touched: dict[int, Touched]) -> list[tuple[int, Line | None]]:
        """Addresses of that memory that others have by now, or nobody, with the line that has touched each first."""
        return [(at, each.line) for at, each in touched.items() if self._owned.get(at) is not each.owner]

    def is_anothers(self, touched: dict[int, Touched]) -> bool:
        """Whether some of that memory was freed since and has served others, but for one tensor in place of one."""
        gone = self.gone(touched)
        if len(gone) == 1 and self.allocator.is_taken(gone[0][0]):
            return False
        return any(self.allocator.served(at, touched[at].since) for at, _ in gone)

    def _ref_of(self, storage: torch.UntypedStorage) -> _StorageRef | None:
        """What frees a storage's memory; None of one over foreign memory."""
        ref = self._owned.get(storage.data_ptr())
        return ref if ref is not None and ref() is storage else None

    def _died(self, ref: _StorageRef) -> None:
        if self._owned.get(ref.address) is ref:  # else another storage has its memory now
            del self._owned[ref.address]
            ref.free(ref.address)

    def empty_strided(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor of the device."""
        if any(each < 0 for each in size):
            raise RuntimeError(f"Trying to create tensor with negative dimension {min(size)}: {[*size]}")
        tensor: torch.Tensor = _create((0,), dtype)
        storage = self.storage(extent(size, stride) * dtype.itemsize)
        SET_STORAGE.redispatch(CPU_KEY, tensor, storage, 0, size, stride)
        return tensor

    def tensor_at(
        self, address: int, nbytes: int, size: Sequence[int], stride: Sequence[int], offset: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """A tensor over foreign memory."""
        tensor: torch.Tensor = _create((0,), dtype)
        SET_STORAGE.redispatch(CPU_KEY, tensor, self.storage_at(address, nbytes), offset, size, stride)
        return tensor

    def twin(self, tensor: torch.Tensor) -> torch.Tensor:
        """The CPU tensor over the same device memory; raises error 700 for memory that is not there."""
        whole = tensor.numel() if tensor.is_contiguous() else -1
        view = self.arena.view(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, whole)
        return lazily(view, bits_of(tensor)) if tensor.is_conj() or tensor.is_neg() else view


def _ask_for_more() -> None:
    """The device is asked for memory on a stream that has served before, and may have some left on a GPU."""
    if forbidding() is not None:
        not_known(AGAIN)
    forbid_unsafe_call()


_machine: Machine | None = None


def machine() -> Machine:
    """The one simulated device of this process, made on first use."""
    global _machine
    if _machine is None:
        _machine = Machine()
    return _machine


def started() -> Machine:
    """The device, which is in use from here on."""
    found = machine()
    use()
    return found


def make(capacity: int) -> None:
    """Make the device of this process with ``capacity`` bytes; raises RuntimeError where there is one already."""
    global _machine
    if _machine is not None:
        raise RuntimeError("the simulated device is already in use: set its memory before the first tensor")
    _machine = Machine(capacity)
