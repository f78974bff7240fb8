"""Programs that warm up, capture and replay by themselves: what is wrong is told in the capture, and around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

# What each program does in its place of the frame below, and what is told of it: codes with the begins of their lines.
FRAME = """
import threading
def warm(step):
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(2):
            step()
    cuda.current_stream().wait_stream(side)
def show(*tensors):
    for each in tensors:
        print(each.tolist())
def program():
    host = torch.full((3,), 2.0)
    x = host.to(device)
    g = cuda.CUDAGraph()
BODY
"""
WRONG = {
    "a wait in a function that is captured": (
        """
def step():
    return x / x.sum().item()
warm(step)
with cuda.graph(g):
    y = step()
g.replay()
show(y)
""",
        {"sync-item": "return x / x.sum().item()"},
    ),
    "a wait in the lines of the capture": (
        """
warm(lambda: x + 1)
with cuda.graph(g):
    y = x + 1
    z = y[y > 2]
g.replay()
show(z)
""",
        {"dynamic-shape": "z = y[y > 2]"},
    ),
    "an error of torch's own": (
        """
def step():
    return x + torch.tensor([1.0, 2.0, 3.0]).to(device)
warm(step)
with cuda.graph(g):
    y = step()
""",
        {"copy-to-gpu": "return x + torch.tensor"},
    ),
    "two waits in the lines of a capture": (
        """
with cuda.graph(g):
    y = x * 2 + torch.tensor([1.0, 2.0, 3.0]).to(device)
    z = y[y > 2].sum()
g.replay()
show(z)
""",
        {"copy-to-gpu": "y = x * 2 + torch.tensor", "dynamic-shape": "z = y[y > 2].sum()"},
    ),
    "a wait that a helper's lines swallow": (
        """
try:
    with cuda.graph(g):
        k = x.sum().item()
except RuntimeError:
    pass
show(x)
""",
        {"sync-item": "k = x.sum().item()"},
    ),
    "an input that is exchanged": (
        """
with cuda.graph(g):
    y = x * 2
for k in range(3):
    held, x = x, torch.full((3,), 5.0 + k).to(device)
    g.replay()
show(y)
""",
        {"stale-input": "held, x = x,"},
    ),
    "an input that is exchanged, kept alive": (
        """
with cuda.graph(g):
    y = x * 2
kept = x
x = host.to(device) + 1
g.replay()
show(y)
""",
        {"stale-input": "x = host.to(device) + 1"},
    ),
    "results that are kept": (
        """
with cuda.graph(g):
    y = x * 2
all = []
for k in range(3):
    x.fill_(k)
    g.replay()
    all.append(y)
show(*all)
""",
        {"output-alias": "all.append(y)"},
    ),
    "views of results that are kept": (
        """
with cuda.graph(g):
    y = (x * 2).sum()
all = []
for k in range(3):
    g.replay()
    all.append(y.detach())
show(*all)
""",
        {"output-alias": "all.append(y.detach())"},
    ),
    "a number of an object": (
        """
class Scaled(nn.Module):
    scale = 1.0
    def __init__(self):
        super().__init__()
        self.scale = 1.0
    def forward(self, t):
        return t * self.scale
net = Scaled()
with cuda.graph(g):
    y = net(x)
net.scale = 3.0
g.replay()
show(y)
""",
        {"scalar-frozen": "net.scale = 3.0"},
    ),
    "a mode of a module": (
        """
net = nn.Sequential(nn.ReLU(), nn.Dropout(0.5))
with cuda.graph(g):
    y = net(x)
net.eval()
g.replay()
show(y)
""",
        {"branch-frozen": "net.eval()"},
    ),
    "a result of a capture that never ran": (
        """
with cuda.graph(g):
    y = x * 2
show(y)
g.replay()
""",
        {"not-executed": "show(y)"},
    ),
    "gradients that are gone": (
        """
net = nn.Linear(3, 1).to(device)
def step():
    net(x).sum().backward()
warm(step)
net.zero_grad(set_to_none=True)
with cuda.graph(g):
    step()
net.zero_grad()
g.replay()
""",
        {"gradients-rebound": "net.zero_grad()"},
    ),
    "weights of another type": (
        """
net = nn.Linear(3, 1).to(device).requires_grad_(False)
net(x)
with cuda.graph(g):
    y = net(x)
kept = net.weight.data, net.bias.data
net.double()
g.replay()
show(y)
""",
        {"parameter-rebound": "net.double()"},
    ),
    "autocast around the capture": (
        """
net = nn.Linear(3, 1).to(device)
with torch.autocast(device.type, dtype=torch.bfloat16):
    net(x)
    with cuda.graph(g):
        y = net(x)
    g.replay()
""",
        {"autocast-cache": "y = net(x)"},
    ),
    "a counter": (
        """
n = 0
def step():
    nonlocal n
    n += 1
    return x * n
warm(step)
with cuda.graph(g):
    y = step()
g.replay()
show(y)
""",
        {"host-counter": "n += 1", "scalar-frozen": "return x * n"},
    ),
    "a number that is another one later": (
        """
rate = 0.5
with cuda.graph(g):
    y = x * rate
rate = 0.25
g.replay()
show(y)
""",
        {"scalar-frozen": "rate = 0.25"},
    ),
    "a number of a loop": (
        """
rate = 0.5
with cuda.graph(g):
    y = x * rate
for rate in (0.5, 0.25):
    g.replay()
    show(y)
""",
        {"scalar-frozen": "for rate in (0.5, 0.25):"},
    ),
    "a rate that a scheduler moves": (
        """
net = nn.Linear(3, 1).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
def step():
    optimizer.zero_grad(set_to_none=False)
    net(x).sum().backward()
    optimizer.step()
warm(step)
with cuda.graph(g):
    step()
for _ in range(3):
    g.replay()
    scheduler.step()
""",
        {"learning-rate-frozen": "scheduler.step()"},
    ),
    "an attribute that is exchanged": (
        """
class Runner:
    def __init__(self, x):
        self.x, self.g = x, cuda.CUDAGraph()
        with cuda.graph(self.g):
            self.y = self.x * 2
    def __call__(self, x):
        self.x = x
        self.g.replay()
        return self.y
kept = x
show(Runner(x)(x + 1))
""",
        {"stale-input": "self.x = x"},
    ),
    "the default stream": (
        """
g.capture_begin()
y = x + 1
g.capture_end()
""",
        {"default-stream": "g.capture_begin()"},
    ),
    "a pool whose graphs take turns": (
        """
a, b = g, cuda.CUDAGraph()
with cuda.graph(a):
    y = x + 1
del y
with cuda.graph(b, pool=a.pool()):
    z = x * 50
b.replay()
a.replay()
show(z)
""",
        {"pool-order": "a.replay()"},
    ),
    "a sample that is used again": (
        """
f = cuda.make_graphed_callables(lambda t: t + 1, (x,))
show(f(x * 5))
show(x)
""",
        {"graphed-sample-overwritten": "f = cuda.make"},
    ),
    "results of what is graphed": (
        """
f = cuda.make_graphed_callables(lambda t: t + 1, (x.clone(),))
show(*[f(x * k) for k in range(3)])
""",
        {"output-alias": "show(*[f(x * k)"},
    ),
    "a variable of what is graphed": (
        """
k = x.clone()
f = cuda.make_graphed_callables(lambda t: t * k, (x.clone(),))
kept, k = k, k + 1
show(f(x))
""",
        {"graphed-closure": "kept, k = k"},
    ),
    "a smaller argument": (
        """
f = cuda.make_graphed_callables(lambda t: t + 1, (x.clone(),))
show(f(x[:1]))
""",
        {"graphed-shape": "show(f(x[:1]))"},
    ),
}
RIGHT = {
    "a step": """
def step():
    return x * 2
warm(step)
with cuda.graph(g):
    y = step()
x.fill_(5)
g.replay()
show(y)
""",
    "results that are copied": """
with cuda.graph(g):
    y = x * 2
all = []
for k in range(3):
    x.copy_(torch.full((3,), 1.0 + k))
    g.replay()
    all.append(y.clone())
show(*all)
""",
    "a table of graphs": """
known = {}
def run(t):
    if t.shape not in known:
        static, graph = t.clone(), cuda.CUDAGraph()
        with cuda.graph(graph):
            out = static * 2
        known[t.shape] = graph, static, out
    graph, static, out = known[t.shape]
    static.copy_(t)
    graph.replay()
    return out.clone()
for n in (2, 3, 2):
    show(run(x[:n] + n))
""",
    "by hand, on a stream": """
side = cuda.Stream()
side.wait_stream(cuda.current_stream())
with cuda.stream(side):
    g.capture_begin()
    y = x + 1
    g.capture_end()
cuda.current_stream().wait_stream(side)
g.replay()
show(y)
""",
    "graphs of many sizes": """
pool, known = cuda.graph_pool_handle(), {}
for n in (1, 2):
    g = cuda.CUDAGraph()
    with cuda.graph(g, pool=pool):
        y = x[:1].repeat(n)
    known[n] = g, y
for n in (2, 1):
    known[n][0].replay()
    show(known[n][1])
""",
    "a graphed module that is trained": """
net = cuda.make_graphed_callables(nn.Linear(3, 1).to(device), (x.clone(),))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for k in range(2):
    optimizer.zero_grad()
    net(x * k).sum().backward()
    optimizer.step()
show(net.weight)
""",
    "in a thread": """
made = {}
def work():
    with cuda.graph(g):
        made['y'] = x + 1
t = threading.Thread(target=work)
t.start()
t.join()
g.replay()
show(made['y'])
""",
}


def _told(body: str, tmp_path: Path, **options: Any) -> Any:
    text = FRAME.replace("BODY", "".join(f"    {line}\n" for line in body.splitlines()))
    return pgk.diagnose(run(text, tmp_path)["program"], **options)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_in_a_program_is_told_at_its_line(name: str, tmp_path: Path) -> None:
    # GIVEN a program that captures, and copies and prints around that WHEN it is diagnosed
    body, expected = WRONG[name]
    found = _told(body, tmp_path)
    # THEN all that is wrong is told, and nothing of what is around the capture
    assert {f.code for f in found} == set(expected)
    assert all(f.frame.text.startswith(expected[f.code]) for f in found)


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_told_of_a_program_that_is_right(name: str, tmp_path: Path) -> None:
    # GIVEN a program that captures as it should WHEN it is diagnosed THEN there is no problem
    assert _told(RIGHT[name], tmp_path).codes == ()


def test_lines_to_write_are_those_of_the_program(tmp_path: Path) -> None:
    # GIVEN what a replay does not see, and results that are kept as they are WHEN they are told
    lines = dict[str, str]()
    exchanged = ("an input that is exchanged, kept alive", "an attribute that is exchanged")
    for name in (*exchanged, "results that are kept", "gradients that are gone", "a number that is another one later"):
        lines |= {
            f"{f.code} at {f.frame.text}": f.fix.splitlines()[-1].split(maxsplit=1)[1]
            for f in _told(WRONG[name][0], tmp_path)
        }
    # THEN the line that stands for each is complete
    assert lines == {
        "stale-input at x = host.to(device) + 1": "x.copy_(host.to(device) + 1)",
        "stale-input at self.x = x": "self.x.copy_(x)",
        "output-alias at all.append(y)": "all.append(y.clone())",
        "gradients-rebound at net.zero_grad()": "net.zero_grad(set_to_none=False)",
        "scalar-frozen at rate = 0.25": (
            "before the capture: rate = torch.full((), 0.5, device='sim'); here: rate.fill_(0.25)"
        ),
    }


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a wait in a function that is captured", "return x / x.sum()"),
        ("an error of torch's own", "return x + constant_on_device"),
        ("two waits in the lines of a capture", "z = torch.where(y > 2, y, 0).sum()"),
    ],
)
def test_what_is_captured_is_rewritten(name: str, line: str, tmp_path: Path) -> None:
    # GIVEN a program whose step cannot be captured WHEN its fix is asked for THEN the step is rewritten, and verified
    found = _told(WRONG[name][0], tmp_path, fix=True)
    assert found.fix is not None
    assert line in found.fix.diff, found.fix


def test_a_generator_that_is_made_in_a_step_is_told_where_it_is_made(tmp_path: Path) -> None:
    # GIVEN a step that makes a generator, and one that keeps it
    text = """
kept = {}
def makes():
    own = torch.Generator(device).manual_seed(5)
    return torch.rand(3, device=device, generator=own)
def keeps():
    own = kept.setdefault(0, torch.Generator(device))
    return torch.rand(3, device=device, generator=own)
"""
    names = run(text, tmp_path)
    # WHEN they are diagnosed
    made, held = pgk.diagnose(names["makes"]), pgk.diagnose(names["keeps"])
    # THEN the line that makes it is told; one that is kept has to be registered only
    assert made.codes == ("generator-made", "unregistered-generator")
    assert "before the capture: own = torch.Generator(device).manual_seed(5); g.register" in made.failure.fix
    assert held.codes == ("unregistered-generator",)
