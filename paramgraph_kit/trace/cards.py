"""Failures as HTML: what happened, where, why, and what to write instead. Colours are the notebook's, or the page's."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from paramgraph_kit.trace.model import Failure
from paramgraph_kit.trace.wording import frame_text, one_line

# Of a page of ours, otherwise of JupyterLab, otherwise ones that are read on white.
_INK = "var(--ink, var(--jp-content-font-color1, #1f2328))"
_SOFT = "var(--soft, var(--jp-content-font-color2, #5b6169))"
_LINE = "var(--line, var(--jp-border-color2, #d3d6d0))"
_BACK = "var(--code, var(--jp-layout-color2, #f4f4f1))"
_BAD = "var(--bad, var(--jp-error-color1, #a03a12))"
_GOOD = "var(--good, var(--jp-success-color1, #2d6a1f))"
_PRE = (
    f"margin:2px 0;padding:6px 10px;border-radius:6px;background:{_BACK};font-size:12.5px;white-space:pre-wrap;"
    "font-family:var(--jp-code-font-family, ui-monospace, monospace);"  # pages that nbconvert makes set another
    "word-break:normal;overflow-wrap:break-word"  # JupyterLab breaks words
)
_FIX = re.compile(r"before\s+(.*?)\nafter\s+(.*)", re.DOTALL)


def failure_card(failure: Failure) -> str:
    """One failure as a card.

    >>> "item() waits" in failure_card(Failure("sync-item", "A value was read", "", cause="item() waits"))
    True
    """
    rows = [("where", f"<code>{escape(frame_text(failure.frame))}</code>" if failure.frame else frame_text(None))]
    rows += [("said", escape(one_line(failure.message))), ("why", escape(one_line(failure.cause)))]
    rows.append(("fix", _fix(failure.fix)))
    body = "".join(
        f'<dt style="color:{_SOFT}">{name}</dt><dd style="margin:0;min-width:0">{value}</dd>'
        for name, value in rows
        if value
    )
    code = f'<span style="color:{_BAD};font-size:12px;font-weight:600">{escape(one_line(failure.code))}</span>'
    return (
        f'<section class="failure" style="border:1px solid {_LINE};border-left:4px solid {_BAD};border-radius:8px;'
        f'padding:10px 14px;margin:8px 0;color:{_INK};max-width:1000px">'
        f'<div style="font-weight:600;font-size:14px;margin-bottom:6px">{escape(one_line(failure.title))} {code}</div>'
        f'<dl style="display:grid;grid-template-columns:56px 1fr;gap:4px 12px;margin:0">{body}</dl></section>'
    )


def failure_cards(failures: Iterable[Failure], heading: str = "", notes: Iterable[str] = (), state: str = "") -> str:
    """Several failures, with what stands above and below them."""
    above = f'<p style="color:{_SOFT};margin:4px 0">{escape(one_line(heading))}</p>' if heading else ""
    said = [f"note: {note}" for note in notes] + ([f"now: {state}"] if state else [])
    below = "".join(f'<p style="color:{_SOFT};margin:4px 0">{escape(one_line(text))}</p>' for text in said)
    return f"<div>{above}{''.join(failure_card(failure) for failure in failures)}{below}</div>"


def _fix(text: str) -> str:
    """``before ...`` and ``after ...`` as two marked blocks, anything else as it is."""
    if not text:
        return ""
    parts = _FIX.fullmatch(text.strip())
    if parts is None:
        return f'<pre style="{_PRE}">{escape(text)}</pre>'
    pair = ((_BAD, "before", parts[1]), (_GOOD, "after ", parts[2]))
    return "".join(
        f'<pre style="{_PRE};border-left:3px solid {colour}">'
        f'<span style="color:{_SOFT}">{name}  </span>{escape(code)}</pre>'
        for colour, name, code in pair
    )
