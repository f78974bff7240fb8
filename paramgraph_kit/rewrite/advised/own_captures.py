"""Advice for graphs that a function captures and replays itself: how what it is given gets into them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from paramgraph_kit.rewrite.advised.given_kinds import made_and_filled
from paramgraph_kit.rewrite.advised.own_tables import has_several, is_capture, keeps_several, with_each_graph
from paramgraph_kit.rewrite.source.edits import Function, names_in, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, called

_UNREAD = "this call does not read it"
_COUNTS = (
    "range",
    "zeros",
    "ones",
    "empty",
    "arange",
    "view",
    "reshape",
    "expand",
    "repeat",
    "narrow",
    "topk",
    "chunk",
)
_GIVEN = "is given to a capture of its own"


def into_an_own_capture(place: Place) -> str:
    """``self.x = x`` before ``self.graph.replay()``: the graph reads the tensor that was there at its capture."""
    function = place.source.function_of(place.statement)
    if function is None:
        return ""
    if _GIVEN in place.failure.message:
        return _number(place, function)
    freed = place.failure.code == "freed-input"
    if not freed and (place.failure.code != "stale-input" or _UNREAD not in place.failure.message):
        return ""
    given = [name for name in arguments_of(function) if name != "self"]
    given += [each.arg for each in (function.args.vararg, function.args.kwarg) if each and each.arg not in given]
    captured = _read_in_captures(place, function)
    if freed or has_several(function):
        return with_each_graph(place, function, freed=freed)
    written, moved, first = [], [], []
    for node in (n for part in function.body for n in within(part)):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.value, ast.Name):
            continue
        path, name, once = path_of(node.targets[0]), node.value.id, _is_with_the_capture(place, node)
        if name not in given or not path or not (path in captured or name in captured):
            continue
        if isinstance(node.targets[0], ast.Subscript):  # an entry, and not all of its table
            path = ast.unparse(node.targets[0])
        several = _is_unpacked(place, path)
        cloned = f"[each.clone() for each in {name}]" if several else f"{name}.clone()"
        written.append(
            f"`for held, new in zip({path}, {name}): held.copy_(new)`" if several else f"`{path}.copy_({name})`"
        )
        if not once and (branch := _branch_behind(function, node)) is not None:
            first.append(
                f"line {node.lineno}, `{place.text(node)}`, goes into the branch of line {branch.lineno}, as "
                f"`{path} = {cloned}`, "
            )
        elif not once:
            moved.append(f"`{place.text(node)}` (line {node.lineno})")
        elif name not in captured:
            first.append(f"line {node.lineno} is `{path} = {cloned}`, as `{name}` is its caller's tensor, ")
        else:
            first.append(f"line {node.lineno} is `{path} = {cloned}`, the capture reads `{path}` for `{name}`, ")
    if written:
        gone = f", in place of {' and '.join(moved)}" if moved else ""
        before = f"{''.join(first)}and " if first else ""
        return (
            f"{before}before this line comes {' and '.join(dict.fromkeys(written))}{gone}: "
            "the graph reads the tensor that was there at its capture"
        )
    direct = [name for name in given if name in captured]
    return _held_directly(place, function, _told(place.failure.message, given, direct) or direct[:1]) if direct else ""


def _told(message: str, given: list[str], captured: list[str]) -> list[str]:
    """The arguments that are told, ``argument 1, argument 2: ...``, as their function calls them."""
    said = [each.strip().removeprefix("argument ") for each in message.partition(":")[0].split(",")]
    names = [given[int(each) - 1] if each.isdigit() and 0 < int(each) <= len(given) else each for each in said]
    return [name for name in names if name in captured]


def _held_directly(place: Place, function: Function, names: list[str]) -> str:
    """What is said of arguments that a capture reads by their own names."""
    blocks = [n for part in function.body for n in within(part) if is_capture(n)]
    inside = [n for block in blocks for n in ast.walk(block)]
    held = [_held(function, name) for name in names]
    ways = [made_and_filled(name, to, inside, place.source.tree) for name, to in zip(names, held, strict=True)]
    shared = [each for each in held if not each.startswith("self.")]
    kept = f"`global {', '.join(shared)}` begins the function, " if shared else ""
    made = " and ".join(f"`{to} = {way}`" for to, (way, _) in zip(held, ways, strict=True))
    read = " and ".join(f"`{to}` for `{name}`" for to, name in zip(held, names, strict=True))
    filled = " and ".join(f"`{way}`" for _, way in ways)
    return (
        f"{kept}before the capture {made}, the capture reads {read}, and before this line comes {filled}: "
        "the graph reads the tensor that was there at its capture"
    )


def _held(function: Function, name: str) -> str:
    """Where a function keeps what its capture reads: its object has it, or else the file."""
    return f"{'self.' if 'self' in arguments_of(function)[:1] else ''}held_{name}"


def _number(place: Place, function: Function) -> str:
    name = place.failure.message.split()[0]
    held = _held(function, name)
    if place.failure.message.endswith(" bool"):
        return (
            f"`{name}` decides what is captured, and each graph has one way: a graph for each, so the key of the table "
            f"that keeps the graphs has `{name}`, too, as in `graphs[..., {name}]`"
        )
    if (is_size := _is_a_size(place, name)) or _is_an_index(place, name):
        what = "a size" if is_size else "an index, which the host would have to read from a tensor"
        return (
            f"`{name}` is {what}, and each graph has one: a graph for each, so the key of the table that keeps the "
            f"graphs has `{name}`, too, as in `graphs[..., {name}]`"
        )
    if not held.startswith("self.") or keeps_several(function):
        number = "0" if place.failure.message.endswith(" int") else "0.0"
        return (
            f"`{name}` is a number, of which each graph keeps the first: at the top of the file, once, "
            f"`held_{name} = torch.full((), {number}, device={place.device})`, the capture reads `held_{name}` for "
            f"`{name}`, and `held_{name}.fill_({name})` comes ahead of the capture and of each replay"
        )
    return (
        f"`{name}` is a number, of which the graph keeps the first: before the capture "
        f"`{held} = torch.full((), {name}, device={place.device})`, the capture reads `{held}` for `{name}`, and "
        f"before each replay comes `{held}.fill_({name})`; or keep a graph for each that comes, `graphs[{name}]`"
    )


def _is_a_size(place: Place, name: str) -> bool:
    """Whether a number is a bound of a slice, or a count, where it is told: the host would have to read a tensor."""
    return _bounds([place.statement], name) or any(
        _bounds(function.body, parameter) for function, parameter in _given_to(place, name)
    )


def _is_an_index(place: Place, name: str) -> bool:
    """Whether it picks an entry, ``cache[pos]``: with a tensor of no dimension that is a read of the host's."""
    read = [(name, place.statement), *((to, n) for function, to in _given_to(place, name) for n in function.body)]
    nodes = ((each, n) for each, statement in read for n in within(statement) if isinstance(n, ast.Subscript))
    return any(each in names_in(n.slice) for each, n in nodes)


def _bounds(statements: Iterable[ast.AST], name: str) -> bool:
    nodes = [n for statement in statements for n in within(statement)]
    bounds: list[ast.AST] = [n for n in nodes if isinstance(n, ast.Slice)]
    bounds += [n for n in nodes if isinstance(n, ast.Call) and called(n) in _COUNTS]
    return any(name in names_in(bound) for bound in bounds)


def _given_to(place: Place, name: str) -> Iterator[tuple[Function, str]]:
    """Functions of the file that a line gives a number, each with what it calls that."""
    functions = [n for n in ast.walk(place.source.tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for call in (n for n in within(place.statement) if isinstance(n, ast.Call)):
        for function in (f for f in functions if f.name == called(call)):
            named = [k.arg for k in call.keywords if k.arg and isinstance(k.value, ast.Name) and k.value.id == name]
            names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
            names = names[1:] if names[:1] == ["self"] else names
            pairs = zip(names, call.args, strict=False)
            by_place = [to for to, given in pairs if isinstance(given, ast.Name) and given.id == name]
            yield from ((function, to) for to in (*by_place, *named))


def _read_in_captures(place: Place, function: Function) -> set[str]:
    """Paths that captures of a function, or of its class, read; of another function only what an object holds."""
    found = set[str]()
    for node in (n for n in ast.walk(place.source.tree) if is_capture(n)):
        inside = [n for part in getattr(node, "body", []) for n in ast.walk(part)]
        same = isinstance(node, ast.stmt) and place.source.function_of(node) is function
        called_there = {path_of(n.func) for n in inside if isinstance(n, ast.Call)}
        methods = [n for n in ast.walk(place.source.tree) if isinstance(n, Function)]
        inside += [n for each in methods if f"self.{each.name}" in called_there for n in ast.walk(each)]
        for part in inside:
            if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Load) and path_of(part):
                found |= {path_of(part)} if same or isinstance(part, ast.Attribute) else set()
                found |= names_in(part) if same else set()
    return found


def _is_unpacked(place: Place, path: str) -> bool:
    """Whether the file takes the parts of what a path holds: ``a, b = self.batch``, ``model(*self.inputs)``."""
    for node in ast.walk(place.source.tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Tuple, ast.List)):
            if path_of(node.value) == path:
                return True
        elif isinstance(node, ast.Starred) and path_of(node.value) == path:
            return True
    return False


def _branch_behind(function: Function, node: ast.stmt) -> ast.If | None:
    """The branch behind a statement, that captures where there is no graph yet."""
    every = (n for part in function.body for n in within(part) if isinstance(n, ast.If) and n.lineno > node.lineno)
    return next((each for each in every if any(is_capture(n) for n in ast.walk(each))), None)


def _is_with_the_capture(place: Place, node: ast.stmt) -> bool:
    """Whether a statement is done in the branch that captures, and so once."""
    above = place.source.parents.get(node)
    return isinstance(above, ast.If) and any(is_capture(n) for n in ast.walk(above))
