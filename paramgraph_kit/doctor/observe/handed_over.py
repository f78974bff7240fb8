"""Arguments that nobody reads, of functions around a replay whose graph reads what another graph has left."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.captured_values import NOTHING, path_value
from paramgraph_kit.doctor.observe.given_names import is_of_the_next
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.one_graph import OneGraph, bytes_of
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.doctor.restore.keeper import storage_key, storage_ref
from paramgraph_kit.trace.model import Failure, Frame

_MOST, _MOST_BYTES = 1 << 10, 1 << 22


@dataclass(frozen=True, slots=True)
class _Handed:
    """A tensor that a function is given which calls who replays: it has other numbers than what its graph reads."""

    text: str
    key: int
    ref: Any  # a weak reference keeps the key from being given to somebody else
    called: str  # what the graph reads, as the function that is given it writes that, or as it was captured
    kept: str  # how it is kept for that function ahead of the capture; "" where it has it
    line: Frame
    region: Region


class HandedOver:
    """Those of one call of an examination."""

    def __init__(self) -> None:
        self._given: list[_Handed] = []
        self._told: dict[Frame, Failure] = {}

    def begin(self) -> None:
        """A call begins."""
        self._given = []

    def launched(
        self,
        one: OneGraph,
        frames: list[FrameType],
        region: Region,
        places: Mapping[str, torch.Tensor],
        written: Collection[int],
    ) -> None:
        """A graph is replayed.

        Args:
            one: what is known of it.
            frames: the functions that run.
            region: its capture.
            places: what it reads, as the lines of its capture write that.
            written: memory that something else than a graph writes to.
        """
        left = one.of_others - {*written}
        if not left or not frames or len(self._given) >= _MOST:
            return
        first = next(iter(frames[0].f_code.co_varnames[:1]), "")
        owner, own = frames[0].f_locals.get(first), next(iter(region.code.co_varnames[:1]), "self")
        by_path = {storage_key(t): text for text, t in places.items() if text.startswith(f"{own}.")}
        for frame in frames[:2]:
            line, path = frame_at(frame.f_code, frame.f_lineno), _path_to(owner, frame, first)
            for name, tensor in _arguments(frame) if line is not None and path else ():
                for key in left:
                    if storage_key(tensor) in (0, key) or not _differs(one.reads[key][0], tensor):
                        continue
                    called, kept = one.called.get(key, ""), ""
                    if key in by_path:
                        called = f"{path}{by_path[key].removeprefix(own)}"
                    elif called:
                        kept = f"{called} = {own}.{called}_in = {called}.clone()"
                        called = f"{path}.{called}_in"
                    if called:
                        ref = storage_ref(tensor.untyped_storage())
                        self._given.append(_Handed(name, storage_key(tensor), ref, called, kept, line, region))

    def returned(self, read: Collection[int], result: Collection[int], of_graphs: Collection[int]) -> None:
        """The call ends; ``read``: memory that something else than a graph has read."""
        for each in self._given:
            if each.key not in {*read, *result, *of_graphs} and each.line not in self._told:
                self._told[each.line] = _failure(each)
        self.begin()

    def failures(self, told: Iterable[Failure]) -> Iterator[Failure]:
        """All that was seen."""
        known = {f.frame for f in told}
        yield from (f for at, f in self._told.items() if at not in known)


def _arguments(frame: FrameType) -> Iterator[tuple[str, torch.Tensor]]:
    code = frame.f_code
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        value = frame.f_locals.get(name)
        if is_a(value, torch.Tensor) and not is_a(value, torch.nn.Parameter) and not is_of_the_next(name):
            yield name, value


def _path_to(owner: Any, frame: FrameType, first: str) -> str:
    """How a function writes the object that has a graph; "" where its line does not, or in several ways."""
    if first and frame.f_code.co_varnames[:1] == (first,) and frame.f_locals.get(first) is owner:
        return first
    nodes = (n for n in nodes_of(frame.f_code) if isinstance(n, ast.Call) and n.lineno == frame.f_lineno)
    found = {
        ast.unparse(each)
        for call in nodes
        for each in (call.func, getattr(call.func, "value", None))
        if each is not None
        and (held := path_value(each, dict(frame.f_locals), frame.f_globals)) is not NOTHING
        and held is owner
    }
    return found.pop() if len(found) == 1 and owner is not None else ""


def _differs(read: Any, given: torch.Tensor) -> bool:
    """Whether a tensor is as large as what a graph reads, and has other numbers."""
    then, own = bytes_of(read), given.untyped_storage()
    if then is None or then.numel() != own.nbytes() or own.nbytes() > _MOST_BYTES:
        return False
    return not torch.equal(then, torch.empty(0, dtype=torch.uint8, device=given.device).set_(own))


def _failure(each: _Handed) -> Failure:
    read = each.called.rpartition(".")[2].removesuffix("_in") if each.kept else each.called
    text = f"nothing reads {each.text} here, and {read}, which the graph reads, is as another graph has left it"
    made = f", and ahead of the capture at line {each.region.line} `{each.kept}`" if each.kept else ""
    fix = f"before  {each.line.text}\nafter   {each.called}.copy_({each.text}) ahead of this line{made}"
    return replace(BY_ID["stale-input"].failure(text, each.line), fix=fix)
