"""A part of the sweep over torch's operator database; `python scripts/sweep_operators.py` runs all of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from scripts.sweep_operators import decode, encode, load, main, summary
from tests.sweep import spread
from tests.sweep.checks import DIFFERS, EQUAL, Verdict, is_unordered
from tests.sweep.operators import LISTED, SIMULATED, Finding, Subject, examine, listed, subjects
from tests.sweep.samples import Mover, difference, operators, restrided, samples

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated"),
    pytest.mark.usefixtures("one_thread"),
]

# One of many operators in the order of the database, and those that were wrong once.
EVERY = 120
ONCE_WRONG = (
    *("fft_ifft", "fft_ihfft", "fft_hfft2", "conj", "imag", "linalg_tensorsolve", "native_batch_norm", "index_put"),
    *("as_strided", "as_strided_partial_views", "tensor_split", "vdot", "resize_as_", "nn_functional_embedding_bag"),
)


# Every operator in one of the two modes at each change, whose kernel is the same; `make sweeps` has each in both.
@pytest.mark.parametrize(
    ("mode", "part"),
    [
        pytest.param(mode, part, marks=[pytest.mark.sweep] * ((n + part) % 2))
        for n, mode in enumerate(SIMULATED)
        for part in range(2)
    ],
)
def test_every_operator_is_right_on_the_simulated_device(mode: str, part: int) -> None:
    # GIVEN every second of all operators, for real numbers and complex ones
    every = sorted({s.operator for s in subjects([mode])})
    chosen = [s for s in subjects([mode]) if s.dtype in ("float32", "complex64") and s.operator in every[part::2]]
    assert len({s.operator for s in chosen}) > 300

    # WHEN one sample of each runs, with its own strides and with others
    findings = [examine(subject, 1) for subject in chosen]

    # THEN nothing differs that is not listed
    assert [str(f) for f in findings if f.unexplained] == []
    assert sum(v.word == EQUAL for f in findings for v in f.verdicts) > 750


@pytest.mark.parametrize("mode", ["forward", "backward", "step"])
def test_compiled_operators_compute_what_the_same_code_computes_ungraphed(mode: str) -> None:
    # GIVEN some operators
    everyone = list(subjects([mode]))
    chosen = [s for n, s in enumerate(everyone) if n % EVERY == 0 or s.operator in ONCE_WRONG]

    # WHEN each is compiled and called four times at other addresses
    findings = [examine(subject, 1) for subject in chosen]

    # THEN nothing differs, and graphs were launched
    assert [str(f) for f in findings if f.unexplained] == []
    assert sum(v.graphed > 0 for f in findings for v in f.verdicts) > len(chosen) / 3


def test_products_of_integers_are_refused_as_cuda_refuses_them() -> None:
    # GIVEN a product that CUDA has no kernel for WHEN it is swept THEN the refusal is no finding, and any other is
    refused = examine(Subject("eager", "mm", "int64"), 1)
    assert {verdict.word for verdict in refused.verdicts} == {DIFFERS}
    assert refused.unexplained == []
    other = Verdict(DIFFERS, "device: NotImplementedError: \"mm\" not implemented for 'Float'; host: ")
    assert Finding(refused.subject, (other,), 0.1).unexplained == [other]


def test_what_is_listed_is_an_operator() -> None:
    for names, modes, why in LISTED:
        if "linear_cross_entropy" in names and not hasattr(torch.nn.functional, "linear_cross_entropy"):
            continue  # newer torch has it
        if "flash_attention_for_cpu" in names and torch.__version__ < "2.15":
            continue  # and its database this
        assert any(listed(name, mode) == why for name in operators() for mode in ("eager", "captured")), (names, modes)


@pytest.mark.parametrize("name", ["fft_ihfft", "as_strided_partial_views", "expand", "mT", "linalg_lu_solve"])
def test_a_moved_sample_is_the_same_sample(name: str) -> None:
    # GIVEN samples with lazy bits, partial and overlapping storages
    for sample in samples(operators()[name], torch.float32, 4):
        # WHEN they are moved within the host
        moved = sample.on(torch.device("cpu"))

        # THEN numbers and layouts are the same, at other addresses
        assert difference(moved.tensors(), sample.tensors()) == ""
        assert all(
            a.data_ptr() != b.data_ptr() for a, b in zip(moved.tensors(), sample.tensors(), strict=True) if a.numel()
        )
        assert difference(restrided(sample).tensors(), sample.tensors(), layouts=False) == ""


def test_tensors_that_share_memory_share_it_where_they_are_moved() -> None:
    x = torch.zeros(4)
    mover = Mover(torch.device("cpu"))

    whole, part = mover(x), mover(x[1:])
    part.fill_(1)

    assert whole.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("got", "expected", "told"),
    [
        (torch.zeros(2), torch.zeros(3), "shape torch.Size([2]) instead of torch.Size([3])"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32), "dtype torch.float32 instead of torch.int32"),
        (torch.tensor([0.0, 1.5]), torch.tensor([0.0, 1.0]), "1 of 2 numbers differ, by up to 0.5"),
        (torch.tensor([-0.0]), torch.tensor([0.0]), "1 of 1 numbers differ, by up to 0"),
        (torch.zeros(2, 3), torch.zeros(3, 2).T, "strides (3, 1) instead of (1, 2) of shape (2, 3)"),
        (torch.zeros(1, dtype=torch.complex64).conj(), torch.zeros(1, dtype=torch.complex64), "conjugate and negative"),
        ([torch.zeros(1)], [], "1 results instead of 0"),
        (3, 3.0, "3 instead of 3.0"),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), ""),
    ],
)
def test_a_difference_is_told(got: object, expected: object, told: str) -> None:
    found = difference(got, expected)

    assert found.startswith(told) if told else found == ""


@pytest.mark.sweep  # three processes that import torch, for a script of ours
def test_a_sweep_writes_each_result_goes_on_and_ends_by_itself(tmp_path: Path) -> None:
    # GIVEN a file with the result of one operator and a line that was cut off
    out = tmp_path / "sweep.jsonl"
    known = Finding(Subject("eager", "add", "float32"), (Verdict(EQUAL),), 0.1)
    out.write_text(f"{{}}\n{encode(known)}\n" + encode(known)[:20] + "\n")

    # WHEN a sweep over two operators goes on with it, in a process of its own
    command = [sys.executable, "scripts/sweep_operators.py", "--out", str(out), "--modes", "eager", "--samples", "1"]
    done = subprocess.run(
        [*command, "--only", "add", "empty"], capture_output=True, text=True, check=False, timeout=600
    )

    # THEN only the other types and the other operator are new, and what is listed does not count
    assert done.stdout.splitlines()[-2:] == ["0 unexplained", "0 of 10 not run: call again to go on"]
    assert done.returncode == 0
    assert load(out)[0] == known
    assert sorted({f.subject.operator for f in load(out)[1:]}) == ["add", "empty"]
    assert [json.loads(line)["mode"] for line in out.read_text().splitlines()[3:]] == ["eager"] * 9

    # WHEN it has no time left THEN it ends, and says what is not run
    costs = ["--costs", str(out), "--limit", "5"]
    again = main(["--out", str(out), "--modes", "captured", "--minutes", "0", "--only", "add", *costs])
    assert again == 0
    assert len(load(out)) == 10


def test_an_unexplained_finding_is_counted_and_shown() -> None:
    bad = Finding(Subject("forward", "add", "float32"), (Verdict(DIFFERS, "call 2: 1 of 1 numbers differ"),), 0.1)
    known = Finding(Subject("eager", "empty", "float32"), (Verdict(DIFFERS, "1 of 1 numbers differ"),), 0.1)

    text = summary([bad, known])

    assert text.splitlines() == [
        "eager: 1 operators; samples: 1 listed",
        "forward: 1 operators; samples: 1 differs",
        "forward add float32: differs: call 2: 1 of 1 numbers differ",
        "1 unexplained",
    ]
    assert decode(encode(bad)) == bad


def test_what_torch_calls_unordered_is_compared_by_how_far_it_is() -> None:
    # GIVEN an operator that torch refuses where bits are to be fixed, one that it does not, and two known by name
    def attempt(run: Callable[[], object]) -> tuple[tuple[object, str], list[torch.Tensor]]:
        try:
            return (run(), ""), []
        except RuntimeError as error:
            return (None, str(error)), []

    x, index = torch.zeros(4), torch.tensor([0, 0])
    # WHEN asked THEN its word counts
    assert is_unordered("put", lambda: attempt(lambda: x.put_(index, torch.ones(2))))
    assert not is_unordered("add", lambda: attempt(lambda: x + 1))
    assert is_unordered("nn_functional_conv_transpose3d", lambda: attempt(lambda: x + 1))
    assert is_unordered("nn_functional_upsample_bilinear", lambda: attempt(lambda: x + 1))
    assert not is_unordered("nn_functional_relu", lambda: attempt(lambda: x + 1))
    # AND its switch is as it was
    assert not torch.are_deterministic_algorithms_enabled()


def test_how_many_kinds_of_bits_one_operator_gives_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN an operator WHEN it is run some times at other addresses
    spread.main(["add", "--runs", "3"])
    said = capsys.readouterr().out
    # THEN it has one kind, in each way of running it
    assert said.splitlines()[1] == "  eager, numbers 0: 1 kinds of 3 (3)"
    assert "paramgraph, numbers 1: 1 kinds of 3 (3)" in said
    # AND bits that are others are another kind
    drawn, sample = iter(range(3)), samples(operators()["add"], torch.float32, 1)[0]
    kinds = spread.spread(lambda sample: sample.input + next(drawn), sample, 3)
    assert sorted(kinds.values()) == [1, 1, 1]
