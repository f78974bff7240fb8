"""What a step does to states of optimizers that its first call makes: calls more find them there, as later ones do."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from types import CodeType

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.observe.exchanged_on_modules import exchanged
from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.doctor.restore.holder import Holder
from paramgraph_kit.doctor.restore.host_state import is_optimizers
from paramgraph_kit.trace.model import Failure

_NAMED = ("state", "state_dict")  # how lines get at what an optimizer keeps


def problems(caller: Caller, base: Call, codes: Collection[CodeType], known: list[Failure]) -> Iterator[Failure]:
    """What such a call is found to do, where lines of the user's may do something to these states."""
    if not any(map(_may_begin, caller.state.holders)) or not any(map(_names_state, base.ran())):
        return
    if not caller.call(caller.args, caller.kwargs, begins=True).begun:
        return
    later = caller.call(caller.args, caller.kwargs)
    if later.ended is not None:
        return
    told = {(f.code, f.frame) for f in [*base.found, *known]}
    yield from (f for f in later.found if (f.code, f.frame) not in told)
    yield from exchanged(later.rebound, later.steps, codes, known, later.made_by)


def _may_begin(holder: Holder) -> bool:
    """Whether it has an optimizer of torch's that keeps nothing yet for some of its parameters."""
    if not is_optimizers(holder):
        return False
    state = holder.target["state"]
    return any(not state.get(p) for group in holder.target["param_groups"] for p in group["params"])


def _names_state(code: CodeType) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr in _NAMED for node in nodes_of(code))
