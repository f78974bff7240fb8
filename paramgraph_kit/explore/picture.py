"""A captured graph as a picture: DOT, SVG or PNG through graphviz, and a text that says the same."""

from __future__ import annotations

import base64
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paramgraph_kit.explore import text
from paramgraph_kit.explore.names import bytes_text, family_of, plural, runs_of_nodes, short, tensor_text
from paramgraph_kit.trace.errors import UnsupportedError
from paramgraph_kit.trace.files import path_of, written
from paramgraph_kit.trace.model import Capture, Node, Role, Source, WordKind
from paramgraph_kit.trace.wording import one_line

MOST_NODES = 300  # drawn one by one; more become the collapsed view
NOTHING = "transparent"  # what is behind the vertices: they are seen on light and on dark
_FONT = "DejaVu Sans,Helvetica,Arial,sans-serif"
_ROLE_SHAPES = {Role.INPUT: "house", Role.OUTPUT: "invhouse", Role.WORKSPACE: "box", Role.STATIC: "folder"}


@dataclass(frozen=True, slots=True, repr=False)
class Picture:
    """A drawing; displays as PNG with its text beside it, or as text where graphviz is missing.

    >>> Picture("digraph {}", "nothing", "empty")
    Picture('empty', 10 bytes of DOT)
    """

    dot: str
    text: str
    title: str
    families: tuple[str, ...] = field(default=())  # words of the kernel families that are drawn

    def __repr__(self) -> str:
        return f"Picture({self.title!r}, {len(self.dot)} bytes of DOT)"

    def svg(self) -> str:
        """The picture as SVG; raises UnsupportedError where graphviz is missing."""
        return render(self.dot, "svg").decode()

    def png(self, *, small: bool = False) -> bytes:
        """The picture as PNG, ``small`` with 256 colours and on white; raises UnsupportedError without graphviz."""
        return render(self.dot, small=small)

    def save(self, path: str | Path) -> Path:
        """Write ``.svg``, ``.png``, ``.dot`` or ``.txt``, by the name's ending.

        Raises:
            UnsupportedError: another ending, or graphviz is missing.
            TraceError: the file cannot be written.
        """
        target = path_of(path)
        if target.suffix == ".dot":
            return written(target, self.dot + "\n")
        if target.suffix == ".txt":
            return written(target, self.text + "\n")
        if target.suffix in (".svg", ".png"):
            return written(target, render(self.dot, target.suffix[1:]))
        raise UnsupportedError(f"{target}: unknown picture type; end the name in .svg, .png, .dot or .txt")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        try:
            png = self.png()
        except UnsupportedError as error:
            return {"text/plain": f"{self.text}\n({error})"}
        return {"image/png": base64.b64encode(png).decode(), "text/plain": self.text}


def draw(
    capture: Capture, source: Source, *, allocations: bool = False, collapse: bool | None = None, most: int = MOST_NODES
) -> Picture:
    """Draw a capture.

    Args:
        capture: what to draw.
        source: where it comes from; its label is part of the title.
        allocations: draw the memory that nodes point into as well, where it fits into ``most``.
        collapse: draw each run of repeated nodes once; None: only if there are more than ``most`` nodes.
        most: how many vertices to draw at most; what is left out is counted in the picture.
    """
    many = len(capture.nodes) > most
    groups = _groups(capture, many if collapse is None else collapse)
    shown = groups[:most]
    used = [capture.allocations[i] for i in _touched(capture, shown)] if allocations else []
    notes = []
    if many or collapse:
        notes.append(f"collapsed: {plural(len(capture.nodes), 'node')} as {len(groups)}")
    if len(groups) > len(shown):
        notes.append(f"{len(groups) - len(shown)} more not drawn")
    if len(shown) + len(used) > most:
        notes.append(f"{plural(len(used), 'allocation')} not drawn")
        used = []
    title = f"capture {capture.id}, {plural(len(capture.nodes), 'node')}" + "".join(f", {note}" for note in notes)
    lines = [
        "digraph capture {",
        f"  graph [label={_quote(title, source.label(), left=True)}, labelloc=t, labeljust=l];",
        # Words beside the vertices in a grey that is read on light and on dark.
        f'  graph [bgcolor="{NOTHING}", fontcolor="#767d86", fontname="{_FONT}", fontsize=11];',
        "  graph [pad=0.15, nodesep=0.22, ranksep=0.32];",
        f'  node [fontname="{_FONT}", fontsize=10, fontcolor="#1c1c1c", style=filled, penwidth=1.1];',
        '  node [margin="0.14,0.05", height=0.38];',
        '  edge [color="#8a8a8a", arrowsize=0.6, penwidth=1];',
    ]
    vertex = {node.index: n for n, group in enumerate(shown) for node in group.nodes}
    lanes = any(group.nodes[0].lane for group in shown)
    lines += [group.dot(n, lanes) for n, group in enumerate(shown)]
    for (a, b), count in sorted(_edges(capture, vertex).items()):
        lines.append(f"  n{a} -> n{b}" + (f' [penwidth=1.6, tooltip="{count} edges"];' if count > 1 else ";"))
    for memory in used:
        name = tensor_text(memory, 24)
        lines.append(
            f'  a{memory.index} [label={_quote(name, f"{memory.role}, {bytes_text(memory.size)}")}, class="memory",'
            f' shape={_ROLE_SHAPES[memory.role]}, fillcolor="#ffffff", color="#999999", style="filled,dashed"];'
        )
    lines += _memory_edges(shown, {memory.index for memory in used})
    lines.append("}")
    present = dict.fromkeys(family_of(group.nodes[0]).word for group in shown)
    says = text.graph(capture) + "\n" + source.label()
    return Picture("\n".join(lines), says, title, tuple(present))


@dataclass(frozen=True, slots=True)
class _Group:
    """What one vertex stands for: a node, or the same node of every repetition of a run."""

    nodes: tuple[Node, ...]

    def dot(self, n: int, lanes: bool) -> str:
        """One vertex; where there are ``lanes``, those of one lane are drawn below one another."""
        node, family = self.nodes[0], family_of(self.nodes[0])
        name = short(node.name, 26) or str(node.kind)
        second = f"{family.word} x{len(self.nodes)}" if len(self.nodes) > 1 else family.word
        if node.lane:
            second += f", lane {node.lane}"
        tip = _quote(f"node {node.index}: {one_line(node.name)}"[:160])
        return (
            f'  n{n} [label={_quote(name, second)}, shape={family.shape}, fillcolor="{family.fill}",'
            f' color="{family.line}", class="{family.key}", tooltip={tip}'
            + (f', group="lane {node.lane}"' if lanes else "")
            + (", height=0.52];" if family.shape == "cds" else "];")  # of which its label may use less than it measures
        )


def _groups(capture: Capture, collapse: bool) -> list[_Group]:
    if not collapse:
        return [_Group((node,)) for node in capture.nodes]
    groups = []
    for run in runs_of_nodes(capture):
        for at in range(run.start, run.start + run.period):
            groups.append(_Group(capture.nodes[at : run.start + run.length : run.period]))
    return groups


def _edges(capture: Capture, vertex: dict[int, int]) -> Counter[tuple[int, int]]:
    """Edges between vertices. One repetition's edge to the next would point backwards, and is part of "xN"."""
    pairs = ((vertex.get(before), vertex.get(after)) for before, after in capture.edges)
    collapsed = len(set(vertex.values())) < len(vertex)
    return Counter((a, b) for a, b in pairs if a is not None and b is not None and a != b and (a < b or not collapsed))


def _touched(capture: Capture, groups: list[_Group]) -> list[int]:
    found = {word.allocation for group in groups for word in group.nodes[0].words if word.kind is WordKind.POINTER}
    return sorted(index for index in found if index is not None and index < len(capture.allocations))


def _memory_edges(groups: list[_Group], used: set[int]) -> list[str]:
    pairs = {
        (word.allocation, n)
        for n, group in enumerate(groups)
        for word in group.nodes[0].words
        if word.allocation is not None and word.allocation in used
    }
    # No arrowhead: a word says that the kernel has the address, not whether it reads or writes.
    return [f'  a{a} -> n{n} [style=dashed, color="#bbbbbb", dir=none];' for a, n in sorted(pairs)]


def _quote(*lines: str, left: bool = False) -> str:
    """Lines as one DOT string; graphviz would otherwise expand backslashes and HTML entities in it."""
    safe = (one_line(x).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"') for x in lines)
    return '"' + ("".join(line + "\\l" for line in safe) if left else "\\n".join(safe)) + '"'


def render(dot: str, form: str = "png", *, small: bool = False) -> bytes:
    """DOT as a picture; raises UnsupportedError where graphviz is missing."""
    try:
        import graphviz
    except ImportError:
        raise UnsupportedError(
            "a picture of a graph needs the graphviz package; pip install paramgraph_kit[lab]"
        ) from None
    try:
        source = graphviz.Source(dot)
        if small:
            with suppress(graphviz.CalledProcessError):  # this graphviz has no gd
                # Drawn by cairo and written by gd, which keeps a palette, a third of the size, and makes nothing black.
                opaque = graphviz.Source(dot.replace(f'bgcolor="{NOTHING}"', 'bgcolor="#ffffff"'))
                palette: bytes = opaque.pipe(format=form, renderer="cairo", formatter="gd", quiet=True)
                return palette
        result: bytes = source.pipe(format=form)
    except graphviz.ExecutableNotFound:
        raise UnsupportedError(
            "a picture of a graph needs the program dot of graphviz; install it (apt install graphviz)"
        ) from None
    except graphviz.CalledProcessError as error:
        raise UnsupportedError(f"graphviz could not draw this graph ({one_line(str(error))[:120]}); use .dot") from None
    return result


def inline_svg(svg: str) -> str:
    """SVG for the middle of a page: no prolog, comments or ids (two pictures would share them), fonts by style."""
    start = svg.index("<svg")
    body = re.sub(r"<!--.*?-->\n?", "", svg[start:], flags=re.DOTALL)
    body = re.sub(r' id="[^"]*"| font-family="[^"]*"| font-size="1[01]\.00"| fill="#1c1c1c"', "", body)
    body = re.sub(r"<title>(?:[^<]*&#45;&gt;[^<]*|[an]\d+|capture)</title>\n?", "", body)
    # Coordinates to a tenth of a point, inside attributes only: a version number in a text is none.
    return re.sub(r' (?:d|points|c?[xy]|r[xy])="[^"]*"', lambda m: re.sub(r"(\d+\.\d)\d+", r"\1", m[0]), body)
