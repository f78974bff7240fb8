"""What tests of the checks in C++ share: the checks themselves, and the same asked while nothing is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="module")
def native() -> Any:
    """The checks in C++; skips where nothing can be built."""
    from paramgraph_kit.driver.native import build

    build.prepare(wait=True)
    if build.checks() is None:
        pytest.skip("no C++ compiler")
    return build.checks()


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], Any]:
    """Calls a function while nothing is built."""
    from paramgraph_kit.driver.native import build

    def call(function: Callable[[], Any]) -> Any:
        with monkeypatch.context() as context:
            context.setattr(build, "_built", [])
            return function()

    return call
