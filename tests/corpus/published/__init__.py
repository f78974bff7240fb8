"""The 25 workloads that PyGraph publishes, as far as the libraries here have them: no graphs, graph trees and ours.

The list, its batch sizes and its precisions are those of the artifact of "GraCE: Unlocking CUDA Graphs with Compiler
Support for ML Workloads" (OSDI '26), which arXiv:2503.19779 has as
PyGraph; ``python -m tests.corpus.published`` measures.
"""

from __future__ import annotations

from tests.corpus.published.listed import LISTED, Listed

__all__ = ["LISTED", "Listed"]
