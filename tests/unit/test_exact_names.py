"""What code that ran names: as variables, as attributes, of which objects, and at which line."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from paramgraph_kit.step.holders import Holder
from paramgraph_kit.step.names import Names, _passes_on, globals_named
from paramgraph_kit.trace.model import Frame

USERS: dict[str, Any] = {"__name__": "users", "__file__": __file__}


def code_of(text: str, file: str = __file__) -> types.CodeType:
    """Of the function f, or of the method f of a class, of the user's or of a library's file."""
    module = compile(text, file, "exec")
    found = [each for each in module.co_consts if isinstance(each, types.CodeType)]
    inside = [each for outer in found for each in outer.co_consts if isinstance(each, types.CodeType)]
    return next(each for each in (*inside, *found) if each.co_name == "f")


def ran(*texts: str, library: bool = False) -> Names:
    names = Names()
    for text in texts:
        file, space = (torch.__file__, vars(torch)) if library else (__file__, USERS)
        names.add(code_of(text, file), space)
    return names


def test_attributes_are_no_variables_unless_code_looks_names_up() -> None:
    # GIVEN code that reads an attribute, and code that looks names up besides WHEN asked for variables THEN of the
    # first those alone, and of the other all that may be one
    plain = code_of("def f(x): return rate * x.scale")
    assert set(globals_named(plain)) == {"rate"}
    looking = code_of("def f(x): return getattr(x, 'name') * x.scale")
    assert {"getattr", "scale"} <= set(globals_named(looking))


@pytest.mark.parametrize(
    ("text", "dynamic"),
    [
        ("def f(x): return x.scale", False),
        ("def f(x): return getattr(x, 'a' + x.b)", True),
        ("def f(x): return vars(x)", True),
        ("def f(x): return x.__dict__", True),
    ],
)
def test_the_user_s_code_that_looks_names_up_may_read_anything(text: str, dynamic: bool) -> None:
    # GIVEN code of the user's or of a library's WHEN it has run THEN only his own gets to any attribute
    names = ran("def f(x): return x.first", text)
    assert names.dynamic is dynamic
    assert ran(text, "def f(x): return x.first").dynamic is dynamic
    assert not ran(text, library=True).dynamic
    holder = Holder("attributes", "o", {"a": 1})
    assert names.counts(holder, "nobody") is dynamic
    # AND whatever is a whole, or no attribute, counts in any case
    assert Names().counts(Holder("attributes", "o", {}, whole=True), "nobody")
    assert Names().counts(Holder("dict", "o", {}), "nobody")


def test_what_the_user_s_code_names_is_his_own_and_what_a_library_s_does_has_run() -> None:
    # GIVEN code of the user's and of a library's, each of which has run twice
    names = ran(*["def f(x):\n import json\n return rate * x.scale"] * 2)
    assert {"rate", "scale", "json"} <= names.own == names.known
    assert names.modules == {"json"}
    ((space, known),) = names.spaces.values()
    assert (space is USERS, "rate" in known, "scale" in known, names.ran) == (True, True, False, [])
    names = ran("def f(x): return rate * x.scale", library=True)
    assert (names.own, names.modules, names.spaces) == (set(), set(), {})
    assert {"rate", "scale"} <= names.known
    assert [space is vars(torch) for _, space in names.ran] == [True]
    # AND of the simulated device, which stands for a driver, nothing counts
    names = Names()
    names.add(code_of("def f(x): return x.scale"), {"__name__": "paramgraph_kit.driver.sim.graph"})
    assert names.known == set()


def test_a_line_is_told_where_code_of_the_user_s_names_something() -> None:
    # GIVEN a name that a library's code has, and the user's code after it WHEN asked for its line THEN it is his
    text = "def f(x):\n    y = 1\n    return x.scale\n"
    names = Names()
    names.add(code_of(text, torch.__file__), vars(torch))
    assert names.line_of("scale") is None
    names.add(code_of(text), USERS)
    found = names.line_of("scale")
    assert isinstance(found, Frame)
    assert (found.file, found.line) == (__file__, 3)
    assert names.line_of("nobody") is None


class One:
    """Has a count."""

    def __init__(self) -> None:
        self.count = 1


class Other(One):
    """Has one as well."""


def may_read(names: Names, owner: type | None, value: Any = 1, kind: str = "attributes") -> bool:
    return names.counts(Holder(kind, "o", {"count": value}, owner=owner), "count")


def test_a_number_counts_where_code_ran_on_its_object() -> None:
    # GIVEN code that reads a count of its first argument, which was an object of one class
    code = code_of("class C:\n def f(self): return self.count + 1")
    names = Names()
    names.add(code, USERS)
    # WHEN nobody has noted on what it ran THEN all may have been read
    assert may_read(names, Other)
    names.met(code, {})
    names.met(code, {"other": One()})
    assert may_read(names, Other)
    # AND once that is known objects of that class count, and of no other
    names.met(code, {"self": One()})
    assert [may_read(names, kind) for kind in (One, Other, None)] == [True, False, True]
    names.met(code, {"self": Other()})
    assert may_read(names, Other)
    assert not may_read(names, dict)
    # AND whatever is no plain value, no attribute, or spelled in a text counts of all
    assert may_read(names, dict, [1])
    assert may_read(names, dict, kind="slots")
    names.spell({"count"})
    assert may_read(names, dict)


def test_code_that_reads_a_count_of_anything_may_have_read_it_of_any_object() -> None:
    # GIVEN code that has met one class, and code that reads the count of another argument, or inside of the first
    method = code_of("class C:\n def f(self): return self.count + 1")
    for text in ("def f(x, y): return y.count + 1", "def f(x): return x.inner.count + 1"):
        names = Names()
        names.add(method, USERS)
        names.met(method, {"self": One()})
        assert not may_read(names, Other)
        # WHEN it runs THEN all count
        names.add(code_of(text), USERS)
        assert may_read(names, Other)
    # AND so they do once compiled code has run
    names = Names()
    names.add(method, USERS)
    names.met(method, {"self": One()})
    names.compiled = True
    assert may_read(names, Other)


def test_compiled_code_may_have_read_all_of_a_module_and_of_nothing_else() -> None:
    # GIVEN compiled code that has run, or none WHEN asked for what nobody names THEN a module's own counts
    module, plain = Holder("attributes", "m", {"_modules": {}}), Holder("attributes", "o", {})
    slots = Holder("slots", "o", object())
    for compiled in (False, True):
        names = Names(compiled=compiled)
        assert [names.counts(each, "nobody") for each in (module, plain, slots)] == [compiled, False, False]


def test_a_module_s_tensors_are_constants_of_its_code() -> None:
    # GIVEN a module of operations with a tensor, a buffer and a number WHEN its code runs, twice THEN these are known
    made, other = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph()), torch.nn.Module()
    made.register_buffer("kept", torch.ones(2))
    made.own, made.number = torch.ones(3), 3  # type: ignore[assignment]
    other.own = torch.ones(4)
    names, code = Names(), code_of("def f(self): return 1")
    names.add_module(code, made)
    assert sorted(tuple(t.shape) for t in names.constants.values()) == [(2,), (3,)]
    names.add_module(code, other)
    assert len(names.constants) == 2
    # AND so are another one's, whose code may be the same but for its file
    alike = code_of("def f(self): return 1", "<eval_with_key>.7")
    assert alike == code
    names.add_module(alike, other)
    assert len(names.constants) == 3


def test_code_that_is_alike_in_another_file_has_global_names_of_its_own() -> None:
    # GIVEN two files with the same function on the same line WHEN both have run THEN both files' names count
    text = "def f(x): return x * rate"
    first, second = {"__name__": "a", "rate": 1.0}, {"__name__": "b", "rate": 2.0}
    codes = [code_of(text, __file__), code_of(text, f"{__file__}.b.py")]
    assert codes[0] == codes[1]
    names = Names()
    for code, space in zip(codes, (first, second), strict=True):
        names.add(code, space)
    assert [space is each for (space, _), each in zip(names.spaces.values(), (first, second), strict=True)] == [
        True
    ] * 2
    # AND so do those of a library's
    names = Names()
    for file in (torch.__file__, torch.nn.__file__):
        names.add(code_of(text, file), {"__name__": file})
    assert [space["__name__"] for _, space in names.ran] == [torch.__file__, torch.nn.__file__]


def test_a_copy_knows_as_much_and_learns_nothing() -> None:
    # GIVEN names WHEN copied THEN it knows them, and what runs later is the first's alone
    names = ran("def f(x): return rate * x.scale")
    copy = names.copy()
    assert (copy.known, copy.own, copy.modules, copy.dynamic) == (names.known, names.own, names.modules, False)
    names.add(code_of("def f(x): return size * x.other"), USERS)
    assert "other" in names.known
    assert "other" not in copy.known | copy.own | set(copy._naming)
    ((_, known),) = copy.spaces.values()
    assert "size" not in known


class Proxy:
    """Looks up in another one what it has not."""

    def __getattr__(self, name: str) -> Any:
        return getattr(super(), name)


class Whole:
    """Looks everything up in another one."""

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)


class Computed:
    """Computes one attribute."""

    @property
    def count(self) -> int:
        return 1

    shared = 3


@pytest.mark.parametrize(
    ("kind", "name", "passes"),
    [
        (One, "count", False),
        (Proxy, "count", True),
        (type("Below", (Proxy, One), {}), "count", True),
        (Whole, "count", True),
        (type("Below", (One, Whole), {}), "count", True),
        (Computed, "count", True),
        (Computed, "shared", False),
        (Computed, "other", False),
        (torch.nn.Linear, "count", False),
        (torch.nn.Linear, "forward", True),
        (dict, "count", False),
    ],
)
def test_who_looks_attributes_up_elsewhere_passes_them_on(kind: type, name: str, passes: bool) -> None:
    # GIVEN classes that have attributes, compute them, or look them up in others WHEN asked THEN these pass them on
    assert _passes_on(kind, name) is passes
