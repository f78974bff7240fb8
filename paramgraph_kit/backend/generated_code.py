"""All that is read from the source that Inductor generates; it has no other way to tell.

A test holds what is expected here against what the installed torch writes.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TypeVar

import torch.fx

from paramgraph_kit.partition.frames import frame_of
from paramgraph_kit.trace.model import Frame

T = TypeVar("T")

_PARTITION = re.compile(r"\s*def partition_(\d+)\(")
_FUNCTION = re.compile(r"\s*def \w+\(")
_OTHER_STORAGE = re.compile(r"[^#]*\b(?:aten\.(?:set_|resize_|shallow_copy_data_)\b|resize_storage_bytes_\()")
# 0 is "default_stream": whichever is current. The operations change streams or wait, for work outside of the partition.
_ON_STREAM = re.compile(r"\s*with stream[1-9]\d*:|[^#]*\btorch\.ops\.streams\.")
_SOURCES = re.compile(r"\s*# Topologically Sorted Source Nodes: \[([^]]*)\]")
_LAUNCH = re.compile(r"\s*(triton_\w+)\.run\(")
_CALLED = re.compile(r"self\.partitions\[(\d+)\]\(")


class GeneratedCode:
    """The source of one compiled graph: a ``call`` that runs partition functions and what is outside of them."""

    def __init__(self, source: str) -> None:
        self._source = source
        try:
            tree = ast.parse(source)
        except SyntaxError:
            tree = ast.Module([], [])
        functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
        self._calls = [each for each in functions if each.name == "call"]

    def by_launch(self, known: Mapping[str, T]) -> dict[int, Mapping[str, Sequence[T | None]]]:
        r"""By partition and kernel, what is known of each launch; of a fused kernel that of the last operation.

        ``known`` has lines, or modules, of FX nodes by each name that a comment may call them.

        >>> code = "def partition_0(args):\n  # Topologically Sorted Source Nodes: [y, z], Original ATen: [aten.add]\n"
        >>> found = GeneratedCode(code + "  triton_poi_fused_add_0.run(a, 8)\n").by_launch({"y": Frame("m.py", 7)})
        >>> found[0]["triton_poi_fused_add_0"][0].label()
        'm.py:7'
        """
        found: dict[int, dict[str, list[T | None]]] = {}
        here: dict[str, list[T | None]] | None = None
        sources: list[str] = []
        for line in self._source.splitlines():
            if match := _PARTITION.match(line):
                here, sources = found.setdefault(int(match[1]), {}), []
            elif match := _SOURCES.match(line):
                sources = [name.strip() for name in match[1].split(",")]
            elif (match := _LAUNCH.match(line)) and here is not None:
                told = [known[name] for name in sources if name in known]
                here.setdefault(match[1], []).append(told[-1] if told else None)
                sources = []
        return dict(found)

    def on_streams(self) -> frozenset[int]:
        r"""The partitions that enter streams, as Inductor lets them from torch 2.12 on, or call operations on streams.

        >>> code = "def partition_0(args):\n  k.run(x)\ndef partition_1(args):\n  with stream1:\n    k.run(x)\n"
        >>> code += "def partition_2(args):\n  torch.ops.streams.join.default(1, 0)\n"
        >>> code += "def partition_3(args):\n  # torch.ops.streams.join\n"
        >>> sorted(GeneratedCode(code).on_streams())
        [1, 2]
        """
        return self._partitions_with(_ON_STREAM)

    def changing_storages(self) -> frozenset[int]:
        r"""The partitions that give a tensor other memory: in a capture that would be what the capture takes away.

        >>> code = "def partition_0(args):\n  buf1 = torch.ops.aten.set_.source_Tensor(arg0, buf0)\n"
        >>> code += "def partition_1(args):\n  # torch.ops.aten.set_\n  inductor_ops.resize_storage_bytes_(arg1, 0)\n"
        >>> sorted(GeneratedCode(code).changing_storages())
        [0, 1]
        """
        return self._partitions_with(_OTHER_STORAGE)

    def _partitions_with(self, line_of: re.Pattern[str]) -> frozenset[int]:
        found, here = set(), -1
        for line in self._source.splitlines():
            if match := _PARTITION.match(line):
                here = int(match[1])
            elif _FUNCTION.match(line):
                here = -1
            elif here >= 0 and line_of.match(line):
                found.add(here)
        return frozenset(found)

    def saved(self, returned: int, apart: Container[int] = ()) -> dict[int, frozenset[int]]:
        r"""Which outputs of each partition ``call`` gives to nobody but the backward.

        ``call`` returns ``returned`` values for its caller and then what is saved. A name that is used in any other
        way, or returned at a place in ``apart``, is left out.

        >>> code = "def call(args):\n  (a, b, c) = self.partitions[0](args)\n  return (view(a), b, a, c, c, )"
        >>> {k: sorted(v) for k, v in GeneratedCode(code).saved(2).items()}
        {0: [2]}
        """
        made: dict[int, list[str]] = {}
        saved: set[str] = set()
        others: set[str] = set()
        for statement in (line for call in self._calls for line in ast.walk(call) if isinstance(line, ast.stmt)):
            if isinstance(statement, ast.Assign) and (match := _CALLED.match(ast.unparse(statement.value))):
                made[int(match[1])] = _names(statement.targets[0])
            elif isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
                for k, value in enumerate(statement.value.elts):
                    (saved if k >= returned and k not in apart else others).update(_names(value))
            elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name):
                others.add(statement.value.id)
        return {n: frozenset(k for k, name in enumerate(names) if name in saved - others) for n, names in made.items()}

    def order(self) -> list[tuple[str, int]]:
        r"""What ``call`` does, in order: ("partition", its number), or ("outside", how many launches in a row).

        >>> code = "def call(args):\n  extern_kernels.mm(a)\n  c = self.partitions[0](args)\n  k.run(c)\n  k.run(c)\n"
        >>> GeneratedCode(code).order()
        [('outside', 1), ('partition', 0), ('outside', 2)]
        """
        found: list[tuple[str, int]] = []
        for call in self._calls:
            nodes = [node for node in ast.walk(call) if isinstance(node, ast.Call)]
            for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
                if match := _CALLED.match(ast.unparse(node)):
                    found.append(("partition", int(match[1])))
                elif _is_launch(node):
                    before = found.pop()[1] if found and found[-1][0] == "outside" else 0
                    found.append(("outside", before + 1))
        return found

    def launches_outside(self) -> int:
        r"""How many launches ``call`` makes itself, outside its partition functions.

        >>> code = "def partition_0(args):\n  k.run(x)\ndef call(args):\n  extern_kernels.mm(a, b)\n"
        >>> GeneratedCode(code).launches_outside()
        1
        """
        return sum(_is_launch(node) for call in self._calls for node in ast.walk(call))


def _names(node: ast.AST) -> list[str]:
    return [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]


def _is_launch(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    return name.endswith(".run") or name.startswith(("extern_kernels.", "torch.ops.", "aten.", "cpp_fused"))


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


def of_nodes(names: Sequence[str], known: Mapping[str, Sequence[T | None]]) -> Iterator[T | None]:
    """What is known of each recorded node; None where a kernel was not launched as often as the code says.

    >>> list(of_nodes(["k", "gemm"], {"k": ["blocks.0"]}))
    ['blocks.0', None]
    """
    counts, seen = Counter(names), Counter[str]()
    for name in names:
        mine = known.get(name, ())
        yield mine[seen[name]] if len(mine) == counts[name] else None
        seen[name] += 1
