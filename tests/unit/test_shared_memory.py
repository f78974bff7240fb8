"""Limits of kernels' shared memory are raised for a moment, and are what they were afterwards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

shared_memory = pytest.importorskip("paramgraph_kit.driver.cuda.shared_memory", exc_type=ImportError)
cu = shared_memory.cu
KERNEL, FUNCTION = 0x10, 0x20


class Limits:
    """One kernel's limit as CUDA documents it: what is set on the function prevails over what is set on the kernel."""

    def __init__(self) -> None:
        self.kernel, self.function = 6400, 0

    def effective(self, *_: Any) -> tuple[Any, int]:
        return cu.CUresult.CUDA_SUCCESS, self.function or self.kernel

    def get(self, *_: Any) -> tuple[Any, int]:
        return cu.CUresult.CUDA_SUCCESS, self.kernel

    def set(self, _: Any, value: int, *place: Any) -> tuple[Any]:
        if value > 232_304:
            return (cu.CUresult.CUDA_ERROR_INVALID_VALUE,)
        self.kernel = value
        return (cu.CUresult.CUDA_SUCCESS,)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    found = Limits()
    driver = SimpleNamespace(
        cuFuncGetAttribute=found.effective,
        cuKernelGetAttribute=found.get,
        cuKernelSetAttribute=found.set,
        **{name: getattr(cu, name) for name in ("CUresult", "CUfunction", "CUkernel", "CUdevice")},
    )
    monkeypatch.setattr(shared_memory, "cu", driver)  # without cuFuncSetAttribute: nothing may call it
    return found


def test_a_kernel_may_have_more_only_inside(limits: Limits) -> None:
    # GIVEN a kernel that the last launch left with less than a node has  WHEN the node is set
    with shared_memory.allowed(KERNEL, FUNCTION, 25_600, 0) as raised:
        # THEN it may have that
        assert raised
        assert limits.effective()[1] == 25_600

    # AND afterwards what it might before, and what the library's next launch sets counts
    assert limits.effective()[1] == 6400
    limits.set(None, 36_864)
    assert limits.effective()[1] == 36_864


def test_what_another_thread_sets_meanwhile_stays(limits: Limits) -> None:
    with shared_memory.allowed(KERNEL, FUNCTION, 25_600, 0):
        limits.set(None, 36_864)
    assert limits.kernel == 36_864


def test_it_is_given_back_after_an_error(limits: Limits) -> None:
    with pytest.raises(KeyError), shared_memory.allowed(KERNEL, FUNCTION, 25_600, 0):
        raise KeyError
    assert limits.kernel == 6400


@pytest.mark.parametrize(
    ("kern", "nbytes", "on_function"),
    [
        (KERNEL, 0, 0),  # nothing is needed
        (KERNEL, 6400, 0),  # it is there
        (KERNEL, 25_600, 30_000),  # it is there by the function
        (0, 25_600, 0),  # of a module: no library sets it anew
        (KERNEL, 300_000, 0),  # more than the device has
    ],
)
def test_it_leaves_alone_what_it_cannot_or_need_not_raise(
    limits: Limits, kern: int, nbytes: int, on_function: int
) -> None:
    limits.function = on_function
    with shared_memory.allowed(kern, FUNCTION, nbytes, 0) as raised:
        assert not raised
        assert limits.kernel == 6400


def test_it_lowers_nothing(limits: Limits) -> None:
    # GIVEN a limit of somebody's on the function, below the kernel's
    limits.kernel, limits.function = 100_000, 1000
    with shared_memory.allowed(KERNEL, FUNCTION, 25_600, 0) as raised:
        assert not raised
        assert limits.kernel == 100_000
