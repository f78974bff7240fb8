"""Programs of captures, most of one operation or idiom each, and what a card did with them: run and compared.

The files were recorded in batches, each program in a process of its own; ``C`` is torch.cuda.
"""

from __future__ import annotations

import gc
import io
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from contextlib import redirect_stdout
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn
from torch.nn import functional as F

from paramgraph_kit.driver.sim.libraries import forget

_DATA = Path(__file__).parents[1] / "data"


PRELUDES: dict[str, str] = {}  # what each program of a file begins with


def _recorded(name: str) -> dict[str, dict[str, Any]]:
    """The cases of a file, each a whole program."""
    found = json.loads((_DATA / name).read_text(encoding="utf-8"))
    PRELUDES[name] = found["prelude"]
    whole = {name: {**case, "program": found["prelude"] + case["program"]} for name, case in found["cases"].items()}
    for case in whole.values():
        case.setdefault("h200", case.get("h100"))  # what a card did, whichever it was
    return whole


OPERATIONS, IDIOMS = _recorded("h200_single_operations.json"), _recorded("h200_idioms.json")
CAPTURES, CAPTURES_H100 = _recorded("h200_captures.json"), _recorded("h100_captures.json")
SINGLE_H200 = OPERATIONS | IDIOMS | CAPTURES
SINGLE = SINGLE_H200 | CAPTURES_H100
SEQUENCES = _recorded("h100_sequences.json")  # these go on after an error, and print what each step raised
USERS = _recorded("h200_user_programs.json")  # written as users write theirs, most of one feature each
OBSERVED = _recorded("h200_observed.json")  # each looks at many operations or interfaces of one theme
# Half as users write them, half at the edges; autocast first of all.
BLIND = _recorded("h200_blind_captures.json") | _recorded("h200_blind_sequels.json")
BLIND |= _recorded("h200_blind_later.json")
EVERY = SINGLE | SEQUENCES | USERS | OBSERVED | BLIND

# The torch of the recording, 2.11, is another one than the simulator's here, or there is no GPU to name.
OTHER_TORCH = "torch 2.13 does it in another way than the 2.11 of the recording"
OTHERWISE = {
    "kd.init_trunc": OTHER_TORCH,
    "kd.fused_adagrad": OTHER_TORCH,
    "kd.dlpack_dev": "no other library finds a GPU's memory here",
    "a.ag_save_on_cpu_pin": OTHER_TORCH,
    "a.is_capturing_side": OTHER_TORCH,
    "a.mgc_unused": OTHER_TORCH,
    "b.rng_gen_gpu_randperm_cpu": OTHER_TORCH,
    "nn.flex_attention_eager": "torch knows the devices of FlexAttention by name",
    "tool.compile_cudagraphs_backend": "torch has graph trees for CUDA alone",
    "tool.compile_inductor_warm": "Inductor has no kernels for a simulated device",
    "h.ix.setitem_np_scalar": "torch tells the names of types, which are another device's here",
    "h.hr.np_mean": OTHER_TORCH,
    "h.so.sort_stable_desc": OTHER_TORCH,
    "h.fn.vmap_if_error": OTHER_TORCH,
    "h.ne.two_threads_two_graphs_tl": "whether one thread waits before another begins its capture is a matter of time",
    "h.st.accelerator_stream": "a GPU's torch.accelerator gives streams that equal none of torch.cuda's",
    "a.opt_capturable_later": "torch tells the names of devices, among which there is another one here",
}

# Not simulated: these raise, and say so.
LEFT_OUT = {
    "nn.quantize": "the simulated device has no quantized tensors",
    "b.graph_keep": "there is no graph of CUDA's behind a simulated one",
    "b.nested_pad": "the simulated device has dense tensors only",
    "a.ev_ipc": "no other process is on the simulated device",
    "a.mem_change_allocator": "the simulated device's allocator is its own",
    "a.mem_history": "the simulated device keeps no history of its memory",
    "a.mem_host_stats": "the simulated device counts no pinned memory",
    "api.keep_graph_flow": "there is no graph of CUDA's behind a simulated one",
    "mem.record_history": "the simulated device keeps no history of its memory",
    "a.mempool_bad": "the simulated device's allocator is its own",
    "h.fa.legacy_ctor": "the old names of types, as torch.cuda.FloatTensor, are not simulated",
    "h.fa.legacy_ctor_size": "the old names of types, as torch.cuda.FloatTensor, are not simulated",
    "h.fa.tensor_type_legacy": "the old names of types, as torch.cuda.FloatTensor, are not simulated",
    "h.sp.nested_softmax": "the simulated device has dense tensors only",
    "h.sp.quantize_per_tensor": "the simulated device has no quantized tensors",
    "h.sy.utilization_free_arch": "the simulated device has no compiled kernels",
}
# These have to have a process of their own: they count all memory, or ask who was first (errors, streams, sizes), or
# free what others have left, or take it again, or log, which pytest looks into; or take memory on streams of torch's
# own, which a capture forbids where none is left there by others, who need not have let it all go.
ALONE = (
    "b.empty_cache_in",
    "c.m2.stats_of_captures",
    "c.me.graph_pool_accounting",
    "c.me.oom_then_capture",
    "c.me.queries_in_capture",
    "c.me.stats_by_size",
    "c.me.three_graphs_one_pool",
    "mem.snapshot_private",
    "mem.temps_shared_pool_reserved",
    "q.ma.reserved_of_capture",
    "q.ma.stats_in",
    "q.md.thread_new_stream_work_global",
    "q.pl.pool_ids_are_pairs",
    "q.st.side_eager_while_unforked",
    "thr.global.empty_cache",
    "tool.logging_tensor",
    "u.st.forgot_fork",
    "v.api_reset_peak_and_stats_keys",
    "v.p6_33_streams",
    "v.p6_large_blocks_addresses",
    "v.p6_large_blocks_two_segments",
    "v.user_gru_hidden_rebound",
    "w.side_stream_not_forked",
    "zb.de_warn_only_and_sync_warn_mode",
    "zb.gen_offset_read_in_capture",
    "zb.gen_offset_set_in_capture",
    "zb.gen_offsets_after_draws_and_replays",
    "zb.gen_set_offset_before_replay",
    "zf.use.graphs_kept_by_bucket_with_fallback_to_eager",
    "zf.use.soft_actor_targets_polyak_by_foreach_and_by_zip",
    "zg.edge.event_recorded_before_the_fork_is_waited_after_the_end",
    "zg.edge.jagged_values_moved_under_replays",
    "zg.edge.storage_set_with_offsets_between_replays_and_self",
    "zg.edge.stream_and_device_contexts_entered_in_a_capture",
    "zg.edge.subclassed_capture_contexts_and_the_shared_stream",
    "zh.edge.before_the_first_use_wrong_devices_and_replays",
    "zh.edge.default_and_legacy_streams_named_in_a_capture",
    "zh.edge.generic_events_and_streams_fork_inside_a_capture",
    "zi.edge.captures_begun_and_ended_by_hand_with_streams_of_the_user",
    "zi.edge.forks_of_a_capture_that_users_forget_to_join",
    "zi.use.ema_of_teacher_by_zip_with_lists_read_late",
    "zi.use.positions_and_masks_cached_in_a_module_by_length",
    "zi.use.soup_of_models_averaged_by_state_dict_then_replayed",
    "zj.edge.current_stream_set_by_hand_around_and_within_captures",
    "zj.edge.streams_of_a_capture_forked_twice_with_nested_joins",
    "zj.use.noisy_layers_reset_by_a_method_outside_or_inside",
    "zk.edge.elements_of_jagged_batches_kept_for_graphs",
    "zk.edge.gradient_checkpoints_with_shapes_that_change_or_draw",
    "zk.edge.loops_over_streams_that_leave_their_events_unjoined",
    "zk.edge.reserved_segments_of_failed_and_dropped_captures",
    "zk.use.iterators_and_closures_consumed_while_capturing",
    "zl.edge.allocations_by_raw_calls_of_the_allocator",
    "zl.edge.dispatch_and_function_modes_nested_in_captures",
    "zl.edge.jagged_batches_reduced_and_normalized_in_captures",
    "zl.edge.memory_of_pools_after_everything_was_dropped",
    "zl.edge.threads_that_fail_die_or_raise_during_the_capture_of_another",
    "zl.edge.warnings_and_stack_of_errors_within_captures",
    "zl.use.step_logs_through_the_logging_module_with_lazy_arguments",
    *(name for name in BLIND if name.startswith("zc.in_")),  # before the first use of the device
    *(name for name in BLIND if name.endswith(".reuse")),  # of memory that was given back
)
_fresh: list[IO[str]] = []  # where such a process is asked for, and what it says is read
_DEVICE = re.compile(r"\bcuda\b")
_FLOAT = re.compile(r"-?\d+\.\d+")


def on_simulator(text: str) -> str:
    """The program for the simulated device, or the message as it would name that."""
    text = text.replace(".cuda()", ".to('sim')").replace(".cuda(non_blocking", ".to('sim',non_blocking")
    return re.sub(r"\bcuda:(\d)", r"sim:\1", text.replace("'cuda'", "'sim'"))


def seen_and_recorded(name: str, cuda: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a program does on the simulator, and what it did on a card: chain of errors, outcome, output."""
    seen: dict[str, Any] = {}
    if name in ALONE:
        seen.update(_in_a_process(name))
    else:
        # What torch keeps of a thread is as in a fresh process, whatever other tests have left: handles, modes.
        alone = threading.Thread(
            target=lambda: seen.update(_run(EVERY[name]["program"], cuda, named=name not in SINGLE_H200))
        )
        alone.start()
        alone.join()
        cuda.recover()
    then = EVERY[name]["h200"]
    recorded = {
        "outcome": then["outcome"],
        "printed": _DEVICE.sub("sim", on_simulator(then["printed"])),
        "chain": [(kind, on_simulator(text)) for kind, text, _ in then["exceptions"]],
    }
    if "cut" in then:
        seen["chain"] = _as_cut(seen["chain"], recorded["chain"], then["cut"])
    seen["printed"] = _DEVICE.sub("sim", on_simulator(seen["printed"]))  # some of its words are CUDA's own
    if _close(seen["printed"], recorded["printed"]):
        seen["printed"] = recorded["printed"]
    return seen, recorded


def _as_cut(seen: list[tuple[str, str]], recorded: list[tuple[str, str]], cut: int) -> list[tuple[str, str]]:
    """What was seen, as it would have been recorded: the first two errors, and so much of their texts."""
    found = []
    for (kind, text), (_, then) in zip_longest(seen[:2], recorded, fillvalue=("", "")):
        found.append((kind, then if text[:cut] != text and text.startswith(then) and then else text))
    return found


def have_fresh_processes() -> None:
    """Fork one process now, before this one runs anything, from which those for programs that run alone are forked.

    Each would import torch for longer than all that it runs. Where there are threads already, which no fork takes
    along, or nobody tells how many, each begins anew.
    """
    threads = Path("/proc/self/task")
    if _fresh or not threads.exists() or len(list(threads.iterdir())) > 1:
        return
    (names, ask), (results, give) = os.pipe(), os.pipe()
    if os.fork():
        os.close(names)
        os.close(give)
        _fresh.extend((os.fdopen(ask, "w", buffering=1), os.fdopen(results)))
        return
    os.close(ask)
    for name in os.fdopen(names):  # it ends with the process that asks
        if not (pid := os.fork()):
            with os.fdopen(give, "w") as answer:
                answer.write(_alone(name.strip()) + "\n")
            os._exit(0)
        if os.waitpid(pid, 0)[1]:
            os.write(give, b"{}\n")
    os._exit(0)


def _in_a_process(name: str) -> dict[str, Any]:
    if _fresh:
        ask, results = _fresh
        ask.write(name + "\n")
        found: dict[str, Any] = json.loads(results.readline())
        return {**found, "chain": [tuple(each) for each in found["chain"]]}
    command = [sys.executable, "-m", "tests.integration.single_operations", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=_DATA.parents[1])
    found = json.loads(done.stdout.splitlines()[-1])
    return {**found, "chain": [tuple(each) for each in found["chain"]]}


def _run(program: str, cuda: Any, *, named: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "C": cuda, "threading": threading, "io": io}
    names["time"] = time
    if named:
        names["__name__"] = "__main__"
    printed = io.StringIO()
    raised: BaseException | None = None
    if "memory_" in program:
        gc.collect()  # what is garbage by now must not be counted
    forget()
    gc.disable()  # nor may it go meanwhile: what a program allocates next would take its place
    # torch's own tests, once imported, forbid every later writing of these flags: programs do, and we set them back.
    with redirect_stdout(printed), warnings.catch_warnings(), torch.backends.__allow_nonbracketed_mutation():
        warnings.simplefilter("ignore")
        try:
            exec(on_simulator(program), names)
            cuda.synchronize()
        except Exception as error:
            raised = error
        finally:
            gc.enable()
        torch.backends.cudnn.benchmark, torch.backends.cudnn.enabled = False, True
        for kind in ("flash", "mem_efficient", "cudnn", "math"):
            getattr(torch.backends.cuda, f"enable_{kind}_sdp")(True)
    cuda.recover()
    cuda.set_sync_debug_mode(0)
    torch.use_deterministic_algorithms(False)
    torch.distributions.Distribution.set_default_validate_args(True)  # torch.compile turns it off for good
    chain = []
    outcome = "ran" if raised is None else "fails"
    while raised is not None:
        chain.append((type(raised).__name__, (str(raised).splitlines() or [""])[0][:400]))
        raised = raised.__context__
    return {"outcome": outcome, "printed": printed.getvalue(), "chain": chain}


def _close(one: str, other: str) -> bool:
    """Whether texts differ in the last digit of numbers at most: sums of another order round otherwise."""
    mine, theirs = (_FLOAT.findall(text) for text in (one, other))
    return _FLOAT.sub("#", one) == _FLOAT.sub("#", other) and all(
        math.isclose(float(a), float(b), rel_tol=1e-6, abs_tol=1.1 * 10.0 ** -min(map(_digits, (a, b))))
        for a, b in zip(mine, theirs, strict=True)
    )


def _digits(number: str) -> int:
    return len(number.partition(".")[2])


def _alone(name: str) -> str:
    from paramgraph_kit.driver.select import device, twin

    device()
    return json.dumps(_run(EVERY[name]["program"], twin(), named=name not in SINGLE_H200))


if __name__ == "__main__":
    print(_alone(sys.argv[1]))
