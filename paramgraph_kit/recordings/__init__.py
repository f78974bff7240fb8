"""The noun ``recorded``: traces that a GPU left behind, shipped with the package; neither torch nor a GPU is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.resources import files
from typing import Any

from paramgraph_kit.explore.names import content
from paramgraph_kit.explore.text import proof_lines
from paramgraph_kit.trace import Trace, TraceError, loads

SUFFIX = ".pgtrace"


class Recordings(Mapping[str, Trace]):
    """Every shipped trace by its name, read anew whenever it is asked for. Shown, it is a list with their sources.

    Raises:
        TraceError: there is no recording of that name.

    Examples:
        >>> recorded["gpt2"]
        Trace('GPT-2 small, inference, ...', recorded: 1 partitions, 1 captures, 4 launches, 0 failures, ...)
        >>> "llama-paramgraph" in recorded
        True
    """

    @cached_property
    def _files(self) -> dict[str, Any]:
        found = (file for file in files(__name__).iterdir() if file.name.endswith(SUFFIX))
        return {file.name.removesuffix(SUFFIX): file for file in sorted(found, key=lambda file: file.name)}

    def __getitem__(self, name: str) -> Trace:
        if name not in self._files:
            known = ", ".join(self._files) or "none, this installation came without them"
            raise TraceError(f"there is no recording {name!r}; there are: {known}")
        return loads(self._files[name].read_bytes(), name=name)

    def packed(self) -> dict[str, bytes]:
        """Every file as it is, by its name."""
        return {name: file.read_bytes() for name, file in self._files.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __repr__(self) -> str:
        return f"<paramgraph_kit.recorded: {', '.join(self._files)}>"

    def __str__(self) -> str:
        by_source: dict[str, list[str]] = {}
        for name, trace in self.items():
            by_source.setdefault(trace.source.label(), []).append(_lines(name, trace))
        return "\n\n".join("\n".join([label, *lines]) for label, lines in by_source.items())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": str(self)}


def _lines(name: str, trace: Trace) -> str:
    lines = [trace.title, content(trace), *proof_lines(trace.proofs, most=1)]
    return "\n      ".join([f"  {name}", *(line for line in lines if line)])


recorded = Recordings()
