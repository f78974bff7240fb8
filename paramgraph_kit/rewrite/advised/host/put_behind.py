"""Advice for work of the host in the middle of a step that could be done behind its launch."""

from __future__ import annotations

import ast
from collections.abc import Collection

import torch

from paramgraph_kit.rewrite.advised.asks.cut_here import a_graph_as_it_calls, is_cut
from paramgraph_kit.rewrite.advised.asks.first_thing import in_pieces
from paramgraph_kit.rewrite.advised.asks.moving_slices import (
    asked_before,
    between,
)
from paramgraph_kit.rewrite.advised.asks.put_off import put_off
from paramgraph_kit.rewrite.advised.asks.read_below import is_read_below
from paramgraph_kit.rewrite.advised.host.counted_in_helpers import counted_in_a_helper
from paramgraph_kit.rewrite.advised.host.from_host import BEHIND, HOSTS, LEFT, READS, assignments
from paramgraph_kit.rewrite.advised.host.in_order import in_order, reading_methods, shuffled_for
from paramgraph_kit.rewrite.expressions.numbers.of_tensors import of_tensors
from paramgraph_kit.rewrite.expressions.picks.sizes import is_size
from paramgraph_kit.rewrite.expressions.state.added_there import stays_there
from paramgraph_kit.rewrite.source.edits import Function, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import NUMBER, Place, called, is_training, lines_of
from paramgraph_kit.rewrite.source.writes import paths, reads_entry, written


def _returned_name(place: Place, node: ast.Assign) -> str:
    """The name that a statement gives a value to, and that its function returns."""
    function = place.source.function_of(node)
    names = {each.id for each in node.targets if isinstance(each, ast.Name)}
    every = [n for part in (function.body if function is not None else ()) for n in within(part)]
    ends = [n for n in every if isinstance(n, ast.Return)]
    read = {name for n in ends if n.value is not None for name in names_in(n.value)}
    at_the_end = {n for end in ends for n in ast.walk(end)}
    computed = [n for n in every if isinstance(n, (ast.Subscript, ast.BinOp)) and n not in at_the_end]
    read -= {name for n in computed if n.lineno > node.lineno for name in names_in(n)}  # the step goes on with these
    return min(names & read, default="")


def _filled(place: Place, node: ast.Assign) -> str:
    """``mask[y.cpu() > 0] = 0``, of a tensor of the CPU that the step reads afterwards."""
    for target in node.targets:
        held = target.value if isinstance(target, ast.Subscript) else None
        made = dict(assignments(place)).get(held.id) if isinstance(held, ast.Name) else None
        copies = [call for call in place.calls("cpu") if isinstance(call.func, ast.Attribute)]
        if made is None or not copies:
            continue
        given = {
            place.text(call): place.text(call.func.value) for call in copies if isinstance(call.func, ast.Attribute)
        }
        instead = ", ".join(f"`{there}` for `{copy}`" for copy, there in given.items())
        name = place.text(made.targets[0])
        return f"the step reads `{name}`: once line {made.lineno} makes it on the device, write {instead}"
    return ""


def goes_on(function: Function, node: ast.stmt, tensors: Collection[str] = ()) -> ast.stmt | None:
    """The statement by which a step goes on with what comes of another: ``x = x + scale * d`` of ``scale``."""
    known = stored([node])
    every = [n for part in function.body for n in within(part) if isinstance(n, ast.Assign)]
    begun = {*arguments_of(function)} | stored([n for n in every if not isinstance(n.value, ast.Constant)])
    for each in every * 2:  # through what is made of it, also in the next round
        if each is node or not names_in(each.value) & known:
            continue
        carried = stored([each]) & names_in(each.value) & begun - known
        sized = {n for c in ast.walk(each.value) if _is_size(c) for n in ast.walk(c)}
        read = {n.id for n in ast.walk(each.value) if isinstance(n, ast.Name) and n not in sized}
        if isinstance(each.value, ast.BinOp) and (carried or read & {*tensors} - known):
            return each
        known = known | stored([each])
    return None


def _is_size(node: ast.AST) -> bool:
    return (isinstance(node, ast.Call) and called(node) in ("len", "size", "numel")) or (
        isinstance(node, ast.Attribute) and node.attr in ("shape", "device", "dtype")
    )


def _goes_on(place: Place, node: ast.Assign) -> str:
    """``limit = np.quantile(error.cpu().numpy(), 0.9)``, with which ``error`` is compared afterwards."""
    function = place.source.function_of(node)
    names = {each.id for each in node.targets if isinstance(each, ast.Name)}
    if text := _joined_later(place, node, names):
        return text
    for later in (n for part in (function.body if function is not None else ()) for n in within(part)):
        if not isinstance(later, (ast.Assign, ast.AugAssign, ast.Return, ast.Expr)) or later.value is None:
            continue
        if later.lineno <= node.lineno or (isinstance(later, ast.Expr) and not _writes(later.value)):
            continue
        read = names_in(later if isinstance(later, (ast.AugAssign, ast.Expr)) else later.value)
        if names & read and read & (place.tensors.keys() | place.local(node.value)):
            call = node.value if isinstance(node.value, ast.Call) else None
            there = called(call) if call is not None and path_of(call.func).partition(".")[0] in ("np", "numpy") else ""
            what = f", as `torch.{there}` does" if hasattr(torch, there or " ") else ""
            if ".item()" in (text := place.text(node)):
                what = f", `{of_tensors(text)}`"
            return f"line {later.lineno} goes on with `{min(names & read)}`: compute it of tensors on the device{what}"
    return ""


def _writes(node: ast.expr) -> bool:
    """Whether it is ``x.copy_(y)``, which a step goes on with."""
    return isinstance(node, ast.Call) and called(node).endswith("_") and isinstance(node.func, ast.Attribute)


def _joined_later(place: Place, node: ast.Assign, names: set[str]) -> str:
    """``gain = r - value.item()``, of which ``losses.append(log_p * gain)`` and ``torch.stack(losses)`` make a loss."""
    function = place.source.function_of(node)
    every = [n for part in (function.body if function is not None else ()) for n in within(part)]
    calls = [n for n in every if isinstance(n, ast.Call) and n.lineno > node.lineno]
    joined = {path_of(each) for call in calls if called(call) in ("stack", "cat", "sum") for each in call.args}
    for call in calls:
        held = path_of(call.func.value) if isinstance(call.func, ast.Attribute) and called(call) == "append" else ""
        if held and held in joined and any(names & names_in(each) for each in call.args):
            read = [n for n in ast.walk(node.value) if isinstance(n, ast.Call) and called(n) == "item"]
            text = place.text(read[0]) if read else ""
            instead = f": `{text.removesuffix('.item()')}.detach()` for `{text}`" if text.endswith(".item()") else ""
            return f"line {call.lineno} computes with `{min(names)}`, which stays on the device{instead}"
    return ""


def _ends_a_loop(place: Place, node: ast.stmt) -> bool:
    """Whether a loop around a statement goes on or ends by what it gives a value to: ``done = token == eos``."""
    for loop in place.loops():
        known = stored([node])
        inside = [n for part in loop.body for n in within(part) if isinstance(n, ast.stmt)]
        for each in inside * 2:  # what comes of it, also in the next round
            if isinstance(each, (ast.Assign, ast.AugAssign)) and names_in(each.value) & known:
                known = known | stored([each])
        tests = [loop.test] if isinstance(loop, ast.While) else []
        tests += [n.test for n in inside if isinstance(n, ast.If) and any(isinstance(e, ast.Break) for e in n.body)]
        if any(names_in(test) & known for test in tests):
            return True
    return False


def _goes_round_by(place: Place, node: ast.Assign) -> ast.For | None:
    """The loop over what a statement reads, of which a step goes on with what rounds compute: ``torch.cat(outs)``."""
    function, names = place.source.function_of(node), stored([node])
    after = [n for part in (function.body if function is not None else ()) for n in within(part)]
    after = [n for n in after if getattr(n, "lineno", 0) > node.lineno]
    joined = {path_of(n.args[0]) for n in after if isinstance(n, ast.Call) and called(n) in ("cat", "stack") and n.args}
    for loop in (n for n in after if isinstance(n, ast.For) and names & names_in(n.iter)):
        calls = [n for part in loop.body for n in within(part) if isinstance(n, ast.Call) and called(n) == "append"]
        if any(isinstance(n.func, ast.Attribute) and path_of(n.func.value) in joined for n in calls):
            return loop
    return None


def _needed_after(place: Place, call: ast.Call) -> str:
    """``stats.update(x.cpu().numpy())``, before a line that brings ``stats.mean`` to the device."""
    function = place.source.function_of(call)
    held = path_of(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if not held or function is None or held.partition(".")[0] in HOSTS:
        return ""
    every = [n for part in function.body for n in within(part) if isinstance(n, ast.Call)]
    for later in sorted(every, key=lambda n: n.lineno):
        makes = called(later) in ("from_numpy", "tensor", "as_tensor") and later.lineno > call.lineno
        if not makes or not any(path.startswith(f"{held}.") for each in later.args for path in paths(each)):
            continue
        reads = sorted(place.local(call) - set(arguments_of(function)))
        own = f", with what gives `{'`, `'.join(reads)}`" if reads else ""
        return (
            f"line {later.lineno} brings what it writes to the device, `{place.text(later)}`: where it reads what the "
            f"step is given, and nothing that this computes, it belongs before each launch{own}; else what is captured "
            f"begins behind it"
        )
    return ""


def _read_behind(place: Place, node: ast.Assign, name: str) -> str | None:
    """``probs = p[:, 3].tolist()`` that is returned: the tensor is, and becomes a list behind the launch."""
    calls = [n for n in ast.walk(node.value) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    reads = [n for n in calls if called(n) in ("item", "tolist") and not n.args]
    inner = reads[0].func.value if len(reads) == 1 and isinstance(reads[0].func, ast.Attribute) else None
    if inner is None or isinstance(inner, ast.Name) or len(node.targets) != 1:
        return None
    rest = place.text(node.value).replace(place.text(reads[0]), f"{name}.{called(reads[0])}()")
    return (
        f"the result has `{name}`: keep the tensor, `{name} = {place.text(inner)}`, and make `{name} = {rest}` of it "
        "behind the launch, with what reads that number"
    )


def _at_a_place(place: Place, node: ast.AugAssign) -> str:
    """``counts[c] += 1``, of a list of numbers, at a place that comes of the device, and read in the same step."""
    path, function = path_of(node.target), place.source.function_of(node)
    held = place.value(path)
    if not isinstance(node.target, ast.Subscript) or not isinstance(held, list) or function is None:
        return ""
    every = [n for part in function.body for n in within(part)]
    found = {name for n in every if isinstance(n, ast.Assign) and _reads_device(n) for name in stored([n])}
    reads = [n for n in every if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load) and path_of(n) == path]
    if not reads or not names_in(node.target.slice) & found or not all(type(each) in (int, float) for each in held):
        return ""
    return (
        f"line {reads[0].lineno} reads it, at a place that the device finds: keep it there, `{path} = "
        f"torch.tensor({path}, device={place.device})` once where it is made, and this line as it is"
    )


def _read_by_helper(place: Place, function: Function, node: ast.stmt) -> str:
    """``counts = counts + count(y)`` ahead of ``weights()``, which reads the counts: behind it they would be late."""
    names = stored([node]) & {name for n in ast.walk(function) if isinstance(n, ast.Global) for name in n.names}
    helpers = [n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n is not function]
    reading = {n.name for n in helpers if names & names_in(n)}
    calls = (n for part in function.body for n in within(part) if isinstance(n, ast.Call) and n.lineno > node.lineno)
    call = next((n for n in calls if isinstance(n.func, ast.Name) and n.func.id in reading), None)
    if call is None:
        return ""
    if place.local(node) <= set(arguments_of(function)):
        return f"belongs before each launch, with line {call.lineno}: `{called(call)}` there reads what it makes"
    return f"line {call.lineno} goes on with what comes of it: compute that of tensors on the device"


def _reads_device(node: ast.Assign) -> bool:
    return isinstance(node.value, ast.Call) and called(node.value) in ("item", "int", "tolist")


def behind(place: Place) -> str:
    """Work of the host in the function itself that could be behind the launch."""
    if place.failure.code not in ("host-counter", *READS, "print") or is_size(place):
        return ""
    node = place.statement
    if not isinstance(node, (ast.Expr, ast.AugAssign, ast.Assign)) or any(place.calls("tensor", "as_tensor")):
        return ""
    if isinstance(node, ast.Assign) and (filled := _filled(place, node)):
        return filled
    if told := stays_there(place):
        return told
    if _ends_a_loop(place, node):
        return ""
    function = place.source.function_of(node)
    if isinstance(node, ast.Assign) and (loop := _goes_round_by(place, node)) is not None and function is not None:
        computes = f"line {loop.lineno} goes round by what it reads, and computes on the device in each round"
        return f"{computes}: {in_pieces(function, place.entry)}"
    call = node.value if isinstance(node, ast.Expr) else None
    kept = path_of(call.func).removesuffix(".append") if isinstance(call, ast.Call) and called(call) == "append" else ""
    if kept.isidentifier() and place.is_local(kept):
        return ""  # the step itself reads it
    if function is not None and isinstance(node, ast.Assign) and (name := _returned_name(place, node)):
        if (made := _read_behind(place, node, name)) is not None:
            return made
        local = sorted(n for n in place.local(node.value) if n in place.tensors and n not in arguments_of(function))
        what = f"return `{'`, `'.join(local)}` in its place" if local else "leave it out of the result"
        if place.entry and function.name != place.entry and not local:
            return ""  # what calls it goes on with that
        return f"the result has `{name}`: {what}, and compute `{name}` of it behind the launch"
    if isinstance(node, ast.Assign) and (read := _goes_on(place, node)):
        return read
    later = goes_on(function, node, place.seen) if function is not None and place.loops() else None
    if isinstance(node, ast.Assign) and later is not None:
        return f"line {later.lineno} goes on with what comes of it: compute that of tensors on the device"
    if isinstance(call, ast.Call) and (text := _needed_after(place, call)):
        return text
    if isinstance(call, ast.Call) and function is not None and (line := shuffled_for(function, call)):
        return f"belongs before each launch: line {line} reads the order that it leaves"
    if isinstance(node, ast.AugAssign) and (kept := _at_a_place(place, node)):
        return kept
    if function is not None and (ahead := _read_by_helper(place, function, node)):
        return ahead
    target = node.target if isinstance(node, ast.AugAssign) else getattr(node, "targets", [node])[0]
    counts = isinstance(node, ast.AugAssign) or isinstance(target, ast.Attribute)
    computed = isinstance(node, ast.Assign) and names_in(node.value) & place.tensors.keys() and not _is_read_there(node)
    counts = counts and not computed  # on the device, whose state is none of the host's to give ahead of a launch
    if counts and function is not None and (path := path_of(target)):
        for later in (n for part in function.body for n in within(part) if isinstance(n, (ast.Assign, ast.Return))):
            to = later.targets if isinstance(later, ast.Assign) else []
            its_own = bool(to) and all(isinstance(each, ast.Attribute) for each in to)  # as a mean of losses
            if later.lineno > node.lineno and later.value and reads_entry(target, later.value) and not its_own:
                if any(is_cut(place, n) and n.lineno < later.lineno for n in function.body):
                    return f"belongs behind the launch, with line {later.lineno}, which reads it"
                of_device = names_in(later.value) & place.tensors.keys()
                if isinstance(later, ast.Return) and _is_of_the_host(place, later.value):
                    return f"belongs behind the launch, with line {later.lineno}, which reads it"
                if _is_read_there(node):  # which no host knows ahead of the launch
                    given = isinstance(later, ast.Return) and _is_given_as_it_is(later.value, path)
                    return f"belongs behind the launch, with line {later.lineno}, which reads it" if given else ""
                if place.failure.code in READS and not of_device and not isinstance(later, ast.Return):
                    return f"belongs behind the launch, with line {later.lineno}, which reads it"
                if not of_device and _is_of_what_is_read(function, later.value, path):
                    return f"belongs behind the launch, with line {later.lineno}, which reads it"
                if isinstance(later, ast.Return) or of_device:
                    return f"belongs before each launch: line {later.lineno} reads it there from a tensor"
                return f"belongs before each launch, with line {later.lineno}, which reads it"
        for later in (n for part in function.body for n in within(part) if isinstance(n, ast.If)):
            asks = path in paths(later.test)
            trains = asks and any(is_training(n) for part in later.body for n in within(part))
            if trains and later.lineno < node.lineno and later not in place.source.above(node):
                return f"belongs behind the launches, also that of {lines_of(later.body)}, which is asked for by it"
            asks = asks and later.lineno > node.lineno
            if asks and any(is_training(n) for part in later.body for n in within(part)):
                return f"belongs before each launch: by it the host decides whether {lines_of(later.body)} train"
            if asks and (where := between(place, later)):
                if a_graph_as_it_calls(place, later):
                    return f"belongs before each launch: by it the host decides about {lines_of(later.body)}"
                if asked := asked_before(place, later):
                    return f"belongs before each launch, and what line {later.lineno} does stays: {asked}"
                if "two launches" in where:
                    return f"belongs where line {later.lineno} goes, which reads it"
                return f"belongs before each launch, with line {later.lineno}, which reads it"
    if counts and function is not None and (call := _reading_helper(place, function, node, path_of(target))):
        return f"belongs before each launch: line {call.lineno} reads the new value, in `{called(call)}`"
    if counts and function is not None and (ordered := in_order(place, function, node, path_of(target))):
        return ordered
    if counts and function is not None and (ordered := counted_in_a_helper(place, function, path_of(target))):
        return ordered
    if place.failure.code in READS and is_read_below(place):
        return ""  # what is captured ends before it
    if any(map(place.computes_with, written(node))):
        return LEFT  # moved by hand alone, the graph would keep the number that it had
    return put_off(place) or BEHIND


def _reading_helper(place: Place, function: Function, node: ast.stmt, path: str) -> ast.Call | None:
    """The call of a method that reads what ``self.k += 1`` above it gives, where nothing before that reads it."""
    value = getattr(node, "value", None)
    if place.failure.code != "host-counter" or place.loops() or not path.startswith("self.") or value is None:
        return None
    if names_in(value) & place.tensors.keys() or any(isinstance(n, ast.Call) for n in ast.walk(value)):
        return None
    reading = reading_methods(place, function, path)
    own = [n for part in function.body for n in within(part)]
    calls = [n for n in own if isinstance(n, ast.Call) and path_of(n.func) in reading]
    reads = [n for n in own if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load) and path_of(n) == path]
    if any(n.lineno < node.lineno for n in (*calls, *reads)):
        return None
    return next((n for n in calls if n.lineno > node.lineno), None)


def _is_of_what_is_read(function: Function, value: ast.expr, path: str) -> bool:
    """Whether a line computes with another number that the step reads of the device, as the rate of what is kept."""
    every = [n for part in function.body for n in within(part) if isinstance(n, (ast.Assign, ast.AugAssign))]
    found = {each for n in every if _is_read_there(n) for each in written(n)}
    return not found.isdisjoint(paths(value) - {path})


def _is_read_there(node: ast.stmt) -> bool:
    """Whether a statement reads the device for what it keeps: ``best = min(best, x.item())``."""
    value = getattr(node, "value", None)
    calls = [n for n in ast.walk(value) if isinstance(n, ast.Call)] if isinstance(value, ast.expr) else []
    numbers = [each for n in calls if path_of(n.func) in ("float", "int") for each in n.args]
    of_tensors = any(isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) for n in numbers)
    return of_tensors or any(called(n) in ("item", "tolist") for n in calls)


def _is_of_the_host(place: Place, value: ast.expr) -> bool:
    """Whether a result is computed of numbers alone that live on, ``return running / count``: no graph returns it."""
    read = paths(value)
    known = [place.value(path) for path in read if not any(other.startswith(f"{path}.") for other in read)]
    numbers = bool(known) and all(isinstance(each, NUMBER) for each in known)
    return numbers and isinstance(value, ast.BinOp) and not place.local(value) - {"self"}


def _is_given_as_it_is(value: ast.expr, path: str) -> bool:
    """Whether a result has what is kept beside other things, and nothing is computed with it: ``return y, best``."""
    parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
    parts = [*value.values] if isinstance(value, ast.Dict) else parts
    return all(path_of(each) == path or path not in paths(each) for each in parts)
