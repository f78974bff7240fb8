"""What a walk over a step's objects finds, by what name, and where it ends."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paramgraph_kit.backend.code_names import is_foreign_module
from paramgraph_kit.step.holders import _is_of_library
from paramgraph_kit.step.names import Names
from paramgraph_kit.step.reach import Reach


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "told"), [("net", "net"), ("", "the step")])
def test_the_first_module_that_torch_jit_has_compiled_is_told(name: str, told: str) -> None:
    # GIVEN such modules WHEN walked, one of them without a name THEN the first is told, by some name
    modules = [torch.jit.script(torch.nn.Linear(2, 2)) for _ in range(2)]
    assert Reach([(name, modules[0]), ("other", modules[1])], [], Names()).scripted == told
    assert Reach([(name, torch.nn.Linear(2, 2))], [], Names()).scripted == ""


@pytest.mark.parametrize(
    "named", [(), ("getattr",), ("hasattr",), ("AttributeError",), ("vars",), ("__dict__",), ("x",)]
)
def test_attributes_of_a_tensor_are_places_where_there_are_some_or_the_code_may_ask_for_others(
    named: tuple[str, ...],
) -> None:
    # GIVEN tensors without attributes and with one, and code that may ask for what is not there WHEN walked
    plain, noted, other = torch.ones(2), torch.ones(2), torch.ones(3)
    noted.mine = other  # type: ignore[attr-defined]
    reach = Reach([("plain", plain), ("noted", noted)], [], Names(own=set(named)))
    # THEN those of the second are a place in any case, those of the first where it may ask
    asked = bool(named) and named != ("x",)
    found = [(holder.name, holder.whole) for holder in reach.holders if holder.kind == "attributes"]
    names = ["plain", "noted", "noted.mine"] if asked else ["noted"]
    assert found == [(name, False) for name in names]
    # AND what they hold is walked too, by its name
    assert reach.tensors[id(other)] == ("noted.mine", other)
    assert [name for name, _ in reach.tensors.values()] == ["plain", "noted", "noted.mine"]


def test_gradients_are_places_of_leaves_that_may_have_one() -> None:
    # GIVEN leaves that need gradients, parameters that do not, what was computed, and what needs none WHEN walked
    leaf, frozen = torch.ones(2, requires_grad=True), torch.nn.Parameter(torch.ones(2), requires_grad=False)
    given: dict[str, torch.Tensor] = {"leaf": leaf, "frozen": frozen, "made": leaf * 2, "plain": torch.ones(2)}
    leaf.grad = torch.ones(2)
    reach = Reach(list(given.items()), [], Names())
    # THEN the first two have one, and what is there is walked
    assert [holder.name for holder in reach.holders if holder.kind == "gradient"] == ["leaf", "frozen"]
    assert [name for name, _ in reach.tensors.values()] == ["leaf", "leaf.grad", "frozen", "made", "plain"]
    # AND hooks are walked as well
    seen: list[torch.Tensor] = [torch.ones(1)]
    leaf.register_hook(lambda gradient: seen[0])
    assert any(tensor is seen[0] for _, tensor in Reach([("leaf", leaf)], [], Names()).tensors.values())


@pytest.mark.parametrize(
    ("flags", "library"),
    [(0, True), (1 << 9, False), (1 << 8, True), (1 << 8 | 1 << 9, True), (1 << 10, True), (1 << 9 | 1 << 10, False)],
)
def test_a_class_that_says_it_is_built_in_is_where_c_has_made_it(flags: int, library: bool) -> None:
    # GIVEN a class that names the built-in module, with flags of a type's: immutable, on the heap, open to subclasses
    kind: Any = SimpleNamespace(__module__="builtins", __flags__=flags)
    # WHEN asked THEN one on the heap that anybody may write is a class statement's
    assert _is_of_library(kind) is library
    assert _is_of_library(int)
    space: dict[str, Any] = {"__name__": "builtins"}
    exec("class Mine: pass", space)
    assert not _is_of_library(space["Mine"])


def test_a_program_is_no_library_whoever_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a program that a package runs in its own process, as `python -m` does
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=pytest.__file__))
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("class Mine: factor = 1.0", space)
    # WHEN asked whether its classes are that package's THEN they are not: what they hold may change at any time
    assert not _is_of_library(space["Mine"])
    assert not is_foreign_module("__main__")
    assert is_foreign_module("pytest")
