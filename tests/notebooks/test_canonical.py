"""Notebooks are kept in one canonical form, small, and say where they ran."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paramgraph_kit.explore.stored import picture
from scripts import kernels_over_files, notebooks

ALL = notebooks.notebooks()


def small(**changes: Any) -> dict[str, Any]:
    """A canonical notebook of one code cell."""
    cell: dict[str, Any] = {
        "cell_type": "code",
        "id": "cell-00",
        "metadata": {},
        "execution_count": 1,
        "source": ["print('source: x')"],
        "outputs": [{"output_type": "stream", "name": "stdout", "text": ["source: x\n"]}],
    }
    return {"cells": [cell | changes], "metadata": notebooks.METADATA, "nbformat": 4, "nbformat_minor": 5}


def write(folder: Path, notebook: dict[str, Any]) -> Path:
    path = folder / "lesson.ipynb"
    path.write_text(notebooks.dumps(notebook), encoding="utf-8")
    return path


def test_there_is_a_first_notebook() -> None:
    assert ALL[0].name.startswith("00_")


@pytest.mark.parametrize("path", ALL, ids=lambda p: str(p.relative_to(notebooks.FOLDER)))
def test_notebook_is_canonical_small_and_says_where_it_ran(path: Path) -> None:
    assert notebooks.problems(path) == []


@pytest.mark.parametrize("path", ALL, ids=lambda p: str(p.relative_to(notebooks.FOLDER)))
def test_notebook_has_been_executed_without_an_error(path: Path) -> None:
    # GIVEN the stored outputs
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells if cell["cell_type"] == "code" for output in cell["outputs"]]

    # THEN there are some, and what fails on purpose was caught and its diagnosis printed: nbval checks text,
    # while a cell that may raise would also pass when it no longer does
    assert outputs
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not [cell for cell in cells if "raises-exception" in cell["metadata"].get("tags", [])]


def test_an_assert_says_what_must_be_so(tmp_path: Path) -> None:
    # GIVEN cells that check, behind a magic too WHEN looked at THEN those without a message are named
    found = notebooks.problems(
        write(tmp_path, small(source=["%load_ext x\n", "for n in range(2):\n", "    assert n < 2"]))
    )
    assert found == ["cell 0: an assert says nothing where it fails: add a message"]
    assert notebooks.problems(write(tmp_path, small(source=["assert True, 'it is so'"]))) == []


def test_canonical_form_drops_what_changes_from_run_to_run(tmp_path: Path) -> None:
    # GIVEN a notebook as JupyterLab saves it
    messy = small(
        id="3f2a",
        execution_count=7,
        metadata={"tags": ["nbval-ignore-output"], "execution": {"iopub.execute_input": "2026-01-01"}},
        source="print('source: x')",
        outputs=[
            {"output_type": "stream", "name": "stdout", "text": "source: x\n"},
            {"output_type": "stream", "name": "stdout", "text": "and more\n"},
            {
                "output_type": "execute_result",
                "execution_count": 7,
                "metadata": {"image/png": {"width": 3}},
                "data": {"text/plain": "3", "application/vnd.jupyter.widget-view+json": {"model_id": "a"}},
            },
        ],
    )
    messy["metadata"] = {"widgets": {"state": {}}, "kernelspec": {"name": "mine"}}
    path = write(tmp_path, messy)
    assert notebooks.problems(path) == ["not canonical: run `make format`"]

    # WHEN
    assert notebooks.main(["fix", str(path)]) == 0

    # THEN only what is worth keeping is kept, and doing it again changes nothing
    (cell,) = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert cell["id"] == "cell-00"
    assert cell["metadata"] == {"tags": ["nbval-ignore-output"]}
    assert cell["execution_count"] == 1
    assert cell["outputs"][0]["text"] == ["source: x\n", "and more\n"]
    assert cell["outputs"][1] == {
        "output_type": "execute_result",
        "execution_count": 1,
        "metadata": {},
        "data": {"text/plain": ["3"]},
    }
    assert notebooks.problems(path) == []


def test_size_limits_are_reported(tmp_path: Path) -> None:
    # GIVEN a notebook of too many cells, one of them too large
    notebook = small()
    notebook["cells"] += [small(source=["x" * 300_000])["cells"][0]] + small()["cells"] * 14

    # WHEN
    found = notebooks.problems(write(tmp_path, notebooks.canonical(notebook)))

    # THEN
    assert found[0] == "16 cells, at most 15: split the lesson"
    assert found[1].endswith("bytes, at most 300,000: smaller pictures")


def test_a_first_cell_without_its_source_is_reported(tmp_path: Path) -> None:
    found = notebooks.problems(write(tmp_path, small(outputs=[])))

    assert found == ["the first code cell must print the environment with a `source:` line"]


def test_check_exits_with_an_error_and_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, small(outputs=[]))

    assert notebooks.main(["check", str(path)]) == 1
    assert capsys.readouterr().out.startswith("lesson.ipynb: the first code cell")


def test_what_stands_in_for_a_live_view_is_in_no_canonical_notebook() -> None:
    # GIVEN a notebook as JupyterLab saves it: a live view's output, and what stands in for it
    view = {"text/plain": "a & b", "image/png": "abc", "application/vnd.jupyter.widget-view+json": {"model_id": "1"}}
    outputs: list[Any] = [
        {"output_type": "display_data", "data": data, "metadata": {}} for data in (view, picture(view))
    ]
    cell = {"cell_type": "code", "metadata": {}, "source": "", "outputs": outputs, "execution_count": 1}
    # THEN what stands in has the picture, with words for who does not see it
    assert '<img src="data:image/png;base64,abc" alt="a &amp; b">' in outputs[1]["data"]["text/html"]
    # AND where notebooks are committed, the picture is there once
    (kept,) = notebooks.canonical({"cells": [cell]})["cells"][0]["outputs"]
    assert kept["data"].keys() == {"text/plain", "image/png"}


def test_kernels_that_start_at_once_never_choose_the_same_way_to_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN two kernels of notebooks that are about to start
    monkeypatch.setenv(kernels_over_files.FOLDER, str(tmp_path))
    managers = [kernels_over_files.OverFiles() for _ in range(2)]

    # WHEN both choose before one of them takes what it has chosen
    for manager in managers:
        manager.write_connection_file()

    # THEN they are reached through files of their own, where ports may be taken by anybody in between
    ways = [json.loads(Path(manager.connection_file).read_text(encoding="utf-8")) for manager in managers]
    assert {way["transport"] for way in ways} == {"ipc"}
    assert len({way["ip"] for way in ways}) == 2
    assert {Path(way["ip"]).parent for way in ways} == {tmp_path}
