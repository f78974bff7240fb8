"""What rules look at: one exception of a chain, or what stands for one where a function is only watched."""

from __future__ import annotations

from dataclasses import dataclass

from paramgraph_kit.trace.model import Frame

PAGEABLE = "Cannot copy between CPU and CUDA tensors during CUDA graph capture"
THRUST = "failed to synchronize: cudaErrorStreamCaptureUnsupported"
# Hints that the source around a failure gives.
ASIDE = "aside"  # on a stream that nothing forked from the capturing one
NEVER_BEGUN = "never begun"  # no capture is begun by hand in this code
RAW_CALL = "raw call"  # a function of CUDA's own is called in the capture
OTHERS_WAIT = "others wait"  # another thread waits for the whole device
OTHERS_QUERY = "others query"  # another thread asks for the state of work
OTHERS_MEMORY = "others memory"  # another thread makes tensors
ANOMALY = "anomaly mode"  # autograd looks for NaN after each function


@dataclass(frozen=True, slots=True)
class Evidence:
    """One exception of a chain, with all that rules look at."""

    type: str
    message: str
    code: int | None  # CUDA's
    frame: Frame | None  # the user's own line
    operations: tuple[str, ...] = ()  # at that line, the failing one first: "item", "x[mask]", "bool"
    exact: bool = False  # whether the first operation is the very one that raised
    files: tuple[str, ...] = ()  # library files that the user's line went through
    inner: tuple[str, ...] = ()  # operations and functions in these, innermost first
    hints: frozenset[str] = frozenset()  # what the source around it says
    told: Frame | None = None  # the user's line that the message itself quotes
    inside: str = ""  # "file:line" of an installed package that the user's line went through

    @property
    def syncs(self) -> bool:
        """Whether the message is one of those for a CPU that wants to wait for the GPU."""
        return self.code == 900 or PAGEABLE in self.message or THRUST in self.message

    def headline(self) -> str:
        """``Type: first line of the message``."""
        return f"{self.type}: {first_line(self.message)}"


def first_line(text: str) -> str:
    """The first line that says something.

    >>> first_line("\\nCUDA error: invalid argument\\nSearch for ...")
    'CUDA error: invalid argument'
    """
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
