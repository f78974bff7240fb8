"""A lesson that stops being true fails: each claim of a notebook is broken in a copy, and nbval must notice.

`raises-exception` would only allow an exception, not demand one; so lessons catch what they expect and print or assert
it, and these tests break what the lesson is about, not its outputs.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import notebooks

FIRST = notebooks.FOLDER / "01_broken_to_parameterized.ipynb"


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
    )


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
    # GIVEN the first notebook with the subject of one of its claims taken away

    # WHEN
    result = run_broken(tmp_path, FIRST, before, after)

    # THEN the cell that makes the claim is the first to fail (nbval counts code cells from 0)
    assert result.returncode == 1, result.stdout + result.stderr
    assert min(int(number) for number in re.findall(r"^FAILED \S*::Cell (\d+)", result.stdout, re.M)) == cell


def test_nothing_else_in_a_copy_fails(tmp_path: Path) -> None:
    # GIVEN a copy in which a comment is all that differs
    result = run_broken(tmp_path, FIRST, "broken_graph = cuda.CUDAGraph()", "broken_graph = cuda.CUDAGraph()  # same")

    # THEN it passes: the failures above are of the claims, not of the copying
    assert result.returncode == 0, result.stdout + result.stderr
