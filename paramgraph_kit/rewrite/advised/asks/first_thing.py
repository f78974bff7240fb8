"""Advice for what the host asks before anything runs on the device: there is nothing that a graph could end with."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.advised.host.from_host import READS
from paramgraph_kit.rewrite.source.edits import Function, is_method, is_text, path_of, within
from paramgraph_kit.rewrite.source.moving import NAMED, arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place, called

_READ = ("tolist", "cpu", "numpy", "item", "size", "dim", "numel")
_VIEWS = ("detach", "flatten", "view", "reshape", "squeeze")
_WORKS = (ast.Call, ast.BinOp, ast.Subscript, ast.AugAssign, ast.Await, ast.Yield)


def first_thing(place: Place) -> str:
    """What to capture where the function that is captured begins with what the host has to know."""
    function, node = place.source.function_of(place.statement), place.statement
    if function is None or place.entry != function.name:
        return ""
    top = next((part for part in function.body if node is part or node in within(part)), None)
    if top is None or not all(_is_still(part) for part in function.body[: function.body.index(top)]):
        return ""
    line = f"nothing runs on the device before line {top.lineno}"
    if isinstance(top, (ast.While, ast.For)):
        round_ = f"{top.body[0].lineno} to {top.body[-1].end_lineno}"
        if top is not node and not isinstance(node, (ast.If, ast.While)):  # a round of it asks in the middle
            asks = f"{line}, and each round of the loop asks here"
            behind = function.body[function.body.index(top) + 1 :]
            if not any(isinstance(n, ast.Call) for each in behind for n in within(each)):
                return f"{asks}: make what the device does in a round apart from that a function, and capture it"
            # Not in pieces: torch.compile runs a function whose loop asks as it is, none of it compiled.
            return (
                f"{asks}: leave the loop before the launch, make what comes after it (from line {behind[0].lineno} on) "
                "a function that is given what the loop has made, and capture that"
            )
        return (
            f"{line}: make what the device does in one round (lines {round_}) a function, capture that, and leave the "
            "loop around its launches, with what it asks, as it is"
        )
    if top is not node:
        return ""
    if isinstance(node, ast.Return):
        return (
            f"{line}, so a graph would hold nothing that does not come after it: call `{function.name}` as it is, "
            "behind the launch of what makes its arguments"
        )
    if isinstance(node, ast.If):
        return (
            f"{line}: make what each way does (from line {node.body[0].lineno} on) a function, capture each, and leave "
            f"`if {place.text(node.test)}` around their launches as it is"
        )
    after = function.body[function.body.index(top) + 1 :]
    read = {n.id for part in after for n in ast.walk(part) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    own = set(arguments_of(function)[: is_method(place.source, function)])
    given = sorted(read & (stored([top]) | {*arguments_of(function)} - own))
    if not after or not given or not stored([top]) & read:
        return ""
    names = "`, `".join(given)
    return (
        f"{line}: leave it before the launch, make what comes after it a function that is given `{names}`, and capture "
        "that, once for each number and each shape that it is given"
    )


def in_pieces(function: ast.FunctionDef | ast.AsyncFunctionDef, entry: str = "") -> str:
    """What launches whatever lies between the lines in which the host asks, of what is called so or of its caller."""
    name = entry or function.name
    return f'`{name} = torch.compile({name}, backend="paramgraph")` launches what lies before and after it'


def trains_behind(place: Place) -> bool:
    """Whether a backward pass comes after a line, in its function or in those of the file that call it for the step."""
    functions = [n for n in ast.walk(place.source.tree) if isinstance(n, Function)]
    calls = {each: [n for part in each.body for n in within(part) if isinstance(n, ast.Call)] for each in functions}
    function = place.source.function_of(place.statement)
    todo = [(function, place.statement.lineno + 1)] if function is not None else []
    met = set[Function]()
    while todo:
        one, first = todo.pop()
        met.add(one)
        if any(called(n) in ("backward", "grad") and n.lineno >= first for n in calls[one]):
            return True
        if one.name == place.entry:
            continue
        for other in (each for each in functions if each not in met):
            known = one.name == "forward" and other.name == place.entry  # by whatever name its module is called
            lines = [n.lineno for n in calls[other] if called(n) == one.name]
            todo += [(other, min(lines, default=other.lineno))] if lines or known else []
    return False


def all_of_the_host(place: Place) -> str:
    """A function that reads what it is given, and computes on the host: ``s, t = scores.tolist(), y.tolist()``."""
    function = place.source.function_of(place.statement)
    if place.failure.code not in READS or function is None or place.entry != function.name:
        return ""
    given = [name for name in arguments_of(function) if name in {*place.tensors, *place.seen}]
    every = [n for part in function.body for n in ast.walk(part)]
    loads = [n for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    there = any(isinstance(n, ast.keyword) and n.arg == "device" for n in every)
    there = there or any(n.id in place.called or n.id in ("torch", "F", "nn") for n in loads)
    there = there or any({*place.tensors, *place.seen} & {n.id} - {*given} for n in loads)
    if there or not given or not all(_is_read(place, n) for n in loads if n.id in given):
        return ""
    names = "`, `".join(given)
    return (
        f"`{function.name}` reads `{names}`, and computes on the host: a graph would hold nothing of it. Capture what "
        "makes these, and call it as it is behind that launch"
    )


def _is_read(place: Place, name: ast.Name) -> bool:
    """Whether a tensor, or a view of it, is made a number, an array or a list, or asked for its shape."""
    node: ast.AST = name
    while True:
        below, node = node, place.source.parents.get(node) or place.statement
        if isinstance(node, ast.Attribute) and node.attr in ("shape", "ndim"):
            return True
        if isinstance(node, ast.Call):
            if node.func is not below:
                return isinstance(node.func, ast.Name) and called(node) in ("int", "float", "bool", "len")
            if called(node) in _READ:
                return True
        of_it = isinstance(node, (ast.Attribute, ast.Subscript)) and node.value is below
        if not of_it and not (isinstance(node, ast.Call) and called(node) in _VIEWS):
            return False


def _is_still(node: ast.stmt) -> bool:
    """Whether a statement does nothing on the device, as far as its text shows."""
    if is_text(node) or isinstance(node, (*NAMED, ast.Import, ast.ImportFrom, ast.Pass, Function)):
        return True
    return isinstance(node, (ast.Assign, ast.AnnAssign)) and not any(isinstance(n, _WORKS) for n in ast.walk(node))


def run_by_asyncio(place: Place) -> str:
    """``asyncio.run(step(x))``: to take its signal handler back, it makes text of the task, and so of its result."""
    if place.failure.code != "print" or "asyncio" not in place.text(place.statement):
        return ""
    for call in place.calls("run"):
        if path_of(call.func) == "asyncio.run" and len(call.args) == 1:
            return (
                "asyncio.run() makes text of what it has run, with its result: once before `loop = "
                f"asyncio.new_event_loop()`, here `loop.run_until_complete({place.text(call.args[0])})`"
            )
    return ""


def read_by_a_lambda(place: Place) -> str:
    """``output_transform=lambda x, loss: loss.item()``, which is given to what the step is made by, or its default."""
    line = place.failure.frame.line if place.failure.frame is not None else 0
    if place.failure.code not in READS:
        return ""
    for node in ast.walk(place.statement):
        body = node.body if isinstance(node, ast.Lambda) and node.body.lineno == line else None
        if isinstance(body, ast.Call) and isinstance(body.func, ast.Attribute) and body.func.attr in ("item", "tolist"):
            given, text = place.text(node.args) if isinstance(node, ast.Lambda) else "", place.text(body.func.value)
            return (
                f"`lambda {given}: {text}.detach()` gives the tensor, of which `.{body.func.attr}()` makes numbers "
                "behind the launch"
            )
    return ""
