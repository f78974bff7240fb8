"""Advice for a value that a graph reads and that gets another one behind its launch: on the device, or before it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

from paramgraph_kit.doctor.explain.syntax import last_name
from paramgraph_kit.doctor.observe.freed_gradients import lets_gradients_go
from paramgraph_kit.rewrite.advised.asks.cut_here import decided_by
from paramgraph_kit.rewrite.advised.state.decays import decay_in_a_tensor
from paramgraph_kit.rewrite.source.attribute_owners import of_one_owner
from paramgraph_kit.rewrite.source.edits import SIMPLE, Function, functions_of, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of

Shapes = tuple[int, ...] | list[tuple[int, ...]]  # of one tensor, or of those that something has
_DEEP = 3  # through how many functions a number is followed
JOINS = ("torch.cat", "torch.concat", "torch.stack")


def kept_outside(name: str, lines: Sequence[str], original: Sequence[str], moved: Collection[str], ran: Collection[str],
                 device: str, *, shapes: Sequence[Shapes] = ()) -> str:  # fmt: skip
    """What to do about ``name``, which functions ``moved`` rebind and others of those that a graph has ``ran`` read.

    ``ran`` are qualified names, ``lines`` are the rewritten ones, ``original`` those that the user has, ``shapes``
    those of the tensors that the name has meant, or has had, from step to step.
    """
    tree = ast.parse("".join(lines))
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    stay = [each for each in functions_of(tree, ran) if each.name not in moved]
    read = [node for each in stay for node in _reads(each, name)]
    around = [each for each in functions if each.name in moved]
    bound = [node for each in around for node in _binds(each, name)]
    filled = [call for each in around for call in _fills(each, name)]
    read, bound = of_one_owner(tree, [*stay, *around], name, read, bound)
    if not read or not (bound or filled):
        return ""
    place = _place(lines[read[0].lineno - 1].strip(), original)
    if not bound:
        return _as_mask(read[0], filled[0], name, place, device)
    path, text = _target(bound[0], name), ast.unparse(bound[0])
    if told := _of_tensors(bound[0], path, place, shapes):
        return told
    if isinstance(read[0], ast.Assign) and is_rate(read[0].targets[0]):
        function = next(each.name for each in functions if read[0] in set(ast.walk(each)))
        rate = f"{ast.unparse(read[0].targets[0])}.fill_({ast.unparse(read[0].value)})"
        own = not {f"before_{function}", f"after_{function}"}.isdisjoint(moved)  # it is the step itself
        what = "it" if own else f"its call, `{function}`,"
        return (
            f"`{path}` decides the rate, {place}: that belongs before each launch, so take {what} out of the step, "
            f"and write there `{rate}`; "
            "once, where the optimizer has been made with `fused=True`, give each of its groups a tensor, "
            f'`group["lr"] = torch.tensor(group["lr"], device={device})`'
        )
    if what := _frees(read[0], functions):
        return (
            f"`{path}` decides which parameters get gradients, {place}: ask `{what}` before each launch, and give it "
            "to the step as an argument, of which each answer has a graph of its own; behind the launch it may change"
        )
    if told := decay_in_a_tensor(tree, read[0], place, device):
        return told
    if isinstance(bound[0], ast.Assign) and (value := _on_device(bound[0].value)):
        return (
            f"`{path}` is read in the graph, {place}: keep it on the device, "
            f"`{path} = torch.tensor({_first(original, name)}, device={device})` where it begins, "
            f"`{path}.copy_({value})` in place of `{text}`, and make a number of it behind the launch"
        )
    scalar = f"`{path} = torch.tensor({path}, device={device})` once"
    written = _in_place(bound[0], path)
    first = _first(original, name)
    if _is_real(first) and not isinstance(read[0], (ast.If, ast.While)):
        kept = f"{name}_in"
        return (
            f"`{path}` is read in the graph, {place}: give it to each launch in a tensor, once "
            f"`{kept} = torch.tensor({first}, device={device})`, before each launch `{kept}.fill_({path})`, here "
            f"`{kept}` for `{path}`; it stays a number of the host's"
        )
    if (part := _slice(read[0], name)) and isinstance(read[0], ast.Assign):
        x, dim, value = ast.unparse(part[0].value), part[1], ast.unparse(read[0].value)
        wide = value if isinstance(read[0].value, SIMPLE) else f"({value})"
        index = f"{path} + torch.arange({wide}.shape[{dim}], device={device})"
        return (
            f"`{path}` is read in the graph, {place}: keep it as a tensor, {scalar}, here "
            f"`{x}.index_copy_({dim}, {index}, {value})`, and {written} where it changes"
        )
    if _cuts(read[0], name) or _is_given_to_a_cut(read[0], name, functions):
        return (
            f"`{path}` decides a size in the graph, {place}: give it to the step as a number among its arguments, of "
            "which each has a graph of its own; behind the launch it may change"
        )
    if size := _size_of_it(read[0], functions):
        return (
            f"`{path}` decides a size in the graph, as `{size}` is made of it, {place}: find `{size}` before each "
            "launch, and give it to the step as a number among its arguments, of which each has a graph of its own; "
            f"behind the launch `{path}` may change"
        )
    kept = f"; or keep it as a tensor, {scalar}, and {written} where it changes"
    return (
        f"`{path}` is read in the graph, {place}: do that before each launch too, where the host still knows it, and "
        f"give the graph what comes of it in a tensor{kept * (not _asks_for_a_number(read[0], functions, name))}"
    )


def _is_given_to_a_cut(node: ast.AST, name: str, functions: Sequence[Function], deep: int = _DEEP) -> bool:
    """Whether a function is given a number by which it, or one that it calls, cuts: ``model(x, self.n)``."""
    for call in (n for n in ast.walk(node) if isinstance(n, ast.Call) and deep):
        given = [number for number, each in enumerate(call.args) if _is(each, name, ast.Load)]
        own = [f for f in functions if f.name == last_name(call.func)]
        for function in own or [f for f in functions if f.name in ("forward", "__call__")]:
            names = arguments_of(function)
            names = names[names[:1] == ["self"] :]
            for parameter in (names[number] for number in given if number < len(names)):
                if any(_cuts(each, parameter) for each in function.body):
                    return True
                if any(_is_given_to_a_cut(each, parameter, functions, deep - 1) for each in function.body):
                    return True
    return False


def _of_tensors(node: ast.stmt, path: str, place: str, shapes: Sequence[Shapes]) -> str:
    """What to do about one that has tensors, of which no number is kept: they may be of other sizes each time."""
    held = [each for each in shapes if each or isinstance(each, tuple)]
    if not any(held) or not any(map(any, held)):
        return ""
    read = f"`{path}` gets other tensors, `{ast.unparse(node)}`, and a graph reads those of its capture, {place}"
    if isinstance(node, ast.Assign) and isinstance(held[0], tuple) and all(each == held[0] for each in held):
        new = f"{path}.copy_({ast.unparse(node.value)})"
        first = f"{path} = {ast.unparse(node.value)} if {path} is None else {new}"
        return f"{read}: write into the one that is there, `{new if isinstance(shapes[0], tuple) else first}`"
    return f"{read}: launch it only as long as these are there, and capture again once `{path}` is another object"


def _asks_for_a_number(node: ast.AST, functions: Sequence[Function], name: str) -> bool:
    """Whether what is made of ``name`` goes where only a number of the host's can: ``math.sqrt(top)``, ``range(n)``."""
    made = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    calls = [n for n in _beside(node, functions) if isinstance(n, ast.Call)]
    calls = [n for n in calls if path_of(n.func).partition(".")[0] in ("math", "range", "int", "round")]
    given = [n for call in calls for each in call.args for n in ast.walk(each)]
    return any(_is(n, name, ast.Load) or (isinstance(n, ast.Name) and n.id in made) for n in given)


def _frees(node: ast.stmt, functions: Sequence[Function]) -> str:
    """``n < 3`` of ``frozen = n < 3`` or ``if n < 3:``, by which the same function lets gradients go."""
    function = next((each for each in functions if node in set(ast.walk(each))), None)
    if function is None or not isinstance(node, (ast.If, ast.Assign)):
        return ""
    if isinstance(node, ast.If):
        decided, what = decided_by(function, node), node.test
        return ast.unparse(what) if any(lets_gradients_go(n) for part in decided for n in ast.walk(part)) else ""
    names = {target.id for target in node.targets if isinstance(target, ast.Name)}
    branches = [n for n in ast.walk(function) if isinstance(n, ast.If) and names & names_in(n.test)]
    freed = [n for each in branches for part in decided_by(function, each) for n in ast.walk(part)]
    freed += [n for n in ast.walk(function) if isinstance(n, (ast.Assign, ast.Call)) and names & names_in(n)]
    return ast.unparse(node.value) if any(map(lets_gradients_go, freed)) else ""


def _beside(node: ast.AST, functions: Sequence[Function]) -> list[ast.AST]:
    """All syntax of the functions that a node is in."""
    return [n for each in functions if node in set(ast.walk(each)) for n in ast.walk(each)]


def _size_of_it(node: ast.AST, functions: Sequence[Function]) -> str:
    """``valid`` of ``valid = min(self.n, 8)``, by which the same function cuts: ``k[-valid:]``."""
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    own = _beside(node, functions)
    cuts = [n for n in own if isinstance(n, ast.Slice)]
    is_size = isinstance(target, ast.Name) and any(target.id in names_in(cut) for cut in cuts)
    return target.id if isinstance(target, ast.Name) and is_size else ""


def joined_ahead(path: str, join: ast.Call, within_it: ast.AST) -> str:
    """What to do about ``torch.cat(queue)``, a list of a few steps' tensors that each step adds one to.

    ``within_it`` is the statement that has it, perhaps as ``torch.cat(queue) if queue else x``.
    """
    name, text = f"{path.rpartition('.')[2]}_in", ast.unparse(join)
    ways = (n for n in ast.walk(within_it) if isinstance(n, ast.IfExp) and path in ast.unparse(n.test))
    whole = next((n for n in ways if any(part is join for part in ast.walk(n.body))), join)
    return (
        f"`{text}` joins what other steps have left, which a graph does not see: call the step without a graph until "
        f"`{path}` is as long as it gets; then `{name} = {text}` once, before each launch `{name}.copy_({text})`, and "
        f"here `{name}` for `{ast.unparse(whole)}`, before it is captured"
    )


def _as_mask(read: ast.stmt, call: ast.Call, name: str, place: str, device: str) -> str:
    """What stands for a set or a list of numbers that the device has made, and that the step goes through or asks."""
    path, value, mask = ast.unparse(call.func.value), call.args[0], f"{name}_mask"  # type: ignore[attr-defined]
    while isinstance(value, ast.Call) and (_is_called(value, "item") or _is_called(value, "tolist") or value.args):
        value = value.func.value if isinstance(value.func, ast.Attribute) and not value.args else value.args[0]
    text = ast.unparse(value)
    asks = [n for n in ast.walk(read) if isinstance(n, ast.Compare) and isinstance(n.ops[0], (ast.In, ast.NotIn))]
    if not isinstance(read, ast.For) and not any(_is(n.comparators[0], name, ast.Load) for n in asks):
        target = read.targets[0] if isinstance(read, ast.Assign) else None
        calls = [n for n in ast.walk(read) if isinstance(n, ast.Call) and n.args and _is(n.args[0], name, ast.Load)]
        if joins := [n for n in calls if path_of(n.func) in JOINS]:
            return joined_ahead(path, joins[0], read)
        if not isinstance(read, ast.Assign) or not isinstance(target, ast.Name):
            return ""
        return (
            f"`{path}` is read in the graph, {place}: do that before each launch, in a tensor, once `{target.id}_in = "
            f"torch.zeros((), device={device})`, before each launch `{target.id}_in.fill_({ast.unparse(read.value)})`, "
            f"here `{target.id}_in` for `{target.id}`; a number that is returned is the host's, and known before it"
        )
    told = f"ask `{mask}[...]` for `... in {path}`"
    if isinstance(read, ast.For) and isinstance(read.target, ast.Name):
        part = next(_elements(read, read.target.id), None)
        x = ast.unparse(part) if part is not None else "x"
        told = (
            f"without the loop, let `x = {x}`, compute of all of `x` what it makes of the element "
            f"`{read.target.id}`, `new`, and write `x.copy_(torch.where({mask}, new, x))`"
        )
    return (
        f"`{path}` is read in the graph, {place}: keep it on the device as a mask, `{mask} = torch.zeros(n, "
        f"dtype=torch.bool, device={device})` once, for the `n` numbers that there can be; in the step "
        f"`{mask}.index_fill_(0, {text}.reshape(-1), True)` in place of `{ast.unparse(call)}`, and here {told}"
    )


def _elements(loop: ast.For, name: str) -> Iterator[ast.expr]:
    """``logits[0]`` of ``logits[0, t]``, and ``logits`` of ``logits[t]``."""
    for node in (n for part in loop.body for n in ast.walk(part) if isinstance(n, ast.Subscript)):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if not isinstance(parts[-1], ast.Name) or parts[-1].id != name:
            continue
        first: ast.expr | None = ast.Tuple(parts[:-1], ast.Load()) if len(parts) > 2 else parts[0]
        yield node.value if len(parts) == 1 or first is None else ast.Subscript(node.value, first, ast.Load())


def _fills(function: ast.AST, name: str) -> Iterator[ast.Call]:
    """What puts a number into a set or a list: ``seen.add(token.item())``."""
    for node in (n for part in getattr(function, "body", ()) for n in ast.walk(part)):
        one = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 1
        if not one or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr in ("add", "append", "update", "extend") and _is(node.func.value, name, ast.Load):
            yield node


def _is_called(node: ast.Call, name: str) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == name


def is_rate(node: ast.expr) -> bool:
    """``group["lr"]``."""
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == "lr"


def _place(text: str, original: Sequence[str]) -> str:
    at = [number for number, line in enumerate(original, 1) if line.strip() == text]
    return f"line {at[0]} `{text}`" if at else f"`{text}`"


def _statements(function: ast.AST) -> Iterator[ast.stmt]:
    for node in (part for top in getattr(function, "body", ()) for part in within(top)):
        if isinstance(node, ast.stmt):
            yield node


def _reads(function: ast.AST, name: str) -> Iterator[ast.stmt]:
    """The innermost statements of a function that read a name or an attribute."""
    local = _own_names(function)
    for node in _statements(function):
        if hasattr(node, "body") and not isinstance(node, (ast.If, ast.While, ast.For)):
            continue
        heads = [node] if not hasattr(node, "body") else [getattr(node, "test", None) or getattr(node, "iter", None)]
        every = [each for head in heads if head is not None for each in ast.walk(head)]
        methods = [each.func for each in every if isinstance(each, ast.Call)]  # `x.mean()` is none of `self.mean`
        read = [each for each in every if each not in methods and not (isinstance(each, ast.Name) and name in local)]
        if any(_is(each, name, ast.Load) for each in read):
            yield node


def _own_names(function: ast.AST) -> set[str]:
    """Names of a function's own, which are none of what is around it."""
    return locals_of(function) if isinstance(function, Function) else set()


def _binds(function: ast.AST, name: str) -> Iterator[ast.Assign | ast.AugAssign]:
    local = _own_names(function)
    for node in _statements(function):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        targets = [each for each in targets if not (isinstance(each, ast.Name) and name in local)]
        if isinstance(node, (ast.Assign, ast.AugAssign)) and any(_is(each, name, ast.Store) for each in targets):
            yield node


def _is(node: ast.AST, name: str, kind: type[ast.expr_context]) -> bool:
    if isinstance(node, ast.Name):
        return node.id == name and isinstance(node.ctx, kind)
    return isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, kind)


def _target(node: ast.Assign | ast.AugAssign, name: str) -> str:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return next(ast.unparse(each) for each in targets if _is(each, name, ast.Store))


def _on_device(value: ast.expr) -> str:
    """What a number is read from, detached; "" if nothing tells that it is on the device."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "item":
        return f"{ast.unparse(value.func.value)}.detach().reshape(())"
    return ""


def _first(lines: Sequence[str], name: str) -> str:
    """What a name or an attribute is given first, outside of what is captured."""
    for node in ast.walk(ast.parse("".join(lines))):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            if isinstance(node, ast.Assign) and _is(target, name, ast.Store):
                return ast.unparse(node.value)
            if isinstance(node, ast.Assign) and isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for each, value in zip(target.elts, node.value.elts, strict=False):
                    if _is(each, name, ast.Store):
                        return ast.unparse(value)
    return "..."


def _is_real(text: str) -> bool:
    """Whether it is written as a number with a part behind its point."""
    try:
        return type(ast.literal_eval(text)) is float
    except (ValueError, SyntaxError):
        return False


def _in_place(node: ast.Assign | ast.AugAssign, path: str) -> str:
    if isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub)):
        return f"`{path}.{'add' if isinstance(node.op, ast.Add) else 'sub'}_({ast.unparse(node.value)})`"
    value = node.value if isinstance(node, ast.Assign) else ast.BinOp(node.target, node.op, node.value)
    reads = any(path_of(n) == path for n in ast.walk(value) if isinstance(n, (ast.Name, ast.Attribute)))
    # A number cannot be copied, and `max(0.1, x)` or `x if c else 1` may be one.
    chosen = isinstance(value, (ast.IfExp, ast.BoolOp)) or (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
    )
    return f"`{path}.{'copy_' if reads and not chosen else 'fill_'}({ast.unparse(value)})`"


def _slice(node: ast.stmt, name: str) -> tuple[ast.Subscript, int] | None:
    """The part of a tensor that a statement writes from ``name`` on, and its dimension."""
    for target in node.targets if isinstance(node, ast.Assign) else ():
        if not isinstance(target, ast.Subscript):
            continue
        for dim, part in enumerate(target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]):
            first = part.lower if isinstance(part, ast.Slice) else None
            if isinstance(first, (ast.Name, ast.Attribute)) and path_of(first).rpartition(".")[2] == name:
                return target, dim
    return None


def _cuts(node: ast.stmt, name: str) -> bool:
    """Whether a statement reads a part of something that ends where ``name`` says."""
    ends = (each for n in ast.walk(node) if isinstance(n, ast.Slice) for each in (n.lower, n.upper) if each is not None)
    return any(_is(n, name, ast.Load) for each in ends for n in ast.walk(each))
