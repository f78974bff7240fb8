"""Where an optimizer is made that the function's own files do not make: another cell, or another file of the user's."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from paramgraph_kit.doctor.restore.host_state import HostState
from paramgraph_kit.driver.files import REWRITTEN, display_name, is_cell, is_library
from paramgraph_kit.rewrite.counting import begun_later, optimizers
from paramgraph_kit.rewrite.source.cancelled import takes_gradients_at_times
from paramgraph_kit.rewrite.source.edits import Edit, Source
from paramgraph_kit.rewrite.source.place import called

_RATE = re.compile("lr|rate|opt", re.IGNORECASE)


def maker(
    sources: dict[str, Source], name: str, known: Any, around: Mapping[str, Any], owner: Any = None
) -> tuple[Source, ast.Call] | None:
    """The source and the call that make an optimizer, if there is one such place; another file joins the sources.

    ``around`` are the variables of the function's module, ``owner`` is the object whose attribute it is.
    """
    if (made := optimizers.constructor(sources.values(), name, known, around, owner)) is not None or known is None:
        return made
    if optimizers.named(sources.values(), name, known, owner):  # of which nothing tells which one
        return None
    own = {file.replace(REWRITTEN, "") for file in sources}
    for files in (_cells(), _modules()):
        for file in files:
            source = Source.of(file) if file not in own else None
            found = optimizers.named([source], name, None, owner) if source is not None else []
            if len(found) == 1 and called(found[0][1]) == type(known).__name__:
                sources[file] = found[0][0]
                return found[0][:2]
    return None


def rated(
    source: Source, names: Iterable[str], sources: dict[str, Source], around: Mapping[str, Any], device: str
) -> list[Edit]:
    """Edits by which the optimizers that a file makes itself have rates that are tensors."""
    if takes_gradients_at_times(sources.values()):
        return []  # fused kernels of SGD take no momentum that begins later
    made = (maker(sources, name, None, around) for name in sorted(names))
    calls = [each[1] for each in made if each is not None and each[0] is source]
    edits = [edit for call in calls for edit in optimizers.options(source, call, device, rate=True)]
    later = bool(calls) and begun_later.gradients_begin_later(sources.values())
    return edits + [edit for call in calls if later for edit in begun_later.momenta(source, call)]


def gives_rates(lines: Iterable[str], others: Mapping[str, Iterable[str]], state: HostState) -> bool:
    """Whether optimizers have rates that can be filled: as they are, or by a line of a file as it is rewritten.

    An optimizer that the host steps behind a launch is made as ever.
    """
    groups = [group for each in optimizers.found_in(state) for group in each["param_groups"]]
    if groups and all(isinstance(group["lr"], torch.Tensor) for group in groups):
        return True
    return any("torch.tensor(" in line and _RATE.search(line) for each in (lines, *others.values()) for line in each)


def _cells() -> list[str]:
    """The cells of the notebook that ran; of one that ran twice, with other lines, the last comes first."""
    numbers = {file: re.search(r"\d+", display_name(file)) for file in [*linecache.cache] if is_cell(file)}
    return sorted((file for file, n in numbers.items() if n), key=lambda file: -int((numbers[file] or [0])[0]))


def _modules() -> Iterator[str]:
    """The files of the user's that are imported, or run."""
    for module in [*sys.modules.values()]:
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and not is_library(file):
            yield file
