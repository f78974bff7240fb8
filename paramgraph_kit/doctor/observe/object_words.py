"""Words for a line that exchanges an object whose tensors a graph reads: ``self.state = State(...)``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import torch

from paramgraph_kit.doctor.explain.syntax import last_name
from paramgraph_kit.doctor.observe.captured_values import NOTHING, Use
from paramgraph_kit.doctor.observe.held import is_a


def into_its_tensors(node: ast.AST, target: str, given: str, use: Use, uses: Iterable[Use]) -> str:
    """The same with its tensors written over, and all else of it new; "" where a line is none such."""
    read = use.node
    if not isinstance(node, ast.Assign) or not isinstance(read, ast.Attribute) or not _is_named(read.value, target):
        return ""
    owner = use.owner()
    if owner is NOTHING or is_a(owner, (torch.Tensor, torch.nn.Module)):
        return ""
    tensors = (each for each in uses if is_a(each.value(), torch.Tensor) and each.owner() is owner)
    parts = sorted({each.node.attr for each in tensors if isinstance(each.node, ast.Attribute)})
    copies = "; ".join(f"{target}.{part}.copy_(new.{part})" for part in parts)
    fields = ", ".join(f"{part}={target}.{part}" for part in parts)
    if is_a(owner, tuple):
        return f"new = {given}; {copies}; {target} = new._replace({fields})"
    if getattr(getattr(owner, "__dataclass_params__", None), "frozen", False):
        return f"new = {given}; {copies}; {target} = dataclasses.replace(new, {fields})"
    back = "; ".join(f"new.{part} = {target}.{part}" for part in parts)
    return f"new = {given}; {copies}; {back}; {target} = new"


def _is_named(owner: ast.expr, target: str) -> bool:
    """Whether it is what a line gives another value, as each calls it: ``self.state`` and ``engine.state``."""
    return isinstance(owner, (ast.Name, ast.Attribute)) and last_name(owner) == target.rpartition(".")[2]
