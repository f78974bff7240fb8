"""The user's functions with other code for a while: everything that refers to them runs the rewritten lines."""

from __future__ import annotations

import ast
import linecache
import re
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paramgraph_kit.doctor import cell
from paramgraph_kit.driver.files import REWRITTEN
from paramgraph_kit.rewrite.source.edits import Function, first_line

_PLAIN: dict[types.CodeType, types.CodeType] = {}  # by what a function runs while it is borrowed: what is written
_LINES: dict[int, list[str]] = {}  # of each way to rewrite a file, by the id of its code: equal ones go apart


class BorrowError(Exception):
    """The rewritten text is no code that could stand in a function's place."""


def compiled(file: str, lines: list[str]) -> types.CodeType:
    """The code of a rewritten file, whose lines Python can show."""
    name = f"{file}{REWRITTEN}"
    text = "".join(lines)
    _show(name, lines)
    try:
        code = compile(cell.parsed(text, name), name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise BorrowError(f"the rewritten {file} is no Python: {error}") from error
    _LINES[id(code)] = lines
    weakref.finalize(code, _LINES.pop, id(code))
    return code


def _show(name: str, lines: list[str]) -> None:
    linecache.cache[name] = (sum(map(len, lines)), None, lines, name)


def at_any_depth(
    functions: Iterable[types.FunctionType], files: Mapping[str, types.CodeType]
) -> dict[str, types.CodeType]:
    """The code of each file, by the names that it has where functions run lines that were lent once, or again."""
    plain = {file.replace(REWRITTEN, ""): code for file, code in files.items()}
    names = {function.__code__.co_filename for function in functions}
    return {name: plain[known] for name in names if (known := name.replace(REWRITTEN, "")) in plain}


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Every function that is defined in a file, in the order of the text."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from codes_in(constant)


def _made_by(line: str) -> str:
    """The name that a line for a module gives something: a variable, a class or a function."""
    kind, _, rest = line.partition(" ")
    return re.split(r"\W", rest, maxsplit=1)[0] if kind in ("class", "def") else line.partition(" = ")[0]


@contextmanager
def borrowed(
    functions: Iterable[types.FunctionType], files: dict[str, types.CodeType], made_before: dict[str, list[str]]
) -> Iterator[None]:
    """Give functions of these files the code that they have there; ``made_before`` are lines for their module.

    Raises:
        BorrowError: a function needs other variables of the function around it than it has.
    """
    kept: list[tuple[types.FunctionType, types.CodeType, Any, Any]] = []
    names: list[tuple[dict[str, Any], str, Any]] = []
    for lent in files.values():
        _show(lent.co_filename, _LINES[id(lent)])  # another way may have been tried since
    try:
        for function in functions:
            file = function.__code__.co_filename
            if file not in files:
                continue
            for line in made_before.get(file, ()):
                name = _made_by(line)
                if not any(space is function.__globals__ and name == known for space, known, _ in names):
                    names.append((function.__globals__, name, function.__globals__.get(name, names)))
                    exec(line, function.__globals__)
            code = _twin(function, files[file])
            if code is not None:
                kept.append((function, function.__code__, function.__defaults__, function.__kwdefaults__))
                _give_more(function, code)
                function.__code__ = code
        yield
    finally:
        for function, code, *defaults in kept:
            function.__code__ = code
            function.__defaults__, function.__kwdefaults__ = defaults
        for space, name, before in names:
            if before is names:
                made = space.pop(name, None)
                if isinstance(made, list):
                    made.clear()  # what was put off holds tensors of the step, and with them its graph
            else:
                space[name] = before


def _give_more(function: types.FunctionType, code: types.CodeType) -> None:
    """Parameters that the rewritten lines have more are None where nobody gives them."""
    more = code.co_argcount - function.__code__.co_argcount
    if more > 0:
        function.__defaults__ = (*(function.__defaults__ or ()), *[None] * more)
    if code.co_kwonlyargcount > function.__code__.co_kwonlyargcount:
        named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        known = function.__kwdefaults__ or {}
        function.__kwdefaults__ = {**dict.fromkeys(set(named) - {*function.__code__.co_varnames}), **known}


def _twin(function: types.FunctionType, file: types.CodeType) -> types.CodeType | None:
    """The code of the same function in a rewritten file."""
    own = function.__code__
    found = [code for code in codes_in(file) if code.co_qualname == own.co_qualname]
    if not found:
        return None
    best = min(found, key=lambda code: (_takes(code) != _takes(own), abs(code.co_firstlineno - own.co_firstlineno)))
    if set(best.co_freevars) < set(own.co_freevars):  # whoever looks at its frame comes to all of them
        best = _naming(best, {*own.co_freevars} - {*best.co_freevars})
    if best.co_freevars != own.co_freevars:
        raise BorrowError(f"{own.co_qualname} would need {best.co_freevars} of the function around it")
    return best


def _naming(code: types.CodeType, names: set[str]) -> types.CodeType:
    """A function of a rewritten file that names these variables of the function around it, too, and does the same."""
    file = code.co_filename
    tree = cell.parsed("".join(linecache.getlines(file)), file)
    for node in ast.walk(tree):
        read = ast.Tuple([ast.Name(name, ast.Load()) for name in sorted(names)], ast.Load())
        if isinstance(node, ast.Lambda) and (code.co_name, code.co_firstlineno) == ("<lambda>", node.lineno):
            node.body = ast.copy_location(ast.IfExp(ast.Constant(True), node.body, read), node.body)
        elif isinstance(node, Function) and (node.name, first_line(node)) == (code.co_name, code.co_firstlineno):
            never = ast.copy_location(ast.If(ast.Constant(False), [ast.Expr(read)], []), node.body[0])
            node.body.insert(0, never)
    whole = compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True)
    known = (code.co_qualname, code.co_firstlineno)
    found = next(
        each
        for each in codes_in(whole)
        if (each.co_qualname, each.co_firstlineno) == known and _takes(each) == _takes(code)
    )
    _PLAIN[found] = code
    return found


def as_written(function: Any) -> Any:
    """A function whose rewritten lines name fewer variables of the function around it, as the user will have it."""
    code = _PLAIN.get(function.__code__) if isinstance(function, types.FunctionType) else None
    if code is None:
        return function
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    made = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, tuple(cells[n] for n in code.co_freevars)
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _takes(code: types.CodeType) -> tuple[str, ...]:
    """The names of its parameters, by which lambdas differ."""
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def companion(function: types.FunctionType, file: types.CodeType, name: str) -> types.FunctionType | None:
    """A function that was written after ``function``, beside it."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for code in codes_in(file):
        if code.co_name == name and code.co_qualname.rpartition(".")[0] == function.__qualname__.rpartition(".")[0]:
            if not set(code.co_freevars) <= set(cells):
                return None
            return types.FunctionType(
                code, function.__globals__, name, None, tuple(cells[each] for each in code.co_freevars)
            )
    return None
