"""What the memory of a captured graph is called: the user's tensors, and what its operations make."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from paramgraph_kit.capture.pair import Kind
from paramgraph_kit.launch.code import PartitionCode
from paramgraph_kit.launch.launcher import Called, Variant
from paramgraph_kit.partition.frames import Place
from paramgraph_kit.trace.model import Allocation, Frame, Role, Word

_PARAMETER = re.compile(r"[\w-]+(\.[\w-]+)+")
_STAYS = "same address in both captures"
_NAMED = re.compile(rf"{_STAYS}: ([\w.-]+) \[")
_KINDS = {"float": "f", "bfloat": "bf", "uint": "u", "int": "i", "complex": "c", "bool": "bool"}


def short_dtype(dtype: torch.dtype | None) -> str:
    """A type in a few letters.

    >>> short_dtype(torch.float32), short_dtype(torch.bfloat16), short_dtype(torch.int64), short_dtype(torch.bool)
    ('f32', 'bf16', 'i64', 'bool')
    """
    name = str(dtype).removeprefix("torch.") if dtype is not None else ""
    letters = name.rstrip("0123456789")
    return _KINDS[letters] + name[len(letters) :] if letters in _KINDS else name


def tensor_name(name: str, tensor: torch.Tensor) -> str:
    """A tensor as its user knows it.

    >>> tensor_name("head.weight", torch.zeros(4, 8))
    'head.weight [4x8] f32'
    """
    return f"{name} [{'x'.join(map(str, tensor.shape))}] {short_dtype(tensor.dtype)}"


def told(words: Sequence[Word], called: Called | None) -> tuple[Word, ...]:
    """Words that have the address of something the user has a name for, with that name."""
    if called is None or not called.held:
        return tuple(words)
    starts = [start for start, _, _ in called.held]

    def one(word: Word) -> Word:
        if word.allocation is not None or not word.value or not word.evidence.startswith(_STAYS):
            return word
        start, nbytes, name = called.held[bisect_right(starts, word.value) - 1]
        inside = 0 <= word.value - start < nbytes
        return replace(word, evidence=f"{_STAYS}: {name}, which stays where it is") if inside else word

    return tuple(map(one, words))


def allocations_of(
    code: PartitionCode, variant: Variant, places: Sequence[Place | None], frames: Sequence[Frame | None]
) -> Iterator[Allocation]:
    """All memory of one executable; ``places`` and ``frames`` are those of its nodes, where they are known."""
    captured, called = variant.captured, variant.called
    inputs, results = (code.names, code.results) if called is None else (called.inputs, called.results)
    placements = zip(captured.allocations, variant.plan.placements, strict=True)
    numbers = {slot: number for number, slot in enumerate(variant.plan.slots)}
    returned: dict[int, int] = {}
    for k, output in enumerate(captured.outputs):
        if output.kind is Kind.FRESH:
            returned.setdefault(output.source, k)
    for index, (raw, placement) in enumerate(placements):
        name, frame = "", None
        layout: tuple[tuple[int, ...] | None, str] = (None, "")
        if index < len(captured.input_positions):
            position = captured.input_positions[index]
            name = _at(inputs, position) or f"input {position}"
            spec = captured.specs[position]
            layout = (spec.size, short_dtype(spec.dtype)) if spec is not None else layout
        else:
            place = places[raw.born] if raw.born < len(places) else None
            frame = frames[raw.born] if raw.born < len(frames) else None
            if placement.role is Role.OUTPUT and index in returned:
                output = captured.outputs[returned[index]]
                name = _at(results, returned[index]) or f"output {returned[index]}"
                layout = output.size, short_dtype(output.dtype)
            elif place is not None:
                name, layout = place.name, _layout(place, raw.size)
        number = None if placement.slot is None else numbers[placement.slot]
        yield Allocation(
            index, placement.role, raw.size, number, placement.offset, raw.born, raw.died, name, *layout, frame
        )


def module_by_parameters(words: Sequence[Word], allocations: Sequence[Allocation]) -> str:
    """The path of the module whose parameters a kernel has the addresses of; "" where that is not one.

    >>> from paramgraph_kit.trace.model import WordKind
    >>> up = Allocation(0, Role.INPUT, 64, name="blocks.3.up.weight")
    >>> module_by_parameters([Word(0, WordKind.POINTER, 0), Word(8, WordKind.SCALAR)], [up])
    'blocks.3.up'
    """
    names = {
        allocations[word.allocation].name
        for word in words
        if word.allocation is not None and allocations[word.allocation].role is Role.INPUT
    }
    names |= {found[1] for word in words if (found := _NAMED.search(word.evidence)) is not None}
    paths = {name.removesuffix(".grad").rpartition(".")[0] for name in names if _PARAMETER.fullmatch(name)}
    return paths.pop() if len(paths) == 1 else ""


def _at(names: Sequence[str], position: int) -> str:
    return names[position] if position < len(names) else ""


def _layout(place: Place, nbytes: int) -> tuple[tuple[int, ...] | None, str]:
    """Shape and type of what an operation makes, if that is what lies in ``nbytes``."""
    if place.shape is None or place.dtype is None or nbytes != math.prod(place.shape) * place.dtype.itemsize:
        return None, ""
    return place.shape, short_dtype(place.dtype)
