"""Failures known by CUDA's code or by torch's message, whatever the line says."""

from __future__ import annotations

from paramgraph_kit.doctor.known.evidence import ASIDE
from paramgraph_kit.doctor.known.rule import Rule, fix

KNOWN = (
    Rule(
        "optimizer-not-capturable",
        "The optimizer was not made for capture",
        "By default step() keeps its counters on the CPU, which a graph would freeze. torch refuses before anything "
        "goes "
        "wrong.",
        fix("opt = torch.optim.Adam(params)", "opt = torch.optim.Adam(params, capturable=True)"),
        says=("param_groups' capturable is False",),
    ),
    Rule(
        "unregistered-generator",
        "A random generator does not belong to the graph",
        "A graph moves on only the generators that it knows, so that replays differ. This one was never registered.",
        fix("torch.rand(4, generator=gen)", "g.register_generator_state(gen) before the capture; then the same line"),
        says=("Attempt to increase offset for a CUDA generator not in capture mode",),
    ),
    Rule(
        "poisoned-generator",
        "An earlier capture failed and left the random generator behind",
        "The failed capture had drawn random numbers and never gave the generator's state back. This line itself is "
        "fine.",
        fix("catch the failed capture and go on", "restart the process; try risky captures in a child process"),
        says=("Offset increment outside graph capture encountered unexpectedly",),
    ),
    Rule(
        "rng-state",
        "The state of the random generator was read or set",
        "Seed and offset live on the CPU, and a graph cannot hold a change to them. manual_seed, get_rng_state and "
        "checkpoint with preserve_rng_state do this.",
        fix(
            "torch.cuda.manual_seed(0)",
            "seed before the capture; or gen.graphsafe_get_state(), checkpoint(preserve_rng_state=False)",
        ),
        says=(
            "Cannot call CUDAGeneratorImpl::",  # until torch 2.8, about
            "set_state_index method during capturing",
            "set_current_seed can be called during stream capture only if",
        ),
    ),
    Rule(
        "default-stream",
        "The capture was begun on the default stream",
        "The default stream waits for all others, so it cannot be captured. torch.cuda.graph uses a stream of its own.",
        fix("g.capture_begin()", "with torch.cuda.graph(g): ..."),
        says=("must be captured on a non-default stream",),
    ),
    Rule(
        "legacy-stream",
        "Work was put on the legacy default stream",
        "The legacy stream waits for every other stream, also for the one that captures. In backward() it comes from "
        "something computed there and still alive: a loss, an output, a clone() without detach().",
        fix(
            "loss = model(x) on the default stream, kept",
            "del loss, or keep loss.detach(); warm up in torch.cuda.stream(side); then capture",
        ),
        codes=(906,),
    ),
    Rule(
        "legacy-stream",
        "The backward pass remembers the default stream",
        "Something computed there from the same parameters is still alive: a loss, an output, a clone() without "
        "detach(). Its autograd nodes pull that stream in.",
        fix("loss = model(x) on the default stream, kept", "del loss, or keep loss.detach(); then capture"),
        says=("stale reference to the default stream",),
    ),
    Rule(
        "unjoined-work",
        "A side stream was not joined before the capture ended",
        "Work was forked to another stream and nothing waits for it. CUDA finds this only at the end, so the line is "
        "that "
        "of the with block.",
        fix("with torch.cuda.stream(s): y = f(x)", "... then torch.cuda.current_stream().wait_stream(s)"),
        codes=(904,),
    ),
    Rule(
        "isolation",
        "The capture waits for work that is not in it",
        "The stream or event waited for has work from before the capture, or was never forked from it. A graph can "
        "only "
        "depend on its own nodes.",
        fix(
            "with torch.cuda.stream(s): y = f(x)",
            "s.wait_stream(torch.cuda.current_stream()) first; or wait before the capture",
        ),
        codes=(905,),
    ),
    Rule(
        "captured-event",
        "An event recorded in a capture was used outside it",
        "Recording in a capture only writes a node down, so the event has no time and no state. CUDA says so with "
        "907, or "
        "with invalid argument.",
        fix(
            "e.record() in the graph; e.query() after",
            "record events around g.replay(); or torch.cuda.Event(external=True)",
        ),
        codes=(907,),
    ),
    Rule(
        "captured-event",
        "An event recorded in a capture was used outside it",
        "Recording in a capture only writes a node down, so the event has no time and no state. CUDA says so with "
        "907, or "
        "with invalid argument.",
        fix(
            "e.record() in the graph; e.query() after",
            "record events around g.replay(); or torch.cuda.Event(external=True)",
        ),
        codes=(1,),  # what an H200 says under torch 2.11
        operations=("query", "elapsed_time", "synchronize", "wait"),
    ),
    Rule(
        "merged-captures",
        "Two captures were joined",
        "A stream of one capture waited for a stream of another. Only one capture may be underway at a time.",
        fix("capture a and b at once", "capture a, end it, then capture b"),
        codes=(902,),
    ),
    Rule(
        "wrong-end-stream",
        "The capture was ended on another stream than it began on",
        "begin and end must see the same current stream. The context manager takes care of that.",
        fix("g.capture_begin() ... g.capture_end()", "with torch.cuda.graph(g): ..."),
        codes=(903,),
    ),
    Rule(
        "wrong-end-stream",
        "The capture was ended on another stream than it began on",
        "begin and end must see the same current stream. The context manager takes care of that.",
        fix("g.capture_begin() ... g.capture_end()", "with torch.cuda.graph(g): ..."),
        says=("Capture must end on the same stream",),
    ),
    Rule(
        "wrong-end-thread",
        "The capture was ended in another thread",
        "A thread-local or global capture belongs to the thread that began it.",
        fix("end in a worker thread", "begin and end in one thread; or capture_error_mode='relaxed'"),
        codes=(908,),
    ),
    Rule(
        "cold-library",
        "A CUDA library was used for the first time inside the capture",
        "cuBLAS and cuDNN create handles, pick algorithms and allocate at their first call, which a capture forbids. "
        "Warm-up on a side stream does that beforehand.",
        fix("with torch.cuda.graph(g): y = x @ w", "run y = x @ w three times in torch.cuda.stream(s), then capture"),
        says=("CUBLAS_STATUS_NOT_INITIALIZED", "CUDNN_STATUS", "CUBLAS_STATUS_ALLOC_FAILED", "No warmup iterations"),
    ),
    Rule(
        "cold-triton",
        "A Triton kernel was compiled or loaded inside the capture",
        "The first launch of a kernel loads its module, which a capture forbids. Every configuration needs one run "
        "before.",
        fix("first call inside the capture", "call the function once with the same shapes, then capture"),
        says=("Triton Error [CUDA]",),
    ),
    Rule(
        "out-of-memory",
        "The device is out of memory",
        "While capturing, cached blocks cannot be given back, and a private pool borrows nothing from the others. So a "
        "capture may fail where an ordinary run fits.",
        fix(
            "capture after other work",
            "torch.cuda.empty_cache() before the capture; share pools: graph(g, pool=other.pool())",
        ),
        says=("out of memory",),
    ),
    Rule(
        "illegal-address",
        "The GPU touched memory that is not there",
        "A replay uses the captured addresses: an input or a temporary of the graph has been freed since. The line is "
        "only "
        "where it was noticed.",
        fix("g.replay() after del x", "keep every input of the graph alive; CUDA_LAUNCH_BLOCKING=1 shows the place"),
        codes=(700,),
    ),
    Rule(
        "device-assert",
        "A check in a kernel failed, and the GPU gave up",
        "An index out of range, most often. CUDA refuses every further call of this process; the line is only where "
        "it was noticed.",
        fix(
            "y = table[index]",
            "assert index.max() < len(table) in an eager run; CUDA_LAUNCH_BLOCKING=1 shows the place",
        ),
        codes=(710,),
    ),
    Rule(
        "context-lost",
        "The GPU gave up, and with it this process",
        "A kernel did what the hardware does not allow, or took too long. CUDA refuses every further call; the line is "
        "only where it was noticed.",
        fix(
            "the kernels before the line above",
            "restart, and run them with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer",
        ),
        codes=(702, 709, 714, 715, 716, 717, 718, 719, 999),
    ),
)

# Only the code is known.
VAGUE = (
    Rule(
        "not-forked",
        "Work was put on a stream that is not part of the capture",
        "Only streams that waited for the capturing one are captured. For this one torch had no memory left and asked "
        "CUDA, which a capture forbids outside of it.",
        fix(
            "with torch.cuda.stream(s): y = f(x)",
            "s.wait_stream(torch.cuda.current_stream()) before; torch.cuda.current_stream().wait_stream(s) after",
        ),
        codes=(900,),
        hints=(ASIDE,),
    ),
    Rule(
        "sync-unknown",
        "Something at this line cannot be captured",
        "The operation waits for the GPU, asks for its state or allocates outside of torch's allocator; CUDA does not "
        "say "
        "which. torch.cuda.set_sync_debug_mode('error') names it in an ordinary run.",
        fix("the line above, inside the capture", "the same before the capture or after g.replay()"),
        codes=(900,),
    ),
    Rule(
        "invalidated",
        "The capture was spoiled, and the real error is not in this exception",
        "901 is only the echo of an earlier error. It was caught somewhere, or happened in another thread, such as a "
        "DataLoader that pins memory.",
        fix(
            "try: ... except: pass in the capture",
            "let the first error out; or torch.cuda.graph(g, capture_error_mode='thread_local')",
        ),
        codes=(901,),
    ),
)
