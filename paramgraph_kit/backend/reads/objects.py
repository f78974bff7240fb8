"""Where values are found in a walk: containers, arrays, queues, objects and their attributes."""

from __future__ import annotations

import functools
import io
import queue
import types
import weakref
from collections import OrderedDict, defaultdict
from typing import Any

import numpy as np
import torch

from paramgraph_kit.backend.asked import LARGE, Answer, Contents, nbytes, questions
from paramgraph_kit.backend.code_names import inherits, is_foreign_module
from paramgraph_kit.backend.plain import PLAIN
from paramgraph_kit.backend.raw import KINDS, items_of, length_of
from paramgraph_kit.backend.reads.notes import Attribute, Notes
from paramgraph_kit.backend.watched import Watched
from paramgraph_kit.driver.host_random import is_of_host
from paramgraph_kit.driver.native.objects import dictionary_of
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason

_TAKEN = ("put", "get", "put_nowait", "get_nowait")
ALONE = "is a weak reference to what nothing else leads to, which a trace would keep alive"


class OfObjects(Notes):
    """A walk's visits to what code reads values of."""

    def _container(self, value: Any, path: str) -> None:
        parts = (
            [key for key, _ in items_of(value)] if isinstance(value, dict) else [part for _, part in items_of(value)]
        )
        if any(isinstance(part, type) and issubclass(part, torch.Tensor) for part in parts):
            self.by_types.append(path)
        if isinstance(value, tuple | frozenset):
            self.key += [self.look(part, f"{path}[{n}]") for n, part in items_of(value)]
        elif isinstance(value, dict):
            keys = [f"{path}[{key!r}]" if isinstance(key, str | int) else f"{path}[...]" for key, _ in items_of(value)]
            # An ordered one can be put in another order, of which its version does not tell.
            versioned = type(value) is dict or (type(value) in (OrderedDict, defaultdict) and not value)
            self.watch(Watched(path, "dict", value, versioned=versioned), [path] * len(keys) + keys)
        else:
            self.watch(Watched(path, "items", value), [f"{path}[{n}]" for n in range(length_of(value))])
        if isinstance(value, defaultdict):
            self._ask(f"{path}.default_factory", lambda: value.default_factory)
        if type(value) not in KINDS and not is_foreign_module(type(value).__module__):
            self._attributes(value, path)

    def _object(self, value: Any, path: str) -> None:
        kind = type(value)
        if isinstance(value, np.ndarray):
            if value.nbytes > LARGE or value.dtype.hasobject:
                self._refuse(path, f"is an array of {value.nbytes:,} bytes, too many to compare in each call")
                return
            self.watch(Watched(path, "contents", Contents(value)))
        elif nbytes(value) > LARGE:
            self._refuse(path, "is an array of many bytes, too many to compare in each call")
        elif is_of_host(value):
            self.generators.append((path, value))
        elif isinstance(value, queue.SimpleQueue) and not self.names.isdisjoint(_TAKEN):
            text = f"{path} is a {kind.__name__}, which tracing would fill or empty: give what it holds as an argument"
            raise RefusedError(Reason("unknown-state", text))
        elif self._questions(value, path):
            self._attributes(value, path)
        elif isinstance(value, functools._lru_cache_wrapper):
            self._ask(path, lambda: value.cache_info().currsize)
            self.caches.append((path, value))
            self.key.append(self.look(value.__wrapped__, path))
        elif hasattr(kind, "__next__") and not isinstance(value, io.IOBase):
            # Known or not what runs: tracing would take from it what the call is to have.
            text = f"{path} is a {kind.__name__}, which would advance while tracing only"
            raise RefusedError(Reason("unknown-state", f"{text}: give what it holds as an argument"))
        else:
            self._attributes(value, path)

    def _questions(self, value: Any, path: str) -> bool:
        asked = questions(value)
        for ask in asked:
            self.watch(Watched(path, "contents", Answer(ask, value)))
        return bool(asked)

    def _attributes(self, value: Any, path: str) -> None:
        kind = type(value)
        if (attributes := dictionary_of(value)) is not None:
            foreign = inherits(kind)
            chosen = [
                key
                for key, part in attributes.items()
                if self.every
                or key in self.names
                or key == "_value_"  # of a member of an enumeration
                or (foreign and isinstance(part, (*PLAIN, *KINDS)))
            ]
            self._entries(attributes, chosen, path)
            self.watch(Watched(path, "computed", functools.partial(len, attributes)))
        slots: list[str] = []
        for each in kind.__mro__:
            theirs = "__slots__" in vars(each) and inherits(kind)
            for key, part in vars(each).items():
                read = key in self.names or self.every or (theirs and isinstance(getattr(value, key, None), PLAIN))
                if key.startswith("__") or not read:
                    continue
                if isinstance(part, types.MemberDescriptorType):
                    slots.append(key)
                elif isinstance(part, types.GetSetDescriptorType):
                    self.watch(Watched(f"{path}.{key}", "computed", Attribute(value, key)))
        if id(value) in self._weakly:
            reference = weakref.ref(value)
            self.watch(Watched(path, "computed", lambda: type(reference())))
        else:
            self.watch(Watched(path, "class", value))
        if slots and id(value) in self._weakly:
            self._refuse(path, ALONE)
        elif slots:
            self.watch(Watched(path, "attributes", value, tuple(slots)), [f"{path}.{key}" for key in slots])
