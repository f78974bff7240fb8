"""The names of the recordings, and what makes each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from paramgraph_kit.trace.model import Trace
from scripts.record.failures import gallery
from scripts.record.inference import gpt2_inference, resnet50_inference
from scripts.record.story import broken, captured, parameterized
from scripts.record.streams import fork_join
from scripts.record.training import training

RECORDINGS: dict[str, Callable[[], Trace]] = {
    "llama-no-graphs": partial(training, "no graphs", blocks=False),
    "llama-graph-trees": partial(training, "graph trees", blocks=False),
    "llama-paramgraph": partial(training, "paramgraph", blocks=False),
    "llama-blocks-no-graphs": partial(training, "no graphs", blocks=True),
    "llama-blocks-graph-trees": partial(training, "graph trees", blocks=True),
    "llama-blocks-paramgraph": partial(training, "paramgraph", blocks=True),
    "gpt2": gpt2_inference,
    "resnet50": resnet50_inference,
    "offload-kept": partial(fork_join, offload=False),
    "offload": partial(fork_join, offload=True),
    "story-1-broken": broken,
    "story-2-captured": captured,
    "story-3-parameterized": parameterized,
    "failures": gallery,
}
REAL_ONLY = ("llama-graph-trees", "llama-blocks-graph-trees")  # graph trees are CUDA's
