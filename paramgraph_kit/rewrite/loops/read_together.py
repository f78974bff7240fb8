"""Loops that read a number of the device in each round, for the host: all is computed first, and read at once.

``for name, p in docs: s = score(p).item(); hits.append((name, s))`` becomes a loop that keeps ``score(p)``, and behind
the launch one that goes through the numbers of all.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

import torch

from paramgraph_kit.rewrite.loops.ending import Ending
from paramgraph_kit.rewrite.source.edits import (
    Edit,
    Function,
    Source,
    first_line,
    locals_of,
    names_in,
    on_one_line,
    path_of,
    within,
)
from paramgraph_kit.rewrite.source.moving import body_of, stored
from paramgraph_kit.rewrite.source.place import TO_HOST, Place, called, fresh
from paramgraph_kit.rewrite.source.pure import is_pure

MANY = 64  # rounds of a list: more of them are data, which come to a graph one by one
_LEAVES = (ast.Break, ast.Return, ast.Raise, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)
_NUMBERS = ("float", "int", "bool")


def together(place: Place) -> Ending | None:
    """A loop of a function's own body whose first lines compute, and whose others read and tell; else None."""
    source, function = place.source, place.source.function_of(place.statement)
    loop = next((n for n in source.above(place.statement) if isinstance(n, ast.For)), None)
    if function is None or loop is None or loop.orelse or not _is_alone(source, function, loop):
        return None
    first = next((n for n in loop.body if any(part is place.statement for part in ast.walk(n))), None)
    if first is None or first_line(loop.body[0]) == loop.lineno or not _goes_again(place, loop.iter):
        return None
    at = loop.body.index(first)
    ahead, rest = loop.body[:at], loop.body[at:]
    reads = [*_reads(rest, stored(ahead) | stored([loop.target]))]
    if not reads or not _can_go_first(place, loop, ahead, rest, [value for _, value in reads]):
        return None
    begun = _begun(place, function, loop, rest)
    return _split(place, function, loop, rest, reads, begun) if begun is not None else None


def _begun(place: Place, function: Function, loop: ast.For, rest: Sequence[ast.stmt]) -> list[str] | None:
    """The lines that begin what the host's lines fill or count, ``hits = []``, which are done behind the launch."""
    own = locals_of(function) - stored([loop.target])
    written = (stored(rest) | {*_changed([n for each in rest for n in within(each)])}) & own
    lines, done = list[str](), set[str]()
    for node in body_of(function):
        if node is loop:
            break
        if not stored([node]) & written:
            if names_in(node) & written:
                return None
            continue
        if not isinstance(node, ast.Assign) or not _is_plain(node.value) or not stored([node]) <= written:
            return None
        lines.append(on_one_line(place.text(node)))
        done |= stored([node])
    arguments = {n.arg for n in ast.walk(function.args) if isinstance(n, ast.arg)}
    return lines if not written & arguments else None


def _is_plain(value: ast.expr) -> bool:
    """``[]``, ``{}``, ``-1.0, None`` and ``list()``."""
    if isinstance(value, ast.Call) and path_of(value.func) in ("list", "dict", "set"):
        return not value.args and not value.keywords
    try:
        ast.literal_eval(value)
    except ValueError:
        return False
    return True


def _is_alone(source: Source, function: Function, loop: ast.For) -> bool:
    """Whether a loop is in no other one, and in no branch."""
    above = source.parents.get(loop)
    while isinstance(above, ast.With):
        above = source.parents.get(above)
    return above is function


def _goes_again(place: Place, given: ast.expr) -> bool:
    """Whether a loop can go through the same once more: a range, a tensor, or a short list around the function."""
    if isinstance(given, ast.Call):
        if path_of(given.func) == "range":
            return is_pure(place, given)
        if path_of(given.func) in ("enumerate", "zip"):
            return bool(given.args) and all(_goes_again(place, each) for each in given.args)
        owner = given.func.value if isinstance(given.func, ast.Attribute) and not given.args else None
        held = (
            place.value(path_of(owner)) if owner is not None and called(given) in ("items", "values", "keys") else None
        )
        return isinstance(held, dict) and len(held) <= MANY
    if not isinstance(given, (ast.Name, ast.Attribute)) or not (path := path_of(given)):
        return False
    form = place.form(path)
    if form is not None:
        return len(form.shape) > 0 and form.shape[0] <= MANY
    held = None if place.is_local(path.partition(".")[0]) and "." not in path else place.value(path)
    kinds = (list, tuple, dict, range, torch.nn.ModuleList, torch.nn.ParameterList)
    return isinstance(held, kinds) and len(held) <= MANY


def _reads(rest: Sequence[ast.stmt], made: set[str]) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Calls that read, and what they read of a round's own."""
    for node in (n for each in rest for n in within(each)):
        if not isinstance(node, ast.Call) or node.keywords:
            continue
        value: ast.expr | None = None
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("item", "tolist") and not node.args:
            value = node.func.value
        elif path_of(node.func) in _NUMBERS and len(node.args) == 1:
            value = node.args[0]
            if any(isinstance(n, ast.Call) and called(n) in TO_HOST for n in ast.walk(value)):
                continue  # which is a read by itself
        if value is not None and names_in(value) & made:
            yield node, value


def _can_go_first(
    place: Place, loop: ast.For, ahead: Sequence[ast.stmt], rest: Sequence[ast.stmt], values: Sequence[ast.expr]
) -> bool:
    """Whether what is computed in all rounds may be computed before the others' lines run, and read once."""
    for node in ahead:
        if not isinstance(node, ast.Assign) or not all(_is_names(each) for each in node.targets):
            return False
        if not is_pure(place, node.value) or any(_reads_host(n) for n in within(node.value)):
            return False
    if not all(is_pure(place, value) and not any(_reads_host(n) for n in within(value)) for value in values):
        return False
    read = {n for value in values for n in ast.walk(value)}
    left = [n for each in rest for n in within(each) if n not in read]
    if any(isinstance(n, _LEAVES) or _is_another(n, values) for n in left):
        return False
    loads = {n.id for n in left if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    targets, written = stored([loop.target]), stored(rest) | {*_changed(left)}
    before = {name for node in (*ahead, *values, loop.iter) for name in names_in(node)}
    return not (loads & stored(ahead) or written & (before | targets) or stored(ahead) & targets)


def _is_names(target: ast.expr) -> bool:
    elements = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    return all(isinstance(each, ast.Name) for each in elements)


def _reads_host(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and (called(node) in TO_HOST or path_of(node.func) in _NUMBERS)


def _is_another(node: ast.AST, values: Sequence[ast.expr]) -> bool:
    """Whether a call goes to the host, and is none of the reads that are known."""
    if not isinstance(node, ast.Call) or called(node) not in TO_HOST:
        return False
    of = node.func.value if isinstance(node.func, ast.Attribute) else None
    return of not in values and not any(each in values for each in node.args)


def _changed(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """What may be written to: that has a method called for its own sake, and what is set in something."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield path_of(node.value.func).partition(".")[0]
        elif isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
            yield path_of(node).partition(".")[0]


def _split(
    place: Place,
    function: Function,
    loop: ast.For,
    rest: Sequence[ast.stmt],
    reads: Sequence[tuple[ast.Call, ast.expr]],
    begun: Sequence[str],
) -> Ending:
    source, taken = place.source, names_in(place.source.tree) | locals_of(function)
    first, inside = rest[0], list[Edit]()
    kept: dict[str, tuple[str, str, str]] = {}  # by what is kept, and how: each of it, the list, and all of it
    for read, value in reads:
        text = place.text(value) + "[]" * (called(read) == "tolist")
        alone = isinstance(first, ast.Assign) and first.value is read and called(read) in ("item", "tolist")
        target = first.targets[0] if alone and isinstance(first, ast.Assign) and len(first.targets) == 1 else None
        own = isinstance(target, ast.Name) and len(rest) > 1 and _is_set_once(rest, target.id)
        if text not in kept:
            name = target.id if isinstance(target, ast.Name) else (path_of(value).rpartition(".")[2] or "value")
            each = name if own else fresh(f"{name}_now", taken)
            kept[text] = (each, fresh(f"every_{name}", taken | {each}), fresh(f"{name}_of_all", taken | {each}))
            taken |= {*kept[text]}
            if own:
                inside.append(source.without(first))
                continue
        each = kept[text][0]
        inside.append(source.replace(read, each if called(read) in ("item", "tolist") else f"{called(read)}({each})"))
    indent, deep = source.indent(loop), source.indent(loop.body[0])
    begin, end = first_line(first), (loop.end_lineno or loop.lineno) + 1
    fill = "".join(f"{deep}{every}.append({text.removesuffix('[]')})\n" for text, (_, every, _) in kept.items())
    empty = "".join(f"{indent}{every} = []\n" for _, every, _ in kept.values())
    edits = [Edit(first_line(loop), 0, first_line(loop), 0, empty), Edit(begin, 0, end, 0, fill)]
    handed = {
        whole: f"torch.stack({every})" + ".flatten()" * (not text.endswith("[]"))
        for text, (_, every, whole) in kept.items()
    }
    gone = {n for _, value in reads for n in ast.walk(value)}
    header = _header(place, loop, rest, gone, [(f"{whole}.tolist()", each) for each, _, whole in kept.values()])
    written = source.apply(inside)
    more = len(written) - len(source.lines)
    lines = [line.removeprefix(indent).rstrip("\n") for line in written[begin - 1 : end - 1 + more]]
    return Ending(source, loop, edits, handed, [*begun, f"for {header}:", *lines])


def _is_set_once(rest: Sequence[ast.stmt], name: str) -> bool:
    every = [n for each in rest for n in ast.walk(each) if isinstance(n, ast.Name) and n.id == name]
    return sum(not isinstance(n.ctx, ast.Load) for n in every) == 1


def _header(
    place: Place, loop: ast.For, rest: Sequence[ast.stmt], gone: Collection[ast.AST], kept: Sequence[tuple[str, str]]
) -> str:
    """What the loop of the host's goes through: what it reads of the rounds, and the numbers.

    Rounds that come later are in no graph, so nothing is left out where there are more of them than numbers.
    """
    given, targets = [all_of for all_of, _ in kept], [each for _, each in kept]
    every = (n for node in rest for n in ast.walk(node) if n not in gone)
    rounds = any(isinstance(n, ast.Name) and n.id in stored([loop.target]) for n in every)
    if rounds:
        text = place.text(loop.target)
        bracketed = isinstance(loop.target, ast.Tuple) and not text.startswith("(")
        given, targets = [place.text(loop.iter), *given], [f"({text})" if bracketed else text, *targets]
    strict = ", strict=True" * rounds
    return f"{', '.join(targets)} in " + (given[0] if len(given) == 1 else f"zip({', '.join(given)}{strict})")
