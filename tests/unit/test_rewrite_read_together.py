"""Loops that read in each round: what is computed first and read of all at once, and what stays in its round."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from paramgraph_kit.rewrite.loops.ending import Ending
from paramgraph_kit.rewrite.loops.read_together import together
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import Place
from paramgraph_kit.trace.model import Failure

STEP = """\
def step(q):
    hits = []
    for name, p in docs.items():
        s = (q * p).sum()
        hits.append((name, s.item()))
    return hits
"""


def split(path: Path, text: str = STEP, reading: str = "") -> tuple[str, Ending] | None:
    """The lines of the graph and what is behind it, of a step in which one line reads; None where it stays."""
    file = path / f"step{len([*path.iterdir()])}.py"
    file.write_text(text)
    source = Source.of(str(file))
    assert source is not None
    reads = (n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute))
    call = next(n for n in reads if n.func.attr in ("item", "tolist") and reading in ast.unparse(n))  # type: ignore[attr-defined]
    docs = {"a": torch.ones(3), "b": torch.zeros(3)}
    space = {"docs": docs, "torch": torch, "loader": iter([*docs.items()]), "many": dict.fromkeys(range(65), 1.0)}
    found = together(Place(source, source.statement_of(call), Failure("sync-item", "", ""), "device", space))
    return ("".join(source.apply(found.edits)), found) if found is not None else None


def test_rounds_compute_first_and_are_read_at_once(tmp_path: Path) -> None:
    # GIVEN a loop that scores documents, and lists their scores with their names WHEN split
    found = split(tmp_path)
    assert found is not None
    lines, behind = found
    # THEN the graph has the scores of all, and the host's lines go through these, beside the names
    assert (
        "    every_s = []\n    for name, p in docs.items():\n        s = (q * p).sum()\n        every_s.append(s)\n"
        in lines
    )
    assert "item()" not in lines
    assert behind.handed == {"s_of_all": "torch.stack(every_s).flatten()"}
    assert behind.lines == [
        "hits = []",
        "for (name, p), s_now in zip(docs.items(), s_of_all.tolist(), strict=True):",
        "    hits.append((name, s_now))",
    ]


def test_a_name_that_only_reads_is_what_the_loop_gives(tmp_path: Path) -> None:
    # GIVEN a number that gets a name, with a branch that asks it, and no round's own beside it WHEN split
    text = STEP.replace("s = (q * p).sum()", "s = (q * p).sum().item()")
    text = text.replace("hits.append((name, s.item()))", "if s > 0:\n            hits.append(s)")
    found = split(tmp_path, text)
    assert found is not None
    # THEN its name is the loop's
    assert found[1].lines == [
        "hits = []",
        "for s in s_of_all.tolist():",
        "    if s > 0:",
        "        hits.append(s)",
    ]


def test_several_values_are_read_each_of_all(tmp_path: Path) -> None:
    # GIVEN lists of two kinds WHEN split THEN each keeps its rows
    text = STEP.replace("s = (q * p).sum()", "v, i = torch.topk(q * p, 2)")
    found = split(tmp_path, text.replace("(name, s.item())", "[*zip(v.tolist(), i.tolist())]"))
    assert found is not None
    assert found[1].handed == {"v_of_all": "torch.stack(every_v)", "i_of_all": "torch.stack(every_i)"}
    assert found[1].lines[1] == "for v_now, i_now in zip(v_of_all.tolist(), i_of_all.tolist()):"


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("hits.append((name, s.item()))", "q = q * s.item()"),  # the next round computes with it
        ("hits.append((name, s.item()))", "hits.append(s.item())\n        if hits[-1] > 1:\n            break"),
        ("hits.append((name, s.item()))", "hits.append((s, s.item()))"),  # a tensor of the round's own goes on
        ("hits.append((name, s.item()))", "docs.pop(s.item())"),
        ("hits.append((name, s.item()))", "hits.append((s.item(), s.cpu().numpy()))"),
        ("s = (q * p).sum()", "q.add_(p)\n        s = q.sum()"),
        ("s = (q * p).sum()", "s = (q * len(hits)).sum()"),
        ("hits = []", "hits = start(q)"),
        ("hits = []", "hits = []\n    hits.append(q)"),
        ("docs.items()", "loader"),  # which is gone through once
        ("docs.items()", "many.items()"),
    ],
)
def test_what_needs_its_round_stays_there(then: str, now: str, tmp_path: Path) -> None:
    # GIVEN a loop whose rounds need what another has read, may end, give a tensor on, or come once WHEN asked
    assert split(tmp_path) is not None
    text = STEP.replace(then, now)
    assert text != STEP
    # THEN it is as it is
    assert split(tmp_path, text) is None
