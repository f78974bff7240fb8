"""Fixes that move the host's work before a launch, and those that rewrite what a first rewrite has shown."""

from __future__ import annotations

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite.proving.leading import leads_back
from paramgraph_kit.rewrite.proving.proof import Prover, Truth
from tests.integration.rewritten import Fixed, Program, changed, lines_of
from tests.programs.running import captured, differences, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")


# what is before the function, its lines, and what the diff takes out and puts in (lines that only move do neither)
BEFORE = {
    "a tensor of numbers that Python draws": (
        "",
        (
            "    angle = random.uniform(-1, 1)\n"
            "    k = torch.tensor([angle, 1.0, 2.0, 3.0], device=x.device)\n    return x * k\n"
        ),
        [
            "+k_in = torch.zeros(4, device=device)",
            "+",
            "+def before_f(x):  # before each launch",
            "+    angle = random.uniform(-1, 1)",
            "+    k_in.copy_(torch.tensor([angle, 1.0, 2.0, 3.0], device=x.device))",
            "+",
            "-    angle = random.uniform(-1, 1)",
            "-    k = torch.tensor([angle, 1.0, 2.0, 3.0], device=x.device)",
            "+    k = k_in",
        ],
    ),
    "a number that numpy draws, twice": (
        "",
        "    lam = np.random.beta(0.5, 0.5)\n    return lam * x + (1 - lam) * x.flip(0)\n",
        [
            "+lam_in = torch.zeros((), device=device)",
            "+",
            "+def before_f():  # before each launch",
            "+    lam = np.random.beta(0.5, 0.5)",
            "+    lam_in.fill_(lam)",
            "+",
            "-    lam = np.random.beta(0.5, 0.5)",
            "-    return lam * x + (1 - lam) * x.flip(0)",
            "+    return lam_in * x + (1 - lam_in) * x.flip(0)",
        ],
    ),
    "a number that is drawn, which fills a tensor like another": (
        "",
        "    smooth = random.uniform(0.8, 1.0)\n    return torch.full_like(x.relu(), 1 - smooth) * x\n",
        [
            "+smooth_in = torch.zeros((), device=device)",
            "+",
            "+def before_f():  # before each launch",
            "+    smooth = random.uniform(0.8, 1.0)",
            "+    smooth_in.fill_(smooth)",
            "+",
            "-    smooth = random.uniform(0.8, 1.0)",
            "-    return torch.full_like(x.relu(), 1 - smooth) * x",
            "+    return torch.empty_like(x.relu()).copy_(1 - smooth_in) * x",
        ],
    ),
    "a list of indices that is drawn": (
        "",
        "    rows = random.sample(range(4), 2)\n    return x[rows] * 2\n",
        [
            "+rows_in = torch.zeros(2, dtype=torch.int64, device=device)",
            "+",
            "+def before_f():  # before each launch",
            "+    rows = random.sample(range(4), 2)",
            "+    rows_in.copy_(torch.as_tensor(rows))",
            "+",
            "-    rows = random.sample(range(4), 2)",
            "-    return x[rows] * 2",
            "+    return x[rows_in] * 2",
        ],
    ),
    "a counter that divides": (
        "calls = 0\n",
        "    global calls\n    calls += 1\n    return x / math.sqrt(calls)\n",
        [
            "-def f(x):",
            "+given_in = torch.zeros((), device=device)",
            "+",
            "+def before_f():  # before each launch",
            "-    return x / math.sqrt(calls)",
            "+    given_in.fill_(math.sqrt(calls))",
            "+",
            "+def f(x):",
            "+    return x / given_in",
        ],
    ),
    "a state of the host's behind a call": (
        (
            "class Noise:\n    state = 0.0\n    def __call__(self):\n        self.state = 0.5 * self.state + 1.0\n"
            "        return [self.state] * 4\nnoise = Noise()\n"
        ),
        "    return x + torch.tensor(noise(), device=x.device)\n",
        [
            "+given_in = torch.zeros(4, device=device)",
            "+",
            "+def before_f(x):  # before each launch",
            "+    given_in.copy_(torch.tensor(noise(), device=x.device))",
            "+",
            "-    return x + torch.tensor(noise(), device=x.device)",
            "+    return x + given_in",
        ],
    ),
    "a way out that Python takes by chance": (
        "",
        "    if random.random() > 0.5:\n        return x\n    y = x * 2\n    return y + 1\n",
        [
            "+given_in = torch.zeros((), dtype=torch.bool, device=device)",
            "+",
            "+def before_f():  # before each launch",
            "+    given_in.fill_(random.random() > 0.5)",
            "+",
            "-    if random.random() > 0.5:",
            "-        return x",
            "+    early = x",
            "-    return y + 1",
            "+    return torch.where(given_in, early, y + 1)",
        ],
    ),
    "a replay buffer in a list": (
        "buffer = [(np.full(4, i, np.float32), float(i)) for i in range(9)]\n",
        (
            "    batch = random.sample(buffer, 3)\n"
            "    seen = torch.from_numpy(np.stack([b[0] for b in batch])).to(device)\n"
            "    given = torch.tensor([b[1] for b in batch], device=device)\n    return x[:3] * seen + given[:, None]\n"
        ),
        [
            "+seen_in = torch.zeros(3, 4, device=device)",
            "+given_in = torch.zeros(3, device=device)",
            "+",
            "+def before_f():  # before each launch",
            "+    batch = random.sample(buffer, 3)",
            "+    seen_in.copy_(torch.from_numpy(np.stack([b[0] for b in batch])).to(device))",
            "+    given_in.copy_(torch.tensor([b[1] for b in batch], device=device))",
            "+",
            "-    batch = random.sample(buffer, 3)",
            "-    seen = torch.from_numpy(np.stack([b[0] for b in batch])).to(device)",
            "-    given = torch.tensor([b[1] for b in batch], device=device)",
            "+    seen = seen_in",
            "+    given = given_in",
        ],
    ),
    "a ring buffer with a position": (
        "ring, at, full = torch.zeros(8, 4, 4, device=device), 0, False\n",
        (
            "    global at, full\n    ring[at] = x\n"
            "    full = full or at == 7\n    at = (at + 1) % 8\n    return ring.mean()\n"
        ),
        [
            "+at_in = torch.zeros(1, dtype=torch.int64, device=device)",
            "+",
            "+def before_f():  # before each launch",
            "+    at_in.fill_(at)",
            "+",
            "+    global at",
            "+    ring[at_in] = x",
            "+    return ring.mean()",
            "+",
            "+def after_f():  # after each launch",  # with what these calls have not changed
            "-    ring[at] = x",
            "-    return ring.mean()",
        ],
    ),
}


@pytest.mark.parametrize("name", BEFORE)
def test_what_the_host_finds_first_is_written_before_each_launch(name: str, program: Program) -> None:
    # GIVEN a function whose host work a graph would freeze, or refuse
    setup, body, wanted = BEFORE[name]
    text = f"{setup}args = (torch.randn(4, 4, device=device),)\ndef f(x):\n{body}"
    names = program(text)
    # WHEN it is to be fixed
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN that work is a function of its own, which writes what the graph reads
    assert fix is not None
    assert changed(fix.diff) == wanted, str(fix)
    assert fix.complete, str(fix)
    assert "before each launch" in fix.usage
    # and ten steps from one graph give eager's numbers and state, other random numbers of the host included
    truth = eager(program(text), "f")
    with fix.applied():
        assert differences(truth, captured(names, "f", fix.around), set()) == []


TWICE = {
    "a branch around a mask": (
        (
            "    m = x > 0\n    y = torch.zeros(2, device=x.device)\n"
            "    if m.any():\n        y[0] = x[m].mean()\n    return y\n"
        ),
        [
            "-    if m.any():",
            "-        y[0] = x[m].mean()",
            (
                "+    y[0] = torch.where(m.any(), (torch.where(m, x, 0)"
                ".sum(dtype=torch.float32) / m.sum()).type_as(x), y[0])"
            ),
        ],
    ),
    "two assignments in a branch": (
        "    y = x.sum()\n    if y > 0 and x.max() > 1:\n        z = x * 2\n        y += z.mean()\n    return y\n",
        [
            "-    if y > 0 and x.max() > 1:",
            "-        z = x * 2",
            "-        y += z.mean()",
            "+    chosen = (y > 0) & (x.max() > 1)",
            "+    z = x * 2",
            "+    y += torch.where(chosen, z.mean(), 0)",
        ],
    ),
    "a list of indices that is given a number": (
        "    y = x.clone()\n    y[[0, 2]] = -1.0\n    return y\n",
        [
            "+index = torch.tensor([0, 2], device=device)",
            "-    y[[0, 2]] = -1.0",
            "+    y[index] = torch.full((), -1.0, dtype=y.dtype, device=y.device)",
        ],
    ),
    "losses of what a mask picks": (
        "    m = x[:, 0] > 0\n    p = x * 2\n    return F.mse_loss(p[m], x[m])\n",
        [
            "-    return F.mse_loss(p[m], x[m])",
            (
                '+    return torch.where(m[..., None], F.mse_loss(p, x, reduction="none"), 0).sum()'
                " / m.sum() / p.shape[-1]"
            ),
        ],
    ),
    "the larger of two": (
        "    return x / max(x.max(), 1.0)\n",
        ["-    return x / max(x.max(), 1.0)", "+    return x / x.max().clamp(min=1.0)"],
    ),
    "two assertions": (
        "    assert x.min() > -99 and x.max() < 99\n    return x * 2\n",
        [
            "-    assert x.min() > -99 and x.max() < 99",
            "+    torch._assert_async((x.min() > -99) & (x.max() < 99))",
        ],
    ),
    "counts": (
        "    i = x.argmax(1)\n    return torch.bincount(i, minlength=4)\n",
        [
            "-    return torch.bincount(i, minlength=4)",
            "+    return torch.zeros(4, dtype=torch.long, device=i.device).scatter_add_(0, i, torch.ones_like(i))",
        ],
    ),
    "a list that is gone through": (
        (
            "    total = 0.0\n    sums = []\n"
            "    for v in x[0].tolist():\n        total = total * 0.5 + v\n        sums.append(total)\n"
            "    return torch.tensor(sums, device=x.device)\n"
        ),
        [
            "-    for v in x[0].tolist():",
            "+    for v in x[0].unbind():",
            "-    return torch.tensor(sums, device=x.device)",
            "+    return torch.stack(sums)",
        ],
    ),
    "two constants": (
        (
            "    a = torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device).view(1, 4)\n"
            "    return x * a + torch.tensor([5.0, 6.0, 7.0, 8.0], device=x.device)\n"
        ),
        [
            "+constant_on_device = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device)",
            "+constant_on_device_2 = torch.tensor([5.0, 6.0, 7.0, 8.0], device=device)",
            "-    a = torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device).view(1, 4)",
            "-    return x * a + torch.tensor([5.0, 6.0, 7.0, 8.0], device=x.device)",
            "+    a = constant_on_device.view(1, 4)",
            "+    return x * a + constant_on_device_2",
        ],
    ),
}


@pytest.mark.parametrize("name", TWICE)
def test_what_a_rewrite_leaves_is_rewritten_again(name: str, program: Program) -> None:
    # GIVEN a function WHEN it is to be fixed
    body, wanted = TWICE[name]
    names = program(f"args = (torch.randn(4, 4, device=device),)\ndef f(x):\n{body}")
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN all of it is
    assert fix is not None
    assert changed(fix.diff) == wanted, str(fix)
    assert fix.complete, str(fix)


def test_what_the_device_computes_is_not_moved_before_the_launch(program: Program) -> None:
    # GIVEN host work that needs a result of the function's own
    names = program(
        "args = (torch.randn(4, 4, device=device),)\n"
        "def f(x):\n    y = x * 2\n"
        "    k = torch.tensor([y.sum().item() * 2.0], device=x.device)\n    return y * k\n"
    )
    # WHEN it is to be fixed THEN it goes behind the launch, and the diff says how little that leaves
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix is not None
    assert "before_f" not in fix.diff
    assert "+    return y.detach()\n" in fix.diff
    assert "1 of 3 operations of a step are in the graph" in str(fix)


UNSAFE = {
    "a step that adds to gradients, and is skipped where a loss is not finite": (
        "model = nn.Linear(4, 1).to(device)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n",
        (
            "    loss = model(x).square().mean()\n    if not torch.isfinite(loss):\n        return loss.detach()\n"
            "    loss.backward()\n    opt.step()\n    return loss.detach()\n"
        ),
    ),
    "a size that is drawn": ("", "    n = random.choice([2, 3])\n    return F.pad(x, (n, 4 - n))\n"),
    "a number of rows that is counted": (
        "",
        "    return torch.randn(int((x > 0).sum()), 2, device=x.device).mean() * 0 + x.mean()\n",
    ),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_what_these_calls_do_not_show_is_not_rewritten(name: str, program: Program) -> None:
    # GIVEN a branch that no call takes, around work that has effects; and numbers that are sizes
    setup, body = UNSAFE[name]
    names = program(f"{setup}args = (torch.randn(4, 4, device=device),)\ndef f(x):\n{body}")
    # WHEN it is to be fixed THEN its lines stay
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix is not None
    assert (fix.diff, fix.complete) == ("", False), str(fix)


def test_a_scaler_s_step_moves_with_what_it_needs(program: Program) -> None:
    # GIVEN gradients that are unscaled and clipped before the scaler's step
    text = (
        "model = nn.Linear(4, 1).to(device)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "scaler = torch.amp.GradScaler(device.type, init_scale=8.0)\nargs = (torch.randn(4, 4, device=device),)\n"
        "def f(x):\n    opt.zero_grad()\n    loss = model(x).square().mean()\n    scaler.scale(loss).backward()\n"
        "    scaler.unscale_(opt)\n    nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n    scaler.step(opt)\n"
        "    scaler.update()\n    return loss.detach()\n"
    )
    names = program(text)
    # WHEN fixed THEN all of that runs after each launch, and gives eager's numbers
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix is not None
    assert fix.complete, str(fix)
    assert "-    return loss.detach()" in fix.diff  # and so do the four lines before it
    truth = eager(program(text), "f")
    with fix.applied():
        assert differences(truth, captured(names, "f", fix.around), set()) == []


def test_generators_of_the_user_s_are_put_back_after_a_fix(program: Program) -> None:
    # GIVEN a function with a generator of its own
    names = program(
        "generator = torch.Generator().manual_seed(3)\nargs = (torch.randn(4, device=device),)\n"
        "def f(x):\n    return x + torch.randn(4, generator=generator).to(device)\n"
    )
    before = names["generator"].get_state()
    # WHEN it is diagnosed and fixed THEN it draws what it would have drawn
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix is not None
    assert fix.complete
    assert torch.equal(names["generator"].get_state(), before)


def test_threads_and_early_ways_out_are_told_at_their_lines(program: Program) -> None:
    # GIVEN work in a thread, and one in a pool of threads
    names = program(
        "import threading\nfrom concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\n"
        "args = (torch.randn(4, device=device),)\nkept = {}\n"
        "def work(x):\n    kept['y'] = x * 2\n"
        "def started(x):\n    t = threading.Thread(target=work, args=(x,))\n"
        "    t.start()\n    t.join()\n    return kept.pop('y') + 1\n"
        "def pooled(x):\n    return pool.submit(lambda: x * 2).result() + 1\n"
        "def waiting(x):\n    pool.submit(cuda.synchronize).result()\n    return x + 1\n"
    )
    # WHEN diagnosed THEN it is none of the capture's
    for name, code, line in (
        ("started", "work-elsewhere", "kept['y'] = x * 2"),
        ("pooled", "work-elsewhere", "lambda"),
    ):
        found = pgk.diagnose(names[name], *names["args"])
        assert [f.code for f in found.failures if f.frame and line in f.frame.text] == [code], str(found)
    assert "background-wait" in pgk.diagnose(names["waiting"], *names["args"]).codes


def test_what_moves_out_of_a_context_without_gradients_takes_it_along(fixed: Fixed) -> None:
    # GIVEN an average of weights that is left as it is now and then, without gradients, behind a step WHEN rewritten
    found = fixed("""
net = nn.Linear(4, 2).to(device)
ema = [torch.zeros_like(p) for p in net.parameters()]
opt = torch.optim.SGD(net.parameters(), lr=0.1)
n = 0
args = (torch.randn(4, 4, device=device),)
def f(x):
    global n
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        if n % 2 == 0:
            torch._foreach_lerp_(ema, list(net.parameters()), 0.1)
    n += 1
    return loss.detach()
""")
    # THEN the average is computed without them there, too, and no empty context stays
    assert found.complete, found
    assert found.diff.index("# after each launch") < found.diff.index("with torch.no_grad():"), found
    assert "pass" not in lines_of(found), found


@pytest.mark.parametrize("needs", ["", ", requires_grad=True"], ids=["inputs without gradients", "inputs with"])
def test_gradients_go_back_from_a_loss_whose_end_runs_behind_the_launch(fixed: Fixed, needs: str) -> None:
    # GIVEN a loss over what a mask picks, with a number of it WHEN its end goes behind the launch
    found = fixed(f"""
args = (torch.randn(6, 4, device=device{needs}), torch.randn(4, 6, device=device))
def f(x, w):
    d = (x @ w).tanh()
    d = d * d.sigmoid() + x.square().mean()
    hard = d[d > 0.1]
    n = hard.size(0)
    if n == 0:
        return torch.zeros((), device=x.device), 0.0
    part = n / d.sum().item()
    return hard.sum() / (n + 1e-16), part
""")
    # THEN what a launch hands over is no other tensor in eager code, and what a launch does not do is told
    assert found.complete, found
    assert "return d" in lines_of(found), found.diff
    assert any("through no launch of a graph" in each for each in found.verified), found


def test_a_result_that_gradients_no_longer_go_back_from_is_no_longer_the_same() -> None:
    # GIVEN a step's result, and one with the same numbers that gradients do not go back from
    weight = torch.ones(2, requires_grad=True)
    prover = Prover(lambda: (weight * weight).sum(), (), {})
    truth = Truth(prover)
    prover.function = lambda: (weight * weight).sum().detach()
    apart = prover.eager()
    # WHEN they are compared THEN that is told; where the step has run its backward pass itself there are none
    assert truth.wrong(apart) == ["whether gradients go back from what it returns: they do, then no more"]
    loss = (weight * weight).sum()
    assert leads_back(loss * 2)
    torch.autograd.backward(loss)
    assert not leads_back(loss * 2)


@pytest.mark.parametrize("zeroed", ["", "opt.zero_grad(set_to_none=False)"], ids=["they add up", "they are zeroed"])
def test_gradients_that_add_up_over_launches_are_asked_for_before_the_capture(fixed: Fixed, zeroed: str) -> None:
    # GIVEN a step whose gradients add up over two launches, or are zeroed in it WHEN its counts go behind the launch
    found = fixed(f"""
net, n = nn.Linear(4, 2).to(device), 0
opt = torch.optim.SGD(net.parameters(), lr=0.1)
args = (torch.randn(4, 4, device=device),)
def f(x):
    global n
    {zeroed or "pass"}
    loss = net(x).square().mean()
    loss.backward()
    n += 1
    if n % 2 == 0:
        opt.step()
        opt.zero_grad()
    return loss.detach()
""")
    # THEN that they have to be there is told where they are added to, with the module's name
    assert found.complete, found
    told = "`for p in net.parameters(): p.grad = torch.zeros_like(p) if p.grad is None else p.grad`"
    assert any(told in each for each in found.verified) == (not zeroed), found
