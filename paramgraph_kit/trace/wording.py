"""How things are put into words wherever they are shown; a failure in at most twelve lines, always in one order."""

from __future__ import annotations

import textwrap

from paramgraph_kit.trace.model import Failure, Frame


def one_line(text: str) -> str:
    """``text`` without line breaks or other control characters.

    >>> one_line("two\\nlines")
    'two lines'
    """
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def bytes_text(count: int) -> str:
    """A byte count for people, in binary units.

    >>> bytes_text(512), bytes_text(1536), bytes_text(-(3 << 30))
    ('512 B', '1.5 KiB', '-3.0 GiB')
    """
    value, sign = float(abs(count)), "-" if count < 0 else ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{sign}{value:.0f} B" if unit == "B" else f"{sign}{value:.1f} {unit}"
        value /= 1024
    return f"{sign}{value:.1f} TiB"


def kind_text(value: object) -> str:
    """What somebody gave that is not taken, for an error.

    >>> kind_text(3), kind_text("x"), kind_text(None)
    ('an int', 'a str', 'None')
    """
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


def frame_text(frame: Frame | None) -> str:
    """``file:line  text``, or that there is no line of the user's."""
    return one_line(frame.label()) if frame else "no line of yours: it shows only when the capture ends"


def failure_text(failure: Failure, most: int = 12, width: int = 100) -> str:
    """A failure in at most ``most`` lines: what happened, where, why, and what to write instead.

    >>> print(failure_text(Failure("sync-item", "A value was read", "", Frame("a.py", 3), "It waits.", "after  x")))
    A value was read  [sync-item]
      where  a.py:3
      why    It waits.
      fix    after  x
    """
    lines = [f"{one_line(failure.title)}  [{one_line(failure.code)}]"]
    lines += _field("said ", failure.message, width, 2)
    lines += _field("where", frame_text(failure.frame), width, 1)
    lines += _field("why  ", failure.cause, width, 3)
    lines += [("         " if n else "  fix    ") + line for n, line in enumerate(failure.fix.splitlines())]
    if len(lines) > most:
        lines = [*lines[: most - 1], "         ..."]
    return "\n".join(line.rstrip() for line in lines)


def _field(name: str, text: str, width: int, most: int) -> list[str]:
    if not text:
        return []
    return textwrap.wrap(
        one_line(text),
        width,
        initial_indent=f"  {name}  ",
        subsequent_indent="         ",
        max_lines=most,
        placeholder=" ...",
    )
