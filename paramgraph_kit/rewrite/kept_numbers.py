"""Numbers that lines outside of a step set, as a schedule around it does, and that its graph reads: they stay in it.

Six steps alone do not show them. A capture that failed has kept none, and one that works now keeps today's.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import Any

import torch

from paramgraph_kit.doctor.observe.held import attributes_of
from paramgraph_kit.doctor.observe.takes_tensors import of_numbers
from paramgraph_kit.rewrite.reads import called_by, only_around
from paramgraph_kit.rewrite.rounds import Rounds
from paramgraph_kit.rewrite.source.edits import Function, Source, functions_of, locals_of, path_of, within
from paramgraph_kit.rewrite.source.place import NUMBER, renamed
from paramgraph_kit.rewrite.source.reach import numbers_of
from paramgraph_kit.rewrite.source.reached_as import class_of, paths_to
from paramgraph_kit.rewrite.source.set_later import is_set_later
from paramgraph_kit.rewrite.ways import Ways

MOST = 3
# Keywords that take no tensor.
_NUMBERS = frozenset(
    """alpha beta value fill_value eps p start end negative_slope delta lambd scale max_norm clip_value dropout_p
    label_smoothing margin std low high steps""".split()  # noqa: SIM905 - shorter so
)
AGAIN = (
    "`{path}` is set outside of the step, and a graph keeps the number that it has at the capture (`{line}`): capture "
    "again once it is another one"
)
KEPT = (
    ", or give it to each launch, once `{name}_in = torch.tensor({made}, device={device})`, before each launch "
    "`{name}_in.fill_({outer})`, and {read} in the step"
)
ONCE = "`{name}` is made once, of today's `{number}`: where anything sets that to another number, make it again"


def told(attempt: Ways, rounds: Rounds) -> list[str]:
    """What to know of each, as far as the program's own lines set it."""
    found: dict[str, str] = {}
    attributes = numbers_of(attempt.prover.state)
    moved = {each.name for each in (rounds.mover.moved, rounds.mover.fed) if each is not None} if rounds.moves else ()
    for file, lines in rounds.texts.items():
        source, tree = attempt.sources.get(file), ast.parse("".join(lines))
        if source is None:
            continue
        ran = {code.co_qualname for code in attempt.ran}
        bound = {name for each in _functions(source, attempt) for name in _bound(each)}
        around = beside(lines, tree, moved, ran)  # no graph has what these read
        for function in (each for each in functions_of(tree, ran) if each.name not in around):
            for node, statement in _reads(function, attributes, attempt):
                path = path_of(node)
                last = path.rpartition(".")[2]
                if last in bound or path in found or not _is_set(source, function.name, path, attempt):
                    continue
                line = lines[statement.lineno - 1].strip()
                outer = _outer(tree, function, path, attempt)
                found[path] = AGAIN.format(path=path, line=line)
                if outer and (given := _given(function, path, attempt)):
                    made, read = given[0].format(outer), given[1]
                    found[path] += KEPT.format(name=last, made=made, outer=outer, device=attempt.device, read=read)
    return [*list(found.values())[:MOST], *_made_once(attempt, rounds)]


def beside(lines: list[str], tree: ast.Module, moved: Collection[str], ran: Collection[str]) -> set[str]:
    """Functions that those around a launch call, and nothing that is captured does: who calls a part may, too."""
    behind = called_by(lines, moved)
    inside = {each.name for each in functions_of(tree, ran)} - behind
    return only_around(tree, moved) | (behind - called_by(lines, inside) - {*moved})


def _made_once(attempt: Ways, rounds: Rounds) -> list[str]:
    """What is made before the function now, and of which numbers around it: other files may set them, too."""
    found: dict[str, str] = {}
    for file, lines in rounds.texts.items():
        source, text = attempt.sources.get(file), "".join(lines)
        known = {name for name, _ in _made_in(source.tree)} if source is not None else set()
        for name, node in _made_in(ast.parse(text)):
            if name in known or f"{name}.copy_(" in text or f"{name}.fill_(" in text:
                continue
            for each in (n.id for n in ast.walk(node.value) if isinstance(n, ast.Name) and not n.id.isupper()):
                if type(attempt.space.get(each)) in NUMBER and source is not None:
                    found.setdefault(each, ONCE.format(name=name, number=each))
    return list(found.values())[:MOST]


def _made_in(tree: ast.Module) -> list[tuple[str, ast.Assign]]:
    return [(path_of(target), node) for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]


def _outer(tree: ast.Module, function: Function, path: str, attempt: Ways) -> str:
    """What a step reads is called so before a launch; "" where several objects have it, and one tensor will not do."""
    first, _, rest = path.partition(".")
    if first != "self":
        return path
    owner = getattr(attempt.function, "__self__", None)
    objects = paths_to(class_of(tree, function), rest.partition(".")[0], attempt.space, owner)
    return f"{objects[0]}.{rest}" if len(objects) == 1 else ""


def object_of(attempt: Ways) -> str:
    """What stands for ``self`` around the step: the name of its object, where one is told."""
    owner = getattr(attempt.function, "__self__", None)
    return next((name for name, value in attempt.space.items() if value is owner and owner is not None), "self")


def _functions(source: Source, attempt: Ways) -> list[Function]:
    """What a step runs, as it is written."""
    return list(functions_of(source.tree, {code.co_qualname for code in attempt.ran}))


def _bound(function: Function) -> Iterator[str]:
    """What the step itself gives another value, which is seen to otherwise."""
    for node in (n for part in function.body for n in within(part)):
        if isinstance(node, (ast.Name, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
            yield path_of(node).rpartition(".")[2]


def _reads(
    function: Function, attributes: Collection[str], attempt: Ways
) -> Iterator[tuple[ast.Name | ast.Attribute, ast.stmt]]:
    """Numbers around a function, and attributes that are one, with the statement that reads them."""
    local = locals_of(function)
    for statement in (n for part in function.body for n in within(part) if isinstance(n, ast.stmt)):
        calls = {n.func for n in within(statement) if isinstance(n, ast.Call)}
        for node in within(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in local:
                value = attempt.space.get(node.id)
                if type(value) in NUMBER and type(value) is not bool:
                    yield node, statement
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and path_of(node):
                known = node.attr in attributes and node not in calls
                yield from [(node, statement)] if known else []


def _given(function: Function, path: str, attempt: Ways) -> tuple[str, str] | None:
    """Of what a tensor is made that has a number, and what a step reads for it; None where it can have none."""
    parents = {child: node for part in function.body for node in within(part) for child in ast.iter_child_nodes(node)}
    found, number, picks = dict[str, str](), False, False
    for read in (n for n in parents if isinstance(n, (ast.Name, ast.Attribute)) and path_of(n) == path):
        node: ast.AST = read
        above = parents.get(read)
        while isinstance(above, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp)):
            node, above = above, parents.get(above)
        if isinstance(above, ast.Subscript) and above.slice is read and isinstance(above.ctx, ast.Load):
            if not isinstance(_value(path_of(above.value), attempt), torch.Tensor):
                return None
            picked = f"{ast.unparse(above.value)}.index_select(0, {path.rpartition('.')[2]}_in).squeeze(0)"
            found[ast.unparse(above)] = picked
            picks = True
        elif isinstance(above, ast.keyword) and above.arg in _NUMBERS:  # torch takes no tensor there
            call = parents.get(above)
            if not isinstance(call, ast.Call) or not (scaled := _scaled(call, above)):
                return None
            found[ast.unparse(call)] = renamed(scaled, {path: f"{path.rpartition('.')[2]}_in"})
            number = True
        elif (
            isinstance(above, (ast.Subscript, ast.Slice))
            or getattr(above, "test", None) is node
            or (isinstance(above, ast.Call) and node in above.args and _takes_numbers(above))
        ):
            return None
        else:
            found[path] = f"{path.rpartition('.')[2]}_in"
    number = number or path in found
    if number and picks:
        return None  # an index is a whole number, and a dimension more
    longest = sorted(found.items(), key=lambda each: -len(each[0]))
    return "float({})" if number else "[{}]", ", ".join(f"`{new}` for `{old}`" for old, new in longest)


def _scaled(call: ast.Call, option: ast.keyword) -> str:
    """``v.add_(f * dt)`` for ``v.add_(f, alpha=dt)``, and ``addcmul_`` as that; "" for any other call."""
    name = call.func.attr.removesuffix("_") if isinstance(call.func, ast.Attribute) else ""
    many = {"alpha": {"add": 1, "sub": 1}, "value": {"addcmul": 2, "addcdiv": 2}}.get(option.arg or "", {}).get(name)
    others = [n for n in ast.walk(call) if isinstance(n, (ast.keyword, ast.Starred)) and n is not option]
    if many is None or others or len(call.args) < many:
        return ""
    given = [*map(ast.unparse, call.args)]
    given[-many] = f"{_bracketed(call.args[-many])} * {_bracketed(option.value)}"
    return f"{ast.unparse(call.func)}({', '.join(given)})"


def _bracketed(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)) else f"({text})"


def _takes_numbers(call: ast.Call) -> bool:
    """Whether a call takes a number by its place, and no tensor; a bound beside one of Python's is none, too."""
    name = path_of(call.func).rpartition(".")[2]
    beside = name in ("clamp", "clamp_", "clip", "clip_") and any(isinstance(a, ast.Constant) for a in call.args)
    return beside or (isinstance(call.func, (ast.Name, ast.Attribute)) and of_numbers(call.func))


def _value(path: str, attempt: Ways) -> Any:
    """What a path means, of dictionaries alone."""
    first, *rest = path.split(".")
    value = getattr(attempt.function, "__self__", None) if first == "self" else attempt.space.get(first)
    for name in rest:
        held = attributes_of(value)
        parts = (held, held.get("_buffers") or {}, held.get("_parameters") or {}, held.get("_modules") or {})
        value = next((part[name] for part in parts if name in part), None)
    return value


def _is_set(source: Source, name: str, path: str, attempt: Ways) -> bool:
    """Whether lines that no step runs set it, by the text of its file and of others."""
    ran = {code.co_name for code in attempt.ran}
    if name not in ran:
        return False
    owner = next((n for n in ast.walk(source.tree) if isinstance(n, Function) and n.name == name), None)
    own = getattr(attempt.function, "__self__", None)
    return owner is not None and is_set_later(
        source, owner, path, {**attempt.space, **({"self": own} if own is not None else {})}
    )
