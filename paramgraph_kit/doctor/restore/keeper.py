"""Puts tensors, gradients and generators back: what existed before is copied just before it is first written."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import TensorWeakRef

from paramgraph_kit.driver.select import twin

weak_ref: Any = TensorWeakRef  # torch leaves them untyped
storage_ref: Any = StorageWeakRef  # while it is there, its key is given to no other memory
_OF_A_COUNTER = 64  # bytes


class Keeper:
    """What one call of the user's function changes, and how to undo that."""

    def __init__(self) -> None:
        self.made: set[int] = set()  # storages that came to be during the call
        self.stays: set[int] = set()  # of what is written, what ``put_back`` leaves as it is
        self.counting: set[int] = set()  # of what is written, flags and counters: small, and of whole numbers
        self._written: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # what may be written unseen
        self._plain: dict[int, torch.Tensor] = {}  # what was written and needed no gradients before
        # A parameter that nobody else has is freed, as ever: a graph of the program's may read it then.
        self._gradients: dict[int, tuple[Any, torch.Tensor | None]] = {}
        self._generators: dict[int, tuple[torch.Generator, torch.Tensor]] = {}

    def is_outside(self, tensor: torch.Tensor) -> bool:
        """Whether the memory of a tensor was there before the call."""
        return storage_key(tensor) not in self.made

    def note_made(self, key: int) -> None:
        """Memory came out of an operation that did not get it."""
        if key not in self._written:
            self.made.add(key)

    def before_write(self, tensor: torch.Tensor) -> None:
        """Copy memory from outside before its first write."""
        key = storage_key(tensor)
        if not key or key in self.made:
            return
        for each in (tensor, tensor._base):
            if each is not None and not each.requires_grad:
                self._plain.setdefault(id(each), each)
        if key in self._written:
            return
        storage = tensor.untyped_storage()
        if not (tensor.is_floating_point() or tensor.is_complex()) and storage.nbytes() <= _OF_A_COUNTER:
            self.counting.add(key)
        self._written[key] = _copied(tensor)

    def keep(self, tensor: torch.Tensor) -> None:
        """Copy memory from outside that may be written unseen, as by the replay of a graph."""
        if (key := storage_key(tensor)) and key not in self._kept.keys() | self._written.keys() | self.made:
            self._kept[key] = _copied(tensor)

    def note_leaf(self, tensor: torch.Tensor) -> None:
        """Remember the gradient of a parameter."""
        known = self._gradients.get(id(tensor))
        if known is None or known[0]() is None:  # the id is another one's by now
            self._gradients[id(tensor)] = (weak_ref(tensor), tensor.grad)

    def leaves_of(self, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        """The parameters that a result from outside was made of."""
        todo, seen = [tensor.grad_fn], set()
        while todo:
            node = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if (leaf := getattr(node, "variable", None)) is not None:
                yield leaf
            todo += [following for following, _ in node.next_functions]

    def note_generator(self, generator: torch.Generator) -> None:
        """Remember the state of a generator of the user's."""
        if id(generator) not in self._generators:
            self._generators[id(generator)] = (generator, generator.get_state())

    def gradient_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The gradient that a parameter had before the call."""
        found = self._gradients.get(id(tensor))
        return found[1] if found and found[0]() is tensor else None

    def leave_gradient(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """Let a parameter have the gradient that it has now; what it had before the call, if that is known."""
        found = self._gradients.pop(id(tensor), None)
        return (tensor, found[1]) if found and found[0]() is tensor else None

    def left_gradients(self) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """Parameters with a gradient now that the call has made, and those with one that it has written to."""
        known = [(ref(), before) for ref, before in self._gradients.values()]
        there = [(p, before) for p, before in known if p is not None and p.grad is not None]
        made = tuple(p for p, before in there if before is None)
        return made, tuple(
            p for p, before in there if before is p.grad and before is not None and self.is_written(before)
        )

    def is_written(self, tensor: torch.Tensor) -> bool:
        """Whether the call has written memory from outside that this tensor has."""
        return storage_key(tensor) in self._written

    def written(self) -> dict[int, torch.Tensor]:
        """The memory that was written, by its name."""
        return {key: flat for key, (flat, _) in self._written.items()}

    def left(self) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """Memory that ``put_back`` leaves as it is, and what it held."""
        return {key: both for key, both in self._written.items() if key in self.stays}

    def put_back(self) -> None:
        """Undo everything, but what stays."""
        with torch.no_grad():
            for key, (flat, saved) in (self._written | self._kept).items():  # that was copied first
                if key not in self.stays:
                    flat.copy_(saved)
        for tensor in self._plain.values():  # a graph that is held so would keep its backward pass on its stream
            if tensor.requires_grad and tensor._base is None:
                tensor.detach_()
        for ref, gradient in self._gradients.values():
            if (parameter := ref()) is not None and parameter.grad is not gradient:
                parameter.grad = gradient
        for generator, state in self._generators.values():
            generator.set_state(state)
        self._written.clear()
        self._kept.clear()
        self._plain.clear()


def _copied(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """All memory that a tensor has, and a copy of it."""
    with torch.no_grad(), torch.inference_mode(False):  # what it makes is written outside of one
        flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        return flat, flat.clone()


def storage_key(tensor: torch.Tensor) -> int:
    """What names the memory of a tensor while it lives; 0 for tensors without memory."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return 0


class HostRandom:
    """The default generators of the host: torch's of the CPU, Python's and numpy's."""

    def __init__(self) -> None:
        self._cpu = torch.get_rng_state()
        self._python = random.getstate()
        self._of_numpy: Any = sys.modules["numpy"].random if "numpy" in sys.modules else None
        self._numpy = self._of_numpy.get_state() if self._of_numpy else None

    def put_back_host(self) -> None:
        """The CPU's, Python's and numpy's."""
        torch.set_rng_state(self._cpu)
        random.setstate(self._python)
        if self._numpy is not None:
            self._of_numpy.set_state(self._numpy)

    def host_moved(self) -> bool:
        """Whether numbers have been drawn on the host since."""
        return self.numbers_moved() or not torch.equal(torch.get_rng_state(), self._cpu)

    def numbers_moved(self) -> bool:
        """Whether Python's or numpy's have, which come as numbers and not as tensors."""
        if random.getstate() != self._python:
            return True
        if self._numpy is None:
            return False
        now, then = self._of_numpy.get_state(), self._numpy
        return bool(now[2] != then[2] or (now[1] != then[1]).any())


class RandomState(HostRandom):
    """Every default generator: the device's as well."""

    def __init__(self) -> None:
        super().__init__()
        self._cuda = twin()
        self._device = self._cuda.get_rng_state()

    def put_back(self) -> None:
        """All as it was."""
        self.put_back_device()
        self.put_back_host()

    def put_back_device(self) -> None:
        """The device's alone."""
        self._cuda.set_rng_state(self._device)

    def perturb(self, number: int) -> None:
        """Other numbers on the host; the device draws the same ones."""
        self.put_back()
        torch.default_generator.manual_seed(977 * number + 1)
        random.seed(977 * number + 1)
        if self._numpy is not None:
            self._of_numpy.seed(977 * number + 1)
