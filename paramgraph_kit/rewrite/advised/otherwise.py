"""Advice for parts that the device bounds, for branches that the host draws, and where no other line tells anything."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import torch

from paramgraph_kit.doctor.explain.syntax import last_name
from paramgraph_kit.doctor.observe.host_results import RETURNED
from paramgraph_kit.doctor.observe.other_numbers import OTHER_NUMBERS
from paramgraph_kit.doctor.observe.set_between import ONCE, SET_BETWEEN
from paramgraph_kit.rewrite.advised.asks.asking_rounds import one_round
from paramgraph_kit.rewrite.advised.asks.cut_here import needed_behind, read_here
from paramgraph_kit.rewrite.advised.asks.first_thing import first_thing, in_pieces, trains_behind
from paramgraph_kit.rewrite.advised.asks.kept_behind import kept_in_place
from paramgraph_kit.rewrite.advised.host.brought_within import brought_within, for_each_call
from paramgraph_kit.rewrite.advised.host.drawn_before import picked_tensors
from paramgraph_kit.rewrite.advised.host.drawn_beside import drawn_beside
from paramgraph_kit.rewrite.advised.host.drawn_in_rounds import drawn_for_a_helper, fractions_drawn
from paramgraph_kit.rewrite.advised.host.exchanged import exchanged
from paramgraph_kit.rewrite.advised.host.from_host import BROUGHT, DECIDED, LEFT, ONE_ROUND, READS, assignments
from paramgraph_kit.rewrite.advised.host.given_host_tensors import of_host_tensors
from paramgraph_kit.rewrite.advised.host.given_numbers import held_in_a_tensor, of_a_formula, of_an_argument
from paramgraph_kit.rewrite.advised.host.kept_rounds import ended_before, over_what_it_keeps
from paramgraph_kit.rewrite.advised.host.made_of_numbers import ANSWERED, of_what_is_given
from paramgraph_kit.rewrite.advised.host.sampled_ahead import sampled_ahead
from paramgraph_kit.rewrite.source.digits import zeros_for
from paramgraph_kit.rewrite.source.edits import COMPOUND, Function, heads, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place, called, is_training, target_of, value_of

_BOUNDED = ("tensor-bound", "linalg-host", "ctc-loss", *READS)
_LARGEST = ("max", "amax")


def cut_out(place: Place) -> str:
    """``lo, hi = spans[i].tolist()`` with ``x[:, lo:hi]``, and ``n = lengths.max().item()`` with ``x[:, :n]``."""
    function = place.source.function_of(place.statement)
    if place.failure.code not in _BOUNDED or function is None:
        return ""
    names = _given_by(place)
    every = [n for part in function.body for n in within(part) if isinstance(n, ast.Subscript)]
    for node in every:
        parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        cuts = [n for n in parts if isinstance(n, ast.Slice) and n.step is None and names & _names(n)]
        named = bool(path_of(node.value)) and isinstance(node.ctx, ast.Load)
        if isinstance(place.statement, ast.For) and names_in(node.value) & names:
            continue  # what is cut there is the host's by then
        if node.lineno < place.statement.lineno or not cuts or not named:
            continue
        at, cut = parts.index(cuts[0]), cuts[0]
        first = [n for n in parts[:at] if not isinstance(n, ast.Slice)]
        x = place.source.bracketed(node.value) + (f"[{', '.join(map(place.text, first))}]" if first else "")
        dim, text = at - len(first), place.text(node)
        if _is_joined(place, node) and (told := one_round(place)):
            return told
        if cut.lower is None and isinstance(cut.upper, ast.Name) and _is_largest(place):
            at -= len(parts) * any(isinstance(n, ast.Constant) and n.value is Ellipsis for n in parts[:at])
            name, whole = cut.upper.id, place.source.bracketed(node.value)  # also where a tensor picks its rows
            return (
                f"leave the cut out, `{name} = {whole}.shape[{at}]`: right where a mask leaves out what lies behind "
                f"the ends already; else cut `[:, :{name}]` behind the launch, or give `{name}` as a number among the "
                "arguments, of which each has a graph"
            )
        last = _returned_with(place, node)
        if last is not None and isinstance(place.statement, ast.Return):
            continue  # what is returned as it is can be, and cut behind the launch
        if last is not None:
            own = sorted(names & _names(cut))
            return (
                f"what is returned has as many of `{x}` as `{own[0]}` says: return `{own[0]}`, a tensor, and what `"
                f"{place.text(last)}` is made of in its place, and make that of them behind the launch"
            )
        if (sized := _resized_by(place, node)) is not None:
            return (
                f"how large `{text}` is decides what `{place.text(sized.func)}` does: find its ends before the launch, "
                "and give them as numbers of the host among the arguments, of which each set has a graph; or sample "
                "all alike on the device, as `torchvision.ops.roi_align` does with boxes: other numbers, so it was "
                "not rewritten"
            )
        ends = ((">=", cut.lower), ("<", cut.upper))
        tests = " & ".join(f"(at {sign} {place.source.bracketed(end)})" for sign, end in ends if end is not None)
        return (
            f"leave the cut out: with tensors for its ends, `at = torch.arange({x}.shape[{dim}], device={x}.device)` "
            f"and `inside = {tests}` mark what `{text}` is; compute with all of `{x}`, and where it is added up write "
            "`torch.where(inside, values, 0)`, for a mean divided by `inside.sum()`; before a softmax "
            "`scores.masked_fill(~inside, -torch.inf)`, and for attention `attn_mask=inside[None]`"
        )
    return ""


def _returned_with(place: Place, node: ast.AST) -> ast.expr | None:
    """What a function returns with a part in it as it is, or joined to others."""
    above = place.source.parents.get(node)
    while isinstance(above, (ast.List, ast.Tuple, ast.Call, ast.Attribute)):
        if isinstance(above, ast.Call) and called(above) not in ("cat", "concat", "stack", "tolist", "cpu"):
            return None
        above = place.source.parents.get(above)
    return above.value if isinstance(above, ast.Return) else None


def _resized_by(place: Place, node: ast.AST) -> ast.Call | None:
    """What makes one size of a part, ``F.interpolate(x[:, a:b][None], size=8)``, also where it has a name first."""
    above, function = place.source.parents.get(node), place.source.function_of(place.statement)
    target = target_of(above)
    names = {target.id} if isinstance(above, ast.Assign) and isinstance(target, ast.Name) else set[str]()
    for call in (n for n in ast.walk(function or place.statement) if isinstance(n, ast.Call)):
        resizes = called(call).startswith("adaptive_") or called(call) in ("interpolate", "resize", "grid_sample")
        given = {part for each in call.args[:1] for part in ast.walk(each)}
        if resizes and (node in given or any(isinstance(n, ast.Name) and n.id in names for n in given)):
            return call
    return None


def _is_joined(place: Place, node: ast.AST) -> bool:
    """Whether a part is joined to others, as it is: that is longer by another number in each round."""
    above = place.source.parents.get(node)
    while isinstance(above, (ast.List, ast.Tuple)):
        above = place.source.parents.get(above)
    return isinstance(above, ast.Call) and called(above) in ("cat", "concat")


def _given_by(place: Place) -> set[str]:
    """Names that a statement gives what it has read, or that bound its own parts."""
    node = place.statement
    if place.failure.code == "tensor-bound":
        return names_in(node)
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return found if isinstance(node, (ast.Assign, ast.For)) else set()


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _is_largest(place: Place) -> bool:
    node = place.statement
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)] if isinstance(node, ast.Assign) else []
    return any(called(n) in _LARGEST and isinstance(n.func, ast.Attribute) for n in calls)


def fewer_in_each_round(place: Place) -> str:
    """``x, h = x[going], h[going]`` in a loop through modules: in its rounds the host asks."""
    loop = next((each for each in place.loops() if isinstance(each, ast.For)), None)
    if place.failure.code not in ("dynamic-shape", "data-dependent-branch", "copy-to-cpu") or loop is None:
        return ""
    for node in (n for part in loop.body for n in within(part) if isinstance(n, ast.Assign)):
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        fewer = [n for n in values if isinstance(n, ast.Subscript) and not isinstance(n.slice, (ast.Slice, ast.Tuple))]
        masks = [n for n in fewer if not isinstance(n.slice, (ast.Constant, ast.UnaryOp))]
        names = sorted({path_of(n.value) for n in masks} & stored([node]))
        if names and (told := one_round(place)):
            return told
    return ""


def _by_rounds_of_a_generator(place: Place) -> str:
    """``for rows in sampler: yield x[rows], y[rows]``, whose rows are lists of the host's."""
    function, loops = place.source.function_of(place.statement), place.loops()
    loop = loops[-1] if loops else None
    parts = [n for part in (function.body if function is not None else ()) for n in within(part)]
    if function is None or not isinstance(loop, ast.For) or not any(isinstance(n, ast.Yield) for n in parts):
        return ""
    names = [n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name) and n.id in names_in(place.statement)]
    if place.failure.code != "cpu-index" or len(names) != 1:
        return ""
    name, given = names[0], place.text(loop.iter)
    return (
        f"`{name}`, by which each round of line {loop.lineno} picks, is the host's: find all of it before each launch. "
        f"Once `{name}_in`, a list with a tensor of whole numbers on {place.device} for each round, before each launch "
        f"`for held, {name} in zip({name}_in, {given}): held.copy_(torch.as_tensor({name}))`, with what `{given}` "
        f"comes of, and here `for {name} in {name}_in`; where a step goes through `{function.name}` several times, a "
        "list for each of them"
    )


def _filled_by(place: Place, loop: ast.stmt) -> str:
    """A loop that only writes what the host has into a tensor: ``for k, t in enumerate(prompts): x[k] = tensor(t)``."""
    body = loop.body if isinstance(loop, ast.For) else []
    targets = [each for n in body if isinstance(n, ast.Assign) for each in n.targets]
    names = {path_of(each.value) for each in targets if isinstance(each, ast.Subscript)}
    if len(names) != 1 or len(targets) != len(body) or not all(isinstance(each, ast.Subscript) for each in targets):
        return ""
    name, function = names.pop(), place.source.function_of(loop)
    every = [n for part in (function.body if function is not None else ()) for n in within(part)]
    made = [n for n in every if isinstance(n, ast.Assign) and [place.text(each) for each in n.targets] == [name]]
    if len(made) != 1 or made[0].lineno > loop.lineno:
        return ""
    return (
        f"the loop of line {loop.lineno} only fills `{name}` with what the host has: do line {made[0].lineno} and that "
        f"loop before each launch, and then `{name}_in.copy_({name})`, with `{name}_in = torch.empty_like({name})` "
        f"made once; here `{name} = {name}_in.clone()` in their place"
    )


def _moved_one_by_one(node: ast.stmt) -> str:
    """``batch`` of ``model(**{k: v.to(device) for k, v in batch.items()})``, or ""."""
    whole = node.value if isinstance(node, ast.Assign) else None
    for part in heads(node):
        if isinstance(part, ast.DictComp | ast.ListComp) and part is not whole:
            moves = any(called(n) in ("to", "cuda") for n in ast.walk(part) if isinstance(n, ast.Call))
            names = [n.id for n in ast.walk(part.generators[0].iter) if isinstance(n, ast.Name)]
            if moves and names:
                return names[0]
    return ""


def at_least(place: Place) -> str:
    """What always can be done, in the names of the line, where no other advice is known."""
    code, node, function = place.failure.code, place.statement, place.source.function_of(place.statement)
    asked = {n.id for n in heads(node) if isinstance(n, ast.Name)} if isinstance(node, COMPOUND) else names_in(node)
    local = sorted(place.local(node) & asked - {"self"})
    numbers = sorted(
        name for name in names_in(node) if type(place.space.get(name)) in (int, float) and not _is_constant(place, name)
    )
    chosen = numbers if code in DECIDED and numbers else local
    line = f"line {node.lineno}"
    if code in (*_BOUNDED, "data-dependent-branch", "dynamic-shape", "hidden-size", "mask-assignment") and function:
        if place.trains and trains_behind(place):
            return (
                f"a backward pass comes after {line}, and none goes through a launch, so what is captured cannot end "
                f"here: {in_pieces(function, place.entry)}"
            )
        loop = next(iter(place.loops()[-1:]), node)
        if told := (loop is not node and one_round(place)) or first_thing(place):
            return told
        if loop is not node:
            return (
                f"{ended_before(function, loop)}; where its rounds do not need what they have read, let them keep it "
                "in a list instead, which the graph returns, and go through that behind the launch"
            )
        if isinstance(node, ast.While) and code == "data-dependent-branch":
            return ONE_ROUND.format(node.lineno, place.text(node.test))
        return _ended_before(place, chosen)
    if code in BROUGHT:
        if told := _by_rounds_of_a_generator(place):
            return told
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        own_helper = target if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda) else None
        target = target if own_helper is None else None
        name = target.id if isinstance(target, ast.Name) else "values"
        name = (each := _moved_one_by_one(node)) or name
        written = f"into a tensor of the device that stays, `{name}_in.copy_(...)`, and read `{name}_in` here"
        if each:
            written = f"into tensors of the device that stay, one for each of `{name}`, and read these here"
        if (loops := place.loops()) and (loop := loops[-1]) is not node:
            if told := _filled_by(place, loop):
                return told
            if function is not None and any(isinstance(n, ast.Yield) for part in function.body for n in within(part)):
                return (
                    f"`{function.name}` brings this to the device when asked: ask it before each launch, as often "
                    "as a step does, write what it gives into tensors of the device that stay, `held.copy_(...)`, "
                    "and read these where the step asks it now"
                )
            return (
                f"each round of the loop of line {loop.lineno} brings something of the host's here: make one round the "
                f"function that is captured, and before each launch write what it brings {written}"
            )
        own = {*arguments_of(function)} if function is not None and function.name == place.entry else set()
        made = place.text(node.value) if isinstance(node, ast.Assign) and isinstance(target, ast.Name) else ""
        if made and _is_a_module(place, node):
            return (
                f"once `{name}_in = {made}`, ahead of all launches, and here `{name} = {name}_in`, into which "
                "`load_state_dict` copies today's values in place; what is kept of it beyond this call is a clone"
            )
        if made and "rand" not in made and place.local(node.value) <= own:  # type: ignore[attr-defined]
            return (
                f"once `{name}_in = {made}`, before each launch `{name}_in.copy_({made})`, and here "
                f"`{name} = {name}_in.clone()`"
            )
        if told := sampled_ahead(place):
            return told
        if told := _of_the_host_alone(place, own) or (brought_within(place) if own_helper is None else ""):
            return told
        helper = place.text(own_helper) if own_helper is not None else place.helper
        return f"before each launch write what the host has here {written}{for_each_call(helper)}"
    if code in ("size-frozen", "branch-frozen") and (told := of_an_argument(place)):
        return told
    if code in ("size-frozen", "branch-frozen") and function and OTHER_NUMBERS in place.failure.message:
        given = place.failure.message.rpartition(OTHER_NUMBERS)[2].rstrip(")")
        return (
            f"{given}, decides this: each that comes has a graph of its own, and where it is always this there is "
            "nothing to do"
        )
    if code in DECIDED and (told := of_host_tensors(place)):
        return told
    said = place.failure.message
    if code in DECIDED and (RETURNED in said or (SET_BETWEEN in said and ONCE in place.failure.fix)):
        return place.failure.fix.rpartition("after   ")[2]
    if code in DECIDED and (told := of_an_argument(place) or drawn_beside(place) or held_in_a_tensor(place)):
        return told
    if code in DECIDED and (told := of_a_formula(place)):
        return told
    if code == "host-random" and (told := fractions_drawn(place) or exchanged(place) or picked_tensors(place)):
        return told
    if code == "host-random" and (told := drawn_for_a_helper(place) or drawn_beside(place)):
        return told
    if code == "scalar-frozen" and len(local) == 1 and (told := _given_to_a_helper(place, function, local[0])):
        return told
    if code == "branch-frozen" and isinstance(node, ast.If) and (told := _decided_behind(place, function, node)):
        return told
    kept = (numbers or _of_the_host(place, local)) if code in DECIDED else []
    if code in DECIDED and (told := over_what_it_keeps(place, kept)):
        return told
    if kept:
        what = f"`{'`, `'.join(kept)}`, where the host decides it,"
        return f"give {what} to the function: {ANSWERED}"
    trains = any(is_training(n) for part in (function.body if function else ()) for n in within(part))
    ends = function is not None and function.name == place.entry and node in function.body[1:] and not trains
    if code in DECIDED and ends:
        return _ended_before(place, [])  # who knows what is decided: all before it is the same each time
    return ""


def _given_to_a_helper(place: Place, function: Function | None, name: str) -> str:
    """``forcing.at(self.t)``: a number of the object's that a step gives to one of its helpers, in a tensor."""
    if function is None or function.name == place.entry or name not in arguments_of(function):
        return ""
    every = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Call) and called(n) == function.name]
    call = every[0] if len(every) == 1 else None
    at = [each for each in arguments_of(function) if each != "self"].index(name) if name != "self" else -1
    given = call.args[at] if call is not None and not call.keywords and 0 <= at < len(call.args) else None
    maths = [n for n in ast.walk(place.statement) if isinstance(n, ast.Call) and path_of(n.func).startswith("math.")]
    calls = {path_of(n.func) for n in maths}
    if call is None or not isinstance(given, ast.Attribute) or not all(hasattr(torch, c[5:]) for c in calls):
        return ""
    if name in place.tensors or isinstance(place.value(path_of(given)), torch.Tensor):  # the number is another one
        return ""
    if not path_of(given).startswith("self."):
        return ""
    here = "".join(f", and here `torch.{each[5:]}` stands for `{each}`" for each in sorted(calls))
    return (
        f"once `{name}_in = {zeros_for(place)}`, before each launch "
        f"`{name}_in.fill_({place.text(given)})`, line {call.lineno} gives `{name}_in` for `{place.text(given)}`{here}"
        f"{of_what_is_given(place, [name])}"
    )


def _is_constant(place: Place, name: str) -> bool:
    """Whether a file gives a number its one value at its top, and no line another: nothing decides that."""
    nodes = [*ast.walk(place.source.tree)]
    stores = [n for n in nodes if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)]
    changed = any(isinstance(n, ast.Global) and name in n.names for n in nodes)
    top = {n for s in place.source.tree.body if isinstance(s, (ast.Assign, ast.AnnAssign)) for n in ast.walk(s)}
    return len(stores) == 1 and stores[0] in top and not changed and name.isupper()


def _is_a_module(place: Place, node: ast.AST) -> bool:
    """Whether it makes a network, which nothing copies into as a whole: ``model = Net().to(device)``."""
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    kinds = [value_of(place.space, path) for call in calls if (path := path_of(call.func))]
    return any(isinstance(kind, type) and issubclass(kind, torch.nn.Module) for kind in kinds)


def _of_the_host(place: Place, names: Sequence[str]) -> list[str]:
    """Names that held numbers as the function returned, and that come of no shape."""
    of_shapes = {
        name for name, one in assignments(place) if {"shape", "size", "len"} & {*map(last_name, ast.walk(one.value))}
    }
    return [name for name in names if name in place.plain and name not in of_shapes]


def _of_the_host_alone(place: Place, own: set[str]) -> str:
    """``y = y + torch.tensor(self.prior).to(device)``: what is brought there, without what the step has made."""
    for call in place.calls("to", "cuda", "tensor", "as_tensor"):
        read = [path_of(n) for n in ast.walk(call) if isinstance(n, (ast.Name, ast.Attribute)) and path_of(n)]
        name = next((path.rpartition(".")[2] for path in read if "." in path and path.startswith("self.")), "")
        made = place.text(call)
        alone = place.local(call) - {"self"} <= own and not _is_met_elsewhere(place, name, call)
        if name and "rand" not in made and alone:
            return (
                f"once `{name}_in = {made}`, before each launch `{name}_in.copy_({made})`, and here `{name}_in` for "
                f"`{made}`"
            )
    return ""


def _is_met_elsewhere(place: Place, name: str, call: ast.Call) -> bool:
    """Whether a step names an attribute beside a call, or in what it calls: it may give it another value there."""
    function, within_call = place.source.function_of(place.statement), set(ast.walk(call))
    called_there = {called(n) for n in ast.walk(function) if isinstance(n, ast.Call)} if function else set[str]()
    reached = [n for n in ast.walk(place.source.tree) if isinstance(n, Function) and n.name in called_there]
    nodes = (n for each in (function, *reached) if each is not None for n in ast.walk(each))
    return any(isinstance(n, ast.Attribute) and n.attr == name and n not in within_call for n in nodes)


def _ended_before(place: Place, chosen: Sequence[str]) -> str:
    """The statement with all after it behind the launch, for which the graph returns what they read."""
    node, function = place.statement, place.source.function_of(place.statement)
    while isinstance(above := place.source.parents.get(node), ast.If) and node in above.orelse:
        node = above  # nothing ends before an `elif`
    own = {n.name for n in (function.body if function is not None else ()) if isinstance(n, Function)}
    line, returned = f"line {node.lineno}", sorted({*chosen, *needed_behind(place, node.lineno)} - own)
    what = f", return `{'`, `'.join(returned)}`" if returned else ""
    kept = kept_in_place(place, node.lineno)
    return f"end what is captured before {line}{what}, and do that line with all after it behind the launch{kept}"


def _decided_behind(place: Place, function: Function | None, node: ast.If) -> str:
    """``if random() < p:`` of a step's ``p = x.exp().item()``, where nothing from there on trains."""
    if function is None or function.name != place.entry or node not in function.body:
        return ""
    known = read_here(place)
    names = [name for name in known if name in names_in(node.test)]
    rest = [n for part in function.body[function.body.index(node) :] for n in within(part)]
    if not names or any(map(is_training, rest)):
        return ""
    return f"`{'`, `'.join(names)}` comes of what line {max(known[name] for name in names)} reads: it {LEFT}"
