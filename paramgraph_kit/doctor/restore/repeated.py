"""An iterator of the user's that can go back, as long as a diagnosis lasts."""

from __future__ import annotations

import copy
import gc
import itertools
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from paramgraph_kit.doctor.restore.holder import is_array
from paramgraph_kit.doctor.restore.keeper import HostRandom

_OF_OBJECTS: tuple[type, ...] = tuple(
    map(type, (iter([]), iter(()), iter({}.values()), iter({}.items()), reversed([])))
)
_INDEXED = _OF_OBJECTS[:2]
_DEEP, _MOST = 4, 32  # functions above a line that asks, and lines that are noted
_PASS_ON = (zip, enumerate, itertools.cycle, itertools.chain, itertools.islice)


class Repeated:
    """An iterator that can go back: it keeps what it has given, unless that is made on the device for each call."""

    def __init__(self, source: Iterator[Any]) -> None:
        self.source = source
        self.given: list[Any] = []
        self.asked: dict[tuple[str, int], CodeType] = {}  # the lines that asked it, and those that called these
        self.at = 0
        self.draws = False  # for each that it gives, and not once as a loader that shuffles
        self._begun = source.__reduce__()[2:] if type(source) in _INDEXED else ()
        self._made = not _gives_what_is(source)
        self._through = False  # what it gives is made on the device, in each call anew

    def __iter__(self) -> Repeated:
        return self

    def __next__(self) -> Any:
        self._note()
        if self.at < len(self.given):
            value = self.given[self.at]
        else:
            if self._begun and not self.source.__length_hint__():  # type: ignore[attr-defined]
                raise StopIteration  # at its end it would let its list go
            before = HostRandom()
            value = next(self.source)
            self._through = self._through or (self._made and not _is_of_host(value))
            if self._through:
                return value
            self.given.append(value)
            self.draws = before.host_moved()
            before.put_back_host()  # others draw in each trial
        self.at += 1
        if not _is_of_host(value):
            return value
        with _disable_current_modes():  # who writes in what it gives, does so once
            return copy.deepcopy(value)

    def _note(self) -> None:
        frame: FrameType | None = sys._getframe(2)
        for _ in range(_DEEP if len(self.asked) < _MOST else 0):
            if frame is None:
                return
            self.asked.setdefault((frame.f_code.co_filename, frame.f_lineno), frame.f_code)
            frame = frame.f_back

    def __getattr__(self, name: str) -> Any:
        if name == "source":  # there is none yet, as in a copy that is being made
            raise AttributeError(name)
        if name in ("send", "throw", "close"):  # what it is told decides what it gives: it goes on
            self.given.clear()
            self.at, self._through = 0, True
        return getattr(self.source, name)

    def rest(self) -> Iterator[Any]:
        """What gives all that is left as if nothing had been asked for; what is drawn anew each time needs none."""
        if not self.given or self.draws:
            return self.source
        if self._begun:  # it goes back itself, unless it has come to its end
            self.source.__setstate__(*self._begun)  # type: ignore[attr-defined]
            if self.source.__length_hint__() >= len(self.given):  # type: ignore[attr-defined]
                return self.source
        return itertools.chain(self.given, self.source)


def _gives_what_is(source: Iterator[Any]) -> bool:
    """Whether an iterator gives what is there already, and makes nothing: that of a list, or of several in turn."""
    if type(source) in _PASS_ON:
        return all(_gives_what_is(each) for each in gc.get_referents(source) if hasattr(type(each), "__next__"))
    return type(source) in _OF_OBJECTS


def _is_of_host(value: Any) -> bool:
    """Whether it is made of numbers, text and what lies on the CPU."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_of_host, value))
    if isinstance(value, dict):
        return all(map(_is_of_host, value.values()))
    plain = value is None or type(value) in (int, float, bool, str) or is_array(value)
    return plain or (type(value) is torch.Tensor and value.device.type == "cpu" and not value.requires_grad)
