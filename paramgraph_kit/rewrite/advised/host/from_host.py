"""Advice for what the host draws, counts and decides: before the launch, behind it, or on the device."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import replace

import torch

from paramgraph_kit.rewrite.advised.asks.cut_here import is_cut, trained_between
from paramgraph_kit.rewrite.advised.asks.moving_slices import (
    asked_before,
    between,
    found_before,
    moving_slice,
    with_those_beside,
)
from paramgraph_kit.rewrite.advised.asks.put_off import put_off
from paramgraph_kit.rewrite.expressions.decisions.branches import choose_by_where
from paramgraph_kit.rewrite.expressions.decisions.hosted import asks_sizes
from paramgraph_kit.rewrite.expressions.picks.sizes import is_size
from paramgraph_kit.rewrite.source.edits import Function, heads, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.hosts import draws, only_sized
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place, called, is_training
from paramgraph_kit.rewrite.source.writes import paths, written
from paramgraph_kit.trace.model import Failure

READS = ("sync-item", "copy-to-cpu")
BROUGHT = ("copy-to-gpu", "tensor-literal", "cpu-index", "cpu-scalar-frozen")
DECIDED = ("host-random", "branch-frozen", "size-frozen", "scalar-frozen", "host-counter", "cpu-scalar-frozen")
LEFT = "belongs behind the launch: leave it, it moves there once the other lines are mended"
BEHIND = f"{LEFT}; or move it there yourself"
_HOST = ("random", "np", "numpy", "time", "math")


def _moved_by_scheduler(failure: Failure) -> str:
    name = failure.message.partition(" goes from ")[0]
    return name if failure.code == "scalar-frozen" and name in ("momentum", "betas") else ""


def behind_for_cycles(failure: Failure) -> str:
    """Why an optimizer's step is behind the launch, where a scheduler moves more than the rate."""
    name = _moved_by_scheduler(failure)
    return name and (
        f"the optimizer's step is behind the launch as the scheduler moves `{name}` too: "
        "with `cycle_momentum=False` it can be in the graph"
    )


def cycled(place: Place) -> str:
    """What a scheduler moves beside the rate."""
    name = _moved_by_scheduler(place.failure)
    return (
        name
        and f"the scheduler moves `{name}` too, which stays a number in the graph: make it with `cycle_momentum=False`"
    )


def asked_for_none(test: ast.expr) -> str:
    """The name of ``y is not None``, or ""."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
            none = isinstance(node.comparators[0], ast.Constant) and node.comparators[0].value is None
            if none and isinstance(node.left, ast.Name):
                return node.left.id
    return ""


def decided(place: Place) -> str:
    """What the host draws or counts, and the graph would freeze."""
    if place.failure.code not in DECIDED:
        return ""
    node = place.statement
    tests = [n.test for n in (node, *heads(node)) if isinstance(n, (ast.If, ast.IfExp))]
    if place.failure.code == "branch-frozen" and any(map(asks_sizes, tests)):
        return ""  # both ways would be of other sizes, and no value of the device chooses
    if isinstance(node, ast.If):
        if apart := trained_between(place, node):
            return apart
        decides = (ast.Assign, ast.AugAssign, ast.Return, ast.Continue, ast.Break)
        if not any(isinstance(n, decides) for part in node.body for n in within(part)):
            return between(place, node) or put_off(place) or BEHIND  # it only tells what happened
        inside = [n for part in (*node.body, *node.orelse) for n in within(part)]
        trained = any(map(is_training, inside))
        first, last = node.body[0].lineno, node.body[-1].end_lineno
        if trained:
            return (
                f"the host decides whether lines {first} to {last} train: make a function of them, with a graph of its "
                f"own, and launch it behind this one where `{place.text(node.test)}`"
            )
        if any(isinstance(n, ast.Return) for n in inside) and _draws(node):
            return (
                f"the host decides, and draws what is returned: take lines {node.lineno} to {last} out of the "
                "function, to before the launch, and launch where they have not returned"
            )
        if name := asked_for_none(node.test):
            return (
                f"`{name}` is a tensor in some calls and None in others, and no tensor says that: capture a graph for "
                f"each, `graphs[{name} is None]`, and launch the one that the call is of"
            )
        chosen = choose_by_where(place, "chosen_in")
        instead = (
            f"`{chosen[0].text.strip()}`"
            if len(chosen) == 1
            else "`torch.where(chosen_in, ..., ...)` for what it assigns"
        )
        if place.loops() and draws(node.test):
            return _drawn_in_loop(place)
        if (call := called_again(place)) is not None and draws(node.test):
            return (
                f"the host draws in each call, as line {call.lineno} makes several: have it fill a tensor with one "
                f"`{place.text(node.test)}` for each of them before each launch, give each call its element, and take "
                f"{instead.replace('chosen_in', 'drawn')}"
            )
        instead += _begun_there(place, inside)
        return found_before(
            "chosen_in", place.text(node.test), "torch.bool", place, f"in place of the branch {instead}"
        )
    for each in heads(node):
        if isinstance(each, ast.IfExp) and place.failure.code in ("branch-frozen", "host-random"):
            text = f"torch.where(chosen_in, {place.text(each.body)}, {place.text(each.orelse)})"
            more = "; in a loop one element for each time round" * bool(place.loops())
            return found_before("chosen_in", place.text(each.test), "torch.bool", place, f"here `{text}`{more}")
    made = {name: one for name, one in assignments(place) if _is_host(one.value)}
    made = {name: one for name, one in made.items() if not _of_device(place, one.value)}
    if place.failure.code == "host-counter":
        made = {}  # what the host keeps it does not ask of the device
    if made and place.loops() and any(draws(one.value) for one in made.values()):
        return _drawn_in_loop(place)
    if any(path_of(n.func).startswith("time.") for n in heads(node) if isinstance(n, ast.Call)):
        return "time the launch itself, around it in your loop: in a graph only the capture is timed"
    for each in heads(node):
        if isinstance(each, ast.Slice) and (names := [n for n in made if n in names_in(each)]):
            return moving_slice(place, each, {name: made[name] for name in with_those_beside(place, each, made, names)})
    for name, one in made.items():
        if isinstance(one.targets[0], ast.Tuple) and isinstance(one.value, ast.Tuple):
            at = [place.text(n) for n in one.targets[0].elts]
            text = place.text(one.value.elts[at.index(name)]) if name in at else place.text(one.value)
            return found_before(f"{name}_in", text, "", place, f"here `{name}_in` for `{name}`", one.lineno)
        if isinstance(one.targets[0], (ast.Attribute, ast.Subscript)):  # of `name`, which is none itself
            path, kept = place.text(one.targets[0]), f"{getattr(one.targets[0], 'attr', name)}_in"
            if path not in map(place.text, heads(node)):
                continue
            return (
                f"the host's `{place.text(one)}` (line {one.lineno}) belongs before each launch, which reads `{path}` "
                f"from a tensor: once `{kept} = torch.zeros((), device={place.device})`, before each launch that line "
                f"and `{kept}.fill_({path})`, here `{kept}` for `{path}`"
            )
        function = place.source.function_of(node)
        if function is not None and any(path_of(n.func) == name for n in heads(node) if isinstance(n, ast.Call)):
            return (
                f"`{name}`, which is called here, is picked by the host at line {one.lineno}: pick it before each "
                f"launch, and give it to `{function.name}` among its arguments; each that comes has a graph of its "
                f"own, `graphs[{name}]`, captured when it first comes"
            )
        here, form = f"here `{name}_in` for `{name}`", place.tensors.get(name)
        if form is not None and form.shape:
            size = ", ".join(map(str, form.shape))
            kind = "" if form.dtype is torch.get_default_dtype() else f", dtype={form.dtype}"
            return (
                f"`{name}`, which the host makes at line {one.lineno}, belongs before each launch: once `{name}_in = "
                f"torch.zeros({size}{kind}, device={place.device})`, before each launch "
                f"`{name}_in.copy_({place.text(one.value)})`, {here}"
            )
        if _is_many(one.value):
            continue
        return found_before(f"{name}_in", place.text(one.value), "", place, here, one.lineno)
    for name, one in assignments(place):
        if (drawn := _returned_by(place, name, one)) is not None:
            text = f"`{name}` comes from line {drawn.lineno}, `{place.text(drawn)}`"
            return f"{text}: with the tensor `{name}_in` in its place there it is one here"
    return ""


def _begun_there(place: Place, inside: list[ast.AST]) -> str:
    """What a branch writes on the device is a tensor from where it begins, and so is what it reads."""
    targets = [t for n in inside if isinstance(n, ast.Assign) for t in n.targets]
    targets += [n.target for n in inside if isinstance(n, ast.AugAssign)]
    names = dict.fromkeys(t.id for t in targets if isinstance(t, ast.Name) and not place.is_local(t.id))
    made = [
        f"`{name} = torch.tensor({place.space[name]!r}, device={place.device})`"
        for name in names
        if type(place.space.get(name)) in (int, float)
    ]
    return f", with {' and '.join(made)} where it begins and tensors, without `.item()`, for what that reads" * bool(
        made
    )


def _drawn_in_loop(place: Place) -> str:
    """What the host draws anew in each round."""
    loop = place.loops()[0]
    stores = (n for n in ast.walk(loop) if isinstance(n, ast.Subscript))
    into = [place.text(n.value) for n in stores if isinstance(n.ctx, ast.Store)]
    line = loop.lineno
    if into:
        x = into[0]
        return (
            f"the host draws in each round of line {line}: have it fill a mask of the shape of `{x}` before each "
            f"launch, `mask_in.copy_(mask)` (once `mask_in = torch.zeros_like({x}, dtype=torch.bool)`), "
            f"and write all of it at once: `{x} = torch.where(mask_in, new, {x})`"
        )
    return (
        f"the host draws in each round of line {line}: have it fill a tensor with one element for each round before "
        "each launch, and read that of the round here"
    )


def _is_many(value: ast.expr) -> bool:
    """Whether what is drawn is no number but several of something: ``random.sample(rows, 4)``."""
    return isinstance(value, ast.Call) and called(value) in ("sample", "choices", "permutation", "randperm", "shuffle")


def _draws(node: ast.If) -> bool:
    calls = [n for part in node.body for n in ast.walk(part) if isinstance(n, ast.Call)]
    return any(path_of(n.func).partition(".")[0] in _HOST and "rand" in path_of(n.func) for n in calls)


def _returned_by(place: Place, name: str, made: ast.Assign) -> ast.Assign | None:
    """Where the function that gives ``name`` as one of its results takes it from the host."""
    target = made.targets[0]
    if not isinstance(made.value, ast.Call) or not isinstance(target, ast.Tuple):
        return None
    at = [n.id if isinstance(n, ast.Name) else "" for n in target.elts].index(name)
    for function in ast.walk(place.source.tree):
        if not isinstance(function, Function) or function.name != called(made.value):
            continue
        for node in (n for part in function.body for n in within(part)):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) > at:
                inner = replace(place, statement=node)
                drawn = dict(assignments(inner)).get(place.text(node.value.elts[at]))
                if drawn is not None and _is_host(drawn.value):
                    return drawn
    return None


def called_again(place: Place) -> ast.Call | None:
    """A call of the function around a statement, where there is more than one in each step."""
    function = place.source.function_of(place.statement)
    name = function.name if function is not None else ""
    calls = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    calls = [n for n in calls if called(n) == name]
    above: ast.AST | None = calls[0] if calls else None
    while above is not None and not isinstance(above, Function):
        if isinstance(above, (ast.For, ast.While, ast.ListComp, ast.GeneratorExp)):
            return calls[0]
        above = place.source.parents.get(above)
    return calls[0] if len(calls) > 1 else None


def _is_host(value: ast.expr) -> bool:
    """Whether an expression draws or computes a number on the host, as far as its names tell."""
    for node in ast.walk(value):
        if isinstance(node, ast.Call):
            root = path_of(node.func).partition(".")[0]
            if root in _HOST or (isinstance(node.func, ast.Name) and node.func.id in ("min", "max", "int", "float")):
                return True
    return isinstance(value, ast.BinOp) and not any(isinstance(n, ast.Call) for n in ast.walk(value))


def _of_device(place: Place, value: ast.expr, known: frozenset[str] = frozenset()) -> bool:
    """Whether something is computed of the device's tensors, also of what the host has read of them."""
    names = names_in(value) - only_sized(place.source, value)
    if names & place.tensors.keys():
        return True
    function = place.source.function_of(place.statement)
    every = [n for part in (function.body if function is not None else ()) for n in within(part)]
    makes = (ast.Assign, ast.AugAssign, ast.AnnAssign)
    made = [n for n in every if isinstance(n, makes) and n.value is not None and stored([n]) & names - known]
    return any(_of_device(place, n.value, known | names) for n in made if n.value is not None)


def assignments(place: Place) -> Iterator[tuple[str, ast.Assign]]:
    """The one assignment in the function of each local name that a statement reads."""
    function = place.source.function_of(place.statement)
    if function is None:
        return
    for name in sorted(names_in(place.statement) & locals_of(function)):
        made = [
            n
            for part in function.body
            for n in within(part)
            if isinstance(n, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == name for each in n.targets for t in ast.walk(each))
            and n.lineno <= place.statement.lineno
            and n is not place.statement
        ]
        if len(made) == 1:
            yield name, made[0]


def _returned_name(place: Place, node: ast.Assign) -> str:
    """The name that a statement gives a value to, and that its function returns."""
    function = place.source.function_of(node)
    names = {each.id for each in node.targets if isinstance(each, ast.Name)}
    ends = (n for part in (function.body if function is not None else ()) for n in within(part))
    read = {name for n in ends if isinstance(n, ast.Return) and n.value is not None for name in names_in(n.value)}
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
        if not isinstance(later, (ast.Assign, ast.Return)) or later.lineno <= node.lineno or later.value is None:
            continue
        read = names_in(later.value)
        if names & read and read & (place.tensors.keys() | place.local(node.value)):
            call = node.value if isinstance(node.value, ast.Call) else None
            there = called(call) if call is not None and path_of(call.func).partition(".")[0] in ("np", "numpy") else ""
            what = f", as `torch.{there}` does" if hasattr(torch, there or " ") else ""
            if ".item()" in (text := place.text(node)):
                what = f", `{text.replace('.item()', '.detach()')}`"
            return f"line {later.lineno} goes on with `{min(names & read)}`: compute it of tensors on the device{what}"
    return ""


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


def _needed_after(place: Place, call: ast.Call) -> str:
    """``stats.update(x.cpu().numpy())``, before a line that brings ``stats.mean`` to the device."""
    function = place.source.function_of(call)
    held = path_of(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if not held or function is None or held.partition(".")[0] in _HOST:
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
    if _ends_a_loop(place, node):
        return ""
    function = place.source.function_of(node)
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
    if isinstance(node, ast.AugAssign) and (kept := _at_a_place(place, node)):
        return kept
    target = node.target if isinstance(node, ast.AugAssign) else getattr(node, "targets", [node])[0]
    counts = isinstance(node, ast.AugAssign) or isinstance(target, ast.Attribute)
    if counts and function is not None and (path := path_of(target)):
        for later in (n for part in function.body for n in within(part) if isinstance(n, (ast.Assign, ast.Return))):
            to = later.targets if isinstance(later, ast.Assign) else []
            its_own = bool(to) and all(isinstance(each, ast.Attribute) for each in to)  # as a mean of losses
            if later.lineno > node.lineno and later.value and path in paths(later.value) and not its_own:
                if any(is_cut(place, n) and n.lineno < later.lineno for n in function.body):
                    return f"belongs behind the launch, with line {later.lineno}, which reads it"
                if isinstance(later, ast.Return) or names_in(later.value) & place.tensors.keys():
                    return f"belongs before each launch: line {later.lineno} reads it there from a tensor"
                return f"belongs before each launch, with line {later.lineno}, which reads it"
        for later in (n for part in function.body for n in within(part) if isinstance(n, ast.If)):
            if later.lineno > node.lineno and path in paths(later.test) and (where := between(place, later)):
                if asked := asked_before(place, later):
                    return f"belongs before each launch, and what line {later.lineno} does stays: {asked}"
                if "two launches" in where:
                    return f"belongs where line {later.lineno} goes, which reads it"
                return f"belongs before each launch, with line {later.lineno}, which reads it"
    if any(map(place.computes_with, written(node))):
        return LEFT  # moved by hand alone, the graph would keep the number that it had
    return put_off(place) or BEHIND
