"""What modules write as they run, as their classes say, and words that keep one value as a tensor in all its lines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paramgraph_kit.doctor.observe.own_states import counts_in_numbers, writes_a_buffer
from paramgraph_kit.rewrite.agreeing import agreed
from paramgraph_kit.trace.model import Failure, Frame


class Queue(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(4))
        self.ptr, self.rate = 0, 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows[self.ptr] = x.sum()  # type: ignore[operator]
        self.ptr += 1
        return x * self.rate


class Reads(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(4))
        self.ptr = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.rows[self.ptr]  # type: ignore[index]


def test_what_a_module_writes_is_known_of_its_class() -> None:
    # GIVEN modules of which one writes a buffer at a place that it counts
    # WHEN they are asked
    # THEN that one has both, also within another, and no number that it only reads
    assert writes_a_buffer(Queue())
    assert [*counts_in_numbers("net", torch.nn.Sequential(Queue()))] == ["net[0].ptr"]
    assert not writes_a_buffer(Reads())
    assert not [*counts_in_numbers("net", Reads())]
    assert not writes_a_buffer(torch.nn.BatchNorm1d(2))  # whose statistics are told as such


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("self.ptr = (self.ptr + 2) % 8", "`self.ptr.copy_((self.ptr + 2) % 8)` in the graph"),
        ("self.ptr = 0", "`self.ptr.fill_(0)` in the graph"),
        ("self.ptr += 2", "stays as it is once `self.ptr` is a tensor"),
        ("self.seen = self.ptr + 2", "the same behind each launch"),
        ("self.ptr = other()", "the same behind each launch"),
    ],
)
def test_words_of_a_value_that_another_line_keeps_as_a_tensor(line: str, words: str, tmp_path: Path) -> None:
    # GIVEN a line that is told to have a value as a tensor, and one that gives it the next
    file = tmp_path / "program.py"
    file.write_text(
        f"class Pair:\n    def put(self, k):\n        self.queue[self.ptr : self.ptr + 2] = k\n        {line}\n"
    )
    kept = "before  x\nafter   keep `self.ptr` as a tensor, `torch.zeros(())`; here `...`"
    first = Failure("size-frozen", "", "", Frame(str(file), 3, "put", ""), fix=kept)
    other = "before  x\nafter   the same behind each launch, where nothing waits for it"
    second = Failure("host-counter", "", "", Frame(str(file), 4, "put", line), fix=other)
    # WHEN they are made to agree
    _, told = agreed([first, second], ())
    # THEN a new tensor is none that the graph reads, and what is another thing stays as it was told
    assert told.fix.partition("\nafter   ")[2].startswith(words)
