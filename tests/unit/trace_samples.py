"""Traces for tests: every field at random, and one as large as a capture of a real model."""

from __future__ import annotations

import gzip
import json
import random
import string
from enum import StrEnum
from typing import Any

from paramgraph_kit import trace as t

SOURCE = t.Source(t.Origin.LIVE, "NVIDIA H200", "580.159.04", "2.11.0+cu130", "3.12", "2026-11-20")
SIMULATED = t.Source(t.Origin.SIMULATED, "simulated device", "-", "2.13.0", "3.11", "2026-11-20")


class Maker:
    """Random traces from a seed: every field, every enum member, hostile strings."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self) -> str:
        letters = string.ascii_letters + " /\\\"'<>&\n\t\x00üµ你🙂\ud800"
        return "".join(self.random.choices(letters, k=self.random.randrange(0, 12)))

    def whole(self) -> int:
        return self.random.choice([0, 1, -1, 512, 2**31, 2**63, 2**64 - 1, self.random.randrange(10**6)])

    def maybe(self, value: Any) -> Any:
        return value if self.random.random() < 0.6 else None

    def pick(self, enum: type[StrEnum]) -> Any:
        return self.random.choice(list(enum))

    def frame(self) -> t.Frame:
        return t.Frame(self.text(), self.whole(), self.text(), self.text())

    def some(self, make: Any, most: int = 4) -> list[Any]:
        return [make(n) for n in range(self.random.randrange(0, most + 1))]

    def word(self, allocations: int) -> t.Word:
        target = self.random.randrange(allocations) if allocations else None
        return t.Word(
            self.whole(), self.pick(t.WordKind), self.maybe(target), self.whole(), self.maybe(self.whole()), self.text()
        )

    def dims(self) -> tuple[int, int, int]:
        return self.whole(), self.whole(), self.whole()

    def capture(self, n: int) -> t.Capture:
        allocations = tuple(
            self.some(
                lambda i: t.Allocation(
                    i,
                    self.pick(t.Role),
                    self.whole(),
                    self.maybe(self.random.randrange(99)),
                    self.whole(),
                    self.whole(),
                    self.maybe(self.whole()),
                    self.text(),
                    self.maybe(tuple(self.some(lambda _: self.whole()))),
                    self.text(),
                    self.maybe(self.frame()),
                )
            )
        )
        nodes = tuple(
            self.some(
                lambda i: t.Node(
                    i,
                    self.pick(t.NodeKind),
                    self.text(),
                    self.dims(),
                    self.dims(),
                    self.whole(),
                    self.whole(),
                    self.whole(),
                    tuple(self.some(lambda _: self.word(len(allocations)))),
                    self.maybe(self.frame()),
                    self.maybe(self.pick(t.NodeKind)),
                    self.text(),
                    self.text(),
                )
            )
        )
        pairs = [(a, b) for a in range(len(nodes)) for b in range(a)]
        edges = tuple(self.random.sample(pairs, self.random.randrange(len(pairs) + 1)))
        return t.Capture(n, self.whole(), nodes, edges, allocations, self.whole(), self.whole(), self.text())

    def reason(self, _: int) -> t.Reason:
        return t.Reason(self.text(), self.text(), self.maybe(self.frame()), self.text())

    def trace(self, source: t.Source) -> t.Trace:
        yes = self.random.random
        return t.Trace(
            source,
            self.text(),
            self.some(
                lambda n: t.Partition(
                    n,
                    self.text(),
                    yes() < 0.5,
                    tuple(self.some(lambda _: self.text())),
                    self.whole(),
                    tuple(self.some(self.reason)),
                    self.whole(),
                )
            ),
            self.some(self.capture),
            self.some(
                lambda n: t.Launch(
                    n,
                    self.whole(),
                    self.whole(),
                    self.whole(),
                    self.whole(),
                    self.maybe(self.random.random() * 99),
                    self.maybe(self.random.random() * 99),
                    tuple(self.some(lambda _: self.whole())),
                    self.maybe(self.random.random() * 99),
                    self.maybe(self.random.random() * 99),
                )
            ),
            self.some(
                lambda _: t.Failure(
                    self.text(), self.text(), self.text(), self.maybe(self.frame()), self.text(), self.text()
                )
            ),
            self.some(
                lambda n: t.PoolEvent(
                    n,
                    self.text(),
                    self.pick(t.PoolAction),
                    self.whole(),
                    self.whole(),
                    self.maybe(self.whole()),
                    self.maybe(self.frame()),
                )
            ),
            self.some(
                lambda _: t.Proof(
                    self.text(), self.whole(), self.whole(), self.whole(), self.maybe(self.random.random() * 99)
                )
            ),
        )


def document(packed: bytes) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(gzip.decompress(packed))
    return result


def repack(content: Any) -> bytes:
    return gzip.compress(json.dumps(content).encode(), mtime=0)


def realistic(nodes: int = 2000) -> t.Trace:
    rng = random.Random(7)
    names = [
        f"triton_poi_fused_{a}_{b}_{i}" for i, (a, b) in enumerate([("add", "mul"), ("rms_norm", "silu"), ("cat", "t")])
    ]
    names += ["nvjet_tst_128x256_64x4_2x1_v_bz_TNT", "flash_fprop_sm90_kernel", "void at::native::elementwise"]
    frames = [t.Frame("model.py", line, "forward", f"h = self.layer{line}(h)") for line in range(40)]
    allocations = tuple(
        t.Allocation(
            i,
            rng.choice([t.Role.INPUT, t.Role.WORKSPACE, t.Role.WORKSPACE, t.Role.OUTPUT]),
            512 * rng.randrange(1, 9999),
            i % 60,
            512 * rng.randrange(9999),
            born := rng.randrange(nodes),
            born + rng.randrange(30),
            f"buf{i}",
        )
        for i in range(800)
    )
    made = []
    for i in range(nodes):
        count = rng.randrange(4, 21)
        words = tuple(
            t.Word(8 * k, t.WordKind.POINTER, rng.randrange(800), 512 * rng.randrange(4), None, "in both captures")
            if k < count // 2
            else t.Word(8 * k, t.WordKind.SCALAR, value=rng.choice([1, 4096, 2**32 + 7, rng.getrandbits(62)]))
            for k in range(count)
        )
        made.append(
            t.Node(
                i,
                t.NodeKind.KERNEL,
                rng.choice(names),
                (rng.choice([1, 32, 132]), 1, 1),
                (128, 1, 1),
                0,
                0,
                8 * count,
                words,
                rng.choice(frames),
            )
        )
    edges = tuple((i, i + 1) for i in range(nodes - 1)) + tuple((i, i + 5) for i in range(0, nodes - 5, 3))
    return t.Trace(SOURCE, "realistic", captures=[t.Capture(0, 0, tuple(made), edges, allocations, 2**25)])
