"""What a watched eager call says of a line, and what a capture of it does here: refused by both or by neither."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import paramgraph_kit as pgk
from paramgraph_kit.doctor.known.catalogue import BY_ID

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu captures on a GPU"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("recovered"),
]
DEVICE = pgk.device()
REFUSED = """\
x[0, 0] = 1.0
w[...] = 2.0
x[i] = 1.0
x[i[:1]] = 1.0
x[i] = 1.0; x.add_(1)
x[i, i] = n
x.masked_fill(m, v[0])
x.masked_fill_(m, x.max())
torch.linspace(0, j, 3, device=device)
x.index_put_((i,), torch.tensor(1.0))
torch.full((2,), v[0], device=device)
torch.add(x, x, alpha=v[0])
torch.isin(v, torch.arange(40, device=device))
torch.isin(v, torch.arange(40, device=device), assume_unique=True)
torch.searchsorted(v, v, sorter=v.argsort())
torch.fake_quantize_per_channel_affine(x, i32 * 0.5, i32 - i32, 0, -8, 7)
torch.equal(x, x + 1)
torch.linalg.pinv(x)
torch.linalg.matrix_rank(x)
torch.combinations(v)
torch.normal(x, x.abs())
torch.cov(x)
torch.linalg.lstsq(x, x)
torch.linalg.ldl_factor_ex(x)
torch.linalg.ldl_solve(x, i32, x)
torch.cholesky_inverse(x.expand(2, 4, 4))
x.index_fill(0, i, w)
wide[:, :4].copy_(x, non_blocking=True)
x.copy_(wide[:, ::2], non_blocking=True)
x[j]
x[v.argmax() % 4:]
x.topk(j)
torch.bucketize(v, torch.tensor([0.1, 0.5]).to(device))
nn.BatchNorm1d(4, momentum=None).to(device)(x)
cuda.current_stream().wait_event(before)
next(t for t in v if t > 0)
list(filter(lambda t: t > 0, v))
x.to_sparse_csr()
twice.coalesce()
torch.sparse.mm(twice, x)
twice @ x[0]
twice.relu()
torch.sparse.sum(once, 0)
torch.sparse.sum(twice)
torch.sparse.softmax(once, 1)
torch.sparse.mm(once, once)
once.to_sparse_csc()
twice.to_sparse_csr()
[1, 2, 3][j]"""
TAKEN = """\
x[0] = 1.0
x[:1, :1] = 2.0
x[0, 0].fill_(2.0)
x[m] = 1.0
x[i] += 1
x[i[:1]] += 1
x[0, 0] = x[1, 1]
x.masked_fill(m, 2.0)
x.masked_fill(m, torch.tensor(0.0))
torch.linspace(0, n, 3, device=device)
torch.isin(v, v)
torch.searchsorted(v, v)
torch.fake_quantize_per_channel_affine(x, i32 * 0.5, i32 * 0.0, 0, -8, 7)
torch.equal(x, x); torch.equal(x, v); x.add_(1)
wide[:4].copy_(torch.cat((x, x), 1), non_blocking=True)
x.index_fill(0, i, 2.0)
torch.randperm(4, device=device)
torch.multinomial(v, 2)
torch.nonzero_static(m, size=3)
torch.linalg.solve_ex(x, x)
torch.linalg.qr(x)
torch.clamp(x, min=v[0])
F.gumbel_softmax(x, hard=True)
copy.deepcopy(x)
cuda.Event().query()
cuda.current_stream().wait_event(cuda.Event())
[r.sum() for r in x]
torch.sparse_coo_tensor(torch.stack((i, i)), v[:2], (4, 4)).to_dense()
twice.to_dense()
torch.sparse.mm(once, x) + once @ x
once.coalesce().values().mul_(2)
x + twice * 2
torch.sparse.sum(once)
rows @ x[0]
once.to_sparse_csr()
f"{x.shape}" """


def function_of(line: str, file: Path) -> Any:
    """A function of one line, with what it needs."""
    cuda, before = pgk.cuda, pgk.cuda.Event()
    before.record()
    once = torch.eye(4).to_sparse().coalesce().to(DEVICE)
    names: dict[str, Any] = {
        "torch": torch,
        "nn": nn,
        "F": F,
        "cuda": cuda,
        "device": DEVICE,
        "copy": __import__("copy"),
        "v": torch.rand(6).add(0.1).to(DEVICE),
        "m": (torch.randn(4, 4) > 0).to(DEVICE),
        "n": 2,
        "before": before,
        "i": torch.tensor([0, 2]).to(DEVICE),
        "j": torch.tensor(1).to(DEVICE),
        "w": torch.ones((), device=DEVICE),
        "wide": torch.empty(4, 8).pin_memory(),
        "twice": once + once,
        "once": once,
        "rows": once.to_sparse_csr(),
        "i32": torch.arange(1, 5, dtype=torch.int32).to(DEVICE),
    }
    text = f"def f(x):\n    {line}\n    return x\n"
    file.write_text(text)
    linecache.checkcache(str(file))
    exec(compile(text, str(file), "exec"), names)
    return names["f"]


# What torch 2.15 does on the device alone: a number is filled in, and a mask whose size is known is no question.
AT_A_PLACE = {"x[0, 0] = 1.0", "w[...] = 2.0", "x[i] = 1.0", "x[i[:1]] = 1.0", "x[i] = 1.0; x.add_(1)"}
FILLED = {*AT_A_PLACE, "torch.combinations(v)"} if torch.__version__ >= "2.15" else ()


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [(e, e not in FILLED) for e in REFUSED.splitlines()] + [(e, False) for e in TAKEN.splitlines()],
)
def test_a_line_is_told_where_a_capture_refuses_it_and_nowhere_else(
    line: str, is_refused: bool, tmp_path: Path
) -> None:
    # GIVEN a line WHEN a function of it is diagnosed, and captured
    function, x = function_of(line, tmp_path / "line.py"), torch.randn(4, 4).to(DEVICE)
    with torch.no_grad():
        found = pgk.diagnose(function, x)
        told = [f for f in found.failures if not BY_ID[f.code].silent and f.code != "empty-graph"]
        captured: BaseException | None = None
        try:
            with pgk.diagnose.capture(pgk.cuda.CUDAGraph()):
                function(x)
        except Exception as error:
            captured = error
    # THEN both refuse it, at this line, or neither does
    assert bool(told) is is_refused, str(found)
    assert (captured is not None) is is_refused, captured
    assert all(f.frame is not None and f.frame.line == 2 for f in told)


@pytest.mark.parametrize(
    ("does", "code"),
    [("print(grad.norm())", "print"), ("cuda.synchronize()", "synchronize"), ("grad.sum().item()", "sync-item")],
)
def test_what_a_hook_does_on_autograds_thread_is_told_at_its_line(does: str, code: str, tmp_path: Path) -> None:
    # GIVEN a backward with a hook that waits, which autograd calls on a thread of its own
    lines = ["def step(x):", "    y = (x * 2).requires_grad_()", f"    y.register_hook(lambda grad: {does})"]
    file = tmp_path / "hook.py"
    file.write_text("\n".join([*lines, "    (y * y).sum().backward()", ""]))
    names: dict[str, Any] = {"cuda": pgk.cuda}
    exec(compile(file.read_text(), str(file), "exec"), names)
    # WHEN it is diagnosed THEN that is found, where it is written
    with torch.enable_grad():
        found = pgk.diagnose(names["step"], torch.ones(4, device=DEVICE))
    told = [(f.code, f.frame.line) for f in found.failures if f.frame is not None]
    assert (code, 3) in told, str(found)


@pytest.mark.parametrize("drop", ["", "F.dropout"])
def test_what_a_checkpoint_computes_again_is_made_where_the_backward_is(drop: str, cuda: Any) -> None:
    # GIVEN a checkpoint that calls the engine from within itself, of an input that needs gradients
    layer, x = nn.Linear(4, 1).to(DEVICE), torch.ones(2, 4).to(DEVICE).requires_grad_()
    inner = (lambda t: F.dropout(layer(t))) if drop else layer

    def step() -> None:
        layer.zero_grad(set_to_none=False)
        checkpoint(inner, x, use_reentrant=True).sum().backward()

    # WHEN it is diagnosed, and captured after a call on a stream of its own THEN neither has anything against it
    with torch.enable_grad():
        side = cuda.Stream()
        with cuda.stream(side):
            step()
        assert pgk.diagnose(step).codes == ()
        with cuda.graph(cuda.CUDAGraph()):
            step()
