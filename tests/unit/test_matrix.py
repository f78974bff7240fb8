"""``scripts/matrix``: a line for each version of torch, with counts, whatever becomes of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/matrix"
# What stands in for pip's environment: its python says the version of its folder, runs each file, and knows the newest.
ENVIRONMENT = """#!/bin/sh
case $VENV in *-0.1) echo no such torch; exit 1 ;; esac
grep -q "^torch==${VENV##*-}$" "$CONSTRAINTS" || exit 1
mkdir -p "$VENV/bin"
cp scripts/python "$VENV/bin/python"
"""
PYTHON = """#!/bin/sh
version=${0%/bin/python}
case "$2" in
scripts.each_file)
    case ${version##*-} in
    2.11.0) printf '%s\\n' "$*" "a: failed" "b: killed" "7 tests passed, 2 files are red"; exit 1 ;;
    *) printf '%s\\n' "$*" "8 tests passed, 0 files are red" ;;
    esac ;;
pip) echo '{"install": [{"metadata": {"version": "2.13.0+cpu"}}]}' ;;
*) case $* in *json*) exec python3 "$@" ;; *) echo "${version##*-}+cpu" ;; esac ;;
esac
"""


def run(folder: Path, *versions: str) -> tuple[int, list[str]]:
    """What the script returns and prints, seconds left out, where environments are made at once."""
    (folder / "scripts").mkdir()
    (folder / "constraints.txt").write_text("numpy==2\ntorch==2.13.0\n")
    for name, text in (("environment", ENVIRONMENT), ("python", PYTHON)):
        (folder / "scripts" / name).write_text(text)
        (folder / "scripts" / name).chmod(0o755)
    shutil.copy(SCRIPT, folder / "scripts/matrix")
    done = subprocess.run(
        [folder / "scripts/matrix", *versions],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHON": str(folder / "scripts/python")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr
    return done.returncode, [re.sub(r" +(\d+ s +)?", " ", line).strip() for line in done.stdout.splitlines()]


def test_each_version_is_a_line_with_counts(tmp_path: Path) -> None:
    # GIVEN a version whose tests fail, one whose tests pass, and the newest, which is the second WHEN they are run
    code, printed = run(tmp_path)

    # THEN each is a line, the red files are below theirs, and nothing runs twice
    assert code == 1
    assert printed == [
        "• torch 2.11.0 FAILED, torch 2.11.0+cpu: 7 tests passed, 2 files are red, see out/matrix/torch-2.11.0.log",
        "a: failed",
        "b: killed",
        "• torch 2.13.0 ok, torch 2.13.0+cpu: 8 tests passed, 0 files are red",
        "• torch newest is 2.13.0, see above",
    ]
    assert "scripts.each_file tests/unit tests/integration" in (tmp_path / "out/matrix/torch-2.13.0.log").read_text()


def test_the_newest_has_a_line_of_its_own_version(tmp_path: Path) -> None:
    # GIVEN nothing but the newest WHEN run
    code, printed = run(tmp_path, "newest")

    # THEN the version that pip names is installed and run
    assert code == 0
    assert len(printed) == 1
    assert printed[0].startswith("• torch 2.13.0 ")


def test_what_cannot_be_installed_is_a_line(tmp_path: Path) -> None:
    # GIVEN a version that there is not WHEN run before another
    code, printed = run(tmp_path, "0.1", "2.13.0")

    # THEN it is a line, and the other is run
    assert code == 1
    assert printed == [
        "• torch 0.1 cannot be installed: no such torch",
        "• torch 2.13.0 ok, torch 2.13.0+cpu: 8 tests passed, 0 files are red",
    ]
