"""Every error that paramgraph_kit raises on purpose.

ParamgraphError              base: what happened, where, which value, what to do
├── TraceError               a trace file is damaged or of an unknown version
├── UnsupportedError         this torch, driver or device cannot do what was asked
├── DeviceMismatchError      a tensor or module is on the wrong device
└── RefusedError             the launcher is not sure, so the partition runs ungraphed
"""

from __future__ import annotations

from collections.abc import Iterator

from paramgraph_kit.trace.reason import Reason


class ParamgraphError(Exception):
    """Base of all errors raised on purpose; its text is one line."""


class TraceError(ParamgraphError):
    """A trace file that cannot be read."""


class UnsupportedError(ParamgraphError):
    """Something that this installation cannot do."""


class DeviceMismatchError(ParamgraphError):
    """A tensor or module on a device other than the one asked for."""


class RefusedError(ParamgraphError):
    """The launcher refuses a graph; carries the reason that the report shows."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.label())
        self.reason = reason


def cause_chain(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and what it was raised from or during, each once: ``raise e from e`` makes a circle of them.

    >>> broken = ValueError("broken")
    >>> broken.__cause__ = broken
    >>> [str(each) for each in cause_chain(broken)]
    ['broken']
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        cause = error.__cause__
        error = cause if cause is not None and id(cause) not in seen else error.__context__
