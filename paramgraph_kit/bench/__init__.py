"""Measured comparisons, side by side: no graphs, graph trees and parameterized launch."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m paramgraph_kit bench``: see ``paramgraph_kit.bench.command``."""
    from paramgraph_kit.bench.command import main as run

    return run(arguments)
