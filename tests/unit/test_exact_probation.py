"""A graph's probation, call by call: how often it is timed, what it is compared on, and what copies are made of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paramgraph_kit.capture.pair import Kind, Output
from paramgraph_kit.launch import probation
from paramgraph_kit.launch.probation import Measured, Probation, _differing

CPU = torch.device("cpu")


class Clock:
    """Time that passes only in calls; where the device is waited for counts."""

    def __init__(self) -> None:
        self.now, self.waits, self.calls = 0.0, 0, ""

    def call(self, name: str, us: float) -> Any:
        def called(inputs: list[Any]) -> str:
            self.now += (us + 1000 * (name not in self.calls)) / 1e6  # the first of each way takes long
            self.calls += name
            return name

        return called


def on_probation(
    monkeypatch: pytest.MonkeyPatch, graph_us: float, plain_us: float, **how: Any
) -> tuple[Probation, Clock]:
    clock = Clock()
    monkeypatch.setattr(probation, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def wait() -> None:
        clock.waits += 1

    driver: Any = SimpleNamespace(wait=wait)
    captured: Any = SimpleNamespace(outputs=[], returns_tuple=True)
    calls = clock.call("g", graph_us), clock.call("u", plain_us)
    return Probation(driver, captured, *calls, calls[1], verify="off", **how), clock


@pytest.mark.parametrize(
    ("graph_us", "plain_us", "each", "stays"),
    [
        (100, 200, 4, True),
        (100, 130, 4, True),
        (100, 125, 4, True),  # just clear
        (100, 124, 12, True),
        (100, 100, 12, True),
        (102, 100, 12, True),
        (104, 100, 12, False),
        (124, 100, 12, False),
        (126, 100, 4, False),
        (500, 100, 4, False),
    ],
)
def test_times_are_taken_four_times_each_way_and_twelve_where_they_are_close(
    monkeypatch: pytest.MonkeyPatch, graph_us: float, plain_us: float, each: int, stays: bool
) -> None:
    # GIVEN a graph that takes so long, and code without one that takes so long
    trial, clock = on_probation(monkeypatch, graph_us, plain_us, measure=True)
    # WHEN called until it is over
    while not trial.over:
        trial([])
    # THEN both were called in turns, the graph first, and the device was waited for around each call
    assert clock.calls == "gu" * each
    assert clock.waits == 4 * each
    # AND the first call of each does not count
    found = trial.measured
    assert found is not None
    assert (found.graph_us, found.ungraphed_us, found.samples) == pytest.approx((graph_us, plain_us, each - 1))
    assert (trial.failed is None) is stays
    if trial.failed is not None:
        assert trial.failed.code == "slower-as-graph"
    # AND nothing more is timed
    assert trial([]) == "g"
    assert clock.waits == 4 * each
    assert (trial.verified, trial.unordered) == (0, 0)


def test_a_graph_of_which_nothing_is_asked_has_nothing_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN / WHEN / THEN
    trial, clock = on_probation(monkeypatch, 1, 1, measure=False)
    assert trial.over
    assert (trial([]), clock.waits, trial.measured) == ("g", 0, None)
    assert Measured(1234.4, 5.6, 3).label == "1,234 us from a graph, 6 us without (medians of 3)"


@pytest.mark.parametrize(("verify", "then"), [("first", 1), ("always", 3)])
def test_the_first_launch_is_compared_or_each(verify: str, then: int) -> None:
    # GIVEN a launch that gives what the code gives
    def double(inputs: list[Any]) -> tuple[Any, ...]:
        (x,) = inputs
        inputs.clear()
        return (x * 2,)

    driver: Any = SimpleNamespace(
        random_state=lambda: None,
        set_random_state=lambda state: None,
        address_of=lambda x: x.data_ptr(),
        device=CPU,
    )
    captured: Any = SimpleNamespace(outputs=[Output(Kind.FRESH)], returns_tuple=True)
    trial = Probation(driver, captured, double, double, double, verify=verify, measure=False)
    assert not trial.over
    # WHEN called three times THEN so many were compared
    for n in range(3):
        assert trial([torch.ones(3) * n])[0].tolist() == [2.0 * n] * 3
    assert (trial.verified, trial.unordered, trial.failed) == (then, 0, None)
    assert trial.over is (verify == "first")


def test_what_differs_is_named_but_for_seeds_on_the_host() -> None:
    # GIVEN results and inputs of both, of which some differ
    one, two, seed = torch.ones(2), torch.tensor([1.0, 2.0]), torch.tensor(7)
    # WHEN compared THEN those are named
    assert set(_differing([one, one], [one, two, 3], [one, two], [one, one, 3])) == {"output 1", "input 1"}
    # AND a seed that is on the host without a graph is whatever was drawn there
    assert _differing([torch.tensor(8)], [], [seed], []) == {}
    assert set(_differing([one], [], [torch.ones(2, 1)], [])) == {"output 0"}
    assert _differing([one], [seed], [one], [seed]) == {}


def copies(*inputs: Any) -> Any:
    driver: Any = SimpleNamespace(address_of=lambda x: x.data_ptr(), device=CPU)
    target: Any = SimpleNamespace(_driver=driver)
    return Probation._copies(target, list(inputs))


def test_copies_share_memory_as_the_originals_do_and_nothing_else() -> None:
    # GIVEN tensors side by side in one storage, overlapping ones, one of its own, one of nothing, and a number
    base = torch.arange(40.0)
    given: list[Any] = [
        base[0:8],
        base[8:16],
        base[4:12],
        base.as_strided((2, 3), (10, 2), 20),
        torch.arange(3),
        base[:0],
        5,
    ]
    # WHEN copied
    made: list[Any] = copies(*given)
    # THEN each holds the same, laid out alike and aligned alike
    for mine, theirs in zip(made[:5], given[:5], strict=True):
        assert torch.equal(mine, theirs)
        assert (mine.shape, mine.stride(), mine.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
        assert mine.data_ptr() % 16 == theirs.data_ptr() % 16
    assert made[5] is given[5]
    assert made[6] == 5
    # AND what overlaps does so in the copies
    assert made[2].data_ptr() - made[0].data_ptr() == 16
    assert made[1].data_ptr() - made[0].data_ptr() == 32
    made[2].fill_(-1)
    assert made[0].tolist() == [0, 1, 2, 3, -1, -1, -1, -1]
    assert made[1].tolist() == [-1, -1, -1, -1, 12, 13, 14, 15]
    # AND no original has changed
    assert base.tolist() == list(range(40))


def test_memory_of_several_storages_has_no_copy() -> None:
    # GIVEN two storages over the same memory WHEN copied THEN that is given up, where the first does not hold it all
    base = torch.arange(8.0)
    pointer = base.data_ptr()

    def look(at: int, count: int) -> Any:
        return torch.frombuffer(base.numpy(), dtype=torch.float32, count=count, offset=4 * at)

    assert look(2, 4).data_ptr() == pointer + 8
    assert copies(look(0, 4), look(2, 4)) is None
    whole = copies(look(0, 8), look(2, 4))
    assert [x.tolist() for x in whole] == [list(range(8)), [2, 3, 4, 5]]
