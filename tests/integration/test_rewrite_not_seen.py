"""Rewrites that a trial's steps cannot tell from right ones: what comes rarely has eager's numbers, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.rewritten import rewritten

# A step that goes on with what it writes now and then, and that reads something before.
SOMETIMES = """
q, target, noise, n = nn.Linear(4, 2).to(device), nn.Linear(4, 2).to(device), torch.zeros(4, 2, device=device), 0
for p in [*q.parameters(), *target.parameters()]:
    p.requires_grad_(False)
double, pairs = nn.Sequential(target, nn.Tanh()), list(zip(target.parameters(), q.parameters()))
args = (torch.randn(4, 4, device=device),)
def gap(x):
    return (q(x) - target(x)).abs()
def sync():
    target.load_state_dict(q.state_dict())
def f(x):
    global n
    g = {}
    n += 1
    if n % 7 == 0:
        {}
    return g + target(x) + noise
"""
COPY = "target.load_state_dict(q.state_dict())"
SHARED = {
    "weights of another module": ("double(x)", COPY),
    "a function's": ("gap(x)", COPY),
    "draws": ("q(x) + torch.randn_like(noise)", f"{COPY}; noise.normal_()"),
    "written by a function": ("q(x)", "sync()"),
    "written by torch's": ("q(x)", "nn.init.normal_(target.weight)"),
    "written in rounds": ("target(x)", "for a, b in pairs: a.lerp_(b, 0.5)"),
}


@pytest.mark.parametrize("head", SHARED)
def test_what_is_written_at_times_keeps_its_place_among_what_reads_it(head: str, tmp_path: Path) -> None:
    # GIVEN a step that goes on with what it writes in each seventh call, also by other names WHEN it is rewritten
    text = SOMETIMES.format(*SHARED[head]).replace(": a.lerp_", ":\n            a.lerp_")
    # THEN nothing goes before what reads it, nor behind what goes on with it
    rewritten(text, tmp_path)


RARE = {
    "weights that another module has, of an object": """
class Agent:
    def __init__(self):
        self.q, self.target, self.n = nn.Linear(4, 2).to(device), nn.Linear(4, 2).to(device), 0
        self.double = nn.Sequential(self.target, nn.Tanh())
    def loss(self, x):
        before = self.double(x).mean()
        self.n += 1
        if self.n % 7 == 0:
            self.target.load_state_dict(self.q.state_dict())
        return F.mse_loss(self.q(x), 0.9 * self.target(x).detach()) + before
args = (torch.randn(4, 4, device=device),)
f = Agent().loss
""",
    "outliers, behind the block that leaves them out": """
robust, args = True, (torch.rand(64, device=device),)
def f(x):
    if robust:
        for _ in range(2):
            x = x[(x - x.mean()).abs() < 4 * x.std()]
    return x.mean() + x.max()
def feed(i):
    x = torch.rand(64, generator=torch.Generator().manual_seed(i))
    x[3] += 100.0 * (i > 4)
    return (x.to(device),)
""",
    "a table that has another name": """
weights = [0.5, 1.5, 2.5, 4.0]
settings = {"weights": weights}
args = (torch.randn(6, device=device), torch.tensor([0, 1, 2, 3, 0, 1], device=device))
def f(x, y):
    return (x * torch.tensor([weights[i] for i in y.tolist()], device=device)).sum()
def after(out, i):
    settings["weights"][i % 4] += 1.0
""",
    "an entry that is let go of": """
logs, args = {}, (torch.randn(5, 3, device=device),)
def f(x):
    logs["m"] = logs.get("m", 0.0) + x.mean()
    return x * 2
def after(out, i):
    if i % 4 == 3:
        logs.clear()
""",
    "an entry that another name lets go of": """
logs, args = {}, (torch.randn(5, 3, device=device),)
def flush(table):
    table.popitem()
def f(x):
    logs["m"] = logs.get("m", 0.0) + x.mean()
    return x * 2
def after(out, i):
    if i % 4 == 3 and logs:
        flush(logs)
""",
    "an entry of an object that is begun anew": """
class Meter:
    def __init__(self):
        self.sums = {}
    def update(self, x):
        self.sums["m"] = self.sums.get("m", 0.0) + x.mean()
        return x * 2
meter, args = Meter(), (torch.randn(5, 3, device=device),)
f, totals = meter.update, []
def after(out, i):
    if "m" in meter.sums:
        totals.append(float(meter.sums["m"]))
    if i % 4 == 3:
        meter.sums = {}
""",
    "a state that a list keeps": """
state, history, args = {"h": torch.zeros(3, device=device)}, [], (torch.randn(5, 3, device=device),)
def f(x):
    state["h"] = 0.9 * state["h"] + x.mean(0)
    return state["h"] * 2
def after(out, i):
    history.append(state["h"])
""",
    "a state that begins anew": """
state, args = {"h": torch.zeros(3, device=device)}, (torch.randn(5, 3, device=device),)
def f(x):
    state["h"] = 0.9 * state["h"] + x.mean(0)
    return state["h"] * 2
def begin():
    state["h"] = torch.zeros(3, device=device)
def after(out, i):
    if i % 4 == 3:
        begin()
""",
    "an entry that a list keeps": """
logs, history, args = {}, [], (torch.randn(5, 3, device=device),)
def f(x):
    logs["m"] = 0.9 * logs.get("m", 0.0) + x.mean()
    return x * 2
def after(out, i):
    history.append(logs["m"])
""",
}


@pytest.mark.parametrize("what", RARE)
def test_what_no_step_of_a_trial_has_is_as_before(what: str, tmp_path: Path) -> None:
    # GIVEN a step with something that only later inputs, or the loop around it, do WHEN it is rewritten
    # THEN it has eager's numbers, or there is no rewrite
    rewritten(RARE[what], tmp_path)
