"""What a walk has found by now: numbers that stand for values, places to watch, what is still to be visited."""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import re
import types
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Set
from typing import Any

import numpy as np
import torch
from torch import nn

from paramgraph_kit.backend.asked import Answer
from paramgraph_kit.backend.plain import PLAIN, is_bare, plain_key
from paramgraph_kit.backend.raw import KINDS, length_of
from paramgraph_kit.backend.watched import MISSING, Watched
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import Reason

# Objects that never change, told by what they print.
_FIXED = (range, slice, decimal.Decimal, fractions.Fraction, datetime.date, datetime.time, datetime.timedelta,
          pathlib.PurePath, uuid.UUID, re.Pattern, np.generic, np.dtype)  # fmt: skip


class Notes:
    """What was found, and the way of finding more; ``key`` tells what, ``watched`` where."""

    def __init__(self, ran: Set[types.CodeType] | None, known: frozenset[str], every: bool) -> None:
        self.names, self.every, self._ran = set(known), every, ran
        self.watched: list[Watched] = []
        self.key: list[Any] = []
        self.modules: list[tuple[str, nn.Module]] = []
        self.tensors: list[tuple[str, torch.Tensor]] = []  # of no module
        self.generators: list[tuple[str, Any]] = []  # that draw on the host
        self.on_device: list[torch.Generator] = []
        self.caches: list[tuple[str, Any]] = []  # functions that remember their results
        self.codes: set[types.CodeType] = set()
        self.looks_at_all = False
        self.by_types: list[str] = []  # tables with types of tensors in them
        self.asking: set[str] = set()  # names in code that asks what type something is of
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # ids stay their own while these live
        self._queue: deque[tuple[Any, str]] = deque()
        self._weak: deque[tuple[str, Any]] = deque()  # references, which must keep nothing alive
        self._weakly: set[int] = set()  # what nothing else leads to
        self._decimals = self._abstract = False

    def look(self, value: Any, path: str) -> Any:
        """What stands for a value in the key; what is in it will be visited."""
        if isinstance(value, PLAIN):
            if not is_bare(value) and id(value) not in self._numbers:
                self._number(value, path)
            return plain_key(value)
        if value is MISSING:
            return MISSING
        if isinstance(value, _FIXED):
            self._decimals |= isinstance(value, decimal.Decimal)
            return type(value), repr(value)
        number = self._numbers.get(id(value))
        if number is not None:
            return "again", number
        self._number(value, path)
        if isinstance(value, KINDS):
            return type(value), length_of(value)
        if isinstance(value, torch.Tensor):
            return "tensor"
        return id(value)

    def _number(self, value: Any, path: str) -> None:
        self._numbers[id(value)] = len(self._numbers)
        self._kept.append(value)
        self._queue.append((value, path))

    def _ask(self, path: str, ask: Callable[[], Any]) -> None:
        self.watch(Watched(path, "computed", Answer(ask)))

    def watch(self, watched: Watched, names: Iterable[str] | None = None) -> None:
        """Keep what a holder holds now, and look at it."""
        watched.values = watched.read()
        self.watched.append(watched)
        paths = names or [watched.name] * len(watched.values)
        # Which dictionary an object has is not in the key: what is in it is.
        values = watched.values[:1] if watched.kind == "class" else watched.values
        self.key += [watched.kind, len(values), *map(self.look, values, paths)]

    def _entries(self, holder: Any, keys: Iterable[str], path: str, *, versioned: bool = False) -> None:
        chosen = tuple(sorted(keys))
        paths = [f"{path}.{key}" if path else key for key in chosen]
        self.watch(Watched(path, "entries", holder, chosen, versioned=versioned), paths)

    def _refuse(self, path: str, what: str) -> None:
        if self._ran is not None:
            raise RefusedError(Reason("unknown-state", f"{path} {what}: give what it holds as an argument"))


class Attribute:
    """A plain attribute that C code computes; the same object while it is equal."""

    def __init__(self, owner: Any, name: str) -> None:
        self._owner, self._name, self._last = owner, name, MISSING

    def __call__(self) -> Any:
        """What it is now."""
        now = getattr(self._owner, self._name, MISSING)
        if not isinstance(now, PLAIN):
            return MISSING
        if self._last is MISSING or plain_key(now) != plain_key(self._last):
            self._last = now
        return self._last
