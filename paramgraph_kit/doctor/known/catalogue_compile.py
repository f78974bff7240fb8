"""Classes of failure of ``torch.compile(mode="reduce-overhead")``."""

from __future__ import annotations

from paramgraph_kit.doctor.known.failure_class import PYTORCH_TREES, FailureClass, code

_UNKNOWN = "CUDAGraph Trees are part of torch's own CUDA backend"
_STEP = "import torch._inductor.config as config\ndef step(x):\n    x.add_(1)\n    return x * 2\n"
_MODEL = code("""
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).to(device)
    f = torch.compile(m, mode="reduce-overhead")
    x = torch.ones(2, 4, device=device)
""")
_LINEAR = code("""
    import warnings
    warnings.filterwarnings("error", "Unable to hit fast path of CUDAGraphs")
    m = nn.Linear(4, 4).to(device)
    f = torch.compile(m, mode="reduce-overhead")
    x = torch.ones(2, 4, device=device)
""")


def _operation(name: str, tags: str, body: str) -> str:
    """A custom operation on one tensor, called in a compiled function that runs four times."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return (
        f'kept = []\n@torch.library.custom_op("catalogue::{name}", mutates_args=(){tags})\n'
        f"def {name}(x: torch.Tensor) -> torch.Tensor:\n{lines}"
        f"@{name}.register_fake\ndef _(x):\n    return torch.empty_like(x)\n"
        f'f = torch.compile(lambda x: {name}(x + 1) * 2, mode="reduce-overhead")\n'
        "x = torch.ones(4, device=device)\nfor _ in range(4):\n    y = f(x)\n"
    )


_KEEPS = "y = x * 2\nkept.append(y)\nreturn y + 1"
_WAITS = "return x * x.sum().item()"
_UNSAFE = ", tags=(torch.Tag.cudagraph_unsafe,)"


def _compile(
    id: str,  # noqa: A002 - the field's name
    title: str,
    cause: str,
    recognised: str,
    before: str,
    after: str,
    wrong: str = "",
    versions: str = "every version",
) -> FailureClass:
    return FailureClass(
        id, title, "compile", cause, versions, recognised, before, after, PYTORCH_TREES, wrong, _UNKNOWN
    )


CLASSES = (
    _compile(
        "output-overwritten",
        "An output of a compiled function is read after the next call",
        "With mode='reduce-overhead' outputs live in the graph's own pool, and the next call writes there again. Our "
        "backend returns ordinary tensors.",
        "output-overwritten",
        "f = torch.compile(lambda x: x + 1, mode='reduce-overhead')\nx = torch.ones(4, device=device)\n"
        "first = f(x)\nsecond = f(x)\nprint(first)\n",
        "f = pgk.compile(lambda x: x + 1)\nx = torch.ones(4, device=device)\nfor _ in range(3):\n    first = f(x)\n"
        "f(x * 5)\ngot, expected = first, x + 1\n",
    ),
    _compile(
        "output-overwritten-late",
        "From the third call on, a kept output changes silently",
        "torch marks overwritten outputs only until it replays graphs. From then on a kept output changes without a "
        "word: clone it.",
        "",
        "f = torch.compile(lambda x: x + 1, mode='reduce-overhead')\nx = torch.ones(4, device=device)\nf(x)\nf(x)\n"
        "kept = f(x)\nf(x * 5)\ngot, expected = kept, x + 1\n",
        "f = torch.compile(lambda x: x + 1, mode='reduce-overhead')\nx = torch.ones(4, device=device)\nf(x)\nf(x)\n"
        "kept = f(x).clone()\nf(x * 5)\ngot, expected = kept, x + 1\n",
        "tensor([6., 6., 6., 6.])",
    ),
    _compile(
        "gradient-overwritten",
        "Gradients of a compiled backward are added up",
        "p.grad lives in the graph's own pool, and its memory is given back before the next backward() adds to it. Set "
        "gradients to None first.",
        "gradient-overwritten",
        _MODEL + "for _ in range(4):\n    f(x).sum().backward()\n",
        _MODEL + "expected, = torch.autograd.grad(m(x).sum(), m[0].weight)\nfor _ in range(4):\n    m.zero_grad()\n"
        "    f(x).sum().backward()\ngot = m[0].weight.grad\n",
        versions="2.11 and 2.13; their words differ",
    ),
    _compile(
        "pending-backward",
        "Outputs are kept that still may need their backward()",
        "Their memory can not be used again, so every call runs without a graph, and torch warns. Without gradients "
        "there is nothing to wait for.",
        "pending-backward",
        _LINEAR + "outputs = []\nfor _ in range(4):\n    outputs.append(f(x))\n",
        _LINEAR + "with torch.no_grad():\n    outputs = [f(x).clone() for _ in range(4)]\n    got, expected = "
        "outputs[0], m(x)\n",
        versions="2.11 and 2.13, a warning; their words differ",
    ),
    _compile(
        "pool-leak",
        "A custom operation keeps a tensor that it made",
        "It lies in the graph's pool, where the next replay would write over it. Tag the operation, and it runs "
        "outside of the graph.",
        "pool-leak",
        _operation("keeps", "", _KEEPS),
        _operation("keeps_outside", _UNSAFE, _KEEPS) + "got, expected = y, ((x + 1) * 2 + 1) * 2\n",
    ),
    _compile(
        "operation-waits",
        "A custom operation waits for the GPU",
        "Inductor cannot look into it and records it with the rest. Tag the operation, and it runs outside of the "
        "graph.",
        "sync-item",
        _operation("waits", "", _WAITS),
        _operation("waits_outside", _UNSAFE, _WAITS) + "got, expected = y, (x + 1) * (x + 1).sum() * 2\n",
    ),
    _compile(
        "mutated-input",
        "A compiled function writes to its argument",
        "The graph works on copies of arguments, so Inductor runs without one and only logs it; with "
        "cudagraph_or_error it raises. Our backend needs no copies.",
        "mutated-input",
        _STEP + 'with config.patch({"triton.cudagraph_or_error": True}):\n'
        '    f = torch.compile(step, mode="reduce-overhead")\n    for _ in range(3):\n'
        "        f(torch.ones(4, device=device))\n",
        _STEP + "f = pgk.compile(step)\nx = torch.ones(4, device=device)\nfor _ in range(3):\n    f(x)\n"
        "got, expected = x, torch.full((4,), 4.0, device=device)\n",
    ),
)
