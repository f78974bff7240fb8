"""Failures of a CPU that wants something from the GPU, told apart by place and by operation."""

from __future__ import annotations

from paramgraph_kit.doctor.known.evidence import PAGEABLE
from paramgraph_kit.doctor.known.rule import Rule, fix

_WAITS = "During capture nothing runs, so there is no result to wait for."

# Known from the place that raised, whatever the line looks like.
PLACES = (
    Rule(
        "grad-scaler",
        "GradScaler read found_inf on the CPU",
        f"scaler.step() looks on the CPU whether any gradient overflowed. {_WAITS}",
        fix(
            "capture: scaler.step(opt); scaler.update()", "capture scaler.scale(loss).backward(); step and update after"
        ),
        syncs=True,
        files=("amp/grad_scaler.py",),
    ),
    Rule(
        "optimizer-sync",
        "This optimizer reads values on the CPU in step()",
        f"The algorithm decides on the CPU from losses and gradients, as LBFGS does. {_WAITS}",
        fix("capture: opt.step()", "capture forward and backward only; opt.step() after g.replay()"),
        syncs=True,
        files=("torch/optim/",),
    ),
    Rule(
        "nested-capture",
        "A capture was started inside another capture",
        "One stream can be captured into one graph at a time. The inner begin failed and spoiled the outer capture.",
        fix("with graph(a):  with graph(b): ...", "with graph(a): ...   then   with graph(b): ..."),
        codes=(900,),
        files=("cuda/graphs.py", "sim/capturing.py"),  # torch's, and its simulated twin
        operations=("graph", "capture_begin", "make_graphed_callables"),
    ),
)

# The CPU asks for something that only the GPU knows; told apart by the operation at the user's line.
SYNCS = (
    Rule(
        "sync-item",
        "A value was read back to the CPU",
        f"item(), float(), int() and bool() copy a number to the CPU and wait for the GPU. {_WAITS}",
        fix("value = loss.item()", "keep loss as a tensor; call loss.item() after g.replay()"),
        syncs=True,
        operations=("item", "float", "int", "__float__", "__int__", "__index__", "complex"),
    ),
    Rule(
        "data-dependent-branch",
        "Python branched on a value that is on the GPU",
        f"if, while, and, not, max() and bool() need the value on the CPU. {_WAITS}",
        fix("if x.sum() > 0: x = x * 2", "x = torch.where(x.sum() > 0, x * 2, x)"),
        syncs=True,
        operations=("bool", "__bool__"),
    ),
    Rule(
        "print",
        "A tensor was printed or turned into text",
        f"Text of a tensor needs its values on the CPU. {_WAITS}",
        fix("print(x)", "print(x) after g.replay(); inside, print(x.shape) is fine"),
        syncs=True,
        operations=("print", "str", "repr", "format", "__repr__", "__str__", "debug", "info", "warning"),
    ),
    Rule(
        "copy-to-cpu",
        "A tensor was copied to the CPU",
        "cpu(), numpy() and tolist() copy into pageable memory, which blocks until the GPU is done. A graph can hold "
        "only copies to pinned memory that do not block.",
        fix("y = x.cpu()", "y = x.cpu() after g.replay(); or in the graph: pinned.copy_(x, non_blocking=True)"),
        syncs=True,
        operations=("cpu", "numpy", "tolist", "save"),
    ),
    Rule(
        "synchronize",
        "The CPU was told to wait for the GPU",
        f"synchronize() blocks until work is done. {_WAITS}",
        fix("torch.cuda.synchronize()", "remove it; between streams use stream.wait_stream(other)"),
        codes=(900,),
        operations=("synchronize",),
    ),
    Rule(
        "query",
        "A stream or an event was asked whether it is done",
        "query() asks for the state of work that is only being written down. CUDA forbids it in every thread while a "
        "global capture is underway.",
        fix("if event.query(): ...", "query before the capture or after g.replay()"),
        codes=(900,),
        operations=("query",),
    ),
    Rule(
        "tensor-literal",
        "A tensor was made from Python numbers",
        "torch.tensor(..., device='cuda') makes the tensor in pageable CPU memory and copies it over. Its values would "
        "also be frozen into the graph.",
        fix(
            "k = torch.tensor(3.0, device='cuda')",
            "k = torch.full((), 3.0, device='cuda'); or make k before the capture",
        ),
        syncs=True,
        operations=("tensor", "as_tensor", "new_tensor", "from_numpy"),
    ),
    Rule(
        "copy-to-gpu",
        "A CPU tensor was copied to the GPU",
        "The source is pageable memory: CUDA has to stage it, which a graph can not repeat. A graph holds the source's "
        "address, so the source must be pinned and stay alive.",
        fix("x = c.cuda()", "before: buffer = c.cuda(); for each step: buffer.copy_(c), then g.replay()"),
        syncs=True,
        operations=("cuda", "to", "type_as", "copy_", "pin_memory"),
    ),
    Rule(
        "dynamic-shape",
        "The size of a result depends on values on the GPU",
        f"where() with one argument is nonzero(): it counts on the GPU to allocate the result. {_WAITS}",
        fix("i, j = torch.where(mask)", "y = torch.where(mask, x, 0); or torch.nonzero_static(mask, size=n)"),
        codes=(900,),  # where() of three with a CPU tensor among them is another failure
        operations=("where",),
    ),
    Rule(
        "dynamic-shape",
        "The size of a result depends on values on the GPU",
        f"nonzero(), unique() and x[mask] count on the GPU and read the count to allocate the result. {_WAITS}",
        fix("y = x[mask]", "y = torch.where(mask, x, 0); or torch.nonzero_static(x, size=n)"),
        syncs=True,
        operations=(
            "nonzero",
            "x[mask]",
            "masked_select",
            "argwhere",
            "unique",
            "unique_consecutive",
            "to_sparse",
            "repeat_interleave",
        ),
    ),
    Rule(
        "hidden-size",
        "This operation reads its output's size or bounds on the CPU",
        f"bincount, one_hot and histc find the largest value on the GPU and wait for it. {_WAITS}",
        fix(
            "F.one_hot(i)",
            "F.one_hot(i, num_classes=n); zeros(n).scatter_add_(...) for bincount; histc(x, n, min, max)",
        ),
        syncs=True,
        operations=("bincount", "one_hot", "histc", "multinomial", "ctc_loss"),
    ),
    Rule(
        "mask-assignment",
        "A tensor was assigned through a mask",
        f"x[mask] = v becomes nonzero(mask), whose size is known only on the GPU. {_WAITS}",
        fix("x[mask] = v", "x = torch.where(mask, v, x); a Python number is fine: x[mask] = 0.0"),
        syncs=True,
        operations=("x[mask]=", "index_put_", "masked_scatter_", "masked_fill_"),
    ),
    Rule(
        "cpu-index",
        "A tensor was indexed with a Python list or a CPU tensor",
        "A list becomes a CPU tensor, and that is copied to the GPU at every run. Its memory is pageable, so a graph "
        "can not hold the copy.",
        fix("y = x[[2, 0, 1]]", "index = torch.tensor([2, 0, 1], device='cuda') before the capture; y = x[index]"),
        syncs=True,
        operations=("x[list]", "x[list]="),
    ),
    Rule(
        "tensor-bound",
        "A slice or range is bounded by a tensor",
        f"Slicing turns a tensor bound into a Python number with item(). {_WAITS}",
        fix("y = x[j:]", "use a Python int for j; or x.index_select(0, positions) with positions on the GPU"),
        syncs=True,
        operations=("x[i:j]", "x[i:j]=", "arange", "split", "narrow", "range", "sized"),
    ),
    Rule(
        "compare-on-cpu",
        "Two tensors were compared into a Python bool",
        f"equal() and allclose() return True or False, so the CPU waits. {_WAITS}",
        fix("assert torch.allclose(a, b)", "torch._assert_async(torch.isclose(a, b).all())"),
        syncs=True,
        operations=("equal", "allclose", "assert_close", "is_nonzero"),
    ),
    Rule(
        "linalg-check",
        "A linear algebra routine checked its result on the CPU",
        f"inv, cholesky, solve and their like read an error number back to the CPU. {_WAITS}",
        fix("torch.linalg.inv(x)", "torch.linalg.inv_ex(x, check_errors=False).inverse"),
        syncs=True,
        operations=(
            "inv",
            "cholesky",
            "solve",
            "svd",
            "eigh",
            "eig",
            "qr",
            "lu_factor",
            "pinv",
            "matrix_rank",
            "lstsq",
            "eigvals",
            "eigvalsh",
            "svdvals",
        ),
    ),
    Rule(
        "linalg-check",
        "A linear algebra routine cannot be captured",
        "cuSOLVER waits for the GPU or allocates memory in it, and reports that as an error of its own.",
        fix("torch.linalg.eigh(x)", "the same before the capture, or after g.replay()"),
        says=("cusolver error",),
    ),
    Rule(
        "clip-check",
        "Gradient clipping looked for non-finite values on the CPU",
        f"error_if_nonfinite=True turns the norm into a Python bool. {_WAITS}",
        fix(
            "clip_grad_norm_(p, 1.0, error_if_nonfinite=True)",
            "clip_grad_norm_(p, 1.0)  and check the norm after g.replay()",
        ),
        syncs=True,
        operations=("clip_grad_norm_", "get_total_norm", "clip_grads_with_norm_"),
    ),
    Rule(
        "cpu-operand",
        "An operation mixes CPU and GPU tensors",
        "A CPU tensor beside GPU tensors is copied over at every run, from pageable memory. A graph can not hold that "
        "copy.",
        fix("torch.where(mask, x, c)", "c = c.cuda() before the capture"),
        says=(PAGEABLE,),
    ),
)
