"""A store at a place that the device has found has the words of a store: what picks there is a copy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.integration.test_own_lines import parts

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
FOUND = """
table = torch.ones(4, 6, device=device)
def f(score, row):
    s = score.argmax()
    LINES
    return table.sum(0)
args = (torch.rand(4, device=device), torch.arange(6.0, device=device))
"""
OF_COLUMNS = FOUND.replace("arange(6.0", "arange(4.0")
# A line, or several with " | " between them, and the first with which it is told to write, or what stands around it.
FIRST = {
    "table[s] = 0": "table.index_fill_(0, s.reshape(1), 0)",
    "table[s] += row": "table[s.reshape(1)] += row",
    "table[:, s] = 0": "table.index_fill_(1, s.reshape(1), 0)",
}
OTHERS = {
    "table[s] = row": "table[s.reshape(1)] = row",
    "table[s] *= 0.5": "table[s.reshape(1)] *= 0.5",
    "table[s] = table[s] * 0.5 + row": "table[s.reshape(1)] = table[s.reshape(1)][0] * 0.5 + row",
    "table[score.argmax()] = 2.5": "table.index_fill_(0, score.argmax().reshape(1), 2.5)",
    "table[s, 1:3] = 0": "table[:, 1:3].index_fill_(0, s.reshape(1), 0)",
    "table[1, s] -= row[2]": "table[1, :][s.reshape(1)] -= row[2]",
    "table[..., s] = 0": "table.index_fill_(-1, s.reshape(1), 0)",
}
COLUMNS = {
    "table[:, s] = row": "table.movedim(1, 0)[s.reshape(1)] = row",
    "table[:, s] += row": "table.movedim(1, 0)[s.reshape(1)] += row",
}
THROUGH = {
    "table[s].zero_()": ["part = table[s.reshape(1)][0]", "part.zero_()", "table[s.reshape(1)] = part"],
    "part = table[s] | part += row": ["part = table[s.reshape(1)][0]", "part += row", "table[s.reshape(1)] = part"],
}


def _told(text: str, folder: Path) -> list[str]:
    names = run(text, folder)
    said = [each for each in pgk.diagnose(names["f"], *names["args"]) if each.code == "tensor-bound"]
    assert len(said) == 1, said
    return re.findall(r"`([^`]*)`", parts(said[0].fix)[1])


def _follows(text: str, line: str, new: list[str], folder: Path) -> None:
    """The same is in memory and returned as before, and nothing is found of the new lines."""
    followed = text.replace("LINES", "\n    ".join(new))
    was = run(text.replace("LINES", line.replace(" | ", "\n    ")), folder)
    now = run(followed, folder)
    for step in range(4):
        score = torch.rand(4).roll(step).to(was["args"][0].device)
        for names in (was, now):
            names["out"] = names["f"](score, names["args"][1])
        assert torch.equal(was["out"], now["out"]), line
        assert torch.equal(was["table"], now["table"]), line
    names = run(followed, folder)
    assert not list(pgk.diagnose(names["f"], *names["args"])), followed


def _holds(line: str, new: str, folder: Path, program: str = FOUND) -> None:
    # GIVEN a step that writes where a tensor without dimensions says
    # WHEN it is diagnosed
    told = _told(program.replace("LINES", line), folder)

    # THEN the words write there, and picking is not among them
    assert told[0] == new, told
    assert not any(text.endswith("[0]") for text in told), told
    _follows(program, line, [new], folder)


@pytest.mark.parametrize("line", FIRST)
def test_words_write_where_the_line_writes(line: str, tmp_path: Path) -> None:
    _holds(line, FIRST[line], tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("line", OTHERS)
def test_words_write_in_all_kinds_of_stores(line: str, tmp_path: Path) -> None:
    _holds(line, OTHERS[line], tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("line", COLUMNS)
def test_words_write_tensors_into_columns(line: str, tmp_path: Path) -> None:
    _holds(line, COLUMNS[line], tmp_path, OF_COLUMNS)


@pytest.mark.parametrize("line", THROUGH)
def test_words_put_back_what_is_written_in_a_copy(line: str, tmp_path: Path) -> None:
    # GIVEN a step that writes into what it picks by a tensor without dimensions
    # WHEN it is diagnosed
    told = _told(FOUND.replace("LINES", line.replace(" | ", "\n    ")), tmp_path)

    # THEN the words put the copy back
    assert THROUGH[line][0] in told, told
    assert told[-1] == THROUGH[line][-1], told
    _follows(FOUND, line, THROUGH[line], tmp_path)


def test_words_for_what_is_only_read_pick_there(tmp_path: Path) -> None:
    # GIVEN a step that only reads there, also to write elsewhere
    # WHEN it is diagnosed
    told = _told(FOUND.replace("LINES", "table[0] += table[s] * row"), tmp_path)

    # THEN it is told to pick
    assert told[0] == "table[s.reshape(1)][0]", told
