"""Advice for what the host draws anew in each round of a loop: all rounds' numbers before the launch, one for each.

``for im in x: if random.random() < 0.5: im = im.flip(2)`` reads its own element of a tensor in each round; a whole
number that torch takes no tensor for, ``torch.rot90(im, k)``, picks among what each of its values gives.
"""

from __future__ import annotations

import ast
import re

from paramgraph_kit.rewrite.source.digits import zeros_for
from paramgraph_kit.rewrite.source.edits import heads, names_in, path_of, within
from paramgraph_kit.rewrite.source.hosts import draws
from paramgraph_kit.rewrite.source.moving import arguments_of, stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh, integer, is_number, renamed, target_of

_FRACTIONS = frozenset("random uniform gauss normal normalvariate beta betavariate triangular".split())  # noqa: SIM905
_MODULES = ("random", "np.random", "numpy.random")
_FRACTION = re.compile(r" got -?\d+\.\d")
_ALIKE = "drawn alike, in another order"


def drawn_as_a_mask(place: Place) -> str:
    """Loops that write one number into parts of a tensor which the host draws, by what arguments and sizes say."""
    loop, function = next(iter(place.loops()[-1:]), None), place.source.function_of(place.statement)
    if place.failure.code not in ("host-random", "size-frozen", "sync-item") or not isinstance(loop, ast.For):
        return ""
    every = [n for part in loop.body for n in within(part) if isinstance(n, ast.stmt)]
    flat = [n for n in every if not isinstance(n, ast.For)]
    puts = [n for n in flat if isinstance(n, ast.Assign) and isinstance(target_of(n), ast.Subscript)]
    into = {(path_of(n.targets[0].value), place.text(n.value)) for n in puts}  # type: ignore[attr-defined]
    values = [n.value for n in flat if isinstance(n, ast.Assign) and n not in puts]
    if function is None or len(into) != 1 or len(puts) + len(values) != len(flat) or not any(map(draws, values)):
        return ""
    ((x, value),) = into
    read = {name for n in (*values, loop.iter, *(each.targets[0].slice for each in puts)) for name in names_in(n)}  # type: ignore[attr-defined]
    tensors = (read & place.local(loop)) - stored([loop]) - {x, *arguments_of(function), *place.plain}
    if not x or any(x in names_in(n) for n in values) or not all(is_number(n.value) for n in puts) or tensors:
        return ""
    return (
        f"the host decides in the loop of line {loop.lineno}, by what it draws and is given, where `{x}` becomes "
        f"{value}: all of that loop belongs before each launch, with a mask of the host's. Once `mask_in = "
        f"torch.zeros_like({x}, dtype=torch.bool)`, before each launch `mask = torch.zeros({x}.shape, "
        f"dtype=torch.bool)`, the same loop with `mask[...] = True` for `{x}[...] = {value}`, and "
        f"`mask_in.copy_(mask)`; here `{x}.masked_fill_(mask_in, {value})` in place of the loop"
    )


def drawn_for_each_round(place: Place) -> str:
    """Complete lines for a branch, or for a number, that a round draws."""
    loop = next((n for n in place.loops() if isinstance(n, ast.For)), None)
    if place.failure.code not in ("branch-frozen", "host-random") or loop is None or place.statement not in loop.body:
        return ""
    rounds = _rounds(place, loop)
    if rounds is None:
        return ""
    many, at, head = rounds
    if isinstance(place.statement, ast.If):
        each = _in_each_round(place, loop, place.statement.test, many)
        return _branch(place, place.statement, each, many, at, head) if each else ""
    drawn = [(made, _in_each_round(place, loop, made.value, many)) for made in _drawn(place, loop)]
    told = [each and _number(place, made, each, many, at, head) for made, each in drawn]
    return "; and ".join(told) if told and all(told) else ""


def fractions_drawn(place: Place) -> str:
    """``x = x * random.uniform(0.8, 1.2)``, of which each number would have a graph of its own."""
    told: list[str] = []
    for call in (n for n in heads(place.statement) if isinstance(n, ast.Call)):
        module = path_of(call.func).rpartition(".")[0]
        if called(call) not in _FRACTIONS or module not in _MODULES or len(call.args) > 2 or call.keywords:
            continue
        more = f"_{len(told) + 1}" * bool(told)
        name = fresh(f"drawn_{place.statement.lineno}{more}", names_in(place.source.tree))  # other lines draw, too
        told.append(
            f"once `{name} = {zeros_for(place)}`, before each launch "
            f"`{name}.fill_({place.text(call)})`, here `{name}` for `{place.text(call)}`"
        )
    again = "; in a loop, one for each round that draws it" if told and place.loops() else ""
    return "; ".join(told) + again


def drawn_for_a_helper(place: Place) -> str:
    """``def brighter(x, f): return x * f``, which a step gives a fraction that it draws."""
    function = place.source.function_of(place.statement)
    if place.failure.code != "host-random" or function is None or function.name == place.entry:
        return ""
    given = [n for n in arguments_of(function) if n in names_in(place.statement) - place.tensors.keys() - {"self"}]
    if len(given) != 1 or _FRACTION.search(place.failure.message) is None:
        return ""
    name = given[0]
    return (
        f"`{name}` of `{function.name}` is drawn by the host: once `{name}_in = {zeros_for(place)}`, "
        f"before each launch `{name}_in.fill_(...)` with what is drawn now, and give "
        f"`{function.name}` that tensor; one for each of its calls"
    )


def drawn_order(place: Place) -> str:
    """``for i in order: x = layers[i](x)`` in an order that the host draws."""
    node = place.statement
    asked = names_in(node.test) if isinstance(node, ast.If) else names_in(node)
    loops = [n for n in place.loops() if isinstance(n, ast.For) and isinstance(n.iter, ast.Name)]
    loops = [n for n in loops if isinstance(n.target, ast.Name) and n.target.id in asked]
    function = place.source.function_of(node)
    if place.failure.code not in ("host-random", "branch-frozen") or not loops or function is None:
        return ""
    name = place.text(loops[0].iter)
    every = [n for part in function.body for n in within(part)]
    made = [n.value for n in every if isinstance(n, ast.Assign) and name in map(place.text, n.targets)]
    drawn = [n for n in every if isinstance(n, ast.Call) and called(n) == "shuffle" and name in map(place.text, n.args)]
    if function.name != place.entry or not (drawn or any(map(draws, made))):
        return ""
    return (
        f"draw `{name}` before each launch, and give it to `{function.name}` among its arguments: each order that "
        f"comes has a graph of its own, `graphs[tuple(map(int, {name}))]`, captured when it first comes"
    )


def _in_each_round(place: Place, loop: ast.For, node: ast.expr, many: str) -> str:
    """What the host draws in each round, by what the round counts and computes of that, for all of them; or ""."""
    given, texts = stored(loop.body), dict[str, str]()
    made = {
        target.id: n for n in loop.body if isinstance(n, ast.Assign) and isinstance(target := target_of(n), ast.Name)
    }
    stores = [
        n.id for part in loop.body for n in within(part) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    ]
    read = names_in(node)
    while own := {name for name in read & given if name not in texts}:
        for name in own:
            one = made.get(name)
            if one is None or stores.count(name) > 1 or draws(one.value) or one.lineno >= place.statement.lineno:
                return ""
            texts[name] = place.source.bracketed(one.value)
            read |= names_in(one.value)
    text = place.text(node)
    for _ in texts:
        text = renamed(text, texts)
    counts = read & stored([loop.target])
    if counts & place.tensors.keys() or "\n" in text:
        return ""  # a round's own tensor is the device's
    head = f"{place.text(loop.target)} in {place.text(loop.iter)}" if counts else f"_ in range({many})"
    return f"{text} for {head}"


def _branch(place: Place, node: ast.If, each: str, many: str, at: str, head: str) -> str:
    target = target_of(node.body[0]) if len(node.body) == 1 and not node.orelse else None
    if not isinstance(target, ast.Name) or not isinstance(node.body[0], ast.Assign) or not draws(node.test):
        return ""
    name = fresh("chosen_in", place.taken)
    return (
        f"once `{name} = torch.zeros({many}, dtype=torch.bool, device={place.device})`, before each launch "
        f"`{name}.copy_(torch.tensor([{each}]))` ({_ALIKE}){head}, and here "
        f"`{target.id} = torch.where({name}[{at}], {place.text(node.body[0].value)}, {target.id})`"
    )


def _number(place: Place, made: ast.Assign, drawn: str, many: str, at: str, head: str) -> str:
    target, call = target_of(made), made.value
    if not isinstance(target, ast.Name) or not isinstance(call, ast.Call):
        return ""
    name = fresh(f"{target.id}_in", place.taken)
    whole = called(call) in ("randint", "randrange")
    before = f"before each launch `{name}.copy_(torch.tensor([{drawn}]))` ({_ALIKE})"
    if not whole:
        once = f"once `{name} = torch.zeros({many}, device={place.device})`"
        return f"{once}, {before}{head}, and here `{name}[{at}]` for `{target.id}`"
    ends = [integer(each) for each in call.args]
    value = place.statement.value if isinstance(place.statement, ast.Assign) else None
    into = target_of(place.statement)
    if value is None or into is None or None in ends or len(ends) not in (1, 2):
        return ""
    low, high = [0, *(each or 0 for each in ends)][-2:]
    high += path_of(call.func) == "random.randint"  # which has its end
    each = f"[{place.text(value)} for {target.id} in range({low}, {high})]"
    less = f" - {low}" if low else ""
    return (
        f"once `{name} = torch.zeros({many}, dtype=torch.long, device={place.device})`, {before}{head}, and here "
        f"`{place.text(into)} = torch.stack({each})[{name}[{at} : {at} + 1]{less}][0]`, where all of these have one "
        "shape"
    )


def _drawn(place: Place, loop: ast.For) -> list[ast.Assign]:
    """What the statement reads, and statements of its round draw."""
    read = names_in(place.statement)
    own = [n for n in loop.body if isinstance(n, ast.Assign) and n is not place.statement and draws(n.value)]
    return [n for n in own if isinstance(t := target_of(n), ast.Name) and t.id in read]


def _rounds(place: Place, loop: ast.For) -> tuple[str, str, str] | None:
    """How many rounds there are, the number of one, and how the loop counts, where it does not."""
    over, target = loop.iter, loop.target
    name = called(over) if isinstance(over, ast.Call) else ""
    if name == "range" and isinstance(over, ast.Call) and len(over.args) == 1 and isinstance(target, ast.Name):
        return place.text(over.args[0]), target.id, ""
    if name == "enumerate" and isinstance(over, ast.Call) and len(over.args) == 1 and isinstance(target, ast.Tuple):
        return f"len({place.text(over.args[0])})", place.text(target.elts[0]), ""
    if isinstance(over, (ast.Name, ast.Attribute)) and isinstance(target, ast.Name):
        at = fresh("i", place.taken)
        head = f", the loop counts, `for {at}, {target.id} in enumerate({place.text(over)}):`"
        return f"len({place.text(over)})", at, head
    return None
