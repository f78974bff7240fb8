"""What was set on the ways through lines around a step, and one run of a function that is followed."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paramgraph_kit.doctor.observe.captured_values import NOTHING
from paramgraph_kit.doctor.observe.loop_values import (
    Names,
)

MODE, LEARNS, MEMORY, GRADIENT = "training", "requires_grad", "data", "grad"
PARTS = "_modules"  # what a module is made of, and its hooks
HOOKS = "_backward_hooks"  # of a module or a parameter, where gradients pass
STATE, GROUPS = "state", "param_groups"  # of an optimizer
ENTRIES = "[...]"  # what a list or a dictionary has
ANY = "*"  # something of an object, which no text tells
GROWS = (
    *("add_module", "register_module", "register_forward_hook", "register_forward_pre_hook", "register_parameter"),
    *("register_buffer", "set_submodule"),
)
HOOKED = (
    *("register_hook", "register_post_accumulate_grad_hook", "register_full_backward_hook"),
    *("register_full_backward_pre_hook", "register_backward_hook"),
)
DEEP = 8  # functions that call each other
MOST_STATEMENTS = 20_000
MOST_ALIKE = 8  # methods of one name
Function = ast.FunctionDef | ast.AsyncFunctionDef
Key = tuple[int, str]  # of what is set: an object, and its attribute or "[entry]"


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """A line that sets something."""

    file: str
    function: str
    node: ast.AST
    target: str  # as it is written there
    owner: Any
    name: str
    is_late: bool  # the step was called before


@dataclass(slots=True)
class State:
    """What may have set each thing last; nothing of what is as it was at the beginning."""

    last: dict[Key, frozenset[int]] = field(default_factory=dict)
    has_stepped: bool = False

    def copy(self) -> State:
        """The same, which ways that part go on from."""
        return State(dict(self.last), self.has_stepped)

    def join(self, other: State) -> None:
        """Add what another way that ends here may have set."""
        begun = frozenset({0})
        for key in self.last.keys() | other.last.keys():
            self.last[key] = self.last.get(key, begun) | other.last.get(key, begun)
        self.has_stepped |= other.has_stepped


class Run:
    """One run of a function: its variables, and where its ways end."""

    def __init__(self, names: Names, file: str, name: str, owner: Any, gives: Callable[[Any], None] | None) -> None:
        self.names, self.file, self.name, self.owner, self.gives = names, file, name, owner, gives
        self.broken: list[State] = []
        self.continued: list[State] = []
        self.returned: list[State] = []
        self.result: Any = NOTHING
        self.bound: dict[str, Any] = {}  # what variables are known to mean, whatever line gives it to them


class NotFollowed(Exception):  # noqa: N818 - no error: this body is left out
    """There are too many lines, or graphs of their own, which are told of otherwise."""


@dataclass(slots=True)
class Found:
    """What may be set where a step is called, for each thing: by which lines (0 is none), and its values there."""

    given: dict[int, Given] = field(default_factory=dict)
    values: dict[int, list[Any]] = field(default_factory=dict)
    at_step: dict[Key, set[int]] = field(default_factory=dict)
    owners: dict[int, Any] = field(default_factory=dict)  # kept, so that no other gets its number
    steps: list[ast.Call] = field(default_factory=list)  # calls of the step


@dataclass(frozen=True, slots=True)
class Called:
    """A function that a call runs, the object that it belongs to, and what it is given."""

    node: Function
    owner: Any
    file: str
    args: list[ast.expr] = field(default_factory=list)
    keywords: dict[str, ast.expr] = field(default_factory=dict)
