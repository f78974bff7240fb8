"""States that are an argument itself from the first call on: ``self.prev = x``, of which the next call reads both.

All calls are given the same tensors, so that no two of them read others there.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.held import tensors_in
from paramgraph_kit.doctor.observe.one_call import Call
from paramgraph_kit.doctor.observe.source_lines import written_at
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure, Frame


def problems(first: Call, given: Any, codes: list[CodeType], known: Collection[Failure]) -> Iterator[Failure]:
    """Lines of the first call that keep what it was given where it has read, or asked, what was kept before."""
    read = {key for step in first.steps for key in step.outside}
    own = {storage_key(tensor) for tensor in tensors_in(given)}
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
