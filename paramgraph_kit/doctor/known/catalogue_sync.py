"""Classes of failure in which the CPU wants something from the GPU."""

from __future__ import annotations

from paramgraph_kit.doctor.known.failure_class import (
    CAPTURE_FAILURES,
    SYNC_FREE,
    FailureClass,
    Source,
    code,
)

ALL = "every version"
CHECKED = "2.11 and later refuse the copy by name; before, CUDA error 900"
_WAITS = "During capture nothing runs, so there is no result to wait for."


def _sync(
    id: str,  # noqa: A002 - the field's name
    title: str,
    cause: str,
    recognised: str,
    before: str,
    after: str,
    *,
    versions: str = ALL,
    source: Source = SYNC_FREE,
    setup: str = "x = torch.arange(4.0, device=device)",
    category: str = "sync",
) -> FailureClass:
    """A class whose programs differ in the captured body only; ``after`` captures ``y``."""
    body = "\n".join("    " + line for line in before.splitlines())
    fixed = "\n".join("    " + line for line in after.splitlines())
    first = code(setup)
    return FailureClass(
        id,
        title,
        category,
        cause,
        versions,
        recognised,
        f"{first}g = cuda.CUDAGraph()\nwith cuda.graph(g):\n{body}\n",
        f"{first}{after}\nexpected = y.clone()\ng = cuda.CUDAGraph()\nwith cuda.graph(g):\n{fixed}\n"
        "g.replay()\ngot = y\n",
        source,
    )


CLASSES = (
    _sync(
        "sync-item",
        "A value is read back to the CPU",
        f"item(), float() and int() copy a number to the CPU and wait for the GPU. {_WAITS}",
        "sync-item",
        "y = x * x.sum().item()",
        "y = x * x.sum()",
    ),
    _sync(
        "branch",
        "Python branches on a value that is on the GPU",
        f"if and while call bool() on the tensor, which waits for the GPU. {_WAITS}",
        "data-dependent-branch",
        "if x.sum() > 0:\n    y = x * 2",
        "y = torch.where(x.sum() > 0, x * 2, x)",
    ),
    _sync(
        "python-max",
        "Python's max or min compares tensors",
        f"The builtin asks each comparison for a bool, which waits for the GPU. {_WAITS}",
        "data-dependent-branch",
        "y = max(x[0], x[1])",
        "y = torch.maximum(x[0], x[1])",
    ),
    _sync(
        "print",
        "A tensor is printed",
        f"Text of a tensor needs its values on the CPU. {_WAITS}",
        "print",
        "y = x * 2\nprint(y)",
        "y = x * 2\nprint(y.shape)",
    ),
    _sync(
        "copy-to-cpu",
        "A tensor is copied to the CPU",
        "cpu() copies into pageable memory, which blocks until the GPU is done. A graph can hold only copies to "
        "pinned memory that do not block.",
        "copy-to-cpu",
        "y = x.cpu() * 2",
        "y = x * 2",
        versions=CHECKED,
    ),
    _sync(
        "tolist",
        "A tensor is turned into a Python list",
        "tolist() copies all values into pageable memory and waits. What Python computes from them would be frozen "
        "besides.",
        "copy-to-cpu",
        "y = x * sum(x.tolist())",
        "y = x * x.sum()",
        versions=CHECKED,
    ),
    _sync(
        "synchronize",
        "The CPU waits for the whole device",
        f"torch.cuda.synchronize() blocks until all work is done. {_WAITS}",
        "synchronize",
        "y = x * 2\ncuda.synchronize()",
        "y = x * 2",
    ),
    _sync(
        "stream-synchronize",
        "The CPU waits for a stream",
        "stream.synchronize() blocks the CPU until the stream is done, and a capturing stream never is. Between "
        "streams wait_stream() orders work without the CPU.",
        "synchronize",
        "y = x * 2\ncuda.current_stream().synchronize()",
        "y = x * 2",
    ),
    _sync(
        "query",
        "An event is asked whether it is done",
        "query() asks for the state of work, and while capturing work is only written down. CUDA forbids it in every "
        "thread while a global capture is underway.",
        "query",
        "e.query()\ny = x * 2",
        "y = x * 2",
        setup="x = torch.arange(4.0, device=device)\ne = cuda.Event()\ne.record()",
        source=CAPTURE_FAILURES,
    ),
    _sync(
        "tensor-literal",
        "A tensor is made from Python numbers",
        "torch.tensor(..., device='cuda') makes the tensor in pageable CPU memory and copies it over. Its values would "
        "be frozen besides.",
        "tensor-literal",
        "y = x * torch.tensor(3.0, device=device)",
        "y = x * torch.full((), 3.0, device=device)",
        versions=CHECKED,
    ),
    _sync(
        "copy-to-gpu",
        "A CPU tensor is copied to the GPU",
        "The source is pageable memory, which CUDA must stage, and a graph cannot repeat that. Copy before the "
        "capture, and refill the copy before each replay.",
        "copy-to-gpu",
        "y = x * c.to(device)",
        "y = x * on_gpu",
        setup="x = torch.arange(4.0, device=device)\nc = torch.ones(4)\non_gpu = c.to(device)",
        versions=CHECKED,
    ),
    _sync(
        "copy-to-gpu-async",
        "Pageable memory is copied to the GPU without waiting",
        "non_blocking=True does not help where the source is not pinned: the graph would keep the address of memory "
        "that may be gone. A pinned source that stays alive can be captured.",
        "copy-to-gpu",
        "y = x * c.to(device, non_blocking=True)",
        "y = x * pinned.to(device, non_blocking=True)",
        setup="x = torch.arange(4.0, device=device)\nc = torch.ones(4)\npinned = c.pin_memory()",
        versions="2.11 and later; before, captured silently with a stale address",
    ),
    _sync(
        "mask-select",
        "Elements are selected with a mask",
        "x[mask] counts on the GPU and reads the count to allocate its result. The size of a graph's tensors cannot "
        "change.",
        "dynamic-shape",
        "y = x[x > 1].sum()",
        "y = torch.where(x > 1, x, 0).sum()",
    ),
    _sync(
        "nonzero",
        "The places of nonzero elements are asked for",
        "nonzero() counts on the GPU and reads the count to allocate its result. nonzero_static() takes the size from "
        "you.",
        "dynamic-shape",
        "y = x.nonzero()",
        "y = torch.nonzero_static(x, size=3)",
    ),
    _sync(
        "unique",
        "The distinct values are asked for",
        "unique() finds the number of values on the GPU and reads it to allocate its result. Sorting and marking the "
        "first of each run keeps the size.",
        "dynamic-shape",
        "y = x.unique().numel()",
        "s = x.sort().values\ny = 1 + (s[1:] != s[:-1]).sum()",
    ),
    _sync(
        "repeat-interleave",
        "Elements are repeated by counts on the GPU",
        "repeat_interleave() sums the counts on the GPU and reads the sum to allocate its result. output_size tells it "
        "beforehand.",
        "dynamic-shape",
        "y = torch.repeat_interleave(i, i)",
        "y = torch.repeat_interleave(i, i, output_size=2)",
        setup="i = torch.tensor([0, 2], device=device)",
    ),
    _sync(
        "one-hot",
        "one_hot finds the number of classes itself",
        "Without num_classes it takes the largest value on the GPU and waits for it. Scattering ones into a tensor of "
        "your size reads nothing.",
        "hidden-size",
        "y = F.one_hot(i)",
        "y = torch.zeros(2, 3, dtype=torch.int64, device=device).scatter_(1, i[:, None], 1)",
        setup="i = torch.tensor([0, 2], device=device)",
    ),
    _sync(
        "bincount",
        "bincount finds the number of bins itself",
        "It reads the largest value on the CPU, even with minlength. Adding ones into a tensor of your size counts "
        "without reading.",
        "hidden-size",
        "y = torch.bincount(i)",
        "y = torch.zeros(3, dtype=torch.int64, device=device).scatter_add_(0, i, torch.ones_like(i))",
        setup="i = torch.tensor([0, 2], device=device)",
        versions=CHECKED,
    ),
    _sync(
        "histc",
        "histc finds its bounds itself",
        "Without min and max it reads the smallest and the largest value on the CPU. Given bounds need no look.",
        "hidden-size",
        "y = torch.histc(x, 4)",
        "y = torch.histc(x, 4, 0.0, 3.0)",
        versions=CHECKED,
    ),
    _sync(
        "mask-assignment",
        "A tensor is assigned through a mask",
        f"x[mask] = v becomes nonzero(mask), whose size is known only on the GPU. {_WAITS}",
        "mask-assignment",
        "x[m] = v",
        "y = torch.where(m, torch.full_like(x, -1.0), x)",
        setup="x = torch.arange(4.0, device=device)\nm = x > 1\nv = torch.full((2,), -1.0, device=device)",
    ),
    _sync(
        "cpu-index",
        "A tensor is indexed with a Python list",
        "The list becomes a CPU tensor that is copied to the GPU at every run, from pageable memory. A graph cannot "
        "hold that copy.",
        "cpu-index",
        "y = x[[2, 0, 1]]",
        "y = x[index]",
        setup="x = torch.arange(4.0, device=device)\nindex = torch.tensor([2, 0, 1], device=device)",
        versions=CHECKED,
    ),
    _sync(
        "tensor-bound",
        "A slice is bounded by a tensor",
        f"Slicing turns a tensor bound into a Python number with item(). {_WAITS}",
        "tensor-bound",
        "y = x[j:].sum()",
        "y = torch.where(torch.arange(4, device=device) >= j, x, 0).sum()",
        setup="x = torch.arange(4.0, device=device)\nj = torch.tensor(1, device=device)",
    ),
    _sync(
        "compare-on-cpu",
        "Two tensors are compared into a Python bool",
        f"equal() and allclose() return True or False, so the CPU waits. {_WAITS}",
        "compare-on-cpu",
        "same = torch.allclose(x, x)",
        "y = torch.isclose(x, x).all()",
    ),
    _sync(
        "linalg-check",
        "A linear algebra routine checks its result on the CPU",
        "inv, cholesky, solve and their like read an error number back to the CPU. The *_ex forms leave it on the GPU.",
        "linalg-check",
        "y = torch.linalg.inv(x)",
        "y = torch.linalg.inv_ex(x, check_errors=False).inverse",
        setup="x = torch.eye(4, device=device) * 2\ntorch.linalg.inv(x)",
    ),
    _sync(
        "cpu-operand",
        "An operation mixes CPU and GPU tensors",
        "A CPU tensor beside GPU tensors is copied over at every run, from pageable memory. A graph cannot hold that "
        "copy.",
        "cpu-operand",
        "y = torch.where(x > 1, x, c)",
        "y = torch.where(x > 1, x, on_gpu)",
        setup="x = torch.arange(4.0, device=device)\nc = torch.tensor(2.0)\non_gpu = c.to(device)",
        versions=CHECKED,
    ),
    _sync(
        "clip-check",
        "Gradient clipping looks for non-finite values on the CPU",
        "error_if_nonfinite=True turns the norm into a Python bool, which waits. Look at the norm after the replay.",
        "clip-check",
        "y = nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)",
        "p.grad.fill_(2.0)\ny = nn.utils.clip_grad_norm_([p], 1.0)",
        setup="p = nn.Parameter(torch.ones(4, device=device))\np.grad = torch.full((4,), 2.0, device=device)",
        category="autograd and optimizers",
    ),
)
