"""Random generators of the host that programs hold themselves, beside those that ``random`` and ``numpy`` have."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import torch

Sobol = torch.quasirandom.SobolEngine
KINDS = (random.Random, np.random.Generator, np.random.BitGenerator, np.random.RandomState, torch.Generator, Sobol)


def is_of_host(value: Any) -> bool:
    """Whether a value draws random numbers on the host.

    >>> is_of_host(random.Random(0)), is_of_host(np.random.default_rng(0)), is_of_host(torch.Generator())
    (True, True, True)
    """
    return isinstance(value, KINDS) and (not isinstance(value, torch.Generator) or value.device.type == "cpu")


def state_of(generator: Any) -> Any:
    """What tells how far it is; never the same for one of the system's, which has no state.

    >>> one = random.Random(0)
    >>> before = state_of(one)
    >>> _ = one.random()
    >>> state_of(one) == before, state_of(random.SystemRandom()) == state_of(random.SystemRandom())
    (False, False)
    """
    if isinstance(generator, random.SystemRandom):
        return object()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, Sobol):  # it draws nothing, but gives other points each time, as one that does
        return generator.num_generated, generator.quasi.numpy().tobytes()
    if isinstance(generator, np.random.RandomState):
        return pickle.dumps(generator.get_state(legacy=False))
    bits = generator.bit_generator if isinstance(generator, np.random.Generator) else generator
    return pickle.dumps(bits.state)


def put_back(generator: Any, state: Any) -> None:
    """Let it draw again what it drew since ``state``.

    >>> one = np.random.default_rng(0)
    >>> before = state_of(one)
    >>> drawn = one.random()
    >>> put_back(one, before)
    >>> one.random() == drawn
    True
    """
    if isinstance(generator, random.SystemRandom):
        return
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, torch.Generator):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif isinstance(generator, Sobol):
        generator.num_generated, quasi = state
        generator.quasi = torch.frombuffer(bytearray(quasi), dtype=generator.quasi.dtype).view_as(generator.quasi)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(pickle.loads(state))  # what ``state_of`` has made
    else:
        bits = generator.bit_generator if isinstance(generator, np.random.Generator) else generator
        bits.state = pickle.loads(state)  # the same
