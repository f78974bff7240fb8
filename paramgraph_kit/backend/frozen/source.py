"""Source of the functions that frozen calls run: the launch, and what the caller gets of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any

import torch
from torch.utils import _pytree as pytree

from paramgraph_kit.backend.direct.calls import DirectCall
from paramgraph_kit.backend.direct.located import MISSED
from paramgraph_kit.backend.direct.recipe import Given
from paramgraph_kit.launch.generate import Form

HEEDED = " if not direct.as_learnt(): return MISSED"
ELSEWHERE = " if elsewhere(): return MISSED"  # the same, where it is known that nobody hears the call


def call_of(
    args: Sequence[Any],
    named: Mapping[str, Any],
    tests: Sequence[str],
    launch: Sequence[str],
    back: str,
    scope: dict[str, Any],
) -> Callable[..., Any]:
    """The function that runs for calls like this one: where the tests hold, its launch, and what it gives back."""
    source = [
        "def frozen(args, named):",
        f" if len(args) != {len(args)} or {f'tuple(named) != {tuple(named)}' if named else 'named'}: return MISSED",
        *([f" {''.join(f'a{k}, ' for k in range(len(args)))} = args"] if args else []),
        *(f" n{k} = named[{name!r}]" for k, name in enumerate(named)),
        f" if not ({' and '.join(tests)}): return MISSED",
        *launch,
        f" return {back}",
    ]
    exec("\n".join(source), scope)  # from numbers and the names of arguments as literals, never from values
    made: Callable[..., Any] = scope["frozen"]
    return made


def launch_lines(
    call: DirectCall,
    arguments: Sequence[Any],
    names: Sequence[str | None],
    scope: dict[str, Any],
    switched: bool = False,
) -> list[str] | None:
    """Source that makes ``made``, the graph's results, by a launch; None where this is not launched at each call.

    ``names`` are expressions of the call's arguments; of what has none the tensor in ``arguments`` is meant, and
    whoever calls makes sure that it is that one, where it was. ``switched``: and that libraries' switches are today's.
    """
    recipe = call.inference
    if recipe is None or any(each.view is not None for each in recipe.takes):
        return None
    places = [names[each.index] if isinstance(each, Given) else None for each in recipe.takes]
    inputs = [arguments[each.index] if isinstance(each, Given) else each.tensor for each in recipe.takes]
    if (variant := recipe.launcher.settled(inputs)) is None:
        return None
    form = Form(static={k: inputs[k] for k, name in enumerate(places) if name is None}, switched=switched)
    launch = recipe.launcher.launch_as(form, variant, lambda _: MISSED)
    scope |= {"direct": call, "launch": launch, "give": recipe.give, "MISSED": MISSED}
    dynamic = ", ".join(name for name in places if name is not None)
    scope["elsewhere"] = call.elsewhere()
    lines = [ELSEWHERE, f" made = launch([{dynamic}])", " if made is MISSED: return MISSED"]
    if call.written:
        scope |= {"moved": torch.autograd.graph.increment_version}
        scope |= {f"w{k}": arguments[k] for k in call.written if names[k] is None}
        lines.append(f" moved([{', '.join(names[k] or f'w{k}' for k in call.written)}])")
    passed_on = {origin.index for origin in recipe.gives if isinstance(origin, Given)}
    given = []
    for k, name in enumerate(names):
        if k in passed_on and name is None:
            scope[f"g{k}"] = arguments[k]
        given.append("None" if k not in passed_on else name or f"g{k}")
    return [*lines, f" made = give(made, ({''.join(f'{each}, ' for each in given)}))"]


def returned(result: Any, results: Sequence[Any], scope: dict[str, Any]) -> str | None:
    """Source for what the caller gets, over ``made``, the graph's results."""
    leaves, spec = pytree.tree_flatten(result)
    places = {id(value): k for k, value in enumerate(results) if isinstance(value, torch.Tensor)}
    values = []
    for k, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in places:
                return None
            values.append(f"made[{places[id(leaf)]}]")
        elif leaf is None or type(leaf) in (bool, int, float, str):
            scope[f"v{k}"] = leaf
            values.append(f"v{k}")
        else:
            return None
    if spec.is_leaf():
        return values[0]
    if type(result) in (tuple, list) and len(leaves) == len(result) and all(map(is_, leaves, result)):
        opening, closing = ("(", ",)") if type(result) is tuple else ("[", "]")
        return f"{opening}{', '.join(values)}{closing if values else closing.strip(',')}"
    scope |= {"unflatten": pytree.tree_unflatten, "spec": spec}
    return f"unflatten([{', '.join(values)}], spec)"
