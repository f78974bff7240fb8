"""The user's own line behind an FX node."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.fx

from paramgraph_kit.trace.model import Frame

_LOCATION = re.compile(r'File "([^"]+)", line (\d+), in (.+)')
_OURS = str(Path(__file__).resolve().parents[1])
_TORCH = str(Path(torch.__file__).resolve().parent)


def frame_of(node: torch.fx.Node) -> Frame | None:
    """The innermost line of the user's own code that led to ``node``, or None where torch kept none."""
    trace = node.meta.get("stack_trace")
    return user_frame(trace) if isinstance(trace, str) else None


@lru_cache(maxsize=4096)
def user_frame(stack_trace: str) -> Frame | None:
    """The innermost frame of a printed stack trace that is neither torch's, an installed package's nor ours.

    >>> user_frame('  File "train.py", line 7, in step\\n    y = x @ w').label()
    'train.py:7  y = x @ w'
    """
    lines = stack_trace.splitlines()
    found: Frame | None = None
    for number, line in enumerate(lines):
        match = _LOCATION.search(line)
        if match is None or _is_library(match[1]):
            continue
        text = lines[number + 1].strip() if number + 1 < len(lines) else ""
        found = Frame(_display(match[1]), int(match[2]), match[3].strip(), "" if _LOCATION.search(text) else text)
    return found


class _Lines(dict[int, Frame]):
    """The user's line behind each line of a module's generated code; a plain dict cannot be held weakly."""


_generated: WeakValueDictionary[str, _Lines] = WeakValueDictionary()  # by the generated code's file name


def note_lines(module: torch.fx.GraphModule) -> None:
    """Remember, for as long as a module lives, which line of the user's each line of its code stands for."""
    frames = {node.name: frame for node in module.graph.nodes if (frame := frame_of(node)) is not None}
    named = ((number, line.split(" = ")[0].strip()) for number, line in enumerate(module.code.splitlines(), 1))
    lines = _Lines((number, frames[name]) for number, name in named if name in frames)
    _generated[module.forward.__code__.co_filename] = lines
    module.__dict__["_user_lines"] = lines


def frame_behind(origin: tuple[str, int] | None) -> Frame | None:
    """The user's line behind a line of generated code, as (file, line)."""
    return _generated.get(origin[0], _Lines()).get(origin[1]) if origin is not None else None


def _is_library(file: str) -> bool:
    return file.startswith((_OURS, _TORCH, "<frozen", "<eval_with_key>")) or "site-packages" in Path(file).parts


def _display(file: str) -> str:
    """``<cell 3>`` for a notebook cell, whose file name means nothing to its author."""
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)
    named = name_of(file) if name_of is not None else None
    if named is None:
        return file
    number = re.search(r"\d+", str(named[1]))
    return f"<cell {number[0]}>" if number else file
