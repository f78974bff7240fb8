"""Which line of the user's each Triton kernel of Inductor's generated code stands for, read from its comments."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch.fx

from paramgraph_kit.partition.frames import frame_of
from paramgraph_kit.trace.model import Frame

_PARTITION = re.compile(r"\s*def partition_(\d+)\(")
_SOURCES = re.compile(r"\s*# Topologically Sorted Source Nodes: \[([^]]*)\]")
_LAUNCH = re.compile(r"\s*(triton_\w+)\.run\(")

Lines = dict[str, list[Frame | None]]  # by kernel, for each of its launches in order


def kernel_lines(source: str, frames: Mapping[str, Frame]) -> dict[int, Lines]:
    r"""By partition and kernel, the line behind each launch; of a fused kernel, that of the last operation with one.

    ``frames`` has the user's lines of FX nodes, by each name that a comment may call them.

    >>> code = "def partition_0(args):\n  # Topologically Sorted Source Nodes: [y, z], Original ATen: [aten.add]\n"
    >>> found = kernel_lines(code + "  triton_poi_fused_add_0.run(a, 8)\n", {"y": Frame("m.py", 7)})
    >>> found[0]["triton_poi_fused_add_0"][0].label()
    'm.py:7'
    """
    found: dict[int, Lines] = {}
    here: Lines | None = None
    sources: list[str] = []
    for line in source.splitlines():
        if match := _PARTITION.match(line):
            here, sources = found.setdefault(int(match[1]), {}), []
        elif match := _SOURCES.match(line):
            sources = [name.strip() for name in match[1].split(",")]
        elif (match := _LAUNCH.match(line)) and here is not None:
            known = [frames[name] for name in sources if name in frames]
            here.setdefault(match[1], []).append(known[-1] if known else None)
            sources = []
    return found


def frames_by_name(module: torch.fx.GraphModule) -> dict[str, Frame]:
    """The user's line of each node, by its own name and by those that it had before it was decomposed."""
    found: dict[str, Frame] = {}
    for node in module.graph.nodes:
        if (frame := frame_of(node)) is None:
            continue
        before = [str(getattr(each, "name", "")) for each in node.meta.get("from_node") or ()]
        for name in (*before, *[str(pair[0]) for pair in node.meta.get("source_fn_stack") or ()]):
            found.setdefault(name, frame)
        found[node.name] = frame
    return found


def frames_of_nodes(names: Sequence[str], lines: Mapping[str, Sequence[Frame | None]]) -> Iterator[Frame | None]:
    """The line of each recorded node; none where a kernel was not launched as often as the code says.

    >>> list(frames_of_nodes(["k", "gemm"], {"k": [Frame("m.py", 7)]}))[1] is None
    True
    """
    counts, seen = Counter(names), Counter[str]()
    for name in names:
        mine = lines.get(name, ())
        yield mine[seen[name]] if len(mine) == counts[name] else None
        seen[name] += 1
