"""What warm-ups of captures of before have moved, as their lines tell: nobody has seen them run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import elements_of, last_name, nodes_of, tree_of
from paramgraph_kit.doctor.observe.captured_before import bodies_of, writes_of
from paramgraph_kit.doctor.observe.captured_values import Names, Use, path_value
from paramgraph_kit.doctor.observe.drawn_ahead import SAID_DEFAULT
from paramgraph_kit.doctor.observe.graphed_ahead import has_counted, may_draw
from paramgraph_kit.doctor.observe.held import code_of, is_a, parameters_at, tensors_in
from paramgraph_kit.doctor.observe.left_gradients import left_gradients
from paramgraph_kit.doctor.observe.one_graph import OneGraph
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.put_back import goes_on_from, puts_back, sets_generators, writes_elsewhere
from paramgraph_kit.doctor.observe.warm_up_blocks import idle_warm_up, warmed_in
from paramgraph_kit.doctor.observe.warmed_up import MOVES, named_as_moved
from paramgraph_kit.doctor.restore.keeper import storage_key

_RANDOM = (
    "rand randn randint rand_like randn_like randperm normal_ uniform_ bernoulli bernoulli_ multinomial".split()  # noqa: SIM905 - shorter so
)
_KEPT = (ast.Return, ast.Yield)  # a block that hands on what it computes is a step, and no warm-up


def moved_as_read(regions: Iterable[Region], known: Callable[[object], OneGraph | None]) -> Iterator[str]:
    """In words, what the warm-ups of captures that nobody has seen have moved, and no line may put back."""
    told = dict[str, None]()
    for region in regions:
        own = known(region.graph)
        with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
            if own is not None and own.before and not own.by_torch:
                told |= dict.fromkeys(_moved(region, own))
    yield from told


def _moved(region: Region, own: OneGraph) -> Iterator[str]:
    block = idle_warm_up(region)
    if block is None or any(isinstance(n, _KEPT) for n in ast.walk(block)) or _sets_rate(region, block):
        return
    called = warmed_in(region, block)
    bodies = [(code, nodes) for code, nodes, _ in bodies_of(region)]
    inside = {code.co_name for code, _ in bodies if code is not region.code}
    texts = {ast.unparse(call) for call in called}
    codes = {code for code, _ in bodies if code is not region.code}
    warms_all = any(last_name(call.func) in inside or _leads_to(call, region) in codes for call in called)
    moved = set[int]()
    if called and not puts_back(region, block):
        for optimizer in _stepped(region, texts, warms_all):
            moved |= {storage_key(p) for p in parameters_at(optimizer) if p.grad is not None}
            moved |= {storage_key(t) for t in tensors_in([*optimizer.state.values()])}
        for module in _called(region, texts, warms_all):
            counted = (part for part in module.modules() if has_counted(part))
            moved |= {storage_key(b) for part in counted for b in part.buffers(recurse=False)}
    if called:
        moved |= {storage_key(t) for t in _states(region, block, texts, warms_all)}
        left = [*left_gradients(region, block, [n for _, nodes in bodies for n in nodes], own)]
        yield from named_as_moved(region, block, moved, left)
    if called and not sets_generators(region, block) and _draws(region, bodies, texts, warms_all):
        yield SAID_DEFAULT.format(line=block.lineno)


def _leads_to(call: ast.Call, region: Region) -> CodeType | None:
    """The function that a captured call runs, also by a name that it was given by."""
    return code_of(path_value(call.func, region.names, region.space))


def draws_by_default(region: Region) -> bool:
    """Whether the lines of a capture draw from the default generator, as far as they tell."""
    bodies = [(code, nodes) for code, nodes, _ in bodies_of(region)]
    texts = {ast.unparse(n) for _, nodes in bodies for n in nodes if isinstance(n, ast.Call)}
    return _draws(region, bodies, texts, warms_all=True)


def _sets_rate(region: Region, block: ast.stmt) -> bool:
    """Whether a rate is set ahead of the warm-up, as to zero, so that it moves nothing."""
    ahead = [n for n in nodes_of(region.code) if isinstance(n, ast.Assign) and n.lineno < block.lineno]
    targets = (t for n in ahead for t in n.targets if isinstance(t, ast.Subscript))
    return any(isinstance(t.slice, ast.Constant) and t.slice.value == "lr" for t in targets)


def _uses(region: Region, texts: set[str], warms_all: bool) -> Iterator[tuple[ast.Call, Use]]:
    """Whose methods, and what, the captured lines call that the warm-up calls, too."""
    for code, nodes, names in bodies_of(region):
        for call in (n for n in nodes if isinstance(n, ast.Call)):
            if ast.unparse(call) in texts or (code is not region.code and warms_all):
                of = call.func.value if isinstance(call.func, ast.Attribute) else call.func
                yield call, Use(code, of, False, names)
                yield call, Use(code, call.func, False, names)


def _stepped(region: Region, texts: set[str], warms_all: bool) -> Iterator[torch.optim.Optimizer]:
    for call, use in _uses(region, texts, warms_all):
        if last_name(call.func) == "step" and is_a(value := use.value(), torch.optim.Optimizer):
            yield value


def _states(region: Region, block: ast.stmt, texts: set[str], warms_all: bool) -> Iterator[torch.Tensor]:
    """Tensors that the warm-up goes on from, to which nothing else writes in place."""
    bodies = [*bodies_of(region)]
    outside = {n for code, nodes, _ in bodies if code is not region.code for n in nodes}
    inside = {n for _, nodes, _ in bodies for n in nodes}
    for node, path, tensor in writes_of(region):
        warms = node in outside if warms_all else ast.unparse(node) in texts
        body = next((nodes for _, nodes, _ in bodies if node in nodes), [])
        if warms and goes_on_from(node, path, body) and not writes_elsewhere(region, block, path, inside):
            yield tensor
    for code, nodes, names in bodies if warms_all else ():
        if code is not region.code:
            yield from _listed(region, code, nodes, names)


def _listed(region: Region, code: CodeType, nodes: list[ast.AST], names: Names) -> Iterator[torch.Tensor]:
    """Tensors of lists that a loop goes on from, one by one: ``for e, p in zip(ema, weights): e.lerp_(p, 0.1)``."""
    tree = tree_of(region.code.co_filename)
    every = [n for n in ast.walk(tree) if isinstance(n, (ast.Name, ast.Attribute))] if tree is not None else []
    for loop in (n for n in nodes if isinstance(n, ast.For)):
        lists = (
            loop.iter.args if isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) == "zip" else [loop.iter]
        )
        targets = [*elements_of(loop.target)]
        for target, given in zip(targets, lists, strict=False) if len(targets) == len(lists) else ():
            path, calls = ast.unparse(target), [n for n in ast.walk(loop) if isinstance(n, ast.Call)]
            in_place = [
                n.func for n in calls if isinstance(n.func, ast.Attribute) and ast.unparse(n.func.value) == path
            ]
            value = Use(code, given, False, names).value()
            if not any(func.attr in MOVES for func in in_place) or type(value) not in (list, tuple):
                continue
            # Read where else than it is made, something may put it back.
            if sum(last_name(n) == last_name(given) and isinstance(n.ctx, ast.Load) for n in every) <= 1:
                yield from tensors_in([*value])


def _called(region: Region, texts: set[str], warms_all: bool) -> Iterator[torch.nn.Module]:
    for _, use in _uses(region, texts, warms_all):
        if is_a(value := use.value(), torch.nn.Module):
            yield value


def _draws(region: Region, bodies: list[tuple[Any, list[ast.AST]]], texts: set[str], warms_all: bool) -> bool:
    """Whether what is warmed up, and captured, draws from the default generator."""
    for code, nodes in bodies:
        for call in (n for n in nodes if isinstance(n, ast.Call) and last_name(n.func) in _RANDOM):
            has_own = any(k.arg == "generator" for k in call.keywords)
            if not has_own and (ast.unparse(call) in texts or (code is not region.code and warms_all)):
                return True
    return any(may_draw(part) for module in _called(region, texts, warms_all) for part in module.modules())
