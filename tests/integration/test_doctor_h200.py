"""Of the failures that an H200 recorded, the share that the doctor gets right: class, line and fix. All of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.driver.select import device, twin
from paramgraph_kit.driver.sim.libraries import forget
from paramgraph_kit.trace.wording import failure_text
from tests.integration.h200_cases import CASES, LEFT_OUT, on_simulator, seen_and_recorded
from tests.integration.h200_doctor import EXPECTED, diagnosis, failure_of, function_of
from tests.integration.own_cases import OWN, recorded

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs the same cases on a GPU")


def test_every_recorded_failure_has_its_answer() -> None:
    # GIVEN the record THEN what failed on the H200 is what is expected here, case by case
    failing = {name for name, case in CASES.items() if case["h200"]["outcome"].startswith("fails")}
    assert set(EXPECTED) == failing
    assert len(failing) == 49


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_class_line_and_fix_of_a_recorded_failure_are_right(name: str, tmp_path: Path) -> None:
    # GIVEN a program that failed on an H200 WHEN its exception is explained
    device()
    code, begins = EXPECTED[name]
    file = tmp_path / "program.py"
    if code == "cold-library":
        forget()
    failure = diagnosis(name, twin(), file)
    # THEN class and line are right, and there is a fix in two lines, in few lines altogether
    assert failure is not None
    assert failure.code == code, failure_text(failure)
    assert failure.frame is not None
    assert failure.frame.file == str(file)
    assert failure.frame.text.startswith(begins)
    assert failure.cause
    assert [line.split()[0] for line in failure.fix.splitlines()] == ["before", "after"] or code == "unknown"
    assert len(failure_text(failure).splitlines()) <= 12


# What a function by itself does not tell: what was done before it, or is done after a capture.
NOT_IN_THE_FUNCTION = {
    "ag.tape_default": "a loss of an earlier call is alive somewhere",
    "ag.warm_default_keep": "a loss of an earlier call is alive somewhere",
    "strm.captured_event_query_after": "the event is asked after the capture",
    "strm.timing_event": "the events are asked after the capture",
    "cold.mm": "the function's first call warms the library up",
    "cold.conv": "the function's first call warms the library up",
    "gen.reg": "it was registered before",
    "self.relaxed.event_query": "only the mode of the capture makes it legal",
    "thr.relaxed.query": "only the mode of the capture makes it legal",
    "thr.thread_local.alloc": "only the mode of the capture makes it legal",
}
BODIES = sorted(k for k, c in CASES.items() if "program" not in c and k not in (*LEFT_OUT, *NOT_IN_THE_FUNCTION))


@pytest.mark.parametrize("name", BODIES)
def test_the_function_alone_tells_the_same(name: str, tmp_path: Path) -> None:
    # GIVEN the body of a recorded program as a function
    device()
    file = tmp_path / "body.py"
    names = function_of(name, twin(), file)
    # WHEN it is diagnosed, without any capture
    try:
        loud = [f for f in pgk.diagnose(names["f"]) if not BY_ID[f.code].silent]
    finally:
        twin().recover()
    # THEN what an H200 refused is found, with class and line, and what it captured is not accused
    if name not in EXPECTED:
        assert loud == []
        return
    code, begins = EXPECTED[name]
    begins = "with C.stream(s): y=x*2" if name == "strm.unjoined" else begins  # better than torch, which knows no line
    assert code in [f.code for f in loud if f.frame and f.frame.text.startswith(begins)]


@pytest.mark.parametrize("name", sorted(set(CASES) - set(EXPECTED)))
def test_what_succeeded_is_no_failure(name: str, tmp_path: Path) -> None:
    # GIVEN a program that succeeded on an H200 WHEN it runs THEN there is nothing to explain
    device()
    if (failure := diagnosis(name, twin(), tmp_path / "program.py")) is not None:
        pytest.fail(failure_text(failure))


@pytest.mark.parametrize("name", sorted(OWN))
def test_class_and_line_of_our_own_programs_are_right(name: str, tmp_path: Path) -> None:
    # GIVEN a program of ours WHEN it runs THEN it fails at the line and for the reason that it was written for, or not
    device()
    text, expected = OWN[name]
    file = tmp_path / "program.py"
    failure = failure_of(on_simulator(text), twin(), file)
    if expected is None:
        assert failure is None, failure and failure_text(failure)
        return
    assert failure is not None
    assert failure.frame is not None
    assert (failure.code, failure.frame.file) == (expected[0], str(file)), failure_text(failure)
    assert failure.frame.text.startswith(on_simulator(expected[1]))
    assert len(failure_text(failure).splitlines()) <= 12


@pytest.mark.parametrize("name", sorted(recorded()))
def test_our_own_programs_do_what_they_did_on_an_h200(name: str) -> None:
    # GIVEN a program of ours that an H200 has run WHEN it runs here THEN errors, outcome and output are the same
    device()
    try:
        seen, then = seen_and_recorded(recorded()[name], twin())
    finally:
        twin().recover()
    assert seen == then
    assert recorded()[name]["program"] == OWN[name][0]


def test_what_is_recorded_without_a_gpu_says_so(tmp_path: Path) -> None:
    # GIVEN no GPU WHEN one of our programs is recorded THEN the file says that it is simulated, and no H200 is named
    file = tmp_path / "own.json"
    command = [sys.executable, "scripts/record_cases.py", str(file), "--only", "strm.aside", "api.end.twice"]
    subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[2])
    found = json.loads(file.read_text())
    assert found["about"].startswith("What the CPU SIMULATOR, and NO GPU (simulated: ")
    assert [list(case) for case in found["cases"].values()] == [["program", "simulated"]] * 2
    assert "h200" not in file.read_text().lower()
    # and it is a record: the chain of errors, outermost first
    assert [e["message"].rpartition(": ")[2] for e in found["cases"]["strm.aside"]["simulated"]["exceptions"]] == [
        "operation failed due to a previous error during capture",
        "operation not permitted when stream is capturing",
    ]
