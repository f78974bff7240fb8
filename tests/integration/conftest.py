"""What several of these tests need: programs that are diagnosed and rewritten, a device that is slow, a shell."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import paramgraph_kit as pgk
from tests.integration.rewritten import Fixed, Program, rewritten, run

if TYPE_CHECKING:
    from tests.integration.shells import Session


TRIES = ("test_rewrite", "test_diagnose", "test_magic")
MANY = 10_000  # objects: to look at these takes the garbage collector about 3 ms


@pytest.fixture(autouse=True)
def _pieces_where_asked_for(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile nothing for ``.fix.pieces``, a quarter of these tests' time, but for those marked with ``pieces``.

    Where the fix itself is another one without, it is done all the same.
    """
    if request.node.get_closest_marker("pieces") is None:
        from paramgraph_kit.verbs import _pieces

        words = request.node.get_closest_marker("words") is not None

        def only_to_decide(function: Any, args: Any, kwargs: Any, fix: Any, known: Any) -> Any:
            wanted = fix.otherwise is not None and not words
            return in_pieces(function, args, kwargs, fix, known) if wanted else _pieces.NOT_PROVED

        in_pieces = _pieces.in_pieces
        monkeypatch.setattr(_pieces, "in_pieces", only_to_decide)


@pytest.fixture(autouse=True)
def _little_to_collect(request: pytest.FixtureRequest) -> None:
    """Set aside what earlier tests have left, such as parsed sources, where many times is collected what a trial makes.

    Elsewhere it is not: what is set aside too early is never freed, and some tests compare what freed memory holds.
    """
    if request.path.stem.startswith(TRIES) and len(gc.get_objects(generation=2)) > MANY:
        gc.collect()
        gc.freeze()


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


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """An IPython shell with the extension loaded."""
    from tests.integration.shells import in_a_shell  # others run without IPython

    yield from in_a_shell(monkeypatch)
