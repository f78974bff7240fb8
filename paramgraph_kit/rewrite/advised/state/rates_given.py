"""Advice for an optimizer that each step makes anew, with the rate that the host has then: ``SGD(ps, lr=self.lr)``."""

from __future__ import annotations

import ast

import torch

from paramgraph_kit.rewrite.advised.asks.moving_slices import found_before
from paramgraph_kit.rewrite.source.edits import path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, called, fresh

_FUSED = ("SGD", "Adagrad")  # the others have `capturable`


def rate_given_anew(place: Place) -> str:
    """``opt = SGD(ps, lr=self.lr)`` in the step, and ``opt.step()``: the rate is filled, as that class takes it."""
    function = place.source.function_of(place.statement)
    if place.failure.code != "learning-rate-frozen" or function is None:
        return ""
    every = [n for part in function.body for n in within(part) if isinstance(n, ast.Assign)]
    for name in (path_of(c.func.value) for c in place.calls("step") if isinstance(c.func, ast.Attribute)):
        made = [n for n in every if any(path_of(target) == name for target in n.targets)]
        if len(made) == 1 and isinstance(made[0].value, ast.Call) and (told := _filled(place, made[0].value)):
            return told
    return ""


def _filled(place: Place, call: ast.Call) -> str:
    """How the call that makes it is written then."""
    kind = called(call)
    rate = next((o.value for o in call.keywords if o.arg == "lr"), call.args[1] if len(call.args) > 1 else None)
    if not isinstance(getattr(torch.optim, kind, None), type) or rate is None or isinstance(rate, ast.Constant):
        return ""
    function = place.source.function_of(call)
    given = {*arguments_of(function)} if function is not None and not place.helper else {"self"}
    if place.local(rate) - given:
        return ""  # which no line ahead of the launch has
    option, name = "fused" if kind in _FUSED else "capturable", fresh("lr_in", place.taken)
    last = f"{option}=True"
    arguments = [place.text(a) if a is not rate else name for a in call.args]
    arguments += [f"{o.arg}={name}" if o.value is rate else place.text(o) for o in call.keywords if o.arg != option]
    here = f"`{place.text(call.func)}({', '.join([*arguments, last])})` at line {call.lineno}"
    return found_before(name, place.text(rate), "", place, here, call.lineno)
