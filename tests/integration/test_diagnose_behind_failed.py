"""A program whose capture fails: what it does behind that is looked at with the fix in place, or said not to be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.observe.examine import NOT_REPLAYED
from paramgraph_kit.driver.sim.libraries import forget
from tests.integration.rewritten import run

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
PROGRAM = """
class Learner:
    def __init__(self):
        self.net, self.memory = nn.Linear(4, 1).to(device), torch.randn(8, 4, device=device)
        self.losses, self.graph, self.scale = [], None, 1.0
    def update(self):
        rows = torch.randperm(8).to(device)
        return self.net(self.memory[rows[:4]]).mean() * self.scale
    def learn(self):
        if self.graph is None:
            self.update()
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.loss = self.update()
        self.graph.replay()
        self.losses.append(self.loss)
        self.scale += 0.1
def main():
    learner = Learner()
    for _ in range(3):
        learner.learn()
    return torch.stack(learner.losses)
"""


@pytest.mark.parametrize("fix", [True, False])
def test_what_stands_behind_a_capture_that_fails_is_told_with_its_fix(fix: bool, tmp_path: Path) -> None:
    # GIVEN a program that copies from the host in its capture, and keeps what each replay writes over
    names = run(PROGRAM, tmp_path)
    # WHEN
    found = pgk.diagnose(names["main"], fix=fix)
    # THEN all are told at once, and the list's own line alone; without a fix, what lines tell of the number that the
    # capture reads, at its reading, and that the rest was not looked at
    told = {(f.code, f.frame.text) for f in found.failures if f.frame is not None}
    copied = ("copy-to-gpu", "rows = torch.randperm(8).to(device)")
    kept = ("output-alias", "self.losses.append(self.loss)")
    moved = ("scalar-frozen", "self.scale += 0.1")
    read = ("scalar-frozen", "return self.net(self.memory[rows[:4]]).mean() * self.scale")
    assert told == ({copied, kept, moved} if fix else {copied, read})
    assert found.heading.startswith(f"main: {len(told)} problem")
    assert (NOT_REPLAYED in found.notes) is not fix


STEP = """
def main(losses=None):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to(device)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = torch.randn(8, 4, device=device), torch.randn(8, 2, device=device)
    def step():
        opt.zero_grad(set_to_none=True)
        loss = F.mse_loss(net(x), y)
        loss.backward()
        opt.step()
        return loss
    if losses is not None:
        return [step().item() for _ in losses], net[1].running_mean.cpu()
    AHEAD
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        loss = step()
    losses = []
    for _ in range(3):
        g.replay()
        losses.append(loss.clone())
    return torch.stack(losses), net[1].running_mean.cpu()
"""


def test_a_training_step_without_a_warm_up_is_told_once_with_all_that_a_warm_up_moves(tmp_path: Path) -> None:
    # GIVEN a process that has used no library yet, on the thread of backward passes neither, and a step with statistics
    forget()
    (tmp_path / "broken").mkdir()
    told = pgk.diagnose(run(STEP.replace("AHEAD", "pass"), tmp_path / "broken")["main"]).failure
    assert told.code == "cold-library"
    # WHEN the words are followed to the letter
    lines, _, back = told.fix.partition("ahead of it  ")[2].partition(", then put back what that moves (")
    ahead = [*lines.replace("torch.cuda", "cuda").split("; "), *re.findall(r"`(.*?)`", back)]
    main = run(STEP.replace("AHEAD", "\n    ".join(ahead)), tmp_path)["main"]
    # THEN nothing is left to tell, and the losses and statistics are those of eager steps
    forget()
    assert not pgk.diagnose(main)
    (losses, mean), (eager, statistics) = main(), main([0, 1, 2])
    assert losses.tolist() == pytest.approx(eager, rel=1e-5)
    assert torch.allclose(mean, statistics)


HALF_MENDED = """
class Pricer:
    def __init__(self):
        self.spot, self.rate = 1.0, 0.1
        self.gen = torch.Generator(device=device).manual_seed(3)
    def price(self):
        z = torch.randn(8, device=device, generator=self.gen)
        return torch.tensor(self.rate).to(device) * (z * self.spot).mean()
def main():
    pricer = Pricer()
    pricer.price()
    g = cuda.CUDAGraph()
    with cuda.graph(g):
        value = pricer.price()
    got = []
    for spot in (1.0, 2.0):
        pricer.spot = spot
        g.replay()
        got.append(value.item())
    return got
"""


def test_what_stays_unseen_as_only_a_part_of_the_fix_is_a_diff_is_said(tmp_path: Path) -> None:
    # GIVEN a capture that fails for two reasons, one of which is mended by hand
    # WHEN it is diagnosed
    forget()
    found = pgk.diagnose(run(HALF_MENDED, tmp_path)["main"], fix=True)
    # THEN nobody is left to think that there was nothing behind it
    assert NOT_REPLAYED in found.notes


TAKES_ITS_RESULT = """
class Learner:
    def __init__(self):
        self.net = nn.Linear(4, 2).to(device)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=0.1, capturable=True)
        self.x, self.errors, self.graph = torch.zeros(8, 4, device=device), [], None
    def update(self):
        loss = self.net(self.x).pow(2).mean()
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.opt.step()
        self.errors.append(norm.item())
        return loss.detach()
    def learn(self, x):
        self.x.copy_(x)
        if self.graph is None:
            self.graph = cuda.CUDAGraph()
            with cuda.graph(self.graph):
                self.loss = self.update()
        self.graph.replay()
        return self.loss.clone()
learner = Learner()
"""
SAMPLER = """
class Sampler:
    def __init__(self):
        self.betas = torch.linspace(0.01, 0.2, 4).to(device)
        self.x, self.seen, self.graph = torch.zeros(2, 4, device=device), [], None
    def denoise(self, x, i):
        return x - self.betas[i] * torch.randn(x.shape).to(device)
    def sample(self, x):
        self.x.copy_(x)
        for i in reversed(range(4)):
            if self.graph is None:
                self.denoise(self.x, i)
                self.graph = cuda.CUDAGraph()
                with cuda.graph(self.graph):
                    self.out = self.denoise(self.x, i)
            self.graph.replay()
            self.x.copy_(self.out)
        return self.x.clone()
def main():
    return Sampler().sample(torch.ones(2, 4, device=device))
"""


def test_what_a_program_cannot_show_with_its_fix_in_place_is_said(tmp_path: Path) -> None:
    # GIVEN a step whose rewritten function returns more than the program takes, so that it fails behind its capture
    names = run(TAKES_ITS_RESULT, tmp_path)
    # WHEN
    forget()
    found = pgk.diagnose(names["learner"].learn, torch.ones(8, 4, device=pgk.device()), fix=True)
    # THEN what its replays do not see is still to be asked
    assert "sync-item" in [f.code for f in found.failures]
    assert NOT_REPLAYED in found.notes


def test_numbers_that_only_a_captured_function_is_given_are_no_arguments_of_the_program(tmp_path: Path) -> None:
    # GIVEN a captured function that is given an index, which the next higher number is none of
    # WHEN
    forget()
    found = pgk.diagnose(run(SAMPLER, tmp_path)["main"], fix=True)
    # THEN nothing is said of other arguments, for the program takes none
    assert found.failures
    assert not [note for note in found.notes if "other numbers as arguments" in note]


ROUNDS = """
class Rounds:
    def __init__(self):
        self.net = nn.Linear(4, 4).to(device)
    def update(self, x, t):
        y = self.net(x) * t
        noise = torch.from_numpy(np.random.standard_normal((2, 4)).astype(np.float32)).to(device)
        x.copy_(y + noise)
    @torch.no_grad()
    def run(self, start):
        x, graph, seen = start.clone(), None, []
        for i in range(4):
            t = torch.full((2, 1), float(i), device=device)
            if graph is None:
                self.update(x.clone(), t)
                graph = cuda.CUDAGraph()
                with cuda.graph(graph):
                    self.update(x, t)
            graph.replay()
            seen.append(x.clone())
        return seen
"""


def test_words_for_what_is_found_with_a_fix_in_place_name_the_programs_own_lines(tmp_path: Path) -> None:
    # GIVEN a program whose fix moves lines ahead of its capture
    names = run("import numpy as np\n" + ROUNDS, tmp_path)
    forget()
    # WHEN
    found = pgk.diagnose(names["Rounds"]().run, torch.ones(2, 4, device=pgk.device()), fix=True)
    # THEN the line of the capture that is named is the one in the program
    told = next(f for f in found.failures if f.code == "stale-input")
    at = re.search(r"ahead of the capture at line (\d+)", told.fix)
    assert found.fix is not None
    assert found.fix.diff
    assert told.frame is not None
    assert at is not None
    lines = Path(told.frame.file).read_text().splitlines()
    assert lines[int(at[1]) - 1].strip() in ("with cuda.graph(graph):", "self.update(x, t)")
