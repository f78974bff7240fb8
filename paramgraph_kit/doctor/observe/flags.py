"""Truths that are given to torch and decide what runs, as a branch does: whether there are gradients, or a mode."""

from __future__ import annotations

import ast

from paramgraph_kit.doctor.explain.syntax import last_name

_BY_KEYWORD = ("create_graph", "requires_grad", "enabled", "training", "track_running_stats")
_FIRST = ("set_grad_enabled", "inference_mode", "requires_grad_", "train")


def flags_of(call: ast.Call) -> list[ast.expr]:
    """What of a call's arguments is such a truth, and no constant: ``torch.set_grad_enabled(step > 3)``."""
    given = [each.value for each in call.keywords if each.arg in _BY_KEYWORD]
    given += call.args[:1] if last_name(call.func) in _FIRST else []
    return [each for each in given if not isinstance(each, ast.Constant)]
