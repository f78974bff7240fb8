"""What people meet first: the CPU build of torch where it can be had, a quiet JupyterLab, one number a lesson."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from paramgraph_kit.__main__ import main
from scripts import quiet_lab

ROOT = Path(__file__).resolve().parents[2]
FAKE = """#!/bin/sh
case "$*" in
*metadata*) exit 1 ;;  # no torch yet
*"-m pip"*) echo "pip $*" >>"$PIP_LOG" ;;
*) exec {python} "$@" ;;
esac
"""


class Index(BaseHTTPRequestHandler):
    """An index that answers."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/cpu/torch/" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/cpu"
    server.shutdown()
    server.server_close()


def asked_of_pip(tmp_path: Path, index: str, constraints: str = "torch==2.13.0\n") -> str:
    """What the script has pip do on a machine without a GPU."""
    python, log, pins = tmp_path / "python", tmp_path / "log", tmp_path / "constraints.txt"
    python.write_text(FAKE.format(python=sys.executable))
    python.chmod(0o755)
    pins.write_text(constraints)
    programs = tmp_path / "bin"  # what the script calls, and no nvidia-smi
    programs.mkdir(exist_ok=True)
    for name in ("sh", "sed", "uname"):
        link = programs / name
        if not link.exists():
            found = next(Path(folder, name) for folder in ("/bin", "/usr/bin") if Path(folder, name).exists())
            link.symlink_to(found)
    done = subprocess.run(
        [ROOT / "scripts" / "cpu-torch", python, pins],
        env={"PATH": str(programs), "PIP_LOG": str(log), "TORCH_CPU_INDEX": index, "no_proxy": "*"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return log.read_text() if log.exists() else ""


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="elsewhere torch has no other build")
def test_the_cpu_build_comes_from_its_index_where_that_answers(tmp_path: Path, index: str) -> None:
    # GIVEN an index that answers WHEN asked THEN pip takes the pinned torch from there
    said = asked_of_pip(tmp_path, index)
    assert f"--index-url {index} torch==2.13.0" in said


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="elsewhere torch has no other build")
def test_nothing_happens_where_it_does_not_answer_or_torch_is_not_pinned(tmp_path: Path, index: str) -> None:
    assert asked_of_pip(tmp_path, "http://127.0.0.1:9/cpu") == ""
    assert asked_of_pip(tmp_path, f"{index}/nowhere") == ""
    assert asked_of_pip(tmp_path, index, "numpy==2.0\n") == ""


def test_binder_and_make_take_that_way() -> None:
    assert "torch" not in (ROOT / "binder" / "requirements.txt").read_text().splitlines()
    assert "scripts/cpu-torch python constraints.txt" in (ROOT / "binder" / "postBuild").read_text()
    assert 'scripts/cpu-torch "$venv/bin/python" "$constraints"' in (ROOT / "scripts" / "environment").read_text()


def test_jupyterlab_does_not_ask_about_news_and_keeps_what_was_set(tmp_path: Path) -> None:
    # GIVEN settings of somebody's
    path = tmp_path / "etc" / "jupyter" / "labconfig" / "page_config.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"disabledExtensions": {"mine": true}, "other": 1}')
    # WHEN
    assert quiet_lab.main(tmp_path) == path
    # THEN
    settings = json.loads(path.read_text())
    assert settings == {"disabledExtensions": {"mine": True, quiet_lab.ANNOUNCEMENTS: True}, "other": 1}
    for caller in ("scripts/lab", "binder/postBuild"):
        assert "python scripts/quiet_lab.py" in (ROOT / caller).read_text()


def test_every_lesson_has_a_number_of_its_own() -> None:
    numbers = [path.name[:2] for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    assert numbers == [f"{n:02d}" for n in range(len(numbers))]
    assert "notebooks/00_" in str(min((ROOT / "notebooks").glob("[0-9]*.ipynb")))


def test_the_bare_command_shows_what_can_be_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    assert all(f"    {command} " in said for command in ("tour", "explore", "viewer", "diagnose", "metrics", "bench"))
