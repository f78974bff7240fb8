"""Failures of ``torch.compile(mode="reduce-overhead")``: CUDAGraph Trees, and why Inductor leaves graphs out."""

from __future__ import annotations

from dataclasses import replace

from paramgraph_kit.doctor.known.rule import Rule, fix

_OVERWRITTEN = "has been overwritten by a subsequent run"
_NO_GRAPH = "Inductor then runs the compiled code without a graph, and says so only in a log."

_GRADIENT = Rule(
    "gradient-overwritten",
    "A gradient that a compiled backward made was overwritten by the next one",
    "With mode='reduce-overhead' p.grad lives in the graph's own pool. The next backward() adds to it after its "
    "memory was given back.",
    fix(
        "loss.backward() each step, and p.grad is kept",
        "opt.zero_grad() before each backward(); to add up: p.grad = torch.zeros_like(p) once, first",
    ),
    says=("accessing gradient tensor output of CUDAGraphs",),  # from torch 2.13 on
)

TREES = (
    _GRADIENT,
    Rule(
        "output-overwritten",
        "The backward of a compiled function needs what a later call has overwritten",
        "Activations live in the graph's own pool, and the next call of the function writes there again.",
        fix("a = f(x); b = f(x); a.sum().backward()", "call backward() before the next f(x); or copy = f(x).clone()"),
        says=(_OVERWRITTEN,),
        files=("_functorch/",),
    ),
    # Before, in the engine itself, which adds: nothing compiled was running.
    replace(_GRADIENT, says=(_OVERWRITTEN,), files=("torch/autograd/",)),
    Rule(
        "output-overwritten",
        "An output of a compiled function was overwritten by its next call",
        "With mode='reduce-overhead' outputs live in the graph's own pool, and the next call writes there again.",
        fix(
            "outputs.append(model(x))", "outputs.append(model(x).clone()); or backend='paramgraph', whose outputs stay"
        ),
        says=(_OVERWRITTEN,),
    ),
    Rule(
        "pending-backward",
        "Graphs are never replayed, because outputs still wait for their backward()",
        "As long as an output of an earlier step may need its backward, its memory can not be used again, so every "
        "call runs without a graph.",
        fix("y = model(x), kept and never backward()", "with torch.no_grad(): y = model(x); or keep y.detach() only"),
        says=("Unable to hit fast path of CUDAGraphs",),
    ),
    Rule(
        "pool-leak",
        "A tensor of the graph's pool is kept where nobody knows of it",
        "Something that was made inside the compiled function is stored outside of it, by a custom operation or a "
        "cache. A replay would write over it.",
        fix("cache.append(y) in a custom operation", "return y; or tag the operation torch.Tag.cudagraph_unsafe"),
        says=("in the cudagraph pool not tracked as outputs",),
    ),
)

SKIPS = (
    Rule(
        "mutated-input",
        "No graph: the compiled function writes to an argument",
        f"The graph works on copies of its arguments, so what it writes would not arrive. {_NO_GRAPH}",
        fix("x.add_(1)", "x = x + 1, returned; or backend='paramgraph', which writes to your tensor"),
        says=("mutated inputs",),
        told=True,
    ),
    Rule(
        "input-storage-mutation",
        "No graph: the compiled function exchanges the memory of an argument",
        f"set_() gives a tensor other memory, which no replay repeats. {_NO_GRAPH}",
        fix("x.set_(y)", "x.copy_(y); or exchange it outside of the compiled function"),
        says=("input storage mutation",),
        told=True,
    ),
    Rule(
        "control-flow",
        "No graph: torch.cond or torch.while_loop is in the compiled function",
        f"Only the GPU knows which way it goes. {_NO_GRAPH}",
        fix("torch.cond(p, f, g, (x,))", "torch.where(p, f(x), g(x)) where both are cheap; or compile the parts"),
        says=("control flow operator",),
        told=True,
    ),
    Rule(
        "cpu-op",
        "No graph: the compiled function works on CPU tensors",
        f"No CUDA graph holds what runs on the CPU. {_NO_GRAPH}",
        fix("torch.arange(n)", "torch.arange(n, device=x.device); or torch._inductor.config.graph_partition = True"),
        says=("cudagraphs due to cpu device", "due to skipping cudagraphs due to cpu device"),
        told=True,
    ),
    Rule(
        "multiple-devices",
        "No graph: the compiled function works on several devices",
        f"A CUDA graph belongs to one device. {_NO_GRAPH}",
        fix("a model on two GPUs in one torch.compile", "torch.compile for each device's part"),
        says=("cudagraphs due to multiple devices",),
        told=True,
    ),
    Rule(
        "unsafe-op",
        "No graph: an operation cannot be captured",
        f"Its kernel waits for the GPU, or its result's size is known only there. {_NO_GRAPH}",
        fix("x[mask] = v", "x = torch.where(mask, v, x)"),
        says=("due to incompatible op", "fallback with boolean indexing", "sparsity not handled"),
        told=True,
    ),
    Rule(
        "dynamic-shape",
        "No graph: shapes change, and graphs of those are switched off",
        f"torch._inductor.config.triton.cudagraph_skip_dynamic_graphs is set. {_NO_GRAPH}",
        fix("triton.cudagraph_skip_dynamic_graphs = True", "= False; or torch._dynamo.mark_static, or padding"),
        says=("cudagraph_skip_dynamic_graphs",),
        told=True,
    ),
    Rule(
        "too-many-variants",
        "Every size and every change gets a graph of its own, and there are too many",
        "A graph holds one set of sizes and addresses. Each new one is recorded again, which costs time and memory.",
        fix("f(x) with x of any length", "pad x to a few lengths; or backend='paramgraph', where addresses may change"),
        says=("recording a new graph for each distinct input size", "exceeding max re-recording limit"),
        told=True,
    ),
    Rule(
        "uncached-allocator",
        "No graph: torch's caching allocator is switched off",
        f"A graph's memory comes from a pool of that allocator. {_NO_GRAPH}",
        fix("PYTORCH_NO_CUDA_MEMORY_CACHING=1", "unset it"),
        says=("requires the caching allocator",),
    ),
    Rule(
        "inductor-skip",
        "No graph: Inductor left it out",
        f"The reason is in its message above. {_NO_GRAPH}",
        fix("the line above in the compiled function", "take it out into a function with torch.compiler.disable"),
        says=("skipping cudagraphs due to", "skipping cudagraph due to", "disabling cudagraphs due to"),
        told=True,
    ),
)
