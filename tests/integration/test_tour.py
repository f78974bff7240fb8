"""The tour: it runs to its end, its page holds what it showed, and a claim that is false stops it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.explore.steps import NOTHING, comparison
from paramgraph_kit.trace import Trace

pgk.device()  # at import: before any test of this process runs a backward


def test_the_tour_in_a_terminal(tmp_path: Path) -> None:
    # GIVEN a fresh process in an empty folder
    where = {**os.environ, "PYTHONPATH": str(Path(pgk.__file__).parents[1])}
    # WHEN
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "paramgraph_kit", "tour"],
        capture_output=True, text=True, check=False, timeout=600, cwd=tmp_path, env=where,
    )  # fmt: skip
    # THEN it says what it did, labelled with the machine
    assert done.stderr == ""
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("live: " if torch.cuda.is_available() else "simulated: ")
    assert [line[:2] for line in lines if line[:1].isdigit()] == ["1.", "2.", "3.", "4.", "5.", "6."]
    assert "       where  tour_model.py:22 if h.max().item() > 1.0:" in lines
    assert "   kernels in graphs     8 of 8 (100 %)" in lines or torch.cuda.is_available()
    assert lines[-1] == "page: paramgraph_tour.html"
    # and writes one page with everything
    assert [path.name for path in tmp_path.iterdir()] == ["paramgraph_tour.html"]
    page = (tmp_path / "paramgraph_tour.html").read_text(encoding="utf-8")
    for part in ("tour_model.py:22", "frozen graphs", "parameterized", "Captured graphs", lines[0].split(",")[0]):
        assert part in page


def test_every_step_of_the_tour_fills_its_column() -> None:
    # GIVEN WHEN what was watched in the steps is compared
    from paramgraph_kit.tour import Tour

    said: list[str] = []
    steps = Tour(said.append).run()
    facts = {fact.name: fact.values for fact in comparison(steps).facts}
    # THEN each column has what its step is about, and an earlier one's memory is told apart
    assert list(steps) == ["broken", "fixed", "frozen", "parameterized", "memory"]
    assert facts["failures"] == ("1: A value was read back to the CPU", *["none"] * 4)
    numbers = facts["numbers: a launch against no graph"]
    assert [value.partition(",")[0].partition(" of ")[0] for value in numbers[1:4]] == ["equal", "131", "equal"]
    assert facts["launches"] == (NOTHING, "1", "1", "5", "12")
    assert facts["kernels in graphs"][3].split(" of ")[0] == facts["kernels in graphs"][3].split(" of ")[1]
    assert facts["private pools, peak"][3] in ("0 B", NOTHING)
    assert NOTHING not in facts["from before"][2:4]


def test_quiet_prints_only_where_the_page_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from paramgraph_kit.__main__ import main

    # GIVEN WHEN
    status = main(["tour", "--quiet", "--html", str(tmp_path / "page.html")])
    # THEN
    assert status == 0
    assert capsys.readouterr().out == f"page: {tmp_path / 'page.html'}\n"


class NeverFails(nn.Module):
    """In the place of the layer that should break the capture."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


def test_a_false_claim_stops_the_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paramgraph_kit import __main__, tour

    # GIVEN a tour whose broken layer is not broken, and one whose compiled layer is another function
    class Unbroken(tour.Tour):
        def fails(self, trace: Trace) -> None:
            self.broken = NeverFails(self.fixed)
            super().fails(trace)

    class Wrong(tour.Tour):
        def parameterized(self, trace: Trace) -> None:
            monkeypatch.setattr(pgk, "compile", lambda model, **options: nn.Sequential(model, nn.ReLU()))
            super().parameterized(trace)

    for broken in (Unbroken, Wrong):
        lines: list[str] = []
        # WHEN THEN it raises instead of printing the claim, and no page is written
        with pytest.raises(pgk.TourError, match=r"did not fail|on this machine that is false"):
            broken(lines.append).run()
        assert not any("all claims checked" in line for line in lines)
    # and the command exits with 1
    monkeypatch.setattr(tour, "Tour", Unbroken)
    assert __main__.main(["tour", "--quiet", "--html", str(tmp_path / "page.html")]) == 1
    assert list(tmp_path.iterdir()) == []
