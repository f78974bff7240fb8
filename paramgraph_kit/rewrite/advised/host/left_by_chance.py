"""Advice for layers that the host leaves out by chance: all are computed, and a tensor says which of them count.

``for layer in self.layers: if random.random() < self.p: continue`` draws in each round, ``if torch.rand(1) < self.p:
return x`` in each module of a kind. Both are told with the user's names: what is made once, what is drawn before each
launch, and what stands there instead.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import torch

from paramgraph_kit.rewrite.source.edits import Function, heads, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.more_of_a_net import APART
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh, is_training, lines_of, renamed, target_of

CODES = ("branch-frozen", "host-random", "sync-item", "data-dependent-branch")
FOLLOWS_HOST = "follows from what the host decides at another line: once that is mended this line stays as it is"


def left_by_chance(place: Place) -> str:
    """A branch in a loop over layers, or in a module's ``forward``, that the host draws."""
    if place.failure.code not in CODES:
        return ""
    place = replace(place, statement=_drawn_in(place, place.statement) or place.statement)
    node, function = place.statement, place.source.function_of(place.statement)
    if function is None or not isinstance(node, ast.If) or not _is_chance(place, node):
        return ""
    loop = next((n for n in place.loops() if isinstance(n, ast.For)), None)
    if loop is not None and node in loop.body:
        return _in_each_round(place, function, loop, node)
    return _in_each_module(place, function, node) if loop is None and node in function.body else ""


def _drawn_in(place: Place, loop: ast.stmt) -> ast.If | None:
    """The branch that a loop's rounds are left out by: what differs may be told of the loop."""
    branches = [n for n in loop.body if isinstance(n, ast.If)] if isinstance(loop, ast.For) else []
    return next((n for n in branches if _is_chance(replace(place, statement=n), n)), None)


def _is_chance(place: Place, node: ast.If) -> bool:
    return _is_draw(node.test) or bool(_drawn_names(place, node.test))


def _drawn_names(place: Place, test: ast.expr) -> dict[str, str]:
    """``{"chance": "torch.rand([])"}`` of ``chance = torch.rand([])``, a line of the same block."""
    found = {}
    block = place.source.block_of(place.statement)
    for node in block[: block.index(place.statement)]:
        name = target_of(node)
        asked = isinstance(name, ast.Name) and name.id in names_in(test)
        if asked and isinstance(node, ast.Assign) and isinstance(name, ast.Name) and _is_draw(node.value):
            found[name.id] = place.text(node.value)
    return found


def _is_draw(node: ast.AST) -> bool:
    """Whether the host draws: a generator of Python's or numpy's, or a tensor of the CPU."""
    for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
        path = path_of(call.func)
        if path.partition(".")[0] in ("random", "np", "numpy") and "rand" in path:
            return True
        if path in ("torch.rand", "torch.randn", "torch.empty") and not any(o.arg == "device" for o in call.keywords):
            return True
    return False


def _in_each_round(place: Place, function: Function, loop: ast.For, node: ast.If) -> str:
    rest = loop.body[loop.body.index(node) + 1 :]
    skips = bool(node.body) and isinstance(node.body[-1], ast.Continue) and not node.orelse
    part = rest if skips else node.body
    told = node.body[:-1] if skips else [n for n in node.orelse if not isinstance(n, ast.Assign)]
    begun = stored([n for n in function.body if (n.end_lineno or 0) < loop.lineno]) | set(arguments_of(function))
    carried = sorted(stored(part) & begun & {n for each in part for n in names_in(each)})
    carried = [name for name in carried if _is_assigned(part, name)]
    if not carried or (not skips and any(stored(node.orelse) & {name} for name in carried)):
        return ""
    at, header, over = _round(place, loop)
    if not over:
        return ""
    owner = _owner(place, function)
    taken = names_in(place.source.tree) | place.space.keys()
    name = fresh("left_out" if skips else "taken", taken)
    many = _of_owner(place, owner, f"len({over})")
    drawn = _of_owner(place, owner, renamed(place.text(node.test), _drawn_names(place, node.test)))
    each = _of_owner(place, owner, f"for {place.text(loop.target)} in {place.text(loop.iter)}")
    lines = [
        f"once `{name} = torch.zeros({many}, dtype=torch.bool, device={place.device})`",
        f"before each launch `{name}.copy_(torch.tensor([bool({drawn}) {each}]))`",
    ]
    line = f"line {loop.lineno} as `{header}`, " if header else ""
    choice = []
    for one in carried:
        new, old = (f"{one}_before", one) if skips else (one, f"{one}_before")
        choice.append(f"`{one} = torch.where({name}[{at}], {new}, {old})`")
    kept = " and ".join(f"`{one}_before = {one}`" for one in carried)
    names = _drawn_names(place, node.test)
    branch = (
        f"the branch and {', '.join(f'`{one} = {text}`' for one, text in names.items())}" if names else "the branch"
    )
    behind = "it" if part[0].lineno == part[-1].end_lineno else "them"
    lines.append(
        f"here {line}in place of {branch} {kept}, then {lines_of(part)} in each round, and behind {behind} "
        f"{' and '.join(choice)}"
    )
    text = "the host draws which rounds are left out, so all are computed and chosen from: " + "; ".join(lines)
    return text + _counted(place, owner, told, name) + _listed(place, part, carried) + _gradients(place)


def _in_each_module(place: Place, function: Function, node: ast.If) -> str:
    """``if self.training and torch.rand(1) < self.p: return x``, and the rest of the module's ``forward``."""
    above = place.source.parents.get(function)
    after = function.body[function.body.index(node) + 1 :]
    left = node.body[-1] if node.body else None
    last = after[-1] if after else None
    if not isinstance(above, ast.ClassDef) or node.orelse or not isinstance(left, ast.Return) or left.value is None:
        return ""
    if not isinstance(last, ast.Return) or last.value is None or _drawn_names(place, node.test):
        return ""
    if any(isinstance(n, ast.Return) for part in after[:-1] for n in within(part)):
        return ""
    models = [key for key, held in place.space.items() if isinstance(held, torch.nn.Module) and _has(held, above.name)]
    outer = [key for key in models if type(place.space[key]).__name__ != above.name] or models
    if not outer:
        return ""
    drawn = place.text(node.test).replace("self.", "m.")
    one = f"[m for m in {outer[0]}.modules() if isinstance(m, {above.name})]"
    return (
        f"the host draws whether a module is left out, so all are computed and chosen from: once `for m in {one}: "
        f"m.left_out = torch.zeros((), dtype=torch.bool, device={place.device})`; before each launch `for m in {one}: "
        f"m.left_out.fill_(bool({drawn}))`; here, without the branch of line {node.lineno}, line {last.lineno} as "
        f"`return torch.where(self.left_out, {place.text(left.value)}, {place.text(last.value)})`"
        + _counted_there(place, node.body[:-1], one)
        + _gradients(place)
    )


def _has(model: torch.nn.Module, name: str) -> bool:
    return any(type(each).__name__ == name for each in model.modules())


def _is_assigned(part: list[ast.stmt], name: str) -> bool:
    """Whether statements give a name another value, and do not only write into what it is."""
    every = [n for each in part for n in within(each) if isinstance(n, (ast.Assign, ast.AugAssign))]
    targets = [t for n in every for t in (n.targets if isinstance(n, ast.Assign) else [n.target])]
    return any(isinstance(n, ast.Name) and n.id == name for t in targets for n in ast.walk(t))


def _round(place: Place, loop: ast.For) -> tuple[str, str, str]:
    """The number of a round, the loop's line where it has to count, and what it goes through."""
    target, over = loop.target, loop.iter
    if isinstance(over, ast.Call) and called(over) == "enumerate" and len(over.args) == 1 and not over.keywords:
        first = target.elts[0] if isinstance(target, ast.Tuple) else None
        return (first.id, "", place.text(over.args[0])) if isinstance(first, ast.Name) else ("", "", "")
    if isinstance(over, ast.Call) and called(over) == "range" and isinstance(target, ast.Name):
        return target.id, "", place.text(over) if len(over.args) == 1 else ""
    inner = over.args[0] if isinstance(over, ast.Call) and called(over) == "zip" and over.args else over
    if isinstance(inner, ast.Call) and called(inner) not in ("children", "values"):
        return "", "", ""
    function = place.source.function_of(place.statement)
    at = fresh("n", locals_of(function) if function is not None else set())
    through = place.text(inner)
    through = f"list({through})" if isinstance(inner, ast.Call) else through
    spread = f"({place.text(target)})" if isinstance(target, ast.Tuple) else place.text(target)
    return at, f"for {at}, {spread} in enumerate({place.text(over)}):", through


def _owner(place: Place, function: Function) -> str:
    """How the user calls the object whose method it is, from outside."""
    above = place.source.parents.get(function)
    if not isinstance(above, ast.ClassDef):
        return ""
    found = []
    for key, held in place.space.items():
        if type(held).__name__ == above.name and not isinstance(held, type):
            found.append(key)
        elif isinstance(held, torch.nn.Module):
            found += [f"{key}.{path}" for path, each in held.named_modules() if type(each).__name__ == above.name]
    return found[0] if found else ""


def _of_owner(place: Place, owner: str, text: str) -> str:
    return renamed(text, _outside(place, owner, text)) if owner else text


def _outside(place: Place, owner: str, text: str) -> dict[str, str]:
    names = {path_of(n) for n in ast.walk(place.source.tree) if isinstance(n, ast.Attribute)}
    return {
        path: f"{owner}.{path.removeprefix('self.')}" for path in names if path.startswith("self.") and path in text
    }


def _counted(place: Place, owner: str, told: list[ast.stmt], name: str) -> str:
    """What the host counts where a round is left out."""
    texts = []
    for node in told:
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.value, ast.Constant):
            by = _times(place, node.value)
            texts.append(f"`{_of_owner(place, owner, place.text(node.target))} += {by}int({name}.sum())`")
    return f"; behind each launch {' and '.join(texts)}, in place of line {told[0].lineno}" if texts else ""


def _counted_there(place: Place, told: list[ast.stmt], one: str) -> str:
    texts = [
        place.text(node.target).replace("self.", "m.") + f" += {_times(place, node.value)}int(m.left_out)"
        for node in told
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add)
    ]
    return f"; behind each launch `for m in {one}: {'; '.join(texts)}`" if texts else ""


def _times(place: Place, node: ast.expr) -> str:
    return f"{place.text(node)} * " * (place.text(node) != "1")


def _listed(place: Place, part: list[ast.stmt], carried: list[str]) -> str:
    """Lists that a round adds to have an element of each round then."""
    calls = [n for each in part for n in within(each) if isinstance(n, ast.Call) and called(n) == "append"]
    names = sorted({path_of(n.func.value) for n in calls if isinstance(n.func, ast.Attribute)} - {""})
    return f"; `{names[0]}` then has an element of each round, also of those left out" if names else ""


def _gradients(place: Place) -> str:
    """What moves a layer that is left out, where its gradient is zero and not missing."""
    every: list[Any] = [held for held in place.space.values() if isinstance(held, torch.optim.Optimizer)]
    groups = [group for held in every for group in held.param_groups]
    plain = all(isinstance(held, torch.optim.SGD) for held in every)
    moved = not plain or any(g.get("momentum") or g.get("weight_decay") for g in groups)
    if not (moved if every else APART.get()):
        return ""
    return (
        "; gradients of what is left out are 0 then, where there were none: an optimizer with momentum or decay "
        "moves it on"
    )


def follows_from_it(place: Place) -> str:
    """``loss.backward()`` and ``opt.step()`` of whatever the host has left out above, and a round's other lines."""
    node, code = place.statement, place.failure.code
    loop = next((n for n in place.loops() if isinstance(n, ast.For) and n is not node), None)
    branch = _drawn_in(place, loop) if loop is not None and not isinstance(node, ast.If) else None
    if branch is not None and code in ("stale-input", "size-frozen", "branch-frozen"):
        return f"follows from what the host draws at line {branch.lineno}, of which all is said there"
    if code not in ("branch-frozen", "size-frozen") or not isinstance(node, ast.Expr):
        return ""
    if not any(map(is_training, heads(node))) or place.local(node) - {"self"} - set(place.seen) - place.tensors.keys():
        return ""
    return FOLLOWS_HOST
