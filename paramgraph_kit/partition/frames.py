"""The user's own line behind an FX node."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.fx

from paramgraph_kit.driver.files import REWRITTEN, display_name, package_of
from paramgraph_kit.partition.names import module_of, value_names
from paramgraph_kit.trace.model import Frame

_LOCATION = re.compile(r'File "([^"]+)", line (\d+), in (.+)')
_OURS = str(Path(__file__).resolve().parents[1])
_TORCH = str(Path(torch.__file__).resolve().parent)


def frame_of(node: torch.fx.Node) -> Frame | None:
    """The innermost line of the user's own code that led to ``node``, or None where torch kept none."""
    trace = node.meta.get("stack_trace")
    return user_frame(trace) if isinstance(trace, str) else None


def user_frame(stack_trace: str) -> Frame | None:
    """The innermost frame of a printed stack trace that is neither torch's, an installed package's nor ours.

    >>> user_frame('  File "train.py", line 7, in step\\n    y = x @ w').label()
    'train.py:7  y = x @ w'
    """
    found = _innermost(stack_trace)
    return replace(found, file=_display(found.file)) if found is not None else None  # a cell has another number by now


@lru_cache(maxsize=4096)
def _innermost(stack_trace: str) -> Frame | None:
    lines = stack_trace.splitlines()
    found: Frame | None = None
    for number, line in enumerate(lines):
        match = _LOCATION.search(line)
        if match is None or _is_library(match[1]):
            continue
        text = lines[number + 1].strip() if number + 1 < len(lines) else ""
        found = Frame(match[1], int(match[2]), match[3].strip(), "" if _LOCATION.search(text) else text)
    return found


@dataclass(frozen=True, slots=True)
class Place:
    """What one line of a module's generated code stands for."""

    frame: Frame | None  # the user's line
    module: str  # the path of the module of the user's
    name: str  # of the value that it makes: "blocks.3.up: addmm"
    source: str  # the line itself
    shape: tuple[int, ...] | None  # of the tensor that it makes; None where that is none, or is dynamic
    dtype: torch.dtype | None


def _layout(node: torch.fx.Node) -> tuple[tuple[int, ...] | None, torch.dtype | None]:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not all(isinstance(n, int) for n in value.shape):
        return None, None
    return tuple(value.shape), value.dtype


class _Lines(dict[int, Place]):
    """By each line of a module's generated code; a plain dict cannot be held weakly."""


_generated: WeakValueDictionary[str, _Lines] = WeakValueDictionary()  # by the generated code's file name


def note_lines(module: torch.fx.GraphModule) -> None:
    """Remember, for as long as a module lives, what each line of its code stands for."""
    names = value_names(module, ())
    nodes = {node.name: node for node in module.graph.nodes if node.op == "call_function"}
    lines = _Lines()
    for number, line in enumerate(module.code.splitlines(), 1):
        if (node := nodes.get(line.split(" = ")[0].strip())) is not None:
            source = line.split(";")[0].strip().replace("torch.ops.", "")  # without what is dropped after it
            lines[number] = Place(frame_of(node), module_of(node), names[node.name], source, *_layout(node))
    _generated[module.forward.__code__.co_filename] = lines
    module.__dict__["_user_lines"] = lines


def place_behind(origin: tuple[str, int] | None) -> Place | None:
    """What a line of generated code, as (file, line), stands for."""
    return _generated.get(origin[0], _Lines()).get(origin[1]) if origin is not None else None


def _is_library(file: str) -> bool:
    return file.startswith((_OURS, _TORCH, "<frozen", "<eval_with_key>")) or bool(package_of(file))


def _display(file: str) -> str:
    """``<cell 3>`` for a notebook cell, whose file name means nothing to its author."""
    if file.endswith(REWRITTEN):
        return _display(file.removesuffix(REWRITTEN)) + REWRITTEN
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)
    named = name_of(file) if name_of is not None else None
    if named is None:
        return display_name(file)
    number = re.search(r"\d+", str(named[1]))
    return f"<cell {number[0]}>" if number else file
