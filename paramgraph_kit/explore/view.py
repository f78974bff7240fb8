"""A view as text, and the same text as a picture for places that show pictures only."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from paramgraph_kit.explore.picture import render
from paramgraph_kit.trace.errors import UnsupportedError
from paramgraph_kit.trace.files import path_of, written

MOST_LINES = 200  # of a picture
# Words that a reader looks for first, by the lines that have them; the words are there without the colour, too.
_GOOD, _BAD = "#2d6a1f", "#a03a12"
_COLOURS = {"[graphed]": _GOOD, "[ungraphed]": _BAD, "because ": _BAD, "fix ": _BAD, "after ": _GOOD}

VIEWS = ("auto", "partitions", "graph", "failures", "memory", "timeline")  # auto: the one that has something to say


@dataclass(frozen=True, slots=True, repr=False)
class View:
    """A text that displays as itself, with a chart beside it where there is one, or as a table."""

    text: str
    svg: str = ""
    html: str = ""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"View({len(self.text.splitlines())} lines)"

    def png(self) -> bytes:
        """The text as a picture; raises UnsupportedError where graphviz is missing."""
        lines = self.text.splitlines()
        more = len(lines) - MOST_LINES
        shown = [*lines[:MOST_LINES], *([f"and {more:,} more lines"] if more > 0 else [])]
        rows = "".join(f'<tr><td align="left">{_line(line)}</td></tr>' for line in shown)
        table = f'<table border="0" cellborder="0" cellspacing="0" cellpadding="1">{rows}</table>'
        font = 'fontname="DejaVu Sans Mono,monospace", fontsize=10, fontcolor="#1c1c1c"'
        return render(
            f'digraph view {{ graph [bgcolor="#ffffff", pad=0.1]; t [shape=plain, {font}, label=<{table}>]; }}'
        )

    def save(self, path: str | Path) -> Path:
        """Write ``.txt``, ``.png`` or, where there is a chart, ``.svg``, by the name's ending.

        Raises:
            UnsupportedError: another ending, or graphviz is missing.
            TraceError: the file cannot be written.
        """
        target = path_of(path)
        if target.suffix == ".txt":
            return written(target, f"{self.text}\n")
        if target.suffix == ".png":
            return written(target, self.png())
        if target.suffix == ".svg" and self.svg:
            return written(target, self.svg)
        chart = ", .svg" if self.svg else ""
        raise UnsupportedError(f"{target}: unknown type of this view; end the name in .txt, .png{chart}")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        rich = {"image/svg+xml": self.svg, "text/html": self.html}
        return {mime: text for mime, text in rich.items() if text} | {"text/plain": self.text}


def _line(line: str) -> str:
    text = escape("".join(letter if letter.isprintable() else "?" for letter in line)).replace(" ", "&#160;")
    colour = next((colour for word, colour in _COLOURS.items() if line.lstrip().startswith(word)), "")
    return f'<font color="{colour}">{text}</font>' if colour else text or "&#160;"
