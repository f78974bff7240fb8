"""Drawn programs on several streams, whose launches run in any order that the edges of their graphs allow."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import paramgraph_kit as pgk
from paramgraph_kit.driver.sim import driver as simulated
from paramgraph_kit.driver.torch_names import carries_streams

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
cuda: Any = pgk.cuda
WIDTH, CALLS = 24, 5
HERE = 0  # the stream on which a program is called
KINDS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "sine": lambda a, b, w: a.sin(),
    "sum": lambda a, b, w: a + b,
    "product": lambda a, b, w: (a @ w) * 0.2,
    "rows": lambda a, b, w: a + a.sum(0, keepdim=True) * 0.1,
    "chain": lambda a, b, w: torch.exp(-a.abs()).cos().relu(),
    "in place": lambda a, b, w: a.clone().add_(b),
    "write": lambda a, b, w: a.mul_(0.5).add_(b),
}
ORDERS = random.Random(20261123)


class Drawn:
    """A program of a seed: operations on one to four streams beside the caller's, with the waits that they need.

    With ``forgets`` some of these are left out; a compiled program makes them.
    """

    def __init__(self, seed: int, forgets: bool = False) -> None:
        r = self._random = random.Random(seed)
        self.streams = [cuda.Stream() for _ in range(r.randint(1, 4))]
        self.events = [cuda.Event() for _ in range(3)]
        self.steps: list[tuple[Any, ...]] = []
        self._known: list[set[int]] = [set() for _ in range(len(self.streams) + 1)]  # by stream: what comes before
        self._where: dict[int, int] = {}
        self._forked = {HERE}
        written, read = [0], [set[int]()]
        for n in range(1, r.randint(5, 14)):
            stream, kind = r.randrange(len(self._known)), r.choice(list(KINDS))
            if stream not in self._forked:
                self._wait(stream, HERE)
                self._forked.add(stream)
            a, b = r.randrange(len(written)), r.randrange(len(written))
            kind = "sum" if kind == "write" and a == 0 else kind  # the caller's input stays
            if not forgets or r.random() < 0.6:
                for before in {written[a], written[b], *(read[a] if kind == "write" else ())} - self._known[stream]:
                    if before and self._where[before] != stream:
                        self._wait(stream, self._where[before])
            self._where[n] = stream
            self._known[stream].add(n)
            read[a].add(n)
            read[b].add(n)
            if kind == "write":
                written[a] = n
            else:
                written.append(n)
                read.append(set())
            self.steps.append((kind, stream, a, b, a if kind == "write" else len(written) - 1))
        self.results = sorted(r.sample(range(1, len(written)), min(len(written) - 1, 3)))

    def _wait(self, stream: int, other: int) -> None:
        how = self._random.choice(["wait", "event"])
        self.steps.append((how, stream, other, self._random.randrange(3), None))
        self._known[stream] |= self._known[other]

    def __call__(self, x: Tensor, w: Tensor) -> list[Tensor]:
        """The values that are returned."""
        streams, values = [cuda.current_stream(), *self.streams], {0: x}
        for kind, stream, a, b, made in self.steps:
            if kind == "wait":
                streams[stream].wait_stream(streams[a])
            elif kind == "event":
                self.events[b].record(streams[a])
                streams[stream].wait_event(self.events[b])
            elif stream == HERE:
                values[made] = KINDS[kind](values[a], values[b], w)
            else:
                with cuda.stream(streams[stream]):
                    values[made] = KINDS[kind](values[a], values[b], w)
        for stream in sorted(self._forked - {HERE}):
            streams[HERE].wait_stream(streams[stream])
        return [values[k] for k in self.results]


def in_any_order(nodes: Sequence[Any], edges: bool) -> list[Any]:
    """The nodes in an order that their edges allow, late ones first as often as not."""
    left, found = set(range(len(nodes))), []
    while left:
        ready = [n for n in left if not (edges and left.intersection(nodes[n].deps))]
        chosen = max(ready) if ORDERS.random() < 0.4 else ORDERS.choice(ready)
        left.remove(chosen)
        found.append(nodes[chosen])
    return found


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Lets launches run in any order; tells in how many another one than the recorded was taken."""
    found: dict[str, Any] = {"edges": True, "others": 0}
    name = "run_nodes"
    run_nodes = getattr(simulated, name)

    def run(nodes: Sequence[Any], offsets: Mapping[Any, int]) -> None:
        order = in_any_order(nodes, found["edges"])
        found["others"] += order != list(nodes)
        run_nodes(order, offsets)

    monkeypatch.setattr(simulated, name, run)
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def randn(seed: int, *size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(pgk.device())


def differs(program: Drawn, run: Any) -> bool:
    """Whether a call has not eager's bits; each is given data that lies elsewhere."""
    held, w, found = [], randn(7, WIDTH, WIDTH), False
    with torch.no_grad():
        for call in range(CALLS):
            x = randn(call, 16, WIDTH)
            held.append((x, run(x, w)))
            found |= not all(torch.equal(a, b) for a, b in zip(held[-1][1], program(x.clone(), w), strict=True))
    return found


@pytest.mark.parametrize("way", ["compile", "compile what forgets waits", "step"])
def test_a_launch_is_right_in_any_order_that_its_edges_allow(way: str, orders: dict[str, Any]) -> None:
    if way != "step" and not carries_streams():
        pytest.skip("graphs of this torch do not carry streams")
    for seed in range(8):
        # GIVEN a drawn program WHEN launched, at addresses that move
        program = Drawn(seed, forgets="forgets" in way)
        run: Any = (
            pgk.parameterize(program.__call__, state=())
            if way == "step"
            else torch.compile(program.__call__, backend="paramgraph", fullgraph=True)
        )
        # THEN each call has eager's bits, from one graph
        assert not differs(program, run), f"seed {seed}"
        assert sum(row.launches for row in pgk.report(run).rows) >= 3
        assert pgk.report(run).reasons == ()
        torch._dynamo.reset()
    # AND not only one order was tried
    assert orders["others"] >= 5


def test_without_the_edges_it_would_be_seen(orders: dict[str, Any]) -> None:
    # GIVEN the same programs, whose nodes run in any order at all
    orders["edges"] = False
    for seed in range(4):
        program = Drawn(seed)
        run = pgk.parameterize(program.__call__, state=())
        # WHEN called THEN some differ, and are found out when their first launch is compared
        if differs(program, run) or pgk.report(run).reasons:
            return
    pytest.fail("no order was wrong")
