"""Generators that a graph draws from and that a warm-up has moved: its replays draw other numbers than eager code."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.observe.held import attributes_of, is_a
from paramgraph_kit.doctor.observe.lines_behind import codes_of
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.places import Place
from paramgraph_kit.doctor.observe.warmed_up import is_of_warm_up, warm_up_of
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.driver.generators import generator_of

_SETS = ("set_state", "set_offset", "manual_seed", "seed", "graphsafe_set_state")


@dataclass(slots=True)
class _Drawn:
    """What is drawn from one generator outside of captures, in one call."""

    generator: torch.Generator  # whose id stays its own so
    draws: list[tuple[tuple[int, int], Place]] = field(default_factory=list)  # since its state was last set: from where


class DrawnAhead:
    """All of one examination."""

    def __init__(self) -> None:
        self._drawn: dict[int, _Drawn] = {}
        self._captured: dict[int, dict[int, set[CodeType]]] = {}  # by graph and generator, what draws in its capture
        self._read: set[int] = set()  # graphs of before whose lines were read
        self._told: dict[str, None] = {}

    def begin(self) -> None:
        """A call begins, for which all generators are put back."""
        self._drawn.clear()
        self._captured.clear()

    def draws(self, generator: torch.Generator, place: Place) -> torch.Generator:
        """The generator, from which something outside of all captures is about to draw."""
        with suppress(Exception):  # the CPU's has no offset
            known = self._drawn.setdefault(id(generator), _Drawn(generator))
            at = generator.initial_seed(), int(generator.get_offset())
            if _is_set(known, at):
                known.draws.clear()
            known.draws.append((at, place))
        return generator

    def captures(self, graph: object, kwargs: Mapping[str, Any], place: Place) -> None:
        """An operation is captured, which may draw."""
        if (generator := generator_of(kwargs.get("generator"))) is not None:
            codes = self._captured.setdefault(id(graph), {}).setdefault(id(generator), set())
            codes |= {code for code, _ in place.stack if not is_library(code.co_filename)}

    def launched(self, graph: object, regions: Iterable[Region], before: bool) -> None:
        """A graph is replayed, perhaps for the first time; ``before``: nobody has seen its capture."""
        if before and id(graph) not in self._read:
            self._read.add(id(graph))
            for region in (each for each in regions if each.graph is graph):
                with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
                    self._told |= dict.fromkeys(_as_read(region))
        if not (captured := self._captured.pop(id(graph), None)):
            return
        for region in (each for each in regions if each.graph is graph):
            with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
                paths = {id(generator): path for path, generator in generators_in(region)}
                for known in (self._drawn[key] for key in captured.keys() & paths.keys() & self._drawn.keys()):
                    now = known.generator.initial_seed(), int(known.generator.get_offset())
                    block = warm_up_of(region)
                    if block is None or _is_set(known, now):
                        continue
                    own = captured[id(known.generator)] - {region.code}
                    if any(is_of_warm_up(place, region, block, own) for _, place in known.draws):
                        self._told[_said(paths[id(known.generator)], block.lineno)] = None

    def notes(self, otherwise: Iterable[str] = ()) -> list[str]:
        """What to know of them, or else of what else a warm-up moves."""
        return [*self._told] or [*otherwise]


def _is_set(known: _Drawn, now: tuple[int, int]) -> bool:
    """Whether a generator was seeded, or its state was set, since it was drawn from last: each draw moves it on."""
    return bool(known.draws) and (now[0] != known.draws[-1][0][0] or now[1] <= known.draws[-1][0][1])


def _as_read(region: Region) -> Iterator[str]:
    """The same for a capture of before, as its lines tell: the warm-up has its calls, and nothing sets a generator."""
    if (block := warm_up_of(region)) is None:
        return
    captured = {ast.unparse(n) for s in region.body for n in ast.walk(s) if isinstance(n, ast.Call)}
    behind = [n for n in nodes_of(region.code) if isinstance(n, ast.Call) and n.lineno > block.lineno]
    warms = any(ast.unparse(n) in captured for n in ast.walk(block) if isinstance(n, ast.Call))
    if not warms or any(last_name(n.func) in _SETS for n in behind):
        return
    for path, generator in generators_in(region):
        if generator.get_offset():
            yield _said(path, block.lineno)


def _said(path: str, line: int) -> str:
    return (
        f"the warm-up at line {line} draws from `{path}`, and nothing puts that back ahead of the first replay: its "
        f"replays draw other numbers than eager code would. `state = {path}.get_state()` comes ahead of the warm-up, "
        f"and `{path}.set_state(state)` behind it, ahead of the capture"
    )


def generators_in(region: Region) -> Iterator[tuple[str, torch.Generator]]:
    """Generators that the lines of a capture, and of what it calls, name."""
    used = {name for code in codes_of(region) for name in (*code.co_names, *code.co_freevars)}
    used |= {n.id for s in region.body for n in ast.walk(s) if isinstance(n, ast.Name)}
    used |= {n.attr for s in region.body for n in ast.walk(s) if isinstance(n, ast.Attribute)}
    held = {name: value for name, value in {**region.space, **region.names}.items() if name in used}
    held |= {f"self.{n}": value for n, value in attributes_of(region.names.get("self")).items() if n in used}
    held |= {use.text: use.value() for use in (region.values.uses if region.values is not None else ())}
    seen = set[int]()
    for path, value in held.items():
        if is_a(value, torch.Generator) and id(value) not in seen:
            seen.add(id(value))
            yield path, value
