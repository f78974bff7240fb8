"""Objects that hold a number which a function reads: by attribute, method, property, item, class or conversion."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable
from typing import Any, ClassVar


class Mode(enum.Enum):
    ONE = 1.0
    TWO = 2.0


@dataclasses.dataclass
class Config:
    scale: float = 1.0
    inner: Any = None
    shared: ClassVar[float] = 1.0


class Base:
    factor = 1.0

    def method(self) -> float:
        return self.factor

    @property
    def half(self) -> float:
        return self.factor / 2

    @classmethod
    def of_class(cls) -> float:
        return cls.factor

    @staticmethod
    def of_nobody() -> float:
        return Base.factor

    def __call__(self) -> float:
        return self.factor

    def __getitem__(self, key: int) -> float:
        return self.factor * key

    def __float__(self) -> float:
        return float(self.factor)


class Derived(Base):
    pass


class Slotted:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 1.0


class Computed:
    def __init__(self) -> None:
        self.hidden = {"scale": 1.0}

    def __getattr__(self, name: str) -> float:
        return float(self.__dict__["hidden"][name])


def identity(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any) -> Any:
        return fn(*args)

    return wrapper
