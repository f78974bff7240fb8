"""Loops that replay a graph for each entry of something, of which the capture was given one: ``self.ts[0]``.

``for t in self.ts: self.graph.replay()`` computes the first step again and again. The names of such a loop are read by
nothing in it, and name what the capture took an entry of, or what the function that it calls takes.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, elements_of, every, last_name, nodes_of, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.loop_elements import rounds_of
from paramgraph_kit.doctor.observe.names_read import tells
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.trace.model import Failure

_COUNTS = ("i", "j", "k", "n", "_")  # names of rounds that mean nothing
_SAID = "it is given {what}, and the loop of line {line} replays its graph for each {names}, which nothing there reads"
_AFTER = (
    "a graph for each `{key}`: in the loop of line {line}, ahead of its replay, `if {key} not in graphs:` a new "
    "capture, which is given {given}, goes to `graphs[{key}]` with its results, and that one is replayed; or, where it "
    "only computes with {them}, a tensor of each that the capture is given, which `fill_()` gives the round's number "
    "ahead of each replay()"
)


def given_one_of_each(region: Region) -> Iterator[Failure]:
    """What a capture is given of something that a loop around its replays goes through in vain."""
    tree = tree_of(region.code.co_filename)
    calls = [n for s in region.body for n in ast.walk(s) if isinstance(n, ast.Call)]
    if tree is None or not any(map(_is_fixed, (each for call in calls for _, each in _arguments(call, tree)))):
        return
    replays = {"replay", *(n.name for n in every(tree) if isinstance(n, FUNCTIONS[:2]) and _calls(n, {"replay"}))}
    for loop in (n for n in every(tree) if isinstance(n, ast.For) and _calls(n, replays)):
        if _captures(loop, region):
            continue
        read = _read_in(loop.body)
        over = [(name.id, each) for name, each in _names(loop) if name.id not in read]
        for call in calls:
            taken = {}
            for parameter, value in _arguments(call, tree):
                names = [name for name, each in over if _is_one_of(value, each) or (name == parameter not in _COUNTS)]
                if _is_fixed(value) and names:
                    taken[parameter if parameter in names else names[0]] = ast.unparse(value)
            if any(_goes_through(loop.iter, value) for value in taken.values()) or _are_called_so(taken, call, tree):
                yield _told(region, call, loop, taken)
                return


def _told(region: Region, call: ast.Call, loop: ast.For, taken: dict[str, str]) -> Failure:
    names = [*taken]
    key = names[0] if len(names) == 1 else f"({', '.join(names)})"
    said = _SAID.format(what=_listed(taken.values()), line=loop.lineno, names=_listed(names))
    given = " and ".join(f"`{name}` for `{value}`" for name, value in taken.items())
    after = _AFTER.format(key=key, line=loop.lineno, given=given, them="it" if len(names) == 1 else "them")
    frame = frame_at(region.code, call.lineno)
    return replace(BY_ID["scalar-frozen"].failure(said, frame), fix=f"before  {frame.text}\nafter   {after}")


def _listed(values: Iterable[str]) -> str:
    return " and ".join(f"`{each}`" for each in values)


def _arguments(call: ast.Call, tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """What a call hands over, with the names that the function of the file has for it, if it is one of those."""
    found = [n for n in every(tree) if isinstance(n, FUNCTIONS[:2]) and n.name == last_name(call.func)]
    own = [each.arg for each in found[0].args.args] if len(found) == 1 else []
    own = own[1:] if own[:1] == ["self"] else own
    plain = not any(isinstance(each, ast.Starred) for each in call.args)
    for number, value in enumerate(call.args):
        yield (own[number] if plain and number < len(own) else ""), value
    yield from ((each.arg or "", each.value) for each in call.keywords)


def _is_fixed(value: ast.expr) -> bool:
    """A number as it is, or an entry at a place that is one."""
    place = value.slice if isinstance(value, ast.Subscript) else value
    place = place.operand if isinstance(place, ast.UnaryOp) else place
    return isinstance(place, ast.Constant) and type(place.value) in (int, float)


def _is_one_of(value: ast.expr, whole: ast.expr) -> bool:
    return isinstance(value, ast.Subscript) and _goes_through(whole, ast.unparse(value))


def _goes_through(whole: ast.expr, entry: str) -> bool:
    """Whether an expression names what an entry, as it is written, is one of."""
    path = entry.rpartition("[")[0]
    return bool(path) and any(
        ast.unparse(n) == path for n in ast.walk(whole) if isinstance(n, (ast.Name, ast.Attribute))
    )


def _are_called_so(taken: dict[str, str], call: ast.Call, tree: ast.Module) -> bool:
    """Whether the function takes numbers by the very names that the loop has for them."""
    return any(parameter in taken for parameter, _ in _arguments(call, tree))


def _names(loop: ast.For) -> Iterator[tuple[ast.Name, ast.expr]]:
    """The names of a loop, each with what it goes through."""
    for target, over in rounds_of(loop.target, loop.iter):
        yield from ((each, over) for each in elements_of(target) if isinstance(each, ast.Name))


def _calls(node: ast.AST, names: Collection[str]) -> bool:
    return any(isinstance(n, ast.Call) and last_name(n.func) in names for n in ast.walk(node))


def _captures(loop: ast.For, region: Region) -> bool:
    """Whether each round captures, so that each has a graph of its own."""
    return loop in nodes_of(region.code) and loop.lineno <= region.line <= (loop.end_lineno or 0)


def _read_in(body: list[ast.stmt]) -> set[str]:
    """Names that lines read, but for those that only tell."""
    found = set[str]()
    for statement in body:
        inner = [each for name in ("body", "orelse") for each in getattr(statement, name, ())]
        heads = [each for each in ast.iter_child_nodes(statement) if each not in inner]
        told = isinstance(statement, ast.Expr) and tells(statement.value)
        nodes = (n for each in heads for n in ast.walk(each)) if not told else ()
        found |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        found |= _read_in([each for each in inner if isinstance(each, ast.stmt)])
    return found
