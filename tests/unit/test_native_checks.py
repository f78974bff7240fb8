"""The checks in C++ agree with those in Python, whatever is done to tensors and dictionaries; or nothing is built."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paramgraph_kit.driver.dict_versions import NUMBERED, TOLD, Versions
from paramgraph_kit.driver.native import build
from paramgraph_kit.driver.native.objects import Kinds
from paramgraph_kit.driver.native.tensors import Gradients, Looks, aligned_addresses, shifted, versions_of, written
from paramgraph_kit.driver.select import driver
from paramgraph_kit.step.kept import Kept
from paramgraph_kit.trace.errors import UnsupportedError

MANY = 1500  # changes of each kind


class Sub(torch.Tensor):
    pass


def _data(x: torch.Tensor, r: random.Random) -> None:
    x.data = r.choice([x.data.clone(), x.data, x.data.view(x.shape), torch.zeros(2, 3), torch.zeros(2, 3).double()])


def _set(x: torch.Tensor, r: random.Random) -> None:
    x.data.set_(x.untyped_storage(), r.choice([0, 0, 1]), (r.choice([1, 2]), 2), r.choice([(2, 1), (1, 2), (3, 1)]))


CHANGES: dict[str, Callable[[torch.Tensor, random.Random], object]] = {
    "nothing": lambda x, r: None,
    "values": lambda x, r: x.data.fill_(r.random()),
    "data": _data,
    "set": _set,
    "transposed": lambda x, r: x.data.t_() if x.dim() == 2 else None,
    "unsqueezed": lambda x, r: x.data.unsqueeze_(0) if x.dim() < 4 else x.data.squeeze_(0),
    "requires": lambda x, r: x.requires_grad_(r.random() < 0.5) if x.is_leaf and x.is_floating_point() else None,
    "gradient": lambda x, r: setattr(x, "grad", torch.ones_like(x)) if x.is_leaf else None,
    "class": lambda x, r: setattr(x, "__class__", r.choice([torch.Tensor, nn.Parameter, Sub])),
    "swapped": lambda x, r: torch.utils.swap_tensors(x, type(x)(torch.zeros(2, 3))) if x.grad is None else None,
    "resized": lambda x, r: x.data.resize_(r.choice([(2, 3), (0, 3), (3, 2)])),
    "storage": lambda x, r: x.untyped_storage().resize_(x.untyped_storage().nbytes() + r.choice([0, 4096])),
    "attribute": lambda x, r: setattr(x, "note", r.random()),
}


def _looked_at() -> list[torch.Tensor]:
    base = torch.zeros(2, 3)
    return [
        *(base, nn.Parameter(torch.zeros(2, 3)), torch.zeros(3, 4)[1:, ::2], torch.zeros(2, 3).requires_grad_()),
        *(base.view(3, 2), torch.zeros(0, 3), torch.zeros(2, 2, dtype=torch.complex64).conj(), torch.zeros(())),
    ]


def test_fuzz_looks_of_tensors_agree(native: Any, in_python: Any) -> None:
    # GIVEN tensors of many kinds, looked at both ways
    r = random.Random(0)
    seen = {True: 0, False: 0}
    for number in range(MANY):
        if number % 50 == 0:
            given = _looked_at()
        looks = Looks(given)
        assert looks.same()
        assert in_python(looks.same)

        # WHEN some of them change, or seem to
        done = []
        for _ in range(r.choice([1, 1, 2])):
            name, n = r.choice(list(CHANGES)), r.randrange(len(given))
            try:
                CHANGES[name](given[n], r)
            except (RuntimeError, TypeError):  # torch does not do that to such a tensor
                name += " (refused)"
            done.append((name, n))

        # THEN both say the same
        found = looks.same()
        assert found == in_python(looks.same), done
        seen[found] += 1
    assert min(seen.values()) > MANY // 10


def test_a_lazy_clone_has_memory_of_its_own_once_it_is_asked_for(native: Any, in_python: Any) -> None:
    # GIVEN a tensor and looks at it
    base = torch.arange(64.0)
    looks = Looks([base])
    assert looks.same()

    # WHEN its memory is shared lazily THEN asking for its address makes it its own, whichever way asks first
    clone = torch._lazy_clone(base)
    assert not looks.same()
    assert not in_python(looks.same)
    assert aligned_addresses([clone], 0) == (clone.data_ptr(),)
    assert aligned_addresses([base], 0) != (clone.data_ptr(),)


def test_addresses_and_versions_agree(native: Any, in_python: Any) -> None:
    # GIVEN tensors of many kinds, and addresses
    class Placed(torch.Tensor):
        def data_ptr(self) -> int:
            return 4096

    given = [*_looked_at(), torch.zeros(2).as_subclass(Placed), 512]

    # WHEN asked THEN both ways agree, also where one is not aligned so
    assert aligned_addresses(given, 0) == in_python(lambda: aligned_addresses(given, 0))
    plain = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in given]
    assert list(aligned_addresses(given, 0) or ()) == [
        *plain[:-2],
        in_python(lambda: aligned_addresses(given, 0))[-2],
        512,
    ]
    for mask in (0, 1, 3, 63, 512):
        assert aligned_addresses(given, mask) == in_python(lambda m=mask: aligned_addresses(given, m))
    assert shifted(512, (0, 8, 1 << 40)) == in_python(lambda: shifted(512, (0, 8, 1 << 40)))

    # AND so they do on how often tensors were written
    tensors = _looked_at()
    for _ in range(3):
        tensors[0].add_(1)
        assert versions_of(tensors) == in_python(lambda: versions_of(tensors)) == [x._version for x in tensors]
    with torch.inference_mode():
        tensors.append(torch.zeros(1))
    for ask in (lambda: versions_of(tensors), lambda: in_python(lambda: versions_of(tensors))):
        with pytest.raises(RuntimeError, match="version counter"):
            ask()


def test_memory_that_was_freed_is_noticed(native: Any, in_python: Any) -> None:
    # GIVEN looks WHEN the memory is given back in place
    given = _looked_at()
    looks = Looks(given)
    assert looks.same()
    given[2].untyped_storage().resize_(0)

    # THEN both ways say so
    assert not looks.same()
    assert not in_python(looks.same)


def test_looks_depend_on_the_thread_s_switches_as_torch_s_guards_do(native: Any, in_python: Any) -> None:
    # GIVEN looks that were taken in the ordinary mode
    looks = Looks(_looked_at())
    assert looks.same()

    # WHEN asked in inference mode THEN both ways agree
    with torch.inference_mode():
        assert looks.same() == in_python(looks.same)


def test_a_tensor_of_another_kind_is_asked_about_in_python(native: Any) -> None:
    # GIVEN a sparse tensor among others
    class Meta(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
            return func(*args, **(kwargs or {}))

    # WHEN C++ is asked THEN it has no look
    assert native.look((torch.zeros(2), torch.zeros(2).to_sparse())) is None
    wrapped = torch.Tensor._make_wrapper_subclass(Meta, (2,))
    assert native.look((wrapped,)) is None


def test_what_changes_before_it_is_built_is_seen_afterwards(native: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN looks and versions that were taken in Python
    monkeypatch.setattr(build, "_built", [])
    given, dicts = _looked_at(), [{"a": 1}]
    looks, versions = Looks(given), Versions(dicts)
    assert looks.same()
    assert versions()

    # WHEN something changes, and then C++ is there
    given[0].t_()
    dicts[0]["a"] = 2
    monkeypatch.setattr(build, "_built", [native])

    # THEN nothing is the same, for good
    for _ in range(3):
        assert not looks.same()
        assert not versions()


def _contents(dicts: list[dict[Any, Any]]) -> list[list[tuple[Any, int]]]:
    return [[(key, id(value)) for key, value in each.items()] for each in dicts]


@pytest.mark.parametrize("told", [pytest.param(True, marks=pytest.mark.skipif(not TOLD, reason="not of all")), False])
def test_fuzz_every_write_to_a_dictionary_is_noticed(native: Any, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a Python that tells of all writes, or does not
    monkeypatch.setattr("paramgraph_kit.driver.dict_versions.TOLD", told)

    # AND dictionaries of many kinds, watched both ways by several who come and go
    class Plain:
        pass

    r = random.Random(1)
    objects = [Plain() for _ in range(3)]
    dicts: list[dict[Any, Any]] = [
        {},
        {"a": 1},
        {n: n for n in range(20)},
        *(vars(each) for each in objects),
        vars(nn.Linear(2, 2)),
    ]
    writes: list[Callable[[dict[Any, Any]], object]] = [
        lambda d: d.update(x=object()),
        lambda d: d.pop("x", None),
        lambda d: d.setdefault("y", 1),
        lambda d: d.get("x"),
        lambda d: d.clear() if d is dicts[2] else None,
        lambda d: d.update({"a": d.get("a", 0)}),
        lambda d: setattr(objects[r.randrange(3)], "value", object()),
        lambda d: delattr(objects[0], "value") if hasattr(objects[0], "value") else None,
        lambda d: list(d),
        lambda d: d.__ior__({"z": object()}),
        lambda d: d.popitem() if d is dicts[0] and d else None,
    ]
    others: list[Versions] = []
    noticed = 0
    for _ in range(MANY):
        monkeypatch.setattr(build, "_built", [native])
        ours = Versions(dicts)
        monkeypatch.setattr(build, "_built", [])
        theirs = Versions(dicts)
        others = [*others[-5:], ours]
        before = _contents(dicts)
        assert ours()
        assert theirs()

        # WHEN something is done to one of them
        r.choice(writes)(r.choice(dicts))

        # THEN what changed is noticed, and both ways agree, as far as Python has no more than contents to compare
        same, alike = ours(), _contents(dicts) == before
        assert same or not told or not others[0]()  # what was undone since is the same
        assert not same or alike
        assert theirs() == (same if told and NUMBERED else alike)
        noticed += not same
    assert noticed > MANY // 10


def test_gradients_agree(native: Any, in_python: Any) -> None:
    # GIVEN leaves, one of a class whose gradient is code
    class Coded(nn.Parameter):
        grad = property(lambda self: None)

    leaves = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    r = random.Random(2)
    pool = [torch.ones(2), torch.ones(2), None]

    # WHEN they have gradients by chance THEN both ways agree whether they have these
    for _ in range(200):
        for leaf in leaves:
            leaf.grad = r.choice(pool)
        known = [r.choice([leaf.grad, leaf.grad, leaf.grad, *pool]) for leaf in leaves]
        asked = Gradients(leaves)
        assert (
            asked.are(known)
            == in_python(lambda a=asked, k=known: a.are(k))
            == all(leaf.grad is k for leaf, k in zip(leaves, known, strict=True))
        )
    coded = Coded(torch.zeros(2))
    assert Gradients([coded]).are([None])
    assert not Gradients([coded]).are([pool[0]])


def test_writes_are_seen_by_autograd(native: Any, in_python: Any) -> None:
    # GIVEN a tensor, a view of it, and one of inference mode
    x = torch.zeros(2)
    view = x[:1]
    with torch.inference_mode():
        without = torch.zeros(2)

    # WHEN they are written THEN versions move alike
    written([x, without])
    assert (x._version, view._version) == (1, 1)
    in_python(lambda: written([view, without]))
    assert (x._version, view._version) == (2, 2)


def test_fuzz_who_holds_gradients(native: Any, in_python: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN gradients that a step writes over as long as nobody holds them
    specs = [
        _spec((2, 3)),
        _spec((4,)),
        _spec(()),
    ]
    kept = Kept(driver(), specs)
    kept.free()
    leaves = [nn.Parameter(driver().empty_strided(s.size, s.stride, s.dtype)) for s in specs]
    r = random.Random(3)
    holds: list[Callable[[torch.Tensor], Any]] = [
        lambda g: None,
        lambda g: g,
        lambda g: g.detach(),
        lambda g: g.view(-1),
        lambda g: g.untyped_storage(),
        lambda g: [g],
        lambda g: setattr(g, "data", torch.zeros_like(g)),
    ]
    for _ in range(300):
        for leaf, gradient in zip(leaves, kept.tensors, strict=True):
            leaf.grad = gradient
        del gradient
        n = r.randrange(3)
        before = list(map(id, kept.tensors))

        # WHEN somebody holds one, or its memory, or lets it lie elsewhere
        hold = r.choice(holds)
        held = hold(kept.tensors[n])

        # THEN Python takes another, and C++ says that they are free only where Python does
        quickly = native.unheld(kept.tensors, kept._storages, kept._handles, *_uses(native))
        addresses, renewed = in_python(kept.free)
        assert not (quickly and renewed)
        assert quickly or renewed
        assert renewed is (hold is not holds[0])
        assert addresses == tuple(map(driver().address_of, kept.tensors))
        assert (before == list(map(id, kept.tensors))) is not renewed
        del held


def test_kept_gradients_lie_on_as_much_memory_as_any_graph_writes_there(native: Any) -> None:
    # GIVEN two gradients that a graph has written
    specs = [_spec((2, 3)), _spec((4,))]
    kept = Kept(driver(), specs)
    kept.free()
    leaves = [nn.Parameter(driver().empty_strided(s.size, s.stride, s.dtype)) for s in specs]
    for leaf, gradient in zip(leaves, kept.tensors, strict=True):
        leaf.grad = gradient
    del gradient
    before = list(map(id, kept.tensors))
    # WHEN another graph writes more behind one of them, and less behind the other
    kept.grow([replace(specs[0], nbytes=4096), replace(specs[1], nbytes=4)])
    # THEN the next launch of any has room for that, once, and the other stays
    addresses, renewed = kept.free()
    assert renewed
    assert addresses == tuple(map(driver().address_of, kept.tensors))
    assert [t.untyped_storage().nbytes() for t in kept.tensors] == [4096, 16]
    assert [before == id(t) for before, t in zip(before, kept.tensors, strict=True)] == [False, True]
    for leaf, gradient in zip(leaves, kept.tensors, strict=True):
        leaf.grad = gradient
    del gradient
    assert kept.free() == (addresses, False)


def _uses(native: Any) -> tuple[int, int, int, int]:
    from paramgraph_kit.step.kept import _uses as uses

    return uses(native)


def _spec(size: tuple[int, ...]) -> Any:
    from paramgraph_kit.capture.pair import ALIGNMENT, InputSpec

    like = torch.empty(size)
    return InputSpec(tuple(like.shape), tuple(like.stride()), like.dtype, ALIGNMENT, like.nbytes)


def test_it_is_built_once_and_kept(native: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a folder that has been built in
    path = build.built_at(build.cache_folder())

    # WHEN asked again without a compiler THEN it is there
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    assert build.built_at(build.cache_folder()) == path
    assert build.load(path) is not None


@pytest.mark.parametrize(
    ("named", "wording"),
    [
        ("false", "false could not build them"),
        ("", "no C\\+\\+ compiler was found: install g\\+\\+, or name one in CXX"),
    ],
)
def test_without_a_compiler_all_stays_in_python(
    named: str, wording: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN no compiler, or one that fails
    monkeypatch.setenv("CXX", named)
    monkeypatch.setattr("shutil.which", lambda name: None)

    # WHEN it is built THEN the error says so, and nothing is left behind
    with pytest.raises(UnsupportedError, match=wording):
        build.built_at(tmp_path)
    assert list(tmp_path.iterdir()) == []

    # and in the background nothing happens
    monkeypatch.setattr(build, "_built", [])
    monkeypatch.setattr(build, "cache_folder", lambda: tmp_path)
    build._build()
    assert build.checks() is None


def test_a_program_that_ends_while_they_are_loaded_ends_well(native: Any) -> None:
    # GIVEN a thread that is in torch's C++ most of the time, loading them
    program = """
import sys, threading, torch
from paramgraph_kit.driver.native import build
sys.setswitchinterval(1e-5)
load, begun = build.load, threading.Event()
def long(path):
    begun.set()
    for _ in range(2000):
        torch.empty(1).view(1, 1)
    return load(path)
build.load = long
build.prepare()
begun.wait(60)
"""
    # WHEN the program ends THEN nothing aborts it
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_torch_that_keeps_tensors_elsewhere_is_noticed(native: Any) -> None:
    # GIVEN addresses that no object has in one place WHEN asked to learn THEN it says so and forgets nothing
    some = [torch.zeros(1), torch.zeros(2)]
    assert not native.learn(some, [x._cdata + 8 for x in some])
    assert Looks(some).same()


class One:
    pass


class Other(One):
    pass


class Slotted:
    __slots__ = ("value",)


def test_classes_and_dictionaries_of_objects_agree(native: Any, in_python: Callable[[Callable[[], Any]], Any]) -> None:
    # GIVEN objects of all kinds, with dictionaries and without
    r = random.Random(5)
    things: list[Any] = [One(), Other(), nn.Linear(1, 1), lambda: 1, Slotted(), 1.0, One, torch.zeros(1)]
    for _ in range(200):
        kinds = Kinds(things)
        assert kinds.same()
        assert in_python(kinds.same)
        # WHEN attributes are written, or one gets another class or dictionary, or the one that it had
        thing, change = r.choice(things[:3]), r.randrange(4)
        before = thing.__class__, thing.__dict__
        if change == 0:
            thing.late = r.random()
        elif change == 1:
            thing.__dict__ = dict(thing.__dict__)
        elif change == 2 and thing is not things[2]:
            thing.__class__ = r.choice((One, Other))
        elif change == 3:
            thing.__dict__ = {}
            thing.__dict__ = before[1]
        # THEN both tell
        changed = thing.__class__ is not before[0] or thing.__dict__ is not before[1]
        assert kinds.same() is not changed
        assert in_python(kinds.same) is not changed


def test_wrong_arguments_are_errors(native: Any) -> None:
    # GIVEN, WHEN and THEN: what is no list, tuple, dictionary or capsule
    wrong: list[Callable[[], Any]] = [
        lambda: native.look([]),
        lambda: native.written(()),
        lambda: native.gradients_are([], [1]),
        lambda: native.unheld([]),
        lambda: native.addresses((), 0),
        lambda: native.shifted(0, [1]),
        lambda: native.versions(()),
        lambda: native.watch(({}, 1)),
        lambda: native.contents([{}]),
        lambda: native.contents(({}, 1)),
        lambda: native.uses((), (), ()),
        lambda: native.kinds([1], [int], []),
        lambda: native.kinds((), [], []),
    ]
    for call in wrong:
        with pytest.raises(TypeError, match="takes"):
            call()
    for ask in (native.same, native.unwritten, native.holds):
        with pytest.raises(ValueError, match="Capsule"):
            ask(object())
