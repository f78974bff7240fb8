"""Arguments that a function's own capture reads as they are, and of which a call that only replays reads nothing."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import elements_of, last_name, nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.filled_anew import copied_ahead, names_read
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.kept_as_given import kept_as_given
from paramgraph_kit.doctor.observe.named_again import kept_with_graph
from paramgraph_kit.doctor.observe.own_managers import captured_in
from paramgraph_kit.doctor.observe.own_regions import Region, graphs_at
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.trace.model import Failure, Frame

_COPIES = ("clone", "detach", "contiguous")
_REPLAYS = re.compile(r"(?P<graph>[\w.]+(?:\[[^\]]*\])?)\.replay\(\)")
_AHEAD = (
    "`held.copy_(new)`, where `held` is a clone of the first one: it is made ahead of the capture, and of what warms "
    "it up, which are given it in place of that one, and it stays with the graph"
)
UNREAD = "this call does not read it, and the graph has what was there at its capture"


def captured_alone(
    given: Iterable[tuple[str, Any]],
    seen: Collection[int],
    touched: Collection[int],
    gone: Collection[int],
    at: Place,
    before: Collection[Region],
) -> list[Failure]:
    """Told of a call whose graph has been captured before, from the lines of its function.

    ``seen``: memory that calls read, or write; ``touched``: where what the graphs read and write lies; ``gone``: where
    that was freed; ``before``: the captures of its graphs, which may stand in a function that it hands the argument to.
    """
    code = at.user[0] if at.user is not None else None
    if code is None or not touched:
        return []
    names = [name for name in code.co_varnames[: code.co_argcount] if name != "self"]
    nodes = [*nodes_of(code)]
    stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    inside = [n for block in captured_in(code) for part in block for n in ast.walk(part)]
    read = {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - stored
    handed = {name for region in before if region.code is not code for name in _handed_to(region, code)} - stored
    found = []
    for said, value in given:
        _, _, number = said.partition("argument ")
        name = names[int(number) - 1] if number.isdigit() and int(number) <= len(names) else said
        if name not in read | handed or not is_a(value, torch.Tensor) or storage_key(value) in {0, *seen}:
            continue
        is_there = value.untyped_storage().data_ptr() in touched  # the caller writes what comes into it
        if not is_there or (name in handed and value.untyped_storage().data_ptr() in gone):
            found.append(said)
    return [not_read(found, at, before)] if found else []


def not_read(
    said: list[str],
    at: Place,
    regions: Collection[Region],
    told: Iterable[Failure] = (),
    called: Mapping[str, str] | None = None,
) -> Failure:
    """What is told of arguments at a replay, with the copy to the tensor that their own line has made for one.

    Args:
        said: what they are called in the message.
        at: the replay.
        regions: the captures of the graphs.
        told: what may say already what is to be copied there.
        called: what the function that is examined calls them.
    """
    failure = BY_ID["stale-input"].failure(f"{', '.join(said)}: {UNREAD}", at.frame())
    code = at.user[0] if at.user is not None else None
    if code is None or failure.frame is None:
        return failure
    own, line = [name for name in code.co_varnames[: code.co_argcount] if name != "self"], failure.frame.text
    parts = [each.partition("argument ")[2] for each in said]
    names = [
        own[int(n) - 1] if n.isdigit() and int(n) <= len(own) else each for n, each in zip(parts, said, strict=True)
    ]
    kept = next((words for region in regions if (words := _kept_for(names, region, code, line))), "")
    if len(names) == 1:
        (name,) = names
        places = [*_unpacked(code, name, failure.frame.line)] if name in own else []
        copied = {copied_ahead(each.fix) for each in told if name in re.findall(r"\w+", copied_ahead(each.fix))}
        if len(places) == 1:
            kept = f"{places[0]}.copy_({name}); {line}"
        elif len(copied) == 1:
            kept = f"{copied.pop()}; {line}"
        elif code in {region.code for region in regions}:
            kept = _kept_by_name(name, code, failure.frame.line, line)
    if kept:
        return replace(failure, fix=f"before  {line}\nafter   {kept}")
    outer = [(called or {}).get(each, each) for each in said]
    words = next((words for region in regions if (words := _by_keyword(outer, region, at, failure.frame))), "")
    if words or _region_of(regions, code):
        return replace(failure, fix=words) if words else failure
    return replace(failure, fix=f"before  {line}\nafter   ahead of this line {_AHEAD}") if regions else failure


def _region_of(regions: Iterable[Region], code: CodeType) -> Region | None:
    """The capture that stands in a function itself."""
    return next((region for region in regions if region.code is code), None)


def _by_keyword(names: list[str], region: Region, at: Place, replay: Frame) -> str:
    """Words for arguments that come to a replay in its keywords, and to its capture in a dictionary of them."""
    code = at.user[0] if at.user is not None else None
    if code is None or not code.co_flags & inspect.CO_VARKEYWORDS:
        return ""
    known = code.co_argcount + code.co_kwonlyargcount
    own, rest = code.co_varnames[:known], code.co_varnames[known + bool(code.co_flags & inspect.CO_VARARGS)]
    calls = [n for each, _ in at.stack for n in nodes_of(each) if isinstance(n, ast.Call)]
    handed = [(k.value.id, k.arg) for n in calls for k in n.keywords if isinstance(k.value, ast.Name) and k.arg]
    paths = dict[str, str]()
    for name in names:
        keys = {key for given, key in handed if given == name} or {name}
        held = {**region.gone, **region.names}
        tables = [each for each, value in held.items() if type(value) is dict and not keys.isdisjoint(value)]
        if len(keys) != 1 or len(tables) != 1 or not keys.isdisjoint(own):
            return ""
        (key,) = keys
        paths[f"{rest}[{key!r}]"] = f"{tables[0]}[{key!r}]"
    return kept_with_graph(paths, region, replay)


def _handed_to(region: Region, code: CodeType) -> dict[str, str]:
    """The arguments of a function that reach its capture as they are, and what the one that captures calls them."""
    own, taken = region.code.co_varnames[: region.code.co_argcount], _taken(region)
    found = dict[str, str]()
    for call in (n for n in nodes_of(code) if isinstance(n, ast.Call) and last_name(n.func) == region.code.co_name):
        names = own[isinstance(call.func, ast.Attribute) and own[:1] == ("self",) :]
        pairs = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
        found |= {value.id: name for name, value in pairs if name in taken and isinstance(value, ast.Name)}
    return found


def _taken(region: Region) -> set[str]:
    """The arguments of a function that its capture reads as they came."""
    inner = [n for n in nodes_of(region.code) if isinstance(n, ast.Name)]
    stored = {n.id for n in inner if isinstance(n.ctx, ast.Store)}
    read = {name for statement in region.body for name in names_read(statement)}
    return (read & {*region.code.co_varnames[: region.code.co_argcount]}) - stored - {"self"}


def _kept_for(names: list[str], region: Region, code: CodeType, line: str) -> str:
    """What keeps tensors of a capture with its graph, and what copies to them ahead of the replay; "" if not known."""
    if region.code is code:  # whose own lines say more
        return ""
    handed, graphs, replayed = _handed_to(region, code), graphs_at(region), _REPLAYS.search(line)
    own = [handed.get(name, "") for name in names]
    if not all(own) or not graphs or replayed is None or any(_has_parts(region, each) for each in own):
        return ""
    made, kept = (
        "; ".join(f"{each} = {each}.clone()" for each in own),
        f"({', '.join(own)}{',' if len(own) == 1 else ''})",
    )
    copies = "; ".join(f"{replayed['graph']}.reads[{at}].copy_({name})" for at, name in enumerate(names))
    ahead = f"`{made}` ahead of the capture at line {region.line}, and of what warms it up"
    return f"{copies}; {line}, and {ahead}, with `{graphs[-1]}.reads = {kept}` behind it"


def _kept_by_name(name: str, code: CodeType, replayed: int, line: str) -> str:
    """The same of what the function keeps as an entry of a variable that is given back ahead of each replay."""
    nodes = [n for n in nodes_of(code) if isinstance(n, ast.Assign) and isinstance(n.targets[0], (ast.Tuple, ast.List))]
    for each in (each for each in kept_as_given(code, replayed) if each.name == name):
        held, entry, _ = each.path.partition("[")
        there = (n for n in nodes if each.line < n.lineno < replayed)
        if entry and any(last_name(part) == held for n in there for part in elements_of(n.targets[0])):
            return f"{each.path}.copy_({name}); {line}, and {each.cloned}"
    return ""


def _has_parts(region: Region, name: str) -> bool:
    """Whether what is captured reads entries of it by their names: ``batch["ids"]``, ``net(**batch)``."""
    if type(region.gone.get(name, region.names.get(name))) in (dict, list, tuple):
        return True
    nodes = [n for statement in region.body for n in ast.walk(statement)]
    by_name = [n.value for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant)]
    spread = [n.value for n in nodes if isinstance(n, ast.Starred) or (isinstance(n, ast.keyword) and n.arg is None)]
    strings = [n for n in by_name if isinstance(n, ast.Name)]
    return any(isinstance(each, ast.Name) and each.id == name for each in (*strings, *spread))


def _unpacked(code: CodeType, name: str, line: int) -> Iterator[str]:
    """Names that a copy of an argument has where it is captured, and that a line gives back ahead of each replay."""
    assigns = [n for n in nodes_of(code) if isinstance(n, ast.Assign) and len(n.targets) == 1 and n.lineno < line]
    for node in (n for n in assigns if isinstance(n.targets[0], ast.Name)):
        made = node.targets[0].id  # type: ignore[attr-defined]
        value: ast.expr = node.value
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _COPIES:
            value = value.func.value
        given_back = (n for n in assigns if n.lineno > node.lineno and isinstance(n.targets[0], (ast.Tuple, ast.List)))
        parts = (part.id for n in given_back for part in elements_of(n.targets[0]) if isinstance(part, ast.Name))
        if value is not node.value and isinstance(value, ast.Name) and value.id == name and made in parts:
            yield made
