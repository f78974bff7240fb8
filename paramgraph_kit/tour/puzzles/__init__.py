"""Ten puzzles about CUDA graphs: ``grade(number, answer)`` measures an answer and shows what a graph of it looks like.

Each has two limits. Inputs are drawn anew for each grading and every result is compared, so neither can be met by
computing less.
"""

from __future__ import annotations

from paramgraph_kit.tour.puzzles.grading import grade as grade
from paramgraph_kit.tour.puzzles.verdict import Verdict as Verdict

__all__ = ["Verdict", "grade"]
