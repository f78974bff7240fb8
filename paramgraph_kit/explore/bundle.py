"""The front end's one file, built from ``widgets/`` and shipped with the package; the widget and the page share it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
from functools import cache
from importlib.resources import files

from paramgraph_kit.trace.errors import UnsupportedError

MOST_BYTES = 90_000
PAGE_PLACE = "paramgraph-explorer"  # the id of the element that the view is put into
PAGE_DATA = "paramgraph-data"  # the id of the element that holds a page's journal


@cache
def front_end(name: str = "paramgraph.js") -> str:
    """The text of the bundle, an ES module; ``viewer.js`` is what the viewer's page has beside it.

    Raises:
        UnsupportedError: the installation lacks the file.
    """
    try:
        return (files("paramgraph_kit.explore") / "static" / name).read_text(encoding="utf-8")
    except OSError:
        raise UnsupportedError(
            f"the explorer's front end is missing (explore/static/{name}); install paramgraph_kit again"
        ) from None


def script_hash(name: str = "paramgraph.js") -> str:
    """The bundle's hash as a Content-Security-Policy names it, so that a page may run this script and no other."""
    digest = hashlib.sha256(front_end(name).encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def packed(lines: bytes) -> str:
    """A journal for a page: gzip, base64; the same lines always give the same text."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0, compresslevel=9) as packer:
        packer.write(lines)
    return base64.b64encode(buffer.getvalue()).decode()
