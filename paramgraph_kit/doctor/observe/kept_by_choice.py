"""A result that a step keeps where a value of the device lets it, ``if acc > self.best: self.best = acc``."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from types import CodeType

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.source_lines import Line, frame_at, written_at
from paramgraph_kit.doctor.restore.holder import Change
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.driver.select import driver
from paramgraph_kit.trace.model import Failure

SAYS = "keeps a result of some calls, as it is: each further replay writes to the same memory"
_HELD = ("attribute", "global", "cell")
_VIEWS = ("detach", "view", "reshape", "squeeze", "flatten")


def problems(changes: Iterable[Change], codes: Collection[CodeType], waited: Collection[Line]) -> Iterator[Failure]:
    """Names that get a tensor of the step's itself in a branch that waits for the device, ``waited`` in its test.

    What is computed or copied there is a tensor of its own, once the branch is behind the launch.
    """
    device = driver().device.type
    for change in (c for c in changes if c.kind in _HELD and c.before is not c.after):
        then, now = change.before, change.after
        is_result = isinstance(then, torch.Tensor) and isinstance(now, torch.Tensor) and now.device.type == device
        at = written_at(change, codes) if is_result else None
        for code in codes if at is not None else ():
            for node in _in_branches(code, waited):
                if frame_at(code, node.lineno) == at and _is_path(node.value):
                    what = f"{change.owner}.{change.name}" if change.owner else change.name
                    yield BY_ID["output-alias"].failure(f"{what} {SAYS}", at)


def _in_branches(code: CodeType, waited: Collection[Line]) -> Iterator[ast.Assign]:
    """Assignments of one name each where some value of the device's decides whether they run."""
    file = display_name(code.co_filename)
    for branch in (n for n in nodes_of(code) if isinstance(n, ast.If)):
        if any((file, line) in waited for line in range(branch.lineno, (branch.test.end_lineno or 0) + 1)):
            inside = [n for part in (*branch.body, *branch.orelse) for n in ast.walk(part)]
            yield from (n for n in inside if isinstance(n, ast.Assign) and len(n.targets) == 1)


def _is_path(value: ast.expr) -> bool:
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and last_name(value.func) in _VIEWS:
        value = value.func.value
    return isinstance(value, (ast.Name, ast.Attribute))
