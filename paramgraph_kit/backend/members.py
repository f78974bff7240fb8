"""Parameters and buffers of the modules that a traced function reaches: inputs of its trace, looked up at each call.

While a function is traced its modules hold traced tensors in the place of their own. Other threads that want to look at
the same modules wait for that, and nobody else waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason

_turns = threading.Condition()
_swapped: dict[int, int] = {}  # id of a module that holds traced tensors -> the thread that traces
# torch's recurrent modules keep lists of their parameters, and make them anew where they find others.
_LISTS_OF_PARAMETERS = ("_flat_weights", "_flat_weight_refs")


class Members:
    """Where the parameters and buffers of some modules are kept, so that a call can read today's."""

    def __init__(self, modules: Sequence[tuple[str, nn.Module]]) -> None:
        self.modules = [module for _, module in modules]
        self.paths = {id(module): path for path, module in reversed(modules)}  # of a shared one the first
        self.dicts: list[dict[str, Any]] = []
        names: list[str] = []
        absent: list[str] = []
        self._places: list[tuple[dict[str, Any], str]] = []
        self._absent: list[tuple[dict[str, Any], str]] = []
        for path, module in modules:
            for owner in (module._parameters, module._buffers):
                self.dicts.append(owner)
                for key, value in owner.items():
                    name = f"{path}.{key}" if path else key
                    if value is None:
                        self._absent.append((owner, key))
                        absent.append(name)
                    else:
                        names.append(name)
                        self._places.append((owner, key))
        self.names = tuple(names)
        self._count = sum(map(len, self.dicts))
        positions: dict[int, int] = {}
        # For each place its position among ``tensors()``: a tied parameter has several places.
        self._sources = tuple(positions.setdefault(id(owner[key]), len(positions)) for owner, key in self._places)
        self.key = (self.names, self._sources, tuple(absent))

    def tensors(self) -> list[torch.Tensor] | None:
        """Today's parameters and buffers, each object once; None if some have come, gone, or been tied otherwise."""
        with self._turn():
            if sum(map(len, self.dicts)) != self._count or any(
                owner.get(key) is not None for owner, key in self._absent
            ):
                return None
            last = -1
            found: list[torch.Tensor] = []
            seen: set[int] = set()
            for (owner, key), source in zip(self._places, self._sources, strict=True):
                value = owner.get(key)
                if not isinstance(value, torch.Tensor):
                    return None
                if source > last:
                    if id(value) in seen:
                        return None
                    seen.add(id(value))
                    found.append(value)
                    last = source
                elif value is not found[source]:
                    return None
            return found

    def unique_names(self) -> list[str]:
        """One name for each of ``tensors()``: of a tied parameter the first."""
        first: dict[int, str] = {}
        for name, source in zip(self.names, self._sources, strict=True):
            first.setdefault(source, name)
        return [first[source] for source in sorted(first)]

    def wait(self) -> None:
        """Until no other thread traces with these modules."""
        if _swapped:
            with self._turn():
                pass

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with _turns:
            _turns.wait_for(self._ours)
            yield

    def _ours(self) -> bool:
        me = threading.get_ident()
        return not _swapped or all(_swapped.get(id(module), me) == me for module in self.modules)

    @contextmanager
    def swapped(self, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Let the modules see ``tensors`` in the place of their own, and nothing of the block stay behind.

        Raises:
            RefusedError: the block gave a module another tensor or attribute, which a launched graph would not do.
        """
        with self._turn():
            before = {id(module): _swapped.get(id(module)) for module in self.modules}
            _swapped.update(dict.fromkeys(before, threading.get_ident()))
            kept = [owner[key] for owner, key in self._places]
            attributes = [_attributes(module) for module in self.modules]
            for (owner, key), source in zip(self._places, self._sources, strict=True):
                owner[key] = tensors[source]
        changed = ""
        try:
            yield
            for name, (owner, key), source in zip(self.names, self._places, self._sources, strict=True):
                if owner.get(key) is not tensors[source]:
                    changed = changed or name
        finally:
            with _turns:
                for (owner, key), value in zip(self._places, kept, strict=True):
                    owner[key] = value
                for module, known in zip(self.modules, attributes, strict=True):
                    for name in _restore(known):
                        if name not in _LISTS_OF_PARAMETERS or not isinstance(module, nn.RNNBase):
                            changed = changed or f"{type(module).__name__}.{name}"
                for module_id, owner_thread in before.items():
                    if owner_thread is None:
                        _swapped.pop(module_id, None)
                _turns.notify_all()
        if changed:
            raise side_effect(changed)


def side_effect(place: str) -> RefusedError:
    """The refusal of a function that assigns something."""
    text = f"the call assigns {place}, which a graph would not do again: write into a buffer in place instead"
    return RefusedError(Reason("side-effect", text))


def host_random() -> RefusedError:
    """The refusal of a function that draws random numbers of Python's, numpy's or a generator of the CPU's."""
    text = "it draws random numbers on the host, which a graph would not draw again: draw them on the device"
    return RefusedError(Reason("host-random", text))


def _attributes(module: nn.Module) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    own = module.__dict__
    return [(d, dict(d)) for d in (own, own["_parameters"], own["_buffers"], own["_modules"])]


def _restore(attributes: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    """Undo assignments, and name them."""
    changed: list[str] = []
    for now, then in attributes:
        names = [k for k in {**now, **then} if k not in now or k not in then or now[k] is not then[k]]
        for name in names:
            if name not in then:
                del now[name]
            else:
                now[name] = then[name]
        changed += names
    return changed
