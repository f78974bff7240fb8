"""Advice for where what is captured ends: at a number that decides what is returned, and at what trains at times."""

from __future__ import annotations

import ast
from contextlib import suppress
from typing import Any

import torch

from paramgraph_kit.doctor.observe.freed_gradients import lets_gradients_go
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.rewrite.advised.asks.kept_behind import kept_in_place
from paramgraph_kit.rewrite.counting.optimizers import stepped
from paramgraph_kit.rewrite.source.called_from import asked_by_caller, called_from
from paramgraph_kit.rewrite.source.edits import Function, names_in, path_of, within
from paramgraph_kit.rewrite.source.more_of_a_net import brings_more, minds_zeros
from paramgraph_kit.rewrite.source.moving import is_backward, stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh, is_training, lines_of
from paramgraph_kit.rewrite.source.writes import paths, written

_DRAWS = ("randn_like", "rand_like", "normal_", "uniform_", "bernoulli", "bernoulli_", "multinomial", "dropout")


def cut_where_it_is_read(place: Place) -> str:
    """`level = x.mean().item()` and `if level > 3: ...`: the rest is the host's, behind the launch."""
    node = place.statement
    if place.failure.code != "sync-item" or not isinstance(node, ast.Assign) or not is_cut(place, node):
        return ""
    call = node.value
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Attribute)
    name, x = place.text(node.targets[0]), place.text(call.func.value)
    more = [each for each in needed_behind(place, node.lineno + 1) if each not in (x, name)]
    also = f", with `{'`, `'.join(more)}`" if more else ""
    return (
        f"`{name}` decides what comes after it, and what is returned: end what is captured here, return `{x}`{also}, "
        f"and do `.item()` of `{x}` with all after line {node.lineno} behind the launch"
        f"{kept_in_place(place, node.lineno + 1)}"
    )


def needed_behind(place: Place, line: int) -> list[str]:
    """Tensors that a function has found before a line, and that what stands from there on reads."""
    function = place.source.function_of(place.statement)
    every = [n for part in (function.body if function is not None else ()) for n in ast.walk(part)]
    names = [n for n in every if isinstance(n, ast.Name)]
    made = {n.id for n in names if isinstance(n.ctx, ast.Store) and n.lineno < line}
    read = {n.id for n in names if isinstance(n.ctx, ast.Load) and n.lineno >= line}
    known = {*place.tensors, *place.seen}
    return sorted(made & read & (known or made - _of_literals(every)))  # no run has shown which these are


def _of_literals(nodes: list[ast.AST]) -> set[str]:
    """Names that are given what is the host's for certain: numbers, lists, what counts."""
    kinds = (ast.Constant, ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.JoinedStr)
    plain = [n for n in nodes if isinstance(n, ast.Assign) and isinstance(n.value, kinds)]
    return stored([*plain, *(n.target for n in nodes if isinstance(n, ast.For))])


def is_cut(place: Place, node: ast.stmt) -> bool:
    """Whether the host decides by what a statement reads what its function returns, outside of a loop."""
    function, value = place.source.function_of(node), node.value if isinstance(node, ast.Assign) else None
    if not isinstance(value, ast.Call) or called(value) != "item" or value.args or function is None:
        return False
    if node not in function.body or not isinstance(value.func, ast.Attribute):
        return False
    asked = [n for part in function.body[function.body.index(node) + 1 :] for n in within(part)]
    branches = [n for n in asked if isinstance(n, ast.If) and stored([node]) & names_in(n.test)]
    return bool(branches) and isinstance(function.body[-1], ast.Return) and len(stored([node])) == 1


def decided_here(place: Place, text: str) -> bool:
    """Whether what an object has is given another value in the step itself, behind a number that the host reads."""
    function = place.source.function_of(place.statement)
    every = [n for part in function.body for n in within(part)] if function is not None else []
    reads = [n.lineno for n in every if isinstance(n, ast.Call) and _reads(n)]
    targets = [each for n in every if isinstance(n, ast.Assign) for each in n.targets]
    targets += [n.target for n in every if isinstance(n, ast.AugAssign)]
    kept = [n for n in targets if isinstance(n, (ast.Subscript, ast.Attribute)) and n.lineno < place.statement.lineno]
    if any(place.text(n) in text and any(line < n.lineno for line in reads) for n in kept):
        return True
    with suppress(SyntaxError):
        return not names_in(ast.parse(text, mode="eval")).isdisjoint(read_here(place))
    return False


def read_here(place: Place) -> dict[str, int]:
    """Variables that come of numbers which the step has read ahead of a line, ``p = min(1.0, x.item())``: where."""
    function = place.source.function_of(place.statement)
    found = dict[str, int]()
    for node in (n for part in (function.body if function is not None else ()) for n in within(part)):
        if isinstance(node, ast.Assign) and node.lineno < place.statement.lineno:
            of_others = [found[name] for name in names_in(node.value) if name in found]
            line = node.lineno if any(map(_reads, ast.walk(node.value))) else max(of_others, default=0)
            found = {name: at for name, at in found.items() if name not in stored([node])}
            found |= dict.fromkeys(stored([node]), line) if line else {}
    return found


def _reads(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and called(node) in ("item", "tolist") and not node.args


def trained_between(place: Place, node: ast.If) -> str:
    """A branch that trains, and is not always taken, where what comes behind it trains, too, or reads its weights."""
    block = place.source.block_of(node)
    after = block[block.index(node) + 1 :]
    later = [part for part in after if any(map(is_training, within(part)))]
    reads = [part for part in after if _reads_trained(place, part, stored(node.body))]
    if not (later or reads) or not any(is_training(n) for part in node.body for n in within(part)):
        return ""
    lines = lines_of(node.body)
    backward = later or any(is_backward(n) for part in node.body for n in within(part))
    goes_back = "; each computes for itself what its backward pass goes back through" if backward else ""
    does = f"{later[0].lineno} trains" if later else f"{reads[0].lineno} reads what they write"
    return (
        f"a launch cannot leave out {lines}, and line {does} behind that: make three functions, each "
        f"with a graph of its own, of what comes before line {node.lineno}, of {lines}, and of what comes from line "
        f"{after[0].lineno} on; launch the second or not between the others, by `{place.text(node.test)}`{goes_back}"
        f"{_for_captures(place, node)}"
    )


def _reads_trained(place: Place, part: ast.stmt, made: set[str]) -> bool:
    """Whether a statement computes with a module, or its parameters, or with what a branch has made."""
    nodes = [*within(part)]
    paths_called = [path_of(n.func) for n in nodes if isinstance(n, ast.Call)]
    runs = any(path and is_a(place.value(path), torch.nn.Module) for path in paths_called)
    return runs or any(p.endswith(".parameters") for p in paths_called) or bool(made & _loaded(nodes))


def _loaded(nodes: list[ast.AST]) -> set[str]:
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def a_graph_for_each_answer(place: Place, node: ast.If) -> str:
    """A branch of the host's that trains, or lets gradients go: all of the step has a graph with it, and one without.

    Nothing has to be computed again then for its backward pass, and what comes behind it comes behind it.
    """
    function, inside = place.source.function_of(node), [n for part in node.body for n in ast.walk(part)]
    if function is None or node not in function.body or node.orelse:
        return ""
    decided = decided_by(function, node)
    if any(lets_gradients_go(n) for part in decided for n in ast.walk(part)):
        return _two_graphs(place, node, function, f"whether {lines_of(decided)} let gradients go")
    if not any(map(is_backward, inside)):
        return ""
    branches = [n for n in function.body if isinstance(n, ast.If) and any(map(is_backward, ast.walk(n)))]
    if len(branches) > 1:
        return ""  # a graph for each of one's answers would have the other as it was at its capture
    at = function.body.index(node)
    before, after = function.body[:at], function.body[at + 1 :]
    read = {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    if not stored(before) & read & {*place.tensors, *place.seen} and not any(map(_computes, after)):
        return ""  # its lines alone are a function with a graph of its own
    return _two_graphs(place, node, function, f"whether {lines_of(node.body)} train")


def a_graph_as_it_calls(place: Place, node: ast.If) -> str:
    """The same of a branch that calls what trains, ``if n % 3 == 0: self.train_generator(x)``, or what draws there."""
    function = place.source.function_of(node)
    if function is None or node not in function.body or not (does := _done_in_calls(place, node)):
        return ""
    others = [n for n in function.body if isinstance(n, ast.If) and n is not node]
    others = [n for n in others if any(map(is_training, ast.walk(n))) or _done_in_calls(place, n)]
    more = "" if not others else f"; line {others[0].lineno} decides so, too: a graph for each pair of answers"
    lines = lines_of(node.body)
    one = "s" * lines.startswith("line ")
    return _two_graphs(place, node, function, f"whether {lines} {does}{one}") + more


def a_graph_where_it_is_none(place: Place, node: ast.If) -> str:
    """The same of a branch that makes a tensor of what is None else: ``c = None``, ``if random() < 0.5: c = ...``."""
    function = place.source.function_of(node)
    if function is None or node not in function.body or node.orelse:
        return ""
    before = [n for n in function.body[: function.body.index(node)] if isinstance(n, ast.Assign)]
    none = [n for n in before if isinstance(n.value, ast.Constant) and n.value.value is None]
    made = stored(node.body) & stored(none) - stored([n for n in before if n not in none])
    return _two_graphs(place, node, function, f"whether `{min(made)}` is a tensor or None") if made else ""


def a_graph_with_more_gradients(place: Place, node: ast.If) -> str:
    """The same of a branch that adds to the loss what other parameters give: without it they have None, not zeros."""
    function = place.source.function_of(node)
    if function is None or node not in function.body or not brings_more(function, node):
        return ""
    trains = any(is_backward(n) for part in function.body for n in within(part)) or minds_zeros(place.space.values())
    return _two_graphs(place, node, function, "which parameters have gradients") if trains else ""


def _done_in_calls(place: Place, node: ast.If) -> str:
    inside = [*called_from(place, (*node.body, *node.orelse))]
    if any(map(is_training, inside)):
        return "train"
    return "draw" if any(isinstance(n, ast.Call) and called(n) in _DRAWS for n in inside) else ""


def decided_by(function: Function, node: ast.If) -> list[ast.stmt]:
    """What a branch does, or what it leaves out where it ends its function."""
    ends = node in function.body and all(isinstance(part, ast.Return) for part in node.body)
    return function.body[function.body.index(node) + 1 :] if ends else node.body


def _two_graphs(place: Place, node: ast.If, function: Function, what: str) -> str:
    before = function.body[: function.body.index(node)]
    name, test = fresh(f"train_{node.body[0].lineno}", place.taken), asked_by_caller(place, function, node.test)
    counted = [n.lineno for n in before if {*written(n)} & paths(node.test)]
    counts = f", behind line {counted[-1]}, which goes there with it" if counted else ""
    through = "" if place.entry in ("", function.name) else f", which `{place.entry}` hands on to it"
    return (
        f"the host decides {what}: ask `{name} = {test}` before each launch{counts}; make "
        f"`{name}` an argument of `{function.name}`{through}, and write `if {name}:` here; each of the two answers has "
        f"a graph of all of the step, `graphs[{name}]`, captured once the step was called with both of them"
        f"{_for_captures(place, node)}"
    )


def _computes(node: ast.stmt) -> bool:
    """Whether a statement may do something on the device, as far as its text tells: a host's line reads a number."""
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    tells = isinstance(node, ast.Return) or any(called(n) in ("item", "tolist") for n in calls)
    return not tells and any(called(n).endswith("_") or called(n) == "update" or is_training(n) for n in calls)


def _for_captures(place: Place, branch: ast.If) -> str:
    """What optimizers need that only a branch steps, which no call may have come to."""
    every = [n for part in branch.body for n in within(part) if isinstance(n, ast.stmt)]
    held = {name: place.value(name) for node in every if (name := stepped(node))}
    needed = [n for n, opt in held.items() if any("capturable" in g and not g["capturable"] for g in _groups(opt))]
    return "".join(f"; `{name}` is made with `capturable=True`" for name in needed)


def _groups(optimizer: Any) -> list[dict[str, Any]]:
    return getattr(optimizer, "param_groups", [])
