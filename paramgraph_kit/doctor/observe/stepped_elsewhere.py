"""Optimizers that the lines of a capture name, and never step with: their rates are no numbers of its graph."""

from __future__ import annotations

import ast
from types import FunctionType
from typing import TYPE_CHECKING

import torch

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.observe.captured_entries import above_of
from paramgraph_kit.doctor.observe.captured_values import Moved, Use
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.driver.files import is_library

if TYPE_CHECKING:
    from paramgraph_kit.doctor.observe.own_regions import Region

_NO_RATES = ("zero_grad", "state", "state_dict")


def is_stepped_elsewhere(moved: Moved, region: Region) -> bool:
    """Whether all that a capture does with an optimizer is to hand it on, or to clear its gradients."""
    if not isinstance(moved.owner, torch.optim.Optimizer) or region.values is None:
        return False
    uses = [use for use in region.values.uses if use.value() is moved.owner]
    return bool(uses) and not any(_reads(use, region) for use in uses)


def _reads(use: Use, region: Region) -> bool:
    nodes = nodes_of(use.code) if use.code is not region.code else (n for s in region.body for n in ast.walk(s))
    alike = (n for n in nodes if isinstance(n, type(use.node)) and ast.unparse(n) == use.text)
    return any(_may_read(use, node) for node in alike)


def _may_read(use: Use, node: ast.AST) -> bool:
    """Whether a place that has an optimizer may read its numbers; the user's functions are looked at themselves."""
    above = above_of(use.code, node)
    if isinstance(above, ast.Attribute):
        return above.attr not in _NO_RATES
    if not isinstance(above, ast.Call) or node not in above.args:
        return True
    function = Use(use.code, above.func, False, use.names).value()
    function = getattr(function, "__func__", function)
    return not is_a(function, FunctionType) or is_library(function.__code__.co_filename)
