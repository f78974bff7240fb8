"""Addresses that stay are written once: which ones is a guess, and no number depends on it."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from paramgraph_kit.driver.api import Binding, Stays
from paramgraph_kit.driver.sim import cuda_twin
from paramgraph_kit.driver.sim.driver import SimDriver
from paramgraph_kit.launch import settled
from paramgraph_kit.launch.generate import Form
from paramgraph_kit.launch.launcher import Launcher, Options
from tests.integration.launch_bench import DEVICE, DRIVER, assert_same, launcher_of, launches, moved, variants

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")


class Written(SimDriver):
    """The simulator's driver, noting which words each patch writes and what each executable was made with."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[int] = []
        self.made: list[Stays | None] = []

    def instantiate(self, *args: Any, stays: Stays | None = None, **how: Any) -> Any:
        made = super().instantiate(*args, stays=stays, **how)
        self.made.append(stays)
        patch = made.patch

        def noting(addresses: Sequence[int]) -> None:
            self.words.append(len(made._words))
            patch(addresses)

        made.patch = noting
        return made


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settle after three launches, and look again after six."""
    monkeypatch.setattr(settled, "AFTER", 3)
    monkeypatch.setattr(settled, "LONGER", 2)


def layers(x: Tensor, *weights: Tensor) -> tuple[Tensor]:
    """Twenty kernels, one of which reads the input."""
    for weight in weights:
        x = torch.tanh(x * weight)
    return (x,)


def stage(launcher: Launcher) -> Any:
    (variant,) = variants(launcher)
    return variant.executables[0]


def test_where_only_inputs_and_results_move_only_their_words_are_written() -> None:
    # GIVEN a function of weights that stay and an input that does not
    spy = Written()
    launcher = launcher_of(layers, driver=spy)
    weights = [moved(64, seed=k) for k in range(20)]
    kept = []
    for call in range(14):
        x = moved(64, seed=call)
        # WHEN it is launched again and again THEN each result is the ungraphed one, to the bit
        kept.append(launcher([x, *weights]))
        assert_same(kept[-1], layers(x, *weights))
    # AND once that has shown, the words of the first and the last kernel are written alone
    assert stage(launcher).settled
    (_, stays) = spy.made
    assert stays is not None
    assert len(stays.moving) == 2
    whole, part = max(spy.words), spy.words[-1]
    assert (whole, part) == (spy.words[0], 5)
    assert whole > 60
    assert spy.words[-5:] == [part] * 5


def test_an_address_that_was_taken_to_stay_and_moves_is_a_launch_of_the_first_executable() -> None:
    # GIVEN a launcher that takes its weights to stay
    spy = Written()
    launcher = launcher_of(layers, driver=spy)
    weights, others = ([moved(64, seed=seed + k) for k in range(20)] for seed in (0, 50))
    for call in range(10):
        launcher([moved(64, seed=call), *weights])
    assert stage(launcher).settled
    # WHEN they lie elsewhere with other numbers, all or one, for one call or for good, or are back
    before = launches(launcher)
    turns = [others, weights, [*weights[:7], others[7], *weights[8:]], weights, *[others] * 30]
    for call, mine in enumerate(turns):
        x = moved(64, seed=call)
        assert_same(launcher([x, *mine]), layers(x, *mine))
    # THEN all are launches with the right numbers, and in the end the new place is what stays
    assert launches(launcher) == before + len(turns)
    assert [stays is not None for stays in spy.made] == [False, True, True]
    assert stage(launcher).settled


def test_any_order_of_places_and_streams_gives_the_numbers_of_ungraphed_code() -> None:
    # GIVEN tensors at several places
    drawn = random.Random(0)
    launcher = launcher_of(layers, driver=(spy := Written()))
    inputs = [moved(64, seed=k) for k in range(4)]
    sets = [[moved(64, seed=100 * n + k) for k in range(20)] for n in range(2)]
    streams = [cuda_twin.current_stream(), cuda_twin.Stream()]
    kept: list[Any] = []
    odds = [0.0, 0.1, 0.5]
    for call in range(240):
        # WHEN they take turns, seldom or often, and results are held or not
        often = odds[call // 40 % 3]
        weights = list(sets[drawn.random() < often])
        if drawn.random() < often:
            weights[drawn.randrange(20)] = drawn.choice(inputs)
        x = drawn.choice(inputs)
        with cuda_twin.stream(streams[drawn.random() < often / 2]):
            found = launcher([x, *weights])
        # THEN every number is right
        assert_same(found, layers(x, *weights))
        kept = [*kept, found] if drawn.random() < 0.5 else []
    assert launches(launcher) == 239
    assert sum(stays is not None for stays in spy.made) > 1
    assert min(spy.words) < max(spy.words)


def test_a_small_workspace_gets_a_place_for_good_and_gives_it_back() -> None:
    # GIVEN memory as it is, and a launcher beside somebody who keeps small tensors between its launches
    gc.collect()
    before = DRIVER.memory()[0]
    launcher = launcher_of(layers)
    weights = [moved(64, seed=k) for k in range(20)]
    x = moved(64, seed=99)
    held = DRIVER.memory()[0]
    results: list[Any] = []
    for _ in range(16):
        results.append(launcher([x, *weights]))
        (block,) = variants(launcher)[0].plan.blocks
        results.append([torch.empty(block.nbytes // 4, device=DEVICE)])  # as large as the workspace, and in its place
    # WHEN that has gone on for a while THEN its workspace stays where it is
    (variant,) = variants(launcher)
    assert [len(home) for home in variant.state.homes] == [1]
    assert stage(launcher).settled
    expected = layers(x, *weights)
    for found in results[::2]:
        assert_same(found, expected)
    # AND no more is held than results and that, and nothing once there is no launcher
    del expected
    assert DRIVER.memory()[0] == held + (512 + block.nbytes) * 16 + block.nbytes
    launcher.destroy()
    del variant, found, block
    results.clear()
    assert DRIVER.memory()[0] == held > before


def test_where_everything_moves_nothing_is_made_and_the_next_look_comes_later() -> None:
    # GIVEN a function all of whose kernels read what moves
    spy = Written()
    launcher = launcher_of(lambda x: (x.sin(), x.cos(), x.tanh(), x.exp()), driver=spy)
    # WHEN it is launched often
    for call in range(20):
        launcher([moved(8, seed=call)])
    # THEN there is one executable, and the addresses are looked at ever more seldom
    assert spy.made == [None]
    assert stage(launcher)._after == 12


@pytest.mark.parametrize("failing", ["making", "patching"])
def test_a_second_executable_that_fails_leaves_the_first(failing: str) -> None:
    # GIVEN a device that makes no second executable, or one that takes no addresses
    class Failing(Written):
        def instantiate(self, *args: Any, stays: Stays | None = None, **how: Any) -> Any:
            if stays is not None and failing == "making":
                raise torch.OutOfMemoryError("no room for another graph")
            made = super().instantiate(*args, stays=stays, **how)
            if stays is not None:
                patch, left = made.patch, iter((1, 1))

                def patched(addresses: Sequence[int]) -> None:
                    if next(left, None) is None:
                        raise RuntimeError("no addresses today")
                    patch(addresses)

                made.patch = patched
            return made

    launcher = launcher_of(layers, driver=Failing())
    weights = [moved(64, seed=k) for k in range(20)]
    # WHEN it is called often THEN all calls are launches with the right numbers
    for call in range(30):
        x = moved(64, seed=call)
        assert_same(launcher([x, *weights]), layers(x, *weights))
    assert launches(launcher) == 29


def test_a_second_executable_with_a_wrong_word_is_noticed_where_launches_are_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a second executable in which a node whose word moves is an ordinary one
    split = Stays.split

    def wrong(self: Stays, bindings: Sequence[Binding]) -> tuple[list[Binding], list[Binding]]:
        written, patched = split(self, bindings)
        first = min(b.node for b in patched)
        return [*written, *(b for b in patched if b.node == first)], [b for b in patched if b.node != first]

    monkeypatch.setattr(Stays, "split", wrong)
    launcher = launcher_of(layers, options=Options(verify="always"))
    weights = [moved(64, seed=k) for k in range(20)]
    # WHEN it is called with other numbers at other places THEN all results are right
    for call in range(14):
        x = moved(64, seed=call)
        assert_same(launcher([x, *weights]), layers(x, *weights))
    # AND the graph is given up for it
    assert [reason.code for reason in launcher.reasons] == ["wrong-result"]


def test_two_forms_of_one_launch_are_told_apart_though_what_changes_in_them_lies_at_the_same_places() -> None:
    # GIVEN one variant that is launched in two forms: of each the same two tensors are left out, in other places
    launcher = launcher_of(lambda a, b, c: (a * 2 + b * 3 + c * 5,))
    p, q, r = (moved(64, seed=k) for k in range(3))
    for _ in range(3):
        launcher([p, q, r])
    variant = launcher.settled([p, q, r])
    assert variant is not None
    last = launcher.launch_as(Form(static={1: p, 2: q}), variant, launcher)
    first = launcher.launch_as(Form(static={0: p, 1: q}), variant, launcher)
    # WHEN they take turns with the same tensor, and the ordinary form with all three THEN each computes its own
    for _ in range(3):
        assert_same(last([r]), (r * 2 + p * 3 + q * 5,))
        assert_same(first([r]), (p * 2 + q * 3 + r * 5,))
        assert_same(launcher([p, r, q]), (p * 2 + r * 3 + q * 5,))
