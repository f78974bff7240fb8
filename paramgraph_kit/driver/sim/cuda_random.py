"""The twin's random numbers: ``torch.cuda.random``, and generators of the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .first_use import in_use, use
from .generators import Generator
from .machine import machine


def _generator() -> Generator:
    return Generator.of(machine().generator)


def _of(device: Any) -> Generator:
    index = torch.device(device).index if isinstance(device, str) else getattr(device, "index", device)
    return (_generator(),)[index or 0]  # of a device torch asks for its number alone


def generators_of_devices() -> tuple[Generator, ...]:
    """``torch.cuda.default_generators``: that of the only device, once that is in use."""
    return (_generator(),) if in_use() else ()


def manual_seed(seed: int) -> None:
    """Seed the device's generator; in a capture only the seed in use is accepted, and does nothing."""
    _generator().manual_seed(int(seed))
    if not in_use():
        machine().seeded = int(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the generator of every simulated device: there is one."""
    manual_seed(seed)


def seed() -> None:
    """Seed the device's generator with a number that nobody knows."""
    _generator().seed()


seed_all = seed


def initial_seed() -> int:
    """The seed in use."""
    use()
    return _generator().initial_seed()


def get_rng_state(device: Any = None) -> torch.Tensor:
    """Seed and offset, 16 bytes in a CPU tensor; in a capture, how far that has moved, as CUDA's [H100, torch 2.11]."""
    use()
    return _of(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Restore what ``get_rng_state`` returned; in a capture for what it records from here on."""
    _of(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The state of every simulated device: there is one."""
    return [get_rng_state()]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restore what ``get_rng_state_all`` returned."""
    for state in new_states:
        set_rng_state(state)
