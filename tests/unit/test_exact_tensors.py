"""Exactly what of tensors is compared, carried and counted, and where phantom memory lies."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paramgraph_kit.driver import tensors
from paramgraph_kit.driver.phantom_layout import GAP, Layout
from paramgraph_kit.driver.tensors import (
    _ordinary_keys,
    bits_of,
    digests,
    extent,
    has_memory,
    lazily,
    not_carried,
    parts_of,
    same_bits,
    same_layout,
)
from paramgraph_kit.trace.errors import RefusedError

MASK = (1 << 64) - 1


def signed(value: int) -> int:
    """A number of 64 bits, as torch has it."""
    return ((value & MASK) ^ (1 << 63)) - (1 << 63)


def weight(place: int) -> int:
    """By the book."""
    turned = signed((place + 1) * 0x5851F42D4C957F2D)
    return signed((turned ^ (turned >> 29)) * 0x14057B7EF767814F) | 1


def digest(data: bytes, piece: int) -> int:
    """By the book: words by their place, then what is left of bytes, piece by piece."""
    total = 0
    for start in range(0, len(data), 8 * piece):
        part = data[start : start + 8 * piece]
        count = len(part) // 8
        for values in (struct.unpack(f"<{count}q", part[: 8 * count]), part[8 * count :]):
            total = signed(total * 0x5851F42D4C957F2D + sum(v * weight(n) for n, v in enumerate(values)))
    return total


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 15, 63, 64, 65, 128, 135, 200])
def test_a_digest_is_what_the_book_says(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN bytes, taken eight words at a time WHEN weighed, whole and from an odd place on THEN by their places
    monkeypatch.setattr(tensors, "_PIECE", 8)
    data = bytes((37 * n + 11) % 256 for n in range(size + 3))
    held = torch.tensor(list(data), dtype=torch.uint8)
    assert digests([held[:size], held[3:]]) == [digest(data[:size], 8), digest(data[3:], 8)]


def test_pieces_are_of_four_mebibytes_and_no_more_weights_are_made_than_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN tensors of some sizes WHEN weighed THEN there are weights for the longest, and eight more for its rest
    asked: list[int] = []
    made = tensors._weights

    def counted(count: int, device: torch.device) -> torch.Tensor:
        asked.append(count)
        return made(count, device)

    monkeypatch.setattr(tensors, "_weights", counted)
    for sizes in ((), (0,), (3,), (2, 16, 3), ((1 << 20) - 16,), ((1 << 20) - 14,), (1 << 20,)):
        digests([torch.zeros(size) for size in sizes])
    assert asked == [8, 9, 16, 1 << 19, 1 << 19, 1 << 19]
    asked.clear()
    digests([torch.zeros((1 << 20) - 18)])
    assert asked == [(1 << 19) - 1]


class Called(TorchDispatchMode):
    """Which operations of torch's are called, and how many values each gives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.found: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.found.append((func._schema.name, result.numel() if isinstance(result, torch.Tensor) else 0))
        return result


@pytest.mark.parametrize(("start", "copied"), [(0, False), (1, True), (4, True), (8, False), (9, True), (72, False)])
def test_words_are_copied_only_where_they_begin_at_no_word(start: int, copied: bool) -> None:
    # GIVEN bytes from some place of their storage on WHEN weighed THEN they are copied where torch cannot view them
    held = torch.zeros(128, dtype=torch.uint8)[start:]
    with Called() as called:
        digests([held])
    assert ("aten::clone" in [name for name, _ in called.found]) is copied


def test_asking_what_keys_are_ordinary_takes_no_memory() -> None:
    # GIVEN a device WHEN asked THEN tensors are made of nothing: it may be asked within a capture
    device = torch.device("cpu")
    with Called() as called:
        found = _ordinary_keys.__wrapped__(device)
    assert found == _ordinary_keys(device)
    assert called.found
    assert all(numel == 0 for _, numel in called.found)


def test_values_are_the_same_to_the_last_bit() -> None:
    # GIVEN tensors and numbers WHEN compared THEN neither is the other, and layouts count where they are asked for
    one = torch.ones(1)
    assert [same_bits(one, 1.0), same_bits(1.0, one), same_bits(one, one.clone())] == [False, False, True]
    assert [same_bits(1, 1), same_bits(1, 2), same_bits(1, True), same_bits(1, 1.0)] == [True, False, False, False]
    assert [same_bits(one, None), same_bits("a", "a"), same_bits("a", "b")] == [False, True, False]
    a, b = torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2).t().contiguous()
    a.copy_(b)
    flipped = b.t().contiguous().t()
    assert [same_bits(a, flipped), same_bits(a, flipped, layout=True)] == [True, False]
    assert same_bits(a, b, layout=True)
    assert not same_bits(a, b + 1, layout=True)
    assert not same_bits(a, a.double())
    assert not same_bits(a, a.reshape(6))
    assert same_bits(torch.zeros(0), torch.zeros(0))
    assert not same_bits(torch.zeros(0), torch.zeros(0, 1))
    assert not same_bits(torch.eye(2), torch.eye(2).to_sparse())
    assert same_bits(torch.eye(2).to_sparse(), torch.eye(2).to_sparse())
    assert [same_layout(a, b), same_layout(a, flipped), same_layout(a, 1), same_layout(1, a)] == [True] + [False] * 3


def test_lazy_bits_are_put_on_one_by_one() -> None:
    # GIVEN a complex tensor WHEN viewed with each of the four THEN it has just these
    held = torch.tensor([1 + 2j])
    for bits, value in (((False, False), 1 + 2j), ((True, False), 1 - 2j), ((False, True), -1 - 2j)):
        view = lazily(held, bits)
        assert (bits_of(view), complex(view.item())) == (bits, value)
        assert bits_of(lazily(view, bits)) == (False, False)
    assert bits_of(lazily(held, (True, True))) == (True, True)


class Strange(torch.Tensor):
    """A subclass of its own."""


class Holding(torch.Tensor):
    """One that tells what it has inside."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Holding:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape)

    def __init__(self, inner: torch.Tensor) -> None:
        self.whole = inner

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["whole"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # looser
        raise NotImplementedError(func)


@pytest.mark.filterwarnings("ignore")
def test_what_an_address_does_not_carry_is_named() -> None:
    # GIVEN tensors that are more than memory, sizes and strides WHEN asked THEN each is named
    inner = torch.ones(2)
    expected = [
        (inner, None),
        (torch.nn.Parameter(inner), None),
        (torch.eye(2).to_sparse(), "a sparse tensor"),
        (torch.eye(2).to_sparse_csr(), "a sparse tensor"),
        (torch.quantize_per_tensor(inner, 0.1, 0, torch.qint8), "a quantized tensor"),
        (torch.nested.nested_tensor([inner, torch.ones(3)]), "a nested tensor"),
        (torch.nested.nested_tensor([inner, torch.ones(3)], layout=torch.jagged), "a NestedTensor"),
        (torch._efficientzerotensor(2), "a tensor of zeros without memory"),
        (Holding(inner), "a Holding"),
    ]
    assert [not_carried(each) for each, _ in expected] == [words for _, words in expected]
    with torch.inference_mode():
        assert not_carried(torch.ones(2)) is None
    # AND what is inside, and whether there is memory at all
    assert parts_of(inner) is None
    (part,) = parts_of(Holding(inner)) or []
    assert part is inner
    assert has_memory(inner)
    assert has_memory(torch.nn.Parameter(inner))
    assert has_memory(inner.as_subclass(Strange))
    assert not has_memory(torch.eye(2).to_sparse())
    assert not has_memory(Holding(inner))


@pytest.mark.parametrize("side", [0, 1])
def test_a_range_is_used_up_to_a_gap_before_its_end(side: int) -> None:
    # GIVEN a range of 1 GiB WHEN what is asked for ends a gap before its end THEN it is handed out, and not one more
    base = 3 << 44
    layout = Layout(base, 1 << 30, side)
    room = base + (1 << 30) - GAP - Layout(base, 1 << 30, side).place(1, 16)
    mark = layout.mark()
    with pytest.raises(RefusedError, match="more than 1 GiB" if side == 0 else "more than 0 GiB"):
        layout.place(room + 1, 16)
    assert layout.mark() == mark == (0, layout.end)
    start = layout.place(room, 16)
    assert (layout.end, layout.starts) == (base + (1 << 30) - GAP, [start])
    # AND what was handed out first stays when the second is rewound
    layout.rewind(mark)
    first = layout.place(0)
    second = layout.mark()
    assert second == (1, first + 1)
    layout.place(8)
    layout.rewind(second)
    assert (layout.starts, layout.end) == ([first], first + 1)


@pytest.mark.parametrize(
    ("shape", "strides", "elements"),
    [((), (), 1), ((4,), (1,), 4), ((4,), (0,), 1), ((2, 3), (10, 2), 15), ((1,), (9,), 1), ((3, 0, 2), (5, 9, 1), 0)],
)
def test_an_extent_is_from_the_first_to_the_last_element(shape: Any, strides: Any, elements: int) -> None:
    # GIVEN / WHEN / THEN
    assert extent(shape, strides) == elements
