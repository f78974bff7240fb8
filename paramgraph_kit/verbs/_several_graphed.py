"""What is told where several objects of one class are graphed: what a launch reads is each one's own.

A diff is proved for one of them. Where it makes a tensor for all, the backward pass of one would read what another was
given behind it.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paramgraph_kit.doctor.diagnosis import Diagnosis
    from paramgraph_kit.doctor.observe.own_regions import Region

_MADE = re.compile(r"^\+(\w+) = (\w.*)$", re.MULTILINE)  # at the top of the file
_HUNK = re.compile(r"^@@.*$", re.MULTILINE)


def of_several(part: Diagnosis, region: Region, regions: Iterable[Region]) -> None:
    """Words with tensors of each object's own take the place of a diff that has one for all."""
    owners = {id(_owner(each)) for each in regions if _code(each) is _code(region) and _owner(each) is not None}
    fix = part.fix
    if len(owners) <= 1 or fix is None or not (made := dict(_MADE.findall(fix.diff))):
        return
    name = re.compile(rf"(?<![\w.])({'|'.join(made)})\b")
    kind = type(_owner(region)).__name__
    init = ", ".join(f"`self.{each} = {value}`" for each, value in made.items())
    body = [line for hunk in _HUNK.split(fix.diff)[1:] for line in _written(hunk, made)]
    code = _in_one_line("\n".join(name.sub(r"self.\1", line) for line in body))
    own = f"several of `{kind}` are graphed, so each has its own: {init} at the end of its `__init__`"
    after = f"{own}; then {code}"
    part.failures = tuple(
        replace(f, fix=f"{f.fix.partition(chr(10))[0]}\nafter   {after}") if _is_of(f.fix, made) else f
        for f in part.failures
    )
    part.fix = None


def _is_of(words: str, made: Iterable[str]) -> bool:
    return "as in the diff" in words or any(re.search(rf"\b{each}\b", words) for each in made)


def _written(hunk: str, made: Iterable[str]) -> Iterable[str]:
    """What a hunk has in the end, from its first new line to its last."""
    lines = [line for line in hunk.splitlines() if line[:1] in ("+", " ")]
    lines = [line for line in lines if not any(line.startswith(f"+{each} = ") for each in made)]
    new = [at for at, line in enumerate(lines) if line.startswith("+")]
    return [line[1:] for line in lines[new[0] : new[-1] + 1]] if new else []


def _in_one_line(code: str) -> str:
    """Functions without blocks in a line each, as what is told of one problem has few; anything else as it is."""
    try:
        functions = ast.parse(textwrap.dedent(code)).body
    except SyntaxError:
        functions = []
    flat = [n for n in functions if isinstance(n, ast.FunctionDef) and not any(hasattr(s, "body") for s in n.body)]
    if not functions or len(flat) < len(functions):
        return f"\n{code}"
    lines = (f"`def {n.name}({ast.unparse(n.args)}): {'; '.join(map(ast.unparse, n.body))}`" for n in flat)
    ahead = (", called on each object right ahead of its call" if n.name.startswith("before_") else "" for n in flat)
    return ", and ".join(line + more for line, more in zip(lines, ahead, strict=True))


def _owner(region: Region) -> object:
    return getattr(region.function, "__self__", None)


def _code(region: Region) -> object:
    return getattr(region.function, "__code__", None)
