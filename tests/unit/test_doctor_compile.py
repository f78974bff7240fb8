"""Failures of ``torch.compile(mode="reduce-overhead")`` from torch's own texts: class, line and fix."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from torch._inductor import cudagraph_utils

import paramgraph_kit as pgk
from paramgraph_kit.doctor import explain, failure_text
from paramgraph_kit.doctor.explain.reasons import ANY, NO_PROBLEM, each_once, failures_of
from paramgraph_kit.doctor.observe.trees import (
    apart,
    copied,
    failures_said,
    listening,
    options_of,
    original_of,
    uses_trees,
)
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.trace.model import Frame, Reason

USER = "/home/ada/train.py"
STACK = f'   File "{torch.__file__}", line 5, in call\n    f(x)\n   File "{USER}", line 7, in body\n    x.add_(1)\n'
LINE = Frame(USER, 7, "body", "x.add_(1)")


def mutated() -> str:
    """What Inductor says of a function that writes to its first argument."""
    info = cudagraph_utils.PlaceholderInfo("arg0_1", None, [], STACK)
    return cudagraph_utils.get_mutation_stack_trace([info], [0])


SAID = {
    "mutated-input": mutated(),
    "input-storage-mutation": f"skipping cudagraphs due to input storage mutation (1 instances). Found from:\n {STACK}",
    "control-flow": f"skipping cudagraphs due to control flow operator: torch.cond. Found from : \n{STACK}",
    "cpu-op": f"skipping cudagraphs due to skipping cudagraphs due to cpu device (arg1_1). Found from : \n{STACK}",
    "multiple-devices": "skipping cudagraphs due to multiple devices: cuda:0, cuda:1",
    "unsafe-op": f"skipping cudagraphs due to incompatible op (index_put). Found from : \n {STACK}",
    "dynamic-graphs": "skipping cudagraphs due to graph with symbolic shapes inputs and "
    f"config.triton.cudagraph_skip_dynamic_graphs=True. Found from : \n {STACK}",
    "too-many-variants": "skipping cudagraph due to function 0 exceeding max re-recording limit (=128) on cudagraph "
    "node None due to static input data pointer changed.",
    "uncached-allocator": "skipping cudagraphs due to cudagraph capture requires the caching allocator; current "
    "allocator is uncached",
    "inductor-skip": "skipping cudagraphs due to something that nobody has thought of yet",
}


@pytest.mark.parametrize("code", SAID)
def test_a_reason_that_inductor_logs_is_told_at_your_line(code: str) -> None:
    # GIVEN what Inductor logs WHEN it says so through its own function THEN it is heard, with the line that it quotes
    with listening() as said:
        cudagraph_utils.log_cudagraph_skip_and_bump_counter(SAID[code])
        cudagraph_utils.log_cudagraph_skip_and_bump_counter(SAID[code])
    (failure,) = failures_said(said)
    assert failure.code == code
    assert failure.frame == (LINE if "File" in SAID[code] else None)
    assert len(failure_text(failure).splitlines()) <= 12
    # and where it was told to raise instead, the exception says the same
    with inductor_config.patch({"triton.cudagraph_or_error": True}), pytest.raises(RuntimeError) as caught:
        cudagraph_utils.log_cudagraph_skip_and_bump_counter(SAID[code])
    assert explain(caught.value).code == code


def test_words_of_other_logs_are_no_failures() -> None:
    # GIVEN what has nothing to do with graphs WHEN heard THEN nothing is told
    with listening() as said:
        warnings.warn("TensorFloat32 tensor cores are available but not enabled", UserWarning, stacklevel=1)
    assert said
    assert failures_said(said) == []


def overwritten(line: str, file: Path, library: str = "", **options: Any) -> RuntimeError:
    """What trees raise, from torch's own text, where the user's program accesses the output."""
    options = options if "gradient" in torch_words(is_grad_output=True) else {}
    error = RuntimeError(torch_words(**options))
    names: dict[str, Any] = {"access": accessed_from(library, error)}
    file.write_text(line)
    try:
        exec(compile(line, str(file), "exec"), names)
    except RuntimeError as caught:
        return caught
    raise AssertionError


def torch_words(**options: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an import of Inductor's is deprecated
        from torch._inductor.cudagraph_trees import CUDAGraphTreeManager
    try:
        return str(CUDAGraphTreeManager.format_dealloc_msg(STACK, **options))
    except TypeError:  # 2.11 does not tell gradients apart
        return str(CUDAGraphTreeManager.format_dealloc_msg(STACK))


def accessed_from(library: str, error: RuntimeError) -> Any:
    """A function that raises, in a file of torch's if one is named."""
    names: dict[str, Any] = {"error": error}
    file = str(Path(torch.__file__).parent / library) if library else "<string>"
    exec(compile("def access():\n    raise error", file, "exec"), names)
    return names["access"]


@pytest.mark.parametrize(
    ("library", "code"),
    [
        ("_tensor_str.py", "output-overwritten"),
        ("", "output-overwritten"),
        ("autograd/graph.py", "gradient-overwritten"),
        ("_functorch/_aot_autograd/runtime_wrappers.py", "output-overwritten"),
    ],
)
def test_an_overwritten_output_is_told_at_the_line_that_reads_it(library: str, code: str, tmp_path: Path) -> None:
    # GIVEN torch's words for an output that is gone WHEN it is read THEN the line is that
    file = tmp_path / "train.py"
    failure = explain(overwritten("y = 1\naccess()\n", file, library))
    assert failure.code == code
    assert failure.frame == Frame(str(file), 2, "<module>", "access()")
    assert len(failure_text(failure).splitlines()) <= 12


def test_a_gradient_is_told_apart_by_torchs_words_too(tmp_path: Path) -> None:
    # GIVEN a torch that names gradients WHEN one is read anywhere THEN it is told as one
    if "gradient tensor" not in torch_words(is_grad_output=True):
        pytest.skip("this torch has one text for both")
    failure = explain(overwritten("access()\n", tmp_path / "train.py", is_grad_output=True))
    assert failure.code == "gradient-overwritten"


WARNED = {
    "Unable to hit fast path of CUDAGraphs because of pending, uninvoked backwards. Consider running with "
    "torch.no_grad() or using torch.compiler.cudagraph_mark_step_begin()": "pending-backward",
    "Unable to hit fast path of CUDAGraphs because outputs from a previous step still require backward.": (
        "pending-backward"
    ),
    "CUDAGraph supports dynamic shapes by recording a new graph for each distinct input size. Recording too many "
    "CUDAGraphs may lead to extra overhead. We have observed 9 distinct sizes.": "too-many-variants",
    "Detected 1 tensor(s) in the cudagraph pool not tracked as outputs. All live allocations must be tracked for "
    "correctness.\nDebugging:\n": "pool-leak",
}


@pytest.mark.parametrize(("text", "code"), WARNED.items(), ids=lambda value: value[:24])
def test_warnings_and_checks_of_trees_are_explained(text: str, code: str) -> None:
    # GIVEN what torch 2.11 or 2.13 says WHEN given to diagnose, also as the warning that it is THEN it has a class
    assert pgk.diagnose(RuntimeError(text)).codes == (code,)
    assert pgk.diagnose(UserWarning(text)).codes == (code,)


def test_what_inductor_wrote_is_no_line_of_yours() -> None:
    # GIVEN the file of a compiled graph, in whatever folder WHEN asked THEN it is a library's
    name = "cyo3grb7rhs6vo2ucr7k2h5ayccxqsmuszvrwk6swbz26gyfh6k5.py"
    assert is_library(f"/scratch/cache/yo/{name}")
    assert not is_library(f"/home/ada/{name}")
    assert not is_library("/home/ada/yo/cyo.py")


def test_many_operations_of_one_line_are_one_reason() -> None:
    # GIVEN a line that has become five operations on the CPU and a copy WHEN told THEN it is said twice, not six times
    names = [f"prims.{name}" for name in ("iota", "mul", "add", "mul", "sub")]
    reasons = [Reason("cpu-op", "runs on cpu, not on cuda", LINE, name) for name in names]
    reasons += [Reason("device-copy", "a copy from cpu to cuda", LINE, "prims.device_put"), Reason("not-called", "no")]
    found = failures_of(reasons)
    assert [f.code for f in found] == ["cpu-op", "device-copy"]
    assert [f.message for f in found] == [
        "prims.iota, prims.mul, prims.add and 1 more are in no graph",
        "prims.device_put is in no graph",
    ]


def test_a_copy_is_looked_at_and_not_the_callers_own() -> None:
    # GIVEN a compiled module and arguments WHEN copied THEN nothing is shared
    model = torch.nn.Linear(2, 2)
    compiled = torch.compile(model, mode="reduce-overhead")
    assert original_of(compiled) is model
    assert apart(model) is not model
    x = torch.ones(2, requires_grad=True)
    (y, n), table = copied((x, 3)), copied({"k": [x]})
    assert (y is not x, y.requires_grad, n, table["k"][0] is not x) == (True, True, 3, True)
    # and the copy is compiled as the original is, with every setting that was chosen
    tuned = torch.compile(model, options={"triton.cudagraphs": True, "max_autotune": True})
    assert options_of(compiled) == {"triton.cudagraphs": True}
    assert options_of(tuned) == {"triton.cudagraphs": True, "max_autotune": True}
    assert torch.compile(model, options=options_of(tuned)) is not None
    # and trees are looked for only where they were asked for, and where there is a GPU
    assert uses_trees(compiled) == torch.cuda.is_available()
    assert not uses_trees(torch.compile(model, backend="eager"))


def test_what_inductor_gave_up_for_is_told_once_at_its_line(tmp_path: Path) -> None:
    # GIVEN a place that a rule of ours found, and Inductor's own words for the same, as torch 2.11 has them
    file = tmp_path / "model.py"
    file.write_text("import torch\ny = torch.cond(p, f, g, (x,))\n")
    quoted = (
        f'control flow operator: torch.cond. Found from : \n  File "{file}", line 2, in forward\n    y = torch.cond'
    )
    ours = Reason(
        "control-flow", "a branch on a tensor", Frame(str(file), 2, "forward", "y = torch.cond(p, f, g, (x,))")
    )
    theirs = Reason("inductor-skip", f"Inductor gave up graphs for all of inference 0: {quoted}")
    # WHEN both become failures THEN it is one
    assert [f.code for f in failures_of([ours, theirs])] == ["control-flow", "control-flow"]
    (found,) = each_once(failures_of([ours, theirs]))
    assert found.frame == ours.frame
    # AND what no rule knows is still said
    unknown = Reason("inductor-skip", "Inductor gave up graphs for all of inference 0: a new thing")
    assert [f.code for f in each_once(failures_of([ours, unknown, unknown]))] == ["control-flow", "inductor-skip"]


_REASON = re.compile(r"Reason\(\s*\"([a-z-]+)\"")


def test_every_reason_has_a_cause_and_a_fix() -> None:
    # GIVEN the tables of reasons in the pages of the launcher and of whole steps, and every reason in the source
    root = Path(__file__).parents[2]
    pages = [(root / "docs" / name).read_text(encoding="utf-8") for name in ("launcher.md", "step.md")]
    rows = [line.split("|")[1] for page in pages for line in page.splitlines() if line.startswith("| `")]
    told = {code for row in rows for code in re.findall(r"`([a-z]+-[a-z-]+)`", row)}
    sources = [path.read_text(encoding="utf-8") for path in (root / "paramgraph_kit").rglob("*.py")]
    given = {code for source in sources for code in _REASON.findall(source)}
    assert len(told) > 30
    assert len(given) > 30
    codes = sorted(told | given)
    # WHEN each becomes a failure THEN it is one that the doctor knows, in two lines of fix, or no problem
    for code in codes:
        found = failures_of([Reason(code, "what happened", LINE, "aten.mul")])
        assert code in NO_PROBLEM or found[0].cause != ANY.cause, code
        for failure in found:
            assert [line.split()[0] for line in failure.fix.splitlines()] == ["before", "after"], code
            assert len(failure_text(failure).splitlines()) <= 12, code


def test_what_pip_has_put_into_any_folder_is_no_line_of_yours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a folder with a program, a package that pip has installed there, and one that it has linked
    for name, lines in (
        ("tool", "tool/__init__.py,sha256=1,2\n../bin/tool,,\n"),
        ("mine", "__editable__.mine.pth,,\n"),
    ):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "RECORD").write_text(f"{lines}{info.name}/METADATA,,\n")
    files = {name: str(tmp_path / name) for name in ("tool/__init__.py", "tool/deep/part.py", "train.py", "mine/a.py")}
    # WHEN it is on the path, and only then THEN the package's files are a library's, and all others yours
    assert not is_library(str(tmp_path / "tool" / "before.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [name for name, file in files.items() if is_library(file)] == ["tool/__init__.py", "tool/deep/part.py"]
