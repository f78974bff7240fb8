"""What to write in a line that was not rewritten, in the user's own names, where the line and its file tell it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace

import torch

from paramgraph_kit.rewrite.advised.asks.cut_here import cut_where_it_is_read
from paramgraph_kit.rewrite.advised.asks.first_thing import all_of_the_host, read_by_a_lambda, run_by_asyncio
from paramgraph_kit.rewrite.advised.asks.heard import waits_for_its_error
from paramgraph_kit.rewrite.advised.asks.memberships import is_in_a_list
from paramgraph_kit.rewrite.advised.asks.needs import NEEDS, size_of_what_is_given
from paramgraph_kit.rewrite.advised.asks.stays import found_once
from paramgraph_kit.rewrite.advised.full_rank import by_qr
from paramgraph_kit.rewrite.advised.host.drawn_before import drawn_before_each_launch, drawn_until
from paramgraph_kit.rewrite.advised.host.drawn_below import drawn_below
from paramgraph_kit.rewrite.advised.host.drawn_in_modules import drawn_there
from paramgraph_kit.rewrite.advised.host.drawn_in_rounds import drawn_for_each_round, drawn_order
from paramgraph_kit.rewrite.advised.host.drawn_ways import DRAWN_WAYS
from paramgraph_kit.rewrite.advised.host.dropped import rate_of_dropout
from paramgraph_kit.rewrite.advised.host.from_host import READS, assignments, cycled, decided
from paramgraph_kit.rewrite.advised.host.given_numbers import of_a_moving_formula
from paramgraph_kit.rewrite.advised.host.handed_numbers import handed_number
from paramgraph_kit.rewrite.advised.host.lambdas import kept_by_a_lambda
from paramgraph_kit.rewrite.advised.host.left_before import copied_back, left_before_the_launch
from paramgraph_kit.rewrite.advised.host.left_by_chance import follows_from_it, left_by_chance
from paramgraph_kit.rewrite.advised.host.listed_copies import LISTED
from paramgraph_kit.rewrite.advised.host.made_of_numbers import scaled_by_tensors
from paramgraph_kit.rewrite.advised.host.made_on_host import MADE
from paramgraph_kit.rewrite.advised.host.marked_places import MARKED
from paramgraph_kit.rewrite.advised.host.on_cpu import is_of_the_host, kept_on_cpu, target_of, there_is
from paramgraph_kit.rewrite.advised.host.picked import picked_before
from paramgraph_kit.rewrite.advised.host.picked_modules import picked_module
from paramgraph_kit.rewrite.advised.host.put_behind import behind
from paramgraph_kit.rewrite.advised.host.read_on_both_sides import read_on_both_sides
from paramgraph_kit.rewrite.advised.host.staged import staged
from paramgraph_kit.rewrite.advised.host.waiting_copies import without_waiting
from paramgraph_kit.rewrite.advised.otherwise import at_least, cut_out, fewer_in_each_round
from paramgraph_kit.rewrite.advised.outright import OUTRIGHT
from paramgraph_kit.rewrite.advised.own_captures import into_an_own_capture
from paramgraph_kit.rewrite.advised.scheduling import scheduled
from paramgraph_kit.rewrite.advised.sizes.bounded import given_its_bounds, given_its_rows
from paramgraph_kit.rewrite.advised.sizes.growing import GROWING, computed_anyway, rows_of_a_mask, weighed
from paramgraph_kit.rewrite.advised.sizes.kept_edges import kept_edges
from paramgraph_kit.rewrite.advised.sizes.met import rows_that_meet
from paramgraph_kit.rewrite.advised.sizes.past_largest import past_its_largest
from paramgraph_kit.rewrite.advised.sizes.picked_rows import averaged_and_counted
from paramgraph_kit.rewrite.advised.sizes.spare_node import spare_node, spare_node_of_a_helper
from paramgraph_kit.rewrite.advised.sizes.spare_segment import spare_segment
from paramgraph_kit.rewrite.advised.state.carried_numbers import moved_by_itself, moved_by_what_is_read
from paramgraph_kit.rewrite.advised.state.copied_modules import FIRST
from paramgraph_kit.rewrite.advised.state.counted_in_rounds import computes_with_the_rate, counted_in_rounds
from paramgraph_kit.rewrite.advised.state.decays import step_of_a_decay
from paramgraph_kit.rewrite.advised.state.groups import called_for_itself, set_anew
from paramgraph_kit.rewrite.advised.state.hooks import registered_once
from paramgraph_kit.rewrite.advised.state.rates_given import rate_given_anew
from paramgraph_kit.rewrite.advised.state.rates_set import rate_set
from paramgraph_kit.rewrite.advised.state.written_in_place import KEPT
from paramgraph_kit.rewrite.advised.stored_at import put_there
from paramgraph_kit.rewrite.expressions.makes.made import made_there
from paramgraph_kit.rewrite.expressions.picks.shapes import LOSSES, PER_ROW
from paramgraph_kit.rewrite.expressions.picks.sizes import DRAWN, FACTORIES, is_size, shape_for
from paramgraph_kit.rewrite.source.edits import heads, names_in, path_of, within
from paramgraph_kit.rewrite.source.loop_names import counted_around
from paramgraph_kit.rewrite.source.place import Place, asked, called

Advice = Callable[[Place], str]
NUMBERED, READ_THERE = (ast.Name, ast.Attribute, ast.BinOp), ("copy-to-cpu", "sync-item")
SIZED = (*FACTORIES, *DRAWN, "range", "repeat", "expand", "one_hot")


def hint(place: Place) -> str:
    """What to write in a line, where it tells more than the class of its problem."""
    text = next((text for advice in _ADVICE if (text := asked(advice, place, ""))), "")
    return scaled_by_tensors(place, text)


def _a_size(place: Place) -> str:
    code, node = place.failure.code, place.statement
    if (
        code in READS
        and not isinstance(node, ast.For)
        and (is_size(place) or any(_is_sized(place, call) for call in place.calls("item", "int")))
    ):
        return shape_for(place) or (
            "it decides a size: take it from a shape, or from a number among the arguments, of which each has a graph"
        )
    if code == "tensor-bound" and not any(isinstance(n, ast.Subscript) for n in heads(node)):
        for call in place.calls(*SIZED):
            sizes = [n.id for each in call.args for n in ast.walk(each) if isinstance(n, ast.Name) and place.local(n)]
            if sizes:
                said = f"`{sizes[0]}` decides a size: {_call_of(place)} a number, from a shape such as `len(x)`"
                return past_its_largest(place, call) or said
    return ""


def _call_of(place: Place) -> str:
    """Where the function of a statement is called, if there is one such place."""
    function = place.source.function_of(place.statement)
    name = function.name if function is not None else ""
    calls = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.Call) and called(n) == name]
    return f"give line {calls[0].lineno}, `{place.text(calls[0])}`," if len(calls) == 1 else "call this with"


def _listed(place: Place) -> str:
    node = place.statement
    if place.failure.code in (*READS, "tensor-bound") and isinstance(node, ast.Return) and node.value is not None:
        names = sorted(place.local(node.value) - {"self"})
        text = place.text(node.value)
        if not names or "\n" in text or isinstance(node.value, ast.Name):
            return "return the tensors themselves, and make numbers or lists of them behind the launch"
        return f"return `{'`, `'.join(names)}` as they are, and make `{text}` of them behind the launch"
    return ""


def _is_sized(place: Place, call: ast.Call) -> bool:
    above = place.source.parents.get(call)
    while isinstance(above, ast.BinOp):
        above = place.source.parents.get(above)
    return isinstance(above, ast.Call) and called(above) in SIZED


def _rows_of_eye(place: Place) -> str:
    """``torch.eye(n)[i.cpu()].to(d)``."""
    if place.failure.code not in (*READ_THERE, "copy-to-gpu"):
        return ""
    for node in _indexed(place):
        made, index = node.value, node.slice
        if not isinstance(made, ast.Call) or called(made) not in FACTORIES or not isinstance(index, ast.Call):
            continue
        if called(index) in ("cpu", "to", "numpy") and isinstance(index.func, ast.Attribute):
            at = place.text(index.func.value)
            return f"make it where `{at}` is, `{place.text(made)[:-1]}, device={at}.device)[{at}]`, and copy nothing"
    return ""


def _picked_by_number(place: Place) -> str:
    if place.failure.code == "tensor-bound":
        counted = counted_around(place, place.statement)
        for node in _indexed(place):
            if isinstance(node.slice, NUMBERED) and not (isinstance(node.slice, ast.Name) and node.slice.id in counted):
                table = place.text(node.value)
                if is_of_the_host(place, table):
                    continue
                text = f"{table}[{place.source.bracketed(node.slice)}.reshape(1)][0]"
                return f"pick with `{text}`, and have `{table}` on the device{there_is(place, table)}"
    return ""


def _has_host_generator(place: Place, text: str) -> bool:
    """Whether a draw is by a generator of the CPU."""
    call = ast.parse(text, mode="eval").body
    given = [o.value for n in ast.walk(call) if isinstance(n, ast.Call) for o in n.keywords if o.arg == "generator"]
    return any(getattr(place.value(path_of(each)), "device", None) == torch.device("cpu") for each in given)


def _drawn_on_cpu(place: Place) -> str:
    if place.failure.code != "copy-to-gpu":
        return ""
    for _, text in made_there(place, (*DRAWN, *FACTORIES)):
        if not any(f"{name}(" in text for name in (*DRAWN, "bernoulli", "multinomial")):
            continue
        if _has_host_generator(place, text):
            again = ", one for each round of the loop" * bool(place.loops())
            return (
                "a generator of the CPU draws nothing on the device: draw before each launch, into a tensor that the "
                f"graph reads{again}, which keeps its numbers; or draw on the device with a generator made there, "
                "`torch.Generator(device)`, that is registered with the graph"
            )
        text = text.replace(".pin_memory()", "")
        return f"draw on the device, `{text}`: other numbers than the CPU's, so it was not rewritten"
    for name, made in assignments(place):
        value = made.value
        if drawn := _drawn_from(place, made):
            return f"`{name}` comes of `{drawn}`: stays as it is, and copies nothing, once that is drawn on the device"
        of_torch = isinstance(value, ast.Call) and names_in(value.func) == {"torch"}
        if isinstance(value, ast.Call) and of_torch and called(value) in DRAWN and "device" not in place.text(value):
            text = f"{place.text(value)[:-1]}, device={place.device})"
            return (
                f"`{name}` is drawn on the CPU, at line {made.lineno}: `{name} = {text}` draws it there; other numbers "
                "than the CPU's, so it was not rewritten"
            )
    return ""


def _drawn_from(place: Place, made: ast.Assign) -> str:
    """The name of what is drawn on the CPU and decides what a line makes."""
    of_numpy = "from_numpy(" in place.text(made.value)  # of which the host makes a copy wherever that is
    if of_numpy or (isinstance(made.value, ast.Call) and called(made.value) in DRAWN):
        return ""
    for name, first in assignments(replace(place, statement=made)):
        text = place.text(first.value)
        if isinstance(first.value, ast.Call) and called(first.value) in DRAWN and "device" not in text:
            return name
    return ""


def _list_of_an_object(place: Place) -> str:
    """``x[:, self.ids]`` of a list that an object has from its beginning."""
    above: ast.AST | None = place.statement
    while above is not None and not isinstance(above, ast.ClassDef):
        above = place.source.parents.get(above)
    if place.failure.code != "cpu-index" or above is None:
        return ""
    every = [n for n in ast.walk(above) if isinstance(n, ast.Assign)]
    for node in _indexed(place):
        for part in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
            path = path_of(part) if isinstance(part, ast.Attribute) else ""
            made = [n for n in every if path in map(target_of, n.targets)]
            if path.startswith("self.") and len(made) == 1 and path not in place.tensors:
                return (
                    f"`{path}` is a list of the host's, and the same at each step: make an index of it once, behind "
                    f"line {made[0].lineno} `{path}_there = torch.tensor({path}, device={place.device})`, and pick by "
                    f"`{path}_there` here"
                )
    return ""


def _kept_by_chance(place: Place) -> str:
    """``edges[:, mask].to(d)``, where the host draws a mask: in each step it keeps another number of them."""
    made = dict(assignments(place)) if place.failure.code == "copy-to-gpu" else {}
    for node in _indexed(place):
        table, names = place.text(node.value), sorted(names_in(node.slice) & made.keys())
        for name in names:
            value = made[name].value
            drawn = [n for n in ast.walk(value) if isinstance(n, ast.Call) and called(n) in DRAWN]
            if not isinstance(value, ast.Compare) or not drawn or "device" in place.text(drawn[0]):
                continue
            text = f"{place.text(drawn[0])[:-1]}, device={place.device})"
            picked = place.text(node)
            return (
                f"`{name}` keeps another number of them in each step, and a graph has one size: have `{table}` on the "
                f"device{there_is(place, table)}; draw `{name}` there, line {made[name].lineno} with `{text}`; "
                f"`{table}` for `{picked}` here, and what each of them adds is multiplied by `{name}` before it is "
                f"added up (`values * {name}[:, None]`): other numbers than the host's, so it was not rewritten"
            )
    return ""


def _brought(place: Place) -> str:
    """What a loader or a file gives at each step."""
    if place.failure.code != "copy-to-gpu":
        return ""
    function, names = place.source.function_of(place.statement), names_in(place.statement)
    every = [n for part in function.body for n in within(part)] if function is not None else []
    for made in (n for n in every if isinstance(n, ast.Assign) and n.lineno <= place.statement.lineno):
        given = [n.id for each in made.targets for n in ast.walk(each) if isinstance(n, ast.Name) and n.id in names]
        if given and isinstance(made.value, ast.Call) and called(made.value) == "next":
            name = "`, `".join(given)
            return (
                f"the host brings `{name}` at each step: take `{place.text(made)}` (line {made.lineno}) and the copy "
                f"out of the function, and give it `{name}` as an argument that is on the device"
            )
    return ""


def _masked(place: Place) -> str:
    """A size that the values decide."""
    if place.failure.code != "dynamic-shape":
        return ""
    indexed = _indexed(place)
    for node in indexed:
        name = node.slice.id if isinstance(node.slice, ast.Name) and not place.local(node.slice) else ""
        mask = place.space.get(name)
        if isinstance(mask, torch.Tensor) and mask.dtype is torch.bool:
            return (
                f"as long as `{name}` stays as it is, `{name}_at = {name}.nonzero().squeeze(-1)` before it and "
                f"`[{name}_at]` in it"
            )
    if text := _masked_loss(place):
        return text
    for node in indexed:
        x, keep = place.text(node.value), node.slice
        if isinstance(keep, ast.Tuple):
            masks = [n for n in keep.elts if not isinstance(n, (ast.Slice, ast.Constant))]
            if len(masks) == 1 and len(keep.elts) > 1:
                mask = place.text(masks[0])
                return (
                    f"keep all of `{x}` and hand `{mask}` on beside it: what is computed for each is multiplied by it "
                    f"(`values * {mask if mask.isidentifier() else f'({mask})'}[:, None]`) before it is added up"
                )
        elif isinstance(place.statement, ast.Return):
            mask = place.text(keep)
            ends = [place.text(each) for each in (getattr(keep, "lower", None), getattr(keep, "upper", None)) if each]
            beside = "`, `".join(ends) if isinstance(keep, ast.Slice) else mask
            return f"return all of `{x}`, with `{beside}`; pick `[{mask}]` and ask for lengths behind the launch"
    return ""


def _masked_loss(place: Place) -> str:
    """``F.cross_entropy(scores[mask], y[mask])`` in a function whose tensors nobody has seen."""
    for call in place.calls(*LOSSES):
        picks = [a for a in call.args[:2] if isinstance(a, ast.Subscript)]
        masks = {place.text(each.slice) for each in picks}
        if len(picks) != 2 or len(masks) != 1 or len(call.args) != 2 or call.keywords:
            continue
        (x, y), mask, function = (place.text(each.value) for each in picks), masks.pop(), place.text(call.func)
        if called(call) in PER_ROW:
            scores = f"torch.where({place.source.bracketed(picks[0].slice)}[..., None], {x}, 0)"
            text = f"{function}({scores}.flatten(0, -2), torch.where({mask}, {y}, -100).flatten())"
            return f"`{text}` gives the same mean: rows of -100 are left out"
        kept, whole = (place.source.bracketed(each) for each in (picks[0].slice, picks[0].value))
        return (
            f"`there = {kept}; there = there.reshape(*there.shape, *[1] * ({whole}.dim() - there.dim())).expand_as("
            f"{whole})` before it and `torch.where(there, {function}(torch.where(there, {x}, 0), torch.where(there, "
            f'{y}, 0), reduction="none"), 0).sum() / there.sum()` give the same mean: what is left out may be nan'
        )
    return ""


def _left_early(place: Place) -> str:
    """A branch on a value of the device that leaves the function."""
    node = place.statement
    if place.failure.code not in ("data-dependent-branch", "compare-on-cpu") or not isinstance(node, ast.If):
        return ""
    ends = [n for part in node.body for n in within(part) if isinstance(n, (ast.Return, ast.Continue, ast.Break))]
    if not ends:
        return ""
    for loop in place.loops()[:1]:
        after = loop.body[loop.body.index(node) + 1 :] if node in loop.body else []
        if after and isinstance(ends[-1], ast.Continue):
            return (
                f"a launch cannot leave out lines {after[0].lineno} to {after[-1].end_lineno}: make a function of "
                f"them, with a graph of its own, and call it where `{place.text(node.test)}` does not hold"
            )
        if isinstance(loop, ast.While):
            return (
                f"a launch cannot end early: make one round of the loop at line {loop.lineno} the function that is "
                f"captured, launch it in that loop, and ask `{place.text(node.test)}` behind each launch"
            )
    return (
        "a launch cannot end early: take the branch out, return what it asks "
        f"(`{place.text(node.test)}`) and decide behind the launch; what must not be written then stays as it was with "
        "`torch.where`, a gradient with `p.grad.nan_to_num_(0.0, 0.0, 0.0)`"
    )


def _indexed(place: Place) -> list[ast.Subscript]:
    return [node for node in heads(place.statement) if isinstance(node, ast.Subscript)]


_ADVICE: tuple[Advice, ...] = (
    *FIRST,
    handed_number,
    counted_in_rounds,
    drawn_below,
    rate_of_dropout,
    found_once,
    waits_for_its_error,
    *OUTRIGHT,
    left_before_the_launch,
    drawn_order,
    *MARKED,
    drawn_for_each_round,
    moved_by_what_is_read,
    picked_module,
    picked_before,
    given_its_bounds,
    run_by_asyncio,
    into_an_own_capture,
    read_by_a_lambda,
    all_of_the_host,
    kept_by_a_lambda,
    registered_once,
    left_by_chance,
    follows_from_it,
    step_of_a_decay,
    drawn_before_each_launch,
    drawn_until,
    staged,
    without_waiting,
    fewer_in_each_round,
    *DRAWN_WAYS,
    spare_segment,
    given_its_rows,
    by_qr,
    is_in_a_list,
    *GROWING,
    *LISTED,
    *NEEDS,
    cut_out,
    scheduled,
    size_of_what_is_given,
    drawn_there,
    _a_size,
    _rows_of_eye,
    rate_set,
    rate_given_anew,
    _drawn_on_cpu,
    *MADE,
    _list_of_an_object,
    _kept_by_chance,
    kept_on_cpu,
    _brought,
    put_there,
    _picked_by_number,
    _listed,
    averaged_and_counted,
    spare_node,
    spare_node_of_a_helper,
    kept_edges,
    _masked,
    weighed,
    _left_early,
    cycled,
    read_on_both_sides,
    set_anew,
    computes_with_the_rate,
    of_a_moving_formula,
    decided,
    called_for_itself,
    cut_where_it_is_read,
    copied_back,
    behind,
    computed_anyway,
    rows_that_meet,
    rows_of_a_mask,
    moved_by_itself,
    at_least,
    *KEPT,
)
