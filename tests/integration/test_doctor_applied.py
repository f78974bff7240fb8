"""Every class of the catalogue has a fix that is applied: to a program of its own, to one here, or a reason why not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from paramgraph_kit.doctor import catalogue
from paramgraph_kit.doctor.known.program import STEPS
from paramgraph_kit.driver.select import device, twin
from tests.integration.applied import Applied, run, same
from tests.integration.applied_compiled import COMPILED
from tests.integration.applied_operations import OPERATIONS
from tests.integration.applied_others import OTHERS
from tests.integration.applied_steps import STEPWISE
from tests.integration.applied_traced import TRACED

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")

ALL = (*COMPILED, *OPERATIONS, *STEPWISE, *TRACED, *OTHERS)
PROGRAMS = {program.title: program for program in ALL}
_INDUCTOR = "Inductor says it of its own graphs, which it makes on a GPU only; its words: test_doctor_compile.py"
# What nobody can bring about here, or mend: class by class, why.
NOT_APPLIED = {
    "device-assert": "kernels of the simulated device raise IndexError at the line itself, as those of the CPU do",
    "context-lost": "no process of the simulated device dies of a kernel; the fix is to start another one",
    "cold-triton": "Triton compiles for GPUs only",
    "input-storage-mutation": _INDUCTOR,
    "multiple-devices": "there is one simulated device, and Inductor's graphs are made on a GPU only",
    "uncached-allocator": _INDUCTOR,
    "inductor-skip": _INDUCTOR,
    "no-graph": "stands for reasons without a class, of which there are none",
    "capture-under-way": "passes: a report says called-elsewhere, and a call outside of the capture makes graphs",
    "stale-address": "a fault of ours, if ever: no operation of the user's brings it about",
    "no-metadata": "Dynamo refuses an operation without register_fake; only an FX graph made by hand has no metadata",
    "phantom-exhausted": "takes a call that addresses more than the simulated device has",
    "host-address": "takes a machine whose kernels read the host's memory: test_coherent_sim.py applies the fix",
}


@pytest.fixture(autouse=True)
def cuda() -> Iterator[Any]:
    device()
    yield twin()
    twin().recover()
    torch._dynamo.reset()


def by_steps(got: list[Any], expected: list[Any], program: Applied) -> list[int]:
    """The steps whose numbers are not eager's."""
    assert len(got) == len(expected) == STEPS
    pairs = enumerate(zip(got, expected, strict=True))
    return [n for n, (a, b) in pairs if not same(a, b, exact=program.exact)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_the_class_is_told_of_is_graphed_with_its_fix(name: str, tmp_path: Path) -> None:
    # GIVEN a program, and what eager makes of it with ten inputs
    program = PROGRAMS[name]
    eager = run(program, "after" if program.eager_fixed else "before", tmp_path / "eager.py", eager=True).results
    assert len({str(result) for result in eager}) > 1, "steps that repeat one another show nothing"
    # WHEN it runs as it is THEN its class is told, and where it has results they are eager's
    before = run(program, "before", tmp_path / "before.py", eager=False)
    assert program.code in before.codes
    if before.results and not program.eager_fixed:
        assert by_steps(before.results, eager, program) == []
    twin().recover()
    # WHEN the fix is applied THEN the class is told no more, and nothing else that the fix does not leave
    after = run(program, "after", tmp_path / "after.py", eager=False)
    assert program.code not in after.codes
    assert set(after.codes) == set(program.leaves)
    # AND it is launched, with eager's numbers at ten inputs
    assert (after.launches > 0) is program.graphed
    assert by_steps(after.results, eager, program) == []


def test_every_class_has_a_program_or_a_reason() -> None:
    # GIVEN the catalogue WHEN its classes are looked up THEN each is mended by a test, or it is said why not, once
    with_programs = {each.id for each in catalogue() if each.programs}
    here = {program.code for program in PROGRAMS.values()}
    known = {each.id for each in catalogue()}
    assert known - with_programs - here - NOT_APPLIED.keys() == set(), "a class without an applied fix"
    assert (with_programs | here) & NOT_APPLIED.keys() == set(), "a reason that has become wrong"
    assert (here | NOT_APPLIED.keys()) - known == set(), "no class of the catalogue"
    assert len(PROGRAMS) == len(ALL), "two programs of one name"
    # AND reasons are one line each
    assert all(0 < len(reason) < 110 and "\n" not in reason for reason in NOT_APPLIED.values())
