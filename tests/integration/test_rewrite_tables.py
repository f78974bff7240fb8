"""Tables that stay on the CPU, of which a loop picks: the device picks from a copy of its own, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import Fixed, lines_of, run
from tests.integration.test_journeys import applied
from tests.programs.reading import PRELUDE
from tests.programs.running import load

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

SAMPLER = """
unet = nn.Linear(6, 6).to(device)
alphas = torch.cumprod(1 - torch.linspace(1e-3, 0.1, 20), 0)
timesteps = {timesteps}
args = (torch.randn(2, 6, device=device),)
@torch.no_grad()
def f(x):
    for t in timesteps:
        a = {pick}
        {more}
        eps = unet(x)
        x = (x - (1 - a).sqrt() * eps) / a.sqrt()
    return x
"""


@pytest.mark.parametrize(
    ("timesteps", "pick", "line"),
    [
        ("[9, 6, 3]", "alphas[t].to(device)", "a = alphas_on_device[t]"),
        ("torch.tensor([9, 6, 3])", "alphas[t].to(x.device)", "a = alphas_on_device[t]"),
        ("[9, 6, 3]", "alphas[t].to(x)", "a = alphas_on_device[t].to(x)"),
        ("[9, 6, 3]", "alphas[t].to(device, torch.float32)", "a = alphas_on_device[t].to(device, torch.float32)"),
    ],
    ids=["list", "tensor", "like another", "of a type"],
)
def test_what_a_loop_picks_of_a_table_is_picked_on_the_device(
    fixed: Fixed, timesteps: str, pick: str, line: str
) -> None:
    # GIVEN a sampler that picks of a table of the CPU at each step WHEN rewritten
    found = fixed(SAMPLER.format(timesteps=timesteps, pick=pick, more="pass"))
    # THEN the table is copied once, before the function, and the sampler picks of that
    assert found.complete, found
    assert lines_of(found) == ["alphas_on_device = alphas.to(device)", line]


def test_a_table_that_a_helper_is_given_is_copied_before(fixed: Fixed) -> None:
    # GIVEN a helper that picks of the table that it is given WHEN rewritten
    found = fixed("""
unet = nn.Linear(6, 6).to(device)
alphas = torch.linspace(0.99, 0.1, 10)
args = (torch.randn(2, 6, device=device),)
def step(x, t, table):
    a = table[t].to(x.device)
    return (x - (1 - a).sqrt() * unet(x)) / a.sqrt()
@torch.no_grad()
def f(x):
    for t in (9, 6, 3):
        x = step(x, t, alphas)
    return x
""")
    # THEN it is given a copy of the device
    assert found.complete, found
    assert {"a = table[t]", "x = step(x, t, alphas_on_device)"} <= set(lines_of(found))


@pytest.mark.parametrize("more", ["a *= 0.9", "a.mul_(0.9)", "alphas[t] = 0.5", "kept.append(a)"])
def test_a_table_that_may_be_written_is_left(fixed: Fixed, more: str) -> None:
    # GIVEN a sampler that writes what it has picked, keeps it, or writes the table WHEN rewritten
    text = SAMPLER.format(timesteps="[9, 6, 3]", pick="alphas[t].to(device)", more=more)
    found = fixed(text.replace("args =", "kept = []\nargs ="))
    # THEN it is left: what is picked of a copy would be a part of that
    assert not any("alphas_on_device[t]" in line for line in lines_of(found)), found


ADAPTER = """
class Adapter(nn.Module):
    def __init__(self, width, scale):
        super().__init__()
        self.a = nn.Parameter(torch.randn(2, width) * 0.1)
        self.b = {made}
        self.scale = torch.tensor(scale)
    def forward(self, x):
        return x + (x @ self.a.T @ self.b.T) * self.scale.to(x.device)
net = nn.Sequential(Adapter(6, 0.5), Adapter(6, 2.0)).to(device)
opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
args = (torch.randn(4, 6, device=device),)
def f(x):
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.detach()
"""


@pytest.mark.parametrize("made", ["nn.Parameter(torch.ones(6, 2))", "nn.Parameter(torch.ones(6, 2).requires_grad_())"])
def test_what_a_model_takes_along_is_left_beside_a_table_of_the_cpu(made: str, tmp_path: Path) -> None:
    # GIVEN a line with two parameters, which the model's `.to` has moved, and a number on the CPU
    text = ADAPTER.format(made=made)
    names = run(text, tmp_path)
    expected = [names["f"](*names["args"]).cpu() for _ in range(3)]
    names = run(text, tmp_path)
    # WHEN rewritten THEN only the number is made elsewhere
    fix = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    assert fix is not None
    assert fix.complete
    assert lines_of(fix) == ["self.scale = torch.tensor(scale, device=device)"]
    # AND the file with the diff still has its parameters, and trains them
    mended = load(applied(PRELUDE + text, fix.diff), tmp_path / "mended.py")
    assert [n for n, _ in mended["net"].named_parameters()] == ["0.a", "0.b", "1.a", "1.b"]
    got = [mended["f"](*mended["args"]).cpu() for _ in range(3)]
    assert all(torch.allclose(a, b) for a, b in zip(got, expected, strict=True))


GRID = """
net = nn.Conv2d(2, 2, 3, padding=1).to(device)
args = (torch.randn(2, 2, 5, 7, device=device),)
def grid(x):
    b, _, h, w = x.shape
    ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    return {grid}
@torch.no_grad()
def f(x):
    return net(x) + grid(x)
"""


@pytest.mark.parametrize(
    "grid",
    [
        "torch.stack([xs, ys]).float().to(device)[None].expand(b, 2, h, w)",
        "torch.stack((xs / w, ys / h)).to(x.device)[None]",
        "(xs - ys).float().to(x)[None, None]",
    ],
)
def test_a_grid_of_places_is_made_on_the_device(grid: str, fixed: Fixed) -> None:
    # GIVEN places of pixels, made on the CPU in one statement and copied in another WHEN rewritten
    fix = fixed(GRID.format(grid=grid))
    # THEN it is whole, and they are made on the device
    assert fix.complete, str(fix)
    assert "torch.arange(h, device=device), torch.arange(w, device=device)" in fix.diff


def test_an_array_that_an_object_keeps_stays_one(fixed: Fixed, tmp_path: Path) -> None:
    # GIVEN a filter whose matrix is an array of numpy's, which each step copies to the device
    text = """
class Filter:
    def __init__(self):
        self.F = np.eye(4, dtype=np.float32)
        self.F[0, 2] = 0.1
        self.x = torch.zeros(4, device=device)
    def update(self, z):
        self.x = torch.from_numpy(self.F).to(z.device) @ self.x + z
        return self.x.clone()
kalman = Filter()
f = kalman.update
args = (torch.randn(4, device=device),)
"""
    # WHEN it is rewritten THEN it is no tensor from now on, of which from_numpy would make nothing
    found = fixed(text)
    assert found.complete, found
    assert "self.F = torch" not in found.diff
    # AND what is written runs anew, too
    names = run("".join(next(iter(found.texts.values()))).removeprefix(PRELUDE), tmp_path)
    names["kalman"].before_update(*names["args"])
    names["f"](*names["args"])
