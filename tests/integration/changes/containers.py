"""Containers, references and what threads share."""

# mypy: ignore-errors
from __future__ import annotations

import collections
import gc
import queue
import threading
import types
import weakref
from typing import Any

from tests.integration.changes.base import Thing, Third, toggle
from tests.integration.state_places import Change, Place, entry, setting


def of_chain_map() -> Place:
    kept = collections.ChainMap({}, {"a": 1.0})
    return lambda: kept["a"], entry(kept.maps[1], "a")


def of_maps_of_a_chain_map() -> Place:
    kept = collections.ChainMap({"a": 1.0})
    return lambda: kept["a"], lambda value: kept.maps.insert(0, {"a": value})


def of_default_factory() -> Place:
    kept = collections.defaultdict(lambda: 1.0)
    return lambda: kept.default_factory(), setting_factory(kept)


def setting_factory(kept: Any) -> Change:
    return lambda value: setattr(kept, "default_factory", lambda: value)


def of_missing_key() -> Place:
    class Table(dict):
        fallback = 1.0

        def __missing__(self, key: str) -> float:
            return self.fallback

    table = Table()
    return lambda: table["a"], setting(table, "fallback")


def of_order_of_a_plain_dictionary() -> Place:
    kept = {"a": 1.0, "b": 2.0}

    def change(value: float) -> None:
        first = next(iter(kept))
        kept[first] = kept.pop(first)

    return lambda: next(iter(kept.values())), change


def of_order_of_a_list() -> Place:
    kept = [1.0, 2.0, 3.0]
    return lambda: kept[0], lambda value: kept.reverse()


def of_key_that_an_own_user_dictionary_lacks() -> Place:
    class Table(collections.UserDict):
        def __missing__(self, key: str) -> float:
            return 1.0

    kept = Table()
    return lambda: kept["a"], entry(kept, "a")


def of_user_dictionary() -> Place:
    kept = collections.UserDict(a=1.0)
    return lambda: kept["a"], entry(kept, "a")


def of_counter() -> Place:
    kept = collections.Counter(a=1)
    return lambda: float(kept["a"]), lambda value: kept.update("a")


def of_attribute_of_a_list() -> Place:
    class Kept(list):
        pass

    kept = Kept([1.0])
    kept.scale = 1.0
    return lambda: kept[0] * kept.scale, setting(kept, "scale")


def of_mapping_proxy() -> Place:
    inner = {"a": 1.0}
    proxy = types.MappingProxyType(inner)
    return lambda: proxy["a"], entry(inner, "a")


def of_dictionary_view() -> Place:
    kept = {"a": 1.0}
    view = kept.values()
    return lambda: sum(view), entry(kept, "a")


def of_weak_values() -> Place:
    thing = Thing()
    kept: Any = weakref.WeakValueDictionary(a=thing)
    return lambda: kept["a"].factor, setting(thing, "factor")


def of_weak_keys() -> Place:
    thing = Thing()
    kept: Any = weakref.WeakKeyDictionary({thing: 1.0})
    return lambda: kept[thing], entry(kept, thing)


def of_weak_proxy() -> Place:
    thing = Thing()
    proxy, kept = weakref.proxy(thing), [thing]
    return lambda: proxy.factor, setting(kept[0], "factor")


def of_weak_set() -> Place:
    things = [Thing(), Thing()]
    kept = weakref.WeakSet(things[:1])
    return lambda: float(len(kept)), lambda value: kept.add(things[1])


def of_dead_weak_reference() -> Place:
    things = [Thing()]
    ref = weakref.ref(things[0])

    def change(value: float) -> None:
        things.clear()
        gc.collect()

    return lambda: 1.0 if ref() is not None else 2.0, change


def of_queue() -> Place:
    kept: queue.Queue[float] = queue.Queue()
    kept.put(1.0)
    return lambda: kept.queue[0] + kept.qsize(), kept.put


def of_event() -> Place:
    event = threading.Event()
    return lambda: 2.0 if event.is_set() else 1.0, lambda value: event.clear() if event.is_set() else event.set()


def of_lock() -> Place:
    lock = threading.Lock()
    return lambda: 2.0 if lock.locked() else 1.0, lambda value: lock.release() if lock.locked() else _void(lock)


def _void(lock: Any) -> None:
    lock.acquire()


def of_thread_local_subclass() -> Place:
    class Local(threading.local):
        scale = 1.0

    kept = Local()
    return lambda: kept.scale, setting(kept, "scale")


def of_class_of_what_is_referred_to_weakly() -> Place:
    thing, turn = Thing(), toggle(Thing, Third)
    ref, kept = weakref.ref(thing), [thing]
    return lambda: ref().method(), lambda value: setattr(kept[0], "__class__", turn())
