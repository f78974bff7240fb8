"""What is kept of an argument, which all calls get: ``self.prev = x``, of which the next call reads both.

Or what the first call has made of it, kept by which tensor it is: ``if x is not self.x``, ``lru_cache``.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from types import CodeType

import torch
from torch.utils._pytree import tree_map

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.compare import differences
from paramgraph_kit.doctor.observe.held import tensors_in
from paramgraph_kit.doctor.observe.one_call import Call, Caller
from paramgraph_kit.doctor.observe.source_lines import written_at
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure, Frame

BY_OBJECT = (
    "it goes another way for another tensor, and a graph is given one and the same: "
    "make that in each launch, or ahead of them"
)


def problems(
    caller: Caller, first: Call, base: Call, codes: list[CodeType], known: Collection[Failure]
) -> Iterator[Failure]:
    """What keeps an argument, or what is made of it, where no two of the calls with the same tensors show it."""
    yield from _kept(first, tensors_in((caller.args, caller.kwargs)), codes, known)
    yield from _by_object(caller, first, base, known)


def _by_object(caller: Caller, first: Call, base: Call, known: Collection[Failure]) -> Iterator[Failure]:
    """Branches that only the first call has taken, and that one with another tensor of the same numbers takes again."""
    if first is base or first.on_device <= base.on_device:
        return
    args, kwargs = tree_map(_copied, (caller.args, caller.kwargs))
    other = caller.call(args, kwargs, drawing=base.number)
    again = caller.call(args, kwargs, drawing=base.number) if other.ended is None else other
    if again.ended is not None or other.on_device <= again.on_device:
        return
    told = {(f.code, f.frame) for f in known}
    for failure in differences(other.steps, again.steps, random_drawn=False):
        if failure.code == "branch-frozen" and (failure.code, failure.frame) not in told:
            yield BY_ID["branch-frozen"].failure(BY_OBJECT, failure.frame)


def _copied(value: object) -> object:
    return value.clone() if type(value) is torch.Tensor and not value.requires_grad else value


def _kept(
    first: Call, given: Collection[torch.Tensor], codes: list[CodeType], known: Collection[Failure]
) -> Iterator[Failure]:
    """Lines of the first call that keep what it was given where it has read, or asked, what was kept before."""
    read = {key for step in first.steps for key in step.outside}
    own = {storage_key(tensor) for tensor in given}
    told = {(f.code, f.frame) for f in known}
    for change in (entry for each in first.changes for entry in each.entries((torch.Tensor,))):
        then, now = change.before, change.after
        if not isinstance(now, torch.Tensor) or storage_key(now) not in own:
            continue
        frame = written_at(change, codes)
        was_read = isinstance(then, torch.Tensor) and storage_key(then) in read - own
        was_asked = then is None and frame is not None and any(_asks_before(code, frame, change.name) for code in codes)
        if frame is not None and (was_read or was_asked) and ("stale-input", frame) not in told:
            said = f"{change.name} is what the call was given, which the next one reads: a new input is written there"
            yield BY_ID["stale-input"].failure(said, frame)


def _asks_before(code: CodeType, frame: Frame, name: str) -> bool:
    """Whether a function reads a name ahead of its line, which is done in each call."""
    nodes = [*nodes_of(code)]
    own = [n for n in nodes if isinstance(n, ast.Assign) and n.lineno == frame.line]
    branches = [n for n in nodes if isinstance(n, ast.If) and n.lineno < frame.line <= (n.end_lineno or 0)]
    paths = [n for n in nodes if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Load)]
    before = [n for n in paths if n.lineno < frame.line and getattr(n, "attr", getattr(n, "id", "")) == name]
    return code.co_name == frame.function and bool(own) and not branches and bool(before)
