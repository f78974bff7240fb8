"""A lesson that stops being true fails: each claim of a notebook is broken in a copy, and nbval must notice.

`raises-exception` would only allow an exception, not demand one; so lessons catch what they expect and print or assert
it, and these tests break what the lesson is about, not its outputs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import notebooks

FIRST = notebooks.FOLDER / "01_broken_to_parameterized.ipynb"
START = "00_start_here"
FAILURES = "02_capture_failures"
MEMORY = "03_memory_pools"
WORDS = "04_parameterized_launch"
COVERAGE = "05_partitions_and_coverage"
TRAINING = "06_training_step"
STREAMS = "07_streams"
YOURS = "08_your_own_model"


def run_broken(folder: Path, path: Path, before: str, after: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of a notebook under nbval in which one piece of code is another."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    hits = [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and before in "".join(cell["source"])]
    assert len(hits) == 1, f"{before!r} is in {len(hits)} cells of {path.name}: this test must follow the notebook"
    hits[0]["source"] = "".join(hits[0]["source"]).replace(before, after).splitlines(keepends=True)
    copy = folder / path.name
    copy.write_text(notebooks.dumps(notebook), encoding="utf-8")
    shutil.copy(notebooks.SANITIZE, folder)
    return subprocess.run(
        [sys.executable, str(notebooks.ROOT / "scripts" / "notebooks.py"), "run", str(copy)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTEST_ADDOPTS": "-x"},  # only the first failure counts
    )


def first_failure(result: subprocess.CompletedProcess[str]) -> int:
    """The first cell that failed, which must be the one that makes the claim (nbval counts code cells from 0)."""
    assert result.returncode == 1, result.stdout + result.stderr
    return min(int(number) for number in re.findall(r"^FAILED \S*::Cell (\d+)", result.stdout, re.M))


@pytest.mark.parametrize(
    ("before", "after", "cell"),
    [
        pytest.param("if h.max().item() > 1.0:", "if True:", 1, id="the capture no longer breaks"),
        pytest.param("torch.where(h.max() > 1.0, h * 0.5, h)", "h", 3, id="the fix gives other numbers"),
        pytest.param(
            "x)\ngraph.replay()\n\nassert", "x)\nx.copy_(new)\ngraph.replay()\n\nassert", 4, id="nothing is stale"
        ),
        pytest.param('backend="paramgraph")\n\nwith', 'backend="eager")\n\nwith', 5, id="nothing is parameterized"),
        pytest.param("zip(inputs, outputs,", "zip(inputs, outputs[::-1],", 6, id="the graph gives other numbers"),
        pytest.param("return fast", "return frozen(layer)", 7, id="memory grows as it did"),
    ],
)
def test_lesson_that_is_no_longer_true_fails(tmp_path: Path, before: str, after: str, cell: int) -> None:
    # GIVEN the lesson from broken to parameterized with the subject of one of its claims taken away

    # WHEN
    result = run_broken(tmp_path, FIRST, before, after)

    # THEN
    assert first_failure(result) == cell


@pytest.mark.parametrize(
    ("name", "before", "after", "cell"),
    [
        pytest.param(START, 'torch.compile(model, backend="paramgraph")', "model", 2, id="start: nothing is compiled"),
        pytest.param(START, "if y.max().item() > 3.0:", "if True:", 6, id="start: nothing to diagnose"),
        pytest.param(FAILURES, "h[h > 0].sum()", "h.relu().sum()", 2, id="failures: the size is known"),
        pytest.param(FAILURES, "torch.where(h > 0, h, 0.0)", "h", 2, id="failures: the fix gives other numbers"),
        pytest.param(
            FAILURES,
            "    return (x @ w) * torch.tensor([0.5, 2.0] * 32, device=device)",
            "    return (x @ w) * factors",
            3,
            id="failures: made before the capture",
        ),
        pytest.param(
            FAILURES,
            "y = x * 2\n    z = x @ w\n    return y, z",
            "y = x * 2\n    z = x @ w\n    cuda.current_stream().wait_stream(side)\n    return y, z",
            4,
            id="failures: the stream is joined",
        ),
        pytest.param(FAILURES, ", error_if_nonfinite=True", "", 5, id="failures: one problem instead of two"),
        pytest.param(FAILURES, "x * random.random()", "x * torch.rand((), device=device)", 6, id="failures: random"),
        pytest.param(
            MEMORY, "graph, pool=pool)", "graph, pool=pool or shared)", 1, id="memory: frozen graphs share a pool"
        ),
        pytest.param(
            MEMORY, "second.replay()\nfirst.replay()", "first.replay()\nsecond.replay()", 3, id="memory: order"
        ),
        pytest.param(MEMORY, "return fast\n", "return frozen(layer)\n", 4, id="memory: frozen, not parameterized"),
        pytest.param(MEMORY, "compiled[call % 8](x)", "compiled.append(compiled[0](x))", 6, id="memory: results kept"),
        pytest.param(WORDS, "h[256:], alpha=0.5)  # k", "h[128:384], alpha=0.5)  # k", 1, id="words: another place"),
        pytest.param(WORDS, "(1.5 + next(numbers))", "1.5", 2, id="words: nothing is ambiguous"),
        pytest.param(WORDS, "[(), (0,), (0,), (1, 2)]", "[(), (0,), (1,), (2,)]", 3, id="words: no fork"),
        pytest.param(WORDS, "if moved := table != self.table:", "if moved := not self.table:", 4, id="words: no patch"),
        pytest.param(WORDS, 'w])[0], backend="paramgraph")', "w])[0], backend='eager')", 5, id="words: not compiled"),
        pytest.param(WORDS, "    del h  # its bytes", "    pass  # its bytes", 6, id="words: nothing is reused"),
        pytest.param(WORDS, "return x + table  #", "return x + 1  #", 7, id="words: nothing is hidden"),
        pytest.param(COVERAGE, "h.mean().cpu()", "h.mean()", 2, id="coverage: no detour"),
        pytest.param(COVERAGE, "h[h > 0].mean()", "h.mean()", 3, id="coverage: no graph break"),
        pytest.param(COVERAGE, "h.sum() / (h > 0).sum()", "h.mean()", 5, id="coverage: the fix gives other numbers"),
        pytest.param(COVERAGE, "for rows in (8, 16, 8, 16):", "for rows in (8, 8):", 6, id="coverage: one shape"),
        pytest.param(
            TRAINING, "Block(dim) for _ in", "Block(dim, 4 if n else 8) for n in", 1, id="training: blocks differ"
        ),
        pytest.param(
            TRAINING, "plain_optimizer, batches)", "plain_optimizer, batches.flip(0))", 2, id="training: bits"
        ),
        pytest.param(
            TRAINING,
            "frozen = cuda.make_graphed_callables(copy.deepcopy(start.layers[0]), (sample,))",
            "frozen = graphed.layers[0]",
            5,
            id="training: nothing is overwritten",
        ),
        pytest.param(
            TRAINING,
            "optimizer, batches[:2], parts=4)\ntheirs",
            "optimizer, batches[:2])\ntheirs",
            6,
            id="training: parts",
        ),
        pytest.param(
            STREAMS, "with cuda.stream(side):\n        left", "if True:\n        left", 1, id="streams: no fork"
        ),
        pytest.param(
            STREAMS,
            "host = torch.empty(256, 256)  #",
            "host = torch.empty(256, 256).pin_memory()  #",
            2,
            id="streams: pinned",
        ),
        pytest.param(STREAMS, "captured(offloaded, batch", "captured(kept, batch", 4, id="streams: nothing leaves"),
        pytest.param(
            STREAMS,
            "else x)\n        x = layer(x)",
            "else x)\n        globals().setdefault('all', []).append(x)\n        x = layer(x)",
            5,
            id="streams: what has left is kept all the same",
        ),
        pytest.param(STREAMS, 'pgk.recorded["offload"]', "view.trace", 6, id="streams: not from a recording"),
        pytest.param(YOURS, "y, plain(x))", "y, plain(x + 1))", 1, id="yours: other numbers"),
        pytest.param(YOURS, "mean().cpu()  # a", "mean()  # a", 2, id="yours: no detour"),
        pytest.param(YOURS, "print(view.partitions())", "print(view.memory())", 2, id="yours: nobody says why"),
        pytest.param(YOURS, 'pgtrace", strip_source=True)', 'pgtrace")', 3, id="yours: the source is not stripped"),
        pytest.param(YOURS, "every = dict(pgk.recorded)", "every = {'mine': trace}", 4, id="yours: not recorded"),
        pytest.param(
            YOURS, '"parameterized": "llama-paramgraph"', '"parameterized": "llama-graph-trees"', 5, id="yours: trees"
        ),
        pytest.param(TRAINING, '"frozen": frozen_blocks}', '"frozen": by_block}', 7, id="training: nothing is frozen"),
    ],
)
def test_workshop_that_is_no_longer_true_fails(tmp_path: Path, name: str, before: str, after: str, cell: int) -> None:
    # GIVEN a notebook of the workshop with the subject of one of its claims taken away

    # WHEN
    result = run_broken(tmp_path, notebooks.FOLDER / f"{name}.ipynb", before, after)

    # THEN
    assert first_failure(result) == cell


def test_nothing_else_in_a_copy_fails(tmp_path: Path) -> None:
    # GIVEN a copy in which a comment is all that differs
    result = run_broken(tmp_path, FIRST, "broken_graph = cuda.CUDAGraph()", "broken_graph = cuda.CUDAGraph()  # same")

    # THEN it passes: the failures above are of the claims, not of the copying
    assert result.returncode == 0, result.stdout + result.stderr
