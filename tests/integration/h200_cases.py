"""The programs whose outcome on a real H200 is recorded, run on the simulator and compared; writes docs/simulator.md.

``python -m tests.integration.h200_cases`` writes the page.
"""

from __future__ import annotations

import io
import json
import re
import threading
import time
import warnings
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from paramgraph_kit.doctor.known.failure_class import CATEGORIES
from paramgraph_kit.driver.select import device, twin
from paramgraph_kit.driver.sim.libraries import forget
from tests.integration import sequences, single_operations
from tests.integration.own_cases import OWN, UNKNOWABLE, recorded

PAGE = Path(__file__).parents[2] / "docs" / "simulator.md"
CASES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "h200_capture_cases.json").read_text()
)["cases"]

# Where the simulator cannot know, or torch gives a device in Python no way to do it.
LEFT_OUT = {
    "self.relaxed.cudaMalloc": "the program calls the CUDA runtime itself, past torch",
}

# A case's category is that of the first of these that its name begins with; the rest are syncs.
BEGINS = {
    "autograd and optimizers": ("opt.", "ag.", "clip", "scaler.", "ckpt"),
    "streams": ("strm.", "new_stream"),
    "threads": ("thr.", "self."),
    "lazy initialisation": ("cold.",),
    "RNG": ("gen.", "get_rng", "set_rng", "dropout", "multinomial"),
    "API misuse": ("api.", "mgc."),
    "silent": ("sil.",),
    "memory": ("pin_big", "bigalloc"),
}
SAME, UNKNOWN, DIFFERS = "same", "declared unknown", "differs"


def on_simulator(text: str) -> str:
    """The program for the simulated device, or the message as it would name that."""
    return text.replace("'cuda'", "'sim'").replace(".cuda()", ".to('sim')").replace("cuda:0", "sim:0")


def run_case(case: dict[str, Any], cuda: Any, names: dict[str, Any]) -> str:
    """Run a case as it was run on the H200; returns the phase in which it is, in the words of the data."""
    if case.get("program") is not None:
        exec(on_simulator(case["program"]), names)
        return "ran"
    if not case["warmups"]:
        forget()  # it had a process of its own
    graph = names["g"] = cuda.CUDAGraph()
    exec(on_simulator(case["setup"]), names)
    body = compile(on_simulator(case["body"]), "body", "exec")
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(case["warmups"]):
            exec(body, names)
    cuda.current_stream().wait_stream(side)
    names["phase"] = "fails in capture"
    with cuda.graph(graph, **case["capture_kwargs"]):
        exec(body, names)
    names["phase"] = "fails after capture"
    graph.replay()
    cuda.synchronize()
    exec(on_simulator(case["post"]), names)
    return "captured and replayed"


def without_numbers(text: str) -> str:
    """Text without random values: those with two digits or more behind the point."""
    return re.sub(r"\s*-?\d+\.\d\d+", "#", text).strip()


def seen_and_recorded(case: dict[str, Any], cuda: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a case does on the simulator and what it did on an H200: chain of errors, outcome, output."""
    expected = case["h200"]
    torch.manual_seed(0)
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "C": cuda, "threading": threading, "io": io}
    names |= {"time": time, "phase": "fails"}
    printed = io.StringIO()
    raised: BaseException | None = None
    with redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outcome = run_case(case, cuda, names)
        except Exception as error:
            raised = error
            outcome = names["phase"]
    chain = []
    while raised is not None:
        chain.append((type(raised).__name__, str(raised).splitlines()[0]))
        raised = raised.__context__
    seen = {"chain": chain, "outcome": outcome, "printed": without_numbers(printed.getvalue())}
    recorded = {
        "chain": [(e["type"], on_simulator(e["message"]).splitlines()[0]) for e in expected["exceptions"]],
        "outcome": expected["outcome"],
        "printed": without_numbers(on_simulator(expected["printed"])),
    }
    return seen, recorded


def category(name: str) -> str:
    """The catalogue's category of a case."""
    return next((each for each, begins in BEGINS.items() if name.startswith(begins)), "sync")


def verdict(name: str, cuda: Any) -> str:
    """SAME, UNKNOWN or DIFFERS."""
    return UNKNOWN if name in LEFT_OUT else outcome_of(CASES[name], cuda)


def outcome_of(case: dict[str, Any], cuda: Any) -> str:
    """SAME or DIFFERS."""
    try:
        seen, then = seen_and_recorded(case, cuda)
    finally:
        cuda.recover()
    return SAME if seen == then else DIFFERS


def single_outcome(name: str) -> str:
    """SAME or UNKNOWN, of a program of one operation: a test of its own holds each that is compared to the same."""
    declared = (single_operations.LEFT_OUT, single_operations.OTHERWISE, sequences.NOT_COMPARED)
    return UNKNOWN if any(name in each for each in declared) else SAME


def page(cuda: Any) -> str:
    """The page about the simulator, from running every case."""
    found = Counter((category(name), verdict(name, cuda)) for name in sorted(CASES))
    rows = [each for each in CATEGORIES if any((each, v) in found for v in (SAME, UNKNOWN, DIFFERS))]
    columns = (SAME, UNKNOWN, DIFFERS)
    table = [f"| {' | '.join(('category', 'cases', *columns))} |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        numbers = [found[row, column] for column in columns]
        table.append(f"| {row} | {sum(numbers)} | {' | '.join(map(str, numbers))} |")
    totals = [sum(found[row, column] for row in rows) for column in columns]
    table.append(f"| **all** | **{sum(totals)}** | {' | '.join(f'**{n}**' for n in totals)} |")
    ours = Counter(outcome_of(case, cuda) for case in recorded().values())
    ours[UNKNOWN] = len(OWN) - sum(ours.values())
    own = f"| our own programs | {len(OWN)} | {' | '.join(str(ours[column]) for column in columns)} |"
    rows = []
    for what, cases in (
        ("one operation each", single_operations.OPERATIONS),
        ("idioms of captures", single_operations.IDIOMS),
        ("programs of captures", single_operations.CAPTURES),
        ("more, on an H100", single_operations.CAPTURES_H100),
        ("errors behind errors, on an H100", single_operations.SEQUENCES),
        ("as users write them", single_operations.USERS),
        ("of one theme each", single_operations.OBSERVED),
        ("blind, of everything", single_operations.BLIND),
    ):
        each = Counter(map(single_outcome, cases))
        rows.append(f"| {what} | {each.total()} | {' | '.join(str(each[column]) for column in columns)} |")
    unknown = [f"| `{name}` | {category(name)} | {LEFT_OUT[name]} |" for name in sorted(LEFT_OUT)]
    unknown += [f"| `{name}` | our own | {why} |" for name, why in sorted(UNKNOWABLE.items())]
    left_out = sorted((single_operations.LEFT_OUT | single_operations.OTHERWISE).items())
    unknown += [f"| `{name}` | one operation each | {why} |" for name, why in left_out]
    for name, why in sorted(sequences.NOT_COMPARED.items()):
        kinds = {
            "u": "as users write them",
            "c": "of one theme each",
            "v": "blind, of everything",
            "w": "blind, of everything",
        }
        kind = kinds.get(name.partition(".")[0], "errors behind errors")
        unknown.append(f"| `{name}` | {kind} | {why} |")
    return TEXT.format(
        table="\n".join(table),
        own="\n".join([*table[:2], own, *rows]),
        unknown="\n".join(["| case | category | why |", "|---|---|---|", *unknown]),
    )


TEXT = """\
# The simulator

On a machine without a GPU everything here runs on a simulated device: captures execute nothing, replays run what was
captured on the addresses of then, and what CUDA forbids fails with CUDA's own words. Nothing that it shows is a
measurement of a GPU: times in particular are not simulated.

## Compared with an H200

The file `tests/data/h200_capture_cases.json` holds what one NVIDIA H200 (driver 580.159.04, torch 2.11.0+cu130) did
with small programs. The same programs run on the simulator. *Same* means: the same chain of exceptions, of the same
types and with the same first lines, in the same phase; or success with the same output. Numbers with two digits or more
behind the point are not compared: they are random in these programs. *Declared unknown* means that the simulator does
not claim to know.

{table}

What those do not cover is in programs of our own, recorded on the same H200 by `scripts/record_cases.py` in the file
`tests/data/h200_own_cases.json`, and in programs of one operation or idiom each, in
`tests/data/h200_single_operations.json`, `tests/data/h200_idioms.json` and `tests/data/h200_captures.json`; one NVIDIA
H100 80GB HBM3, of the same driver and torch, did what is in `tests/data/h100_captures.json`, and one what is in
`tests/data/h100_sequences.json`, whose programs go on after an error and print what each of their steps raised; an
H200 did what is in `tests/data/h200_user_programs.json`, which are 5 to 25 lines each, as users write them, what is in
`tests/data/h200_observed.json`, each of which looks at many operations or interfaces of one theme, and what is in
`tests/data/h200_blind_captures.json`, half as users write them and half at the edges, of which autocast is a part:

{own}

## Declared unknown

{unknown}

The same holds for the classes of `python -m paramgraph_kit diagnose --list` that name a reason why the simulator cannot
know them; all others are run on it, the failing program and the working one.

## Known to differ

All of these are mended after they were recorded. On first sight, of programs of that kind that it had not seen, the
simulator did the same as the H200, first lines of errors included, in 570 of 626, then in 151 of 219 that were written
to find what differs, in 899 of 1015 more (26 say that they are not simulated), in 193 of 223 (13 say so), in 288 of 301
(7 say so, 6 differed), in 93 of 98, and then in 705 of 755 of operators and interfaces that those before had not
touched (17 say so, 33 differed), 118 of 130 of errors and of what those had shown, and 216 of 217 of everything once
more (`tests/data/h200_more_cases.json`; the one is a wrong call that torch 2.13 refuses in other words than 2.11), and
347 of 360 of `tests/data/h200_captures.json` (7 say so, 6 differed), and the same as an H100 in 519 of 538 of
`tests/data/h100_captures.json` (11 say so, 8 differed), and in 484 of 541 of `tests/data/h100_sequences.json` (12 say
so, 45 differed; six are not kept: two ended torch 2.11's process, four asked for a module that only the recording
lacked), and as an H200 in 245 of 253 of `tests/data/h200_user_programs.json` (6 say so, 2 differed; one of those
divides by what is left of sums that are zero), in 119 of the first 136 of `tests/data/h200_observed.json` (2 say so, 15
differed: four in what has no deterministic implementation, two in CTC loss in a capture, two in a leaf whose backward
had failed, one each in other things) and in 40 of its other 56 (6 say so, 10 differed; one more, in which torch 2.11's
process ended, is not kept), and in 255 of 267 of `tests/data/h200_blind_captures.json` (2 say so, 10 differed: two in
autocast, two in memory of a probe, two in signs of zeros, one each in other things; its 156 others begin with `w.`);
of those written later, with torch 2.13, in 79 of 81, 379 of 392 (3 say so, 10 differed), 280 of 287 (1 says so, 6
differed), 148 of 149, 251 of 261 (2 say so, 2 are refused by name, 6 differed: two in texts, one each in `is_cuda`, in
padding of nested tensors, in `record_stream` of a host tensor, and in what a second backward leaves of a capture), 74
of the next 76 (2 say so, none differed), and, of `tests/data/h200_blind_sequels.json`, in 137 of 144, in 115 of 138
that were written to find what differs (ten of the 23 in what is before the first use of the device, six in which of
two errors comes first, five where a text is cut), in 69 of 70 which are as users write them (the one asks whether a
stream is done), in all of the next 90 as users write them, and in 64 of 70 beside them that were written to find what
differs (one of the six compiles a kernel for 20 s on the card), in all of the next 90 as users write them, and in 57
of 70 beside them (4 say so, 9 differed: three in data of the host that a tensor is given, one each in an event's
flags, a pool of zeros, numbers beyond a type, an integer convolution, an address used again, a rounding; 16 of these
160 are not kept, as they say so, or print names of the device or of a release), and, of
`tests/data/h200_blind_later.json`, in 88 of the last 90 as users write them (the two print words of Python 3.12, here
it was 3.11), and in 50 of 70 beside them (1 says so, 7 print names of the device or words of a release, 12 differed:
three in types that few kernels take, two in streams, one each in a backward on the stream of an earlier result, a
second backward of a maximum, data of an inference tensor, a number of the host, a size below zero, the order of NaN,
and a name that no graph has; eight are mended wholly, four still differ in some answers, and 14 of these 160 are not
kept), in 89 of the next 90 as users write them (the one is a call that torch 2.11 alone refuses), and in 32 of 70
beside them, which ask up to 170 things each (38 differed: five in releases of torch or Python alone, seven in words or
in which of two errors comes first, 26 in more, of which 16 are mended wholly; of the 38 and the one 19 are not kept),
in 88 of the next 90 as users write them (one goes backward from a leaf itself, one prints names of the device), and in
56 of 70 beside them (14 differed: three in what is rounded to halves, three in releases of torch or names of modules
alone, four in words or in which of two errors comes first, one each in an address used again, what `out=` resizes under
its operand, strides of a batch norm, and what cuSOLVER tells late; six of the 16 are mended wholly, 10 not kept), and
in 89 of the next 90 as users write them (one prints the name of a type), and in 35 of 70 beside them (35 differed: six
in names of types and of kernels, six in releases of torch or NumPy alone, four in strides, three in matrices, of which
one ended the process here and not on the H200, one ended torch 2.11's process, one is a matter of time, 14 in other
things; 19 of the 36 are mended wholly, 18 of the 160 not kept: names of types in `x[i] = "a"` and in `expand` stay the
sim's), and in 89 of the next 90 as users write them (one prints words of a release), and in 34 of 70 beside them (36
differed: nine in releases of torch or NumPy alone, three in names of operations, three in what threads or time decide,
two go on behind an assertion of the device, two ended torch 2.11's process, two say so, 15 in other things; nine of the
36 are mended wholly, four but for the rest of these, 28 of the 160 not kept), and in all of the next 90 as users write
them, and in 42 of 70 beside them (28 differed: five in releases of torch alone, two in these and in names of the
device, two in such names alone, three ended torch 2.11's process, one is a matter of time, two say so, 13 in other
things, of which 12 are mended wholly; 16 of the 160 not kept), and in 82 of the next 83 as users write them (the one
prints an address), and in 35 of 40 beside them (five differed: one each in words of a release, names that only the
simulator's graphs have, the sign of a zero, what is behind an assertion of the device, and an event that a capture
refuses to record, which is mended; five of the 123 not kept), and in 39 of the next 40 as users write them (the one has
a race of its streams, which the doctor tells), and in 31 of 40 beside them (nine differed: four in words and types of
a release, one each in what multiplies bools, in a warning of casts, in a wait of a copy, in a mask that lies otherwise
than its kernel takes, and in a step of a generator; eleven of the 80 not kept).
Of all those these still differ, beside names of the device, wordings, and warnings, which are not compared:

- `tensor.is_cuda` and `torch.cuda.is_available()`, which are False here;
- what is a matter of time: pinned memory that another thread asks for while a capture begins, whether one thread waits
  for the device before another begins its capture, and whether a stream with a long kernel is done: here it is at once;
- what dropout takes from `scaled_dot_product_attention`, and `torch.poisson` of large means (other random numbers are a
  GPU's, compared up to 300,000 numbers);
- whether a stream of `torch.accelerator.current_stream()` equals one of `torch.cuda`: no on a GPU, yes here;
- what more than 30 halves in one row round in `cumsum`, number by number on a GPU;
- a stream that `torch.Stream` makes is one of `torch.cuda` here, with the names of those (`cuda_stream`, `priority`,
  `is_capturing`), and none on a GPU;
- recurrent layers in float32, whose products cuDNN rounds to fewer bits, as TF32 does, and which are computed here with
  all of them; softmax along the ragged dimension of jagged tensors in a capture, which is refused here, and `logsumexp`
  of complex halves, which is, too;
- what LU factors, and all that is made of them, are of a matrix that has NaN: of two rows a GPU's have numbers there,
  and singular values of such a one may, too, where all is NaN here; the sign of NaN as bfloat16;
- what cuBLAS takes of the allocator's memory for itself, which is nothing here, and which call of cuBLAS hears of one
  that has failed in a capture;
- what a `TorchDispatchMode` sees of `x[...] = 5.0`: other operations of the same effect, which take memory for the
  number here, and may take what a replay still reads;
- `rms_norm`, which is made of several operations here (so its node and what a `TorchDispatchMode` sees are named),
  `torch._efficientzerotensor`, which has memory, and `untyped_storage().resizable()`, which is False;
- a quotient by a number of the host, which is a product with the reciprocal on a GPU: its last bit, and complex numbers
  divided by zero, which are infinite here and NaN there;
- the sign of a zero that `relu`, `maximum` and `fmax` give of -0.0: it has none on a GPU, and may have one here;
- `nodes`, `gone`, `touched`, `pooled` and `kept` of a graph, which are the simulator's own;
- a product of bools that `scatter_reduce` takes, which no GPU kernel has; an attention mask whose last dimension is
  not contiguous, which its kernels refuse; and how far a generator has moved on behind some kernels;
- an external event with timing that is no more when its graph is replayed, which is an unknown error on a GPU;
- which memory a graph of a shared pool uses again that an earlier one has given back, where a kernel takes some for
  itself while it runs (as a GPU's sum of many numbers may): kernels take none here, and another value is written over;
- an index or a probability out of range: an eager kernel says at once what the CPU's does, where a GPU fails with a
  device-side assert at the next synchronization, and is of no use from then on, which is said; replays fail with that
  here, too, and with an illegal memory access where what they read is no memory any more (freed, or of a storage that
  was emptied): the device goes on here, and a GPU answers everything with that error from then on;
- when Python collects garbage: a graph that dies in a collection spoils a capture on a GPU, and does not here, because
  nobody's program decides when that is; a `gc.collect()` inside a capture is no other;
- a new shape of a convolution in a capture with `torch.backends.cudnn.benchmark`, after another thread has run it: the
  search for its kernel fails on a GPU, and runs here.

Of 84 more programs, which nobody has kept here, the simulator did the same as an H200 in 66 on first sight, in 47 of
51 of published code with 789 captures, and as an H100 in 24 of 39 with 722 captures that were written to find what
differs (six of the others said that they do not know). What these still show is in sums that cancel, matrices that
are nearly singular and texts of torch's errors that 2.13 has in other words.

The simulator is only as new or old as the torch that it runs on: what torch does in Python is done as that version
does it. Fused Adagrad (2.11 has none for CUDA) and `nn.init.trunc_normal_` (2.13 waits for the device in it, 2.11
does not) differ in 2.13 here, which says so. With torch 2.11 no storage can be given other memory: a tensor that
shares its memory and grows (`resize_`), and `UntypedStorage.resize_`, raise `NotImplementedError`.
`nn.TransformerEncoder` with a padding mask in inference makes nested tensors on a GPU, where padded places of its
result are zeros, and computes them here.

## What it says of that when it runs

Whatever asks for something that only CUDA has (quantized and nested tensors, with torch 2.11 pinned memory from
factories, the rarer operations of sparse ones, and in a capture those that give another number of values, names of
`torch.cuda` that it lacks, calls of the CUDA runtime that fail without a GPU) raises, and `pgk.diagnose` and traces
tell that as *not simulated*: nothing is said of a capture on a GPU, and never that capture is not the reason. What
succeeds here and may not on a GPU is a note of `pgk.diagnose`: calls past torch (`ctypes`, `cffi`, `cuda.bindings`,
`cupy`), and kernels that `torch.backends.cudnn.benchmark` tries at the first call of a shape.

What depends on a GPU's threads, on its rounding or on its memory has one of the possible outcomes here, and that is
said when it runs, and only where the outcome depends on it: by a `NotKnownWarning`, or, where somebody looks, by a
note of `pgk.diagnose` and by a failure `not-known` of a trace. So it is with writes of different numbers to one place
by more than one warp (`x[i] = y`, `scatter`, `index_copy`, unpooling, what overlaps itself; of 32 numbers the first
stays), with the largest and the order of numbers that differ in their last digits, with replays that take memory
which was freed and has served others, or pinned memory that was freed, with memory for a process's 33rd stream while
another one captures, with an index out of range, with what is left of a matrix that has no Cholesky factor, with
numbers beyond 8 bits with a point, and where torch ends the process of a GPU.

`torch.autocast("cuda")`, `GradScaler("cuda")`, `custom_fwd(device_type="cuda")` and the functions that ask or set what
they do mean the simulated device, once it is made and where there is no CUDA. Whatever else names `"cuda"` to torch
raises without CUDA, and `pgk.diagnose` says what to write.

The first call of cuBLAS, cuDNN and cuSOLVER on a thread makes a handle, which a capture forbids: it fails here as it
does on a GPU, so warm up before each capture, as torch asks for. Autograd's thread has handles of its own.

<!-- Written by `python -m tests.integration.h200_cases`; a test compares it with a fresh run. -->
"""


if __name__ == "__main__":
    device()
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(twin()), encoding="utf-8")
    print(PAGE)
