"""Pinned memory of a function with arguments and a graph of its own: read, or filled, while a copy is under way."""

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
SERVER = """
class Server:
    def __init__(self):
        self.x, self.w = torch.zeros(4, 6, device=device), torch.randn(6, 3, device=device)
        self.staged, self.host = torch.zeros(4, 6).pin_memory(), torch.zeros(4, 3).pin_memory()
        self.x @ self.w
        self.done = {}
        self.graph = cuda.CUDAGraph()
        with cuda.graph(self.graph):
            self.y = self.x @ self.w
    def infer(self, batch):
        self.staged.copy_(batch)
        self.x.copy_(self.staged, non_blocking=True)
        self.graph.replay()
        self.host.copy_(self.y, non_blocking=True)
        WAITS
        return self.host
server = Server()
def serve(requests):
    answers = []
    for request in requests:
        out = server.infer(request)
        READS
    return answers
args = ([torch.ones(4, 6), torch.zeros(4, 6)],)
"""
READ, STAGED = "answers.append(out.argmax(-1).tolist())", "self.staged.copy_(batch)"


def told(waits: str, reads: str, function: str, tmp_path: Path) -> list[tuple[str, str, str]]:
    """What is told of a server, or of one of its calls."""
    names = load(PRELUDE + SERVER.replace("WAITS", waits).replace("READS", reads), tmp_path / "program.py")
    call = names["server"].infer if function == "infer" else names["serve"]
    found = pgk.diagnose(call, *(names["args"][0][:1] if function == "infer" else names["args"])).failures
    return [(f.code, f.frame.text if f.frame else "", f.fix.partition("after   ")[2]) for f in found]


def test_a_host_buffer_that_is_read_ahead_of_its_copy_is_told_where_nothing_waits(tmp_path: Path) -> None:
    # GIVEN a loop that reads each answer in pinned memory, to which nobody has waited for the copy WHEN diagnosed
    found = told("pass", READ, "serve", tmp_path)
    # THEN the line that reads is told, and the one of the next round that fills what is copied from
    words = "ahead of this line: cuda.current_stream().synchronize()"
    assert ("work-elsewhere", READ, words) in found
    assert {line for _, line, _ in found} <= {READ, "self.staged.copy_(batch)"}
    assert {code for code, _, _ in found} == {"work-elsewhere"}


@pytest.mark.parametrize("function", ["serve", "infer"])
def test_where_somebody_waits_nothing_is_told(function: str, tmp_path: Path) -> None:
    # GIVEN the same with a wait in the call, or around it WHEN THEN nothing is told, also of the call alone
    assert told("cuda.current_stream().synchronize()", READ, function, tmp_path) == []
    assert told("pass", f"cuda.synchronize()\n        {READ}", function, tmp_path) == []


ALONE = {
    READ: "ahead of this line: torch.cuda.synchronize()",
    "answers.append(int(server.infer(request).argmax()))": (
        "y = server.infer(request); torch.cuda.synchronize(); answers.append(int(y.argmax()))"
    ),
    "answers += [float(server.infer(each).sum()) for each in requests]": (
        "a loop in its place, with torch.cuda.synchronize() between `server.infer(each)` and what reads its result"
    ),
}


@pytest.mark.parametrize("line", ALONE)
def test_a_loop_that_waits_for_nothing_is_told_where_the_call_alone_is_asked(line: str, tmp_path: Path) -> None:
    # GIVEN a loop that reads each answer at once WHEN the call is asked THEN that line is told, and what it fills
    found = {text: words for _, text, words in told("pass", line, "infer", tmp_path)}
    assert found == {line: ALONE[line], STAGED: "ahead of this line: cuda.current_stream().synchronize()"}
    # GIVEN no loop WHEN THEN it is noted
    names = load(PRELUDE + SERVER.replace("WAITS", "pass").partition("server =")[0], tmp_path / "alone.py")
    notes = pgk.diagnose(names["Server"]().infer, torch.ones(4, 6)).notes
    assert sum("its result is pinned memory that the copy of " in note for note in notes) == 2


KEEPS = {
    "a part": "out = self.host[:2]",
    "in a dictionary": "self.done[len(self.done)] = self.host; out = None",
    "the buffer": "out = self.host",
}


@pytest.mark.parametrize("title", KEEPS)
def test_looks_at_one_host_buffer_that_are_kept_over_calls_are_told(title: str, tmp_path: Path) -> None:
    # GIVEN a server that keeps what it has in one pinned buffer, which its next copy fills WHEN diagnosed
    made = KEEPS[title]
    lines = f"cuda.current_stream().synchronize(); {made}; return out".replace("; ", "\n        ")
    found = told(lines, "answers.append(out)", "serve", tmp_path)
    # THEN the line that keeps it is told
    line = "answers.append(out)" if "done" not in made else made.partition(";")[0]
    assert [(code, text) for code, text, _ in found] == [("output-alias", line)], found
    # GIVEN one that keeps copies WHEN THEN nothing is told
    copied = lines.replace("self.host[:2]", "self.host[:2].clone()").replace("= self.host\n", "= self.host.clone()\n")
    assert told(copied, "answers.append(out)", "serve", tmp_path) == []


LOOKS = {
    "copied": "answers.append(out.numpy().copy())",
    "an array of it": "answers.append(np.asarray(out) * 2)",
    "a number of it": "answers.append(float(out.numpy().sum()))",
    "a row of a look at it": "answers.append(out.numpy()[0].argmax())",
}


@pytest.mark.parametrize("title", LOOKS)
def test_what_numpy_reads_of_a_host_buffer_ahead_of_its_copy_is_told(title: str, tmp_path: Path) -> None:
    # GIVEN a loop that reads each answer in pinned memory through numpy WHEN nobody has waited THEN its line is told
    found = told("pass", LOOKS[title], "serve", tmp_path)
    assert ("work-elsewhere", LOOKS[title], "ahead of this line: cuda.current_stream().synchronize()") in found
    # WHEN somebody has THEN nothing is
    assert told("cuda.current_stream().synchronize()", LOOKS[title], "serve", tmp_path) == []


def test_a_look_of_numpys_that_lives_until_the_host_has_waited_is_nothing(tmp_path: Path) -> None:
    # GIVEN a loop that takes the look first, and waits ahead of reading it WHEN THEN nothing is told
    reads = "look = out.numpy(); cuda.synchronize(); answers.append(look.copy())"
    assert told("pass", reads, "serve", tmp_path) == []


def test_a_host_buffer_that_numpy_fills_while_it_is_copied_from_is_told(tmp_path: Path) -> None:
    # GIVEN a call that stages what it is given through numpy, behind a copy from there WHEN THEN that line is told
    again = "self.staged.numpy()[:] = 2 + batch.numpy()"
    assert [line for _, line, _ in told(again, "cuda.synchronize()", "infer", tmp_path)] == [again]
    # GIVEN one that only reads there WHEN THEN nothing
    assert told("kept = self.staged.numpy().sum()", "cuda.synchronize()", "infer", tmp_path) == []


def test_a_host_buffer_that_the_next_call_fills_is_noted_where_the_caller_may_wait_for_nothing(tmp_path: Path) -> None:
    # GIVEN a call that gives back a tensor of the device, and begins with what the last copy may still read
    program = SERVER.replace("self.host.copy_(self.y, non_blocking=True)", "WAITS; return self.y + 0")
    program = program.replace("server.infer(request)", "request")  # which nobody calls
    for waits, noted in (("pass", True), ("cuda.current_stream().synchronize()", False)):
        names = load(PRELUDE + program.replace("WAITS", waits, 1), tmp_path / f"program_{noted}.py")
        # WHEN
        found = pgk.diagnose(names["server"].infer, *names["args"][0][:1])
        # THEN
        assert not found.failures
        notes = [n for n in found.notes if "pinned" in n]
        assert ["self.staged.copy_(batch) writes to pinned memory" in n for n in notes] == ([True] if noted else [])


WAIT = ["answers.append(out.cpu())", "print(out.sum())", "assert out.sum() > -1e9", "answers.append(f'{out.sum()}')"]


@pytest.mark.parametrize("reads", ["answers.append(out)", *WAIT])
def test_a_host_buffer_is_told_where_a_loop_around_the_call_waits_for_nothing(reads: str, tmp_path: Path) -> None:
    # GIVEN a loop that waits for nothing, or for what it asks of each answer WHEN the call is asked
    program = SERVER.replace("self.host.copy_(self.y, non_blocking=True)", "WAITS; return self.y + 0")
    names = load(PRELUDE + program.replace("WAITS", "pass", 1).replace("READS", reads), tmp_path / "program.py")
    found = pgk.diagnose(names["server"].infer, *names["args"][0][:1])
    # THEN the line that fills it is told, or none is
    assert [f.frame.text for f in found.failures if f.frame] == ([] if reads in WAIT else [STAGED])
