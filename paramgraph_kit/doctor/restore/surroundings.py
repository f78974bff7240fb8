"""Puts back what code may change besides values: torch's settings, the working directory, what tensors are made of."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.doctor.restore.keeper import Keeper, RandomState, storage_key
from paramgraph_kit.driver.select import twin

_AUTOCAST = ("cpu", "cuda")


@contextmanager
def all_kept(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
    """Whatever the body of ``with`` does to what a function can reach is undone, also where no mode may watch it.

    Everything is copied before, where a mode would have copied what is written: twice the memory, for a while.
    """
    state, random = HostState(function, args, kwargs), RandomState()
    surroundings, keeper, current = Surroundings(state.tensors), Keeper(), twin().current_stream()
    for tensor in state.tensors:
        if tensor.is_leaf:
            keeper.note_leaf(tensor)
        for each in (tensor, tensor.grad if tensor.is_leaf else None):
            if each is not None:
                keeper.before_write(each)
    for generator in state.generators:
        keeper.note_generator(generator)
    try:
        yield
    finally:
        twin().set_stream(current)
        twin().synchronize()
        keeper.put_back()
        state.put_back()
        random.put_back()
        surroundings.put_back()
        twin().synchronize()


class Surroundings:
    """Settings of the process, and shape, memory and need of gradients of some tensors, as they are now."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._gradients = torch.is_grad_enabled()
        self._dtype = torch.get_default_dtype()
        self._device = torch.get_default_device()
        self._autocast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCAST]
        self._cache, self._depth = torch.is_autocast_cache_enabled(), autocast_depth()
        self._folder, self._printed = _folder(), (sys.stdout, sys.stderr)
        self._environment, self._deepest = dict(os.environ), sys.getrecursionlimit()
        self._tensors = [entry for tensor in tensors for entry in _as_it_is(tensor)]
        self._frozen: list[tuple[torch.Tensor, bool]] = []  # parameters, and whether each needs gradients

    def put_back(self) -> None:
        """All as it was."""
        torch.set_grad_enabled(self._gradients)
        if torch.get_default_dtype() != self._dtype:
            torch.set_default_dtype(self._dtype)
        if torch.get_default_device() != self._device:
            torch.set_default_device(None if self._device.type == "cpu" else self._device)
        for kind, enabled, dtype in self._autocast:
            if torch.is_autocast_enabled(kind) != enabled:
                torch.set_autocast_enabled(kind, enabled)
            if torch.get_autocast_dtype(kind) != dtype:
                torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(self._cache)
        while autocast_depth() > self._depth:  # entered, and not left: its kept casts would stay, too
            torch.autocast_decrement_nesting()
            torch.clear_autocast_cache()
        if self._folder is not None and _folder() != self._folder:
            os.chdir(self._folder)
        sys.stdout, sys.stderr = self._printed
        if dict(os.environ) != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        sys.setrecursionlimit(self._deepest)
        for tensor, then, _ in self._tensors:
            if _made_of(tensor) != _made_of(then):
                tensor.data = then
        self.need_no_more()

    def note_frozen(self) -> None:
        """Which parameters need gradients now and did not, or did and need none."""
        held = [(each, then) for each, _, then in self._tensors if isinstance(each, torch.nn.Parameter)]
        self._frozen = [(each, each.requires_grad) for each, then in held if each.requires_grad != then]

    def freeze(self) -> None:
        """Parameters need gradients, or none, as they did when that was noted last."""
        for parameter, requires_grad in self._frozen:
            parameter.requires_grad_(requires_grad)

    def need_no_more(self) -> None:
        """Tensors that need gradients now and did not, as an argument after ``x.requires_grad_(True)``, have none."""
        for tensor, then, requires_grad in self._tensors:
            if tensor.requires_grad != requires_grad and tensor.is_leaf:
                tensor.requires_grad_(requires_grad)
                if not requires_grad:
                    tensor.grad = then.grad


def _folder() -> str | None:
    """Where this process works; None where that folder has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _as_it_is(tensor: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor, bool]]:
    try:
        _made_of(tensor)
        then = tensor.detach()
        then.grad = tensor.grad if tensor.is_leaf and not tensor.requires_grad else None
        return [(tensor, then, tensor.requires_grad)]
    except (RuntimeError, ValueError):  # nested, or of a lazy module: it has no shape to go back to
        return []


def _made_of(tensor: torch.Tensor) -> tuple[object, ...]:
    key = storage_key(tensor)
    return (tensor.dtype, tensor.shape, key, tensor.stride() if key else (), tensor.storage_offset() if key else 0)


def autocast_depth() -> int:
    """In how many ``torch.autocast`` blocks this thread is."""
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return int(depth)
