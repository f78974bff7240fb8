"""The live view in a notebook: sends the journal's lines to the browser. Needs anywidget; nothing else here does."""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import anywidget
import traitlets
from IPython.display import display

from paramgraph_kit.explore.bundle import front_end
from paramgraph_kit.explore.journal import Journal
from paramgraph_kit.explore.stored import is_saved, picture
from paramgraph_kit.explore.view import VIEWS
from paramgraph_kit.trace import growing
from paramgraph_kit.trace.model import Trace

SHORTEST_WAIT = 0.1  # seconds between two updates
BYTES_PER_SECOND = 4_000_000  # to the browser: a longer tail is sent less often
SMALLEST_TAIL = 65_536

_log = logging.getLogger(__name__)


class ExplorerWidget(anywidget.AnyWidget):  # type: ignore[misc]  # anywidget is not imported for types
    """The five views in the browser. Nothing here calls a device, nor does anything that the browser asks for.

    The lines of the journal travel in two parts, ``_head`` and ``_tail``: what was sent before is not sent again until
    the tail has outgrown the head, and at every moment both together are everything, so no update can be lost.
    """

    _esm = front_end()
    _head = traitlets.Bytes().tag(sync=True)
    _tail = traitlets.Bytes().tag(sync=True)
    view = traitlets.Enum(VIEWS, "auto").tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    height = traitlets.Int(560, min=200, max=4000).tag(sync=True)

    def __init__(self, steps: Mapping[str, Trace], **traits: Any) -> None:
        self._journal = Journal(steps)
        self._journal.advance()
        self._sending = threading.RLock()
        self._label = ", ".join(steps)
        failed = [n for n, trace in enumerate(steps.values()) if trace.failures]  # the first that has something to say
        super().__init__(_head=self._journal.whole(), **{"step": failed[0] if failed else 0, **traits})
        self._following = [trace for trace in steps.values() if growing.is_growing(trace)]
        if self._following:
            self._follow()

    def __repr__(self) -> str:
        return f"ExplorerWidget({self._label!r})"

    def refresh(self, *, compare: bool = True) -> int:
        """Send what is new in the traces, and return its size in bytes."""
        with self._sending:
            fresh = self._journal.advance(compare=compare)
            if fresh:
                tail = self._tail + fresh
                if len(tail) > max(SMALLEST_TAIL, len(self._head)):
                    with self.hold_sync():
                        self._head, self._tail = self._journal.whole(), b""
                else:
                    self._tail = tail
            return len(fresh)

    def _follow(self) -> None:
        done = threading.Event()
        mine, following = weakref.ref(self), self._following

        def complete() -> None:
            # On the thread whose ``with`` block has just ended: the last lines are sent before its next statement.
            if not any(growing.is_growing(trace) for trace in following):
                done.set()
            widget = mine()
            if widget is not None:
                _refresh(widget, compare=True)

        for trace in self._following:
            growing.when_complete(trace, complete)
        threading.Thread(target=_keep_sending, args=(mine, done), name="paramgraph explorer", daemon=True).start()


def _keep_sending(mine: weakref.ref[ExplorerWidget], done: threading.Event) -> None:
    wait = SHORTEST_WAIT
    while not done.wait(wait):
        widget = mine()
        if widget is None or widget.comm is None:  # nobody looks any more
            return
        started = time.monotonic()
        if not _refresh(widget, compare=False):
            return
        # At most half of the time, and never more than the connection takes.
        busy = time.monotonic() - started
        wait = max(SHORTEST_WAIT, len(widget._tail) / BYTES_PER_SECOND, 2 * busy)
        del widget


def _refresh(widget: ExplorerWidget, *, compare: bool) -> bool:
    try:
        widget.refresh(compare=compare)
    except Exception:  # a view must never break the work that it watches
        _log.exception("the explorer has stopped: its trace could not be sent")
        return False
    return True


def has_kernel() -> bool:
    """Whether this process is a notebook's kernel, so that somebody may answer a widget."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class Shown:
    """The outputs of a live view, which may be written again: its own, and the one that stands in for it."""

    def __init__(self, bundle: dict[str, Any]) -> None:
        self._handles = [display(each, raw=True, display_id=True) for each in _outputs(bundle)]

    def update(self, bundle: dict[str, Any]) -> None:
        """What a notebook keeps: of now."""
        for handle, each in zip(self._handles, _outputs(bundle), strict=True):
            handle.update(each, raw=True)


def written() -> Callable[[dict[str, str]], None]:
    """An output that is written again with each bundle that it is given."""
    handle: list[Any] = []

    def write(bundle: dict[str, str]) -> None:
        if handle:
            handle[0].update(bundle, raw=True)
        else:
            handle.append(display(bundle, raw=True, display_id=True))

    return write


def _outputs(bundle: dict[str, Any]) -> list[dict[str, Any]]:
    return [bundle, picture(bundle)] if is_saved() else [bundle]
