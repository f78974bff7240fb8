"""Advice for a tensor in whose place a step puts another one: written into the one that a graph reads."""

from __future__ import annotations

import ast
from dataclasses import replace

import torch

from paramgraph_kit.doctor.number_kinds import NUMBERS
from paramgraph_kit.rewrite.advised.sizes.cut_by_helpers import is_last
from paramgraph_kit.rewrite.advised.state.kept_copies import kept_copies
from paramgraph_kit.rewrite.expressions.state.set_elsewhere import kept_by_name, lines_that_set
from paramgraph_kit.rewrite.expressions.state.shifted import moved_in_two
from paramgraph_kit.rewrite.expressions.state.unpacked import run_for, write_each
from paramgraph_kit.rewrite.source.edits import Function, heads, on_one_line, path_of, within
from paramgraph_kit.rewrite.source.moving import arguments_of
from paramgraph_kit.rewrite.source.place import Place, called, fresh

_WHY = "a graph goes on with the tensor that it was captured with"
_GROWS = ("cat", "concat", "append", "stack", "pad")


def written_in_place(place: Place) -> str:
    """``self.mean = b * self.mean + c * x``, and ``self.means[k] = x if old is None else b * old + c * x``."""
    function = place.source.function_of(place.statement)
    if place.failure.code != "stale-input" or function is None:
        return ""
    every = [n for part in function.body for n in within(part) if isinstance(n, ast.Assign) and len(n.targets) == 1]
    read = {place.text(n) for n in heads(place.statement) if isinstance(n, (ast.Attribute, ast.Subscript))}
    found = dict[str, str]()
    for node in every:
        target, value = node.targets[0], node.value
        if not found and isinstance(target, ast.Tuple) and (told := _among_several(place, node, target, read)):
            return told
        of_table = isinstance(target, ast.Subscript) and not isinstance(target.slice, (ast.Slice, ast.Tuple))
        kept = isinstance(target, ast.Attribute) or (of_table and "." in path_of(target.value))  # type: ignore[attr-defined]
        kept |= of_table and _is_kept_outside(place, function, target)  # type: ignore[arg-type]
        if not kept or place.text(target) not in read or type(place.value(place.text(target))) in NUMBERS:
            continue
        if any(isinstance(n, ast.Call) and called(n) in _GROWS for n in ast.walk(value)):
            continue
        if _begins(place, node, place.text(target)) and any(_is_set(place, n, target) for n in every if n is not node):
            continue  # where there is none yet
        if told := _lines(place, node, target, value):
            told += "".join(
                f"; and in line {n.lineno} `{place.text(target)} = {place.source.bracketed(n.value)}.clone()`"
                for n in every
                if n is not node and _is_set(place, n, target) and _begins(place, n, place.text(target))
            )
            found.setdefault(place.text(target), told + _kept_apart(place, every, node, place.text(target)))
    return "; and ".join(found.values())


def _is_set(place: Place, node: ast.Assign, target: ast.expr) -> bool:
    return place.text(node.targets[0]) == place.text(target)


def _begins(place: Place, node: ast.Assign, path: str) -> bool:
    """Whether a line stands where there is nothing yet: ``if self.ema is None: self.ema = loss``."""
    for above in place.source.above(node):
        test = above.test if isinstance(above, ast.If) else None
        if not isinstance(above, ast.If) or not isinstance(test, ast.Compare) or place.text(test.left) != path:
            continue
        part = {ast.Is: above.body, ast.IsNot: above.orelse}.get(type(test.ops[0]), [])
        if any(node is n for each in part for n in ast.walk(each)):
            return True
    return False


def _is_kept_outside(place: Place, function: Function, target: ast.Subscript) -> bool:
    """``state["h"]``, of a dictionary that is the file's or is given."""
    names = (path_of(target.value),) if isinstance(target.slice, ast.Constant) else ()
    return any(name and (not place.is_local(name) or name in arguments_of(function)) for name in names)


def _among_several(place: Place, node: ast.Assign, target: ast.Tuple, read: set[str]) -> str:
    """``self.force, e = forces(self.pos)``: a name of the function's own takes what is then written."""
    names, copies, taken = list[str](), list[str](), place.taken
    states = {path for n in target.elts if isinstance(place.value(path := path_of(n)), torch.Tensor)}
    states = read | states if read & {*map(place.text, target.elts)} else read  # another line reads the others
    for each in target.elts:
        names.append(place.text(each))
        if isinstance(each, ast.Attribute) and names[-1] in states:
            path, names[-1] = names[-1], fresh(f"{each.attr}_new", taken | {*names})
            copies.append(f"`{path}.copy_({names[-1]})`")
    given = node.value.elts if isinstance(node.value, ast.Tuple) else []
    if any(place.text(each) in read for each in given):
        return ""  # two that are exchanged: what is copied first would be lost
    if not copies or any(isinstance(n, ast.Call) and called(n) in _GROWS for n in ast.walk(node.value)):
        return ""
    lines = f"`{', '.join(names)} = {place.text(node.value)}` and {' and '.join(copies)}"
    return f"{lines} for line {node.lineno}, `{place.text(node)}`: {_WHY}"


def _kept_apart(place: Place, every: list[ast.Assign], node: ast.Assign, path: str) -> str:
    """What has the tensor by another name, and is read when it is another one: ``old = self.mean``."""
    function = place.source.function_of(node)
    parts = [n for part in (function.body if function is not None else ()) for n in within(part)]
    later = {n.id for n in parts if isinstance(n, ast.Name) and n.lineno > (node.end_lineno or 0)}
    alike = [n for n in every if n.lineno < node.lineno and place.text(n.value) == path]
    texts = [f"`{place.text(n)}.clone()` in line {n.lineno}" for n in alike if path_of(n.targets[0]) in later]
    return f"; and {', '.join(texts)}, which is read behind it" if texts else ""


def _moved_on(place: Place, node: ast.Assign, path: str) -> str:
    """``past[1:] = past[:-1]`` with ``past[0] = x`` behind it: copies must not leave two places one tensor."""
    block = place.source.block_of(node)
    before = block[block.index(node) - 1] if node in block[1:] else node
    both = moved_in_two(place, before, path) if path else None
    if both is None:
        return ""
    held, new = (fresh(word, place.taken) for word in ("held", "new"))
    return (
        f"`for {held}, {new} in zip({path}, [each.clone() for each in {both[1]}], strict=True): {held}.copy_({new})` "
        f"for lines {before.lineno} and {node.lineno}, as its tensors stay and their numbers move: {_WHY}"
    )


def _lines(place: Place, node: ast.Assign, target: ast.expr, value: ast.expr) -> str:
    path, why = place.text(target), _WHY
    if isinstance(target, ast.Subscript) and (moved := _moved_on(place, node, path_of(target.value))):
        return moved
    if not isinstance(value, ast.IfExp) and (each := _each_copied(place, target, value)):
        return f"`{each}` for line {node.lineno}, `{place.text(node)}`, in two lines: {why}"
    if not isinstance(value, ast.IfExp):
        return f"`{path}.copy_({place.text(value)})` for line {node.lineno}, `{place.text(node)}`: {why}"
    test = value.test.left if isinstance(value.test, ast.Compare) and len(value.test.ops) == 1 else None
    first, later = value.body, value.orelse
    if test is None or not isinstance(value.test, ast.Compare):
        return ""
    if isinstance(value.test.ops[0], ast.IsNot):
        first, later = later, first
    elif not isinstance(value.test.ops[0], ast.Is):
        return ""
    asked, begun = place.text(test), place.source.bracketed(first)
    return (
        f"`if {asked} is None: {path} = {begun}.clone()` and `else: {path}.copy_({place.text(later)})` for line "
        f"{node.lineno}, with a call ahead of the capture that begins each: {why}"
    )


def _each_copied(place: Place, target: ast.expr, value: ast.expr) -> str:
    """What writes each tensor of a tuple, a list or a dictionary; "" for a tensor."""
    path, new = place.text(target), on_one_line(place.text(value))
    if isinstance(value, (ast.Dict, ast.DictComp)) or _is_a_table(place.value(path)):
        given = new if isinstance(value, (ast.Dict, ast.DictComp, ast.Call)) else f"({new})"
        return f"for key, new in {given}.items(): {path}[key].copy_(new)"
    return f"for old, new in zip({path}, {new}): old.copy_(new)" if _holds_several(place, target, value) else ""


def _is_a_table(held: object) -> bool:
    return isinstance(held, dict) and bool(held) and all(isinstance(each, torch.Tensor) for each in held.values())


def _holds_several(place: Place, target: ast.expr, value: ast.expr) -> bool:
    """Whether a name holds a tuple, or a list, of tensors: ``self.hidden = (h, c)``."""
    held = place.attributes.get(target.attr) if isinstance(target, ast.Attribute) else None
    several = isinstance(held, (tuple, list)) and all(isinstance(each, torch.Tensor) for each in held)
    return several or isinstance(value, (ast.Tuple, ast.List))


def set_by_others(place: Place) -> str:
    """A line that reads what other lines give another tensor: each of those has to write into the first."""
    if place.failure.code != "stale-input":
        return ""
    lines = lines_that_set(place.source, place.failure, place.entry)
    if any(_is_of_another_size(place, n) for n in lines):
        return ""
    told = [_of_several(place, n) if isinstance(n.targets[0], ast.Tuple) else _of_one(place, n) for n in lines]
    return f"stays as it is, where {' and '.join(told)}, into the tensor that it reads" if all((told, *told)) else ""


def _is_of_another_size(place: Place, node: ast.Assign) -> bool:
    """``self.k = self.k[:, -n:]``, of a window that another line lets grow, which no copy brings into the first."""
    part, path = node.value, place.text(node.targets[0])
    return isinstance(part, ast.Subscript) and place.text(part.value) == path and any(map(is_last, ast.walk(part)))


def _of_one(place: Place, node: ast.Assign) -> str:
    """One line that writes, and those that keep the tensor by a name, which would be written, too."""
    told = [f"line {n.lineno} becomes `{place.text(n)}.clone()`" for n in kept_by_name(place, node)]
    into = f"{place.text(node.targets[0])}.copy_({on_one_line(place.text(node.value))})"
    into = _each_copied(place, node.targets[0], node.value) or into
    return " and ".join([*told, f"line {node.lineno} becomes `{into}`"])


def _of_several(place: Place, node: ast.Assign) -> str:
    """The same of a line that gives others their values, too; "" where what it calls may make them larger."""
    parts = (n for part in run_for(place.source, node.value) for n in ast.walk(part))
    function = place.source.function_of(node)
    if function is None or any(isinstance(n, ast.Call) and called(n) in _GROWS for n in parts):
        return ""
    edits = write_each(
        replace(place, statement=node),
        function,
        node,
        {path_of(n) for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute))},
    )
    lines = (f"`{line.strip()}`" for each in edits for line in each.text.splitlines())
    return f"line {node.lineno} becomes {', '.join(lines)}" if edits else ""


KEPT = (kept_copies, written_in_place, set_by_others)
