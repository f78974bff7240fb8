"""Programs of our own for what the recorded 93 do not cover, and what the doctor has to say to each.

``python scripts/record_cases.py`` runs them on a GPU and writes what happened to ``tests/data/h200_own_cases.json``, in
the format of the others; ``C`` is torch.cuda.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[1] / "data" / "h200_own_cases.json"

_X = "x=torch.ones(4,device='cuda');g=C.CUDAGraph();s=C.Stream()\n"
_P = "p=torch.ones(4,device='cuda',requires_grad=True);g=C.CUDAGraph();s=C.Stream()\n"
_MODEL = """\
torch.manual_seed(0)
m=nn.Linear(4,4).cuda();x=torch.ones(2,4,device='cuda');g=C.CUDAGraph();s=C.Stream()
def step():
    m.zero_grad()
    m(m(x)).sum().backward()
{alive}
s.wait_stream(C.current_stream())
with C.stream(s):
    for _ in range(3): step()
C.current_stream().wait_stream(s)
with C.graph(g):
    step()
g.replay();print(m.bias.grad is not None)
"""
_TRAINED = """\
p=nn.Parameter(torch.ones(2,device='cuda'));x=torch.full((2,),3.,device='cuda');g=C.CUDAGraph();s=C.Stream()
o=torch.optim.SGD([p],lr=.5)
with C.stream(s): (p*x).sum().backward()
C.current_stream().wait_stream(s);p.grad=None
with C.graph(g): (p*x).sum().backward()
for _ in range(2):
    {between}
    g.replay();o.step()
print(p)
"""
_THREAD = """\
E=[]
def r():
    try: torch.empty(1<<28,device='cuda')
    except Exception as q: E.append(str(q).split(chr(10))[0])
with C.graph(g{mode}):
    y=x+1
    h=threading.Thread(target=r);h.start();h.join()
    print(E)
    z=x+2
g.replay();C.synchronize()
"""


def _warm(name: str, setup: str, body: str, code: str | None) -> dict[str, tuple[str, tuple[str, str] | None]]:
    """A case whose body runs on a side stream first, so that libraries are there."""
    program = (
        f"x=torch.randn(4,4,device='cuda');c=torch.ones(4);j=torch.tensor(2,device='cuda');g=C.CUDAGraph()\n{setup}\n"
        f"def f():\n    {body}\ns=C.Stream();s.wait_stream(C.current_stream())\nwith C.stream(s): f()\n"
        "C.current_stream().wait_stream(s)\nwith C.graph(g): f()\ng.replay();C.synchronize()\n"
    )
    return {name: (program, (code, body) if code else None)}


# name: (program, (class, beginning of the line) that the doctor has to tell, or None where it succeeds)
OWN: dict[str, tuple[str, tuple[str, str] | None]] = {
    # memory for streams and threads that are not captured
    "strm.aside": (_X + "with C.graph(g):\n    with C.stream(s):\n        y=x*2\n", ("not-forked", "y=x*2")),
    "strm.aside.thread_local": (
        _X + "with C.graph(g,capture_error_mode='thread_local'):\n    with C.stream(s):\n        y=x*2\n",
        ("not-forked", "y=x*2"),
    ),
    "strm.aside.relaxed": (
        _X + "with C.graph(g,capture_error_mode='relaxed'):\n    with C.stream(s):\n        y=x*2\n    "
        "C.current_stream().wait_stream(s)\n",
        ("isolation", "C.current_stream().wait_stream(s)"),
    ),
    "strm.aside.helper": (
        _X + "def helper(a):\n    b=a*2\n    return b\nwith C.graph(g):\n    with C.stream(s):\n        y=helper(x)\n",
        ("not-forked", "b=a*2"),
    ),
    "strm.aside.with_stream": (
        _X + "with C.graph(g):\n    with s:\n        y=x*2\n",
        ("not-forked", "y=x*2"),
    ),
    "strm.aside.in_place": (
        _X + "with C.graph(g):\n    with C.stream(s):\n        x.mul_(2)\n    y=x+1\n"
        "g.replay();C.synchronize();print(x,y)\n",
        None,
    ),
    "strm.default_memory": (
        _X + "with C.graph(g):\n    with C.stream(C.default_stream()):\n        y=torch.empty(1<<28,device='cuda')\n"
        "    z=x+1\n",
        ("not-forked", "y=torch.empty("),
    ),
    "strm.backward": (
        _P + "def step():\n    p.grad=None\n    s.wait_stream(C.current_stream())\n    with C.stream(s): y=p*2\n"
        "    z=p+1\n    C.current_stream().wait_stream(s)\n    (y*z).sum().backward()\n"
        "w=C.Stream()\nwith C.stream(w): step()\nC.current_stream().wait_stream(w)\n"
        "with C.graph(g): step()\ng.replay();C.synchronize();print(p.grad)\n",
        None,
    ),
    "thr.global.memory": (_X + _THREAD.format(mode=""), ("background-memory", "z=x+2")),
    "thr.thread_local.memory": (_X + _THREAD.format(mode=",capture_error_mode='thread_local'"), None),
    # captures ended that never began
    "api.end.other_stream": (
        _X + "with C.stream(s):\n    y=x*2\n    g.capture_end()\n",
        ("end-without-begin", "g.capture_end()"),
    ),
    "api.end.same_stream": (
        _X + "with C.stream(s):\n    g=C.CUDAGraph()\n    y=x*2\n    g.capture_end()\n",
        ("end-without-begin", "g.capture_end()"),
    ),
    "api.end.default_stream": (_X + "y=x*2\ng.capture_end()\n", ("end-without-begin", "g.capture_end()")),
    "api.end.wrong_stream": (
        _X + "with C.stream(s):\n    g.capture_begin()\n    y=x*2\ng.capture_end()\n",
        ("wrong-end-stream", "g.capture_end()"),
    ),
    "api.end.in_anothers": (
        _X + "h=C.CUDAGraph()\nwith C.graph(h):\n    y=x*2\n    g.capture_end()\n",
        ("end-without-begin", "g.capture_end()"),
    ),
    "api.end.anothers": (
        _X + "h=C.CUDAGraph()\nwith C.stream(s):\n    g=C.CUDAGraph()\n    h.capture_begin()\n    y=x*2\n"
        "    g.capture_end()\n",
        ("end-without-begin", "g.capture_end()"),
    ),
    "api.end.twice": (
        _X + "with C.stream(s):\n    g.capture_begin()\n    y=x*2\n    g.capture_end()\n    g.capture_end()\n",
        ("end-without-begin", "g.capture_end()"),
    ),
    "api.replay_in_capture": (
        _X + "h=C.CUDAGraph()\nwith C.graph(g): y=x*2\nwith C.graph(h):\n    g.replay()\n    z=y+1\n"
        "x.fill_(5);h.replay();C.synchronize();print(y,z)\n",
        ("replay-in-capture", "g.replay()"),
    ),
    # what is alive of the default stream
    "ag.alive.nothing": (_MODEL.format(alive="step()"), None),
    "ag.alive.detached": (_MODEL.format(alive="kept=[p.detach().clone() for p in m.parameters()]"), None),
    "ag.alive.clones": (
        _MODEL.format(alive="kept=[p.clone() for p in m.parameters()]"),
        ("legacy-stream", "m(m(x)).sum().backward()"),
    ),
    "ag.alive.output": (_MODEL.format(alive="kept=m(x)"), ("legacy-stream", "m(m(x)).sum().backward()")),
    "ag.alive.nodes": (
        _MODEL.format(alive="kept=[torch.autograd.graph.get_gradient_edge(p) for p in m.parameters()]"),
        ("legacy-stream", "m(m(x)).sum().backward()"),
    ),
    "ag.hook_raises": (
        _P + "def hook(q): raise ValueError('mine')\n"
        "with C.graph(g):\n    y=p*2\n    y.register_hook(hook)\n    y.sum().backward()\n",
        ("unknown", "def hook(q): raise ValueError('mine')"),
    ),
    # gradients between replays
    "sil.gradients.none": (_TRAINED.format(between="o.zero_grad()"), None),
    "sil.gradients.zero": (_TRAINED.format(between="o.zero_grad(set_to_none=False)"), None),
    "sil.gradients.kept": (_TRAINED.format(between="pass"), None),
    # the number of a tensor is wanted where nothing says so
    **_warm("wait.list_item", "words=['a','b','c','d']", "words[j]", "sync-item"),
    **_warm("wait.math", "import math", "math.sqrt(x.sum().abs())", "sync-item"),
    **_warm("wait.percent", "", "'%.2f' % x.sum()", "print"),
    **_warm("wait.full", "", "torch.full((2,),x.sum(),device='cuda')", "sync-item"),
    **_warm("wait.range", "", "for i in range(j): pass", "tensor-bound"),
    **_warm("wait.reshape", "", "x.reshape(j,-1)", "tensor-bound"),
    **_warm("wait.column", "", "x[:,:j]", "tensor-bound"),
    **_warm("wait.select", "", "x[j]", "tensor-bound"),
    **_warm("wait.where", "", "torch.where(x>0)", "dynamic-shape"),
    **_warm("wait.assert_close", "", "torch.testing.assert_close(x,x.clone())", "compare-on-cpu"),
    # kernels that wait inside
    **_warm("wait.svd", "", "torch.linalg.svd(x)", "linalg-host"),
    **_warm("wait.eigh", "", "torch.linalg.eigh(x@x.t())", "linalg-host"),
    **_warm("wait.eig", "", "torch.linalg.eig(x)", "linalg-host"),
    **_warm("wait.cholesky", "", "torch.linalg.cholesky(torch.eye(4,device='cuda'))", "linalg-check"),
    **_warm("wait.solve", "", "torch.linalg.solve(x,x)", "linalg-check"),
    **_warm("wait.det", "", "torch.linalg.det(x)", None),
    **_warm("wait.embedding", "e=nn.Embedding(9,4,max_norm=1.).cuda();i=j[None]", "e(i)", None),
    # copies of pageable memory
    **_warm("copy.item", "", "x[0]=c", "copy-to-gpu"),
    **_warm("copy.type_as", "", "c.type_as(x)", "copy-to-gpu"),
    **_warm("copy.save", "", "torch.save(x,io.BytesIO())", "copy-to-cpu"),
    # seeds
    **_warm("rng.other_seed", "seeds=iter(range(9))", "C.manual_seed(next(seeds))", "rng-state"),
    **_warm("rng.same_seed", "k=C.initial_seed()", "C.manual_seed(k)", None),
    **_warm("rng.initial_seed", "", "C.initial_seed()", None),
}


# Recorded, and not to be compared: what happened there is not what happens each time.
UNKNOWABLE = {"api.end.anothers": "torch reads an error's text from memory that it has freed"}


def recorded() -> dict[str, dict[str, Any]]:
    """What an H200 did with them, by name, but for what cannot be known; nothing where that was not recorded yet."""
    if not RECORDED.exists():
        return {}
    found: dict[str, dict[str, Any]] = json.loads(RECORDED.read_text(encoding="utf-8"))["cases"]
    return {name: case for name, case in found.items() if name not in UNKNOWABLE}
