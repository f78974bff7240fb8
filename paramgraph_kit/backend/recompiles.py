"""What Dynamo compiled a function again for: the guard that no longer held, and whether it has given up."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paramgraph_kit.backend.registry import Compilation, CompiledGraph, compiled_graphs
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.trace.model import Frame, Reason

_COMMENT = re.compile(r"# .*# \S*?([^/\s]+):(\d+) in ")
_IDENTITY = re.compile(r"___check_(obj|type)_id\((.+?), \d+\).*")
_TENSOR = re.compile(r"tensor '(.+?)' (.+?)\. expected (.+), actual (.+)")
_BETWEEN = re.compile(r"___stack\d+")
_LONGEST = 60  # characters of a guard: some list all that a dictionary has


def recompiled(graphs: Iterable[CompiledGraph]) -> list[tuple[str, str]]:
    """The newest graph of each function of which there are several, and what it was compiled for."""
    found = []
    for same in _by_function(graphs):
        if len(same) > 1 and (why := _why(same[-1].compilation, same[-2].compilation)):
            times = len(same) - 2
            earlier = f", and {'once' if times == 1 else f'{times} times'} before" if times else ""
            found.append((same[-1].name, f"compiled again: {why}{earlier}"))
    return found


def given_up(graphs: Iterable[CompiledGraph]) -> list[Reason]:
    """Functions of which Dynamo compiles no more: each call that fits none of their graphs is eager."""
    found = []
    for same in _by_function(graphs):
        last = same[-1].compilation
        code = last.code() if last is not None else None
        if last is None or code is None:
            continue
        newest = max([getattr(entry.compile_id, "frame_compile_id", 0) for entry in _entries(code)], default=0)
        limit = torch_name("dynamo_config").recompile_limit
        if len(_entries(code)) >= limit and (said := _failures(last, newest)):
            text = (
                f"torch.compile made {limit} graphs of {code.co_name} and makes no more (recompile_limit): calls that "
                f"fit none are eager; the last one because {_told(said[-1])}"
            )
            found.append(
                Reason(
                    "recompile-limit", text, Frame(display_name(code.co_filename), code.co_firstlineno, code.co_name)
                )
            )
    return found


def is_known(graph: CompiledGraph) -> bool:
    """Whether Dynamo still has what this graph was compiled for: after its reset it compiles anew, also for others."""
    compilation = graph.compilation
    if compilation is None:
        return True
    code = compilation.code()
    numbers = [getattr(entry.compile_id, "frame_compile_id", None) for entry in _entries(code)] if code else []
    # A reset begins to count again: what was compiled later of the same code had a larger number otherwise.
    younger = [each.compilation for each in compiled_graphs() if each.order > graph.order and each.compilation]
    again = any(
        each is not compilation and each.code() is code and each.number <= compilation.number for each in younger
    )
    return compilation.number in numbers and not again


def _by_function(graphs: Iterable[CompiledGraph]) -> list[list[CompiledGraph]]:
    """Graphs by the frame that Dynamo compiled, in order; backwards have their forward's."""
    found: dict[int, list[CompiledGraph]] = {}
    for graph in graphs:
        if graph.compilation is not None and not graph.name.startswith("backward"):
            found.setdefault(graph.compilation.frame, []).append(graph)
    return list(found.values())


def _why(last: Compilation | None, before: Compilation | None) -> str:
    if last is None or before is None or last.number <= before.number:
        return ""
    said = _failures(before, before.number)  # one for each compilation after it
    at = last.number - before.number - 1
    return _told(said[at]) if at < len(said) else ""


def _failures(compilation: Compilation, number: int) -> list[str]:
    """What Dynamo noted each time that the guards of one of a function's graphs failed."""
    code = compilation.code()
    notes = torch_name("guard_failures").get(code, ()) if code is not None else ()
    head = f"{compilation.frame}/{number}: "
    return [str(note).removeprefix(head) for note in notes if str(note).startswith(head)]


def _entries(code: Any) -> list[Any]:
    return list(torch_name("_debug_get_cache_entry_list")(code))


def _told(note: str) -> str:
    """A guard's failure in one line, without addresses."""
    guard, _, comment = note.partition("\n")[0].partition("  #")
    guard = _BETWEEN.sub("what is handed on at the break", guard.strip().rstrip(";"))
    place = _COMMENT.match(f"#{comment}")
    if match := _TENSOR.fullmatch(guard):
        text = f"{match[1]}: {match[2].replace(' mismatch', '')} was {match[3]}, then {match[4]}"
    elif match := _IDENTITY.fullmatch(guard):
        text = f"{match[2]} is of another type" if match[1] == "type" else f"{match[2]} is another object"
    elif guard.startswith("GLOBAL_STATE changed: "):
        text = f"torch's {guard.partition(': ')[2].strip()} is another"
    else:
        text = f"{guard if len(guard) <= _LONGEST else guard[:_LONGEST] + '...'} no longer held"
    return text + (f" ({Path(place[1]).name}:{place[2]})" if place else "")
