"""An iterator of the user's that can go back, as long as a diagnosis lasts."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from paramgraph_kit.doctor.restore.holder import is_array
from paramgraph_kit.doctor.restore.keeper import HostRandom


class Repeated:
    """An iterator that can go back: it keeps what it has given, as long as that is nothing of the device's."""

    def __init__(self, source: Iterator[Any]) -> None:
        self.source = source
        self.given: list[Any] = []
        self.at = 0
        self.draws = False  # for each that it gives, and not once as a loader that shuffles
        self._through = False  # what it gives is made on the device, in each call anew

    def __iter__(self) -> Repeated:
        return self

    def __next__(self) -> Any:
        if self.at < len(self.given):
            value = self.given[self.at]
        else:
            before = HostRandom()
            value = next(self.source)
            self._through = self._through or not _is_of_host(value)
            if self._through:
                return value
            self.given.append(value)
            self.draws = before.host_moved()
            before.put_back_host()  # others draw in each trial
        self.at += 1
        with _disable_current_modes():  # who writes in what it gives, does so once
            return copy.deepcopy(value)

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
        return itertools.chain(self.given, self.source)


def _is_of_host(value: Any) -> bool:
    """Whether it is made of numbers, text and what lies on the CPU."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_of_host, value))
    if isinstance(value, dict):
        return all(map(_is_of_host, value.values()))
    plain = value is None or type(value) in (int, float, bool, str) or is_array(value)
    return plain or (type(value) is torch.Tensor and value.device.type == "cpu" and not value.requires_grad)
