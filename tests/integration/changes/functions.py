"""Functions: what they are made of, and what stands between them and their callers."""

# mypy: ignore-errors
from __future__ import annotations

import builtins
import functools
import operator
import types
from typing import Any

import torch.nn.functional as F
from torch import nn

from tests.integration.changes.base import DEVICE, Thing, ones, toggle
from tests.integration.state_places import Place, entry, setting


def of_code_of_a_method() -> Place:
    class Holder:
        def read(self) -> float:
            return 1.0

        def other(self) -> float:
            return 3.0

    holder, codes = Holder(), toggle(Holder.read.__code__, Holder.other.__code__)
    return lambda: holder.read(), lambda value: setattr(Holder.read, "__code__", codes())


def of_keyword_default_in_place() -> Place:
    def read(*, scale: float = 1.0) -> float:
        return scale

    return read, entry(read.__kwdefaults__, "scale")


def of_partial_state() -> Place:
    kept = functools.partial(operator.mul, 1.0)
    return lambda: kept(1.0), lambda value: kept.__setstate__((operator.mul, (value,), {}, {}))


def of_partial_attribute() -> Place:
    kept = functools.partial(float, 1.0)
    kept.scale = 1.0
    return lambda: kept.scale, setting(kept, "scale")


def of_partial_keyword_of_a_step_s_helper() -> Place:
    def scale(value: float = 0.0) -> float:
        return value

    kept = functools.partial(scale, value=1.0)
    return lambda: kept(), lambda value: kept.keywords.update(value=value)


def of_partial_method() -> Place:
    class Holder:
        def scaled(self, by: float) -> float:
            return by

        read = functools.partialmethod(scaled, 1.0)

    holder = Holder()
    return lambda: holder.read(), lambda value: setattr(Holder, "read", functools.partialmethod(Holder.scaled, value))


def of_single_dispatch() -> Place:
    @functools.singledispatch
    def read(what: Any) -> float:
        return 1.0

    return lambda: read(3), lambda value: read.register(int, lambda what: value) and None


def of_bound_builtin() -> Place:
    kept = {"a": 1.0}
    get = kept.get
    return lambda: get("a"), entry(kept, "a")


def of_wrapped() -> Place:
    def wrap(fn):
        @functools.wraps(fn)
        def inner():
            return inner.__wrapped__()

        return inner

    read = wrap(lambda: 1.0)
    return read, lambda value: setattr(read, "__wrapped__", lambda: value)


def of_attribute_getter_of_a_path() -> Place:
    get, holder = operator.attrgetter("inner.depth"), types.SimpleNamespace(inner=types.SimpleNamespace(depth=1.0))
    return lambda: get(holder), setting(holder.inner, "depth")


def of_several_items() -> Place:
    get, kept = operator.itemgetter("a", "b"), {"a": 1.0, "b": 1.0}
    return lambda: sum(get(kept)), entry(kept, "b")


def of_method_caller() -> Place:
    call, thing = operator.methodcaller("method"), Thing()
    return lambda: call(thing), setting(thing, "factor")


def of_mapped_getter() -> Place:
    things = [types.SimpleNamespace(weight=1.0) for _ in range(2)]
    get = operator.attrgetter("weight")
    return lambda: sum(map(get, things)), setting(things[1], "weight")


def of_builtin_that_is_shadowed() -> Place:
    space: dict[str, Any] = {"__name__": __name__, "__builtins__": builtins}
    exec(compile("def read():\n    return float(abs(-1.0))", __file__, "exec"), space)
    return space["read"], lambda value: space.update(abs=lambda _: value)


def of_builtin_that_is_replaced() -> Place:
    builtins.paramgraph_test = lambda: 1.0
    return lambda: paramgraph_test(), lambda value: setattr(  # type: ignore[name-defined]  # noqa: F821
        builtins, "paramgraph_test", lambda: value
    )


def of_forward_of_a_class_of_torch_s() -> Place:
    layer = nn.Softsign()
    return lambda: layer(ones()), lambda value: setattr(nn.Softsign, "forward", lambda self, x: x * value)


def of_function_that_a_layer_of_torch_s_calls() -> Place:
    layer = nn.Softsign()
    return lambda: layer(ones()), lambda value: setattr(F, "softsign", lambda x: x * value)


def of_activation_of_an_own_layer() -> Place:
    class Own(nn.TransformerEncoderLayer):
        pass

    layer = Own(1, 1, 1, 0.0).to(DEVICE).requires_grad_(False)
    return lambda: layer._ff_block(ones(1, 1))[0], lambda value: setattr(layer, "activation", lambda x: x * value)
