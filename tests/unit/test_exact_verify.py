"""What a launch and the ungraphed call beside it have left, held against one another."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.driver.spread import AGAIN
from paramgraph_kit.step import verify
from paramgraph_kit.step.verify import Checked, Comparison, Left, _Bits

POSITION = torch.zeros(2, dtype=torch.uint8)


class Driver:
    """Random numbers alone."""

    def __init__(self) -> None:
        self.position = POSITION

    def random_state(self) -> torch.Tensor:
        return self.position

    def set_random_state(self, position: torch.Tensor) -> None:
        self.position = position


def cell(name: str, held: dict[str, Any]) -> Any:
    holder = SimpleNamespace(put=lambda key, value: held.__setitem__(key, value))
    return SimpleNamespace(place=name, key="it", holder=holder, held=lambda: held["it"])


def comparison(cells: list[Any], replaced: list[Any], used: list[torch.Tensor], arguments: Any = ()) -> Comparison:
    driver: Any = Driver()
    return Comparison(driver, cells, replaced, used, arguments, nullcontext)


def test_launches_are_over_after_one_that_was_equal_or_two_that_differed_as_ungraphed_ones_do() -> None:
    # GIVEN what launches have shown WHEN asked THEN it is enough after one, or two
    assert [Checked(*counts).over for counts in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 2))] == (
        [False, False, True, True, True]
    )


def test_two_runs_left_the_same_where_memory_names_values_and_random_numbers_are() -> None:
    # GIVEN what a run has left, and others of which one thing is another one
    def left(
        tensors: tuple[int, ...] = (3, 4), names: str = "ab", values: tuple[float, ...] = (0.0, 1.0), random: int = 5
    ) -> _Bits:
        return _Bits(list(tensors), list(zip(names, values, strict=True)), random)

    # WHEN compared THEN only the first is the same
    assert left().same(left())
    for other in (
        left(tensors=(3, 5)),
        left(tensors=(3,)),
        left(names="a", values=(0.0,)),
        left(names="abc", values=(0.0, 1.0, 2.0)),
        left(names="ac"),
        left(values=(0.0, 2.0)),
        left(values=(-0.0, 1.0)),
        left(random=6),
    ):
        assert not left().same(other)
        assert not other.same(left())


def test_what_a_run_leaves_is_named_and_copied_to_the_host() -> None:
    # GIVEN a comparison with cells, of which one's entry no run reads, and plain values
    device = pgk.device()
    state, hidden = torch.ones(3, device=device), torch.ones(2, device=device)
    compared = comparison([cell("hidden", {"it": (hidden, 7)})], [cell("w.grad", {"it": hidden * 2})], [state])
    result = [hidden.requires_grad_(False) + 1, "text"]
    # WHEN taken THEN results come before what is replaced, and that before the cells
    left = compared._left(result)
    assert [name for name, _ in left.values] == ["result 0", "result 1", "w.grad", "hidden", "hidden"]
    values = [value for _, value in left.values]
    assert [values[n] for n in (1, 4)] == ["text", 7]
    assert [values[n].tolist() for n in (0, 2, 3)] == [[2.0, 2.0], [2.0, 2.0], [1.0, 1.0]]
    assert {values[n].device.type for n in (0, 2, 3)} | {x.device.type for x in left.memory} == {"cpu"}
    # AND in a few numbers: of tensors what they look like, of others what they are
    bits = compared._bits(result)
    look = torch.Size([2]), torch.float32, torch.strided
    assert bits.values == [
        ("result 0", look), ("result 1", "text"), ("w.grad", look), ("hidden", look), ("hidden", 7)
    ]  # fmt: skip
    assert len(bits.tensors) == 2 + 3
    state.add_(1)
    assert compared._bits(result).tensors != bits.tensors


def test_what_differs_is_named_with_its_number_and_how_far() -> None:
    # GIVEN what two runs have left: values, two pieces of memory, and a position
    memory = [torch.ones(2), torch.ones(2, dtype=torch.int32)]
    compared = comparison([], [], memory)

    def left(values: tuple[Any, Any], first: float = 1.0, second: int = 1, position: int = 0) -> Left:
        pieces = [
            torch.full((2,), first).view(torch.uint8),
            torch.full((2,), second, dtype=torch.int32).view(torch.uint8),
        ]
        return Left(pieces, [("a", values[0]), ("b", values[1])], torch.full((2,), position, dtype=torch.uint8))

    one = left((torch.zeros(1), 3))
    # WHEN nothing differs THEN nothing is named, and else that alone
    assert compared._distances(one, left((torch.zeros(1), 3))) == {}
    for other, key, far in (
        (left((torch.full((1,), 0.5), 3)), ("a", 0), 0.5),
        (left((torch.zeros(1), 4)), ("b", 1), float("inf")),
        (left((torch.zeros(1), 3), first=3.0), ("the state", 0), 2.0),
        (left((torch.zeros(1), 3), second=2), ("the state", 1), float("inf")),
        (left((torch.zeros(1), 3), position=1), ("the random numbers' position", 0), float("inf")),
    ):
        ((found, apart),) = compared._distances(other, one).items()
        assert (found, apart.far) == (key, far)


class Runs:
    """A state that each run adds something to: what the launch adds, and the ungraphed runs, one after the other."""

    def __init__(self, launched: float, *called: float) -> None:
        self.state = torch.ones(2, device=pgk.device())
        self.held: dict[str, Any] = {"it": torch.zeros(1, device=pgk.device())}
        self.launched, self.called, self.calls = launched, called, 0
        self.entries: list[float] = []
        self.multithreaded: list[bool] = []
        self.quiet = 0

    @contextmanager
    def quieted(self) -> Iterator[None]:
        self.quiet += 1
        yield

    def add(self, more: float) -> torch.Tensor:
        self.entries.append(self.state[0].item() + self.held["it"][0].item())
        self.multithreaded.append(torch.autograd.is_multithreading_enabled())
        self.state.add_(more)
        self.held["it"] = self.held["it"] + 3
        return self.state.sum()

    def call(self) -> torch.Tensor:
        self.calls += 1
        return self.add(self.called[min(self.calls, len(self.called)) - 1])

    def run(self) -> tuple[Any, Any, bool]:
        driver: Any = Driver()
        launch: Callable[[], Any] = lambda: self.add(self.launched)  # noqa: E731
        held = cell("hidden", self.held)
        return Comparison(driver, [held], [], [self.state], [], self.quieted).run(self.call, launch)


NEAR = 1 + 2**-22  # one step of rounding from 1


@pytest.mark.parametrize(
    ("launched", "called", "calls", "wrong", "equal"),
    [
        (1.0, (1.0,), 1, False, True),
        (5.0, (1.0,), 2 + AGAIN, True, False),  # farther than what the code is from itself
        (NEAR, (1.0, 1.0, NEAR), 3, False, False),  # the code differs from itself as much
        (NEAR, (1.0,), 3 + AGAIN, True, False),  # rounded, where the code is always the same
        (NEAR, (*[1.0] * (2 + AGAIN), NEAR), 3 + AGAIN, False, False),  # and as the code is where a capture runs
    ],
)
def test_a_launch_is_wrong_that_is_farther_than_the_code_is_from_itself(
    launched: float, called: tuple[float, ...], calls: int, wrong: bool, equal: bool
) -> None:
    # GIVEN a launch beside ungraphed runs WHEN compared
    runs = Runs(launched, *called)
    result, failed, same = runs.run()
    # THEN it is equal, or differs as the code does, or is wrong, with the state of the run whose result is returned
    assert (runs.calls, failed is not None, same) == (calls, wrong, equal)
    assert torch.equal(result, runs.state.sum())
    last = launched if equal else called[min(calls, len(called)) - 1]
    assert runs.state.tolist() == [torch.ones(1).add(last).item()] * 2
    assert runs.held["it"].tolist() == [3.0]
    # AND each run began at the entry, quietly, and only the last of very near ones on the caller's thread
    assert runs.entries == [1.0] * (1 + runs.calls)
    assert runs.quiet == 1 + runs.calls
    assert runs.multithreaded == [n != 3 + AGAIN for n in range(1 + runs.calls)]
    if failed is not None:
        assert failed.code == "wrong-result"
        assert failed.message.startswith("result 0, the state differed from the ungraphed step's")


def test_large_is_more_than_16_mib() -> None:
    # GIVEN WHEN THEN
    assert verify.LARGE == 16 * 2**20
