"""A graph's probation, call by call: how often it is timed, what it is compared on, and what copies are made of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paramgraph_kit.capture.pair import Kind, Output
from paramgraph_kit.driver.spread import BEYOND_NUMBERS, distance
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


def test_medians_are_looked_at_after_as_many_calls_of_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a graph that takes as long as code without one WHEN called until it is over
    trial, _ = on_probation(monkeypatch, 100, 100, measure=True)
    looked: list[int] = []

    def median(times: list[float]) -> float:
        looked.append(len(times))
        return 100.0

    monkeypatch.setattr(probation, "statistics", SimpleNamespace(median=median))
    while not trial.over:
        trial([])
    # THEN they were looked at from the fourth call of each on, of as many
    assert looked == [n for count in range(4, 13) for n in (count - 1, count - 1)]


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


def test_how_far_a_result_is_off_is_told_where_it_lies_alike() -> None:
    # GIVEN results that are off by a number, and that lie otherwise WHEN compared THEN only the first are measured
    one, square = torch.ones(2), torch.ones(2, 2)
    found = _differing([one, square], [], [one * 2, square.t()], [])
    assert found == {"output 0": distance(one, one * 2), "output 1": BEYOND_NUMBERS}
    assert distance(one, one * 2) != BEYOND_NUMBERS


def verified(launch: Any, run: Any, outputs: list[Output], returns_tuple: bool = True) -> Probation:
    driver: Any = SimpleNamespace(
        random_state=lambda: None, set_random_state=lambda state: None, address_of=lambda x: x.data_ptr(), device=CPU
    )
    captured: Any = SimpleNamespace(outputs=outputs, returns_tuple=returns_tuple)
    return Probation(driver, captured, launch, run, run, verify="always", measure=False)


@pytest.mark.parametrize("returns", [tuple, list])
def test_a_wrong_result_is_put_right_where_it_is_wrong(returns: type) -> None:
    # GIVEN a launch with a wrong result and a wrong number written into one of its inputs, which it returns
    def coded(right: bool) -> Any:
        def run(inputs: list[Any]) -> Any:
            x, y, n = inputs
            inputs.clear()
            y.fill_(n if right else 0)
            return returns([x * 2 if right else x * 3, y])

        return run

    trial = verified(coded(False), coded(True), [Output(Kind.FRESH), Output(Kind.ARGUMENT, 1)], returns is tuple)
    x, y = torch.ones(3), torch.zeros(3)
    version = x._version
    # WHEN called
    found: Any = trial([x, y, 5])
    # THEN results and inputs are right, what is the caller's stays that, and what was right is not written
    assert [type(found)] == [returns]
    assert found[0].tolist() == [2, 2, 2]
    assert found[1] is y
    assert y.tolist() == [5, 5, 5]
    assert x._version == version
    assert trial.failed is not None
    text = "input 1, output 0, output 1 differed from the ungraphed code's, which this call returned"
    assert (trial.failed.code, trial.failed.message) == ("wrong-result", text)
    assert (trial.verified, trial.unordered, trial.over) == (0, 0, True)


def test_what_differs_from_itself_as_much_is_counted_once_for_each_launch() -> None:
    # GIVEN code whose last bit is another one at each call WHEN compared twice THEN that is no wrong result
    calls: list[int] = []

    def run(inputs: list[Any]) -> Any:
        (x,) = inputs
        inputs.clear()
        calls.append(1)
        return (x + (len(calls) % 2) * 2**-23,)

    trial = verified(run, run, [Output(Kind.FRESH)])
    for count in (1, 2):
        trial([torch.ones(2)])
        assert (trial.verified, trial.unordered, trial.failed) == (0, count, None)


@pytest.mark.parametrize(("graph", "stays"), [(103.0, True), (103.5, False), (100.0, True)])
def test_a_graph_stays_that_takes_three_in_a_hundred_longer(
    monkeypatch: pytest.MonkeyPatch, graph: float, stays: bool
) -> None:
    # GIVEN eleven calls of each way that have been timed, and medians of a graph's and of 100 WHEN called once more
    trial, _ = on_probation(monkeypatch, 1, 1, measure=True)
    medians = iter((graph, 100.0))
    monkeypatch.setattr(probation, "statistics", SimpleNamespace(median=lambda times: next(medians)))
    trial._times = {True: [0.0] * 12, False: [0.0] * 11}
    trial([])
    # THEN it is over, and just so much longer is not longer
    assert trial.measured == Measured(graph, 100.0, 11)
    assert (trial.failed is None) is stays


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
    # AND bytes behind the numbers of one belong to the other alone
    whole = torch.arange(11, dtype=torch.uint8)
    made = copies(whole, whole[:8].view(torch.float32))
    assert made[0].tolist() == list(range(11))
    assert torch.equal(made[1].view(torch.uint8), whole[:8])
    assert made[1].data_ptr() == made[0].data_ptr()


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
