"""Places where a function finds values that are no arguments: each is read by one function and changed by another."""

from __future__ import annotations

import array
import collections
import contextvars
import dataclasses
import functools
import operator
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import paramgraph_kit as pgk
from tests.integration import state_libraries
from tests.integration.state_objects import Base, Computed, Config, Derived, Mode, Slotted, identity

DEVICE = pgk.device()
Read = Callable[[], float]
Change = Callable[[float], None]
Place = tuple[Read, Change]

NUMBER = 1.0
LIST = [0.0, 1.0]
DICT: dict[str, Any] = {"a": {"b": [1.0]}}
SPACE = types.SimpleNamespace(x=types.SimpleNamespace(y=1.0))
CONTEXT: contextvars.ContextVar[float] = contextvars.ContextVar("scale", default=1.0)


def _drop(_: object) -> None:
    return None


def setting(owner: Any, name: str) -> Change:
    return lambda value: setattr(owner, name, value)


def entry(owner: Any, key: Any) -> Callable[[Any], None]:
    return lambda value: operator.setitem(owner, key, value)


def of_global() -> Place:
    return lambda: NUMBER, entry(globals(), "NUMBER")


def of_list() -> Place:
    return lambda: LIST[1], entry(LIST, 1)


def of_length() -> Place:
    return lambda: float(len(LIST)), lambda value: LIST.append(value)


def of_nested_dict() -> Place:
    return lambda: DICT["a"]["b"][0], entry(DICT["a"]["b"], 0)


def of_new_dict() -> Place:
    return lambda: DICT["a"]["b"][0], lambda value: DICT.update(a={"b": [value]})


def of_new_key() -> Place:
    return lambda: float(DICT.get("late", 1.0)), entry(DICT, "late")


def of_namespace() -> Place:
    return lambda: SPACE.x.y, setting(SPACE.x, "y")


def of_new_namespace() -> Place:
    return lambda: SPACE.x.y, lambda value: setattr(SPACE, "x", types.SimpleNamespace(y=value))


def of_dynamic_name() -> Place:
    name = "y"
    return lambda: getattr(SPACE.x, name), setting(SPACE.x, "y")


def of_built_name() -> Place:
    return lambda: getattr(SPACE.x, "".join(["", "y"])), setting(SPACE.x, "y")


def of_globals() -> Place:
    return lambda: globals()["NUM" + "BER"], entry(globals(), "NUMBER")


def of_environment() -> Place:
    os.environ["PARAMGRAPH_TEST"] = "1.0"
    return lambda: float(os.environ["PARAMGRAPH_TEST"]), lambda value: entry(os.environ, "PARAMGRAPH_TEST")(str(value))


def of_getenv() -> Place:
    os.environ["PARAMGRAPH_TEST"] = "1.0"
    return lambda: float(os.getenv("PARAMGRAPH_TEST", "0")), lambda v: entry(os.environ, "PARAMGRAPH_TEST")(str(v))


def of_module() -> Place:
    module = types.ModuleType("paramgraph_settings")
    module.scale = 1.0  # type: ignore[attr-defined]
    sys.modules["paramgraph_settings"] = module
    return lambda: module.scale, setting(module, "scale")


def of_import() -> Place:
    module = types.ModuleType("paramgraph_settings")
    module.scale = 1.0  # type: ignore[attr-defined]
    sys.modules["paramgraph_settings"] = module

    def read() -> float:
        import paramgraph_settings  # type: ignore[import-not-found]

        return float(paramgraph_settings.scale)

    return read, setting(module, "scale")


def of_default() -> Place:
    def read(scale: float = 1.0) -> float:
        return scale

    return read, lambda value: setattr(read, "__defaults__", (value,))


def of_keyword_default() -> Place:
    def read(*, scale: float = 1.0) -> float:
        return scale

    return read, lambda value: setattr(read, "__kwdefaults__", {"scale": value})


def of_list_as_default() -> Place:
    kept = [1.0]

    def read(kept: list[float] = kept) -> float:
        return kept[0]

    return read, entry(kept, 0)


def of_closures() -> Place:
    value = 1.0

    def outer() -> float:
        def inner() -> float:
            return value

        return inner()

    def change(new: float) -> None:
        nonlocal value
        value = new

    return outer, change


def of_function_attribute() -> Place:
    def read() -> float:
        return float(read.scale)  # type: ignore[attr-defined]

    change = setting(read, "scale")
    change(1.0)
    return read, change


def of_another_helper() -> Place:
    helpers = {"f": lambda: 1.0}
    return lambda: helpers["f"](), lambda value: helpers.update(f=lambda: value)


def of_code() -> Place:
    def read() -> float:
        return 1.0

    def other() -> float:
        return 3.0

    first = read.__code__
    return read, lambda value: setattr(read, "__code__", other.__code__ if read.__code__ is first else first)


def of_partial() -> Place:
    kept = functools.partial(float, 1.0)
    box = [kept]
    return lambda: box[0](), lambda value: entry(box, 0)(functools.partial(float, value))


def of_partial_keywords() -> Place:
    def scale(value: float = 0.0) -> float:
        return value

    kept = functools.partial(scale, value=1.0)
    return kept, entry(kept.keywords, "value")


def of_decorated() -> Place:
    kept = [1.0]
    return identity(lambda: kept[0]), entry(kept, 0)


def of_cache() -> Place:
    kept = [1.0]

    @functools.lru_cache
    def read() -> float:
        return kept[0]

    def change(value: float) -> None:
        kept[0] = value
        read.cache_clear()

    return read, change


def of_method() -> Place:
    thing = Base()
    return thing.method, setting(thing, "factor")


def of_property() -> Place:
    thing = Base()
    return lambda: thing.half, setting(thing, "factor")


def of_call() -> Place:
    thing = Base()
    return lambda: thing(), setting(thing, "factor")


def of_item() -> Place:
    thing = Base()
    return lambda: thing[2], setting(thing, "factor")


def of_conversion() -> Place:
    thing = Base()
    return lambda: float(thing), setting(thing, "factor")


def of_class() -> Place:
    return lambda: Derived().method(), setting(Base, "factor")


def of_derived_class() -> Place:
    thing = Derived()
    return lambda: thing.method(), setting(Derived, "factor")


def of_class_method() -> Place:
    return lambda: Derived.of_class(), setting(Base, "factor")


def of_static_method() -> Place:
    return lambda: Derived.of_nobody(), setting(Base, "factor")


def of_replaced_method() -> Place:
    thing = Derived()
    return lambda: thing.method(), lambda value: setattr(Derived, "method", lambda self: value)


def of_slots() -> Place:
    thing = Slotted()
    return lambda: thing.value, setting(thing, "value")


def of_getattr() -> Place:
    thing = Computed()
    return lambda: thing.scale, entry(thing.hidden, "scale")


def of_dataclass() -> Place:
    config = Config(inner=Config())
    return lambda: config.inner.scale, setting(config.inner, "scale")


def of_dataclass_fields() -> Place:
    config = Config()
    return lambda: sum(v for v in dataclasses.asdict(config).values() if v is not None), setting(config, "scale")


def of_class_variable() -> Place:
    config = Config()
    return lambda: config.shared, setting(Config, "shared")


def of_enum() -> Place:
    kept = [Mode.ONE]
    return lambda: kept[0].value, lambda value: entry(kept, 0)(Mode.TWO if kept[0] is Mode.ONE else Mode.ONE)


def of_set() -> Place:
    kept = {1.0}
    return lambda: sum(kept), kept.add


def of_deque() -> Place:
    kept = collections.deque([1.0], maxlen=1)
    return lambda: kept[0], kept.append


def of_default_dict() -> Place:
    kept: Any = collections.defaultdict(lambda: 1.0, a=1.0)
    return lambda: kept["a"], entry(kept, "a")


def of_ordered_dict() -> Place:
    kept = collections.OrderedDict(a=1.0, b=3.0)
    return lambda: next(iter(kept.values())), lambda value: kept.move_to_end(next(iter(kept)))


def of_array() -> Place:
    kept = np.ones(3)
    return lambda: float(kept[1]), entry(kept, 1)


def of_context() -> Place:
    return lambda: CONTEXT.get(), lambda value: _drop(CONTEXT.set(value))


def of_thread() -> Place:
    kept = threading.local()
    kept.scale = 1.0
    return lambda: kept.scale, setting(kept, "scale")


def of_weak_reference() -> Place:
    thing = Base()
    ref, kept = weakref.ref(thing), [thing]
    return lambda: (kept[0] is ref() and ref().factor) or 0.0, setting(thing, "factor")  # type: ignore[union-attr]


def of_tuple() -> Place:
    kept = ([1.0], 2)
    return lambda: kept[0][0], entry(kept[0], 0)


def of_module_attribute() -> Place:
    module = nn.Linear(1, 1).to(DEVICE)
    module.scale = 1.0  # type: ignore[assignment]
    return lambda: module.scale, setting(module, "scale")  # type: ignore[return-value]


def of_module_settings() -> Place:
    module = nn.Linear(1, 1).to(DEVICE)
    settings: Any = module
    settings.settings = {"scale": 1.0}
    return lambda: settings.settings["scale"], entry(settings.settings, "scale")


def of_new_module_attribute() -> Place:
    module = nn.Linear(1, 1).to(DEVICE)
    return lambda: getattr(module, "late", 1.0), setting(module, "late")


def of_shape() -> Place:
    kept = [torch.ones(1)]
    return lambda: float(kept[0].shape[0]), lambda value: entry(kept, 0)(torch.ones(int(value)))


def of_shape_in_place() -> Place:
    kept = torch.ones(1)
    return lambda: float(kept.shape[0]), lambda value: _drop(kept.resize_(int(value)))


def of_host_values() -> Place:
    kept = torch.ones(1)
    return lambda: float(kept.numpy()[0]), lambda value: _drop(kept.fill_(value))


def of_type() -> Place:
    kept: list[Any] = [Base()]
    return lambda: 1.0 if type(kept[0]) is Base else 2.0, lambda value: setattr(
        kept[0], "__class__", Derived if type(kept[0]) is Base else Base
    )


def of_precision() -> Place:
    box = [1]
    return lambda: (lambda n: n / 3 if isinstance(n, float) else float(n))(box[0]), lambda value: entry(box, 0)(
        float(box[0]) if isinstance(box[0], int) else int(box[0])
    )


def of_recursion() -> Place:
    tree: dict[str, Any] = {"value": 0.0, "next": {"value": 1.0, "next": None}}

    def total(node: dict[str, Any] | None) -> float:
        return 0.0 if node is None else node["value"] + total(node["next"])

    return lambda: total(tree), entry(tree["next"], "value")


def of_map() -> Place:
    kept = [1.0]
    return lambda: sum(map(lambda x: x * kept[0], [1.0, 2.0])), entry(kept, 0)  # noqa: C417


def of_item_getter() -> Place:
    get, kept = operator.itemgetter("a"), {"a": 1.0}
    return lambda: get(kept), entry(kept, "a")


def of_attribute_getter() -> Place:
    get, thing = operator.attrgetter("factor"), Base()
    return lambda: get(thing), setting(thing, "factor")


def of_variables() -> Place:
    thing = types.SimpleNamespace(scale=1.0)
    return lambda: vars(thing)["sc" + "ale"], setting(thing, "scale")


def of_evaluation() -> Place:
    return lambda: eval("NUM" + "BER"), entry(globals(), "NUMBER")


def of_frozen() -> Place:
    kept = [frozenset({1.0})]
    return lambda: sum(kept[0]), lambda value: entry(kept, 0)(frozenset({value}))


def of_registry() -> Place:
    registry: dict[str, Callable[[], float]] = {}

    def register(fn: Callable[[], float]) -> Callable[[], float]:
        registry[fn.__name__] = fn
        return fn

    kept = [1.0]

    @register
    def scale() -> float:
        return kept[0]

    return lambda: registry["scale"](), entry(kept, 0)


def of_default_dtype_of_user() -> Place:
    kept = {"dtype": torch.float32}
    return lambda: 1.0 if kept["dtype"] is torch.float32 else 2.0, lambda value: kept.update(
        dtype=torch.float64 if kept["dtype"] is torch.float32 else torch.float32
    )


def of_python_array() -> Place:
    kept = array.array("d", [1.0])
    return lambda: kept[0], entry(kept, 0)


def of_bytes() -> Place:
    kept = bytearray([1])
    return lambda: float(kept[0]), lambda value: entry(kept, 0)(int(value))


def of_order() -> Place:
    kept = collections.OrderedDict(a=1.0, b=2.0, c=3.0)
    return lambda: next(iter(kept.values())), lambda value: kept.move_to_end("abc"[int(value) - 1], last=False)


def of_reloaded_code() -> Place:
    def scale(value: float = 1.0, *, more: float = 0.0) -> float:
        return value + more

    def reload(value: float) -> None:
        scale.__code__, scale.__kwdefaults__ = (lambda value=0.0, *, more=0.0: value * more).__code__, {"more": value}

    return lambda: scale(), reload


_ALL = [*globals().items(), *vars(state_libraries).items()]
PLACES = {name.removeprefix("of_"): value for name, value in _ALL if name.startswith("of_")}
