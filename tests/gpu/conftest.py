"""GPU tests: skipped as a whole where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test compiles anew and leaves nothing behind."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def driver() -> Any:
    """The CUDA driver."""
    from paramgraph_kit.driver.select import driver as select

    return select()
