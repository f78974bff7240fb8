"""What a walk over a step's objects passes by: names that no code has, modules of libraries, what is held weakly."""

from __future__ import annotations

import builtins
import sys
import types
import weakref
from typing import Any

import pytest
import torch

from paramgraph_kit.step import reach as walking
from paramgraph_kit.step.names import Names
from paramgraph_kit.step.reach import Reach


class Plain:
    """Has attributes."""

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)


class Slotted:
    """Has slots, and nothing that could refer to it weakly."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class Referred:
    """Has a slot, and can be referred to weakly."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def kinds(reach: Reach, *which: str) -> list[tuple[str, str]]:
    return [(holder.kind, holder.name) for holder in reach.holders if holder.kind in which]


def ones() -> torch.Tensor:
    return torch.ones(2)


def test_a_narrow_walk_goes_where_names_lead_and_another_one_everywhere() -> None:
    # GIVEN an object with two tensors, of which the code names one WHEN walked narrowly THEN the other is passed by
    first, second = ones(), ones()
    root = [("o", Plain(a=first, b=second))]
    names = Names(known={"a"})
    assert [name for name, _ in Reach(root, [], names, narrow=True).tensors.values()] == ["o.a"]
    assert [name for name, _ in Reach(root, [], names).tensors.values()] == ["o.a", "o.b"]


def test_of_a_class_a_narrow_walk_looks_at_functions_and_at_what_code_names() -> None:
    # GIVEN a class with tensors, of which code that ran names one, the user's own code another, and nobody the third
    class Kind:
        known = ones()
        own = ones()
        nobodys = ones()

    names = Names(known={"known"}, own={"own"})
    # WHEN walked narrowly THEN both are found
    found = Reach([("o", Kind())], [], names, narrow=True)
    assert [name for name, _ in found.tensors.values()] == ["Kind.known", "Kind.own"]
    assert len(Reach([("o", Kind())], [], names).tensors) == 3


def test_who_led_to_a_tensor_leads_to_its_like_and_to_nothing_else() -> None:
    # GIVEN a walk that has found two tensors WHEN one is let go for another THEN it has its name, and the rest stays
    x, y, like, unknown = ones(), ones(), ones(), ones()
    reach = Reach([("x", x), ("y", y)], [], Names())
    alive = len(reach._alive)
    reach.let_go(x, like)
    assert reach.tensors == {id(y): ("y", y), id(like): ("x", like)}
    assert [any(each is t for each in reach._alive) for t in (x, y, like)] == [False, True, True]
    assert len(reach._alive) == alive
    # AND what it has not found leads nowhere
    reach.let_go(unknown, ones())
    assert list(reach.tensors) == [id(y), id(like)]


def test_a_walk_is_complete_up_to_as_many_holders_as_are_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a walk with some holders WHEN as many are allowed, and one less THEN it is complete, and is not
    reach = Reach([("l", [[], [], []])], [], Names())
    for most, complete in ((len(reach.holders), True), (len(reach.holders) - 1, False)):
        monkeypatch.setattr(walking, "MOST", most)
        assert reach.complete is complete


def module(name: str, **contents: Any) -> Any:
    made = types.ModuleType(name)
    vars(made).update(contents)
    return made


@pytest.mark.parametrize(
    ("told", "place"),
    [
        ({}, True),  # made by hand
        ({"__file__": __file__, "__spec__": object()}, True),
        ({"__file__": torch.__file__}, False),
        ({"__spec__": object()}, False),
        ({"__file__": None, "__spec__": object()}, False),
    ],
)
def test_attributes_of_a_module_are_places_where_it_is_the_user_s(told: dict[str, Any], place: bool) -> None:
    # GIVEN a module of a file of the user's, of a library's, of none WHEN walked THEN its tensor is found if it is his
    made = module("mine", scale=ones(), other=ones(), **told)
    reach = Reach([("m", made)], [], Names(own={"scale"}))
    assert kinds(reach, "attributes") == [("attributes", "m")] * place
    assert [name for name, _ in reach.tensors.values()] == ["m.scale"] * place


def test_of_a_library_s_module_public_settings_are_places_that_code_names() -> None:
    # GIVEN a library's module with settings, something private, an object, a list and a module WHEN walked
    inner = module("inner", __spec__=object(), deep=3)
    made = module(
        "lib", __spec__=object(), rate=0.1, _private=2, thing=Plain(), held=[1], inner=inner, unnamed=4, act=len
    )
    names = Names(own={"rate", "_private", "thing", "held", "inner", "act", "deep"})
    reach = Reach([("lib", made)], [], names)
    # THEN those are watched by their names, what is in lists and modules is too, and no more
    found = [(holder.kind, holder.key or holder.name) for holder in reach.holders]
    ours = [each for each in found if each[1] in (*vars(made), "deep", "lib.held", "lib.thing")]
    assert sorted(ours) == [
        ("global", "act"),
        ("global", "deep"),
        ("global", "held"),
        ("global", "rate"),
        ("sequence", "lib.held"),
    ]


class Settings(types.ModuleType):
    """Computes what it is asked."""

    rates = (0.1, 0.2)

    @property
    def rate(self) -> float:
        return self.rates[0]

    @property
    def other(self) -> float:
        return self.rates[1]

    @property
    def thing(self) -> Plain:
        return Plain()


def test_what_a_module_of_a_class_of_its_own_computes_is_asked_once_where_code_names_it() -> None:
    # GIVEN a module that computes numbers and an object WHEN walked twice THEN a number that is named is asked, once
    made: Any = Settings("settings")
    names = Names(own={"rate", "thing", "__name__"})
    reach = Reach([("s", made)], [("again", made), ("t", ones())], names)
    asked = [(holder.name, holder.key) for holder in reach.holders if holder.kind == "asked" and holder.target is made]
    assert asked == [("s.rate", "rate")]
    (holder,) = (holder for holder in reach.holders if holder.kind == "asked" and holder.target is made)
    made.rates = (0.3, 0.4)
    assert holder.read() == {"": 0.3}
    # AND of a plain module nothing is
    plain = module("plain")
    plain.rate = 0.1
    assert kinds(Reach([("p", plain)], [], names), "asked") == []


def test_the_layers_of_a_library_are_looked_at_once_and_what_they_are_made_of_is_not() -> None:
    # GIVEN two layers of one class of torch's WHEN walked THEN that class is a place, once, and Module is none
    reach = Reach([("m", torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]))], [], Names())
    found = [name for kind, name in kinds(reach, "class")]
    assert (found.count("Linear"), found.count("ModuleList"), found.count("Module")) == (1, 1, 0)


def test_modules_that_code_imports_are_global_names_where_they_are_there() -> None:
    # GIVEN code that imports a module that is loaded, and one that is not WHEN walked THEN the first is a name
    reach = Reach([], [], Names(modules={"json", "no_such_module_anywhere"}))
    found = [(holder.key, holder.target is sys.modules) for holder in reach.holders if holder.kind == "global"]
    assert ("json", True) in found
    assert not any(key == "no_such_module_anywhere" for key, _ in found)


@pytest.mark.parametrize("uses", [False, True])
def test_the_context_of_decimals_is_asked_where_code_names_it(uses: bool) -> None:
    # GIVEN a function that computes with decimals, or not WHEN walked THEN their context counts, or not
    space: dict[str, Any] = {"__name__": "users"}
    exec(f"def f(x): return {'Decimal' if uses else 'str'}(x)", space)
    asked = [name for _, name in kinds(Reach([("f", space["f"])], [], Names()), "asked")]
    assert ("the context of decimals" in asked) is uses


def test_what_is_held_weakly_is_nobody_s_here() -> None:
    # GIVEN objects with attributes and slots, each held by somebody, or by a weak reference alone
    plain, referred = Plain(tensor=ones()), Referred(ones())
    slotted = Slotted(ones())

    def walked(root: Any) -> tuple[list[type], list[str], list[str]]:
        reach = Reach([("o", root)], [], Names())
        found = [type(each) for each in reach.objects if isinstance(each, (Plain, Referred, Slotted))]
        slots = [name for kind, name in kinds(reach, "slots")]
        return found, slots, [what for _, what in reach.unseen]

    # WHEN walked THEN what is held is known by its class, and what lies in its slots is a place
    assert walked(plain) == ([Plain], [], [])
    assert walked(referred) == ([Referred], ["o"], [])
    assert walked(slotted) == ([Slotted], ["o"], [])
    # AND behind a weak reference the walk holds nothing: it asks for the class, and cannot look into slots
    assert walked(weakref.ref(plain)) == ([], [], [])
    unseen = ["has slots, and nothing but a weak reference leads to it"]
    assert walked(weakref.ref(referred)) == ([], [], unseen)
    # AND what such an object holds that no weak reference can be of is held
    outer = Plain(slotted=slotted)
    assert walked(weakref.ref(outer)) == ([Slotted], [], unseen)
    # AND behind it all is as before
    reach = Reach([("r", weakref.ref(plain)), ("s", Referred(ones()))], [], Names())
    assert [type(each) for each in reach.objects if isinstance(each, (Plain, Referred))] == [Referred]
    kept = [holder.ask for holder in reach.holders if holder.kind == "asked" and holder.key == "type"]
    assert [ask() for ask in kept if ask is not None] == [Plain]


def test_a_walk_forgets_what_is_gone_alone() -> None:
    # GIVEN a walk that has found two tensors WHEN one is gone THEN it holds the other
    x, y = ones(), ones()
    reach = Reach([("x", x), ("y", y)], [], Names())
    reach.forget({id(x)})
    assert [any(each is t for each in reach._alive) for t in (x, y)] == [False, True]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("library", [False, True])
def test_code_that_looks_names_up_gets_to_all_of_the_user_s_modules(dynamic: bool, library: bool) -> None:
    # GIVEN a module with a setting that code names, one that it does not, and a function that is asked for others
    space: dict[str, Any] = {"__name__": "users", "__file__": __file__}
    exec("def f(name): raise AttributeError(name)", space)
    contents = {"named": [1], "other": [2], "__private__": [3], "__getattr__": space["f"]}
    made = module("m", **contents, **({"__spec__": object()} if library else {}))
    # WHEN walked, of the user's and of a library's THEN code that looks names up gets to all of the user's
    names = Names(own={"named"}, dynamic=dynamic)
    reach = Reach([("m", made)], [], names)
    found = [name for kind, name in kinds(reach, "sequence")]
    assert found == (["m.named", "m.other"] if dynamic and not library else ["m.named"])
    # AND to what answers for others, unless it looks at all there is
    assert (("function", "f") in kinds(reach, "function")) is (not library and not dynamic)


def test_a_function_of_the_user_s_in_a_library_s_module_is_walked_and_the_library_s_own_is_not() -> None:
    # GIVEN a library's module with a function of the user's that code names, one of the library's, and a class
    space: dict[str, Any] = {"__name__": "users", "__file__": __file__, "held": [1]}
    exec(compile("def mine(): return held", __file__, "exec"), space)
    made = module("lib", __spec__=object(), mine=space["mine"], theirs=torch.nn.functional.softmax, kind=Plain)
    reach = Reach([("lib", made)], [], Names(own={"mine", "theirs", "kind"}))
    # WHEN walked THEN what the first reads is found
    assert kinds(reach, "function") == [("function", "mine")]
    assert kinds(reach, "sequence") == [("sequence", "held")]
    assert [name for kind, name in kinds(reach, "class")] == []


def test_a_global_name_may_be_built_in_or_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN code that names a function of Python's, a built-in name that somebody has made, and one that is not there
    monkeypatch.setattr(builtins, "everybodys", [1], raising=False)
    space: dict[str, Any] = {"__name__": "users", "__file__": __file__}
    exec("def f(): return len, everybodys, int, missing", space)
    reach = Reach([("f", space["f"])], [], Names())
    # WHEN walked THEN each may come as a global name, and of what is built in, what somebody has made may change
    found = [(holder.key, holder.target is space) for holder in reach.holders if holder.kind == "global"]
    names = ["everybodys", "int", "len", "missing"]
    assert sorted(key for key, own in found if own) == names
    assert [key for key, own in found if not own] == ["everybodys"]
    assert kinds(reach, "sequence") == [("sequence", "everybodys")]


def test_keys_of_a_dict_are_walked_that_are_objects() -> None:
    # GIVEN a dict with a tensor as a key, and a tuple with another one WHEN walked THEN both are found by its name
    key, inside, value = ones(), ones(), ones()
    reach = Reach([("d", {key: 1, ("a", inside): value, "k": 2})], [], Names())
    assert [name for name, _ in reach.tensors.values()] == ["d", "d[...]", "d[1]"]


def test_where_a_module_would_keep_hooks_is_known_and_hooks_that_are_there_are_walked() -> None:
    # GIVEN a layer with a forward hook that reads a tensor, and no other one WHEN walked
    layer, held = torch.nn.ReLU(), ones()
    layer.register_forward_hook(lambda *_: held)
    reach = Reach([("m", layer)], [], Names())
    # THEN three places for hooks are empty, and the fourth leads there
    empty = [layer._forward_pre_hooks, layer._backward_pre_hooks, layer._backward_hooks]
    assert len(reach.unhooked) == 3
    assert all(any(each is known for known in reach.unhooked) for each in empty)
    assert any(tensor is held for _, tensor in reach.tensors.values())
