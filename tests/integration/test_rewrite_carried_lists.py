"""Fixes that keep lists of tensors, and states of the size of inputs, in their memory."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")


PAST = """
class Past:
    def __init__(self):
        self.past = {begun}
    def step(self, x):
        y = 1.5 * self.past[-1] - 0.5 * self.past[0] + x
        {moves}
        return y
past = Past()
args = (torch.randn(4, device=device),)
f = past.step
"""
APART = "[torch.zeros(4, device=device) for _ in range(3)]"


@pytest.mark.parametrize(
    ("moves", "line"),
    [
        ("self.past = self.past[1:] + [x * 2]", "self.past[1:] + [x * 2]"),
        ("self.past.pop(0); self.past.append(x * 2)", "[*self.past[1:], x * 2]"),
        ("self.past.insert(0, x * 2); self.past.pop()", "[x * 2, *self.past[:-1]]"),
        ("self.past[0], *self.past[1:] = [x * 2, *self.past[:-1]]", "[x * 2, *self.past[:-1]]"),
        ("self.past[:-1], self.past[-1] = self.past[1:], x * 2", "[*self.past[1:], x * 2]"),
        ("self.past[:] = [*self.past[1:], x * 2]", "[*self.past[1:], x * 2]"),
    ],
    ids=["another list", "one after another", "at the front", "a star", "two places", "all places"],
)
def test_the_numbers_of_a_list_move_where_its_tensors_did(moves: str, line: str, fixed: Fixed) -> None:
    # GIVEN the last few results of a step, in a list that it moves on WHEN rewritten
    found = fixed(PAST.format(begun=APART, moves="\n        ".join(moves.split("; "))))
    # THEN the tensors stay where a graph reads them
    assert found.complete, found
    assert f"for held, new in zip(self.past, [each.clone() for each in {line}], strict=True):" in lines_of(found)


def test_one_tensor_in_all_places_of_a_list_is_not_moved_and_told_all_the_same(fixed: Fixed) -> None:
    # GIVEN a list that begins with one tensor at all places, and is read where the others come to last WHEN rewritten
    found = fixed(PAST.format(begun="[torch.zeros(4, device=device)] * 3", moves="self.past = self.past[1:] + [x * 2]"))
    # THEN that it is another one later is no secret, and no numbers are mixed up
    assert not found.complete
    assert "held.copy_" not in found.diff


TABLE = """
held = {begun}
args = (torch.randn(4, device=device),)
def f(x):
    y = 1.5 * held["now"] - 0.5 * held["before"] + x
    {moves}
    return y
"""


@pytest.mark.parametrize(
    ("moves", "values"),
    [
        ('held["before"], held["now"] = held["now"], x * 2', '[held["now"].clone(), x * 2]'),
        ('held["now"], held["before"] = x * 2, held["now"]', '[x * 2, held["now"].clone()]'),
        ('old = held["now"]; held["now"], held["before"] = x * 2, old', "[x * 2, old.clone()]"),
    ],
    ids=["in order", "the other way round", "by a name"],
)
def test_entries_that_are_given_one_another_are_read_before_any_is_written(
    moves: str, values: str, fixed: Fixed
) -> None:
    # GIVEN two entries of a dictionary, of which one gets what the other was WHEN rewritten
    begun = '{name: torch.zeros(4, device=device) for name in ("now", "before")}'
    found = fixed(TABLE.format(begun=begun, moves="\n    ".join(moves.split("; "))))
    # THEN each keeps its memory, and none is written before all are read
    assert found.complete, found
    assert any(line.endswith(f"{values}, strict=True):") for line in lines_of(found)), found


def test_entries_that_begin_as_one_tensor_are_not_written_in_place(fixed: Fixed) -> None:
    # GIVEN the same of two names for one tensor WHEN rewritten
    text = TABLE.format(
        begun='dict.fromkeys(("now", "before"), torch.zeros(4, device=device))',
        moves='held["before"], held["now"] = held["now"], x * 2',
    )
    # THEN no line writes both
    found = fixed(text)
    assert not found.complete or "held.copy_" not in found.diff, found


def test_a_state_of_the_size_of_its_inputs_is_not_filled_with_fewer(fixed: Fixed) -> None:
    # GIVEN a state that is what was given last WHEN rewritten
    found = fixed("""
prev, last, args = torch.zeros(4, device=device), torch.zeros(4, device=device), (torch.randn(4, device=device),)
def f(x):
    global prev, last
    y = 1.5 * prev + x - last
    prev = x * 2
    last = x
    return y
""")
    # THEN inputs of one row raise where they would have been repeated
    assert found.complete, found
    assert {f"{name}.copy_({name}_now.detach().view_as({name}))" for name in ("prev", "last")} <= {*lines_of(found)}


AVERAGE = """
class Average:
    def __init__(self, net):
        self.shadow = {}
        self.register(net)
    def register(self, net):
        for name, p in net.named_parameters():
            self.shadow[name] = MADE
    def update(self, net):
        for name, p in net.named_parameters():
            new = 0.9 * self.shadow[name] + 0.1 * p.detach()
            self.shadow[name] = new.clone()
net = torch.nn.Linear(3, 2, device=device)
average = Average(net)
args = (torch.randn(4, 3, device=device),)
def f(x):
    average.update(net)
    return x + 1
"""


def test_averages_that_a_maker_begins_in_a_loop_are_written_in_place(fixed: Fixed) -> None:
    # GIVEN averages of parameters in a dictionary, which a loop of their maker has begun as copies WHEN rewritten
    found = fixed(AVERAGE.replace("MADE", "p.detach().clone()"))
    # THEN each is written where a graph reads it
    assert found.complete, found
    assert "self.shadow[name].copy_(new.clone().detach())" in found.diff


def test_averages_that_begin_as_the_parameters_themselves_are_not_written_in_place(fixed: Fixed) -> None:
    # GIVEN the same, which begin as what the parameters hold: a first write would go there WHEN rewritten
    found = fixed(AVERAGE.replace("MADE", "p.data"))
    # THEN no line writes there
    assert "self.shadow[name].copy_" not in found.diff


PING_PONG = """
class Filter:
    def __init__(self):
        self.front, self.back = torch.zeros(4, device=device), torch.ones(4, device=device)
    def step(self, x):
        {write}
        self.front, self.back = self.back, self.front
        return self.front.tanh()
filter = Filter()
args = (torch.randn(4, device=device),)
f = filter.step
"""


@pytest.mark.parametrize(
    "write",
    ["self.back.copy_(x + 0.5 * self.front)", "torch.mul(x, self.front, out=self.back)", "self.back.mul_(x)"],
)
def test_two_buffers_that_a_step_writes_in_turns_are_exchanged_by_copies(write: str, fixed: Fixed) -> None:
    # GIVEN a step that writes one of two buffers in place, and gives each the other's name WHEN rewritten
    found = fixed(PING_PONG.format(write=write))
    # THEN what it works on are copies, which go back where a graph reads them
    assert found.complete, found
    assert {"front_now = self.front.clone()", "back_now = self.back.clone()"} <= set(lines_of(found)), found
