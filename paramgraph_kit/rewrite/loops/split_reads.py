"""Statements of a round that compute and read at once: ``total += loss_of(model(x), y).item()``, cut in two.

Also where the reading is in a function that the statement calls: ``total += train_step(x, y)``, which returns
``loss.item()``. Then the function returns the tensor, and whoever calls it reads.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paramgraph_kit.rewrite.loops.spans import CUT, Block
from paramgraph_kit.rewrite.loops.windows import computes_more, moving_names, picked, put, tensor_test
from paramgraph_kit.rewrite.source.edits import (
    COMPOUND,
    Edit,
    Function,
    Source,
    first_line,
    heads,
    names_in,
    path_of,
    within,
)
from paramgraph_kit.rewrite.source.moving import stored
from paramgraph_kit.rewrite.source.place import TO_HOST, called, fresh

_TWICE = ".detach()" * 2
_NUMBERS = ("float", "int", "bool")
_LATER = (ast.Lambda, ast.IfExp, ast.BoolOp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(slots=True)
class Split:
    """Edits that cut statements in two, and how many new ones there are before each: they compute, and it tells."""

    edits: list[Edit] = field(default_factory=list)
    copies: dict[ast.stmt, int] = field(default_factory=dict)  # how many stand before these: the host's part
    before: dict[ast.stmt, int] = field(default_factory=dict)
    after: dict[ast.stmt, int] = field(default_factory=dict)  # of blocks, whose last ones tell: they stand behind it

    def __contains__(self, node: ast.stmt) -> bool:
        return node in self.before or node in self.after


def split(
    source: Source,
    loop: Block,
    computes: Callable[[ast.stmt], bool],
    helpers: Collection[str],
    value: Callable[[str], Any],
    copied: Collection[ast.stmt],
    tensors: Collection[str] = (),
    arrays: Collection[str] = (),
) -> Split:
    """What of a loop's own statements can be cut in two.

    Args:
        computes: whether a statement does something on the device.
        helpers: names of functions that read something of the device for the host.
        value: what has a path, as ``self.opt.step``, or None where nobody knows.
        copied: statements that copy something to the device, which is done ahead of the round: ``model(x.to(d))``.
        tensors: local names that have held one.
        arrays: those that have held one of numpy's.
    """
    found, taken = Split(), {*names_in(source.tree)}
    moving, is_tensor = moving_names(source, loop, tensors), tensor_test(tensors, value)
    computing = [each for each in loop.body if computes(each)]
    ahead_of: dict[ast.stmt, tuple[list[str], list[str]]] = {node: ([], []) for node in computing}
    for node in computing:
        if (ways := _in_ways(source, node)) is not None:
            gone, lines = ways
            found.edits += [*gone, source.after(node, lines)]
            found.after[node] = sum(not line.startswith((" ", "else:")) for line in lines)
            continue
        block, told = _tail(source, node)
        behind, ahead = list[str](), dict[str, str]()
        calls, moved = dict[ast.expr, str](_copies(source, node, copied)), set[ast.AST]()
        calls |= dict(picked(node, moving, is_tensor, arrays)) if not isinstance(node, COMPOUND) else {}
        for call, path in calls.items():
            if source.text(call) not in ahead:
                taken.add(name := fresh(f"{path.rpartition('.')[2]}_there", taken))
                ahead[source.text(call)] = name
        between = loop.body[loop.body.index(computing[0]) : loop.body.index(node)]
        for text, name in ahead.items():  # all of the round's, where nothing of it makes what is copied
            early = not names_in(ast.parse(text)) & stored(between)
            ahead_of[computing[0] if early else node][0].append(f"{name} = {text}")
        for inner in told or [node]:
            parts = _read_in(source, inner) or _read_by_helper(source, inner, helpers, value, found.edits)
            written = put(inner, moving, is_tensor, loop.body[loop.body.index(node) + 1 :]) if inner is node else None
            if written is not None and not parts:
                parts = [(written, "{}")] if computes_more(written) else []
                found.before[node] = 0
            lines, text = [], source.text(inner)
            for part, read in parts:
                taken.add(name := fresh(_hint(inner), taken))
                moved |= {*ast.walk(part)}
                lines.append(f"{name} = {_with_names(source.text(part), ahead)}")
                text = text.replace(source.text(part), read.format(name), 1)
                found.edits += [] if told else [source.replace(part, read.format(name))]
            if told:
                behind.append(text)
                new = f"\n{source.indent(inner)}".join(lines)
                found.edits.append(source.replace(inner, new) if lines else source.without(inner, told))
            elif lines:
                ahead_of[node][1].extend(lines)
        found.edits += [source.replace(n, ahead[source.text(n)]) for n in calls if n not in moved]
        if behind and block is not None:
            found.edits.append(source.after(block, behind))
            found.after[node] = len(behind)
    for node, (copies, lines) in ahead_of.items():
        found.edits += [source.before(node, [*copies, *lines], rank=CUT)] if copies or lines else []
        found.copies |= {node: len(copies)} if copies else {}
        found.before |= {node: len(lines)} if lines else {}
    return found


def _copies(source: Source, node: ast.stmt, copied: Collection[ast.stmt]) -> Iterator[tuple[ast.Call, str]]:
    """The copies within what a statement computes, and the path of what each copies."""
    inner = [n for n in ast.walk(node) if isinstance(n, ast.stmt)] if isinstance(node, ast.With) else [node]
    for each in (n for n in inner if n in copied and not isinstance(n, COMPOUND)):
        for call in (n for n in heads(each) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)):
            given = call.func.value if isinstance(call.func, ast.Attribute) else call
            names = [n.id for n in ast.walk(given) if isinstance(n, ast.Name)]
            computed = any(isinstance(n, (ast.Call, ast.BinOp)) for n in ast.walk(given))
            if called(call) in ("to", "cuda") and names and not computed and not _is_put_off(source, call, node):
                yield call, path_of(given) or names[0]


def _with_names(text: str, ahead: Mapping[str, str]) -> str:
    for copy, name in ahead.items():
        text = text.replace(copy, name)
    return text


def _tail(source: Source, node: ast.stmt) -> tuple[ast.With | None, list[ast.stmt]]:
    """The last statements of a ``with`` that read something of the device: they may stand behind it."""
    block = node if isinstance(node, ast.With) else None
    told = list[ast.stmt]()
    for inner in reversed(block.body if block is not None else ()):
        whole = inner.lineno == inner.end_lineno and isinstance(inner, (ast.Assign, ast.AugAssign, ast.Expr))
        if not whole or not any(_read(n) for n in heads(inner)):
            break
        told.insert(0, inner)
    stays = block is not None and (len(told) < len(block.body) or any(_read_in(source, each) for each in told))
    return block, told if stays else []


def _in_ways(source: Source, node: ast.stmt) -> tuple[list[Edit], list[str]] | None:
    """What only tells at the end of the ways of an ``if`` of the host's: edits without it, and its lines behind."""
    if not isinstance(node, ast.If) or names_in(node.test) & stored([node]) or not _is_plain(node.test):
        return None
    gone = list[Edit]()
    lines = _told_in(source, [node], gone)
    return (gone, lines) if lines else None


def _is_plain(test: ast.expr) -> bool:
    """Whether a test may be asked twice."""
    return not any(isinstance(n, (ast.Call, ast.NamedExpr, ast.Await)) for n in ast.walk(test))


def _told_in(source: Source, body: Sequence[ast.stmt], gone: list[Edit]) -> list[str]:
    """The lines that only tell at the end of a block, which keeps what it computes; notes their edits."""
    last, told = body[-1], list[ast.stmt]()
    if isinstance(last, ast.With):
        return _told_in(source, last.body, gone)
    if isinstance(last, ast.If):
        if not _is_plain(last.test) or names_in(last.test) & stored([last]):
            return []
        ways = [_told_in(source, part, gone) if part else [] for part in (last.body, last.orelse)]
        if ways[0] == ways[1]:
            return ways[0]
        heads_of = f"if {source.text(last.test)}:", "else:" if ways[0] else f"if not ({source.text(last.test)}):"
        return [line for head, way in zip(heads_of, ways, strict=True) if way for line in (head, *_indented(way))]
    for inner in reversed(body):
        whole = inner.lineno == inner.end_lineno and isinstance(inner, (ast.Assign, ast.AugAssign, ast.Expr))
        if not whole or not any(_read(n) for n in heads(inner)) or _read_in(source, inner):
            break
        told.insert(0, inner)
    if not told or len(told) == len(body):
        return []
    gone += [source.without(inner, told) for inner in told]
    return [source.text(inner) for inner in told]


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _read_in(source: Source, node: ast.stmt) -> list[tuple[ast.expr, str]]:
    """What a statement computes, and then reads: ``model(x).sum()`` of ``total += model(x).sum().item()``."""
    found = []
    for call in heads(node):
        value = _read(call)
        if value is None or not any(isinstance(n, ast.Call | ast.BinOp | ast.Compare) for n in ast.walk(value)):
            continue  # what has a name is computed before
        if not any(_read(inner) for inner in ast.walk(value)) and not _is_put_off(source, value, node):
            found.append((value, "{}"))
    return found


def _read(node: ast.AST) -> ast.expr | None:
    """What ``loss.item()`` and ``float(loss)`` read."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr in TO_HOST and not node.args:
        return node.func.value
    return node.args[0] if path_of(node.func) in _NUMBERS and len(node.args) == 1 else None


def _is_put_off(source: Source, part: ast.expr, node: ast.stmt) -> bool:
    """Whether a part of a statement is not evaluated once, each time that this one is."""
    above = source.parents.get(part)
    while above is not None and above is not node:
        if isinstance(above, _LATER):
            return True
        above = source.parents.get(above)
    return False


def _read_by_helper(
    source: Source, node: ast.stmt, helpers: Collection[str], value: Callable[[str], Any], edits: list[Edit]
) -> list[tuple[ast.expr, str]]:
    """The one call of a function that reads only what it returns, and how it is read here; edits of the function."""
    calls = [n for n in heads(node) if isinstance(n, ast.Call) and called(n) in helpers and path_of(n.func)]
    if len(calls) != 1 or _is_put_off(source, calls[0], node):
        return []
    every, path = [*ast.walk(source.tree)], path_of(calls[0].func)
    made = [n for n in every if isinstance(n, Function) and n.name == called(calls[0]) and _may_be(value(path), n)]
    if len(made) != 1:
        return []
    ends = [n for part in made[0].body for n in within(part) if isinstance(n, (ast.Return, ast.Yield, ast.YieldFrom))]
    values = [end.value for end in ends if isinstance(end, ast.Return) and end.value is not None]
    if len(ends) != 1 or len(values) != 1 or len(list(_naming(every, made[0], value))) != 1:
        return []  # somebody else may want numbers of it
    several = values[0].elts if isinstance(values[0], ast.Tuple) else []
    reads = [(part, read) for part in several or values if (read := _read(part)) is not None]
    edits += [
        source.replace(part, f"{source.bracketed(read)}.detach()".replace(_TWICE, ".detach()")) for part, read in reads
    ]
    if not several:
        return [(calls[0], _again(source, values[0], "{0}"))] if reads else []
    texts = [_again(source, part, f"{{0}}[{number}]") for number, part in enumerate(several)]
    return [(calls[0], f"({', '.join(texts)})")] if reads else []


def _naming(every: Sequence[ast.AST], function: Function, value: Callable[[str], Any]) -> Iterator[ast.AST]:
    """What may be, or find, a function: its name, ``super().step`` of a method, and a text that getattr is given."""
    for node in every:
        if isinstance(node, (ast.Name, ast.Attribute)):
            path, name = path_of(node), node.id if isinstance(node, ast.Name) else node.attr
            if name == function.name and (not path or _may_be(value(path), function)):
                yield node
        elif isinstance(node, ast.Constant) and node.value == function.name:
            yield node


def _may_be(value: Any, function: Function) -> bool:
    """Whether what a path leads to is this function, as far as it is known."""
    code = getattr(getattr(value, "__func__", value), "__code__", None)
    return value is None or (code is not None and code.co_firstlineno == first_line(function))


def _again(source: Source, part: ast.expr, name: str) -> str:
    """How the caller reads what a function has returned as it is."""
    read = _read(part)
    return name if read is None else source.text(part).replace(source.text(read), name, 1)


def _hint(node: ast.stmt) -> str:
    """A name for what a statement has computed: ``total_now`` of ``total += ...``."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    path = path_of(targets[0]) if isinstance(targets[0], ast.expr) else ""
    return f"{path.rpartition('.')[2] or 'value'}_now"
