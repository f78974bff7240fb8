"""What a saved notebook shows when it is opened again: the live view's picture, in the place of its error.

JupyterLab saves of a live view which model it was of, and no model: opened without the kernel it says "model not
found", although the same output has a picture. So a second output has the picture, hidden as long as the view is there.
"""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from typing import Any

MARK = "paramgraph-stored"
_CHILD = ".jp-OutputArea-child"
_ERROR = ":has(> .jp-OutputArea-output.jupyter-widgets)"  # a view that is there has that class one element deeper
_STYLE = (
    f"{_CHILD}{_ERROR} + {_CHILD} .{MARK} {{display: block !important}}"
    f"{_CHILD}{_ERROR}:has(+ {_CHILD} .{MARK}), {_CHILD}:not({_ERROR}) + {_CHILD}:has(.{MARK}) {{display: none}}"
)


def is_saved() -> bool:
    """Whether a Jupyter server runs this kernel for a notebook, which people save."""
    return "JPY_SESSION_NAME" in os.environ


def picture(bundle: Mapping[str, Any]) -> dict[str, Any]:
    """The output that stands in for a live view, from that view's own.

    >>> print(picture({"text/plain": "a < b"})["text/html"].partition("<style>")[0])
    <div class="paramgraph-stored" style="display: none"><pre>a &lt; b</pre></div>
    """
    said = html.escape(bundle["text/plain"], quote=True)
    drawn = bundle.get("image/png")
    shown = f'<img src="data:image/png;base64,{drawn}" alt="{said}">' if drawn else f"<pre>{said}</pre>"
    shown = bundle.get("text/html", shown)  # of several steps: what changed, and the last one's picture
    text = f'<div class="{MARK}" style="display: none">{shown}</div><style>{_STYLE}</style>'
    return {"text/html": text, "text/plain": ""}
