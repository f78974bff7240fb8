"""What the simulated device says that it does not know, and where it says nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.driver.sim import pinned
from paramgraph_kit.driver.sim.not_known import NotKnownWarning

cuda: Any = pgk.cuda
sim = pgk.device()
TWICE = torch.tensor([0, 0, 1], device=sim)
OTHERS = torch.tensor([2, 0, 1], device=sim)
NUMBERS = torch.arange(3.0, device=sim)
MANY = torch.arange(64, device=sim) // 2  # places, of which each comes twice, for more than one warp writes
VALUES = torch.arange(64.0, device=sim)
CLOSE = torch.tensor([1.0, 1.0000001, 0.5, -torch.inf, -torch.inf], device=sim)


def told(run: Callable[[], object]) -> list[str]:
    """What warnings say as this runs eagerly, and then as its graph does."""
    graph, found = cuda.CUDAGraph(), list[str]()
    with cuda.graph(graph):
        run()
    for each in (run, graph.replay):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            each()
        found += {str(one.message) for one in said if one.category is NotKnownWarning}
    return found


def zeros(*sizes: int) -> torch.Tensor:
    """A tensor to write to."""
    return torch.zeros(sizes or (4,), device=sim)


UNKNOWN: dict[str, tuple[str, Callable[[], object]]] = {
    "index_put": ("which write stays", lambda: zeros(32).index_put_((MANY,), VALUES)),
    "index_put of two": ("which write stays", lambda: zeros(32, 32).index_put_((MANY, MANY), VALUES)),
    "scatter": ("which write stays", lambda: zeros(32).scatter(0, MANY, VALUES)),
    "index_copy": ("which write stays", lambda: zeros(32).index_copy_(0, MANY, VALUES)),
    "put": ("which write stays", lambda: zeros(32).put_(MANY, VALUES)),
    "unpooling": (
        "which write stays",
        lambda: torch.nn.functional.max_unpool2d(VALUES[None, None], MANY[None, None], [1, 1], output_size=(1, 64)),
    ),
    "what overlaps itself": ("which write stays", lambda: zeros(65).unfold(0, 2, 1).add_(VALUES[:2])),
    "a copy there": ("which write stays", lambda: zeros(65).unfold(0, 2, 1).copy_(VALUES[:2] * VALUES[:, None])),
    "argmax": ("which number comes first", lambda: CLOSE.argmax()),
    "argmin of rows": ("which number comes first", lambda: (-CLOSE)[None].argmin(-1)),
    "max": ("which number comes first", lambda: CLOSE.max(0)),
    "sort": ("which number comes first", lambda: CLOSE.sort()),
    "topk": ("which number comes first", lambda: CLOSE.topk(2)),
}

KNOWN: dict[str, Callable[[], object]] = {
    "one warp": lambda: zeros().index_put_((TWICE,), NUMBERS),
    "places that differ": lambda: zeros().index_put_((OTHERS,), NUMBERS),
    "the same in one place": lambda: zeros().index_put_((TWICE,), NUMBERS * 0),
    "sums": lambda: zeros().index_put_((TWICE,), NUMBERS, accumulate=True),
    "scatter": lambda: zeros().scatter_(0, OTHERS, NUMBERS),
    "sums of scatter": lambda: zeros().scatter_add_(0, TWICE, NUMBERS),
    "overlaps, and is the same": lambda: zeros().as_strided((2, 3), (1, 1)).add_(1),
    "steps": lambda: zeros()[::2].add_(1),
    "equal": lambda: torch.stack([NUMBERS, NUMBERS]).flatten().argmax(),
    "infinite": lambda: CLOSE[2:].sort(),
    "halves": lambda: CLOSE.half().max(0),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_a_gpu_leaves_open_is_said_eagerly_and_by_replays(name: str) -> None:
    """GIVEN what depends on a GPU's threads or on rounding WHEN it runs, or its graph THEN a warning says so."""
    what, run = UNKNOWN[name]
    said = told(run)
    assert len(said) == 2
    assert all(f"the simulated device does not know {what}" in each for each in said)


@pytest.mark.parametrize("name", KNOWN)
def test_nothing_is_said_of_what_is_known(name: str) -> None:
    """GIVEN what looks alike, and is the same on each GPU WHEN it runs THEN nobody is warned."""
    assert not told(KNOWN[name])


def test_of_what_one_warp_writes_to_a_place_the_first_stays() -> None:
    # GIVEN places that come twice among a few WHEN they are written in other ways THEN what came first is there
    rows = torch.arange(6.0, device=sim).view(3, 2)
    assert zeros().index_put_((TWICE,), NUMBERS + 5).tolist() == [5, 7, 0, 0]
    assert zeros().index_put_((-TWICE,), NUMBERS + 5).tolist() == [5, 0, 0, 7]
    assert zeros(2, 2).index_put_((TWICE,), rows).tolist() == [[0, 1], [4, 5]]
    assert zeros(2, 2).scatter(1, TWICE[None], NUMBERS[None] + 5)[0].tolist() == [5, 7]
    assert zeros(2, 2).T.index_copy_(1, TWICE, rows.T).tolist() == [[0, 4], [1, 5]]
    x = zeros()
    x.unfold(0, 2, 1).copy_(rows)
    assert x.tolist() == [0, 1, 3, 5]


def test_places_written_over_themselves_are_read_before() -> None:
    """GIVEN windows of one tensor WHEN 1 is added to them THEN it is added once, as each thread reads first."""
    x = zeros()
    x.unfold(0, 2, 1).add_(1)
    assert x.tolist() == [1, 1, 1, 1]


def test_memory_that_was_freed_and_served_others_is_said_by_the_replay() -> None:
    # GIVEN a graph that reads tensors which are freed
    held, graph = [zeros(256), zeros(256)], cuda.CUDAGraph()
    with cuda.graph(graph):
        y = held[0] + held[1]
    held.clear()
    # WHEN it is replayed before others have that memory, and after
    graph.replay()
    others = [torch.full((256,), 7.0, device=sim) for _ in range(2)]
    # THEN only the latter says that what lies there is not known
    with pytest.warns(NotKnownWarning, match="it was freed since the capture, and served others"):
        graph.replay()
    assert len(others) == 2
    assert y.numel()


def test_an_index_out_of_range_says_what_a_gpu_does_later() -> None:
    """GIVEN an index out of range WHEN it is used THEN a warning tells that a GPU fails later, and for good."""
    with pytest.warns(NotKnownWarning, match="device-side assert"), pytest.raises(IndexError):
        NUMBERS[OTHERS + 2]
    # AND where warnings are errors, the error stays what it is, and has that as a note
    with pytest.raises(IndexError) as raised:
        NUMBERS[OTHERS + 3]
    assert ["device-side assert" in note for note in raised.value.__notes__] == [True]


def test_a_process_has_32_streams_of_a_priority() -> None:
    # GIVEN more streams than a GPU's pool has WHEN they are compared THEN the first ones come again, in turn
    streams = [cuda.Stream(priority=-3) for _ in range(34)]
    assert streams[32] == streams[0]
    assert streams[33] == streams[1]
    assert len(set(streams)) == 32
    assert streams[0] != cuda.Stream(priority=-2)
    # and one that needs memory while another captures, and may have some, says so before it fails
    said = pytest.warns(NotKnownWarning, match="a process has 32")
    with pytest.raises(torch.AcceleratorError), cuda.graph(cuda.CUDAGraph()), cuda.stream(streams[33]), said:
        zeros()
    pgk.diagnose.repair()


def test_an_external_stream_works_as_its_stream_and_equals_it_not() -> None:
    # GIVEN the raw number of a stream WHEN a capture runs on it THEN it is that stream, which it does not equal
    side, graph = cuda.Stream(), cuda.CUDAGraph()
    outside = cuda.ExternalStream(side.cuda_stream)
    assert outside != side
    assert outside == cuda.ExternalStream(side.cuda_stream)
    with cuda.graph(graph, stream=outside):
        assert side.is_capturing()
        y = NUMBERS + 1
    graph.replay()
    assert y.tolist() == [1, 2, 3]
    none = cuda.ExternalStream(0)  # the number of the default stream stands for none: torch gives one of its own
    assert none != cuda.default_stream()
    assert none.cuda_stream


@pytest.mark.skipif(torch.__version__ < "2.12", reason="it is as it was")
def test_what_versions_of_torch_do_in_other_ways_is_said() -> None:
    # GIVEN what torch does in Python in another way since 2.13 WHEN it is used THEN that is said, of captures in these
    with pytest.warns(NotKnownWarning, match=r"Adagrad.*since torch 2.13"):
        torch.optim.Adagrad([zeros()], fused=True)
    torch.nn.init.trunc_normal_(zeros())
    with cuda.graph(cuda.CUDAGraph()):
        zeros()
        with pytest.warns(NotKnownWarning, match=r"save_on_cpu.*since torch 2.13"):
            torch.autograd.graph.save_on_cpu(pin_memory=True)


@pytest.mark.skipif(not pinned._where, reason="factories make no pinned memory with this torch")
def test_pinned_memory_beside_a_capture_may_not_be_there() -> None:
    # GIVEN a capture WHEN a factory pins memory in it, and on a stream beside it THEN only the latter is said
    side = cuda.Stream()
    with cuda.graph(cuda.CUDAGraph()):
        zeros()
        torch.ones(3, pin_memory=True)
        with cuda.stream(side), pytest.warns(NotKnownWarning, match="whether there is pinned memory"):
            torch.ones(3, pin_memory=True)


def put(x: torch.Tensor) -> torch.Tensor:
    """Writes a place twice."""
    y = torch.zeros(32, device=x.device)
    y[MANY] = x
    return y


def test_diagnose_and_traces_tell_it_at_its_line() -> None:
    """GIVEN a function that writes a place twice WHEN it is looked at, or watched THEN note and trace name its line."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = pgk.diagnose(put, VALUES)
        with pgk.watch() as trace:
            put(VALUES)
    assert not found.codes
    assert any("which write stays" in note and "y[MANY] = x" in note for note in found.notes)
    (failure,) = trace.failures
    line = put.__code__.co_firstlineno + 3
    assert failure.code == "not-known"
    assert failure.frame is not None
    assert failure.frame.line == line
