"""What a call leaves otherwise that a graph reads: a schedule rates, ``eval()`` modes, ``requires_grad_`` flags."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.observe.captured_values import Names, Use
from paramgraph_kit.doctor.observe.held import is_a, parameters_at

Place = tuple[Callable[[Any], None], Any, Any]  # what writes it, what it is, and what it is to be
_MODES = ("eval", "train")


def called_places(code: CodeType, call: ast.expr, names: Names) -> Iterator[Place]:
    """What a call changes, each with what changes it."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return
    method, value = call.func.attr, Use(code, call.func.value, False, names).value()
    flag = _flag(call)
    if method == "step" and is_a(value, LRScheduler):
        for group in value.optimizer.param_groups:
            if type(rate := group["lr"]) is float:
                yield partial(group.__setitem__, "lr"), rate, rate * 0.5
    elif method in _MODES and is_a(value, torch.nn.Module) and not _is_put_back(code, call):
        mode = flag if method == "train" else False
        for each in value.modules() if mode is not None else ():
            if each.training is not mode:
                yield partial(vars(each).__setitem__, "training"), each.training, mode
    elif method == "requires_grad_" and flag is not None and not _is_put_back(code, call):
        held = [value] if is_a(value, torch.Tensor) else parameters_at(value)
        yield from (
            (partial(_learns, p), p.requires_grad, flag) for p in held if p.requires_grad is not flag and p.is_leaf
        )


def set_flag(code: CodeType, target: ast.expr, value: ast.expr | None, names: Names) -> Iterator[Place]:
    """``p.requires_grad = False``, which modes and flags are set by as well."""
    if not isinstance(target, ast.Attribute) or not isinstance(value, ast.Constant) or type(value.value) is not bool:
        return
    owner = Use(code, target.value, False, names).value()
    if target.attr == "requires_grad" and is_a(owner, torch.Tensor):
        if owner.is_leaf and owner.requires_grad is not value.value:
            yield partial(_learns, owner), owner.requires_grad, value.value
    elif target.attr == "training" and is_a(owner, torch.nn.Module) and owner.training is not value.value:
        yield partial(vars(owner).__setitem__, "training"), owner.training, value.value


def _learns(parameter: torch.Tensor, learns: bool) -> None:
    parameter.requires_grad_(learns)


def _flag(call: ast.Call) -> bool | None:
    """``False`` of ``train(False)``; True of ``train()``; None where nobody knows."""
    given = [*call.args, *(k.value for k in call.keywords)]
    if not given:
        return True
    return bool(given[0].value) if isinstance(given[0], ast.Constant) else None


def _is_put_back(code: CodeType, call: ast.Call) -> bool:
    """Whether a line behind it, in its function, asks the same object for the same kind of thing again."""
    kinds = _MODES if last_name(call.func) in _MODES else (last_name(call.func),)
    path = ast.unparse(call.func.value)  # type: ignore[attr-defined]
    calls = (n for n in nodes_of(code) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute))
    return any(
        n.lineno > call.lineno and n.func.attr in kinds and ast.unparse(n.func.value) == path  # type: ignore[attr-defined]
        for n in calls
    )
