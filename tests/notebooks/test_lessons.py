"""A lesson that stops being true fails: each claim of a notebook is broken in a copy, and nbval must notice.

`raises-exception` would only allow an exception, not demand one; so lessons catch what they expect and print or assert
it, and these tests break what the lesson is about, not its outputs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts import notebooks

START = "00_start_here"
LAUNCHES = "09_launch_overhead"
FIRST = "01_broken_to_parameterized"
FAILURES = "02_capture_failures"
MEMORY = "03_memory_pools"
WORDS = "04_parameterized_launch"
COVERAGE = "05_partitions_and_coverage"
TRAINING = "06_training_step"
STREAMS = "07_streams"
YOURS = "08_your_own_model"
WHOLE = "10_whole_step"


@dataclass(frozen=True)
class Case:
    """A copy of a notebook in which one piece of code is another."""

    notebook: str
    before: str
    after: str
    cell: int | None  # the first code cell that fails, counted from 0 as nbval does; None: nothing does
    what: str


# What each case takes away is the subject of the claim that its cell makes.
CASES = [
    Case(FIRST, "if h.max().item() > 1.0:", "if True:", 1, "first: the capture no longer breaks"),
    Case(FIRST, "torch.where(h.max() > 1.0, h * 0.5, h)", "h", 2, "first: the fix gives other numbers"),
    Case(
        FIRST,
        "    graph.replay()\n    wrong",
        "    x.copy_(new), graph.replay()\n    wrong",
        3,
        "first: nothing is stale",
    ),
    Case(FIRST, 'backend="paramgraph")\n\nwith', 'backend="eager")\n\nwith', 4, "first: nothing is parameterized"),
    Case(FIRST, "zip(inputs, outputs,", "zip(inputs, outputs[::-1],", 5, "first: the graph gives other numbers"),
    Case(FIRST, "return fast", "return frozen(layer)", 6, "first: memory grows as it did"),
    Case(FIRST, '"frozen": stale', '"frozen": here', 7, "first: a step without launches"),
    Case(START, 'torch.compile(model, backend="paramgraph")', "model", 2, "start: nothing is compiled"),
    Case(START, "if y.max().item() > 3.0:", "if True:", 6, "start: nothing to diagnose"),
    Case(LAUNCHES, 'torch.compile(model, backend="paramgraph")', "model", 1, "launches: no graph"),
    Case(LAUNCHES, "begin = max(launched, done)", "begin = done", 2, "launches: the GPU waits for nobody"),
    Case(
        LAUNCHES,
        'modes["no graphs"], modes["paramgraph"]',
        'modes["no graphs"], modes["no graphs"]',
        4,
        "launches: without",
    ),
    Case(LAUNCHES, "pgk.parameterize(chain)", "pgk.parameterize(lambda x: x * 1.01)", 6, "launches: another chain"),
    Case(FAILURES, "h[h > 0].sum()", "h.relu().sum()", 2, "failures: the size is known"),
    Case(FAILURES, "torch.where(h > 0, h, 0.0)", "h", 2, "failures: the fix gives other numbers"),
    Case(
        FAILURES,
        "    return (x @ w) * torch.tensor([0.5, 2.0] * 32, device=device)",
        "    return (x @ w) * factors",
        3,
        "failures: made before the capture",
    ),
    Case(
        FAILURES,
        "y = x * 2\n    z = x @ w\n    return y, z",
        "y = x * 2\n    z = x @ w\n    cuda.current_stream().wait_stream(side)\n    return y, z",
        4,
        "failures: the stream is joined",
    ),
    Case(FAILURES, ", error_if_nonfinite=True", "", 5, "failures: one problem instead of two"),
    Case(FAILURES, "x * random.random()", "x * torch.rand((), device=device)", 6, "failures: random"),
    Case(MEMORY, "graph, pool=pool)", "graph, pool=pool or shared)", 1, "memory: frozen graphs share a pool"),
    Case(MEMORY, "second.replay()\nfirst.replay()", "first.replay()\nsecond.replay()", 3, "memory: order"),
    Case(MEMORY, "return fast\n", "return frozen(layer)\n", 4, "memory: frozen, not parameterized"),
    Case(MEMORY, "compiled[call % 8](x)", "compiled.append(compiled[0](x))", 6, "memory: results kept"),
    Case(WORDS, "h[256:], alpha=0.5)  # k", "h[128:384], alpha=0.5)  # k", 1, "words: another place"),
    Case(WORDS, "(1.5 + next(numbers))", "1.5", 2, "words: nothing is ambiguous"),
    Case(WORDS, "[(), (0,), (0,), (1, 2)]", "[(), (0,), (1,), (2,)]", 3, "words: no fork"),
    Case(WORDS, "if moved := table != self.table:", "if moved := not self.table:", 4, "words: no patch"),
    Case(WORDS, 'w])[0], backend="paramgraph")', "w])[0], backend='eager')", 5, "words: not compiled"),
    Case(WORDS, "    del h  # its bytes", "    pass  # its bytes", 6, "words: nothing is reused"),
    Case(WORDS, "return x + table  #", "return x + 1  #", 7, "words: nothing is hidden"),
    Case(COVERAGE, "h.mean().cpu()", "h.mean()", 2, "coverage: no detour"),
    Case(COVERAGE, "h[h > 0].mean()", "h.mean()", 3, "coverage: no graph break"),
    Case(COVERAGE, "h.sum() / (h > 0).sum()", "h.mean()", 5, "coverage: the fix gives other numbers"),
    Case(COVERAGE, "for rows in (8, 16, 8, 16):", "for rows in (8, 8):", 6, "coverage: one shape"),
    Case(TRAINING, "Block(dim) for _ in", "Block(dim, 4 if n else 8) for n in", 1, "training: blocks differ"),
    Case(TRAINING, "plain_optimizer, batches)", "plain_optimizer, batches.flip(0))", 2, "training: bits"),
    Case(
        TRAINING,
        "frozen = cuda.make_graphed_callables(copy.deepcopy(start.layers[0]), (sample,))",
        "frozen = graphed.layers[0]",
        5,
        "training: nothing is overwritten",
    ),
    Case(
        TRAINING,
        "optimizer, batches[:2], parts=4)\ntheirs",
        "optimizer, batches[:2])\ntheirs",
        6,
        "training: parts",
    ),
    Case(STREAMS, "with cuda.stream(side):\n        left", "if True:\n        left", 1, "streams: no fork"),
    Case(
        STREAMS,
        "host = torch.empty(256, 256)  #",
        "host = torch.empty(256, 256).pin_memory()  #",
        2,
        "streams: pinned",
    ),
    Case(STREAMS, "captured(offloaded, batch", "captured(kept, batch", 4, "streams: nothing leaves"),
    Case(STREAMS, "value.numel() >= 1 << 15", "value.numel() >= 1 << 30", 5, "streams: nothing is wished away"),
    Case(STREAMS, 'pgk.recorded["offload"]', "view.trace", 6, "streams: not from a recording"),
    Case(YOURS, "y, plain(x))", "y, plain(x + 1))", 1, "yours: other numbers"),
    Case(YOURS, "mean().cpu()  # a", "mean()  # a", 2, "yours: no detour"),
    Case(YOURS, "print(view.partitions())", "print(view.memory())", 2, "yours: nobody says why"),
    Case(YOURS, 'pgtrace", strip_source=True)', 'pgtrace")', 3, "yours: the source is not stripped"),
    Case(YOURS, "every = dict(pgk.recorded)", "every = {'mine': trace}", 4, "yours: not recorded"),
    Case(YOURS, '"parameterized": "llama-paramgraph"', '"parameterized": "llama-graph-trees"', 5, "yours: trees"),
    Case(TRAINING, '"frozen": frozen_blocks}', '"frozen": by_block}', 7, "training: nothing is frozen"),
    Case(WHOLE, 'verify="always")\nwith', 'select="never")\nwith', 3, "whole step: nothing is launched"),
    Case(WHOLE, '"frozen": frozen}', '"frozen": made}', 6, "whole step: nothing is frozen"),
    # nothing else in a copy fails: the failures above are of the claims, not of the copying
    Case(FIRST, "broken_graph = cuda.CUDAGraph()", "broken_graph = cuda.CUDAGraph()  # same", None, "first: a comment"),
]


def broken(case: Case, path: Path) -> Path:
    """Write the copy."""
    original = notebooks.FOLDER / f"{case.notebook}.ipynb"
    notebook = json.loads(original.read_text(encoding="utf-8"))
    hits = [c for c in notebook["cells"] if c["cell_type"] == "code" and case.before in "".join(c["source"])]
    assert len(hits) == 1, f"{case.before!r} is in {len(hits)} cells of {original.name}: this test must follow it"
    hits[0]["source"] = "".join(hits[0]["source"]).replace(case.before, case.after).splitlines(keepends=True)
    path.write_text(notebooks.dumps(notebook), encoding="utf-8")
    return path


def wanted(request: pytest.FixtureRequest) -> list[Case]:
    """The cases of this run: all, or those that were asked for."""
    here = [item for item in request.session.items if item.path == request.path]
    return [item.callspec.params["case"] for item in here if hasattr(item, "callspec")]


@dataclass(frozen=True)
class Ran:
    """What became of the cells of a copy, up to the first that failed."""

    cells: list[tuple[int, str]]  # (number, passed or failed), in order
    output: str


@pytest.fixture(scope="module")
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Every case's copy under nbval, side by side; imports are done once for all, and each copy gets a fork."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "results").symlink_to(notebooks.ROOT / "results")  # a lesson reads what was measured
    paths = {case.what: broken(case, folder / f"{n:02d}.ipynb") for n, case in enumerate(wanted(request))}
    cells = folder / "cells"  # of all: each line is written at once
    options = ("-p", "tests.notebooks.first_failure", "--cells-to", str(cells))
    _, said = notebooks.side_by_side(list(paths.values()), *options)
    rows = [line.split("\t") for line in cells.read_text().splitlines()]
    found = {what: sorted((int(row[1]), row[2]) for row in rows if row[0] == path.stem) for what, path in paths.items()}
    return {what: Ran(states, said) for what, states in found.items()}


# Two of each notebook at each change, with the last that nothing is wrong with; `make sweeps` takes the others.
OFTEN = {case.what for name in {c.notebook for c in CASES} for case in [c for c in CASES if c.notebook == name][-2:]}


@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=[pytest.mark.sweep] * (each.what not in OFTEN), id=each.what) for each in CASES]
)
def test_lesson_that_is_no_longer_true_fails(ran: dict[str, Ran], case: Case) -> None:
    # GIVEN a copy of a notebook with the subject of one of its claims taken away WHEN it is run
    result = ran[case.what]

    # THEN the cell that makes the claim fails, and all before it pass
    passed = code_cells(case.notebook) if case.cell is None else case.cell
    expected = [(number, "passed") for number in range(passed)]
    expected += [] if case.cell is None else [(case.cell, "failed")]
    assert result.cells == expected, result.output


def code_cells(name: str) -> int:
    """How many code cells a notebook has."""
    notebook = json.loads((notebooks.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    return sum(cell["cell_type"] == "code" for cell in notebook["cells"])
