"""The clocks of the host: what comes of them is another number wherever, and whenever, they are asked."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import path_of

CLOCKS = frozenset(("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns", "process_time"))


def is_clock(call: ast.Call) -> bool:
    """``time.time()`` and ``perf_counter()``."""
    root, _, last = path_of(call.func).rpartition(".")
    return not call.args and last in CLOCKS and (root == "time" or (not root and last != "time"))
