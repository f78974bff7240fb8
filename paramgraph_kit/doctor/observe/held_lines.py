"""Lines that give a place of the program's another tensor, which graphs read, and words that write in place."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, Protocol

import torch

from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, MAKERS, defines, last_name, tree_of
from paramgraph_kit.doctor.observe.made_first import ROWS
from paramgraph_kit.doctor.observe.ran import has_run

IN_ROW = "by its number"  # what else is told of a list's entry, or a tuple's
_WRITTEN = re.compile(r"(?P<held>[^`]+?)\.copy_\((?P<new>.+)\)")
_NAME = re.compile(r"[\w.]+")
Chain = tuple[Any, ...]  # names of attributes, and the keys of entries as tuples
Running = tuple[tuple[CodeType, int], ...]  # functions, and at which lines


@dataclass(frozen=True, slots=True)
class Kind:
    """What a tensor is like."""

    shape: torch.Size
    dtype: torch.dtype

    def is_written_to(self, other: Kind) -> bool:
        """Whether ``copy_`` writes such a tensor to the other one, or to a part of it, and loses nothing of it."""
        added = len(other.shape) - len(self.shape)
        ends = zip(self.shape, other.shape[added:], strict=False)
        fits = added == 0 or (added > 0 and all(new in (1, old) for new, old in ends))
        return fits and torch.can_cast(self.dtype, other.dtype)


class _Moved(Protocol):
    """A place whose tensor was of one kind at the capture, and is of another now."""

    @property
    def then(self) -> Kind: ...
    @property
    def now(self) -> Kind: ...
    @property
    def in_part(self) -> bool: ...


def as_large(moved: _Moved, path: str, words: str) -> str:
    """Words that write in place, where what is given may be smaller than what is there, or is of another kind."""
    now, then = moved.now, moved.then
    if (ahead := len(now.shape) - len(then.shape)) > 0 and set(now.shape[:ahead]) == {1}:
        words = _with(words, f"[{', '.join('0' * ahead)}]")
        now = Kind(now.shape[ahead:], now.dtype)
    if not now.is_written_to(then):
        made = f"torch.zeros({tuple(now.shape)}, dtype={now.dtype}, device={path}.device)"
        return f"{words}, with {path} = {made} ahead of its capture: copy_() makes no other kind of tensor"
    if len(now.shape) != len(then.shape) or not moved.in_part or not then.shape:
        return words
    if any(new > old for new, old in zip(now.shape, then.shape, strict=True)):
        return f"{path} as large as it gets, made ahead of the capture: {ROWS}"
    part = ":len({0})" if len(then.shape) == 1 else "tuple(map(slice, {0}.shape))"
    if (found := _WRITTEN.fullmatch(words)) is not None:  # one line that writes one tensor
        new = found["new"] if _NAME.fullmatch(found["new"]) else "new"
        made = "" if new == found["new"] else f"new = {found['new']}; "
        return f"{made}{found['held']}[{part.format(new)}].copy_({new})"
    return words.replace(".copy_(new)", f"[{part.format('new')}].copy_(new)")


def _with(words: str, behind: str) -> str:
    """The same with something behind what is written."""
    if (found := _WRITTEN.fullmatch(words)) is None:
        return words.replace(".copy_(new)", f".copy_(new{behind})")
    new = found["new"] if _NAME.fullmatch(found["new"]) else f"({found['new']})"
    return f"{found['held']}.copy_({new}{behind})"


def given_at(chain: Chain, running: Running, ran: Collection[CodeType]) -> Iterator[tuple[CodeType, Any, str]]:
    """Lines of the functions that ran at the replay which give such a place a value, each with what is right there."""
    for code, line in running:
        tree = tree_of(code.co_filename)
        functions = [n for n in ast.walk(tree) if defines(n, code)] if tree is not None else []
        body = functions[-1:] or ([tree] if tree is not None and code.co_name == "<module>" else [])
        found = [(code, *each) for part in body for each in _lines(part, chain)]
        ahead = [each for each in found if each[1].lineno <= line]
        if found:
            yield from ahead[-1:] or found[-1:]
            return
    file = running[0][0].co_filename if running else ""
    tree = tree_of(file) if file else None
    for node in (n for n in ast.walk(tree) if isinstance(n, FUNCTIONS[:2])) if tree is not None else ():
        known = [code for code, _ in running if defines(node, code)]
        done = not ran or has_run(ran, file, node.body[0].lineno)
        if not known and done and node.name not in MAKERS and not _captures(node):
            code = running[0][0].replace(co_name=node.name)
            yield from ((code, *each) for each in _lines(node, chain))


def _captures(node: ast.AST) -> bool:
    calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(last_name(call.func) in ("graph", "capture_begin") for call in calls)


def _lines(body: ast.AST, chain: Chain) -> Iterator[tuple[ast.stmt, str]]:
    """Assignments to the place, in a function that does not itself make what is captured, and the same in place."""
    inside = {id(n) for b in ast.walk(body) if isinstance(b, ast.If) and _captures(b) for n in ast.walk(b)}
    for node in ast.walk(body):
        if id(node) in inside:
            continue
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, given = node.targets[0], ast.unparse(node.value)
            is_tuple = isinstance(node.value, (ast.Tuple, ast.List))
            if new := _in_partial(node.value, chain) if _is_place(target, chain[:-2]) else None:
                held = f"{ast.unparse(target)}.{chain[-2]}[{chain[-1][0]!r}].copy_({ast.unparse(new)})"
                has = f"hasattr({ast.unparse(target.value)}, {target.attr!r})"  # type: ignore[attr-defined]
                yield node, f"`if {has}: {held}`, and else this line as it is"
            elif _is_place(target, chain) and not is_tuple:
                yield node, f"{ast.unparse(target)}.copy_({given})"
            elif len(chain) > 2 and is_tuple and _is_place(target, chain[:-1]):
                yield node, f"for held, new in zip({ast.unparse(target)}, {given}): held.copy_(new)"
            elif _is_table(target, chain) and len(chain) > 2:
                yield node, _each_in_place(ast.unparse(target), given, [part[0] for part in chain[1:]])
            elif _is_table(target, chain):
                path = ast.unparse(target)
                pairs = f"for key, new in ({given}).items(): {path}[key].copy_(new)"
                several = f"for held, new in zip({path}, {given}): held.copy_(new)"
                yield node, several if IN_ROW in chain[-1][1:] or _is_list(node.value) else pairs
        elif isinstance(node, ast.Expr) and isinstance(call := node.value, ast.Call):
            func = call.func
            if isinstance(func, ast.Attribute) and func.attr == "update" and _is_table(func.value, chain):
                path = ast.unparse(func.value)
                given = ast.unparse(call.args[0]) if call.args else f"dict({ast.unparse(call).partition('(')[2]}"
                yield node, f"for key, new in {given}.items(): {path}[key].copy_(new)"


def _in_partial(value: ast.expr, chain: Chain) -> ast.expr | None:
    """What a line gives to a ``partial`` at the end of the way: ``new`` of ``partial(loss, weights=new)``."""
    if not isinstance(value, ast.Call) or last_name(value.func) != "partial" or chain[-2] not in ("args", "keywords"):
        return None
    given: dict[Any, ast.expr] = {i: each for i, each in enumerate(value.args[1:])}  # noqa: C416 - of both kinds
    return (given | {k.arg: k.value for k in value.keywords}).get(chain[-1][0])


def _is_list(value: ast.expr) -> bool:
    return isinstance(value, (ast.List, ast.ListComp))


def _is_place(target: ast.expr, chain: Chain) -> bool:
    """Whether a target may be the last part of the way: ``x.inputs[n]`` for ``inputs[4]``."""
    last = chain[-1] if chain else ()
    if type(last) is not tuple:
        return isinstance(target, ast.Attribute) and target.attr == last
    if not last or not isinstance(target, ast.Subscript) or isinstance(target.slice, (ast.Slice, ast.Tuple)):
        return False
    if isinstance(target.slice, ast.Constant):
        return bool(target.slice.value == last[0])
    name = next(part for part in reversed(chain) if type(part) is str)
    held = target.value
    while isinstance(held, ast.Subscript):
        held = held.value
    return last_name(held) == name


def _each_in_place(path: str, given: str, keys: list[Any]) -> str:
    """The entries of tables in a table, each written in place."""
    left, right = path, given
    rounds = list[str]()
    for number, key in enumerate(keys):
        held, new = ("held", "new") if number == len(keys) - 1 else (f"held_{number}", f"new_{number}")
        entries = "" if isinstance(key, int) else ".values()"
        rounds.append(f"for {held}, {new} in zip({left}{entries}, {right}{entries})")
        left, right = held, new
    return f"for held, new in [(held, new) {' '.join(rounds)}]: held.copy_(new)"


def _is_table(target: ast.expr, chain: Chain) -> bool:
    """Whether a target is the table that has the entry, or has the one that does."""
    if type(chain[0]) is not str or not chain[1:] or any(type(part) is not tuple for part in chain[1:]):
        return False
    return isinstance(target, (ast.Name, ast.Attribute)) and last_name(target) == chain[0]
