"""What is known of one class of failure: why it fails, what to write instead, its signs and its programs."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from paramgraph_kit.doctor.known.evidence import Evidence
from paramgraph_kit.doctor.known.program import Program
from paramgraph_kit.trace.model import Failure, Frame

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
    "partition",  # why a part of a compiled function is in no graph
    "function",  # not about a capture
)
MOST_LINES = 12

Rewrite = Callable[[ast.stmt], ast.stmt | None]  # the user's statement, mended; None where that is not sure


@dataclass(frozen=True, slots=True)
class Source:
    """A page that documents a failure."""

    title: str
    url: str


_NVIDIA = ("NVIDIA, CUDA Graph Best Practice for PyTorch: ", "https://docs.nvidia.com/dl-cuda-graph/")
_PYTORCH = ("PyTorch, ", "https://docs.pytorch.org/docs/stable/")
_CUDA = ("CUDA Runtime API: ", "https://docs.nvidia.com/cuda/cuda-runtime-api/")
SOURCES = {
    name: Source(site + title, url + page)
    for name, (site, url), title, page in (
        ("CAPTURE_FAILURES", _NVIDIA, "Capture Failures", ""),
        ("NUMERICAL_ERRORS", _NVIDIA, "Numerical Errors", ""),
        ("MEMORY_ISSUES", _NVIDIA, "Memory Issues", ""),
        ("SYNC_FREE", _NVIDIA, "Writing Sync-Free Code", ""),
        ("DYNAMIC_PATTERNS", _NVIDIA, "Dynamic Patterns", ""),
        ("PYTORCH_NOTES", _PYTORCH, "CUDA semantics: CUDA Graphs", "notes/cuda.html#cuda-graphs"),
        ("PYTORCH_TREES", _PYTORCH, "CUDAGraph Trees", "torch.compiler_cudagraph_trees.html"),
        ("PYTORCH_GRAPH", _PYTORCH, "torch.cuda.CUDAGraph", "generated/torch.cuda.CUDAGraph.html"),
        (
            "PYTORCH_CALLABLES",
            _PYTORCH,
            "torch.cuda.make_graphed_callables",
            "generated/torch.cuda.make_graphed_callables.html",
        ),
        ("PYTORCH_AUTOCAST", _PYTORCH, "Automatic Mixed Precision", "amp.html"),
        ("CUDA_RUNTIME", _CUDA, "cudaError", "group__CUDART__TYPES.html"),
    )
}


@dataclass(frozen=True, slots=True)
class Sign:
    """What an exception shows; every condition that is given must hold. The more are given, the earlier it is tried."""

    syncs: bool = False  # the CPU wants to wait for the GPU: 900, or torch's own check of copies
    codes: tuple[int, ...] = ()  # CUDA error codes
    says: tuple[str, ...] = ()  # any of these in the message
    operations: str = ""  # any of these, between spaces, at the user's line
    files: tuple[str, ...] = ()  # any of these in the path of a library file that raised
    not_files: tuple[str, ...] = ()  # none of these
    hints: tuple[str, ...] = ()  # all of these about the source
    last: bool = False  # only where nothing else says more, not even what libraries did

    @property
    def weight(self) -> int:
        """How much it asks for."""
        conditions = (self.syncs, self.codes, self.says, self.operations, self.hints)
        return sum(map(bool, conditions)) + 2 * bool(self.files)

    def matches(self, evidence: Evidence, operations: tuple[str, ...]) -> bool:
        """Whether all conditions hold, for these of the line's operations."""

        def through(names: tuple[str, ...]) -> bool:
            return any(name in file for file in evidence.files for name in names)

        return (
            (not self.syncs or evidence.syncs)
            and (not self.codes or evidence.code in self.codes)
            and (not self.says or any(text in evidence.message for text in self.says))
            and (not self.operations or any(name in self.operations.split() for name in operations))
            and (not self.files or through(self.files))
            and not through(self.not_files)
            and all(hint in evidence.hints for hint in self.hints)
        )


@dataclass(frozen=True, slots=True)
class FailureClass:
    """One way in which a capture fails, with programs that do so and what they look like mended."""

    id: str
    category: str  # one of CATEGORIES
    title: str
    cause: str
    fix: str
    signs: tuple[Sign, ...] = ()  # of an exception; any of them
    vague: tuple[Sign, ...] = ()  # those that only know the error's code, which are asked last
    fixes: Mapping[str, str] = field(default_factory=dict)  # operation -> a fix of its own
    reasons: tuple[str, ...] = ()  # codes of a partition's reasons that mean this
    programs: tuple[Program, ...] = ()
    source: Source = SOURCES["PYTORCH_NOTES"]
    told: bool = False  # its line is the one that the message quotes
    rewrite: Rewrite | None = None

    @property
    def silent(self) -> bool:
        """Whether nothing is raised: the capture succeeds, and only its numbers are wrong."""
        return not (self.signs or self.vague or self.reasons)

    def __repr__(self) -> str:
        return f"FailureClass({self.id}: {self.title})"

    def failure(self, message: str, frame: Frame | None, operations: tuple[str, ...] = ()) -> Failure:
        """This class at a line of the user's; ``message`` is what was said or seen, ``operations`` what did it."""
        own = next((self.fixes[name] for name in operations if name in self.fixes), self.fix)
        return Failure(self.id, self.title, message, frame, self.cause, own)

    def line(self) -> str:
        """The class in one line."""
        return f"{self.id:<26} {self.category:<24} {self.title}"

    def text(self, width: int = 100) -> str:
        """What the class is, in at most 12 lines; the programs apart."""
        ways = [(bool(self.signs or self.vague), "diagnose(error)"), (bool(self.reasons), "diagnose(compiled)")]
        known = ", ".join(way for holds, way in ways if holds) or "not from an exception"
        cannot = next((program.simulator_cannot for program in self.programs), "")
        lines = [f"{self.title}  [{self.id}]"]
        for name, value in (
            ("kind", self.category),
            ("why", self.cause),
            ("known by", known),
            ("simulator", cannot and f"cannot know: {cannot}"),
            ("source", f"{self.source.title}, {self.source.url}"),
        ):
            if value:
                head = f"  {name:<9}  "
                lines += textwrap.wrap(value, width, initial_indent=head, subsequent_indent=" " * len(head))
        return "\n".join([*lines, *textwrap.indent(self.fix, "  ").splitlines()])

    def shown_programs(self) -> list[str]:
        """Each program before and after its fix, to read."""
        return [
            f"# {which}{f', {program.name}' if program.name else ''}\n{program.text(which)}".rstrip()
            for program in self.programs
            for which in ("before", "after")
        ]


def fix(before: str, after: str) -> str:
    """The two lines of a fix: what is written now, and what to write instead."""
    return f"before  {before}\nafter   {after}"
