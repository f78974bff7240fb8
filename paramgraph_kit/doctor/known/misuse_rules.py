"""Failures of somebody who calls torch's graph functions in the wrong order or with the wrong arguments."""

from __future__ import annotations

from paramgraph_kit.doctor.known.evidence import NEVER_BEGUN
from paramgraph_kit.doctor.known.rule import Rule, fix

MISUSE = (
    Rule(
        "mixed-devices",
        "Tensors of two devices meet in one operation",
        "This fails without a capture too. A graph holds only what runs on the GPU, so all that it reads must be "
        "there.",
        fix("f(x.cuda(), torch.ones(2))", "f(x.cuda(), torch.ones(2, device='cuda'))"),
        says=("Expected all tensors to be on the same device",),
    ),
    Rule(
        "graph-has-capture",
        "This graph already holds a capture",
        "A CUDAGraph is captured once. A second capture needs a new object, or reset() of the old one.",
        fix("with torch.cuda.graph(g): ...  again", "g = torch.cuda.CUDAGraph(); with torch.cuda.graph(g): ..."),
        says=("already owns a captured graph",),
    ),
    Rule(
        "no-capture",
        "This graph holds no capture",
        "replay() and pool() need a capture that has ended well. Here none has begun, or it failed.",
        fix("g = torch.cuda.CUDAGraph(); g.replay()", "with torch.cuda.graph(g): ...  then  g.replay()"),
        says=("without a preceding successful capture",),
    ),
    Rule(
        "replay-in-capture",
        "A graph is replayed inside another's capture",
        "replay() sets up the generator's numbers on the CPU, which no capture can hold, so torch refuses it.",
        fix(
            "with torch.cuda.graph(h): g.replay(); z = y + 1",
            "with torch.cuda.graph(h): z = y + 1  then  g.replay(); h.replay()",
        ),
        says=("Cannot prepare for replay during capturing stage",),
    ),
    Rule(
        "end-without-begin",
        "A capture was ended that had not begun",
        "capture_end() found no capture of this graph; torch's own text for that could not even be read.",
        fix("g.capture_end()", "with torch.cuda.graph(g): ..."),
        says=("codec can't decode",),
        operations=("capture_end",),
    ),
    Rule(
        "end-without-begin",
        "A capture was ended that had not begun",
        "capture_end() found no capture of this graph. The context manager keeps the two together.",
        fix("g.capture_end()", "with torch.cuda.graph(g): ..."),
        says=("capture_end() called before capture_begin()",),
    ),
    Rule(
        "end-without-begin",
        "A capture was ended that had not begun",
        "torch compares streams first, so it speaks of another stream; but nothing here begins a capture by hand. The "
        "context manager keeps the two together.",
        fix("g.capture_end()", "with torch.cuda.graph(g): ..."),
        says=("Capture must end on the same stream",),
        hints=(NEVER_BEGUN,),
    ),
    Rule(
        "end-without-begin",
        "A capture was ended that had not begun, or had ended already",
        "CUDA found no capture on this stream. The context manager keeps begin and end together.",
        fix("g.capture_end()", "with torch.cuda.graph(g): ..."),
        codes=(401,),
        operations=("capture_end",),
    ),
    Rule(
        "graphed-arguments",
        "make_graphed_callables was given something else than tensors",
        "Its sample arguments become the graph's static inputs, which only tensors can be.",
        fix("make_graphed_callables(f, (x, 3))", "make_graphed_callables(lambda x: f(x, 3), (x,))"),
        says=("sample_args for each callable must contain only Tensors",),
    ),
    Rule(
        "graphed-shape",
        "A graphed callable was called with another shape",
        "Every call copies its arguments into the inputs of the capture, so shapes are those of sample_args.",
        fix("f(x) with a larger batch", "pad x to the captured shape; or one graphed callable for each shape"),
        says=("must match the size of tensor",),
        files=("cuda/graphs.py", "sim/graphed.py"),  # torch's, and its simulated twin
    ),
)
