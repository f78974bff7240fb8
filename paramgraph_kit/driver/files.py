"""Whose a source file is: a library's, generated, a notebook's cell or another of the user's, and how it is shown."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import types
from contextlib import suppress
from functools import cache
from itertools import filterfalse
from pathlib import Path
from typing import Any

REWRITTEN = " (rewritten)"  # behind the name of a file whose lines are tried otherwise
OURS = str(Path(__file__).resolve().parents[1])
_PACKAGES = ("site-packages", "dist-packages")
# Without a file. Made by programs: dataclasses, namedtuple and libraries have "<string>"; the last two torch.fx and we.
# All else was typed by somebody: "<stdin>", "<python-input-3>", "<doctest page[0]>", a name of one's own for exec.
_MADE = re.compile(r"<(frozen |string>|attrs generated|decorator-gen|__array_function__|unknown|template>|lambdify|"
                   r"torch\._dynamo|eval_with_key|paramgraph |timed (exec|eval)>|magic-timeit>)")  # fmt: skip
_OF_MODULE = re.compile(r"<(frozen |eval_with_key|paramgraph )")  # whatever their global names
_CELL = re.compile(r"<ipython-input-(\d+)-|[/\\]ipykernel_\d+[/\\]\d+\.py$")
_GENERATED = re.compile(r"[/\\]([a-z2-7]{2})[/\\]c\1[a-z2-7]{40,}\.py$")  # what Inductor has written


def rewritten_once(text: str) -> str:
    """A text in which a file that was rewritten again is called rewritten once: its lines are those of the diff.

    >>> rewritten_once("train.py (rewritten) (rewritten):7")
    'train.py (rewritten):7'
    """
    while REWRITTEN * 2 in text:
        text = text.replace(REWRITTEN * 2, REWRITTEN)
    return text


def display_name(file: str) -> str:
    """``<cell 3>`` for a notebook cell, the path otherwise.

    >>> display_name("<ipython-input-7-0a1b2c>"), display_name("train.py")
    ('<cell 7>', 'train.py')
    """
    if file.endswith(REWRITTEN):
        return display_name(file.removesuffix(REWRITTEN)) + REWRITTEN
    match = _CELL.search(file)
    if match is None:
        return file
    if match[1]:
        return f"<cell {match[1]}>"
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)
    named = name_of(file) if name_of is not None else None  # ("Cell", "In[3]")
    number = re.search(r"\d+", str(named[1])) if named else None
    return f"<cell {number[0]}>" if number else "<cell>"


def is_cell(file: str) -> bool:
    """Whether a file is the cell of a notebook."""
    return bool(_CELL.search(file))


@cache
def is_generated(file: str) -> bool:
    """Whether Inductor has written a file."""
    return bool(_GENERATED.search(file))


@cache
def is_library(file: str) -> bool:
    """Whether a file is torch's, an installed package's, Python's own, or ours."""
    if is_cell(file):
        return False
    if file.startswith("<"):
        return bool(_MADE.match(file)) and not (file == "<string>" and _is_typed())
    if is_generated(file):
        return True
    return file.startswith(_library_roots()) or bool(package_of(file))  # the first is quicker: there are thousands


@cache
def package_of(file: str) -> str:
    """The installed package that a file belongs to, "" if it is none's.

    They lie in a folder called site-packages, or wherever ``pip install --target`` has put them: there pip notes what
    it has installed, and what else lies in the folder is the user's.

    >>> package_of("/usr/lib/python3/site-packages/tqdm/std.py"), package_of("/home/ada/train.py")
    ('tqdm', '')
    """
    parts = Path(file).parts
    for n in reversed(range(1, len(parts))):
        if parts[n - 1] in _PACKAGES:
            return parts[n]
    on_path = {os.path.abspath(each) for each in sys.path}
    for n in reversed(range(1, len(parts))):
        folder = str(Path(*parts[:n]))
        if folder in on_path and parts[n] in _installed(folder):
            return parts[n]
    return ""


@cache
def _installed(folder: str) -> frozenset[str]:
    """The files and packages that pip has put there."""
    found: set[str] = set()
    for record in Path(folder).glob("*.dist-info/RECORD"):
        with suppress(OSError, UnicodeDecodeError):
            found |= {re.split(r"[/\\,]", line, maxsplit=1)[0] for line in record.read_text("utf-8").splitlines()}
    return frozenset(found)


_LIBRARIES = set[str]()  # names of modules that are not the user's: there are thousands, and each call asks


def modules_of_users() -> list[types.ModuleType]:
    """The modules that are the user's: of a file, or of none, as a session's."""
    others = sorted(filterfalse(_LIBRARIES.__contains__, [*sys.modules]))
    named = [(name, m) for name in others if isinstance(m := sys.modules.get(name), types.ModuleType)]
    libraries = {name for name, m in named if not _is_users(name, vars(m).get("__file__") or "")}
    _LIBRARIES.update(libraries)
    return [m for name, m in named if name not in libraries]


def _is_users(name: str, file: str) -> bool:
    return not (name in sys.builtin_module_names or name.partition(".")[0] in ("torch", "cuda") or is_library(file))


def is_library_code(code: types.CodeType, space: dict[str, Any]) -> bool:
    """Whether code is a library's: that without a file is whose global names it has, so exec's as well."""
    file = code.co_filename
    if not file.startswith("<") or is_cell(file) or _OF_MODULE.match(file):
        return is_library(file)
    if "_tuple_new" in space or _is_guard(code, space):  # how namedtuples are made
        return True
    module = space.get("__file__")
    return isinstance(module, str) and is_library(module)


def _is_guard(code: types.CodeType, space: dict[str, Any]) -> bool:
    """Whether code is what Dynamo asks before a call: it has the user's global names in a dict called G."""
    names = space.get("G")
    made = code.co_filename == "<string>" and code.co_name in ("guard", "___make_guard_fn")
    return made and space.keys() <= {"G", "__builtins__"} and isinstance(names, dict) and "__builtins__" in names


@cache
def _is_typed() -> bool:
    """Whether the program itself is a string: ``python -c``."""
    return sys.argv[:1] == ["-c"] and not hasattr(sys.modules.get("__main__"), "__file__")


@cache
def _library_roots() -> tuple[str, ...]:
    paths = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")]
    paths.append(OURS)
    torch = sys.modules.get("torch")
    if torch is not None and torch.__file__:
        paths.append(str(Path(torch.__file__).parent))
    return tuple(path.rstrip("/\\") + ("\\" if "\\" in path else "/") for path in paths)
