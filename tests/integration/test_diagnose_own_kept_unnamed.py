"""Results that a program makes a list of at once, which has no name where it is read, or that it only gives back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.integration.servers import SERVER

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = (
    SERVER
    + """
def stream(server):
    for x in batches():
        yield server.answer(x)
def every(server):
    return tuple(server.answer(x) for x in batches())
def work():
    server, others, kept = Server(), [Server(), Server()], []
    LINES
"""
)
READ = "\n    kept.append(o.sum().item())\nreturn kept"
KEEPS = {
    "return [server.answer(x) for x in batches()]": "[server.answer(x).clone() for x in batches()]",
    "return {'all': [server.answer(x) for x in batches()], 'n': 3}": "[server.answer(x).clone() for x in batches()]",
    "kept = list(stream(server))\nreturn kept": "[y.clone() for y in stream(server)]",
    "return list(map(server.answer, batches()))": "[y.clone() for y in map(server.answer, batches())]",
    "return every(server)": "tuple((server.answer(x).clone() for x in batches()))",
    f"for o in list(stream(server)):{READ}": "[y.clone() for y in stream(server)]",
}
RIGHT = [
    "return [server.answer(x).clone() for x in batches()]",
    "return [server.answer(x).sum() for x in batches()]",
    "return [other.answer(batches()[0]) for other in others]",
    "return [server.answer(torch.ones(n, 3, device=device)) for n in (1, 2)]",
    "y = server.answer(batches()[0])\nreturn y, [y]",
    f"for o in stream(server):{READ}",
    f"for o in list(map(lambda x: server.answer(x).clone(), batches())):{READ}",
]


def _asked(lines: str, path: Path) -> pgk.Diagnosis:
    return pgk.diagnose(run(PROGRAM.replace("LINES", lines.replace("\n", "\n    ")), path)["work"])


@pytest.mark.parametrize("lines", KEEPS)
def test_a_list_that_is_made_at_once_is_told_without_a_name(lines: str, tmp_path: Path) -> None:
    # GIVEN a program that makes a list of what replays give, and gives it back, or goes through it WHEN it is asked
    found = _asked(lines, tmp_path)
    # THEN what makes it is told, with copies
    assert [(f.code, f.fix.partition("after   ")[2]) for f in found.failures] == [("output-alias", KEEPS[lines])], found


@pytest.mark.parametrize("lines", RIGHT)
def test_a_list_of_what_no_replay_writes_over_is_none(lines: str, tmp_path: Path) -> None:
    # GIVEN one that keeps copies, numbers, or one result of each graph WHEN it is asked THEN nothing is told
    found = _asked(lines, tmp_path)
    assert not found.failures, found
