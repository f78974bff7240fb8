"""Objects, their classes and dictionaries."""

# mypy: ignore-errors
from __future__ import annotations

import contextlib
import dataclasses
import enum
import weakref
from typing import Any, NamedTuple

from tests.integration.changes.base import Other, Thing, Third, linear, toggle
from tests.integration.state_places import Place, entry, setting


def of_class_of_an_object() -> Place:
    thing, kinds = Thing(), toggle(Thing, Other, Third)
    return thing.method, lambda value: setattr(thing, "__class__", kinds())


def of_class_of_an_object_that_is_asked_for_attributes() -> Place:
    thing, kinds = Thing(), toggle(Thing, Other)
    return lambda: thing.factor, lambda value: setattr(thing, "__class__", kinds())


def of_new_dictionary() -> Place:
    thing = Thing()
    thing.factor = 1.0
    return lambda: thing.factor, lambda value: setattr(thing, "__dict__", {"factor": value})


def of_updated_dictionary() -> Place:
    thing = Thing()
    return lambda: thing.factor, lambda value: thing.__dict__.update(factor=value)


def of_cleared_dictionary() -> Place:
    thing = Thing()
    thing.factor = 4.0

    def change(value: float) -> None:
        if "factor" in vars(thing):
            vars(thing).clear()
        else:
            thing.factor = value

    return lambda: thing.factor, change


def of_new_dictionary_of_a_module() -> Place:
    module = linear()
    module.scale = 1.0

    def change(value: float) -> None:
        module.__dict__ = {**vars(module), "scale": value}

    return lambda: module.scale, change


def of_shadowed_attribute() -> Place:
    thing = Thing()

    def change(value: float) -> None:
        if "factor" in vars(thing):
            del thing.factor
        else:
            thing.factor = value

    return lambda: thing.factor, change


def of_shadowed_class_attribute() -> Place:
    class Child(Thing):
        pass

    def change(value: float) -> None:
        if "factor" in vars(Child):
            del Child.factor
        else:
            Child.factor = value

    thing = Child()
    return lambda: thing.factor, change


def of_bases() -> Place:
    class Child(Thing):
        pass

    thing, bases = Child(), toggle((Thing,), (Other,))
    return lambda: thing.factor, lambda value: setattr(Child, "__bases__", bases())


def of_frozen_dataclass() -> Place:
    @dataclasses.dataclass(frozen=True)
    class Frozen:
        scale: float = 1.0

    kept = Frozen()
    return lambda: kept.scale, lambda value: object.__setattr__(kept, "scale", value)


def of_slots_dataclass() -> Place:
    @dataclasses.dataclass(slots=True)
    class Config:
        scale: float = 1.0

    kept = Config()
    return lambda: kept.scale, setting(kept, "scale")


def of_slots_below_a_dictionary() -> Place:
    class Half:
        __slots__ = ("_value",)

        def __init__(self) -> None:
            self._value = 1.0

    class Whole(Half):
        pass

    kept = Whole()
    return lambda: kept._value, setting(kept, "_value")


def of_private_name() -> Place:
    class Holder:
        __slots__ = ("__value",)

        def __init__(self) -> None:
            self.__value = 1.0

        def read(self) -> float:
            return self.__value

        def write(self, value: float) -> None:
            self.__value = value

    holder = Holder()
    return holder.read, holder.write


def of_property_setter() -> Place:
    class Holder:
        def __init__(self) -> None:
            self._x = 1.0

        @property
        def x(self) -> float:
            return self._x

        @x.setter
        def x(self, value: float) -> None:
            self._x = value

    holder = Holder()
    return lambda: holder.x, setting(holder, "x")


def of_descriptor() -> Place:
    class Field:
        def __init__(self) -> None:
            self.value = 1.0

        def __get__(self, owner: Any, kind: Any) -> float:
            return self.value

    class Holder:
        x = Field()

    holder = Holder()
    return lambda: holder.x, setting(vars(Holder)["x"], "value")


def of_replaced_descriptor() -> Place:
    class Field:
        def __init__(self, value: float) -> None:
            self.value = value

        def __get__(self, owner: Any, kind: Any) -> float:
            return self.value

    class Holder:
        x: Any = Field(1.0)

    holder = Holder()
    return lambda: holder.x, lambda value: setattr(Holder, "x", Field(value))


def of_descriptor_by_owner() -> Place:
    class Field:
        def __init__(self) -> None:
            self.values: Any = weakref.WeakKeyDictionary()

        def __get__(self, owner: Any, kind: Any) -> float:
            return self.values.get(owner, 1.0)

        def __set__(self, owner: Any, value: float) -> None:
            self.values[owner] = value

    class Holder:
        x = Field()

    holder = Holder()
    return lambda: holder.x, setting(holder, "x")


def of_metaclass() -> Place:
    class Meta(type):
        scale = 1.0

    class Holder(metaclass=Meta):
        pass

    return lambda: Holder.scale, setting(Meta, "scale")


def of_metaclass_property() -> Place:
    class Meta(type):
        kept = 1.0

        @property
        def scale(cls) -> float:
            return cls.kept

    class Holder(metaclass=Meta):
        pass

    return lambda: Holder.scale, setting(Holder, "kept")


def of_getattribute() -> Place:
    kept = {"x": 1.0}

    class Holder:
        def __getattribute__(self, name: str) -> Any:
            return kept["x"] if name == "x" else object.__getattribute__(self, name)

    holder = Holder()
    return lambda: holder.x, entry(kept, "x")


def of_delegate() -> Place:
    class Proxy:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    thing = Thing()
    proxy = Proxy(thing)
    return lambda: proxy.factor, setting(thing, "factor")


def of_replaced_getattr() -> Place:
    class Holder:
        def __getattr__(self, name: str) -> float:
            return 1.0

    holder = Holder()
    return lambda: holder.anything, lambda value: setattr(Holder, "__getattr__", lambda self, name: value)


def of_truth() -> Place:
    kept = [Thing()]
    return lambda: 2.0 if kept[0] else 1.0, lambda value: setattr(kept[0], "factor", value - 1)


def of_length_of_an_object() -> Place:
    thing = Thing()
    return lambda: float(len(thing)), setting(thing, "factor")


def of_comparison() -> Place:
    class Level:
        def __init__(self) -> None:
            self.level = 1.0

        def __gt__(self, other: Any) -> bool:
            return self.level > other

    level = Level()
    return lambda: 2.0 if level > 1.5 else 1.0, setting(level, "level")


def of_context_manager() -> Place:
    kept = [1.0]

    @contextlib.contextmanager
    def scaled():
        yield kept[0]

    def read() -> float:
        with scaled() as value:
            return value

    return read, entry(kept, 0)


def of_enum_attribute() -> Place:
    class Mode(enum.Enum):
        ONE = "one"

    Mode.ONE.scale = 1.0
    return lambda: Mode.ONE.scale, setting(Mode.ONE, "scale")


def of_enum_attribute_by_variable() -> Place:
    class Mode(enum.Enum):
        ONE = "one"

    Mode.ONE.scale = 1.0
    kept = Mode.ONE
    return lambda: kept.scale, setting(kept, "scale")


def of_number_with_an_attribute() -> Place:
    class Rate(float):
        pass

    rate = Rate(1.0)
    rate.scale = 1.0
    return lambda: rate * rate.scale, setting(rate, "scale")


def of_text_with_an_attribute() -> Place:
    class Name(str):
        pass

    name = Name("a")
    name.scale = 1.0
    return lambda: name.scale, setting(name, "scale")


def of_number_that_computes() -> Place:
    kept = [1.0]

    class Rate(float):
        def __float__(self) -> float:
            return kept[0]

    rate = Rate(7.0)
    return lambda: float(rate), entry(kept, 0)


def of_named_tuple() -> Place:
    class Pair(NamedTuple):
        a: Any
        b: float

    class More(Pair):
        pass

    pair = More([1.0], 2.0)
    pair.late = 1.0
    return lambda: pair.a[0] * pair.late, setting(pair, "late")


def of_exception() -> Place:
    error = ValueError(1.0)
    return lambda: error.args[0], lambda value: setattr(error, "args", (value,))
