"""What is installed is what was meant: names, versions, entry points, extras, pins."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from hatchling.build import build_wheel

import paramgraph_kit as pgk

BENCH = {
    "__init__.py",
    "__main__.py",
    "alone.py",
    "calls.py",
    "command.py",
    "decoding.py",
    "frozen.py",
    "generate.py",
    "measure.py",
    "plot.py",
    "selection.py",
    "side_by_side.py",
    "small_models.py",
    "steps.py",
    "table.py",
    "turns.py",
    "ways.py",
    "workloads.py",
}


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    root = Path(__file__).resolve().parents[2]
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=;! ]", requirement)[0].lower().replace("_", "-")


def test_version_is_written_once(repository: Path) -> None:
    # GIVEN the installed package, the module and the changelog
    changelog = (repository / "CHANGELOG.md").read_text(encoding="utf-8")

    # THEN they agree
    assert version("paramgraph_kit") == pgk.__version__
    assert f"## [{pgk.__version__}]" in changelog


def test_backend_is_found_through_its_entry_point() -> None:
    # GIVEN what torch.compile itself looks at
    (entry,) = entry_points(group="torch_dynamo_backends", name="paramgraph")

    assert entry.value == "paramgraph_kit.backend:paramgraph"
    assert callable(entry.load())


def test_torch_range_is_open(pyproject: dict[str, Any]) -> None:
    assert "torch>=2.11" in pyproject["project"]["dependencies"]


def test_constraints_pin_every_direct_dependency(repository: Path, pyproject: dict[str, Any]) -> None:
    # GIVEN all that pyproject names, for running and for developing
    project = pyproject["project"]
    wanted = {name_of(r) for r in project["dependencies"]}
    for extra in project["optional-dependencies"].values():
        wanted |= {name_of(r) for r in extra}

    # WHEN
    lines = (repository / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {name_of(line) for line in lines if re.fullmatch(r"[\w.-]+==[\w.]+", line)}

    # THEN
    assert wanted - {"paramgraph-kit"} <= pinned


def test_wheel_holds_the_package_and_nothing_else(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    monkeypatch.chdir(repository)

    # WHEN
    wheel = ZipFile(tmp_path / build_wheel(str(tmp_path)))

    # THEN neither notebooks nor front-end sources are installed, and the types are
    names = wheel.namelist()
    assert {name.split("/")[0] for name in names} == {"paramgraph_kit", f"paramgraph_kit-{pgk.__version__}.dist-info"}
    assert "paramgraph_kit/py.typed" in names
    assert "paramgraph_kit/explore/static/paramgraph.js" in names
    assert {f"paramgraph_kit/recordings/{name}.pgtrace" for name in pgk.recorded} <= set(names)
    assert len(pgk.recorded) > 5


def test_wheel_holds_nothing_of_the_workshop(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN what only those run who work on the package: the corpus, the recorder, the runs on several GPUs
    monkeypatch.chdir(repository)
    # WHEN the wheel is built
    wheel = ZipFile(tmp_path / build_wheel(str(tmp_path)))
    sources = {name: wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".py")}
    # THEN none of it is inside, nothing inside imports it, and what remains of the benchmark measures
    assert len(sources) > 100
    workshop = re.compile(r"^\s*(?:from|import) (?:tests|scripts|notebooks)\b", re.MULTILINE)
    assert [name for name, text in sources.items() if workshop.search(text)] == []
    assert {name.split("/")[2] for name in sources if "/bench/" in name} == BENCH


def test_command_line_says_what_it_can_do() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "paramgraph_kit", "--help"], capture_output=True, text=True, check=False, timeout=600
    )

    assert result.returncode == 0
    assert "tour" in result.stdout


def test_example_of_the_readme_runs(repository: Path) -> None:
    # GIVEN the first block of Python in the README
    readme = (repository / "README.md").read_text(encoding="utf-8")
    example, *_ = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 12

    # WHEN a newcomer pastes it
    result = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=False, timeout=600)

    # THEN it runs, and the report says that graphs were launched
    assert result.returncode == 0, result.stderr
    assert "100 %" in result.stdout
