"""A batch that the host fetches in the middle of a step is fetched before the launch, each round's in its order.

``x, y = get_batch("train")``, ``batch = next(loader)`` and ``data = buffer.sample(64)`` go there with what they need,
and are copied to tensors that stay; so are those of each round of ``for _ in range(4)``, which the step takes one after
the other. What a step fetches for the next one, once it has used its own, stays in its variables: ``global x, y``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite.around import feeding
from paramgraph_kit.rewrite.around.later import reached
from paramgraph_kit.rewrite.around.watched import Values
from paramgraph_kit.rewrite.loops import nested
from paramgraph_kit.rewrite.loops.asks import of_a_step, room
from paramgraph_kit.rewrite.source import moving, writes
from paramgraph_kit.rewrite.source.edits import Function, Source, locals_of, names_in, path_of, within
from paramgraph_kit.rewrite.source.place import Form, called, fresh, names_of

IsHost = Callable[[ast.expr], bool]
# What says that a batch comes from the host, where that is made.
CODES = frozenset("copy-to-gpu blocking-copy tensor-literal host-random cpu-index".split())  # noqa: SIM905
_MOVABLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.If, ast.Try, ast.For)
_REPEATED = ("next", "pop", "iter(", "rand", "perm", "shuffle")


@dataclass(slots=True, eq=False)
class Fetch:
    """A statement that gives a batch its names, and those before it in its block that it needs."""

    at: ast.Assign
    moved: list[ast.stmt]
    names: tuple[str, ...]

    @property
    def unpacks(self) -> bool:
        """``x, y = ...``: each tensor has a name of its own."""
        return isinstance(self.at.targets[0], ast.Tuple)


@dataclass(slots=True)
class Batch(Values):
    """What a fetch has given, in the order of all."""

    order: list[tuple[Any, Form | None]] = field(default_factory=list)
    built: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)  # how its tensors are put together
    each: list[Form] = field(default_factory=list)  # what is known of them
    known: set[Form] = field(default_factory=set)  # of what is not there in each round: nothing, as all of it has to be

    def note(self, value: Any) -> Any:
        """Note one batch; returns it."""
        kind, keys, tensors = _parts(value)
        self.built.add((kind, keys))
        known = [Form.of(one) for one in tensors if isinstance(one, torch.Tensor)]
        whole = bool(known) and len(known) == len(tensors) and all(form.device == device().type for form in known)
        self.each = known if whole else []
        self.order += [(self, form) for form in known] if whole else [(self, None)]
        return value


def _parts(value: Any) -> tuple[str, tuple[str, ...], list[Any]]:
    """How a batch is put together, by which keys, and its tensors."""
    within_it = value.values() if type(value) is dict else value if isinstance(value, (tuple, list)) else ()
    if any(isinstance(each, (dict, tuple, list)) for each in within_it):
        return nested.parts(value)
    if isinstance(value, torch.Tensor):
        return "", ("",), [value]
    if type(value) is dict and all(type(key) is str for key in value):
        return "dict", tuple(value), list(value.values())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        kind = type(value)
        return f"{kind.__module__}.{kind.__qualname__}", tuple(value._fields), list(value)
    known = type(value).__name__ if type(value) in (tuple, list) else "?"
    return known, tuple(map(str, range(len(value)))) if known != "?" else (), list(value) if known != "?" else []


def fetches_of(source: Source, function: Function, wanted: Iterable[ast.stmt], is_host: IsHost) -> list[Fetch]:
    """The fetches that statements of a function are, with what they need; nothing where one of them cannot go."""
    found = list[Fetch]()
    for statement in wanted:
        if any(statement in one.moved for one in found):
            continue
        one = _fetch(source, function, statement, is_host)
        if one is None:
            return []
        found = [*(each for each in found if each.at not in one.moved), one]
    found.sort(key=lambda one: one.at.lineno)
    done = set[ast.stmt]()
    for one in found:  # what several need is found once, for the first of them
        one.moved = [each for each in one.moved if each not in done]
        done |= set(one.moved)
    return found if _stands_alone(source, function, found) else []


def _fetch(source: Source, function: Function, statement: ast.stmt, is_host: IsHost) -> Fetch | None:
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    given = target.elts if isinstance(target, ast.Tuple) else [target]
    names = tuple(each.id for each in given if isinstance(each, ast.Name))
    if len(names) != len(given) or not all(map(_is_passed, source.above(statement))):
        return None
    bound = {n.id for n in ast.walk(statement.value) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    needed, moved = writes.paths(statement.value) - bound, list[ast.stmt]([statement])
    block = source.block_of(statement)
    for before in reversed(block[: block.index(statement)]):
        if not _writes(before, needed, _leaving_alone(source, {*needed, *_read_by_calls(source, statement)})):
            continue
        if not isinstance(before, _MOVABLE):
            return None
        moved.insert(0, before)
        needed |= writes.paths(before)
    made = moving.stored(moved)
    for loop in (above for above in source.above(statement) if isinstance(above, ast.For)):
        made |= moving.stored([loop.target])
        if not _is_of_host(loop.iter, is_host, ()) or any(word in source.text(loop.iter) for word in _REPEATED):
            return None
    if not all(moving.is_closed(each) and _is_of_host(each, is_host, made) for each in moved):
        return None
    others = [n for part in function.body for n in within(part) if isinstance(n, ast.stmt) and n not in moved]
    inside = set(ast.walk(function)) - {n for each in moved for n in ast.walk(each)}
    around = set(source.above(statement))
    again = {n for above in around if isinstance(above, ast.For) for n in ast.walk(above)}
    quiet = _leaving_alone(source, needed - made)
    for each in (n for n in others if n in inside and n not in around and n not in block):
        if each not in again and each.lineno > statement.lineno:
            continue  # it comes to that when all is fetched
        if not isinstance(each, (ast.For, ast.While, ast.If, ast.With, ast.Try)) and _writes(
            each, needed - made, quiet
        ):
            return None  # what it needs is found by something else, before or in its loop
    return Fetch(statement, moved, names)


def _is_passed(above: ast.stmt) -> bool:
    """Whether the host comes by what is in a statement as often each time: a block, or a loop that nothing leaves."""
    stops = (n for n in within(above) if isinstance(n, moving.STOPS))
    return isinstance(above, ast.With) or (isinstance(above, ast.For) and not above.orelse and not any(stops))


def _writes(node: ast.stmt, needed: Collection[str], quiet: Collection[str] = ()) -> bool:
    return any(writes.touches(a, b) for a in {*writes.written(node, quiet), *moving.stored([node])} for b in needed)


def _leaving_alone(source: Source, needed: Collection[str]) -> set[str]:
    """The names of the file's methods that change none of these of their object, with what they call in the file."""
    last, touching = {path.rpartition(".")[2] for path in needed}, set[str]()
    every = [n for n in ast.walk(source.tree) if isinstance(n, Function)]
    for each in every:
        parts = [n for part in each.body for n in within(part) if isinstance(n, ast.stmt)]
        stores = {n.attr for part in parts for n in ast.walk(part) if isinstance(n, ast.Attribute) and _is_store(n)}
        changed = stores | {step for part in parts for path in writes.written(part) for step in path.split(".")[1:]}
        touching |= {each.name} if last & changed or {"setattr", "__dict__"} & names_in(each) else set()
    return {each.name for each in every if not reached([source], [each.name]) & touching}


def _read_by_calls(source: Source, node: ast.AST) -> set[str]:
    """What the file's methods read of their object that a statement comes to."""
    names = reached([source], {called(n) for n in ast.walk(node) if isinstance(n, ast.Call)})
    every = [n for n in ast.walk(source.tree) if isinstance(n, Function) and n.name in names]
    return {n.attr for each in every for n in ast.walk(each) if isinstance(n, ast.Attribute)}


def _is_store(node: ast.Attribute) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _is_of_host(node: ast.AST, is_host: IsHost, made: Collection[str]) -> bool:
    """Whether a part of the step reads nothing of the device, as far as its names tell."""
    inner = {n.value for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    bound = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    read = (n for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute)) and n not in inner)
    for each in read:
        first = path_of(each).partition(".")[0]
        asked = isinstance(each.ctx, ast.Load) and first not in {"", "self", *bound, *made}
        if asked and not is_host(each):
            return False
    return True


def _stands_alone(source: Source, function: Function, found: Sequence[Fetch]) -> bool:
    """Whether what stays reads nothing of what goes but the batches, and writes none of these."""
    gone = {n for one in found for each in one.moved for n in ast.walk(each)}
    given = {name for one in found for name in one.names}
    kept = {name for node in ast.walk(function) if isinstance(node, moving.NAMED) for name in node.names}
    made = {path for one in found for each in one.moved for path in (*writes.written(each), *moving.stored([each]))}
    for node in (n for part in function.body for n in within(part) if n not in gone):
        if not isinstance(node, (ast.Name, ast.Attribute)):
            continue
        path = path_of(node)
        if not isinstance(node.ctx, ast.Load) and path in given & kept:
            return False  # of its own it may give another value from there on
        read = isinstance(node.ctx, ast.Load) and path.partition(".")[0] not in given
        if read and any(path == each or path.startswith(f"{each}.") for each in made if each and each != "self"):
            return False
    return bool(found)


def bring(
    source: Source,
    function: Function,
    found: Sequence[Fetch],
    seen: Sequence[Batch],
    order: Sequence[tuple[Any, Form | None]],
    device_text: str,
    space: Mapping[str, Any],
    others: Sequence[str],
) -> feeding.Fetched | None:
    """What fetches it all before the launch, and the edits by which a step reads it."""
    forms = of_a_step(order)
    carried = _carried(function, found)
    made = feeding.Fetched(gone=[n for one in found for n in one.moved])
    texts = [_built(values, space, one.unpacks, made) for one, values in zip(found, seen, strict=True)]
    if not forms or not all(texts) or any(not values.each for values in seen):
        return None
    own = [_form(found, seen, name) for name in carried]
    if None in own:
        return None
    taken = names_of(source.tree) | {line.partition(" = ")[0] for line in others}
    loops = {above for one in found for above in source.above(one.at) if isinstance(above, ast.For)}
    tops = [moving.top_of(source, function, one.at) or one.at for one in found]
    made.reads = _reads(found, loops) | set(carried)
    if len(found) == 1 and not loops and not carried:
        _by_name(source, found[0], seen[0], texts[0], device_text, taken, made)
    else:
        held_in, given, fetched, held, value = (
            fresh(hint, taken) for hint in ("given_in", "given", "fetched", "held", "value")
        )
        starts = [f"{fetched} = [{', '.join(carried)}]"]
        for top in dict.fromkeys(tops):
            made.lines[top] = [*starts, *_lines(source, [top], dict(zip(found, seen, strict=True)), fetched)]
            starts = []
        made.lines[tops[-1]] += [
            f"for {held}, {value} in zip({held_in}, {fetched}, strict=True):",
            f"    {held}.copy_({value}.reshape({held}.shape))",
        ]
        begins = [f"{given} = iter({held_in})"]
        if carried:
            begins.append(f"{', '.join(carried)} = {', '.join([f'next({given})'] * len(carried))}")
        made.edits.append(source.before(tops[0], begins, rank=-1))
        for one, values, text in zip(found, seen, texts, strict=True):
            parts = [f"next({given})"] * len(values.each)
            made.edits.append(source.replace(one.at.value, text.format(*parts)))
        made.hoisted.append(f"{held_in} = {room([*(form for form in own if form is not None), *forms], device_text)}")
    gone = [node for one in found for node in one.moved if node is not one.at]
    made.edits += source.without_all(gone)
    names = {name for one in found for name in one.names}
    for node in (n for part in function.body for n in within(part) if isinstance(n, moving.NAMED)):
        changed = names | {path for each in made.gone for path in writes.written(each)}
        made.writes |= changed & set(node.names)
        left = [name for name in node.names if name not in names]
        if left != node.names:
            made.edits.append(replace(source.replace(node, ""), keeps=tuple(left)))
    return made


def _by_name(
    source: Source, one: Fetch, seen: Batch, text: str, device_text: str, taken: Collection[str], made: feeding.Fetched
) -> None:
    """One batch of a step, in tensors that have its names."""
    lines = made.lines.setdefault(one.at, _text(source, one))
    zeros = [room([form], device_text, alone=True) for form in seen.each]
    at = nested.places(seen.built, one.names)
    if not at and (one.unpacks or len(seen.each) == 1 == len(one.names)):
        kept = [fresh(f"{name}_in", taken) for name in one.names]
        lines += [f"{held}.copy_({name})" for held, name in zip(kept, one.names, strict=True)]
        made.hoisted += [f"{held} = {zero}" for held, zero in zip(kept, zeros, strict=True)]
        made.edits.append(source.replace(one.at.value, text.format(*kept)))
        return
    name, held, value = one.names[0], fresh("held", taken), fresh("value", taken)
    kept_in = fresh("given_in" if one.unpacks else f"{name}_in", taken)
    made.hoisted.append(f"{kept_in} = ({', '.join(zeros)})")
    values = f"({', '.join(at)},)" if at else f"{name}.values()" if text.startswith("{{") else name
    lines += [
        f"for {held}, {value} in zip({kept_in}, {values}, strict=True):",
        f"    {held}.copy_({value}.reshape({held}.shape))",
    ]
    parts = [f"{kept_in}[{number}]" for number in range(len(zeros))]
    made.edits.append(source.replace(one.at.value, text.format(*parts)))


def _built(seen: Batch, space: Mapping[str, Any], unpacks: bool, made: feeding.Fetched) -> str:
    """How a batch is put together of its tensors, ``{}`` each; "" where that is not known, or not always so."""
    if len(seen.built) != 1:
        return ""
    (kind, keys), *_ = seen.built
    if kind == nested.KIND:
        return nested.text(keys[0], lambda each: _class(each, space, made))
    parts = ["{}"] * len(keys)
    if kind == "":
        return "{}"
    if kind == "dict":
        return (
            "{{" + ", ".join(f"{key!r}: {part}".replace("'", '"') for key, part in zip(keys, parts, strict=True)) + "}}"
        )
    if kind in ("tuple", "list"):
        text = ", ".join(parts)
        return text if unpacks else f"[{text}]" if kind == "list" else f"({text},)" if len(parts) == 1 else f"({text})"
    if unpacks:
        return ", ".join(parts)
    name = _class(kind, space, made)
    return f"{name}({', '.join(parts)})" if name else ""


def _class(kind: str, space: Mapping[str, Any], made: feeding.Fetched) -> str:
    """The name that the file has for a class of batches, which it imports where it has none."""
    name = kind.rpartition(".")[2]
    if name not in space and (found := _imported(kind)):
        made.hoisted += [found] if found not in made.hoisted else []
        return name
    known = f"{getattr(space.get(name), '__module__', '')}.{getattr(space.get(name), '__qualname__', '')}" == kind
    return name if known else ""


def _imported(kind: str) -> str:
    """The line that imports a class of another file, by the path of that."""
    module, _, name = kind.rpartition(".")
    held = getattr(sys.modules.get(module), name, None)
    return f"from {module} import {name}" if isinstance(held, type) and module != "__main__" else ""


def _form(found: Sequence[Fetch], seen: Sequence[Batch], name: str) -> Form | None:
    """What is known of a tensor that was fetched by the step before."""
    for one, values in zip(found, seen, strict=True):
        if name in one.names and len(values.each) == len(one.names) and not nested.places(values.built, one.names):
            return values.each[one.names.index(name)]
    return None


def _carried(function: Function, found: Sequence[Fetch]) -> list[str]:
    """The names of batches that a step reads before it gives them another value: of the step before, or given to it."""
    gone = {n for one in found for each in one.moved for n in ast.walk(each)}
    every = [n for part in function.body for n in within(part)]
    own = locals_of(function) - set(moving.arguments_of(function))
    names = dict.fromkeys(name for one in found for name in one.names if name not in own)
    first = {name: min(one.at.lineno for one in found if name in one.names) for name in names}
    reads = [n for n in every if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n not in gone]
    return [name for name in names if any(n.id == name and n.lineno < first[name] for n in reads)]


def _reads(found: Sequence[Fetch], loops: Collection[ast.For]) -> set[str]:
    return {
        n for node in (*(m for one in found for m in one.moved), *(loop.iter for loop in loops)) for n in names_in(node)
    }


def _text(source: Source, one: Fetch) -> list[str]:
    """The statements of a fetch, as they stand."""
    return [line for each in one.moved for line in _dedented(source, each)]


def _dedented(source: Source, node: ast.stmt) -> Iterator[str]:
    depth = len(source.indent(node))
    yield from (line[depth:].rstrip() for line in source.part(node, source.lines))


def _lines(source: Source, nodes: Sequence[ast.stmt], found: Mapping[Fetch, Batch], fetched: str) -> Iterator[str]:
    """The host's part of some statements, which puts all that it fetches into a list."""
    for node in nodes:
        one = next((each for each in found if each.at is node), None)
        if one is not None:
            yield from _text(source, one)
            if at := nested.places(found[one].built, one.names):
                yield f"{fetched} += [{', '.join(at)}]"
                continue
            whole = "values" if next(iter(found[one].built))[0] == "dict" else ""
            many = len(found[one].each) > 1 or not one.unpacks
            single = next(iter(found[one].built))[0] == "" or one.unpacks
            text = ", ".join(one.names) if single else f"*{one.names[0]}{'.values()' if whole else ''}"
            yield f"{fetched} += [{text}]" if many else f"{fetched}.append({text})"
        elif isinstance(node, ast.With):
            yield from _lines(source, node.body, found, fetched)
        elif isinstance(node, ast.For) and any(each.at in set(ast.walk(node)) for each in found):
            yield f"for {source.text(node.target)} in {source.text(node.iter)}:"
            yield from (f"    {line}" for line in _lines(source, node.body, found, fetched))
