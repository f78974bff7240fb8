"""An IPython shell with the extension loaded, for the tests of the magic."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from paramgraph_kit.backend import watch as watching

CALLS = "with torch.no_grad():\n    kept = [model(x) for _ in range(3)]\n"
SETUP = """
import torch, paramgraph_kit as pgk
model = pgk.compile(torch.nn.Linear(8, 8).to(pgk.device()))
x = torch.randn(4, 8).to(pgk.device())
"""


class Session:
    """A shell, and what one cell after the other says in it."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    def run(self, cell: str) -> Any:
        """The cell's result with what it printed (``out``, ``err``) and the bundles it displayed (``shown``)."""
        with capture_output() as said:
            result = self.shell.run_cell(cell, store_history=True)
        result.out, result.err = said.stdout, said.stderr
        result.shown = [output.data for output in said.outputs]
        return result

    def good(self, cell: str) -> Any:
        """``run``, of a cell that must not fail."""
        result = self.run(cell)
        assert result.success, result.out + result.err
        return result

    def refused(self, cell: str) -> str:
        """The one line that a wrong cell gets."""
        result = self.run(cell)
        assert type(result.error_in_exec).__name__ == "UsageError"
        assert result.shown == []
        said: str = (result.out + result.err).strip()
        assert said.startswith("UsageError: %paramgraph")
        assert "\n" not in said
        return said.removeprefix("UsageError: ")

    def __getitem__(self, name: str) -> Any:
        return self.shell.user_ns[name]

    def __contains__(self, name: str) -> bool:
        return name in self.shell.user_ns

    def magics(self) -> list[str]:
        """Kinds of magic that have our name."""
        return [kind for kind, known in self.shell.magics_manager.magics.items() if "paramgraph" in known]


def in_a_shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A session of its own, as a fixture."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        monkeypatch.delattr(sys, name, raising=False)
    torch._dynamo.reset()
    gc.collect()
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    module = ModuleType("magic_session")
    shell = InteractiveShell.instance(config=config, user_module=module)
    session = Session(shell)
    session.good("%load_ext paramgraph_kit")
    session.good(SETUP)
    yield session
    session.run("pgk.cuda.set_stream(pgk.cuda.default_stream())\npgk.diagnose.repair()")
    InteractiveShell.clear_instance()
    sys.modules.pop("magic_session", None)
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    assert not watching._active
