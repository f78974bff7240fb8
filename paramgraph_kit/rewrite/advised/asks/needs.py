"""Advice for values of the device that something else of the step needs on the host: a size, a branch, a loop's end."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import torch

from paramgraph_kit.rewrite.advised.asks.counted_places import moving_slice
from paramgraph_kit.rewrite.advised.asks.cut_here import trained_between
from paramgraph_kit.rewrite.advised.asks.listed_places import listed_places
from paramgraph_kit.rewrite.advised.asks.reduced_picks import gives_a_tuple, reduced_picks
from paramgraph_kit.rewrite.advised.host.from_host import READS
from paramgraph_kit.rewrite.advised.host.put_behind import goes_on
from paramgraph_kit.rewrite.advised.sizes.packing import packed
from paramgraph_kit.rewrite.expressions.decisions.branches import condition_of
from paramgraph_kit.rewrite.expressions.picks.shapes import mask_of
from paramgraph_kit.rewrite.expressions.picks.sizes import is_size, numbers_of, shape_for
from paramgraph_kit.rewrite.source.edits import Function, heads, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of, is_backward, stored
from paramgraph_kit.rewrite.source.place import Place, called, fresh, is_training, lines_of, target_of
from paramgraph_kit.rewrite.source.writes import written

ASKS = ("data-dependent-branch", *READS)
_SIZED = frozenset(("split", "split_with_sizes", "repeat_interleave", "topk", "kthvalue", "interpolate", "chunk"))
_NUMBERS = frozenset(("max", "min", "sum", "amax", "amin"))
_ENDS = (ast.Break, ast.Return, ast.Continue)
_SHAPED = frozenset(("squeeze", "flatten", "view", "reshape", "squeeze_"))
EACH = "of which each has a graph"


def sized(place: Place) -> str:
    """A value that is read as a size of something."""
    node = place.statement
    if place.failure.code in READS:
        for call in (n for n in heads(node) if isinstance(n, ast.Call)):
            if called(call) not in _SIZED:
                continue
            reads = [n for n in ast.walk(call) if isinstance(n, ast.Call) and called(n) in ("tolist", "item", "cpu")]
            if reads and isinstance(reads[0].func, ast.Attribute):
                text = place.text(reads[0].func.value)
                return f"`{text}` decides sizes: give it as numbers of the host among the arguments, {EACH}"
    if place.failure.code == "tensor-bound":
        for call in place.calls("arange", "zeros", "ones", "full", "empty", "range"):
            for each in call.args[:3]:
                if isinstance(each, ast.Call) and called(each) in _NUMBERS:
                    text = place.text(each)
                    way = f"take it from a shape, or give it as a number among the arguments, {EACH}"
                    return f"`{text}` decides a size: {way}"
    if place.failure.code in ("host-random", "scalar-frozen", "size-frozen"):
        for call in place.calls("interpolate", "resize"):
            for name in sorted(
                {n for each in [*call.args[1:], *(o.value for o in call.keywords)] for n in place.local(each)}
            ):
                return f"`{name}` decides a size: find it before the call, and give it as an argument, {EACH}"
    return ""


def size_of_what_is_given(place: Place) -> str:
    """``longest = int(lengths.max())`` of an argument, by which the host finds a size: a bucket."""
    node, function = place.statement, place.source.function_of(place.statement)
    if place.failure.code not in ("sync-item", "copy-to-cpu") or function is None or node not in function.body:
        return ""
    target = target_of(node)
    if not isinstance(target, ast.Name) or not is_size(place) or shape_for(place):
        return ""
    given, own = set(arguments_of(function)), place.local(node) - {target.id}
    if not own or not own <= given or own & stored([n for n in function.body if n is not node]):
        return ""
    line = place.text(node)
    others = sorted(numbers_of(place) - {target.id})
    by = f" by way of `{others[0]}`" if others else ""
    key = others[0] if others else target.id
    return (
        f"`{target.id}` decides a size{by}, of which each graph has one, and comes of what is given: do `{line}` "
        f"before the launch, give `{target.id}` to `{function.name}` as a number, and capture one graph for each "
        f"`{key}` that comes, `graphs[{key}]`; where what lies behind is masked anyway, always take the largest, "
        "and one graph does"
    )


def read_of_what_is_given(place: Place) -> str:
    """``host = sigmas.cpu().numpy()`` of an argument, and numbers of it by which the step multiplies."""
    node, function = place.statement, place.source.function_of(place.statement)
    target = target_of(node)
    if place.failure.code not in READS or function is None or not isinstance(target, ast.Name) or is_size(place):
        return ""
    own, every = place.local(node) - {target.id}, [n for part in function.body for n in within(part)]
    written = stored([n for n in every if isinstance(n, ast.stmt) and n is not node])
    later = goes_on(function, node, place.seen)
    if not own or not own <= set(arguments_of(function)) - written or later is None:
        return ""
    given = "`, `".join(sorted(own))
    return (
        f"`{target.id}` comes of what is given alone, and line {later.lineno} goes on with it: do `{place.text(node)}` "
        f"before the launch, and give `{target.id}` to `{function.name}`; its numbers are those of the capture, so "
        f"another `{given}` has a graph of its own"
    )


def multiplied(place: Place) -> str:
    """``torch.cumprod`` and ``prod``, whose backward passes look for zeros."""
    if "asks whether a factor is 0" not in place.failure.message:
        return ""
    for call in place.calls("cumprod", "prod"):
        given = [*call.args, *(option.value for option in call.keywords if option.arg == "dim")]
        own = isinstance(call.func, ast.Attribute) and place.text(call.func.value) != "torch"
        x = call.func.value if isinstance(call.func, ast.Attribute) and own else given.pop(0) if given else None
        if x is None:
            continue
        dim = place.text(given[0]) if given else "0"
        each = f"{place.source.bracketed(x)}{'' if given else '.flatten()'}.unbind({dim})"
        if called(call) == "cumprod":
            return (
                f"`torch.stack(list(itertools.accumulate({each}, torch.mul)), {dim})` gives the same, and its backward "
                "pass asks nothing"
            )
        return f"`functools.reduce(torch.mul, {each})` gives the same, and its backward pass asks nothing"
    return ""


_GROWING = ("cat", "concat", "append", "extend", "appendleft", "insert", "pop", "popleft", "remove", "setdefault")


def called_or_not(place: Place) -> str:
    """``if ess < n / 2: self.resample(u)``, whose method gives tensors of the object other values."""
    node = place.statement
    if place.failure.code not in ASKS or not isinstance(node, ast.If) or node.orelse or len(node.body) != 1:
        return ""
    call = node.body[0].value if isinstance(node.body[0], ast.Expr) else None
    if not isinstance(call, ast.Call) or not path_of(call.func).startswith("self."):
        return ""
    methods = [n for n in ast.walk(place.source.tree) if isinstance(n, ast.FunctionDef) and n.name == called(call)]
    every = [n for method in methods for part in method.body for n in within(part)]
    if len(methods) != 1 or any(
        is_training(n) or isinstance(n, (ast.Return, ast.If, ast.For, ast.While)) for n in every
    ):
        return ""
    if any(isinstance(n, ast.Call) and called(n) in _GROWING for n in every):
        return ""  # called always it would grow always
    given = [path_of(each) for n in every if isinstance(n, ast.Assign) for each in n.targets]
    given = [path for path in dict.fromkeys(given) if path.startswith("self.")]
    counts = [path_of(n.target) for n in every if isinstance(n, ast.AugAssign) and path_of(n.target)]
    if not given:
        return ""
    condition = condition_of(place, node.test).replace(".item()", "")
    lines = "`, `".join(f"{path}.copy_(torch.where(chosen, new, {path}))" for path in given)
    told = f"; `{'`, `'.join(counts)}` counts behind the launch: return `chosen`" if counts else ""
    return (
        f"a launch cannot leave out `{place.text(call)}`: call it always, with `chosen = {condition}` as one more "
        f"argument, and at line {methods[0].lineno} let it keep what was where that does not hold, `{lines}`, with "
        f"what it gives each now as `new`{told}"
    )


def decides(place: Place) -> str:
    """A value by which the host ends a loop, or leaves out what trains."""
    if place.failure.code not in ASKS:
        return ""
    node = place.statement
    asking = [node] if isinstance(node, (ast.If, ast.While)) else list(_asked(place, node))
    for each in asking:
        if isinstance(each, ast.If):
            inside = [part for block in (each.body, each.orelse) for one in block for part in within(one)]
            loop = _loop_around(place, each)
            if any(map(is_training, inside)):
                return trained_between(place, each) or (
                    f"a launch cannot leave out {lines_of(each.body)}: make a function of them, with a graph of its "
                    f"own, and call it or not behind this launch, by what is asked (`{place.text(each.test)}`)"
                )
            if loop is None and (text := _leaves_first(place, each)):
                return text
            ended = any(isinstance(part, _ENDS) for part in inside)
            if ended and loop is not None and any(is_training(part) for one in loop.body for part in within(one)):
                if steps := _steps_behind(place, loop, each):
                    return (
                        f"a launch cannot end early: one round of the loop at line {loop.lineno} is what is captured, "
                        f"without `{steps}`, and with `zero_grad(set_to_none=False)`; launch it in that loop, ask "
                        f"`{place.text(each.test)}` behind each launch, and call `{steps}` there where it goes on"
                    )
                return (
                    f"a launch cannot end early: make one round of the loop at line {loop.lineno} the function that is "
                    f"captured, launch it in that loop, and ask `{place.text(each.test)}` behind each launch"
                )
    return ""


def _steps_behind(place: Place, loop: ast.For | ast.While, node: ast.If) -> str:
    """The step of an optimizer that a round takes behind a question, of which the answer may leave it out."""
    if node not in loop.body:
        return ""
    after = [n for part in loop.body[loop.body.index(node) + 1 :] for n in within(part) if isinstance(n, ast.Call)]
    steps = [place.text(n) for n in after if called(n) == "step" and not n.args]
    return steps[0] if len(steps) == 1 and any(map(is_backward, after)) else ""


def steps_behind_an_end(place: Place) -> str:
    """``if kl > limit: break`` before the backward pass and the step of a round."""
    node, loop = place.statement, _loop_around(place, place.statement)
    if place.failure.code != "optimizer-not-capturable" or loop is None or node not in loop.body:
        return ""
    before = loop.body[: loop.body.index(node)]
    ends = [each for each in before if isinstance(each, ast.If) and any(isinstance(n, ast.Break) for n in each.body)]
    rest = before[before.index(ends[-1]) + 1 :] if ends else []
    zeroed = [n for part in before[: before.index(ends[0])] for n in within(part)] if ends else []
    trained = any(is_training(n) for part in rest for n in within(part))
    if not trained or not any(isinstance(n, ast.Call) and called(n) == "zero_grad" for n in zeroed):
        return ""
    first, last = before[0].lineno, rest[-1].end_lineno
    return (
        f"a launch cannot end the loop: make a function of lines {first} to {last} without `if "
        f"{place.text(ends[-1].test)}`, as the gradients are made anew in each round, and capture that; launch it "
        f"in the loop, ask behind it, of what it returns (what it reads with `.item()` is read there, too), and leave "
        f"the loop or do `{place.text(node)}`, as it is"
    )


def left_in_a_loop(place: Place) -> str:
    """``while len(order): order = order[1:][keep]``."""
    node, loop = place.statement, _loop_around(place, place.statement)
    if place.failure.code != "dynamic-shape" or not isinstance(loop, ast.While) or not isinstance(node, ast.Assign):
        return ""
    names = sorted(stored([node]) & names_in(loop.test))
    if not names:
        return ""
    x, value = names[0], node.value
    if isinstance(value, ast.Tuple):  # boxes, scores = boxes[1:][low], scores[1:][low]
        value = next((each for each in value.elts if isinstance(each, ast.Subscript)), value)
    if not _is_picked_of(value, stored([node]), loop):
        return ""  # ``frontier = new[unseen[new]]``: other ones, and not fewer of these
    kept = place.text(value.slice) if isinstance(value, ast.Subscript) else "..."
    others = "".join(f", `{name}`" for name in sorted(stored([node]) - {x}))
    added = any(isinstance(n, ast.Call) and called(n) == "append" for part in loop.body for n in within(part))
    more = "; what each round appends is made of all rows at once, and picked so, too" * added
    return (
        f"each round has fewer of `{x}`{others}: keep all, with `left = torch.ones(len({x}), dtype=torch.bool, "
        f"device={place.device})` before the loop, or what a mask has left of them, and `for n in range(len({x}))` in "
        f"place of line {loop.lineno}: compare `{x}[n : n + 1]` with all of `{x}`, and write here `left = left & "
        f"((torch.arange(len({x}), device={place.device}) <= n) | ~left[n] | ({kept}))`, where nothing else of the "
        f"round stays, no question either; what is kept is `{x}[left]`, picked behind the launch{more}"
    )


def _is_picked_of(value: ast.expr, names: set[str], loop: ast.While, deep: int = 3) -> bool:
    """Whether a value is some rows of what one of these names held before, also by names of the loop's."""
    while isinstance(value, (ast.Subscript, ast.Call)):
        inner = value.func if isinstance(value, ast.Call) else value
        if not isinstance(inner, (ast.Subscript, ast.Attribute)):
            return False
        value = inner.value
    if not isinstance(value, ast.Name):
        return False
    made = [
        n.value for part in loop.body for n in within(part) if isinstance(n, ast.Assign) and value.id in stored([n])
    ]
    return value.id in names or (len(made) == 1 and deep > 0 and _is_picked_of(made[0], names, loop, deep - 1))


def chosen_rows(place: Place) -> str:
    """``rows, cols = torch.where(chosen == i)``."""
    node = place.statement
    if place.failure.code != "dynamic-shape" or not isinstance(node, ast.Assign):
        return ""
    for call in place.calls("where", "nonzero"):
        given = call.args[0] if call.args else getattr(call.func, "value", None)
        if isinstance(given, ast.expr) and len(call.args) <= 1 and isinstance(node.targets[0], ast.Tuple):
            mask = mask_of(place, given)
            if not (rows := _rows_added_to(place)):
                return (
                    f"keep the mask in place of the list: return all values with `{mask}`, and list them behind the "
                    f"launch; or take a fixed number of them, with `torch.where({mask}, values, 0).flatten().topk(n)`"
                )
            last = isinstance(node.targets[0], ast.Tuple) and path_of(node.targets[0].elts[-1]) in rows
            where = f"({mask}){'.t()' * last}"
            every = ", in a loop over all of them and not those that are hit" * bool(place.loops())
            return (
                f"compute for all, and weigh with the mask in place of picking: `{where}` is 0 where a row has no part "
                f"(of experts{every}, `(weights * {where}).sum(-1, keepdim=True) * expert(x)` for all rows, with the "
                "weights as they were before the picking)"
            )
        names = sorted(stored([node]))
        if isinstance(given, ast.expr) and len(call.args) <= 1 and names:  # not `x[(y > 0).nonzero()] = ...`
            mask = mask_of(place, given)
            if instead := reduced_picks(place, call, mask):
                return instead
            if _ends_alone(place, names[0]) and not gives_a_tuple(place, call):
                x = mask if mask.isidentifier() else "there"
                kept = "" if x == mask else f"keep the mask, `{x} = {mask}`: "
                return (
                    f"{kept}its first place is `{x}.long().argmax()`, and its last `len({x}) - 1 - "
                    f"{x}.flip(0).long().argmax()`, where it has one, which `{x}.any()` says: all of it stays on the "
                    "device"
                )
            if drawn := _drawn_of(place, names[0], mask):
                return drawn
            if _puts_there(place, names[0]):
                return (
                    f"keep the mask, `{names[0]} = {mask}`, and ask not whether there is any: where something is put "
                    f"at `{names[0]}`, here or in what all its callers give it to, `x[{names[0]}] = y[{names[0]}]` is "
                    f"`x.copy_(torch.where({names[0]}[:, None], y, x))`, with a `None` for each dimension that `x` has "
                    f"more than the mask, and `x[{names[0]}] = 0` stays as it is"
                )
            if any(n is not call for n in _called_in(node.value) if called(n) not in _SHAPED):
                return f"keep all rows, and weigh with the mask (`{mask}`) in place of picking by it"
            return (
                f"keep the mask, `{names[0]} = {mask}`, and sum with it in place of picking by `{names[0]}`: where "
                "such picks end in a mean or a loss they are rewritten once it is a mask"
            )
    return ""


def _drawn_of(place: Place, name: str, mask: str) -> str:
    """``pos[torch.randperm(pos.numel())[:n]]``: a part of them by chance."""
    function = place.source.function_of(place.statement)
    calls = [n for n in ast.walk(function or place.statement) if isinstance(n, ast.Call)]
    if not any(called(n) == "randperm" and name in names_in(n) for n in calls):
        return ""
    there, rank = fresh(f"{name}_there", place.taken), fresh(f"{name}_rank", place.taken)
    drawn = f"torch.where({there}, torch.rand({there}.shape, device={place.device}), 2.0).argsort(-1)"
    return (
        f"a part of `{name}` is drawn, and a graph has one size: keep the mask, `{there} = {mask}`, with "
        f"`{there}.sum()` for the length of `{name}` (`.clamp(max=n)` for `min(n, ...)`); draw for all, `{rank} = "
        f"{drawn}.argsort(-1)`: of as many as you want, say `n`, `{there} & ({rank} < n)` is the mask, and what is "
        "computed for all is summed with it and divided by its sum in place of picking; where there always are `n`, "
        f"`{name} = {drawn}[:n]` picks them: other numbers than these, so it was not rewritten"
    )


def _called_in(node: ast.expr) -> Iterator[ast.Call]:
    return (n for n in ast.walk(node) if isinstance(n, ast.Call))


def _puts_there(place: Place, name: str) -> bool:
    """Whether something is put at the places of a list: in this function, or in one of the file that is given it."""
    function, own = place.source.function_of(place.statement), set[str]()
    every = [n for part in function.body for n in within(part)] if function is not None else []
    helpers = {n.name for n in ast.walk(place.source.tree) if isinstance(n, Function)}
    for node in every:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and path_of(node.slice) == name:
            return True
        own |= {called(node)} if isinstance(node, ast.Call) and name in map(path_of, node.args) else set()
    return bool(own & helpers)


def _ends_alone(place: Place, name: str) -> bool:
    """Whether of a list of places only the first or the last is read."""
    function = place.source.function_of(place.statement)
    picks = [n for n in ast.walk(function or place.statement) if isinstance(n, ast.Subscript)]
    of_it = [n for n in picks if path_of(n.value) == name and isinstance(n.ctx, ast.Load)]
    return bool(of_it) and all(ast.unparse(n.slice) in ("0", "-1") for n in of_it)


def _rows_added_to(place: Place) -> set[str]:
    """The names of places, of those that a statement lists, at which its function adds to rows."""
    function, names = place.source.function_of(place.statement), stored([place.statement])
    every = [n for part in function.body for n in within(part)] if function is not None else []
    adding = (n for n in every if isinstance(n, ast.Call) and called(n) in ("index_add_", "index_add"))
    targets: list[ast.expr] = [n.target for n in every if isinstance(n, ast.AugAssign)]
    targets += [each for n in adding for each in n.args[:2]]
    return names & {name for each in targets for name in names_in(each)}


def table_of_the_cpu(place: Place) -> str:
    """``table.gather(-1, t.cpu())``."""
    if place.failure.code != "copy-to-cpu":
        return ""
    for call in place.calls("gather", "index_select", "take", "embedding"):
        for each in call.args:
            if isinstance(each, ast.Call) and called(each) == "cpu" and isinstance(call.func, ast.Attribute):
                table, index = place.text(call.func.value), place.text(each).removesuffix(".cpu()")
                return (
                    f"have `{table}` on the device, where it is made (`.to({place.device})`), and look up with "
                    f"`{index}` itself"
                )
    return ""


def in_a_hook(place: Place) -> str:
    """A copy to the CPU in a lambda that torch calls."""
    if place.failure.code == "copy-to-cpu" and any(isinstance(n, ast.Lambda) for n in ast.walk(place.statement)):
        return "keep the tensor of the device here, which each launch writes, and copy it to the CPU behind the launch"
    return ""


def checked(place: Place) -> str:
    """``self.prior.log_prob(x)`` of a distribution that is made elsewhere."""
    if place.failure.code != "argument-check":
        return ""
    of = {path_of(n) for n in heads(place.statement) if isinstance(n, (ast.Name, ast.Attribute))}
    for node in ast.walk(place.source.tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call) or node is place.statement:
            continue
        kind = getattr(torch.distributions, called(node.value), None)
        if isinstance(kind, type) and any(path_of(each) in of for each in node.targets):
            text = f"{place.text(node)[:-1]}, validate_args=False)"
            return f"its values are checked on the CPU: at line {node.lineno}, `{text}`"
    return ""


def answers_otherwise(place: Place) -> str:
    """``if seen.sum().item() == 0: return x.sum() * 0.0`` in a function that returns something else at its end."""
    node, function = place.statement, place.source.function_of(place.statement)
    if place.failure.code not in ASKS or not isinstance(node, ast.If) or function is None or node.orelse:
        return ""
    last, one = function.body[-1], node.body[0] if len(node.body) == 1 else None
    if not isinstance(one, ast.Return) or not isinstance(last, ast.Return) or node not in function.body:
        return ""
    if not isinstance(one.value, ast.expr) or not isinstance(last.value, ast.expr):
        return ""
    if isinstance(one.value, ast.Tuple) or isinstance(last.value, ast.Tuple):
        return ""
    if any(is_training(part) for each in function.body for part in within(each)):
        return ""
    between = function.body[function.body.index(node) + 1 : -1]
    gone = {path for each in between for path in written(each)} - locals_of(function)
    if gone or stored(between) & (names_in(node.test) | names_in(one.value)):
        return ""  # a launch would change what lives on, and the branch leaves that as it is
    test = condition_of(place, node.test).replace(".item()", "")
    return (
        f"a launch runs both: `return torch.where({test}, {place.text(one.value)}, {place.text(last.value)})` at the "
        "end, without the branch; what is divided by in between is kept from 0 (`.clamp(min=1)`), or its gradient is "
        "no number, and what picks rows of a table within it (`.clamp(0, n - 1)`), or the launch fails"
    )


def _asked(place: Place, node: ast.stmt) -> Iterator[ast.If]:
    """Branches behind a statement that ask for what it assigns."""
    function, names = place.source.function_of(node), stored([node])
    for each in ast.walk(function) if function is not None else ():
        if isinstance(each, ast.If) and each.lineno > node.lineno and names & names_in(each.test):
            yield each


def _leaves_first(place: Place, branch: ast.If) -> str:
    """``if kl > 1.5 * target: return`` before what trains."""
    function = place.source.function_of(branch)
    block = function.body if function is not None else []
    later = block[block.index(branch) + 1 :] if branch in block else []
    leaves = any(isinstance(part, (ast.Return, ast.Raise)) for one in branch.body for part in within(one))
    if not leaves or not any(is_training(part) for one in later for part in within(one)):
        return ""
    test = place.text(branch.test)
    return (
        f"`{test}` decides whether lines {later[0].lineno} to {later[-1].end_lineno} train, so it belongs between two "
        f"launches: one of a function that computes what it asks alone, and one of this function without line "
        f"{branch.lineno}, where it does not hold (no gradients come from one launch to the next: it computes its loss "
        "again). Only one way of the branch was looked at: diagnose it with inputs that take the other one, too"
    )


def _loop_around(place: Place, node: ast.AST) -> ast.For | ast.While | None:
    above = place.source.parents.get(node)
    while above is not None and not isinstance(above, (ast.For, ast.While, ast.FunctionDef)):
        above = place.source.parents.get(above)
    return above if isinstance(above, (ast.For, ast.While)) else None


NEEDS = (
    checked,
    read_of_what_is_given,
    answers_otherwise,
    multiplied,
    packed,
    sized,
    called_or_not,
    decides,
    steps_behind_an_end,
    left_in_a_loop,
    chosen_rows,
    moving_slice,
    listed_places,
    table_of_the_cpu,
    in_a_hook,
)
