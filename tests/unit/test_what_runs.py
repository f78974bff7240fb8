"""What is noted of code that runs while a function is traced: the same whether C++ passes calls on or Python."""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paramgraph_kit.backend.running import Running, running
from paramgraph_kit.driver.native import build


@pytest.fixture(params=["C++", "Python"], autouse=True)
def _told_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    build.prepare(wait=True)
    if request.param == "Python":
        monkeypatch.setattr(build, "_built", [])
    elif build.checks() is None:
        pytest.skip("no C++ compiler")


def helper(n: int) -> int:
    return n if n <= 0 else helper(n - 1)


def asks() -> float:
    return time.time()


def numbers() -> Iterator[int]:
    yield helper(1)
    yield 2


def of(function: Callable[[], Any]) -> tuple[set[str], Running]:
    with running() as found:
        function()
    return {code.co_name for code in found.codes}, found


@pytest.mark.parametrize(
    ("function", "names", "asked"),
    [
        (lambda: helper(3), {"<lambda>", "helper"}, None),
        (lambda: [asks() for _ in range(3)], {"<lambda>", "asks"}, "time"),
        (lambda: sorted([3, 1], key=lambda n: helper(n)), {"<lambda>", "helper"}, None),
        (lambda: list(numbers()), {"<lambda>", "numbers", "helper"}, None),
        (lambda: torch.utils._pytree.tree_map(lambda x: asks(), [1, 2]), {"<lambda>", "asks"}, "time"),
        (lambda: (helper(1), len("a"), helper(1), time.perf_counter()), {"<lambda>", "helper"}, "perf_counter"),
    ],
)
def test_the_user_s_code_and_what_it_asks(function: Callable[[], Any], names: set[str], asked: str | None) -> None:
    # GIVEN a function WHEN it runs, twice
    for _ in range(2):
        codes, found = of(function)

        # THEN its code is noted, with no library's, and the first question to the outside with its line
        assert codes - {"<listcomp>"} == names
        assert (found.questions.asked and found.questions.asked[0]) == asked
        if found.questions.asked is not None:
            assert found.questions.asked[1].file == __file__
        assert (found.refusal is None) is (asked is None)
    assert sys.getprofile() is None


def test_what_an_import_or_a_collection_runs_is_not_the_function_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a module that asks the time as it is imported, and a finalizer that does
    (tmp_path / "asks_at_import.py").write_text(
        "import time\ndef now(): return time.time()\nNOW = now()\ndef later(): return 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    class Dying:
        def __del__(self) -> None:
            time.time()

    def function() -> int:
        import asks_at_import  # type: ignore[import-not-found]

        cycle: list[Any] = [Dying()]
        cycle.append(cycle)
        del cycle
        gc.collect()
        found: int = asks_at_import.later()
        return found

    # WHEN THEN what they do is not noted, what the function calls of the module afterwards is
    codes, found = of(function)
    sys.modules.pop("asks_at_import", None)
    assert found.questions.asked is None
    assert "later" in codes
    assert "now" not in codes


def test_what_draws_or_seeds_is_noted_each_time() -> None:
    # GIVEN, WHEN and THEN: numbers of the host, and a generator that the user's code sets after a library has
    _, found = of(lambda: np.random.rand(2))
    assert found.drew
    _, found = of(lambda: random.random())
    assert found.drew

    def seeds() -> None:
        torch.manual_seed(3)

    before = torch.get_rng_state()
    _, found = of(seeds)
    torch.set_rng_state(before)
    assert found.seeded is not None
    assert found.seeded.function == "seeds"


def test_an_error_in_the_function_leaves_no_hook_behind() -> None:
    # GIVEN a profiler of the user's
    calls: list[str] = []
    mine = lambda frame, event, argument: calls.append(event)  # noqa: E731

    def fails() -> None:
        raise KeyError("no")

    # WHEN the function fails THEN the error is the user's, and so is the profiler afterwards
    sys.setprofile(mine)
    try:
        with pytest.raises(KeyError, match="no"):
            of(fails)
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(None)
    assert calls
