"""A story's text in a notebook: chapters that fold, so that what is told and the view below fit on one screen."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from html import escape
from importlib import import_module

from paramgraph_kit.trace.wording import one_line

_CHAPTER = re.compile(r"\n?(\d+\. .*)")  # as it is said
_TELLING = ("which means ", "it raises ")  # what a chapter's line begins with, where there is such a line
_BEHIND = re.compile(r" {5}(?:then|tried|pieces|by hand) ")  # what stands below a diff
_SIGNS = (("-", "go"), ("+", "come"))  # how many lines
_ADDED, _GONE = "var(--jp-success-color1, #2d6a1f)", "var(--jp-error-color1, #a03a12)"
_SOFT = "var(--jp-content-font-color2, #5b6169)"
_TITLE = "cursor:pointer;white-space:nowrap;overflow:hidden;text-overflow:ellipsis;line-height:1.7"
_TEXT = (
    "max-height:16em;overflow:auto;white-space:pre-wrap;margin:2px 0 8px 16px;font-size:12px;line-height:1.4;"
    "word-break:normal;overflow-wrap:break-word"
)


def is_live() -> bool:
    """Whether a notebook's kernel runs here and can show live views."""
    if "ipykernel" not in sys.modules:
        return False
    try:
        return bool(import_module("paramgraph_kit.explore._widget").has_kernel())
    except ImportError:
        return False


def folded(said: Sequence[str], *, last: bool) -> str:
    """What was said so far as chapters that fold; ``last`` opens the last one. What belongs to none is seen.

    >>> "<summary" in folded(["1. f as it is", "   6 calls"], last=False)
    True
    """
    chapters: list[tuple[str, list[str]]] = []
    end: list[str] = []
    for text in said:
        if found := _CHAPTER.fullmatch(text):
            chapters.append((found[1], []))
        elif not chapters or end or text.startswith("\n"):  # the end of the story is no chapter's
            end.append(text.strip("\n"))
        else:
            chapters[-1][1].append(text)
    parts = [_chapter(title, text, last and n == len(chapters)) for n, (title, text) in enumerate(chapters, 1)]
    if end:
        parts.append(f'<pre style="{_TEXT};margin-left:0">{escape(chr(10).join(end))}</pre>')
    return f"<div>{''.join(parts)}</div>"


def _chapter(title: str, said: list[str], is_open: bool) -> str:
    lines = [line for text in said for line in text.splitlines()]
    # A diff stands in a window of its own, so that what is said of it is seen without moving it.
    end = next((n for n, line in enumerate(lines) if _BEHIND.match(line)), 0) if _is_diff(lines) else 0
    body = "".join(f'<pre style="{_TEXT}">{_marked(part)}</pre>' for part in (lines[:end], lines[end:]) if part)
    return (
        f'<details{" open" if is_open else ""}><summary style="{_TITLE}"><b>{escape(title)}</b> '
        f'<span style="color:{_SOFT}">{escape(_brief(lines, end))}</span></summary>{body}</details>'
    )


def _is_diff(lines: list[str]) -> bool:
    return bool(lines) and lines[0].strip().startswith("--- ")


def _brief(lines: list[str], end: int) -> str:
    """What a chapter says, in a line that is cut where there is no more room."""
    counts = ", ".join(f"{sum(_sign(line) == sign for line in lines[2:end])} {how}" for sign, how in _SIGNS)
    told = [f"lines: {counts}"] if end else []
    first = next((n for n, line in enumerate(lines) if line.strip().startswith(_TELLING)), end)
    return one_line(" · ".join(filter(None, [*told, *(line.strip() for line in lines[first : first + 4])])))


def _sign(line: str) -> str:
    return line[3:4] if line.startswith("   ") else ""


def _marked(lines: list[str]) -> str:
    """Lines of a diff have their colour, and their sign without it."""
    colours = {"+": _ADDED, "-": _GONE} if _is_diff(lines) else {}
    return "\n".join(
        f'<span style="color:{colours[_sign(line)]}">{escape(line)}</span>' if _sign(line) in colours else escape(line)
        for line in lines
    )


class Told:
    """Shows in a notebook what is said, as it is said: call it with each text, and ``end`` it."""

    def __init__(self) -> None:
        self._said: list[str] = []
        self._show: Callable[[dict[str, str]], None] = import_module("paramgraph_kit.explore._widget").written()

    def __call__(self, text: str) -> None:
        """One text more."""
        self._said.append(text)
        self._write(last=True)

    def end(self, *, last: bool) -> None:
        """Nothing more is said; ``last``: the last chapter stays open, because there is something to do."""
        self._write(last=last)

    def _write(self, *, last: bool) -> None:
        self._show({"text/plain": "\n".join(self._said), "text/html": folded(self._said, last=last)})
