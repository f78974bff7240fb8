"""Whether all that a captured step depends on is as it was: asked at each call, so in C++ where there is a way."""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from paramgraph_kit.backend.call_state import tensor_guard
from paramgraph_kit.backend.plain import same
from paramgraph_kit.driver.dict_versions import Versions
from paramgraph_kit.driver.native.objects import Kinds
from paramgraph_kit.driver.native.tensors import Gradients, Looks
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.step.holders import EMPTY, PARTS, Holder
from paramgraph_kit.step.observe import Observation, Snapshot, value_of

_DICTS = ("attributes", "dict")
_QUICK = ("global", "cell", "set", "sequence", "class", "function", "dict", "asked")


class Guard:
    """What a captured step found in its places when it was entered, and where the tensors lay that it addresses."""

    def __init__(self, call: Observation, cells: set[tuple[int, Any]], used: Sequence[torch.Tensor]) -> None:
        seen, names = call.before, call.names
        self._dicts: list[tuple[Holder, dict[Any, Any]]] = []
        self._others: list[tuple[Holder, dict[Any, Any]]] = []
        own = seen.reach.own
        for holder, contents in zip(seen.reach.holders[:own], seen.contents[:own], strict=True):
            if (holder.kind, id(holder.target), holder.key) not in call.within:
                continue
            expected = {
                key: value
                for key, value in contents.items()
                if names.counts(holder, key) and (id(holder.target), key) not in cells
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
        self._quick = _quick(self._others)
        self._versions = Versions([holder.target for holder, _ in self._dicts])
        self._numbers = self._count()
        self._calls, self._rewritten = 0, (0, set[int]())
        # Every hook that is registered anywhere gets the next number.
        self._registered = RemovableHandle.next_id
        self._hooked = [(h.target, _hooks_of(h.target)) for h in seen.reach.holders if h.kind == "gradient"]
        self._unhooked = seen.reach.unhooked
        self._host = [(what, seen.host[id(what)]) for what in _host_of(seen) if id(what) in call.near]
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
            and t.layout == torch.strided
            and t.device.type != "cpu"
        ]
        # Some die and leave their ids to others: gradients, that every step makes anew.
        ids = call.near & seen.reach.own_tensors
        self._own = {key: weakref.ref(t) for key, (_, t) in seen.reach.tensors.items() if key in ids}
        self._beside_alike = tensor_guard(self._beside)
        self.tensors = list(used)
        self._looks = Looks(self.tensors)  # holds them, so that no address is anybody else's

    def holds(self) -> bool:
        """Whether a launch would do what the call would do."""
        self._calls += 1
        return self._places() and self.lies()

    def lies(self) -> bool:
        """Whether the tensors lie where they lay and look as they did."""
        return self._looks.same()

    def among(self, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """Which of some tensors the step may know by other names, 0 for each that it does not."""
        if self._own.keys().isdisjoint(map(id, tensors)):
            return ()
        known = [(ref := self._own.get(id(x))) is not None and ref() is x for x in tensors]
        return tuple([id(x) if yes else 0 for x, yes in zip(tensors, known, strict=True)]) if any(known) else ()

    def difference(self) -> tuple[str, bool] | None:
        """The first place that holds something else, and whether both are numbers."""
        for holder, expected in (*self._dicts, *self._volatile, *self._others):
            now = holder.read()
            for key, value in expected.items():
                found = now.get(key, _GONE)
                if not same(found, value):
                    return holder.place(key), isinstance(value, (int, float)) and isinstance(found, (int, float))
        return None

    def _hooks(self) -> bool:
        if RemovableHandle.next_id != self._registered:
            if any(a is not b for t, then in self._hooked for a, b in zip(_hooks_of(t), then, strict=True)):
                return False
            if any(self._unhooked):
                return False
            self._registered = RemovableHandle.next_id
        return True

    def _places(self) -> bool:
        if not self._versions() and not self._reread():
            return False
        if not self._gradients.are(self._gradients_then):
            return False
        try:
            quick = self._quick()
        except ValueError:  # a variable of a closure holds nothing any more
            return False
        if not quick and not all(self._is(holder, expected) for holder, expected in self._others):
            return False
        if not all(self._is(holder, expected) for holder, expected in self._volatile):
            return False
        if not self._kinds.same() or not self._beside_alike(*self._beside):
            return False
        return self._hooks() and all(value_of(what) == then for what, then in self._host)

    def _is(self, holder: Holder, expected: dict[Any, Any]) -> bool:
        now = holder.read()
        if holder.kind in ("attributes", "slots", "class"):
            for key, value in expected.items():
                found = now.get(key, _GONE)
                if found is not value and not same(found, value):
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
        return same(left, expected) and (holder.kind != "dict" or list(left) == list(expected))

    def _count(self) -> dict[int, int]:
        version = torch_name("dict_version")
        return {id(holder.target): version(holder.target) for holder, _ in self._dicts}

    def _reread(self) -> bool:
        """Some dict was written: does it hold the same? What is written before every call is read from now on."""
        if not all(self._is(holder, expected) for holder, expected in self._dicts):
            return False
        numbers = self._count()
        rewritten = {key for key, number in numbers.items() if number != self._numbers[key]}
        call, before = self._rewritten
        always = rewritten & before if call == self._calls - 1 else set[int]()
        self._volatile += [row for row in self._dicts if id(row[0].target) in always]
        self._dicts = [row for row in self._dicts if id(row[0].target) not in always]
        self._numbers, self._rewritten = numbers, (self._calls, rewritten)
        self._versions = Versions([holder.target for holder, _ in self._dicts])
        return True


def _quick(rows: Sequence[tuple[Holder, dict[Any, Any]]]) -> Callable[[], bool]:
    """Whether nothing at all has changed in any of them, in one expression; False says nothing."""
    scope: dict[str, Any] = {"all": all, "map": map, "len": len, "vars": vars, "is_": is_, "EMPTY": EMPTY, "same": same}
    tests = []
    for n, (holder, expected) in enumerate(rows):
        values = list(expected.values())
        scope |= {f"t{n}": holder.target, f"k{n}": holder.key, f"v{n}": values[0] if values else None}
        match holder.kind:
            case "global" | "cell" if not values:  # the step writes it itself
                pass
            case "global":
                tests.append(f"t{n}.get(k{n}, EMPTY) is v{n}")
            case "cell":
                tests.append(f"t{n}.cell_contents is v{n}")
            case "function":
                scope[f"v{n}"] = values
                tests += [f"t{n}.{part} is v{n}[{k}]" for k, part in enumerate(PARTS)]
            case "asked":
                scope[f"a{n}"] = holder.ask
                tests.append(f"same(a{n}(), v{n})")
            case "dict":  # an ordered one
                scope |= {f"v{n}": values, f"k{n}": list(expected), f"len{n}": OrderedDict.__len__}
                scope |= {f"keys{n}": OrderedDict.__iter__, f"held{n}": OrderedDict.values}
                tests.append(f"len{n}(t{n}) == {len(values)}")
                tests += [f"all(map(is_, keys{n}(t{n}), k{n})) and all(map(is_, held{n}(t{n}), v{n}))"] * bool(values)
            case "set" | "sequence":
                base = next(k for k in (list, deque, set) if isinstance(holder.target, k))
                values = list(values[0]) if holder.kind == "set" else values
                scope |= {f"v{n}": values, f"len{n}": base.__len__, f"iter{n}": base.__iter__}
                tests.append(f"len{n}(t{n}) == {len(values)} and all(map(is_, iter{n}(t{n}), v{n}))")
            case "class":
                scope[f"v{n}"] = list(vars(holder.target).values())
                scope[f"b{n}"] = holder.target.__bases__
                tests.append(f"t{n}.__bases__ is b{n} and len(vars(t{n})) == len(v{n})")
                tests.append(f"all(map(is_, vars(t{n}).values(), v{n}))")
    exec(f"def quick(): return {' and '.join(tests) or 'True'}", scope)  # places are numbered, never named
    quick: Callable[[], bool] = scope["quick"]
    return quick


def _hooks_of(tensor: torch.Tensor) -> tuple[Any, Any]:
    return tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)


_GONE = object()


def _host_of(seen: Snapshot) -> list[Any]:
    tensors = [t for _, t in seen.reach.tensors.values()]
    return [what for what in (*tensors, *(array for _, array in seen.reach.arrays)) if id(what) in seen.host]
