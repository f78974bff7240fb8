"""Generators that a graph draws from and that a warm-up has moved: its replays draw other numbers than eager code."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from types import CodeType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import last_name, nodes_of
from paramgraph_kit.doctor.observe.held import attributes_of, is_a
from paramgraph_kit.doctor.observe.lines_behind import codes_of
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.places import Place, is_call
from paramgraph_kit.doctor.observe.refusals import Operation
from paramgraph_kit.doctor.observe.warm_up_blocks import idle_warm_up, warm_ups_of, warmed_in
from paramgraph_kit.doctor.observe.warmed_up import is_of_warm_up
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.driver.generators import generator_of
from paramgraph_kit.driver.select import twin

_SETS = ("set_state", "set_offset", "manual_seed", "seed", "graphsafe_set_state")
RNG_STATE = ("torch.cuda.get_rng_state", "torch.cuda.set_rng_state")
_SAID = (
    "the warm-up at line {line} draws from {whose}, and nothing puts that back ahead of the first replay: its replays "
    "draw other numbers than eager code would. `state = {get}()` comes ahead of the warm-up, and `{put}(state)` behind "
    "it, ahead of the capture"
)
SAID_DEFAULT = _SAID.format(line="{line}", whose="the default generator", get=RNG_STATE[0], put=RNG_STATE[1])
_DEFAULT = 0  # in place of an id: the device's may be another object each time
_MOST = 20_000  # draws of one call


@dataclass(slots=True)
class _Drawn:
    """What is drawn from one generator outside of captures, in one call."""

    generator: torch.Generator  # whose id stays its own so
    draws: list[tuple[tuple[int, int], Place]] = field(default_factory=list)  # since its state was last set: from where


class DrawnAhead:
    """All of one call."""

    def __init__(self) -> None:
        self._drawn: dict[int, _Drawn] = {}
        self._captured: dict[int, dict[int, set[CodeType]]] = {}  # by graph and generator, what draws in its capture

    def begin(self) -> None:
        """A call begins, for which all generators are put back."""
        self._drawn.clear()
        self._captured.clear()

    def draws(self, own: torch.Generator | None, place: Place) -> None:
        """Something outside of all captures is about to draw from a generator; None for the default one."""
        with suppress(Exception):  # the CPU's has no offset
            generator = _default() if own is None else own
            known = self._drawn.setdefault(id(own) if own is not None else _DEFAULT, _Drawn(generator))
            at = generator.initial_seed(), int(generator.get_offset())
            if _is_set(known, at):
                known.draws.clear()
            if len(known.draws) < _MOST:
                known.draws.append((at, place))

    def captures(
        self, graph: object, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any], place: Place
    ) -> None:
        """An operation is captured, which may draw."""
        generator = generator_of(kwargs.get("generator"))
        if generator is not None or (op.random and _draws(op, args, kwargs)):
            key = id(generator) if generator is not None else _DEFAULT
            codes = self._captured.setdefault(id(graph), {}).setdefault(key, set())
            codes |= {code for code, _ in place.stack if not is_library(code.co_filename)}

    def launched(self, graph: object, regions: Iterable[Region]) -> Iterator[str]:
        """A graph is replayed, for the first time: what its warm-up has drawn, in words."""
        for key, known in self._drawn.items():  # the launches to come move on a generator that was put back
            known.draws[:] = known.draws if self._moved(key) else []
        captured = self._captured.pop(id(graph), {})
        for region in regions if captured else ():
            paths = {id(generator): path for path, generator in generators_in(region)} | {_DEFAULT: ""}
            warm_ups = [*warm_ups_of(region)]
            for key in captured.keys() & paths.keys() & self._drawn.keys() if warm_ups else ():
                own, moved = captured[key] - {region.code}, self._moved(key)
                of = (w for w in warm_ups if any(is_of_warm_up(place, w.region, w.block, own) for place in moved))
                yield from (_said(paths[key], each.block.lineno) for each in islice(of, 1))

    def drawn_by(self, code: CodeType, call: ast.Call) -> bool:
        """Whether a call has drawn from the default generator, and nothing has set that since."""
        spots = (spot for place in self._moved(_DEFAULT) for spot in place.stack)
        return any(each is code and is_call(each, at, call) for each, at in spots)

    def _moved(self, key: int) -> list[Place]:
        """What has drawn from a generator that nothing has set since."""
        if (known := self._drawn.get(key)) is None:
            return []
        generator = _default() if key == _DEFAULT else known.generator
        now = generator.initial_seed(), int(generator.get_offset())
        return [] if _is_set(known, now) else [place for _, place in known.draws]


def _default() -> Any:
    """The generator that the device draws from where none is named."""
    cuda = twin()
    return cuda.default_generators[cuda.current_device()]


def _draws(op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation that may draw does: attention and dropout with a chance of zero do not."""
    given = {**dict(zip(op.names, args, strict=False)), **kwargs}
    chance = given.get("dropout_p", given.get("p", 1.0))
    return chance != 0 and given.get("train", True) is not False


def _is_set(known: _Drawn, now: tuple[int, int]) -> bool:
    """Whether a generator was seeded, or its state was set, since it was drawn from last: each draw moves it on."""
    return bool(known.draws) and (now[0] != known.draws[-1][0][0] or now[1] <= known.draws[-1][0][1])


def drawn_as_read(region: Region) -> Iterator[str]:
    """The same for a capture of before, as its lines tell: the warm-up has its calls, and nothing sets a generator."""
    if (block := idle_warm_up(region)) is None:
        return
    behind = [n for n in nodes_of(region.code) if isinstance(n, ast.Call) and n.lineno > block.lineno]
    if not warmed_in(region, block) or any(last_name(n.func) in _SETS for n in behind):
        return
    for path, generator in generators_in(region):
        if generator.get_offset():
            yield _said(path, block.lineno)


def _said(path: str, line: int) -> str:
    own = _SAID.format(line="{line}", whose=f"`{path}`", get=f"{path}.get_state", put=f"{path}.set_state")
    return (own if path else SAID_DEFAULT).format(line=line)


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
