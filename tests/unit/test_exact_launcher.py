"""What a launcher asks of each call: whose keys are whose, what dies in it, what it draws, and how long it takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch.autograd import forward_ad

from paramgraph_kit.capture.pair import capture_pair
from paramgraph_kit.driver.tensors import PLAIN
from paramgraph_kit.launch import launcher as launching
from paramgraph_kit.launch.launcher import Launcher
from paramgraph_kit.launch.plan import Workspace, make_plan
from tests.integration.launch_bench import DEVICE, DRIVER, launcher_of, launches, moved, variants


class Wrapped(torch.Tensor):
    """Has no memory of its own."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # looser
        raise NotImplementedError


@pytest.mark.parametrize("seeds", [(), (1,)])
@pytest.mark.parametrize("over", [False, True])
def test_a_launcher_with_seeds_that_may_come_on_the_host_is_settled_on_what_it_launches_alone(
    seeds: tuple[int, ...], over: bool
) -> None:
    # GIVEN a launcher with one graph, which it launches, and inputs that may be seeds
    only: Any = SimpleNamespace(launch=mock.sentinel.only, probation=SimpleNamespace(over=over))
    launcher: Any = SimpleNamespace(
        variants={"key": only},
        current=mock.sentinel.only,
        paused=False,
        code=SimpleNamespace(host_seeds=seeds),
        options=SimpleNamespace(select="always"),
        _key=lambda inputs: inputs[0],
    )
    # WHEN asked for what it launches, for inputs that it knows, and for others THEN seeds count of inputs
    assert Launcher.settled(launcher) is (only if over else None)
    assert Launcher.settled(launcher, ["key"]) is (only if over and not seeds else None)
    assert Launcher.settled(launcher, ["other"]) is None
    # AND while it is paused it is settled on nothing
    launcher.paused = True
    assert Launcher.settled(launcher) is None


def test_what_is_no_plain_tensor_of_the_device_has_a_key_by_its_device_and_kind() -> None:
    # GIVEN a tensor of the device, one of another, one of a class of its own, and one aligned to four bytes WHEN asked
    launcher = launcher_of(lambda x: (x + 1,))
    x = moved(64)
    # for keys THEN the first's is its alignment and bits, the others' where and what they are
    assert launcher._tensor_key(x) == (256, *PLAIN)
    assert launcher._tensor_key(x[1:]) == (4, *PLAIN)
    assert launcher._tensor_key(torch.ones(2, device="meta")) == ("meta", None)
    wrapped = torch.Tensor._make_wrapper_subclass(Wrapped, x.shape, dtype=x.dtype, device=x.device)
    assert launcher._tensor_key(wrapped) == (str(DEVICE), "a Wrapped")
    # AND where layouts may change they are in it
    launcher = launcher_of(lambda x: (x + 1,), layouts=True)
    assert launcher._tensor_key(x.view(8, 8).t()) == (256, *PLAIN, (8, 8), (1, 8))


@pytest.mark.parametrize("layouts", [False, True])
def test_the_usual_key_is_the_first_call_s_unless_layouts_may_change(layouts: bool) -> None:
    # GIVEN a launcher WHEN asked for keys of aligned inputs, and of others
    launcher = launcher_of(lambda x, y: (x + y,), layouts=layouts)
    x = moved(64)
    first = launcher._key([x, 2])
    usual = launcher._usual
    # THEN the first is kept, for good, where tensors alone tell what is launched
    assert (usual is None) is layouts
    assert launcher._key([x[1:], 2]) != first
    assert launcher._usual is usual
    assert launcher._key([moved(64), 2]) == first
    assert launcher._key([x, 3]) != first


def test_a_call_with_tangents_of_the_first_level_is_not_launched() -> None:
    # GIVEN a launcher that is warm, or new WHEN called where tangents are carried THEN it runs ungraphed
    launcher = launcher_of(lambda x: (x * 2,))
    x = moved(8)
    with forward_ad.dual_level():
        launcher([x])
    assert launcher.variants == {}
    for _ in range(2):
        launcher([x])
    assert launches(launcher) == 1
    with forward_ad.dual_level():
        launcher([x])
    assert launches(launcher) == 1


def test_inputs_that_nobody_else_holds_die_in_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a number, a tensor that is held, and one that the call alone has WHEN captured THEN the last one dies
    plan = mock.Mock(side_effect=make_plan)
    monkeypatch.setattr(launching, "make_plan", plan)
    held = moved(8)
    launcher_of(lambda n, x, y: (x * n + y,))([2.5, held, moved(8, seed=1) * 1])
    assert [each.args[1] for each in plan.call_args_list] == [[2]]


def test_a_capture_advances_random_numbers_by_what_the_call_has_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN random numbers drawn before, and a partition that draws none, or some WHEN captured THEN it is these
    capture = mock.Mock(side_effect=capture_pair)
    monkeypatch.setattr(launching, "capture_pair", capture)
    torch.rand(4, device=DEVICE)
    torch.rand(4, device=DEVICE)
    before = DRIVER.random_position()
    assert before > 0
    launcher_of(lambda x: (x + 1,))([moved(4)])
    launcher_of(lambda x: (x + torch.rand_like(x),))([moved(4)])
    none, some = [each.args[-1] for each in capture.call_args_list]
    assert none == 0
    assert 0 < some < before


def test_other_code_is_asked_for_where_no_graph_was_made() -> None:
    # GIVEN a launcher without variants, with one that was refused, and with one that is launched WHEN a capture fails
    run = mock.sentinel.run
    recut = mock.Mock(return_value=run)
    launcher = launcher_of(lambda x: (x + 1,), recut=recut)
    error = RuntimeError("captured")
    cases: list[tuple[Any, bool]] = [({}, True), ({(1,): None}, True), ({(1,): None, (2,): run}, False)]
    # THEN other code is asked for and runs, but in the last case
    for made, taken in cases:
        launcher.variants = made
        launcher.current = launcher._select
        assert launcher._recut(error, [], []) is taken
        assert (launcher.current is run) is taken
    assert [each.args for each in recut.call_args_list] == [(error,), (error,)]


def test_preparing_is_what_is_left_of_the_time_without_the_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a clock that goes by 7 seconds between two looks WHEN a graph is made
    looks = iter((1000.0, 1007.0))
    clock = SimpleNamespace(perf_counter=lambda: next(looks))
    monkeypatch.setattr(launching, "time", clock)
    launcher = launcher_of(lambda x: (x + 1,))
    launcher([moved(4)])
    # THEN its captures' time is not counted
    (variant,) = variants(launcher)
    assert variant.prepared_s == pytest.approx(7 - variant.captured.capture_s)
    assert 0 < variant.captured.capture_s < 7


def test_as_many_graphs_are_made_as_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a launcher that may have two graphs WHEN called with three numbers THEN the third call has none
    monkeypatch.setattr(launching, "MAX_VARIANTS", 2)
    launcher = launcher_of(lambda x, n: (x * n,))
    for n, (made, reasons) in enumerate(((1, 0), (2, 0), (2, 1), (2, 1))):
        launcher([moved(4), 2.0 + n])
        assert (len(variants(launcher)), len(launcher.reasons)) == (made, reasons)


def test_graphs_that_were_made_share_their_room() -> None:
    # GIVEN two graphs that take a block each, and one that was refused WHEN they share THEN both take the larger one
    launcher = launcher_of(lambda x: (x,))
    states = [SimpleNamespace(rooms=[n]) for n in (1024, 2048)]
    made: list[Any] = [
        SimpleNamespace(plan=SimpleNamespace(blocks=[Workspace(state.rooms[0], 0, 0)], stages=(None,)), state=state)
        for state in states
    ]
    launcher.variants = {(1,): made[0], (2,): None, (3,): made[1]}
    launcher.share_room()
    assert [state.rooms for state in states] == [[2048], [2048]]
