"""The viewer's page: one file without a network, and the same reading of a trace in the browser as in Python."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from paramgraph_kit.__main__ import main
from paramgraph_kit.explore.journal import Journal
from paramgraph_kit.explore.viewer import viewer_page, write_viewer
from paramgraph_kit.recordings import recorded
from paramgraph_kit.trace import TraceError, dumps, loads, save
from tests.unit import explore_sample as sample


def test_the_page_is_one_file_that_may_load_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN the command WHEN it writes the page
    path = tmp_path / "viewer.html"
    assert main(["viewer", "--html", str(path)]) == 0
    assert capsys.readouterr().out == f"page: {path}\n"
    text = path.read_text()
    # THEN it allows its two scripts and no connection, names no address, and has every recording
    policy = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
    assert len(policy) == 1
    assert policy[0].startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    assert not re.search(r"https?://(?!www\.w3\.org)", text)
    for name in recorded:
        assert f'data-open="{name}"' in text
    # those that are steps of one view first, and their source once
    stories = [
        "story-1-broken+story-2-captured+story-3-parameterized",
        "llama-no-graphs+llama-graph-trees+llama-paramgraph",
    ]
    assert all(f'data-open="{story}"' in text for story in [*stories, "offload-kept+offload"])
    assert text.index(stories[0]) < text.index('data-open="failures"')
    assert text.count(f'<p class="lead">{recorded["gpt2"].source.label()}</p>') == 1
    assert len(text.encode()) < 400_000


def test_the_same_recordings_give_the_same_page() -> None:
    # GIVEN recordings WHEN the page is made twice THEN it is the same, and their names stay text
    packed = {sample.HOSTILE: dumps(sample.trace())}
    assert viewer_page(packed) == viewer_page(packed)
    assert sample.HOSTILE not in viewer_page(packed)


def test_what_cannot_be_written_or_read_says_so(tmp_path: Path) -> None:
    # GIVEN no such folder, or a file that is no trace WHEN the page is written THEN one line says why
    with pytest.raises(TraceError, match="cannot be written"):
        write_viewer(tmp_path / "no" / "viewer.html", {})
    with pytest.raises(TraceError, match=r"^mine: not a trace file"):
        write_viewer(tmp_path / "viewer.html", {"mine": b"hello"})


COMPARE = """
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { linesOf, unpack } from "SRC/pgtrace.js";
import { Store } from "SRC/store.js";
const journal = new Store();
journal.feed(readFileSync("journal"));
const text = (lines) => new TextEncoder().encode(lines.map((line) => JSON.stringify(line)).join("\\n"));
const file = new Store();
file.feed(text(linesOf([["sample", await unpack(readFileSync("sample.pgtrace"))]], journal.families)));
const [a, b] = [journal.steps[0], file.steps[0]];
for (const key of ["source", "origin", "title", "proved", "partitions", "failures", "events", "launches"])
  assert.deepEqual(b[key], a[key], key);
assert.equal(b.captures.length, a.captures.length);
a.captures.forEach((one, c) => {
  const other = b.captures[c];
  assert.deepEqual(other.allocations, one.allocations);
  assert.deepEqual(other.items, one.items);
  for (let i = 0; i < one.n; i++) assert.deepEqual(other.node(i), one.node(i));
});
console.log(a.captures.reduce((sum, one) => sum + one.n, 0));
"""


@pytest.mark.parametrize("name", ["sample", "gpt2", "offload", "failures", "llama-blocks-paramgraph"])
def test_the_browser_reads_a_file_as_python_does(repository: Path, tmp_path: Path, name: str) -> None:
    # GIVEN a trace, as a file and as the lines that Python makes of it
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node (Debian, Ubuntu: apt install nodejs)")
    trace = sample.trace() if name == "sample" else recorded[name]
    path = save(trace, tmp_path / "sample.pgtrace")
    journal = Journal({"sample": loads(path.read_bytes())})
    journal.advance()
    (tmp_path / "journal").write_bytes(journal.whole())
    # WHEN both are taken in by the front end THEN nothing differs
    script = tmp_path / "compare.mjs"
    script.write_text(COMPARE.replace("SRC", (repository / "widgets" / "src").as_uri()))
    done = subprocess.run([node, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == sum(len(capture.nodes) for capture in trace.captures)
