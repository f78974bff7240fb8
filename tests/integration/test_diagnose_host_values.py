"""What the host decides of tensors of the CPU that are given, and what constructors read entry by entry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import paramgraph_kit as pgk
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()


def told(found: Any) -> list[tuple[str, str]]:
    """The class and the line of each problem."""
    return [(failure.code, failure.frame.text) for failure in found if failure.frame]


def test_lengths_of_packed_rows_are_told_where_they_are_packed() -> None:
    # GIVEN a network that reads rows packed by lengths that the host has
    gru = torch.nn.GRU(4, 4).to(DEVICE)

    @torch.no_grad()
    def encode(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, lengths)
        _, h = gru(packed)
        return h  # type: ignore[no-any-return]

    # WHEN diagnosed
    x, lengths = torch.randn(6, 3, 4, device=DEVICE), torch.tensor([6, 4, 2])
    found = pgk.diagnose(encode, x, lengths)
    # THEN the packing is what freezes them, with the lengths to be given on the device, and these are as before
    assert told(found) == [("size-frozen", "packed = pack_padded_sequence(x, lengths)")], found
    assert "the function gets `lengths` on the device then" in found.failures[0].fix
    assert lengths.tolist() == [6, 4, 2]


def parts(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Of sizes that come to one whole."""
    return torch.stack([c.sum() for c in x.split(counts.tolist())])  # type: ignore[no-untyped-call]


def segments(x: torch.Tensor, lens: Any) -> torch.Tensor:
    """Of lengths in an array."""
    ends = np.cumsum(lens)
    return torch.stack([x[b - 1] for b in ends])


def either(x: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """A flag of the host's decides."""
    return x + 1 if batch["mask"].any() else x * 3


def cut(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Places of the host's."""
    return x.tensor_split(at)[0] * 2


@pytest.mark.parametrize(
    ("function", "given", "code", "name"),
    [
        (parts, torch.tensor([2, 3, 1]), "size-frozen", "counts"),
        (segments, np.array([3, 2, 1]), "size-frozen", "lens"),
        (either, {"mask": torch.tensor([True, False])}, "branch-frozen", "batch['mask']"),
        (cut, torch.tensor([2, 3]), "size-frozen", "at"),
    ],
)
def test_what_tensors_of_the_host_decide_is_told(function: Any, given: Any, code: str, name: str) -> None:
    # GIVEN a step of which a tensor or an array of the host's decides sizes or ways WHEN diagnosed
    found = pgk.diagnose(function, torch.randn(6, 4, device=DEVICE), given)
    # THEN that is told, with a graph for each value, or a flag that the device has
    assert found.codes == (code,), found
    assert f"(tried other values of {name})" in found.failures[0].message
    words = f"graphs[tuple({name}.flatten().tolist())]" if code == "size-frozen" else "chosen_in.fill_("
    assert words in found.failures[0].fix, found


def test_what_tensors_of_the_host_do_not_decide_is_no_problem() -> None:
    # GIVEN steps that hand lengths on, or ask for how many there are
    def handed_on(x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, lengths

    def counted(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return x * 2 if len(lengths) == x.shape[0] else x * 3

    # WHEN diagnosed THEN nothing is told
    x, lengths = torch.randn(3, 4, device=DEVICE), torch.tensor([3, 2, 1])
    for function in (handed_on, counted):
        assert not pgk.diagnose(function, x, lengths).failures


def long_tensor(x: torch.Tensor) -> Any:
    """Of places of the device."""
    top = x.topk(1)[1]
    return x.sum(), torch.LongTensor([top[i][0] for i in range(3)])


def of_a_list(x: torch.Tensor) -> Any:
    """Of numbers of the device."""
    return x.sum(), torch.tensor([x[0, 0], x[1, 1]])


def made_there(x: torch.Tensor) -> Any:
    """Of numbers of the device, and copied to it: the reading alone is told."""
    return x.sum(), torch.tensor([x[0, 0], x[1, 1]], device=DEVICE)


def of_lists(x: torch.Tensor) -> Any:
    """Lists within a list."""
    return x.sum(), torch.FloatTensor([[x[i][j] for j in range(2)] for i in range(2)])


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (long_tensor, "`torch.stack([top[i][0] for i in range(3)]).long()`"),
        (of_a_list, "`torch.stack([x[0, 0], x[1, 1]])`"),
        (made_there, "`torch.stack([x[0, 0], x[1, 1]])`"),
        (of_lists, "`torch.stack([torch.stack([x[i][j] for j in range(2)]) for i in range(2)]).float()`"),
    ],
)
def test_numbers_that_a_constructor_reads_of_the_device_are_told(function: Any, words: str) -> None:
    # GIVEN a tensor that is made of a list of tensors of the device WHEN diagnosed
    x = torch.randn(3, 4, device=DEVICE)
    found = pgk.diagnose(function, x)
    # THEN its reading is told, with what puts them together on the device
    assert found.codes == ("sync-item",), found
    assert words in str(found.failures[0].fix), found
    stacked = eval(words.strip("`"), {"torch": torch, "x": x, "top": x.topk(1)[1]})
    assert torch.equal(stacked.cpu(), function(x)[1].cpu())


def test_what_constructors_are_given_else_is_not_read() -> None:
    # GIVEN tensors that are made of others, of numbers, and of tensors of the CPU
    def made(x: torch.Tensor) -> Any:
        return x.sum(), torch.stack([x[0, 0], x[1, 1]]), torch.LongTensor([1, 2]), torch.tensor([torch.ones(())])

    # WHEN diagnosed THEN nothing is told
    assert not pgk.diagnose(made, torch.randn(3, 4, device=DEVICE)).failures
