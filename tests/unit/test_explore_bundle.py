"""The front end that is shipped: built from the sources that are here, within its size, and free of addresses."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from paramgraph_kit.explore.bundle import MOST_BYTES, front_end, packed

STATIC = "paramgraph_kit/explore/static"


def hash_of_sources(widgets: Path) -> str:
    """The hash that ``widgets/build.mjs`` records; both must read the same files in the same order."""
    names = [f"src/{path.name}" for path in (widgets / "src").iterdir()]
    digest = hashlib.sha256()
    for name in sorted([*names, "build.mjs", "package.json"]):
        digest.update(f"{name}\n".encode() + (widgets / name).read_bytes())
    return digest.hexdigest()


def test_the_bundle_is_built_from_these_sources(repository: Path) -> None:
    # GIVEN what the build recorded WHEN the sources are hashed again THEN it is the same
    recorded = (repository / STATIC / "paramgraph.sources").read_text().strip()
    assert hash_of_sources(repository / "widgets") == recorded, "run: cd widgets && npm ci && npm run build"


def test_a_changed_source_is_noticed(repository: Path, tmp_path: Path) -> None:
    # GIVEN a copy of the sources WHEN one letter changes THEN the hash does
    copy = shutil.copytree(repository / "widgets", tmp_path / "widgets", ignore=shutil.ignore_patterns("node_modules"))
    before = hash_of_sources(copy)
    (copy / "src" / "words.js").write_text((copy / "src" / "words.js").read_text() + " ")
    assert hash_of_sources(copy) != before


def test_the_bundle_is_small_and_fetches_nothing() -> None:
    # GIVEN the bundle WHEN read THEN it is within its size and knows no address
    text = front_end()
    assert len(text.encode()) <= MOST_BYTES
    assert not re.search(r"https?://|import\s*\(|\bfetch\(|XMLHttpRequest|WebSocket|eval\(|innerHTML", text)
    assert "</script" not in text


def test_a_build_gives_the_same_bundle(repository: Path, tmp_path: Path) -> None:
    # GIVEN Node and the pinned esbuild
    widgets = repository / "widgets"
    if shutil.which("node") is None or not (widgets / "node_modules" / "esbuild").exists():
        pytest.skip("needs node and `npm ci` in widgets/; the hash above is checked everywhere")
    # WHEN built again, elsewhere THEN it is what is committed
    subprocess.run(["node", "build.mjs", str(tmp_path)], cwd=widgets, check=True, capture_output=True)
    assert (tmp_path / "paramgraph.js").read_text(encoding="utf-8") == front_end()


def test_front_end_units(repository: Path) -> None:
    # GIVEN Node WHEN the front end's own tests run THEN they pass
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node (Debian, Ubuntu: apt install nodejs)")
    command = [node, "--test", "--test-concurrency=1"]  # one file after the other: some measure times
    result = subprocess.run(command, cwd=repository / "widgets", capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_the_lock_file_names_no_registry(repository: Path) -> None:
    # GIVEN the lock file WHEN read THEN packages are pinned by hash, and nothing says where they came from
    text = (repository / "widgets" / "package-lock.json").read_text()
    assert '"resolved"' not in text
    assert text.count('"integrity"') > 1


def test_packed_lines_are_the_same_each_time() -> None:
    # GIVEN lines WHEN packed twice THEN the text is the same, and markup cannot be in it
    assert packed(b'{"a":1}\n') == packed(b'{"a":1}\n')
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", packed(b"</div><script>" * 100))
