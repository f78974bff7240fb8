"""A partition's kernels keep what they were tuned to when it was captured, whatever Inductor does to them later."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pytest

from paramgraph_kit.backend.inductor import _Aligned, tuned_kernels
from paramgraph_kit.driver.torch_names import torch_name

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def kernel(*launchers: str) -> Any:
    made: Any = object.__new__(torch_name("CachingAutotuner"))
    made.launchers = list(launchers)
    return made


def partition(**names: Any) -> Any:
    """A function as Inductor generates them: kernels are globals of its module; running tunes the first one."""

    def call(args: list[Any]) -> Any:
        one.launchers[1:] = []  # type: ignore[name-defined]  # noqa: F821
        args.clear()
        return [one.launchers[0], two.launchers]  # type: ignore[name-defined]  # noqa: F821

    return FunctionType(call.__code__, names)


def test_a_kernel_that_is_tuned_again_later_stays_what_it_was() -> None:
    # GIVEN a partition that ran once, which tuned its first kernel
    one, two = kernel("fast", "slow"), kernel("a", "b")
    run = _Aligned(partition(one=one, two=two, other=kernel("x")), (), ())
    assert run([])[0] == "fast"
    # WHEN the same kernel is compiled for another graph, which makes it choose again
    one.launchers = ["slow", "fast"]
    # THEN here it is what it was, and one that was not tuned is left alone
    assert run([])[0] == "fast"
    two.launchers = ["b"]
    assert run([])[1] == ["b"]


def test_only_kernels_that_the_partition_launches_count() -> None:
    # GIVEN a module with a kernel that another partition launches WHEN asked THEN it is not listed
    one, two, other = kernel("a"), kernel("b", "c"), kernel("d")
    assert tuned_kernels(partition(one=one, two=two, other=other)) == [(one, one.launchers)]
    assert tuned_kernels(lambda args: args) == []
    assert tuned_kernels(print) == []
