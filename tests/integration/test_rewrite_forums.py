"""Programs as documentation and forums have them: what is found in each, and that its rewrite is right."""

from __future__ import annotations

from inspect import unwrap
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.launches import Launches
from tests.programs.reading import Program, read
from tests.programs.running import captured, differences, eager, load, quiet
from tests.programs.scoring import Score, _compare, _findings

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAMS = [
    each for file in sorted((Path(__file__).parents[1] / "programs" / "forums").glob("*.txt")) for each in read(file)
]
# What is not rewritten whole yet, by the beginning of its title.
NOT_WHOLE = (
    "a generation loop object with prefill",
    "a trainer of a base class",
    "dqn select",
    "gcn on",
    "mixup with",
    "sequences padded",
    "stochastic depth",
    "knn graph",
    "multi scale",
    "adaptive loss",
    "crop boxes",
    "padded batches",
    "ppo update",
    "epsilon greedy",
    "graph convolution that",
    "class agnostic",
    "a queue of keys, a momentum",
    "a node classifier",
    "boxes above",
    "graph inference that adds",
    "backtracking line",
    "random erasing",
    "a lazy normaliser",
    "a generator of windows",
    "latent consistency",
    "a tuple of keys",
    "speculative decoding that accepts",
    "a paged cache",
    "attention sinks",
    "the length of each row",
    "a vq codebook",
    "ppo epochs",
    "graph classification",
    "a replay buffer of",
    "a trainer with accumulation",
    "a langevin",
    "a muon",
    "triplet mining",
    "a pinn",
    "ctc training",
    "ppo minibatches from",
    "vq vae codebook",
    "a cache of tuples that",
    "a DynamicCache with",
    "top-k, top-p",
    "beam search with scores",
    "speculative decoding where",
    "a Kalman filter",
    "decoding in a while loop",
    "a context of the last",
    "a tracker that updates",
    "segmentation with a",
    "distillation with a",  # one round of its loop is
    "speech with",
    "tasks whose",
    "a graph network trained on",  # one round of its loop is
    "a table of categories",  # one round of its loop is
    "an image classifier whose mixup",
    "a diffusion model trained",
    "a contrastive step with",
    "graphs of several sizes",
    "spectrograms that",
    "decorators of one's own",
    "walrus, a comprehension",
    "a hook registry with",
    "a context manager class that times",
    "exceptions as control flow",
    "a group of sampled",
    "documents packed in",
    "LBFGS with a closure",
    "advantages of a rollout",
    "a reward model of pairs",
    "a forecaster with scheduled",
    "an rk45 solver",
    "tokens are streamed by",
    "a kalman tracker with gating",
    "a transcriber that decodes again",
    "rays that go on",
    "a server that drops requests",
    "streaming audio that is gated",
    "mixup of images",
    "patches hidden",
    "masked language modelling with special",
    "rectangles erased",
    "beam search that sorts",  # one round of its loop is
    "iterative closest points with a rotation by svd",  # its pieces are launched
    "a deep equilibrium layer",  # one round of its loop is
    "levenberg marquardt with",  # one round of its loop is
    "front to back compositing",
    "a step that calls a learner",
    "an augmentation of a second",
    "helpers of the host in",
    "a step of a second file that",
    "an ema and a schedule of a helper",
    "a schedule of weight decay",
    "a detector's two optimizers",
    "a recommender whose negatives",
    "layer drop in an encoder",  # told, with lines that work
    "detections above a confidence with",  # its pieces are launched
    "expected improvement of",  # its pieces are launched
    "molecular dynamics with a list of pairs that a helper",  # its pieces are launched
    "molecular dynamics with a neighbour list that is built",  # its pieces are launched
    "greedy decoding with a cache of lists and",  # its pieces are launched
    "streaming conformer block",  # told: a graph for each size of its window
)
# A branch beside a draw is not told, or what follows of one is told too; of two lines that write a number, the other.
NOT_FOUND = (
    "dqn select",
    "epsilon greedy",
    "tacotron like",
    "dynamic loss scaling",
    "hand written loss",
    "dqn acts",
    "a pinn",
    "a maml outer",
    "stochastic depth by",
    "tasks whose",
    "a diffusion model trained",
)


@pytest.mark.parametrize(
    "program",
    # One of a hundred at each change, by its title, so that a new program moves no other; `make sweeps` takes the
    # others, and has what is not whole tried in pieces, too.
    [
        pytest.param(each, marks=[pytest.mark.sweep, pytest.mark.pieces] if crc32(each.title.encode()) % 100 else [])
        for each in PROGRAMS
    ],
    ids=[each.title for each in PROGRAMS],
)
def test_a_program_of_a_forum_is_found_and_rewritten(program: Program, tmp_path: Path) -> None:
    # GIVEN a program with two or three problems WHEN it is diagnosed THEN these are found, and nothing else
    file, score = tmp_path / "program.py", Score(program)
    _compare(score, _findings(load(program.broken, file), program.function, file))
    assert not [*score.missed, *score.false] or program.title.startswith(NOT_FOUND)
    # WHEN it is rewritten THEN that is whole, and replays of one graph give eager's numbers over ten moved steps
    truth = eager(load(program.broken, file), program.function)
    names = load(program.broken, file)
    with quiet():
        fix: Any = pgk.diagnose(names[program.function], *names["args"], fix=True).fix
    if not program.expected:
        assert fix is None
        return
    assert fix is not None
    assert fix.complete or fix.alone or program.title.startswith(NOT_WHOLE), str(fix)
    if fix.alone:  # with rounds from graphs the loop gives eager's numbers, too
        with fix.applied() as made:
            every = [(fix, made), *((each, unwrap(names[each.alone])) for each in fix.more)]
            rounds = {each.alone: Launches(one, each.around, each.bound, each.anew) for each, one in every}
            names.update(rounds)
            seen = eager(names, program.function)
        assert all(each.replays for each in rounds.values())
        assert program.draws or not differences(truth, seen, set(names.get("ignore", ()))), str(fix)
    if fix.complete:
        with fix.applied():
            seen = captured(names, program.function, fix.around)
        assert program.draws or not differences(truth, seen, set(names.get("ignore", ()))), str(fix)
