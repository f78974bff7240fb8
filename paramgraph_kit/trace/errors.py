"""Every error that paramgraph_kit raises on purpose, each exported as ``paramgraph_kit.NAME``.

ParamgraphError              base, and itself for a wrong argument: what happened, where, which value, what to do
├── TraceError               a trace file is damaged or of an unknown version, or there is no such recording
├── UnsupportedError         this torch, driver or device cannot do what was asked
├── DeviceMismatchError      a tensor or module is on the wrong device
├── RefusedError             the launcher is not sure, so the partition runs ungraphed; ``reason`` says why
├── CaptureError             a capture under ``diagnose.capture`` failed; ``failure`` is its diagnosis
├── DriverCallError          a call of the CUDA driver failed; ``code`` is its CUresult
├── PromiseError             a model changed that ``guards="inputs"`` promised would not
└── TourError                something that the tour claims is not so on this machine

They arrive as they are, also where torch.compile runs the backend: Dynamo would wrap them in a
``BackendCompilerFailed``, so what goes wrong while a function is compiled is raised when the function is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from paramgraph_kit.trace.reason import Reason

if TYPE_CHECKING:
    from paramgraph_kit.trace.model import Failure


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

    address: int | None = None  # that nobody owns, where that is the reason,
    outside: bool = False  # and whether it is none of the caching allocator's
    position: int | None = None  # of the node that is refused, where it is one, in the order of recording
    launched_by: Any = None  # and, once somebody has asked, which operation's how many-th call launches it

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.label())
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason,)  # by default a copy would be made from the text


class PromiseError(ParamgraphError):
    """What the caller promised the launcher does not hold: results since then may be wrong."""


class CaptureError(ParamgraphError):
    """A capture that failed; the process is as it was before, unless the text says otherwise. ``failure`` tells why."""

    def __init__(self, failure: Failure, state: str) -> None:
        where = f" at {failure.frame.label()}" if failure.frame else ""
        after = failure.fix.splitlines()[-1].removeprefix("after").strip() if failure.fix else ""
        super().__init__(f"{failure.title} [{failure.code}]{where}; write instead: {after}; {state}")
        self.failure, self.state = failure, state

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.failure, self.state)


class DriverCallError(ParamgraphError):
    """A call of the CUDA driver that failed; ``code`` is its CUresult."""

    def __init__(self, function: str, code: int, name: str) -> None:
        super().__init__(f"{function} failed: {name} ({code})")
        self.function, self.code, self.name = function, code, name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.function, self.code, self.name)


class TourError(ParamgraphError):
    """Something that the tour claims is not so on this machine."""


ERRORS = (
    ParamgraphError,
    TraceError,
    UnsupportedError,
    DeviceMismatchError,
    RefusedError,
    CaptureError,
    DriverCallError,
    PromiseError,
    TourError,
)
for _error in ERRORS:
    _error.__module__ = "paramgraph_kit"  # what a traceback says, and where users import it from


_CAUSE, _CONTEXT = vars(BaseException)["__cause__"], vars(BaseException)["__context__"]


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
        cause = _CAUSE.__get__(error)  # a class may answer as it likes, and raise
        error = cause if cause is not None and id(cause) not in seen else _CONTEXT.__get__(error)
