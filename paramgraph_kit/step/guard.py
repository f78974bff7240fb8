"""Whether all that a captured step depends on is as it was: asked at each call, so in C++ where there is a way."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from paramgraph_kit.backend.call_state import tensor_guard
from paramgraph_kit.backend.plain import is_bare, same
from paramgraph_kit.driver.dict_versions import Versions
from paramgraph_kit.driver.native.build import checks
from paramgraph_kit.driver.native.objects import Kinds
from paramgraph_kit.driver.native.places import ABSENT, Place, Places
from paramgraph_kit.driver.native.tensors import Gradients, Looks
from paramgraph_kit.driver.tensors import has_memory
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.step.functions import Functions
from paramgraph_kit.step.holders import EMPTY, Holder
from paramgraph_kit.step.observe import Observation, Snapshot, value_of

_DICTS = ("attributes", "dict")
_QUICK = ("global", "cell", "set", "sequence", "class", "function", "dict", "asked")


@dataclass(frozen=True, slots=True)
class Difference:
    """A place that holds something else than when a graph was captured."""

    place: str
    key: Any = None  # the last name on the way there
    is_number: bool = False  # both are
    held: Any = field(default=None, compare=False)  # the number then


class Guard:
    """What a captured step found in its places when it was entered, and where the tensors lay that it addresses."""

    def __init__(self, call: Observation, cells: set[tuple[int, Any]], used: Sequence[torch.Tensor]) -> None:
        seen, names = call.before, call.names
        self._dicts: list[tuple[Holder, dict[Any, Any]]] = []
        self._others: list[tuple[Holder, dict[Any, Any]]] = []
        self._passed: dict[int, set[Any]] = {}
        own = seen.reach.own
        for holder, contents in zip(seen.reach.holders[:own], seen.contents[:own], strict=True):
            if (holder.kind, id(holder.target), holder.key) not in call.within:
                continue
            expected = {
                key: value
                for key, value in contents.items()
                if names.counts(holder, key) and (id(holder.target), key) not in cells
            }
            if holder.owner is not None:  # of what no code reads it is known what it is: a plain value
                self._passed[id(holder.target)] = {
                    key for key in contents.keys() & names.known if not names.counts(holder, key)
                }
            if holder.kind == "gradient" and not expected:
                continue
            # An ordered one can be put in another order, of which its version does not tell.
            versioned = holder.kind in _DICTS and not isinstance(holder.target, OrderedDict)
            row = self._dicts if versioned else self._others
            row.append((holder, expected))
        self._cells, self._names = cells, names
        rows = [(h.target, e[""]) for h, e in self._others if h.kind == "gradient"]
        self._gradients, self._gradients_then = Gradients([t for t, _ in rows]), [g for _, g in rows]
        self._others = [(h, e) for h, e in self._others if h.kind != "gradient"]
        written = {target for target, _ in cells}
        slow = [h.kind not in _QUICK or (id(h.target) in written and bool(e)) for h, e in self._others]
        self._volatile = [row for row, is_slow in zip(self._others, slow, strict=True) if is_slow]
        self._others = [row for row, is_slow in zip(self._others, slow, strict=True) if not is_slow]
        self._asked = [(h.ask, e[""]) for h, e in self._others if h.ask is not None]
        self._quick = Places([place for row in self._others for place in _places_of(*row)])
        self._versions = Versions([holder.target for holder, _ in self._dicts])
        self._functions = Functions(names)
        self._numbers = self._count()
        self._before, self._rewritten = _NOBODY_S, _NOBODY_S  # which dicts were, at the last call and at this one
        # Every hook that is registered anywhere gets the next number.
        self._registered = RemovableHandle.next_id
        self._hooked = [(h.target, _hooks_of(h.target)) for h in seen.reach.holders if h.kind == "gradient"]
        self._unhooked = seen.reach.unhooked
        self._host = [(what, seen.host[id(what)], name) for name, what in _host_of(seen) if id(what) in call.near]
        near = [x for x in seen.reach.objects[: seen.reach.own_objects] if id(x) in call.near]
        self._kinds = Kinds(near)
        addressed = {
            *map(id, used),
            *(id(x) for held in call.changes for x in pytree.tree_leaves((held.before, held.after))),
        }
        self._beside = [
            t
            for key, (_, t) in seen.reach.tensors.items()
            if key in call.near & seen.reach.own_tensors
            and key not in addressed
            and has_memory(t)
            and t.device.type != "cpu"
        ]
        # Gradients die at every step and leave their ids to others; a weak reference to one would forbid swap_tensors.
        graded = {h.place(""): h.target for h in seen.reach.holders if h.kind == "gradient"}
        ids = call.near & seen.reach.own_tensors
        self._own = {key: graded.get(name) for key, (name, _) in seen.reach.tensors.items() if key in ids}
        self._beside_alike = tensor_guard(self._beside)
        self.tensors = list(used)
        self._looks = Looks(self.tensors)  # holds them, so that no address is anybody else's
        self._checks: tuple[Any, ...] | None = None  # nearly all at once, in C++

    def holds(self) -> bool:
        """Whether a launch would do what the call would do."""
        self._before, self._rewritten = self._rewritten, _NOBODY_S
        if self._checks is not None and (native := checks()) is not None and self._at_once(native, self._checks):
            return True
        if not (self._places() and self.lies()):
            return False
        found = self._versions.check, self._quick.check, self._kinds.check, self._looks.check, *self._functions.checks
        self._checks = None if None in found else found
        return True

    def _at_once(self, native: Any, at_once: tuple[Any, ...]) -> bool:
        """What ``holds`` asks, where nothing at all has changed; False says nothing."""
        return (
            native.unchanged(at_once)
            and self._answers()
            and (self._quick.rest is None or self._quick.rest())
            and not (self._gradients_then and not self._gradients.are(self._gradients_then))
            and not (self._volatile and not all(self._is(holder, expected) for holder, expected in self._volatile))
            and not (self._beside and not self._beside_alike(*self._beside))
            and self._hooks()
            and not (self._host and not all(value_of(what) == then for what, then, _ in self._host))
        )

    def _answers(self) -> bool:
        for ask, answer in self._asked:  # noqa: SIM110  a generator takes longer, and nearly always there are none
            if not same(ask(), answer):
                return False
        return True

    def lies(self) -> bool:
        """Whether the tensors lie where they lay and look as they did."""
        return self._looks.same()

    def stays(self) -> bool:
        """Whether the tensors lie where they lay, however they look: frozen ones may need gradients again."""
        return self._looks.lie()

    def among(self, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """Which of some tensors the step may know by other names, 0 for each that it does not."""
        if self._own.keys().isdisjoint(map(id, tensors)):
            return ()
        known = [id(x) if self._is_own(x) else 0 for x in tensors]
        return tuple(known) if any(known) else ()

    def _is_own(self, tensor: torch.Tensor) -> bool:
        if id(tensor) not in self._own:
            return False
        parameter = self._own[id(tensor)]
        return parameter is None or parameter.grad is tensor

    def difference(self) -> Difference | None:
        """The first place that holds something else."""
        for holder, expected in (*self._dicts, *self._volatile, *self._others):
            now = holder.read()
            for key, value in expected.items():
                found = now.get(key, _GONE)
                if not same(found, value):
                    both = isinstance(value, (int, float)) and isinstance(found, (int, float))
                    return Difference(
                        holder.place(key), key if key != "" else holder.key or None, both, value if both else None
                    )
        if (function := self._functions.difference()) is not None:
            return Difference(function)
        return next(
            (Difference(f"{name}, on the CPU,") for what, then, name in self._host if value_of(what) != then), None
        )

    def _hooks(self) -> bool:
        if RemovableHandle.next_id != self._registered:
            if any(a is not b for t, then in self._hooked for a, b in zip(_hooks_of(t), then, strict=True)):
                return False
            if any(self._unhooked):
                return False
            self._registered = RemovableHandle.next_id
        return True

    def _places(self) -> bool:
        if (not self._versions() and not self._reread()) or not self._functions.same():
            return False
        if not self._gradients.are(self._gradients_then):
            return False
        if not (self._quick.same() and self._answers()) and not all(
            self._is(holder, expected) for holder, expected in self._others
        ):
            return False
        if not all(self._is(holder, expected) for holder, expected in self._volatile):
            return False
        if not self._kinds.same() or not self._beside_alike(*self._beside):
            return False
        return self._hooks() and all(value_of(what) == then for what, then, _ in self._host)

    def _is(self, holder: Holder, expected: dict[Any, Any]) -> bool:
        now = holder.read()
        if holder.kind in ("attributes", "slots", "class"):
            for key, value in expected.items():
                found = now.get(key, _GONE)
                if found is not value and not same(found, value):
                    return False
            if not self._passed.get(id(holder.target), _NOBODY_S) <= now.keys():
                return False
            if len(now) == len(expected):
                return True
            return not any(
                key not in expected and self._names.counts(holder, key) and (id(holder.target), key) not in self._cells
                for key in now
            )
        if holder.kind == "cached":  # more may have come: what was found there is what is asked
            return all(same(now.get(key, _GONE), value) for key, value in expected.items())
        left = {key: value for key, value in now.items() if (id(holder.target), key) not in self._cells}
        return same(left, expected)  # in the same order

    def _count(self) -> dict[int, int]:
        version = torch_name("dict_version")
        return {id(holder.target): version(holder.target) for holder, _ in self._dicts}

    def _reread(self) -> bool:
        """Some dict was written: does it hold the same? What is written before every call is read from now on.

        So is what holds an equal container in the place of one that is known: nobody else looks into it.
        """
        if not all(self._is(holder, expected) for holder, expected in self._dicts):
            return False
        numbers = self._count()
        rewritten = {key for key, number in numbers.items() if number != self._numbers[key]}
        always = rewritten & self._before
        always |= {id(holder.target) for holder, expected in self._dicts if _holds_others(holder, expected)}
        self._volatile += [row for row in self._dicts if id(row[0].target) in always]
        self._dicts = [row for row in self._dicts if id(row[0].target) not in always]
        self._numbers, self._rewritten = numbers, rewritten
        self._versions = Versions([holder.target for holder, _ in self._dicts])
        return True


def _holds_others(holder: Holder, expected: dict[Any, Any]) -> bool:
    now = holder.read()
    return any(now.get(key, value) is not value and not is_bare(value) for key, value in expected.items())


def _places_of(holder: Holder, expected: dict[Any, Any]) -> Iterator[Place]:
    """What a holder that is not asked holds, to be compared by identity."""
    target, values = holder.target, tuple(expected.values())
    match holder.kind:
        case "global" if values:  # else the step writes it itself
            yield Place("global", target, (ABSENT,) if values[0] is EMPTY else values, holder.key)
        case "cell" if values:
            yield Place("cell", target, values)
        case "function":
            yield Place("function", target, values)
        case "dict":  # an ordered one
            yield Place("dict", target, tuple([x for item in expected.items() for x in item]))
        case "set":
            yield Place("set", target, values[0])
        case "sequence":
            yield Place("list" if isinstance(target, list) else "deque", target, values)
        case "class":
            own = tuple([x for item in vars(target).items() for x in item])
            yield Place("class", target, own, target.__bases__)


def _hooks_of(tensor: torch.Tensor) -> tuple[Any, Any]:
    return tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)


_GONE = object()
_NOBODY_S: set[Any] = set()


def _host_of(seen: Snapshot) -> list[tuple[str, Any]]:
    return [each for each in (*seen.reach.tensors.values(), *seen.reach.arrays) if id(each[1]) in seen.host]
