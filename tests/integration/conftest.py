"""What several of these tests need: programs that are diagnosed and rewritten, and a device that is slow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import Fixed, Program, rewritten, run


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """Runs a program from a file of its own; returns its names."""
    yield lambda text: run(text, tmp_path)
    pgk.diagnose.repair()


@pytest.fixture
def fixed(tmp_path: Path) -> Iterator[Fixed]:
    """Has a program rewritten; what is said to be whole is captured and compared over ten other steps too."""
    yield lambda text: rewritten(text, tmp_path)
    pgk.diagnose.repair()


@pytest.fixture
def slow_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each launch on the simulated device take ten milliseconds."""
    from paramgraph_kit.driver.sim.driver import SimExecutable

    launch = SimExecutable._launch

    def slowly(executable: SimExecutable, stream: int) -> None:
        time.sleep(0.01)
        launch(executable, stream)

    monkeypatch.setattr(SimExecutable, "_launch", slowly)
