"""Advice for which a line and what calls it are enough, whatever else the step does."""

from __future__ import annotations

from paramgraph_kit.rewrite.advised.host.run_ahead import run_ahead
from paramgraph_kit.rewrite.advised.sizes.masked_stores import stored_by_a_mask
from paramgraph_kit.rewrite.advised.sizes.rounds_given import rounds_given
from paramgraph_kit.rewrite.advised.state.windows import window_of_tensors

OUTRIGHT = (window_of_tensors, run_ahead, rounds_given, stored_by_a_mask)
