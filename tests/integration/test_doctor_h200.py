"""Of the failures that an H200 recorded, the share that the doctor gets right: class, line and fix. All of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.silent_rules import SILENT
from paramgraph_kit.driver.select import device, twin
from paramgraph_kit.trace.wording import failure_text
from tests.integration.h200_cases import CASES, LEFT_OUT
from tests.integration.h200_doctor import EXPECTED, diagnosis, function_of

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
    "self.relaxed.event_query": "only the mode of the capture makes it legal",
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
        loud = [f for f in pgk.diagnose(names["f"]) if f.code not in SILENT]
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
