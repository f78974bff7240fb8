"""The sweep over torch's operator database: what is run, and which findings are known to prove nothing."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paramgraph_kit.driver.select import device
from paramgraph_kit.driver.sim.refused import TYPES
from tests.sweep.checks import FAILS, Verdict, check_captured, check_compiled, check_eager, check_step
from tests.sweep.samples import DTYPES, operators, pairs, restrided, spread

MODES = ("eager", "captured", "forward", "backward", "step")
SIMULATED = MODES[:2]  # the modes that ask whether the simulator is right

# What no comparison can hold for: (operators, modes, why).
_RANDOM = (
    "bernoulli|cauchy|exponential|geometric|log_normal|multinomial|normal.*|(new_)?rand(n|int)?(_like)?|uniform|"
    "nn_functional_(alpha_|feature_alpha_)?dropout.*|nn_functional_(fractional_max_pool|rrelu).*|svd_lowrank|pca_lowrank|"
    "nn_functional_(scaled_dot_product|multi_head)_attention.*"
)
LISTED = (
    (_RANDOM, "eager", "it draws random numbers, and the device has a generator of its own"),
    (
        "(arg)?sort|topk|kthvalue|(nan)?median",
        "eager",
        "numbers that are equal come in CUDA's order, which is not the CPU's",
    ),
    ("(new_)?empty(_like|_permuted|_strided)?|new_empty.*", ".*", "its results are not initialised"),
    (".*sparse.*", ".*", "the simulated device has dense tensors only"),
    (
        "nn_functional_linear_cross_entropy_chunked.*",
        "eager",
        "torch accumulates otherwise on the CPU than on a device",
    ),
    (
        "nn_functional_(pixel_(un)?shuffle|channel_shuffle|pad_(reflect|replicate).*)|(istft|fft_(hfft|irfft)[2n]?)",
        "eager",
        "CUDA's results lie in rows, in whichever order the CPU's do",
    ),
    ("linalg_lstsq.*", "eager|captured", "LAPACK rounds otherwise where its memory lies otherwise"),
    (
        "torch_ops_aten__scaled_dot_product_flash_attention_for_cpu",
        "eager|captured|step",
        "torch's kernel reads beside tensors whose last stride is not 1, on the CPU, too",
    ),
    ("as_strided_partial_views", "captured", "it reads beside its argument, which alone gets other values"),
    ("jiterator.*", ".*", "it is for CUDA only"),
    ("histogram(dd)?", ".*", "it is for the CPU only: the simulated device refuses it as CUDA does"),
)
# CUDA has kernels for fewer types, and the simulated device says so in its words; the CPU computes more.
REFUSED_THERE = re.compile(r"device: NotImplementedError: \"\w+\" not implemented for '(\w+)'; host: $")


def listed(operator: str, mode: str) -> str:
    """Why a finding about an operator proves nothing, or ""."""
    for names, modes, why in LISTED:
        if re.fullmatch(names, operator) and re.fullmatch(modes, mode):
            return why
    return ""


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """One operator in one mode, for one type."""

    mode: str
    operator: str
    dtype: str  # "float32"


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of a subject: one verdict for each sample."""

    subject: Subject
    verdicts: tuple[Verdict, ...]
    seconds: float

    @property
    def unexplained(self) -> list[Verdict]:
        """Verdicts that somebody has to look at."""
        if listed(self.subject.operator, self.subject.mode):
            return []
        return [verdict for verdict in self.verdicts if verdict.bad and not self._is_cudas(verdict)]

    def _is_cudas(self, verdict: Verdict) -> bool:
        """Whether that is the refusal of a type that CUDA's kernel does not take, as torch's database has it."""
        dtype: torch.dtype = getattr(torch, self.subject.dtype)
        found = REFUSED_THERE.search(verdict.why)
        if found is None or found[1] != TYPES.get(dtype):
            return False
        op: Any = operators()[self.subject.operator]
        return dtype not in op.supported_dtypes("cuda")

    def __str__(self) -> str:
        words = ", ".join(f"{v.word}: {v.why}" if v.why else v.word for v in self.verdicts)
        return f"{self.subject.mode} {self.subject.operator} {self.subject.dtype}: {words or 'no samples'}"


def subjects(modes: Sequence[str]) -> Iterator[Subject]:
    """What there is to ask: on the simulated device for every type, compiled for the first one that an operator has."""
    for name, op in operators().items():
        for mode in modes:
            if mode in SIMULATED or mode == "step":
                wanted = [dtype for dtype in DTYPES if dtype in op.dtypes]
            elif mode == "forward" or op.supports_autograd:
                preferred = (torch.float32, torch.complex64, *DTYPES, *sorted(op.dtypes, key=str))
                allowed = [d for d in preferred if d in op.dtypes]
                wanted = allowed[:1]
                # Lazy conjugation exists for complex numbers alone.
                wanted += [torch.complex64] if torch.complex64 in op.dtypes and wanted != [torch.complex64] else []
            else:
                wanted = []
            yield from (Subject(mode, name, str(dtype).removeprefix("torch.")) for dtype in wanted)


def examine(subject: Subject, count: int) -> Finding:
    """Run up to ``count`` samples of a subject."""
    started = time.perf_counter()
    op: Any = operators()[subject.operator]
    dtype: torch.dtype = getattr(torch, subject.dtype)
    verdicts = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = list(pairs(op, dtype, count, gradients=subject.mode == "backward"))
        except Exception as error:  # the database's own samples are not for every type
            found = []
            verdicts.append(Verdict(FAILS, f"no samples: {type(error).__name__}"))
        for pair in found:
            if subject.mode == "eager":
                verdicts += [check_eager(op, sample) for sample in (pair[0], restrided(pair[0]))]
            elif subject.mode == "captured":
                turned = (restrided(pair[0]), restrided(pair[1]))
                verdicts += [check_captured(op, each) for each in (pair, turned)]
            elif subject.mode == "step":
                for laid_out in (lambda x: x, restrided, spread):
                    verdicts.append(check_step(op, (laid_out(pair[0]), laid_out(pair[1]))))
            else:
                verdicts.append(check_compiled(op, pair, backward=subject.mode == "backward"))
    return Finding(subject, tuple(verdicts), round(time.perf_counter() - started, 3))


def ready() -> torch.device:
    """Make the device; autograd has a queue only for devices that exist at a process's first backward."""
    return device()
