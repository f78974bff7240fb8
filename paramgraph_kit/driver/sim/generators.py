"""Generators of the simulated device as torch's Python sees them.

They are CPU generators to torch's C++ but for the device that they name; it hands them on to the kernels of the device,
which read seed and offset here.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from typing import Any

import torch

from paramgraph_kit.driver.torch_names import torch_name

from .machine import DEVICE_NAME
from .rng import STATE_BYTES, DeviceGenerator
from .stream import current_stream
from .under_way import Capture

OFFSET_MULTIPLE = 4
SEED_BYTES = 8  # of a state
_MASK = (1 << 64) - 1
NOT_IN_CAPTURE = (
    "Cannot {what} during CUDA graph capture. If you need this call to be captured, please file an issue. Current "
    "cudaStreamCaptureStatus: cudaStreamCaptureStatusActive"
)


_made: weakref.WeakValueDictionary[int, Generator] = weakref.WeakValueDictionary()


def known(generator: torch.Generator) -> Generator | None:
    """The device's generator that torch's C++ has handed on as another object of Python's, or None for one of CPU's."""
    return _made.get(_number(generator))


_PRIVATEUSE1, _CPU = 20, b"\x00\xff"  # a device as C++ has it: kind and index, a byte each
_KEYS = torch_name("DispatchKeySet")(torch_name("DispatchKey").CPU).raw_repr().to_bytes(8, sys.byteorder)
_LOOKED_AT = 128  # bytes of a generator in C++


def _not_the_cpus(address: int) -> None:
    """Let torch's C++ know that a generator is not the CPU's, so that operations of the CPU refuse it as CUDA's.

    Its device stands before the set of its dispatch keys; where it does not, the generator stays as it is.
    """
    found = ctypes.string_at(address, _LOOKED_AT)
    places = [i - 8 for i in range(8, _LOOKED_AT, 8) if found[i : i + 8] == _KEYS and found[i - 8 : i - 6] == _CPU]
    if len(places) == 1:
        ctypes.memmove(address + places[0], bytes((_PRIVATEUSE1, 0)), 2)


def _number(generator: Any) -> int:
    number: int = generator._cdata  # its address in C++; torch's stubs leave it out
    return number


class Generator(torch.Generator):
    """``torch.Generator(device="sim")``."""

    state: DeviceGenerator
    named: torch.device | None = None  # what it was given

    def __new__(cls, device: Any = DEVICE_NAME) -> Generator:
        """A generator with a state of its own; RuntimeError in a capture."""
        _not_in_capture("construct a new CUDAGeneratorImpl")
        made = cls._of(DeviceGenerator())
        made.named = torch.device(device)
        return made

    @classmethod
    def _of(cls, state: DeviceGenerator) -> Generator:
        make: Any = super().__new__
        made: Generator = make(cls, "cpu")
        _not_the_cpus(_number(made))
        made.state = state
        _made[_number(made)] = made
        return made

    @classmethod
    def of(cls, state: DeviceGenerator) -> Generator:
        """The generator whose state this is."""
        if state.seen is None:
            state.seen = cls._of(state)
        found: Generator = state.seen
        return found

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # torch's stubs would have it written
        """The simulated device, with the number that it was given, or that of the device whose own it is."""
        return torch.device(DEVICE_NAME, 0) if self.state.seen is self else self.named or torch.device(DEVICE_NAME)

    def manual_seed(self, seed: int) -> Generator:
        """Start again from a seed; in a capture only the seed in use is accepted, and does nothing."""
        super().manual_seed(seed)  # raises for what is no number of 64 bits
        if _capture() is None:
            self.state.manual_seed(int(seed))
        else:
            self.state.check_seed(int(seed))
        return self

    def seed(self) -> int:
        """Start again from a seed that nobody knows; RuntimeError in a capture."""
        _not_in_capture("call CUDAGeneratorImpl::seed")
        self.manual_seed(int.from_bytes(os.urandom(8)) >> 11)  # 53 bits, as torch's: a float holds it
        return self.state.seed

    def initial_seed(self) -> int:
        """The seed in use."""
        return self.state.seed

    def get_offset(self) -> int:
        """How far it has moved; RuntimeError in a capture."""
        _not_in_capture("call CUDAGeneratorImpl::get_offset")
        return self.state.offset

    def set_offset(self, offset: int) -> Generator:
        """Move it; RuntimeError in a capture."""
        _not_in_capture("call CUDAGeneratorImpl::set_offset")
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise RuntimeError(f"manual_offset expected a long, but got {type(offset).__name__}")
        if not -_MASK // 2 - 1 <= offset <= _MASK:
            raise ValueError("Overflow when unpacking long long")
        if offset % OFFSET_MULTIPLE:
            raise RuntimeError("offset must be a multiple of 4")
        self.state.offset = offset & _MASK
        return self

    def get_state(self) -> torch.Tensor:
        """Seed and offset, 16 bytes in a CPU tensor; in a capture, how far it has moved since that began."""
        capture = _capture()
        offset = self.state.offset if capture is None else capture.offsets.get(self.state, self.state.offset)
        return torch.tensor(list(self.state.state(offset)), dtype=torch.uint8, device="cpu")

    def set_state(self, new_state: torch.Tensor) -> Generator:
        """Restore what ``get_state`` returned."""
        if not isinstance(new_state, torch.Tensor):
            raise TypeError(f"expected a torch.ByteTensor, but got {type(new_state).__name__}")
        if not new_state.is_cpu or new_state.dtype != torch.uint8:
            raise TypeError("RNG state must be a torch.ByteTensor")
        capture, state = _capture(), bytes(new_state.flatten().tolist())
        if len(state) == SEED_BYTES:
            state = state.ljust(STATE_BYTES, b"\0")  # an offset of zero
        if len(state) != STATE_BYTES:
            raise RuntimeError("RNG state is wrong size")
        if capture is None:
            self.state.set_state(state)
        else:
            capture.offsets[self.state] = self.state.offset_of(state)
        return self

    def __reduce__(self) -> Any:
        """How to make it again, as in copies and pickles: torch's own asks in C++."""
        try:
            offset = self.get_offset()
        except RuntimeError as error:  # in a capture, of which torch's says so
            text = f"<built-in method __reduce__ of {object.__repr__(self)} returned a result with an exception set"
            raise SystemError(text) from error
        return torch.Generator, (self.device,), (self.initial_seed(), offset, self.get_state())

    def __setstate__(self, state: tuple[int, int | None, torch.Tensor]) -> None:
        self.set_state(state[-1])

    def clone_state(self) -> Generator:
        """A generator that starts where this one is."""
        _not_in_capture("call CUDAGeneratorImpl::clone_impl")
        made = Generator()
        made.state.set_state(self.state.state())
        return made

    def graphsafe_get_state(self) -> Generator:
        """A generator with the same state, to be set elsewhere."""
        return Generator._of(self.state)

    def graphsafe_set_state(self, state: torch.Generator) -> Generator:
        """Share the state of another generator."""
        if not isinstance(state, Generator):
            raise TypeError(f"graphsafe_set_state takes a generator of {DEVICE_NAME}, not {state!r}")
        self.state = state.state
        return self


def _capture() -> Capture | None:
    return current_stream().capture


def _not_in_capture(what: str) -> None:
    if _capture() is not None:
        raise RuntimeError(NOT_IN_CAPTURE.format(what=what))
