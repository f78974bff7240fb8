"""Numbers of Python's that a capture has made tensors of: each replay begins with the number again.

``self.time += dt`` adds in place to a tensor. Where ``self.time`` is 0.0 when the capture begins, it makes one of the
graph's own, and every replay writes ``0.0 + dt`` there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from paramgraph_kit.doctor.explain.syntax import tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.captured_values import NOTHING, Use
from paramgraph_kit.doctor.observe.held import attributes_of, is_a
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.observe.warm_up_blocks import warm_up_of
from paramgraph_kit.trace.model import Failure

TEXT = (
    "{path} was a number when the capture began, and is a tensor that the graph makes: each replay begins with that "
    "number again"
)


def begun_as_numbers(region: Region, added: Iterable[tuple[ast.AugAssign, Use]]) -> Iterator[Failure]:
    """Lines of a capture that add to what was a number when it began, and is a tensor behind it."""
    for node, use in added:
        if is_a(use.value(), torch.Tensor) and (made := made_as(region, use)):
            text = TEXT.format(path=use.text)
            fix = f"before  {ast.unparse(node)}\nafter   {made}, where it is made, and this line as it is"
            yield replace(BY_ID["stale-input"].failure(text, frame_at(use.code, node.lineno)), fix=fix)


def made_as(region: Region, use: Use) -> str:
    """A line that makes a tensor of what was a number when a capture began; "" where it was none."""
    values = [*_first_values(region, use)]
    numbers = [v for v in values if isinstance(v, ast.Constant) and type(v.value) in (int, float)]
    if region.numbers is None:  # it was captured before anybody looked
        if not numbers or len(numbers) != len(values) or warm_up_of(region) is not None:
            return ""
    elif not _was_number(region, use):
        return ""
    number = ast.unparse(numbers[0]) if numbers else "0.0"
    return f"{use.text} = torch.tensor({number}, device={region.settings[0]!r})"


def _was_number(region: Region, use: Use) -> bool:
    if isinstance(use.node, ast.Name):
        return use.node.id not in use.names.own and (id(use.names.space), use.node.id) in (region.numbers or ())
    owner = use.owner()
    held = attributes_of(owner) if isinstance(use.node, ast.Attribute) and owner is not NOTHING else None
    return held is not None and (id(held), use.node.attr) in (region.numbers or ())  # type: ignore[attr-defined]


def _first_values(region: Region, use: Use) -> Iterator[ast.expr]:
    """What other lines of the file give an attribute, or a variable of the file."""
    tree = tree_of(region.file or region.code.co_filename)
    last = use.node.attr if isinstance(use.node, ast.Attribute) else use.text
    inside = {n for s in region.body for n in ast.walk(s)}
    for node in ast.walk(tree) if tree is not None else ():
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if target is None or node in inside or type(target) is not type(use.node):
            continue
        if last == (target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")):
            own = any(ast.unparse(n) == use.text for n in ast.walk(node.value))  # type: ignore[attr-defined]
            if not own:
                yield node.value  # type: ignore[attr-defined]
