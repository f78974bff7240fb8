"""Pinned host memory: real bytes of the host that a captured copy may name, in blocks that are used again.

``tensor.pin_memory()`` makes it here: as on a GPU the next request of a size gets the block of what was freed, and a
graph that names it copies what is there then [H200]. Factories with ``pin_memory=True`` ask torch for an allocator in
C++: they get the CPU's under another address, by which their storages are known; a graph keeps such a block, and warns.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from paramgraph_kit.driver.tensors import extent
from paramgraph_kit.driver.torch_names import PINNED_ALLOCATOR_SLOT, native_name, torch_name, version
from paramgraph_kit.trace.errors import UnsupportedError

from .not_known import not_known
from .stream import current_stream
from .under_way import forbid_unsafe_call, forbidding

_free: dict[int, list[torch.UntypedStorage]] = defaultdict(list)  # blocks that torch keeps, by their size
_pinned: dict[int, tuple[torch.UntypedStorage, weakref.ref[Any]]] = {}  # address -> (its block, what is in it)
_held: weakref.WeakValueDictionary[int, _Held] = weakref.WeakValueDictionary()  # by address
_stored = torch_name("_has_storage")
_users = torch_name("_storage_Use_Count")
FREED = (
    "what a captured copy finds in pinned memory that is freed by now: on a GPU the next tensor that is pinned may lie "
    "there, and be copied; here it still is what was there. Keep the tensor as long as the graph"
)
ASKED = (
    "whether there is pinned memory for this: if not, CUDA is asked for some, which a capture that is under way forbids"
)
_construct = torch_name("_construct_storage_from_data_pointer")


def pin(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """``aten::_pin_memory``: a copy in pinned memory."""
    nbytes = extent(tensor.shape, tensor.stride()) * tensor.dtype.itemsize
    if not nbytes:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    captured = current_stream().capture is not None
    block = take(nbytes)
    address = block.data_ptr()
    storage = _construct(address, torch.device("cpu"), nbytes)

    def freed(_: object) -> None:
        _pinned.pop(address, None)
        if not captured and current_stream().capture is None:  # what a capture allocates or frees is its graph's
            _free[block.nbytes()].append(block)

    _pinned[address] = (block, weakref.ref(storage, freed))
    return _over(storage, tensor).copy_(tensor)


def refuse_to_pin(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """``aten::pin_memory`` of the device's own memory."""
    kind = tensor.type()
    raise RuntimeError(f"cannot pin '{kind}' only dense CPU tensors can be pinned")


def _over(storage: torch.UntypedStorage, like: torch.Tensor, offset: int = 0) -> torch.Tensor:
    return torch.empty(0, dtype=like.dtype, device="cpu").set_(storage, offset, like.shape, like.stride())


def places(mask: Any) -> list[torch.Tensor]:
    """Where a mask of the host is set, on the device: torch copies that from pinned memory, without waiting."""
    return [pin(each).to("sim", non_blocking=True) for each in mask.nonzero(as_tuple=True)]


def take(nbytes: int) -> torch.UntypedStorage:
    """A block of pinned memory for a request: a free one, or CUDA is asked, which a capture may forbid.

    Raises:
        torch.AcceleratorError: code 900, a capture forbids it on this thread and its stream is not captured.
    """
    size = 1 << (nbytes - 1).bit_length()
    if _free[size]:
        return _free[size].pop()
    if current_stream().capture is None:  # in its own captures torch allows it
        forbid_unsafe_call()
    return torch.UntypedStorage(size)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def forget() -> None:
    """Keep no free blocks and nothing of what was registered, as in a fresh process."""
    _free.clear()
    _registered.clear()


class _Held:
    """Memory of a factory's that graphs name, and keep: of what comes after it the host's allocator tells nobody."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        # What a capture allocates is its graph's; which of the graph's blocks that is, is not known.
        self.told = current_stream().capture in _allocating

    def tell_if_freed(self) -> None:
        """Warn, once, where nobody but graphs has it any more."""
        if not self.told and _users(self.storage._cdata) == 1:  # this very object
            self.told = True
            not_known(FREED)


def lasting(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Makes tensors over the same pinned memory that outlive what is in it now, as the address in a graph does."""
    storage, offset = tensor.untyped_storage(), int(tensor.storage_offset())
    address = storage.data_ptr()
    block, _ = _pinned.get(address, (None, None))
    if block is None and not _from_factory(storage):
        return lambda: tensor
    like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    if block is not None:
        return lambda: _over(block, like, offset)
    held = _held.get(address)
    if held is None:
        held = _held[address] = _Held(storage)

    def there() -> torch.Tensor:
        held.tell_if_freed()
        return _over(held.storage, like, offset)

    return there


def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
    """``aten::is_pinned`` for host tensors."""
    storage = tensor.untyped_storage()
    address = storage.data_ptr()
    if not address:
        return False
    return (
        address in _pinned
        or _from_factory(storage)
        or any(start <= address < start + size for start, size in _registered.items())
        or any(start <= address < start + block.nbytes() for start, (block, _) in _pinned.items())  # NumPy's, of a part
        or (_made[0] and not storage.resizable() and _lies_in_factorys(address))  # NumPy's
    )


def _lies_in_factorys(address: int) -> bool:
    """Whether an array of NumPy's at this address is of a tensor that a factory has made, which it keeps."""
    for each in gc.get_objects():
        if type(each) is torch.Tensor and each.is_cpu and _stored(each):
            storage = each.untyped_storage()
            if storage.data_ptr() <= address < storage.data_ptr() + storage.nbytes() and _from_factory(storage):
                return True
    return False


_registered: dict[int, int] = {}  # host memory that cudaHostRegister has pinned: address -> bytes


def register_host(address: int, nbytes: int) -> None:
    """Memory of the host is pinned where it is."""
    _registered[address] = nbytes


def unregister_host(address: int) -> None:
    """It is not pinned any more."""
    _registered.pop(address, None)


_WORD, _BEFORE = ctypes.sizeof(ctypes.c_void_p), 2  # what stands before a class's virtual functions
_FUNCTIONS = 64  # more than there are: what is copied behind them nobody calls
_LOOKED_AT = 128  # bytes of a storage in C++, somewhere in which is the address of its allocator
_allocator = ctypes.create_string_buffer(8 * _WORD)  # another object of the class of the CPU's, which has no state
_NAME = ctypes.addressof(_allocator).to_bytes(_WORD, sys.byteorder)
_functions = (ctypes.c_void_p * (_BEFORE + _FUNCTIONS))()
_allocating: weakref.WeakSet[Any] = weakref.WeakSet()  # captures in which a factory has made pinned memory
_made = [False]  # whether a factory has made any
_where: list[int] = []  # where in a storage its allocator's address stands; empty where factories make none


def _given(hooks: int) -> int:
    """``getPinnedMemoryAllocator()``, which torch calls for each allocation."""
    _made[0] = True
    if (capture := current_stream().capture) is not None:
        _allocating.add(capture)
    elif forbidding() is not None:
        not_known(ASKED)
    return ctypes.addressof(_allocator)


_give = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(_given)


def _from_factory(storage: Any) -> bool:
    return any(ctypes.string_at(storage._cdata + place, _WORD) == _NAME for place in _where)


def install_factories() -> None:
    """Give torch an allocator for ``pin_memory=True``, in the versions whose C++ has been looked at.

    Elsewhere factories raise torch's own ``NotImplementedError``, which is told as *not simulated*.
    """
    slot = PINNED_ALLOCATOR_SLOT.get(version())
    try:
        cpus, hooks = native_name("cpu_allocator"), native_name("device_hooks")
    except UnsupportedError:
        return
    if slot is None:
        return
    cpus.restype = hooks.restype = ctypes.c_void_p
    ctypes.memmove(_allocator, cpus(), _WORD)
    place = ctypes.c_void_p.from_address(hooks())
    before = place.value or 0
    ctypes.memmove(_functions, before - _BEFORE * _WORD, ctypes.sizeof(_functions))
    _functions[_BEFORE + slot] = ctypes.cast(_give, ctypes.c_void_p).value
    place.value = ctypes.addressof(_functions) + _BEFORE * _WORD
    with contextlib.suppress(RuntimeError):
        made = torch.empty(1, pin_memory=True, device="cpu").untyped_storage()
        found = ctypes.string_at(made._cdata, _LOOKED_AT).find(_NAME)
        if found >= 0:
            _where[:] = [found]
            _made[0] = False
            return
    place.value = before
