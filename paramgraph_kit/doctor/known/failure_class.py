"""What an entry of the catalogue of failures is."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

CATEGORIES = (
    "sync",
    "memory",
    "streams",
    "threads",
    "lazy initialisation",
    "RNG",
    "autograd and optimizers",
    "silent",
    "API misuse",
    "compile",
)
PRELUDE = """\
import torch
from torch import nn
from torch.nn import functional as F
import paramgraph_kit as pgk
cuda, device = pgk.cuda, pgk.device()
"""
MOST_LINES = 12
NOT_FROM_AN_EXCEPTION = "not from an exception"


@dataclass(frozen=True, slots=True)
class Source:
    """A page that documents a failure."""

    title: str
    url: str


@dataclass(frozen=True, slots=True)
class FailureClass:
    """One way in which a capture fails, with a program that does so and one that does not.

    ``before`` and ``after`` run after ``PRELUDE``. Each leaves ``got``, from a replay, and ``expected``, from eager;
    a ``before`` that is loud raises instead.
    """

    id: str
    title: str
    category: str  # one of CATEGORIES
    cause: str
    versions: str  # of torch
    recognised: str  # the code that `explain` gives, or "" where nothing is raised
    before: str
    after: str
    source: Source
    wrong: str = ""  # str(got) of a silent `before`
    simulator_cannot: str = ""  # why the simulator cannot know this class

    @property
    def silent(self) -> bool:
        """Whether the capture succeeds and only its numbers are wrong."""
        return not self.recognised

    def __repr__(self) -> str:
        return f"FailureClass({self.id}: {self.title})"

    def line(self) -> str:
        """The class in one line."""
        return f"{self.id:<26} {self.category:<24} {self.title}"

    def text(self, width: int = 100) -> str:
        """What the class is, in at most 12 lines; the snippets apart."""
        how = f"diagnose(error) gives {self.recognised}" if self.recognised else NOT_FROM_AN_EXCEPTION
        lines = [f"{self.title}  [{self.id}]"]
        for name, value in (
            ("kind", self.category),
            ("why", self.cause),
            ("holds for", self.versions),
            ("known by", how + (f": the number is {self.wrong}" if self.wrong else "")),
            ("simulator", self.simulator_cannot and f"cannot know: {self.simulator_cannot}"),
            ("source", f"{self.source.title}, {self.source.url}"),
        ):
            if value:
                head = f"  {name:<9}  "
                lines += textwrap.wrap(value, width, initial_indent=head, subsequent_indent=" " * len(head))
        return "\n".join(lines)

    def programs(self) -> str:
        """Both snippets, and what both need first."""
        parts = (("first, for both", PRELUDE), ("before", self.before), ("after", self.after))
        return "\n".join(f"# {name}\n{code}" for name, code in parts).rstrip()


def code(text: str) -> str:
    """A snippet without the indentation that it has in our source."""
    return textwrap.dedent(text).strip() + "\n"


def _nvidia(chapter: str) -> Source:
    return Source(f"NVIDIA, CUDA Graph Best Practice for PyTorch: {chapter}", "https://docs.nvidia.com/dl-cuda-graph/")


CAPTURE_FAILURES = _nvidia("Capture Failures")
NUMERICAL_ERRORS = _nvidia("Numerical Errors")
MEMORY_ISSUES = _nvidia("Memory Issues")
SYNC_FREE = _nvidia("Writing Sync-Free Code")
DYNAMIC_PATTERNS = _nvidia("Dynamic Patterns")
PYTORCH_NOTES = Source(
    "PyTorch, CUDA semantics: CUDA Graphs", "https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs"
)
PYTORCH_TREES = Source(
    "PyTorch, CUDAGraph Trees", "https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html"
)
CUDA_RUNTIME = Source(
    "CUDA Runtime API: cudaError", "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"
)
