"""A graph on probation: ``verify`` compares its launches with the ungraphed code, ``measure`` keeps what is quicker."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import paramgraph_kit as pgk
from paramgraph_kit.launch import probation
from paramgraph_kit.launch.launcher import Launcher, Options
from tests.integration.launch_bench import (
    DEVICE,
    DRIVER,
    assert_same,
    codes,
    host,
    launcher_of,
    launches,
    moved,
    variants,
)

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")


def mixed(x: Tensor, y: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Writes into an input, returns a view of one, draws random numbers, takes a number."""
    x.mul_(n)
    return x.t(), x + torch.rand_like(x), y[1:]


def arguments(seed: int) -> list[Any]:
    return [moved(4, 6, seed=seed), moved(5, 3, seed=seed)[:, :2], 3]


def spoil(launcher: Launcher, by: float) -> None:
    """Let the graph return wrong numbers: after each launch all float outputs and inputs are off."""
    (variant,) = variants(launcher)
    right = variant.probation._launch

    def wrong(inputs: list[Any]) -> Any:
        given = list(inputs)
        outputs = right(inputs)
        given[0].add_(by)
        return outputs

    variant.probation._launch = variant.launch = wrong


@pytest.mark.parametrize("verify", ["first", "always"])
def test_verified_launches_are_eagers_and_counted(verify: str) -> None:
    # GIVEN a launcher that compares, and a twin in eager with the same random numbers
    launcher = launcher_of(mixed, options=Options(verify=verify))
    for seed in range(4):
        torch.manual_seed(seed)
        mine, theirs = arguments(seed), arguments(seed)
        torch.manual_seed(seed)
        found = launcher(list(mine))
        after = DRIVER.random_state()
        torch.manual_seed(seed)
        # WHEN called THEN results, written inputs and the generator are eager's
        assert_same(found, mixed(*theirs))
        assert_same(mine[:2], theirs[:2])
        assert DRIVER.random_state() == after
        assert found[0].data_ptr() == mine[0].data_ptr()
    # AND as many launches were compared as were asked for
    (variant,) = variants(launcher)
    assert (launches(launcher), variant.probation.verified) == (3, 1 if verify == "first" else 3)
    assert (variant.probation.over, launcher.ungraphed_calls, codes(launcher)) == (verify == "first", 1, [])


def test_a_wrong_number_is_not_returned() -> None:
    # GIVEN a graph that gives wrong numbers WHEN its launch is compared
    launcher = launcher_of(mixed, options=Options(verify="first"))
    launcher(arguments(0))
    spoil(launcher, 1.0)
    mine, theirs = arguments(1), arguments(1)
    torch.manual_seed(7)
    found = launcher(list(mine))
    torch.manual_seed(7)
    # THEN the caller has the right ones, in results and inputs, and the aliasing too
    assert_same(found, mixed(*theirs))
    assert_same(mine[:2], theirs[:2])
    assert found[0].data_ptr() == mine[0].data_ptr()
    # AND the graph is given up, with the reason
    assert (codes(launcher), variants(launcher)) == (["wrong-result"], [])
    (reason,) = launcher.reasons
    assert reason.message == "input 0, output 0 differed from the ungraphed code's, which this call returned"
    assert_same(launcher(arguments(2))[2:], mixed(*arguments(2))[2:])
    assert launcher.ungraphed_calls == 2


def test_what_attention_keeps_on_the_host_outside_of_captures_is_not_compared() -> None:
    # GIVEN code that returns a number drawn on the host, and on the device under capture, as attention does
    def attention(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, torch.zeros((), dtype=torch.int64, device=DEVICE if DRIVER.is_capturing() else "cpu")

    launcher = launcher_of(attention, options=Options(verify="always"))
    for seed in range(3):
        # WHEN its launches are compared THEN that is no wrong result
        assert torch.equal(launcher([moved(4, seed=seed)])[0], moved(4, seed=seed) * 2)
    (variant,) = variants(launcher)
    assert (launches(launcher), variant.probation.verified, codes(launcher)) == (2, 2, [])


def test_where_the_ungraphed_code_differs_from_itself_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN code whose numbers change from run to run, as sums in no fixed order do
    launcher = launcher_of(mixed, options=Options(verify="first"))
    launcher(arguments(0))
    spoil(launcher, 1.0)
    (variant,) = variants(launcher)
    plain, runs = variant.probation._run, list[None]()

    def unsure(inputs: list[Any]) -> Any:
        runs.append(None)
        inputs[0].add_(len(runs))
        return plain(inputs)

    monkeypatch.setattr(variant.probation, "_run", unsure)
    # WHEN compared THEN the graph's result stands
    launcher(arguments(1))
    assert (len(runs), codes(launcher), variant.probation.verified) == (2, [], 0)


def test_inputs_that_share_memory_share_it_in_the_comparison() -> None:
    # GIVEN inputs on one storage, alike, overlapping or side by side, one of which is written
    launcher = launcher_of(_write_and_sum, options=Options(verify="always"))
    for seed in range(6):
        x = moved(8, 64, seed=seed)
        expected = host(x).clone()
        pairs = [[(t[:4], t[:4]), (t[:4], t[2:6]), (t[:4], t[4:])][seed % 3] for t in (x, expected)]
        # WHEN launched THEN the result is right, and so is what was written
        (found,) = launcher(list(pairs[0]))
        assert torch.equal(host(found), _write_and_sum(*pairs[1])[0])
        assert torch.equal(host(x), expected)
    # AND each launch was compared
    (variant,) = variants(launcher)
    assert (launches(launcher), variant.probation.verified, codes(launcher)) == (5, 5, [])


def test_inputs_side_by_side_are_compared_though_their_storages_are_two() -> None:
    # GIVEN inputs that fill their blocks, one behind the other
    blocks = sorted((torch.ones(4, 32, device=DEVICE) for _ in range(40)), key=DRIVER.address_of)
    beside = [(a, b) for a, b in pairwise(blocks) if DRIVER.address_of(b) - DRIVER.address_of(a) == a.nbytes]
    one, two = beside[0]
    launcher = launcher_of(_write_and_sum, options=Options(verify="always"))
    # WHEN launched THEN each launch is compared
    for _ in range(3):
        launcher([one, two])
    assert variants(launcher)[0].probation.verified == launches(launcher) == 2


def test_memory_of_two_storages_is_launched_and_not_compared() -> None:
    # GIVEN two storages that overlap, as no allocator makes them
    launcher = launcher_of(_write_and_sum, options=Options(verify="always"))
    arguments = [moved(4, 8), moved(4, 8)]
    launcher(arguments)
    (variant,) = variants(launcher)
    near = variant.probation._driver.address_of
    variant.probation._driver = Overlapping(variant.probation._driver, near)  # type: ignore[assignment]
    # WHEN launched THEN nothing is claimed
    launcher([moved(4, 8), moved(4, 8)])
    assert (launches(launcher), variant.probation.verified) == (1, 0)


class Overlapping:
    """A driver whose addresses are all the same one."""

    def __init__(self, driver: Any, address_of: Any) -> None:
        self._driver, self._addresses, self._address_of = driver, list[int](), address_of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def address_of(self, x: Tensor) -> int:
        self._addresses.append(self._address_of(x))
        return self._addresses[0] + 16 * (len(self._addresses) - 1)


def _write_and_sum(x: Tensor, y: Tensor) -> tuple[Tensor]:
    x.mul_(2)
    return (x.sum() + y.sum(),)


class Clock:
    """Time as a test says: each call of the graph takes ``graph`` microseconds, each without ``plain``."""

    def __init__(self, graph: float, plain: float) -> None:
        self.now, self.taken, self.order = 0.0, {True: graph, False: plain}, list[bool]()

    def perf_counter(self) -> float:
        return self.now

    def watch(self, launcher: Launcher) -> None:
        (variant,) = variants(launcher)
        for name, way in (("_launch", True), ("_ungraphed", False)):
            setattr(variant.probation, name, self._slow(getattr(variant.probation, name), way))

    def _slow(self, run: Any, way: bool) -> Any:
        def call(inputs: list[Any]) -> Any:
            self.now += self.taken[way] / 1e6
            self.order.append(way)
            return run(inputs)

        return call


@pytest.mark.parametrize(
    ("graph", "plain", "samples", "stays"),
    [
        (10, 30, 4, True),
        (30, 10, 4, False),
        (1024, 1024, 12, True),
        (1024, 1008, 12, True),  # by chance as well as not: what pays is not kept out
        (1024, 960, 12, False),
        (960, 1024, 12, True),
    ],
)
def test_the_quicker_way_is_kept(
    graph: float, plain: float, samples: int, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a launcher that measures, and a clock
    clock = Clock(graph, plain)
    monkeypatch.setattr(probation, "time", clock)
    launcher = launcher_of(mixed, options=Options(select="measure"))
    launcher(arguments(0))
    clock.watch(launcher)
    (variant,) = variants(launcher)
    # WHEN it is called as often as is measured, and then more
    for seed in range(1, 2 * samples + 4):
        torch.manual_seed(seed)
        mine, theirs = arguments(seed), arguments(seed)
        torch.manual_seed(seed)
        found = launcher(mine)
        torch.manual_seed(seed)
        assert_same(found, mixed(*theirs))
    # THEN both ways were tried in turns, longer where it is not clear, and the quicker one is used since
    assert clock.order == [True, False] * samples
    measured = variant.probation.measured
    assert measured is not None
    assert measured.label == f"{graph:,.0f} us from a graph, {plain:,.0f} us without (medians of {samples - 1})"
    assert variant.state.launches == (samples + 3 if stays else samples)
    assert codes(launcher) == ([] if stays else ["slower-as-graph"])
    if not stays:
        assert launcher.reasons[0].message == f"one call took {measured.label}"


def test_a_launch_is_compared_before_it_is_timed_and_always_after() -> None:
    # GIVEN both options WHEN called THEN the first launch is compared, the next are timed, all later ones are compared
    launcher = launcher_of(mixed, options=Options(select="measure", verify="always"))
    launcher(arguments(0))
    (variant,) = variants(launcher)
    verified = []
    for seed in range(1, 2 * probation.MOST + 5):
        launcher(arguments(seed))
        verified.append(variant.probation.verified)
    measured = variant.probation.measured
    assert measured is not None
    if variant.probation.failed is None:
        timed = 1 + 2 * (measured.samples + 1)
        assert verified == [1] * timed + list(range(2, 2 + len(verified) - timed))


def test_the_report_shows_what_was_measured_and_compared() -> None:
    # GIVEN a compiled function with both options WHEN called often enough
    x = torch.randn(8, 8, device=DEVICE)
    compiled = pgk.compile(lambda x: (x @ x).relu().sum(0), select="measure", verify="first")
    with torch.no_grad():
        for _ in range(2 * probation.MOST + 2):
            compiled(x.clone())
    # THEN the report has both
    report = pgk.report(compiled)
    (row,) = report.rows
    said = f"{row.measured} {' '.join(reason.label() for reason in report.reasons)}"
    assert "us from a graph" in said
    if row.graphed:
        assert (row.verified, "compared and equal" in str(report)) == (1, True)
