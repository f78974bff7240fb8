"""What torch's C++ says of a tensor itself names CUDA's types, by whichever way a user comes to it [H200]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from paramgraph_kit.driver.select import device

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")

Tensor = torch.Tensor


@pytest.fixture
def x() -> Tensor:
    """Three numbers on the simulated device."""
    return torch.ones(3, device=device())


SAYS: dict[str, tuple[Callable[[Tensor], Any], type[Exception], str]] = {
    "a long transform": (
        lambda x: torch.stft(x, 9, center=False, window=x.new_ones(9), return_complex=True),
        RuntimeError,
        r"stft\(torch.cuda.FloatTensor\[3\], n_fft=9",
    ),
    "a bias of too many": (
        lambda x: torch.addmm(x.long().view(1, 1, 3), x[:, None].long(), x[None].long()),
        RuntimeError,
        r"expand\(torch.cuda.LongTensor{\[1, 1, 3\]}",
    ),
    "a sparse size": (lambda x: x.sparse_resize_((3,), 1, 0), NotImplementedError, "from the 'CUDA' backend"),
    "a quantized scale": (lambda x: x.q_scale(), NotImplementedError, "from the 'CUDA' backend"),
}


@pytest.mark.parametrize("name", SAYS)
def test_what_is_refused_names_types_of_cuda(x: Tensor, name: str) -> None:
    # GIVEN a wrong call that torch's C++ refuses by the type of its tensor WHEN it is made THEN the type is CUDA's
    call, kind, text = SAYS[name]
    with pytest.raises(kind, match=text):
        call(x)


KERNELS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "a grid": (lambda x: F.grid_sample(x, x.new_zeros(1, 2, 2, 2), align_corners=False), "grid_sampler_2d_cuda"),
    "a sigmoid": (F.logsigmoid, "log_sigmoid_forward_cuda"),
    "an image": (lambda x: F.interpolate(x, scale_factor=2), "upsample_nearest2d_out_frame"),
    "a norm": (
        lambda x: F.batch_norm(x, x.float().view(-1)[:1], x.float().view(-1)[:1]),
        "batch_norm_elementwise_cuda",
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_whole_numbers_have_the_names_of_cudas(x: Tensor, name: str) -> None:
    # GIVEN whole numbers WHEN a kernel refuses them THEN its name is that of CUDA's
    call, kernel = KERNELS[name]
    with pytest.raises(NotImplementedError, match=f"\"{kernel}\" not implemented for 'Long'"):
        call(torch.ones(1, 1, 3, 3, dtype=torch.int64, device=x.device))


WORDS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "a mask of numbers": (
        lambda x: x.masked_fill(x.long(), 1.0),
        "masked_fill only supports boolean masks, but got dtype Long",
    ),
    "a wide reflection": (
        lambda x: F.pad(x.view(1, 1, 1, 3), (4, 0, 0, 0), mode="reflect"),
        r"^Padding size should be less than the corresponding input dimension, but got: padding \(4, 0\)",
    ),
    "a cross of two types": (lambda x: torch.linalg.cross(x.half(), x), "Found dtype Float but expected Half"),
    "a cross of flags": (lambda x: torch.linalg.cross(x > 0, x), "Found dtype Float but expected Bool"),
    "a sum of two types": (
        lambda x: x[:1, None].long().addmm_(x[:1, None].long(), x[:1, None]),
        "self and mat2 must have the same dtype, but got Long and Float",
    ),
}


@pytest.mark.parametrize("name", WORDS)
def test_what_cuda_says_in_other_words_is_said_in_those(x: Tensor, name: str) -> None:
    # GIVEN a call that the CPU refuses in other words WHEN it is made THEN those are CUDA's
    call, text = WORDS[name]
    with pytest.raises(RuntimeError, match=text):
        call(x)


def test_a_cross_of_other_sizes_is_refused_for_those(x: Tensor) -> None:
    # GIVEN vectors of two types and other sizes WHEN they are crossed THEN sizes are what is told
    with pytest.raises(RuntimeError, match=r"(must have length 3|dimension)"):
        torch.linalg.cross(x.half(), torch.ones(2, device=x.device))
