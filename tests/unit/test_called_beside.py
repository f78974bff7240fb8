"""Words for what a replay finds, where a warm-up calls what is captured as it is."""

from __future__ import annotations

import ast
import linecache
from pathlib import Path
from types import CodeType

import pytest

from paramgraph_kit.doctor.explain.syntax import tree_of
from paramgraph_kit.doctor.observe.called_beside import found_there_too
from paramgraph_kit.doctor.observe.own_regions import Region

PROGRAM = """def main(t):
    t.n += 1
    t.step()
    with graph(g):
        t.step()
    t.n += 1
    g.replay()
"""
WORDS = "before the capture `t.n_in = made`; and ahead of g.replay() `t.n_in.fill_(t.n)`"
MADE = "before line 3, which calls it as it is, `t.n_in = made`; and ahead of g.replay()"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (2, f"{MADE}, and of line 3, which calls it as it is, `t.n_in.fill_(t.n)`"),
        (6, f"{MADE} `t.n_in.fill_(t.n)`"),
    ],
)
def test_a_warm_up_finds_what_a_replay_finds(line: int, said: str, tmp_path: Path) -> None:
    # GIVEN a function that calls what it captures, behind one of the lines that move its number
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    linecache.checkcache(str(file))
    code = next(c for c in compile(PROGRAM, str(file), "exec").co_consts if isinstance(c, CodeType))
    blocks = (n for n in ast.walk(tree_of(str(file)) or ast.Module([], [])) if isinstance(n, ast.With))
    region = Region(code, 4, {}, None, body=next(blocks).body)
    # WHEN words fill a tensor ahead of the replay
    # THEN the tensor is there before the call, and filled ahead of it where the number has moved already
    assert found_there_too(WORDS, region, line, "step") == said


PROMPTED = """def main(t, prompt):
    for token in prompt:
        t.step(token)
        t.n += 1
    t.step(token)
    with graph(g):
        t.step(token)
    for _ in range(9):
        g.replay()
        t.n += 1
"""
MADE_THERE = "before line 3, which calls it as it is, `t.n_in = made`; and ahead of g.replay()"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (PROMPTED, f"{MADE_THERE}, and of line 5, which calls it as it is, `t.n_in.fill_(t.n)`"),
        (
            PROMPTED.replace("        t.n += 1\n    t.step", "        pass\n    t.step"),
            f"{MADE_THERE} `t.n_in.fill_(t.n)`",
        ),
        (
            PROMPTED.replace("    t.step(token)\n    with", "    t.step(token); t.n += 1\n    t.step(token)\n    with"),
            f"{MADE_THERE}, and of lines 5, 6, which call it as it is, `t.n_in.fill_(t.n)`",
        ),
    ],
)
def test_a_warm_up_behind_a_prompt_finds_its_position(program: str, said: str, tmp_path: Path) -> None:
    # GIVEN a prompt that moves the position ahead of a warm-up, or leaves it
    file = tmp_path / "program.py"
    file.write_text(program)
    linecache.checkcache(str(file))
    code = next(c for c in compile(program, str(file), "exec").co_consts if isinstance(c, CodeType))
    block = next(n for n in ast.walk(tree_of(str(file)) or ast.Module([], [])) if isinstance(n, ast.With))
    region = Region(code, block.lineno, {}, None, body=block.body)
    # WHEN words fill a tensor ahead of the replay
    # THEN it is filled ahead of the warm-up, too, where the prompt has moved it
    assert found_there_too(WORDS, region, len(program.splitlines()), "step") == said
