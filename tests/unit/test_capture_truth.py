"""Random parameters of kernels of which everything is known: no number is ever rewritten, no address ever kept."""

from __future__ import annotations

import random
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from paramgraph_kit.capture.words import Host, Side, classify
from paramgraph_kit.driver.api import RawAllocation, RawNode
from paramgraph_kit.driver.phantom_layout import Layout
from paramgraph_kit.trace.errors import RefusedError
from paramgraph_kit.trace.model import NodeKind, Reason, WordKind
from tests.unit.test_capture_leftovers import CLOSURE

BASE, RANGE = (0x1A80_0000_0000, 0x2B80_0000_0000), 512 << 30
HOST = (0x55C1, 0x7F3D)  # upper halves of the host's heap and of its stacks
DEVICE = 0x7F10 << 32  # where the allocator's own segments lie
LIBRARY, STRUCT, TRITON = "ampere_sgemm_128x64", "_ZN2at6native13reduce_kernelI", "triton_poi_fused_0"
NUMBERS = {"B": 1, "H": 2, "I": 4, "f": 4, "q": 8, "d": 8}


@dataclass
class Field:
    """What a kernel reads at ``at``: of an address its allocation and offset, of a number its packed bytes."""

    at: int
    code: str  # of struct; "P" for an address
    allocation: int = -1
    delta: int = 0
    packed: bytes = b""
    other: bytes = b""  # where the second capture has another number

    def bytes_of(self, side: int) -> bytes:
        return self.other if side and self.other else self.packed


@dataclass
class World:
    """Allocations as both sides made them, and what each may rely on."""

    rng: random.Random
    sides: tuple[list[RawAllocation], list[RawAllocation]] = field(default_factory=lambda: ([], []))
    alignments: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        layouts = [Layout(base, RANGE, side) for side, base in enumerate(BASE)]
        for _ in range(self.rng.randint(2, 9)):
            size = self.rng.choice([4, 100, 4096, 3 << 20, 700 << 20, 3 << 30])
            alignment = self.rng.choice([1, 4, 16, 64, 256, 256, 256])
            died = self.rng.choice([None, None, 5])  # kernels are recorded at 10
            for side, layout in enumerate(layouts):
                residue = alignment * (1 + 2 * side) if alignment < 256 else 256 * side
                self.sides[side].append(RawAllocation(layout.place(size, residue), size, 0, died))
            self.alignments.append(alignment)

    def pointer(self, at: int) -> Field:
        live = [i for i, a in enumerate(self.sides[0]) if a.died is None]
        if not live:
            return self.number(at, "q")
        i = self.rng.choice(live)
        size = self.sides[0][i].size
        deltas = [0, 0, 0, self.rng.randrange(size), size, -4, 0x3FC0_0000 % size]
        far = self.rng.randrange(16) == 0  # from where a kernel steps to what it reads
        return Field(at, "P", i, self.rng.randrange(-2 << 30, 2 << 30) if far else self.rng.choice(deltas))

    def number(self, at: int, code: str, moves: bool = False) -> Field:
        rng, nbytes = self.rng, NUMBERS[code]
        if code in "fd":
            packed = struct.pack(code, rng.choice([0.0, 1.0, -1.0, 0.5, 2.5, 1e-5, rng.random(), rng.gauss(0, 1e3)]))
        else:
            of_address = self.address(rng.randrange(2)) >> rng.choice([0, 8, 16, 32])
            value = rng.choice(
                [0, 1, 2, 64, 1 << 20, -1, BASE[0] >> 32, BASE[1] >> 32, 0x7F3D, of_address, DEVICE + 64]
            )
            packed = (value % (1 << 8 * nbytes)).to_bytes(nbytes, "little")
        return Field(at, code, packed=packed, other=rng.randbytes(nbytes - 1) + packed[-1:] if moves else b"")

    def distance(self, at: int) -> Field:
        """From one allocation to another."""
        i, j = self.rng.sample(range(len(self.alignments)), 2)
        found = [struct.pack("<q", each[j].address - each[i].address) for each in self.sides]
        return Field(at, "q", packed=found[0], other=found[1])

    def address(self, side: int) -> int:
        a = self.rng.choice(self.sides[side])
        return a.address + self.rng.choice([0, 0, self.rng.randrange(a.size)])

    def left_over(self, words: int) -> tuple[bytearray, bytearray]:
        """What lay on the stack in each capture: mostly the same in kind, and seldom the same."""
        found = bytearray(), bytearray()
        for _ in range(words):
            kind, i = self.rng.randrange(6), self.rng.randrange(len(self.alignments))
            inside, number, half = (
                self.rng.randrange(self.sides[0][i].size),
                self.rng.getrandbits(64),
                self.rng.choice(HOST),
            )
            for side, data in enumerate(found):
                a = self.sides[side][i]
                value = (
                    a.address,
                    a.address + inside,
                    half << 32 | self.rng.getrandbits(32),
                    0,
                    number,
                    self.address(side),
                )[kind]
                data += struct.pack("<Q", value)
        return found

    def launched(self) -> list[int]:
        """Where everything lies when the graph is launched."""
        return [
            DEVICE
            + (k << 32)
            + (512 * self.rng.randrange(99) + (a * (2 * self.rng.randrange(8) + 1) if a < 256 else 0))
            for k, a in enumerate(self.alignments)
        ]


def aligned(at: int, to: int) -> int:
    return -(-at // to) * to


def kernels(world: World, name: str, moving: float) -> tuple[RawNode, RawNode, list[Field]]:
    """One kernel as both sides recorded it, and what its parameters are."""
    rng = world.rng
    fields: list[Field] = []
    layout: list[tuple[int, int]] = []
    closure = name == CLOSURE
    at = 8 if closure else 0  # behind a count
    start = at
    for _ in range(rng.randint(1, 2 if closure else 8)):
        code = rng.choice("BHIIffqdPPP" if not closure else "BHIffd")
        at = aligned(at, NUMBERS.get(code, 8))
        made_anew = rng.random() < moving
        if code == "P":
            one = world.pointer(at)
        elif code == "q" and made_anew:
            one = world.distance(at)
        else:
            one = world.number(at, code, made_anew)
        fields.append(one)
        at += NUMBERS.get(one.code, 8)
        if name == TRITON:
            layout.append((one.at, at - one.at))
        elif rng.random() < 0.2:  # room that is not filled
            at = aligned(at, 8) + 8 * rng.randrange(4)
    if closure:
        end = aligned(at, 8) + 8  # and where the host has its copy
        layout = [(0, 4), (start, end - start), (end, 8)]
        fields.append(world.pointer(end))
        at = end + 8
    at = at if name == TRITON else aligned(at, 8)
    left = world.left_over(at // 8 + 1)
    layout = layout or [(0, at)]
    nodes = []
    for side in (0, 1):
        data = left[side][:at]
        if closure:
            data[0:4] = struct.pack("<i", 9)
            data[end - 8 : end] = struct.pack("<Q", HOST[0] << 32 | rng.getrandbits(20))
        for each in fields:
            packed = each.bytes_of(side)
            if each.code == "P":
                packed = struct.pack("<Q", world.sides[side][each.allocation].address + each.delta)
            data[each.at : each.at + len(packed)] = packed
        nodes.append(RawNode(NodeKind.KERNEL, name, bytes(data), (), position=10, layout=tuple(layout)))
    return nodes[0], nodes[1], fields


def owner(value: int) -> str | None:
    if DEVICE <= value < DEVICE + (99 << 32):
        raise RefusedError(Reason("unowned-address", "nobody's"))
    return None


def wrong(world: World, first: RawNode, second: RawNode, fields: list[Field]) -> str | None:
    """What a launch would read that it must not, of a comparison that refuses nothing."""
    ranges = [(base, base + RANGE) for base in BASE]
    sides = [
        Side([node], world.sides[k], lambda value, k=k: ranges[k][0] <= value < ranges[k][1])  # type: ignore[misc]
        for k, node in enumerate((first, second))
    ]
    words = classify(sides[0], sides[1], owner, Host(lambda value: value >> 32 in HOST))[0]
    data, places = bytearray(first.parameters), world.launched()
    for word in words:
        if word.kind is WordKind.POINTER and word.allocation is not None:
            data[word.offset : word.offset + 8] = struct.pack("<Q", places[word.allocation] + word.delta)
    for each in fields:
        right = struct.pack("<Q", places[each.allocation] + each.delta) if each.code == "P" else each.packed
        if data[each.at : each.at + len(right)] != right:
            return f"{each} reads {data[each.at : each.at + len(right)].hex()} instead of {right.hex()}"
        if each.other not in (b"", each.packed):
            return f"{each} stays what it was in the first capture"
    return None


@pytest.mark.parametrize(
    ("name", "moving"), [(LIBRARY, 0.0), (STRUCT, 0.0), (TRITON, 0.0), (TRITON, 0.1), (CLOSURE, 0.0), (CLOSURE, 0.1)]
)
def test_of_random_parameters_no_number_is_rewritten_and_no_address_kept(name: str, moving: float) -> None:
    # GIVEN parameters made of numbers and addresses, with whatever lay on the stack between them
    outcomes: Counter[str] = Counter()
    for seed in range(400):
        world = World(random.Random(f"{name} {moving} {seed}"))
        first, second, fields = kernels(world, name, moving)
        # WHEN two captures are compared, and what they found is launched elsewhere
        try:
            mistake: Any = wrong(world, first, second, fields)
        except RefusedError as refusal:
            outcomes[refusal.reason.code] += 1
            continue
        # THEN every number and every address that the kernel reads is right
        assert mistake is None, (
            f"seed {seed}: {mistake}\n{first.parameters.hex(' ', 8)}\n{second.parameters.hex(' ', 8)}"
        )
        outcomes["right"] += 1
    assert outcomes["right"] > 40, outcomes
