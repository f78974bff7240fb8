"""Buffers around a program's own graphs: results that are kept, staging memory of the host, parts by narrow()."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
RUNNER = """
class Runner:
    def __init__(self):
        self.net = nn.Linear(8, 2).to(device)
        self.x, self.out = torch.zeros(4, 8, device=device), torch.zeros(4, 2, device=device)
        self.host = torch.zeros(4, 8).pin_memory()
        with torch.no_grad():
            self.net(self.x)
            cuda.synchronize()
            self.g = cuda.CUDAGraph()
            with cuda.graph(self.g):
                self.out.copy_(self.net(self.x))
    def run(self, x):
        n = len(x)
        self.x[:n].copy_(x)
        self.g.replay()
        return RETURNED
"""


def diagnosed(text: str, tmp_path: Path) -> pgk.Diagnosis:
    """What is found in a program's ``main``."""
    return pgk.diagnose(load(PRELUDE + text, tmp_path / "program.py")["main"])


@pytest.mark.parametrize(("returned", "told"), [("self.out[:n]", 1), ("self.out[:n].clone()", 0)])
def test_parts_of_an_output_buffer_of_before_the_capture_are_told_where_a_list_keeps_them(
    returned: str, told: int, tmp_path: Path
) -> None:
    # GIVEN a graph that writes its results to a buffer which was there before, whose rows a list keeps
    program = f"""{RUNNER.replace("RETURNED", returned)}
def main():
    runner, kept = Runner(), []
    for n in (4, 2, 3):
        kept.append(runner.run(torch.randn(n, 8, device=device)))
    return torch.cat(kept)
"""
    # WHEN
    found = [f for f in diagnosed(program, tmp_path).failures if f.code == "output-alias"]
    # THEN it is told where they are kept, and a copy is none
    assert len(found) == told
    assert all(f.fix.endswith("kept.append(runner.run(torch.randn(n, 8, device=device)).clone())") for f in found)


@pytest.mark.parametrize(
    ("returned", "written"),
    [
        ('{"rows": self.out}', "prev = {k: v.clone() for k, v in now.items()}"),
        ("(self.out, n)", "prev = tuple(v.clone() if torch.is_tensor(v) else v for v in now)"),
        ("[self.out]", "prev = [v.clone() for v in now]"),
    ],
)
def test_a_variable_that_goes_on_having_what_holds_results_is_told_with_a_copy_of_that(
    returned: str, written: str, tmp_path: Path
) -> None:
    # GIVEN results in a dictionary, a tuple or a list, which the next round compares with its own
    part = '"rows"' if returned.startswith("{") else "0"
    program = f"""{RUNNER.replace("RETURNED", returned)}
def main():
    runner, moved = Runner(), []
    prev = None
    for _ in range(3):
        now = runner.run(torch.randn(4, 8, device=device))
        if prev is not None:
            moved.append((now[{part}] - prev[{part}]).abs().sum().item())
        prev = now
    return moved
"""
    # WHEN
    found = diagnosed(program, tmp_path).failures
    # THEN
    assert [(f.code, f.fix) for f in found] == [("output-alias", f"before  prev = now\nafter   {written}")]
    # THEN with that line nothing is left to tell
    assert not diagnosed(program.replace("        prev = now", f"        {written}"), tmp_path).failures


def test_a_part_that_narrow_names_is_a_part_that_a_longer_input_has_filled(tmp_path: Path) -> None:
    # GIVEN a softmax over all rows of a buffer, of which shorter inputs fill some by narrow()
    program = """
def main():
    w, x = torch.randn(8, 2, device=device), torch.zeros(6, 8, device=device)
    def score():
        return (x @ w).softmax(0)
    score()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = score()
    out = []
    for n in (6, 3, 4):
        x.narrow(0, 0, n).copy_(torch.randn(n, 8, device=device))
        g.replay()
        out.append(y.narrow(0, 0, n).clone())
    return out
"""
    # WHEN
    found = diagnosed(program, tmp_path).failures
    # THEN
    assert [f.code for f in found] == ["size-frozen"]
    assert "what is behind x[:n]" in found[0].message


STAGED = """
def main():
    runner, kept = Runner(), []
    runner.host = torch.zeros(4, 8).pin_memory()
    for _ in range(3):
        runner.host.copy_(torch.randn(4, 8))
        runner.x.copy_(runner.host, non_blocking=True)
        runner.g.replay()
        kept.append(runner.out.clone())
    return torch.stack(kept)
"""


@pytest.mark.parametrize(
    ("line", "ahead", "told"),
    [
        ("", "", 1),
        ("        runner.host.copy_(", "        cuda.current_stream().synchronize()\n", 0),
        ("        runner.host.copy_(", "        cuda.synchronize()\n", 0),
        ("        kept.append(", "        runner.out.sum().item()\n", 0),
    ],
)
def test_pinned_memory_is_written_while_its_copy_may_be_under_way(
    line: str, ahead: str, told: int, tmp_path: Path
) -> None:
    # GIVEN a pinned buffer that each round fills and copies, with or without something that waits
    program = RUNNER.replace("RETURNED", "self.out.clone()") + STAGED.replace(line, ahead + line, 1 if line else 0)
    # WHEN
    found = diagnosed(program, tmp_path).failures
    # THEN it is told with the line of the copy, and with what waits, where nothing does
    assert len(found) == told
    for each in found:
        assert each.code == "work-elsewhere"
        assert each.message.startswith("it writes to pinned memory that the copy of line ")
        assert each.fix.endswith("after   ahead of this line: cuda.current_stream().synchronize()")


def test_a_list_of_pinned_memory_is_read_while_the_copy_to_it_may_be_under_way(tmp_path: Path) -> None:
    # GIVEN tokens that are fetched without a wait and made a list
    program = """
def main():
    x = torch.zeros(4, device=device)
    host = torch.zeros(4).pin_memory()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = x * 2
    out = []
    for i in range(3):
        x.fill_(i)
        g.replay()
        host.copy_(y, non_blocking=True)
        out.append(host.tolist())
    return out
"""
    waits = "        cuda.synchronize()\n        out.append("
    # WHEN
    found = diagnosed(program, tmp_path).failures
    # THEN
    assert [f.code for f in found] == ["work-elsewhere"]
    assert found[0].message.startswith("it reads pinned memory that the copy of line ")
    assert not diagnosed(program.replace("        out.append(", waits), tmp_path).failures


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("kept += [runner.run(x) for x in parts]", "kept += [runner.run(x).clone() for x in parts]"),
        ("kept.extend(runner.run(x) for x in parts)", "kept.extend((runner.run(x).clone() for x in parts))"),
    ],
)
def test_each_entry_of_a_comprehension_that_a_list_gets_is_told_with_its_copy(
    line: str, written: str, tmp_path: Path
) -> None:
    # GIVEN a list that gets several results in one line
    program = f"""{RUNNER.replace("RETURNED", "self.out")}
def main():
    runner, kept = Runner(), []
    for _ in range(2):
        parts = torch.randn(2, 4, 8, device=device)
        {line}
    return torch.cat(kept)
"""
    # WHEN
    found = [f for f in diagnosed(program, tmp_path).failures if f.code == "output-alias"]
    # THEN it is the entries that are copied
    assert [f.fix.partition("after   ")[2] for f in found] == [written]
    assert not diagnosed(program.replace(line, written), tmp_path).failures


HOLDERS = """
class Answer:
    def __init__(self):
        self.value = None
    def give(self, value):
        self.value = value
class Made:
    def __init__(self, value):
        self.__dict__["value"] = value
"""


@pytest.mark.parametrize(
    ("lines", "line", "written"),
    [
        (
            "one = Answer(); kept.append(one); one.give(now)",
            "self.value = value",
            "self.value = value.clone()",
        ),
        ("kept.append(Made(now))", "kept.append(Made(now))", "kept.append(copy.deepcopy(Made(now)))"),
    ],
    ids=["one line gives it", "no line does"],
)
def test_a_result_in_an_object_that_a_list_keeps_is_told_with_what_copies_it(
    lines: str, line: str, written: str, tmp_path: Path
) -> None:
    # GIVEN objects of a class of the file's, each with a result, in a list
    program = f"""import copy
{HOLDERS}{RUNNER.replace("RETURNED", "self.out")}
def main():
    runner, kept = Runner(), []
    for _ in range(3):
        now = runner.run(torch.randn(4, 8, device=device))
        {lines}
    return torch.cat([each.value for each in kept])
"""
    # WHEN
    found = [f for f in diagnosed(program, tmp_path).failures if f.code == "output-alias"]
    # THEN the words are no clone() of what has none, and with them nothing is left to tell
    assert [f.fix for f in found] == [f"before  {line}\nafter   {written}"]
    assert not diagnosed(program.replace(line, written), tmp_path).failures


def test_numbers_in_lists_of_a_list_are_told_with_a_key_that_is_one(tmp_path: Path) -> None:
    # GIVEN tables of blocks that a capture goes through, and that are others at a replay
    program = """
class Paged:
    def __init__(self):
        self.kv, self.tables = torch.randn(8, 4, device=device), [[0, 1], [2, 3]]
        self.attend()
        cuda.synchronize()
        self.g = cuda.CUDAGraph()
        with cuda.graph(self.g):
            self.out = self.attend()
    def attend(self):
        rows = []
        for blocks in self.tables:
            rows.append(sum(self.kv[b] for b in blocks))
        return torch.stack(rows)
def main():
    paged, kept = Paged(), []
    for n in range(3):
        paged.tables = [[n, n + 1], [n + 2, n + 3]]
        paged.g.replay()
        kept.append(paged.out.clone())
    return kept
"""
    # WHEN
    found = diagnosed(program, tmp_path).failures
    # THEN
    assert [f.code for f in found] == ["scalar-frozen"]
    assert "`if str(paged.tables) not in paged.graphs:`" in found[0].fix


@pytest.mark.parametrize(
    ("kept", "told"), [("states.append(x)", 1), ("states.append(x.clone())", 0), ("states = [x, x]", 0)]
)
def test_a_static_input_that_a_list_has_several_times_is_told(kept: str, told: int, tmp_path: Path) -> None:
    # GIVEN a state that goes from the result back to the static input, and a list that keeps that input
    program = f"""
def main():
    x, states = torch.ones(4, device=device), []
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        y = x.cos()
    for _ in range(3):
        g.replay()
        x.copy_(y)
        {kept}
    return torch.stack(states)
"""
    # WHEN
    found = diagnosed(program, tmp_path).failures
    # THEN it is told in words of its own, but for a list that has it twice on purpose
    assert [f.code for f in found] == ["output-alias"] * told
    assert all(f.message.startswith("a static input is kept as it is") for f in found)
    assert all(f.fix == f"before  {kept}\nafter   states.append(x.clone())" for f in found)
