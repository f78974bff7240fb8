"""Fixtures of the tests of the doctor's fixes, which leave the process as it was."""

from __future__ import annotations

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
