"""Advice for what the host draws, counts and decides: before the launch, behind it, or on the device."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

import torch

from paramgraph_kit.doctor.observe.one_call import MOVED
from paramgraph_kit.rewrite.advised.asks.by_where import by_where
from paramgraph_kit.rewrite.advised.asks.cut_here import (
    a_graph_as_it_calls,
    a_graph_for_each_answer,
    a_graph_where_it_is_none,
    a_graph_with_more_gradients,
    trained_between,
)
from paramgraph_kit.rewrite.advised.asks.masked_cuts import is_a_size
from paramgraph_kit.rewrite.advised.asks.moving_slices import (
    between,
    found_before,
    moving_slice,
    with_those_beside,
)
from paramgraph_kit.rewrite.advised.asks.put_off import put_off
from paramgraph_kit.rewrite.advised.host.asked_in_rounds import asked_in_rounds
from paramgraph_kit.rewrite.advised.host.called_last import called_last, keeps_numbers, only_tells
from paramgraph_kit.rewrite.advised.host.chosen_numbers import chosen_here
from paramgraph_kit.rewrite.advised.host.given_host_tensors import of_host_tensors
from paramgraph_kit.rewrite.advised.host.handed_numbers import is_a_tensor
from paramgraph_kit.rewrite.advised.host.left_by_chance import FOLLOWS_HOST
from paramgraph_kit.rewrite.advised.host.left_in_helpers import a_graph_for_its_answers
from paramgraph_kit.rewrite.advised.host.narrow import scales_narrow
from paramgraph_kit.rewrite.advised.host.picked_at import picked_at
from paramgraph_kit.rewrite.advised.host.several_numbers import found_by_a_method, is_chosen, made_in_branches
from paramgraph_kit.rewrite.advised.sizes.rounds_given import OF_EACH
from paramgraph_kit.rewrite.advised.state.counted_in_rounds import of_its_round, stepped_behind, whole_of
from paramgraph_kit.rewrite.expressions.decisions.hosted import asks_sizes
from paramgraph_kit.rewrite.source.digits import zeros_for
from paramgraph_kit.rewrite.source.edits import Function, heads, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.hosts import draws, only_sized
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh, is_training
from paramgraph_kit.rewrite.source.unchanging import deciders
from paramgraph_kit.rewrite.source.writes import paths
from paramgraph_kit.trace.model import Failure

READS = ("sync-item", "copy-to-cpu")
BROUGHT = ("copy-to-gpu", "tensor-literal", "cpu-index", "cpu-scalar-frozen")
DECIDED = ("host-random", "branch-frozen", "size-frozen", "scalar-frozen", "host-counter", "cpu-scalar-frozen")
LEFT = "belongs behind the launch: leave it, it moves there once the other lines are mended"
BEHIND = f"{LEFT}; or move it there yourself"
_OF_TENSORS = frozenset("clamp abs exp log sqrt sum mean amax amin float long softmax sigmoid to view".split())  # noqa: SIM905
_EACH_OF_NONE = (
    "`{0}` is a tensor in some calls and None in others, and no tensor says that: capture a graph for "
    "each, `graphs[{0} is None]`, and launch the one that the call is of"
)
ONE_ROUND = (
    "make one round of the loop of line {} what is captured, and launch it in that loop: the host asks `{}` ahead of "
    "each launch"
)
HOSTS = ("random", "np", "numpy", "time", "math")


def _moved_by_scheduler(failure: Failure) -> str:
    name = failure.message.partition(MOVED)[0]
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
    if not name or not any(place.calls("step")):
        return ""
    return (
        f"the scheduler moves `{name}` too, which stays a number in the graph: {stepped_behind(place)}; or make the "
        "scheduler with `cycle_momentum=False`, which trains otherwise"
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
    if place.failure.code == "size-frozen" and (told := of_host_tensors(place)):
        return told
    if place.failure.code == "size-frozen" and (loop := _goes_round_by_a_count(place)) is not None:
        return f"stays as it is, in {OF_EACH} number that line {loop.lineno} goes round by"
    tests = [n.test for n in (node, *heads(node)) if isinstance(n, (ast.If, ast.IfExp))]
    if place.failure.code == "branch-frozen" and any(map(asks_sizes, tests)):
        return ""  # both ways would be of other sizes, and no value of the device chooses
    if isinstance(node, ast.While) and place.failure.code == "branch-frozen":
        return ONE_ROUND.format(node.lineno, place.text(node.test))
    if isinstance(node, ast.If):
        if apart := a_graph_for_each_answer(place, node) or trained_between(place, node):
            return apart
        if place.failure.code == "branch-frozen" and (told := called_last(place)):
            return told
        decides = (ast.Assign, ast.AugAssign, ast.Return, ast.Continue, ast.Break)
        ways = (n for part in (*node.body, *node.orelse) for n in within(part))
        if only_tells(place, node) or not any(isinstance(n, decides) and not keeps_numbers(n) for n in ways):
            asked = between(place, node)  # without, it only tells what happened
            return (asked and a_graph_as_it_calls(place, node)) or asked or put_off(place) or BEHIND
        if apart := a_graph_as_it_calls(place, node):
            return apart
        inside = [n for part in (*node.body, *node.orelse) for n in within(part)]
        trained = any(map(is_training, inside))
        first, last = node.body[0].lineno, node.body[-1].end_lineno
        if trained:
            return (
                f"the host decides whether lines {first} to {last} train: make a function of them, with a graph of its "
                f"own, and launch it behind this one where `{place.text(node.test)}`"
            )
        if told := a_graph_for_its_answers(place, node):
            return told
        if any(isinstance(n, ast.Return) for n in inside) and _draws(node):
            return (
                f"the host decides, and draws what is returned: take lines {node.lineno} to {last} out of the "
                "function, to before the launch, and launch where they have not returned"
            )
        if name := asked_for_none(node.test):
            return _EACH_OF_NONE.format(name)
        if apart := a_graph_where_it_is_none(place, node) or a_graph_with_more_gradients(place, node):
            return apart
        flag = fresh("chosen_in", place.taken)
        instead = by_where(place, flag)
        if place.loops() and draws(node.test):
            return _drawn_in_loop(place)
        if (call := called_again(place)) is not None and draws(node.test):
            return (
                f"the host draws in each call, as line {call.lineno} makes several: have it fill a tensor with one "
                f"`{place.text(node.test)}` for each of them before each launch, give each call its element, and take "
                f"{instead.replace(flag, 'drawn')}"
            )
        if asked := asked_in_rounds(place, node, instead, flag):
            return asked
        instead += _begun_there(place, inside)
        test = place.text(node.test)  # also whether a list has something
        asked = f"bool({test})" if isinstance(node.test, (ast.Name, ast.Attribute)) else test
        return found_before(flag, asked, "torch.bool", place, f"in place of the branch {instead}")
    for each in heads(node):
        if isinstance(each, ast.IfExp) and place.failure.code in ("branch-frozen", "host-random"):
            if name := asked_for_none(each.test):  # which no tensor says, and what a caller gives is decided there
                return FOLLOWS_HOST if place.helper else _EACH_OF_NONE.format(name)
            flag = fresh("chosen_in", place.taken)
            here = chosen_here(place, each, flag) + "; in a loop one element for each time round" * bool(place.loops())
            return found_before(flag, place.text(each.test), "torch.bool", place, here)
    made = {name: one for name, one in assignments(place) if _is_host(one.value) or is_chosen(place, _of(one, name))}
    made = {name: one for name, one in made.items() if not _of_device(place, one.value)}
    if place.failure.code == "host-counter":
        made = {}  # what the host keeps it does not ask of the device
    if place.failure.code == "scalar-frozen" and len(made) > 1:  # of several numbers one that is another each time
        made = {name: one for name, one in made.items() if deciders(place, one.value) is None} or made
    by_chance = [one for one in made.values() if draws(one.value)]
    if any(one in within(loop) for loop in place.loops() for one in by_chance):
        return _drawn_in_loop(place)
    if by_chance and isinstance(node, ast.For):
        return ""  # how many rounds there are is none of their numbers
    if any(path_of(n.func).startswith("time.") for n in heads(node) if isinstance(n, ast.Call)):
        return "time the launch itself, around it in your loop: in a graph only the capture is timed"
    for each in heads(node):
        if isinstance(each, ast.Slice) and (names := [n for n in made if n in names_in(each)]):
            return moving_slice(place, each, {name: made[name] for name in with_those_beside(place, each, made, names)})
    for name, one in made.items():
        if isinstance(one.targets[0], ast.Tuple) and isinstance(one.value, ast.Tuple):
            at = [place.text(n) for n in one.targets[0].elts]
            text = place.text(one.value.elts[at.index(name)]) if name in at else place.text(one.value)
            given = fresh(f"{name}_in", place.taken)
            if there := picked_at(place, name, given):
                return found_before(given, text, "torch.long", place, there, one.lineno)
            here = scales_narrow(place, name, given) or f"here `{given}` for `{name}`"
            return found_before(given, text, "", place, here, one.lineno)
        if isinstance(one.targets[0], (ast.Attribute, ast.Subscript)):  # of `name`, which is none itself
            path = place.text(one.targets[0])
            kept = fresh(f"{getattr(one.targets[0], 'attr', name)}_in", place.taken)
            if path not in map(place.text, heads(node)):
                continue
            return (
                f"the host's `{place.text(one)}` (line {one.lineno}) belongs before each launch, which reads `{path}` "
                f"from a tensor: once `{kept} = {zeros_for(place)}`, before each launch that line "
                f"and `{kept}.fill_({path})`, here `{kept}` for `{path}`"
            )
        function = place.source.function_of(node)
        if function is not None and any(path_of(n.func) == name for n in heads(node) if isinstance(n, ast.Call)):
            return (
                f"`{name}`, which is called here, is picked by the host at line {one.lineno}: pick it before each "
                f"launch, and give it to `{function.name}` among its arguments; each that comes has a graph of its "
                f"own, `graphs[{name}]`, captured when it first comes"
            )
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Call) and called(node.iter) == "range":
            text = place.text(one.value)
            return (
                f"it goes round by `{text}` (line {one.lineno}), and a graph has the rounds of its capture: {OF_EACH} "
                f"of its values, `graphs[{text}]`, captured when it first comes, and picked so before each launch; "
                "this line stays"
            )
        given = fresh(f"{name}_in", place.taken)
        if there := picked_at(place, name, given):
            return found_before(given, place.text(one.value), "torch.long", place, there, one.lineno)
        here, form = f"here `{given}` for `{name}`", place.tensors.get(name)
        if form is not None and form.shape:
            size = ", ".join(map(str, form.shape))
            kind = "" if form.dtype is torch.get_default_dtype() else f", dtype={form.dtype}"
            return (
                f"`{name}`, which the host makes at line {one.lineno}, belongs before each launch: once `{given} = "
                f"torch.zeros({size}{kind}, device={place.device})`, before each launch "
                f"`{given}.copy_({place.text(one.value)})`, {here}"
            )
        if _is_many(one.value) or is_a_size(place, name):
            continue
        if told := of_its_round(place, name, one):
            return told
        text, old = whole_of(place, name, one)
        narrow = scales_narrow(place, name, given) if old == name else ""
        return found_before(given, text, "", place, narrow or f"here `{given}` for `{old}`", one.lineno)
    if (noted := _kept_there(place)) or (noted := made_in_branches(place) or found_by_a_method(place)):
        return noted
    for name, one in assignments(place):
        if name not in place.seen and (drawn := _returned_by(place, name, one)) is not None:
            text = f"`{name}` comes from line {drawn.lineno}, `{place.text(drawn)}`"
            return f"{text}: with the tensor `{name}_in` in its place there it is one here"
    return ""


def _goes_round_by_a_count(place: Place) -> ast.For | ast.While | None:
    """The loop around a statement that begins or ends at a number of the host's: ``for i in range(first, n, 2)``."""
    for loop in place.loops():
        ends = loop.iter if isinstance(loop, ast.For) and loop is not place.statement else None
        if isinstance(ends, ast.Call) and called(ends) == "range":
            made = dict(assignments(replace(place, statement=loop)))
            if any(
                n in names_in(ends) and _is_host(m.value) and not _of_device(place, m.value) for n, m in made.items()
            ):
                return loop
    return None


def _kept_there(place: Place) -> str:
    """``self.alpha * logp``, where a line of the step reads that number of the device: ``self.alpha = x.item()``."""
    function = place.source.function_of(place.statement)
    every = [n for part in function.body for n in within(part)] if function is not None else []
    read = paths(place.statement) if place.failure.code == "scalar-frozen" else set[str]()
    for target, value in ((n.targets[0], n.value) for n in every if isinstance(n, ast.Assign)):
        path = path_of(target)
        if "." in path and path in read and isinstance(value, ast.Call) and called(value) in ("item", "float"):
            line = value.lineno
            return f"`{path}` is a tensor here once line {line} keeps it on the device: this line stays as it is"
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
    return any(path_of(n.func).partition(".")[0] in HOSTS and "rand" in path_of(n.func) for n in calls)


def _returned_by(place: Place, name: str, made: ast.Assign) -> ast.Assign | None:
    """Where the function that gives ``name`` as one of its results takes it from the host."""
    target = made.targets[0]
    if not isinstance(made.value, ast.Call) or not isinstance(target, ast.Tuple):
        return None
    own = [n.id if isinstance(n, ast.Name) else "" for n in target.elts]
    if name not in own:  # of an attribute, `logits, self.hidden = ...`, or of a starred name
        return None
    at = own.index(name)
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


def _of(node: ast.Assign, name: str) -> ast.expr:
    """What a name gets: of ``t, last = times[i], times[-1]`` its own part."""
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return next((one for at, one in zip(target.elts, value.elts, strict=True) if path_of(at) == name), value)
    return value


def _is_host(value: ast.expr) -> bool:
    """Whether an expression draws or computes a number on the host, as far as its names tell."""
    calls = [n for n in ast.walk(value) if isinstance(n, ast.Call) and path_of(n.func).partition(".")[0] not in HOSTS]
    if any(isinstance(n.func, ast.Attribute) and n.func.attr in _OF_TENSORS for n in calls):
        return False
    for node in ast.walk(value):
        if isinstance(node, ast.Call):
            root = path_of(node.func).partition(".")[0]
            if root in HOSTS or (isinstance(node.func, ast.Name) and node.func.id in ("min", "max", "int", "float")):
                return True
    if is_drawn_on_cpu(value):
        return True
    return isinstance(value, ast.BinOp) and not any(isinstance(n, ast.Call) for n in ast.walk(value))


def is_drawn_on_cpu(value: ast.AST) -> bool:
    """``torch.randint(0, 3, (1,)).item()``: a number of the host's, as no device is given."""
    drawn = value.func.value if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) else None
    by_torch = isinstance(drawn, ast.Call) and path_of(drawn.func) in ("torch.rand", "torch.randn", "torch.randint")
    return by_torch and called(value) == "item" and not any(k.arg == "device" for k in drawn.keywords)  # type: ignore[arg-type, union-attr]


def _of_device(place: Place, value: ast.expr, known: frozenset[str] = frozenset()) -> bool:
    """Whether something is computed of the device's tensors, also of what the host has read of them."""
    names = names_in(value) - only_sized(place.source, value)
    if names & place.tensors.keys() or any(_holds_a_tensor(place, n) for n in ast.walk(value)):
        return True
    if place.failure.code == "scalar-frozen" and any(is_a_tensor(place, name) for name in names):
        return True
    function = place.source.function_of(place.statement)
    every = [n for part in (function.body if function is not None else ()) for n in within(part)]
    makes = (ast.Assign, ast.AugAssign, ast.AnnAssign)
    made = [n for n in every if isinstance(n, makes) and n.value is not None and stored([n]) & names - known]
    if place.failure.code == "scalar-frozen" and any(_is_of_a_call(place, n.value) for n in made):
        return True
    return any(_of_device(place, n.value, known | names) for n in made if n.value is not None)


def _is_of_a_call(place: Place, value: ast.expr | None) -> bool:
    """``k1 = self.func(t, y)``, of what is no function of the file: as likely a network's result as a number."""
    call = value if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) else None
    if call is None or path_of(call.func).partition(".")[0] != "self":
        return False
    return not any(isinstance(n, Function) and n.name == called(call) for n in ast.walk(place.source.tree))


def _holds_a_tensor(place: Place, node: ast.AST) -> bool:
    """Whether it is an attribute of a tensor of the device, of which values are read: not ``self.x.shape``."""
    above = place.source.parents.get(node)
    if not isinstance(node, ast.Attribute) or isinstance(above, ast.Attribute):
        return False
    held = place.value(path) if (path := path_of(node)) else None
    return isinstance(held, torch.Tensor) and held.device.type != "cpu"


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
