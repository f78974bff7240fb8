"""One call of a parameterized function, and those that are like it: the same trace, found in one look, and its launch.

What a trace may depend on is looked at as a whole: the versions of all dictionaries that the function reads, the kinds
of its tensors, torch's switches. Once a launch has settled, a function is generated that looks at all that, at the
addresses of parameters and buffers, and launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramgraph_kit.backend import call_state
from paramgraph_kit.backend.direct.calls import DirectCall
from paramgraph_kit.backend.direct.located import MISSED
from paramgraph_kit.backend.frozen.guards import equal_tests
from paramgraph_kit.backend.frozen.source import call_of, launch_lines, returned
from paramgraph_kit.backend.lies_apart import LiesApart
from paramgraph_kit.backend.plain import PLAIN, flatten
from paramgraph_kit.backend.state import State
from paramgraph_kit.driver.native.tensors import Looks

ATTEMPTS = 16  # calls after which a launch that has not settled is left to the ordinary way
Call = Callable[[tuple[Any, ...], dict[str, Any]], Any]


def _missed(_args: tuple[Any, ...], _named: dict[str, Any]) -> Any:
    return MISSED


class Alike:
    """One call; ``call(args, named)`` launches those that are like it, or returns MISSED."""

    def __init__(self, state: State, leaves: Sequence[Any], spec: pytree.TreeSpec, writes: bool) -> None:
        self.call: Call = _missed
        self._attempts = 0
        self._state, self._spec = state, spec
        # Of the state as it was: what is settled anew later may hold other parameters.
        self._unchanged = state.settled
        self._values = [x for x in leaves if not isinstance(x, torch.Tensor)]
        given = [x for x in leaves if isinstance(x, torch.Tensor)]
        tensors = [*given, *state.tensors]
        self._count = len(given)
        # Nothing but tensors, as they stand in the call: there is nothing to flatten.
        self._flat = spec == flatten((tuple(given), {}))[1]
        self._switches, self._more = call_state.global_state_guard(), call_state.unguarded_switches()
        self._tensors, self._given = call_state.tensor_guard(tensors), call_state.tensor_guard(given)
        self._inference = [x.is_inference() for x in given]
        self._sharing = call_state.sharing(tensors)
        self._writes = writes
        self._apart = LiesApart(state.tensors)
        self.attributes_of: Callable[[Sequence[torch.Tensor]], Any] | None = None  # where code looks for such
        self.attributes: Any = ()

    @property
    def stands(self) -> bool:
        """Whether there may still be a call like it: nothing that the function reads was written."""
        return self._unchanged is not None and self._unchanged()

    def tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor] | None:
        """The inputs of the trace for this call, None if it is not like that one."""
        if self._flat:
            if kwargs or len(args) != self._count:
                return None
            given = list(args)
        else:
            leaves, spec = flatten((args, kwargs))
            given = [x for x in leaves if isinstance(x, torch.Tensor)]
            values = [x for x in leaves if not isinstance(x, torch.Tensor)]
            if spec != self._spec or len(values) != len(self._values) or not all(map(is_, values, self._values)):
                return None
        state = self._state
        if not self._switches() or not self.stands or not state.hidden_same():
            return None
        if not state.hidden_ids.isdisjoint(map(id, given)):
            return None  # code can tell that, too
        tensors = [*given, *state.tensors]
        if call_state.unguarded_switches() != self._more or not self._tensors(*tensors):
            return None  # the guard wants all tensors to be different ones: code can tell whether two arguments are one
        if [x.is_inference() for x in given] != self._inference:
            return None
        # Read only, memory may be shared.
        if (self._writes or self._sharing) and call_state.sharing(tensors) != self._sharing:
            return None
        if self._writes and not self._apart(given):
            return None
        tensors = [*state.tensors, *given]
        if self.attributes_of is not None and self.attributes_of(tensors) != self.attributes:
            return None
        return tensors

    def freeze(self, run: Any, args: tuple[Any, ...], named: Mapping[str, Any], made: Any, result: Any) -> None:
        """Let ``call`` launch from now on, where the call that gave ``made`` and from it ``result`` was one launch."""
        self._attempts += 1
        if self._attempts > ATTEMPTS or self._sharing or not isinstance(run, DirectCall):
            return
        values = {f"a{k}": value for k, value in enumerate(args)}
        values |= {f"n{k}": value for k, value in enumerate(named.values())}
        given = {id(value): name for name, value in values.items() if isinstance(value, torch.Tensor)}
        if len(given) != self._count or not all(isinstance(x, (torch.Tensor, *PLAIN)) for x in values.values()):
            return  # tensors inside of lists and dicts, or one given twice
        static = list(self._state.tensors)
        today = self._state.members.tensors()
        if today is None or not all(map(is_, today, static)) or not self.stands:
            return  # the state has another one meanwhile
        inputs = [x for x in pytree.tree_leaves((args, dict(named))) if isinstance(x, torch.Tensor)]
        if not self._tensors(*inputs, *static):
            return
        scope: dict[str, Any] = {"map": map, "list": list, "id": id, "static": static, "MISSED": MISSED}
        names = [*(None for _ in static), *(given[id(x)] for x in inputs)]
        if call_state.unguarded_switches() != self._more:
            return
        launch = launch_lines(run, [*static, *inputs], names, scope, switched=True)
        if launch is None:
            return
        if (back := returned(result, made, scope)) is None:
            return
        tests = self._tests([given[id(x)] for x in inputs], values, scope)
        self.call = call_of(args, named, tests, launch, back, scope)

    def _tests(self, tensors: Sequence[str], values: Mapping[str, Any], scope: dict[str, Any]) -> list[str]:
        """Expressions that must hold, the quickest first to tell calls of other kinds."""
        scope |= {"given": self._given, "alike": Looks(scope["static"]).same, "own": set(map(id, scope["static"]))}
        scope |= {"switches": self._switches, "unwritten": self._unchanged}
        scope |= {"more": call_state.unguarded_switches, "more_then": self._more}
        plain = {name: value for name, value in values.items() if not isinstance(value, torch.Tensor)}
        tests = equal_tests(plain, scope) or []
        tests += [f"given({', '.join(tensors)})", "switches()", "unwritten()", "more() == more_then"]
        tests += [f"id({name}) not in own" for name in tensors]  # code can tell that they are one
        tests += ["alike()"] * bool(scope["static"])
        if self._writes:  # what one input gets, another that shares its memory has
            scope |= {"sharing": call_state.sharing, "apart_in_memory": self._apart}
            tests.append(f"sharing([{', '.join([*tensors, '*static'])}]) == ()")
            tests.append(f"apart_in_memory([{', '.join(tensors)}])")
        if self.attributes_of is not None:
            scope |= {"attributes_of": self.attributes_of, "attributes": self.attributes}
            tests.append(f"attributes_of([*static, {', '.join(tensors)}]) == attributes")
        if self._state.hidden:
            scope["hidden_same"] = self._state.hidden_same
            scope["apart"] = self._state.hidden_ids.isdisjoint
            tests += ["hidden_same()", f"apart(map(id, [{', '.join(tensors)}]))"]
        tests += [f"{name}.is_inference() is {then}" for name, then in zip(tensors, self._inference, strict=True)]
        return tests
