"""What a scan of kernel parameters cannot see, each with the code of the reason that the report must give."""

from __future__ import annotations

from paramgraph_kit.bench.corpus.case import Case


def cases() -> list[Case]:
    """The refusal family."""
    return []
