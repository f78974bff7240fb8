"""What is set or written by another name than an expression's, or in another file of the user's.

``globals()["w"] = 3``, ``setattr(cfg, "w", 3)``, ``q = p`` and then ``q[0] = 3``, ``train(table)`` whose lines write
what they are given, ``import settings as s; s.w = 3`` in a program that imports this one, a notebook's other cells.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from types import ModuleType

from paramgraph_kit.driver.files import is_cell, is_library
from paramgraph_kit.rewrite.source.edits import Function, Source, path_of
from paramgraph_kit.rewrite.source.place import called

Aliases = set[tuple[Function | None, str]]  # with the function that has the name, None outside of all
_MOST = 200  # files of the user's that are looked through


def is_of_library(value: object) -> bool:
    """Whether something is a module that no program of the user's sets anything in."""
    file = getattr(value, "__file__", None)
    return isinstance(value, ModuleType) and (file is None or is_library(file))


def aliases(source: Source, names: Collection[str]) -> Aliases:
    """Other names of what has these: of ``q = p``, and arguments of the file's functions that are given it."""
    functions = {n.name: n for n in ast.walk(source.tree) if isinstance(n, Function)}
    found, wanted = Aliases(), {*names}
    for _ in range(3):  # of an alias
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Assign) and _last(node.value) in wanted:
                found |= {(source.function_of(node), t.id) for t in node.targets if isinstance(t, ast.Name)}
            to = functions.get(called(node)) if isinstance(node, ast.Call) else None
            if to is None or not isinstance(node, ast.Call):
                continue
            arguments = [each.arg for each in (*to.args.posonlyargs, *to.args.args)]
            arguments = arguments[1:] if arguments[:1] == ["self"] else arguments
            found |= {(to, name) for name, given in zip(arguments, node.args, strict=False) if _last(given) in wanted}
            found |= {(to, each.arg) for each in node.keywords if each.arg and _last(each.value) in wanted}
        wanted |= {name for _, name in found}
    return found


def _last(node: ast.expr) -> str:
    return path_of(node).rpartition(".")[2] if isinstance(node, (ast.Name, ast.Attribute)) else ""


def sets_by_text(node: ast.AST, names: Collection[str]) -> bool:
    """``globals()["w"] = 3``, ``setattr(cfg, "w", 3)`` and ``cfg.__dict__.update(w=3)``."""
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        key = node.slice
        return _is_of_names(node.value) and (not isinstance(key, ast.Constant) or key.value in names)
    if not isinstance(node, ast.Call):
        return False
    if called(node) == "setattr" and len(node.args) == 3:
        key = node.args[1]
        return not isinstance(key, ast.Constant) or key.value in names
    if not isinstance(node.func, ast.Attribute) or node.func.attr != "update" or not _is_of_names(node.func.value):
        return False
    given = {option.arg for option in node.keywords}
    return bool(node.args) or None in given or bool(given & {*names})


def _is_of_names(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("globals", "vars")
    return isinstance(node, ast.Attribute) and node.attr == "__dict__"


def is_set_in_other_files(
    source: Source, names: Collection[str], keys: Collection[object], modules: Collection[str]
) -> bool:
    """Whether another file of the user's that names this one or ``modules``, or another cell, sets any of these."""
    return any(
        _sets(node, other.function_of(node), names, keys)
        for other in _others(source, names, keys, {Path(source.file).stem, *modules})
        for node in ast.walk(other.tree)
        if not isinstance(node, ast.Module)
    )


def _sets(node: ast.AST, function: Function | None, names: Collection[str], keys: Collection[object]) -> bool:
    if sets_by_text(node, names) or (isinstance(node, ast.Global) and {*node.names} & {*names}):
        return True
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        return node.attr in names and (function is None or function.name != "__init__")
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        written = _last(node.value) in names
        return written or (isinstance(node.slice, ast.Constant) and node.slice.value in keys)
    return False


def _others(
    source: Source, names: Collection[str], keys: Collection[object], stems: Collection[str]
) -> Iterator[Source]:
    words = [str(each) for each in (*names, *keys)]
    if not words:
        return
    sought, own = (re.compile(r"\b(" + "|".join(map(re.escape, each)) + r")\b") for each in (words, sorted(stems)))
    for file in _files(source):
        text = "".join(linecache.getlines(file))
        known = is_cell(file) or Path(file).stem in stems
        if not (known or own.search(text)) or not sought.search(text) or (other := Source.of(file)) is None:
            continue
        if known or _imports(other, stems):
            yield other


def _imports(source: Source, stems: Collection[str]) -> bool:
    """Whether a file imports any of these modules, or names one as ``sys.modules["settings"]`` does."""
    named = set[str]()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            named |= {part for each in node.names for part in each.name.split(".")}
        elif isinstance(node, ast.ImportFrom):
            held = getattr(sys.modules.get(node.module or ""), "__dict__", {})  # whose functions may have such a name
            named |= {each.name for each in node.names if isinstance(held.get(each.name, sys), ModuleType)}
            named |= {*(node.module or "").split(".")}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named.add(node.value.rpartition(".")[2])
    return bool(named & {*stems})


def _files(source: Source) -> list[str]:
    if is_cell(source.file):
        return [file for file in list(linecache.cache) if is_cell(file) and file != source.file][-_MOST:]
    found = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    own = (file for file in found if isinstance(file, str) and file.endswith(".py") and not is_library(file))
    return [file for file in dict.fromkeys(own) if file != source.file][:_MOST]
