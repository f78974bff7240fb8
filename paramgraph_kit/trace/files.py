"""Where a file is read or written: the path that was given, and what to say where that fails."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from paramgraph_kit.trace.errors import ParamgraphError, TraceError
from paramgraph_kit.trace.wording import kind_text


def path_of(given: Any) -> Path:
    """The path that was given.

    Raises:
        ParamgraphError: it is none.

    >>> path_of(3)
    Traceback (most recent call last):
        ...
    paramgraph_kit.ParamgraphError: the path of a file is a text or a pathlib.Path, not an int
    """
    try:
        path = os.fsdecode(given)
    except TypeError:
        text = f"the path of a file is a text or a pathlib.Path, not {kind_text(given)}"
        raise ParamgraphError(text) from None
    if "\0" in path:
        raise ParamgraphError(f"no file can be called {path!r}: leave out the null character")
    return Path(path)


def written(given: Any, data: str | bytes) -> Path:
    """Write a file; returns its path.

    Raises:
        TraceError: it cannot be written.
    """
    target = path_of(given)
    try:
        target.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8", "replace"))
    except OSError as error:
        raise unwritable(target, error) from None
    return target


def unreadable(source: Path, error: OSError) -> TraceError:
    """The error for a file that could not be read."""
    return TraceError(f"{source}: cannot be read ({error.strerror}); check the path")


def unwritable(target: Path, error: OSError) -> TraceError:
    """The error for a file that could not be written.

    >>> unwritable(Path("no/such/page.html"), FileNotFoundError(2, "No such file or directory"))
    TraceError('no/such/page.html: cannot be written (No such file or directory); choose a folder that exists')
    """
    if os.path.isdir(target):  # Path.is_dir raises where a name is too long
        hint = "add the name of a file"
    else:
        hint = "choose another place" if os.path.isdir(target.parent) else "choose a folder that exists"
    return TraceError(f"{target}: cannot be written ({error.strerror}); {hint}")
