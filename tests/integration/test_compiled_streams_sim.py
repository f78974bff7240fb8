"""Streams of the user's inside ``torch.compile``: graphs that fork and join, with the bits of eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paramgraph_kit as pgk
from paramgraph_kit.backend.lanes import lanes_of
from paramgraph_kit.backend.registry import compiled_graphs
from paramgraph_kit.driver.torch_names import carries_streams
from paramgraph_kit.launch.launcher import Variant

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated"),
    pytest.mark.skipif(not carries_streams(), reason="graphs of this torch do not carry streams"),
]
cuda: Any = pgk.cuda
WIDTH = 32


@pytest.fixture(autouse=True)
def apart() -> Iterator[None]:
    pgk.device()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def data(seed: int, rows: int = 16, width: int = WIDTH) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).to(pgk.device())


def variants_since(before: set[int]) -> list[Variant]:
    launchers = [x for g in compiled_graphs() if id(g) not in before for x in g.launchers]
    return [v for launcher in launchers for v in launcher.variants.values() if v is not None]


def agree(function: Callable[..., Any], *makers: Callable[[int], Any], calls: int = 5) -> tuple[Any, list[Variant]]:
    """Compare each call of a compiled function with eager; the report, and what was captured."""
    before = {id(g) for g in compiled_graphs()}
    compiled: Any = torch.compile(function, backend="paramgraph", fullgraph=True)
    with torch.no_grad():
        for seed in range(calls):
            cuda.manual_seed(seed)
            expected = function(*[make(seed) for make in makers])
            cuda.manual_seed(seed)
            found = compiled(*[make(seed) for make in makers])
            pairs = zip(*(x if isinstance(x, (tuple, list)) else (x,) for x in (found, expected)), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs if isinstance(a, Tensor))
    return pgk.report(compiled), variants_since(before)


def deps(variant: Variant) -> list[tuple[int, ...]]:
    return [node.deps for node in variant.captured.recording.nodes]


def waits_of(function: Callable[..., Any], *makers: Callable[[int], Any]) -> list[tuple[int, ...]]:
    """The edges of the one graph that a function becomes."""
    report, (variant,) = agree(function, *makers)
    assert report.reasons == ()
    assert variant.state.launches >= 3
    return deps(variant)


def test_a_side_stream_is_a_branch_of_one_graph() -> None:
    # GIVEN a function that computes on two streams
    side = cuda.Stream()

    def function(x: Tensor) -> Tensor:
        here = cuda.current_stream()
        side.wait_stream(here)
        with cuda.stream(side):
            right = x.sin()
        left = x.cos().relu()
        here.wait_stream(side)
        return left + right

    # WHEN compiled THEN it is one graph, with a fork and a join, drawn as two lanes
    edges = waits_of(function, data)
    assert edges == [(), (), (1,), (0, 2)]
    assert sorted(set(lanes_of(edges))) == [0, 1]


def test_an_event_orders_what_comes_before_it_and_no_more() -> None:
    # GIVEN one stream that waits for the middle of the other's work
    side, half = cuda.Stream(), cuda.Event()

    def function(x: Tensor) -> Tensor:
        here = cuda.current_stream()
        a = x.sin()
        half.record(here)
        b = a.cos()
        with cuda.stream(side):
            side.wait_event(half)
            c = a.exp()
        here.wait_stream(side)
        return b * c

    # WHEN compiled THEN the side's work depends on the first kernel only
    assert waits_of(function, data) == [(), (0,), (0,), (1, 2)]


def test_a_wait_that_orders_more_than_the_values_is_kept() -> None:
    # GIVEN work on the side that needs nothing of what it waits for: its memory may be used again by then
    side = cuda.Stream()

    def function(x: Tensor, y: Tensor) -> Tensor:
        here = cuda.current_stream()
        a = x.sin()
        side.wait_stream(here)
        with cuda.stream(side):
            b = y.cos()
        here.wait_stream(side)
        return a + b

    assert waits_of(function, data, lambda seed: data(seed + 50)) == [(), (0,), (0, 1)]


def test_a_wait_that_was_forgotten_is_made() -> None:
    # GIVEN a function that never joins: eager on a device would race
    side = cuda.Stream()

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        a = x.sin()
        with cuda.stream(side):
            b = a.exp()
        return a + b, b.sqrt()

    # WHEN compiled THEN each use is behind what it uses
    assert waits_of(function, data) == [(), (0,), (0, 1), (2,)]


def test_a_write_waits_for_readers_on_other_streams() -> None:
    # GIVEN a state that one stream reads and another then writes
    side = cuda.Stream()

    def function(x: Tensor, state: Tensor) -> Tensor:
        with cuda.stream(side):
            read = state * 2
        state.add_(x)
        return read

    states = {True: data(90), False: data(90)}
    compiled: Any = torch.compile(function, backend="paramgraph")
    before = {id(g) for g in compiled_graphs()}
    # WHEN called again and again
    for seed in range(5):
        assert torch.equal(compiled(data(seed), states[True]), function(data(seed), states[False]))
        assert torch.equal(states[True], states[False])
    # THEN the write is behind the reader
    (variant,) = variants_since(before)
    names = [node.name.partition(".")[0] for node in variant.captured.recording.nodes]
    assert names == ["mul", "add", "memcpy"]
    assert deps(variant) == [(), (), (0, 1)]


def test_batches_in_parallel_share_no_memory_and_meet_at_the_end() -> None:
    # GIVEN four batches, each on a stream of its own, with temporaries of 64 KiB
    streams = [cuda.Stream() for _ in range(4)]

    def function(x: Tensor) -> Tensor:
        here, found = cuda.current_stream(), []
        for n, stream in enumerate(streams):
            stream.wait_stream(here)
            with cuda.stream(stream):
                found.append((x * (n + 1)).sin().cos().exp())
        for stream in streams:
            here.wait_stream(stream)
        return torch.stack(found).sum(0)

    report, (variant,) = agree(function, lambda seed: data(seed, 128, 128))
    # THEN there are four branches, none of which waits for another
    edges = deps(variant)
    assert report.reasons == ()
    assert sum(not before for before in edges) == 4
    assert len(set(lanes_of(edges))) == 4
    # AND temporaries of branches that run side by side lie apart: one after the other they would fit in less
    assert variant.plan.workspace_bytes >= 4 * 2 * (128 * 128 * 4)


def test_memory_is_used_again_behind_a_join() -> None:
    # GIVEN two rounds of work on a side stream with a join between them
    side = cuda.Stream()

    def function(x: Tensor) -> Tensor:
        here = cuda.current_stream()
        for _ in range(2):
            side.wait_stream(here)
            with cuda.stream(side):
                a = x.sin().cos()
            b = x.exp()
            here.wait_stream(side)
            x = a + b
        return x

    # WHEN compiled THEN the second round's temporaries lie where the first's did
    _, (variant,) = agree(function, lambda seed: data(seed, 128, 128))
    assert variant.plan.workspace_bytes <= 4 * 128 * 128 * 4


def test_other_streams_and_events_at_the_next_call_are_waited_for() -> None:
    # GIVEN a function that is given its stream and event
    def function(x: Tensor, side: Any, done: Any) -> Tensor:
        here = cuda.current_stream()
        side.wait_stream(here)
        with cuda.stream(side):
            y = x.sin()
            done.record()
        here.wait_event(done)
        return y * x

    compiled: Any = torch.compile(function, backend="paramgraph", fullgraph=True)
    waited: list[tuple[Any, Any]] = []
    wait_stream = cuda.Stream.wait_stream

    def listening(stream: Any, other: Any) -> None:
        waited.append((stream, other))
        wait_stream(stream, other)

    # WHEN called with others each time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda.Stream, "wait_stream", listening)
        for seed in range(5):
            side, done = cuda.Stream(), cuda.Event()
            waited.clear()
            y = compiled(data(seed), side, done)
            # THEN the call is behind this stream's work, and this stream behind the call; this event has happened
            here = cuda.current_stream()
            assert {(here, side), (side, here)} <= set(waited)
            assert done.recorded_at is not None
            assert done.query()
            assert torch.equal(y, data(seed).sin() * data(seed))
    assert sum(row.launches for row in pgk.report(compiled).rows) >= 3


def test_a_stream_that_is_made_inside_is_a_branch() -> None:
    def function(x: Tensor) -> Tensor:
        side = cuda.Stream()
        ready = cuda.Event()
        ready.record()
        with cuda.stream(side):
            side.wait_event(ready)
            y = x.sin()
        cuda.current_stream().wait_stream(side)
        return y + x.cos()

    assert waits_of(function, data)[0] == ()


def test_an_event_from_outside_is_waited_for_before_the_launch() -> None:
    # GIVEN a function whose side stream waits for an event that was recorded outside
    side, outside = cuda.Stream(), cuda.Event()

    def function(x: Tensor) -> Tensor:
        with cuda.stream(side):
            side.wait_event(outside)
            y = x.sin()
        cuda.current_stream().wait_stream(side)
        return y * 2

    waited: list[Any] = []
    compiled: Any = torch.compile(function, backend="paramgraph", fullgraph=True)
    wait_event = cuda.Stream.wait_event

    def listening(stream: Any, event: Any) -> None:
        if event is outside:
            waited.append(stream)
        wait_event(stream, event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda.Stream, "wait_event", listening)
        for seed in range(4):
            outside.record()
            waited.clear()
            assert torch.equal(compiled(data(seed)), function(data(seed)))
            # THEN the stream that launches has waited for it, at each call
            assert cuda.current_stream() in waited


def test_what_no_graph_takes_stands_between_graphs_with_lanes() -> None:
    # GIVEN a function with streams around an operation whose size the host must know
    side = cuda.Stream()

    def function(x: Tensor) -> Tensor:
        here = cuda.current_stream()
        side.wait_stream(here)
        with cuda.stream(side):
            a = x.sin()
        b = x.cos()
        here.wait_stream(side)
        places = (a + b).flatten().nonzero()
        with cuda.stream(side):
            side.wait_stream(here)
            c = a.exp()
        d = b.exp()
        here.wait_stream(side)
        return c * d + places.sum()

    # WHEN compiled THEN what is around it is launched
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        report, variants = agree(function, data)
    assert {reason.code for reason in report.reasons} == {"unbacked-op"}
    assert len(variants) >= 2
    assert all(v.state.launches for v in variants)
    assert max(len(set(lanes_of(deps(v)))) for v in variants) == 2


@pytest.mark.parametrize("host", ["event", "stream"])
def test_where_the_host_waits_the_graph_is_cut(host: str) -> None:
    side, done = cuda.Stream(), cuda.Event()

    def function(x: Tensor) -> Tensor:
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            y = x.sin()
            done.record()
        done.synchronize() if host == "event" else side.synchronize()
        return y * x

    report, variants = agree(function, data)
    assert {reason.code for reason in report.reasons} == {"user-stream"}
    assert all("the host waits" in reason.message for reason in report.reasons)
    assert all(v.state.launches for v in variants)


class Branches(nn.Module):
    """Two branches with dropout, the second on a stream of its own."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.side, self.done = cuda.Stream(), cuda.Event()

    def forward(self, x: Tensor) -> Tensor:
        here, ready = cuda.current_stream(), cuda.Event()
        ready.record(here)
        with cuda.stream(self.side):
            self.side.wait_event(ready)
            right = nn.functional.dropout(self.right(x).sin(), self.p)
            self.done.record()
        left = self.left(x).relu()
        here.wait_event(self.done)
        product: Tensor = left * right
        return product.square()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_training_forks_in_the_forward_and_gives_eager_s_gradients(checkpointed: bool) -> None:
    # GIVEN a model that trains on two streams
    torch.manual_seed(0)
    model = Branches(0.0 if checkpointed else 0.2).to(pgk.device())

    def forward(x: Tensor) -> Tensor:
        if not checkpointed:
            return model(x)  # type: ignore[no-any-return]
        found: Tensor = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
        return found

    compiled: Any = torch.compile(forward, backend="paramgraph")
    before = {id(g) for g in compiled_graphs()}
    for seed in range(5):
        found = []
        for run in (forward, compiled):
            cuda.manual_seed(seed)
            x = data(seed).requires_grad_()
            model.zero_grad()
            y = run(x)
            y.mean().backward()
            assert x.grad is not None
            found.append([y.detach(), x.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        # WHEN compiled THEN no bit differs, forward or backward
        assert len(found[0]) == 6
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    if not checkpointed:
        assert pgk.report(compiled).reasons == ()
        assert all(len(set(lanes_of(deps(v)))) == 2 for v in variants_since(before))


def test_a_call_on_another_stream_is_behind_the_call_before() -> None:
    # GIVEN a compiled function with a stream inside WHEN called on two streams in turn THEN its results are right
    side = cuda.Stream()

    def function(x: Tensor) -> Tensor:
        here = cuda.current_stream()
        side.wait_stream(here)
        with cuda.stream(side):
            y = x.sin()
        here.wait_stream(side)
        return y + x

    compiled: Any = torch.compile(function, backend="paramgraph", fullgraph=True)
    streams = [cuda.Stream() for _ in range(2)]
    for seed in range(6):
        with cuda.stream(streams[seed % 2]):
            assert torch.equal(compiled(data(seed)), function(data(seed)))
            assert cuda.current_stream() == streams[seed % 2]
    assert sum(row.launches for row in pgk.report(compiled).rows) >= 4
