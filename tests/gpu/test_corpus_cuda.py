"""A few workloads of the corpus on a GPU, through its command: ``python -m tests.corpus`` runs them all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.corpus import command as corpus_command

pytestmark = pytest.mark.gpu
RIGHT = ("held outputs", "kv-cache decoding", "mutated inputs", "views of one storage")
REFUSED = ("host node", "child graph", "hidden word", "hidden tensor")


def test_a_few_are_equal_and_what_hides_something_is_refused(tmp_path: Path) -> None:
    # GIVEN workloads that graphs must get right, and some that no graph may take
    only = ",".join((*RIGHT, *REFUSED))
    # WHEN run in processes of their own, all at once
    corpus_command.main(["--only", only, "--jobs", "10", "--out", str(tmp_path)])
    rows = {row["workload"]: row for row in json.loads((tmp_path / "corpus.json").read_text())["rows"]}
    # THEN each is what it should be, and no capture has left memory mapped
    assert {name: rows[name]["status"] for name in RIGHT} == dict.fromkeys(RIGHT, "equal")
    assert {name: rows[name]["status"] for name in REFUSED} == dict.fromkeys(REFUSED, "refused")
    assert all(rows[name]["strict"] for name in RIGHT)
