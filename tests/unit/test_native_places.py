"""Places asked in C++ agree with those asked in Python, whatever is done to them; a step asks the same both ways."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.capture.pair import ALIGNMENT, alignment_of
from paramgraph_kit.driver.native import build
from paramgraph_kit.driver.native.objects import Kinds
from paramgraph_kit.driver.native.places import ABSENT, Place, Places
from paramgraph_kit.driver.select import driver
from paramgraph_kit.step.arguments import _Look

MANY = 1500  # changes


class Rooted(list[Any]):
    """A list that says of itself what it likes."""

    def __iter__(self) -> Any:
        return iter((1, 2, 3))

    def __len__(self) -> int:
        return 3


class World:
    """Things of every kind, and what may be done to them."""

    def __init__(self) -> None:
        self.space: dict[str, Any] = {"a": 1.5, "b": [1]}
        held = object()

        def function(x: int = 1, *, y: int = 2) -> Any:
            return held, x, y

        def other(x: int = 3, *, y: int = 4) -> Any:
            return held, y, x

        class Base:
            pass

        class Mixin:
            pass

        class User(Base):
            scale = 1.0

            def go(self) -> float:
                return self.scale

        self.function, self.other, self.user, self.bases = function, other, User, (Base, Mixin)
        assert function.__closure__
        self.cell: Any = function.__closure__[0]
        self.rows: list[Any] = [1, 2.0, "x"]
        self.odd = Rooted([1, 2])
        self.queue: deque[Any] = deque([1, 2])
        self.set: set[Any] = {1, "y"}
        self.ordered: OrderedDict[str, Any] = OrderedDict(a=1, b=2)
        self.single: OrderedDict[str, Any] = OrderedDict(a=held)
        self.empty: OrderedDict[str, Any] = OrderedDict()

    def places(self) -> list[Place]:
        flat = lambda d: tuple(x for item in d.items() for x in item)  # noqa: E731
        code = self.function.__code__, self.function.__defaults__, self.function.__kwdefaults__
        try:
            held = self.cell.cell_contents
        except ValueError:
            self.cell.cell_contents = held = object()
        return [
            Place("global", self.space, (self.space.get("a", ABSENT),), "a"),
            Place("global", self.space, (self.space.get("z", ABSENT),), "z"),
            Place("cell", self.cell, (held,)),
            Place("function", self.function, code),
            Place("class", self.user, flat(vars(self.user)), self.user.__bases__),
            *(Place("list", x, tuple(list.__iter__(x))) for x in (self.rows, self.odd)),
            Place("deque", self.queue, tuple(self.queue)),
            Place("set", self.set, tuple(self.set)),
            *(Place("dict", x, flat(x)) for x in (self.ordered, self.single, self.empty)),
        ]


CHANGES: list[Callable[[World, random.Random], object]] = [
    lambda w, r: None,
    lambda w, r: w.space.update(a=r.choice([w.space.get("a"), 2.5, [1]])),
    lambda w, r: w.space.update(b=object()),
    lambda w, r: w.space.pop(r.choice("az"), None),
    lambda w, r: w.space.update(z=1),
    lambda w, r: setattr(w.cell, "cell_contents", r.choice([object(), None])),
    lambda w, r: delattr(w.cell, "cell_contents") if r.random() < 0.5 else None,
    lambda w, r: setattr(w.function, "__code__", w.other.__code__),
    lambda w, r: setattr(w.function, "__defaults__", r.choice([None, (1,), w.function.__defaults__])),
    lambda w, r: setattr(w.function, "__kwdefaults__", r.choice([None, {"y": 2}, w.function.__kwdefaults__])),
    lambda w, r: setattr(w.function, "note", r.random()),
    lambda w, r: setattr(w.user, "scale", r.choice([getattr(w.user, "scale", 1.0), 2.0])),
    lambda w, r: setattr(w.user, r.choice(["other", "go"]), r.random()),
    lambda w, r: delattr(w.user, "other") if hasattr(w.user, "other") else None,
    lambda w, r: setattr(w.user, "__bases__", r.choice([w.bases[:1], w.bases, w.bases[::-1]])),
    lambda w, r: w.rows.append(1) if r.random() < 0.5 or not w.rows else w.rows.pop(),
    lambda w, r: w.rows.reverse(),
    lambda w, r: list.append(w.odd, 3) if len(list.__repr__(w.odd)) < 30 else list.clear(w.odd),
    lambda w, r: w.queue.rotate(1),
    lambda w, r: w.set.symmetric_difference_update({r.choice([1, "y", 7])}),
    lambda w, r: w.ordered.move_to_end(r.choice("ab")),
    lambda w, r: w.single.update(a=r.choice([w.single.get("a"), object()])),
    lambda w, r: w.single.pop("a", None),
    lambda w, r: w.empty.clear() if w.empty else w.empty.update(k=1),
]


def test_fuzz_places_agree(native: Any, in_python: Any) -> None:
    # GIVEN places of every kind, asked both ways
    r, world = random.Random(0), World()
    seen = {True: 0, False: 0}
    for number in range(MANY):
        if number % 100 == 0:
            world = World()
        places = Places(world.places())
        assert places.same()
        assert in_python(places.same)

        # WHEN something is done to one, or nothing
        change = r.randrange(len(CHANGES))
        try:
            CHANGES[change](world, r)
        except TypeError:  # bases that make no order
            continue

        # THEN both ways say the same
        found = places.same()
        assert found == in_python(places.same), change
        seen[found] += 1
    assert min(seen.values()) > MANY // 10


def _noted(x: Any) -> Any:
    x.note = 1
    return x


ARGUMENTS: list[Callable[[], Any]] = [
    lambda: torch.zeros(2, 3),
    lambda: torch.zeros(2, 3),
    lambda: torch.zeros(2, 3, dtype=torch.float64),
    lambda: torch.zeros(3, 2).t(),
    lambda: torch.zeros(1000)[4:10].view(2, 3),
    lambda: torch.zeros(1000)[64:70].view(2, 3),
    lambda: torch.zeros(2, 3).requires_grad_(),
    lambda: torch.nn.Parameter(torch.zeros(2, 3)),
    lambda: torch.nn.Parameter(torch.zeros(2, 3), requires_grad=False),
    lambda: torch.zeros(2, 3, dtype=torch.complex64).conj(),
    lambda: torch.zeros(0, 3),
    lambda: torch.zeros(2, 3).to_sparse(),
    lambda: _noted(torch.zeros(2, 3)),
    lambda: torch.zeros(2, 3).as_subclass(type("Sub", (torch.Tensor,), {})),
]


def _made(which: int, inference: bool) -> Any:
    with torch.inference_mode(inference):
        return ARGUMENTS[which]()


def test_fuzz_arguments_that_look_alike(native: Any, in_python: Any) -> None:
    # GIVEN a look at the arguments of one call
    r = random.Random(1)
    plain = [k for k in range(len(ARGUMENTS)) if k not in (11, 12, 13)]
    seen = {True: 0, False: 0}
    for _ in range(MANY // 5):
        kinds = [(r.choice(plain), r.random() < 0.1) for _ in range(r.choice([0, 1, 2, 3]))]
        first = [_made(*kind) for kind in kinds]
        look = _Look(driver(), ((), ()), first)
        assert look.fits(tuple(first)), kinds  # from here on C++ has one
        for _ in range(5):
            # WHEN others come, one of another kind, twice, or one too many
            given = [_made(*kind) for kind in kinds]
            if given and r.random() < 0.5:
                given[r.randrange(len(given))] = r.choice([_made(r.randrange(len(ARGUMENTS)), False), given[0]])
            elif r.random() < 0.2:
                given.append(torch.zeros(2, 3))
            # THEN both ways say the same
            found = look.fits(tuple(given))
            assert found == in_python(lambda g=given, one=look: one.fits(tuple(g))), kinds
            seen[found] += 1
    assert min(seen.values()) > MANY // 10


def test_alignments_are_told_apart_as_a_capture_tells_them(native: Any) -> None:
    # GIVEN tensors at every alignment up to twice the largest that counts
    memory = torch.zeros(8 * ALIGNMENT, dtype=torch.uint8)
    start = -memory.data_ptr() % (4 * ALIGNMENT)
    placed = [memory[start + offset :][:4] for offset in (0, *(1 << n for n in range(ALIGNMENT.bit_length() + 1)))]
    # WHEN one is taken for another THEN it is where a capture would be the same for both
    for one in placed:
        given = native.given((one,))
        for other in placed:
            same = alignment_of(one.data_ptr()) == alignment_of(other.data_ptr())
            assert native.alike(given, (other,)) == same


def test_a_renamed_attribute_of_a_class_is_noticed(native: Any, in_python: Any) -> None:
    # GIVEN a class WHEN its last attribute is there under another name
    world = World()
    world.user.last = 7.0  # type: ignore[attr-defined]
    places = Places(world.places())
    assert places.same()
    del world.user.last  # type: ignore[attr-defined]
    world.user.next = 7.0  # type: ignore[attr-defined]

    # THEN both ways say so
    assert not places.same()
    assert not in_python(places.same)


def test_only_checks_of_its_own_are_asked(native: Any) -> None:
    # GIVEN something else WHEN it is given THEN it is refused
    import datetime

    others: list[Any] = [[], (1,), (datetime.datetime_CAPI,)]
    for wrong in others:
        with pytest.raises(TypeError, match="tuple of checks"):
            native.unchanged(wrong)
    with pytest.raises(TypeError, match="is not in a int"):
        native.places([(0, 1, "a", ())])
    assert native.unchanged(())
    thing = World()
    assert native.unchanged((Kinds([thing]).check,))


@pytest.mark.parametrize("built", [True, False], ids=["in C++", "in Python"])
def test_a_step_launches_with_what_its_places_hold(native: Any, built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a step that reads places of every kind
    if not built:
        monkeypatch.setattr(build, "_built", [])
    world, kept = World(), {"scale": 1.0}
    world.rows, world.set = [1.0, 2.0], {3.0}

    def inner(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        return x * by * kept["scale"] * world.user.scale

    def doubled(x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        return x * by * kept["scale"] * world.user.scale * 2

    def step(x: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = inner(x) * sum(world.rows) * sum(world.set)
        for value in world.single.values():
            total = total * value
        return total

    world.single = OrderedDict(a=1.0)
    run, x = pgk.parameterize(step, state=[world, kept]), torch.ones(3, device=pgk.device())
    changes: list[Callable[[], object]] = [
        lambda: None,
        lambda: kept.update(scale=2.0),
        lambda: setattr(world.user, "scale", 3.0),
        lambda: setattr(inner, "__defaults__", (5.0,)),
        lambda: setattr(inner, "__code__", doubled.__code__),
        lambda: world.rows.append(4.0),
        lambda: world.set.add(6.0),
        lambda: world.single.update(a=2.0),
        lambda: setattr(world, "rows", [1.0]),
        lambda: setattr(world.user, "unread", 1),
    ]
    # WHEN one after the other changes THEN each call counts with it, and calls between are launches
    for change in changes:
        change()
        for _ in range(4):
            assert torch.equal(run(x), step(x)), pgk.report(run)
    assert pgk.report(run).rows[0].launches > 12
