"""Advice for the rate of an optimizer that lines of the file set: ``group["lr"] = rate``."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import torch

from paramgraph_kit.rewrite.advised.state.groups import filled_before, in_tensors, multiplied, owner_of_groups
from paramgraph_kit.rewrite.advised.state.kept_outside import is_rate
from paramgraph_kit.rewrite.counting.optimizers import gone_through
from paramgraph_kit.rewrite.source.edits import Function, path_of, within
from paramgraph_kit.rewrite.source.place import Place, called


def rate_set(place: Place) -> str:
    """``group["lr"] = rate``, written by the step itself."""
    function = place.source.function_of(place.statement)
    if place.failure.code != "learning-rate-frozen" or function is None:
        return ""
    every = [n for part in function.body for n in within(part)]
    written = _rates_in(every)
    calls = [n for n in every if isinstance(n, ast.Call) and called(n) == "step" and isinstance(n.func, ast.Attribute)]
    moved = [path_of(n.func.value) for n in calls if isinstance(n.func, ast.Attribute)]
    for name in moved:
        if isinstance(place.value(name), torch.optim.lr_scheduler.LRScheduler):
            optimizer = next((each for each in moved if isinstance(place.value(each), torch.optim.Optimizer)), "")
            kept = f", and {in_tensors(place, optimizer)}" if optimizer else ", and its rate in a tensor"
            return f"`{name}.step()` belongs behind each launch{kept}"
    if not written and (
        told := _scaled(place, every, moved) or _rates_in_a_loop(place, calls) or _rate_by_another(place, every)
    ):
        return told
    written, stepped = (written, place.statement.lineno) if written else _set_by_a_caller(place, function)
    if len(written) != 1:
        return ""
    target, value = place.text(written[0].targets[0]), place.text(written[0].value)
    where = "behind" if written[0].lineno > stepped else "before"
    optimizer = owner_of_groups(place, written[0]) or next(iter(moved), "optimizer")
    if where == "before" and multiplied(place, "lr") and (told := filled_before(place, written[0], "lr")):
        return told  # in the words of the other lines that read it
    return (
        f"line {written[0].lineno}, `{place.text(written[0])}`, belongs {where} each launch, with what `{value}` comes "
        f"of, as `{target}.fill_({value})`; {in_tensors(place, optimizer)}{multiplied(place, 'lr')}"
    )


def _scaled(place: Place, every: list[ast.AST], moved: list[str]) -> str:
    """``group["lr"] *= 0.5``, which writes in place once the rate is a tensor."""
    found = [n for n in every if isinstance(n, ast.AugAssign) and is_rate(n.target)]
    if len(found) != 1:
        return ""
    where = "behind" if found[0].lineno > place.statement.lineno else "before"
    optimizer = owner_of_groups(place, found[0]) or next(iter(moved), "optimizer")
    return (
        f"line {found[0].lineno}, `{place.text(found[0])}`, belongs {where} each launch, with what decides it, and "
        f"writes in place there: {in_tensors(place, optimizer)}{multiplied(place, 'lr')}"
    )


def _rates_in(nodes: Iterable[ast.AST]) -> list[ast.Assign]:
    return [n for n in nodes if isinstance(n, ast.Assign) and any(is_rate(each) for each in n.targets)]


def _set_by_a_caller(place: Place, function: Function) -> tuple[list[ast.Assign], int]:
    """The rates of the one other function that sets some and takes a step, and the line of that.

    ``opt.step()`` is then a method of a class of the file's, as of one that looks ahead, which steps an inner one.
    """
    found: list[tuple[list[ast.Assign], int]] = []
    for other in (n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n is not function):
        inside = [n for part in other.body for n in within(part)]
        steps = [n.lineno for n in inside if isinstance(n, ast.Call) and called(n) == function.name]
        if (written := _rates_in(inside)) and steps:
            found.append((written, steps[0]))
    return found[0] if len(found) == 1 else ([], 0)


def _rates_in_a_loop(place: Place, calls: list[ast.Call]) -> str:
    """``for opt, schedule in zip(opts, schedules): opt.step(); schedule.step()``."""
    for call in calls:
        loop = next((above for above in place.source.above(call) if isinstance(above, ast.For)), None)
        name = path_of(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        node = place.source.parents.get(call)
        path = gone_through(place.source, node, name) if loop is not None and isinstance(node, ast.stmt) else ""
        held = place.space.get(path)
        each = list(held) if isinstance(held, (list, tuple)) else [None]
        if loop is None or not all(isinstance(one, torch.optim.lr_scheduler.LRScheduler) for one in each):
            continue
        return (
            f"`{place.text(call)}` (line {call.lineno}) belongs behind each launch, in a loop of its own: take it out "
            f"here, there `for {name} in {path}: {name}.step()`; make each optimizer with `capturable=True` (SGD with "
            '`fused=True`), its groups once with `group["lr"] = torch.tensor(group["lr"], '
            f"device={place.device})`, and where one of your own reads `group['lr']` as a number, in "
            "`alpha=` or `value=`, multiply by it instead"
        )
    return ""


def _rate_by_another(place: Place, every: list[ast.AST]) -> str:
    """``self.adjust_rate()``, a function of the file that writes the rate."""
    calls = {called(n): n for n in every if isinstance(n, ast.Call)}
    stepped = [path_of(n.func.value) for n in place.calls("step") if isinstance(n.func, ast.Attribute)]
    for function in ast.walk(place.source.tree):
        if not isinstance(function, Function) or function.name not in calls:
            continue
        inside = [n for part in function.body for n in within(part)]
        if any(isinstance(n, ast.Call) and called(n) in ("backward", "zero_grad") for n in inside):
            continue  # the step itself, which an inner `optimizer.step()` has its name of
        written = _rates_in(inside)
        if len(written) == 1:
            call, made = calls[function.name], written[0]
            where = "behind" if call.lineno > place.statement.lineno else "before"
            target, value = place.text(made.targets[0]), place.text(made.value)
            return (
                f"`{place.text(call)}` (line {call.lineno}), which sets it at line {made.lineno}, "
                f"`{place.text(made)}`, belongs {where} each launch: take it out of the function, and write at line "
                f"{made.lineno} `{target}.fill_({value})`; {in_tensors(place, stepped[0] if stepped else 'optimizer')}"
            )
    return ""
