"""Numbers that grow by how many the device has found, ``self.ended += len(ids)``, where a call has found none."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from types import CodeType

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.moving import Moving
from paramgraph_kit.doctor.observe.observer import Step
from paramgraph_kit.doctor.observe.places import lines_in
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure


def problems(nodes: Iterable[tuple[CodeType, ast.AST]], moving: Moving, steps: Iterable[Step]) -> Iterator[Failure]:
    """Lines of a branch that add such a count to what the host holds: it added nothing there, and will later."""
    on_device = lines_in(step.place.stack for step in steps if step.on_device)  # a tensor that is added to
    for code, node in nodes:
        if not isinstance(node, ast.AugAssign) or not isinstance(node.target, (ast.Attribute, ast.Subscript)):
            continue
        if (display_name(code.co_filename), node.lineno) not in on_device and moving.is_count(node.value, code):
            said = f"{ast.unparse(node.target)} grows by how many the device finds, and found none in these calls"
            yield BY_ID["host-counter"].failure(said, frame_at(code, node.lineno))
