"""A state that a captured call begins where there is none yet: each replay begins it anew, and none goes on with it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.held import attributes_of, is_a
from paramgraph_kit.doctor.observe.lines_behind import codes_of
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.trace.model import Failure


def begun_inside(region: Region, makes: Callable[[torch.Tensor], bool]) -> Iterator[Failure]:
    """Lines ``if self.mean is None: self.mean = ...`` with another way, of which a capture has taken the first.

    ``makes`` says whether memory is a graph's: what lies there was made by the captured call.
    """
    held = attributes_of(region.names.get("self"))
    for code in codes_of(region):
        for node in (n for n in nodes_of(code) if isinstance(n, ast.If)):
            name = _begun(node)
            value = held.get(name)
            if name and is_a(value, torch.Tensor) and makes(value):
                text = f"self.{name} was None at the capture: each replay begins it anew, and never takes the other way"
                line = f"if {ast.unparse(node.test)}:"
                after = (
                    f"`self.{name}` is a tensor from the start, `self.begun = torch.zeros((), dtype=torch.bool, ...)` "
                    "beside it, and `torch.where(self.begun, ..., ...)` chooses between both ways"
                )
                failure = BY_ID["branch-frozen"].failure(text, frame_at(code, node.lineno))
                yield replace(failure, fix=f"before  {line}\nafter   {after}")


def _begun(node: ast.If) -> str:
    """The attribute that a branch begins where it is None, or ""."""
    if not node.orelse or not isinstance(node.test, ast.Compare):
        return ""
    asked, (is_, *_), (none, *_) = node.test.left, node.test.ops, node.test.comparators
    nothing = isinstance(is_, ast.Is) and isinstance(none, ast.Constant) and none.value is None
    if not nothing or not isinstance(asked, ast.Attribute) or ast.unparse(asked.value) != "self":
        return ""
    stores = (n for part in node.body for n in ast.walk(part) if isinstance(n, ast.Attribute))
    begun = any(isinstance(n.ctx, ast.Store) and ast.unparse(n) == ast.unparse(asked) for n in stores)
    return asked.attr if begun else ""
