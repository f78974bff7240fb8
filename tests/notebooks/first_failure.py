"""A plugin of pytest: of each notebook, what comes after the first cell that fails is left out.

``--cells-to FILE`` gets a line for each cell that was run: its notebook, its number, and what became of it.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

_failed: set[Path] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cells-to", type=Path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        _failed.add(item.path)
    if report.when == "call" or report.failed:
        state = "passed" if report.passed else "failed" if report.when == "call" else f"error in {report.when}"
        with item.config.getoption("--cells-to").open("a") as file:
            file.write(f"{item.path.stem}\t{item.name.removeprefix('Cell ')}\t{state}\n")
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.path in _failed:
        pytest.skip("after the first failure")
