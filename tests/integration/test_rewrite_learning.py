"""What programs that learn to act and to write have: coins whose ratio falls, rows of one number, fetching methods."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")
TEACH = """
emb, cell, head = nn.Embedding(9, 6).to(device), nn.GRUCell(6, 8).to(device), nn.Linear(8, 9).to(device)
opt = torch.optim.SGD([*emb.parameters(), *cell.parameters(), *head.parameters()], lr=0.1)
epoch = 0
args = (torch.randint(1, 9, (4, 5), device=device),)
def f(target):
    global epoch
    ratio = 0.9 ** epoch
    word, h, loss = torch.zeros(4, dtype=torch.long, device=device), torch.zeros(4, 8, device=device), 0
    for t in range(target.size(1)):
        h = cell(emb(word), h)
        scores = head(h)
        loss = loss + F.cross_entropy(scores, target[:, t])
        if random.random() < ratio * 0.6:
            word = target[:, t]
        else:
            word = scores.argmax(1)
    opt.zero_grad()
    loss.backward()
    opt.step()
    epoch += 1
    return loss.detach()
"""
PARTS = """
net = nn.Linear(4, 3).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
epoch, batches = 0, [(torch.randn(6, 4), torch.randint(0, 3, (6,))) for _ in range(2)]
args = ()
def f():
    global epoch
    for batch in batches:
        x, y = (each.to(device) for each in batch)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    epoch += 1
"""
ENDS = """
args = (torch.randint(0, 9, (8, 6), device=device), torch.randn(8, device=device))
def f(answers, x):
    ends = answers == 8
    first = torch.full((answers.size(0),), answers.size(1), dtype=torch.long, device=device)
    first[{mask}] = ends.int().argmax(dim=1)[{mask}]
    x = x + first
    x[torch.isnan(x)] = x.square()[torch.isnan(x)]
    return x
"""
ROW = """
critic = nn.Linear(4, 1).to(device)
args = (torch.randn(1, 4, device=device), torch.randn(3, device=device))
def f(last, x):
    R = critic(last).item()
    return x * R + R
"""
TRAINER = """
made = np.random.RandomState(0)
table = made.randn(12, 4).astype(np.float32)
net = nn.Linear(4, 1).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def get_batch(count):
    rows = np.random.choice(12, count)
    s = torch.from_numpy(table[rows]).to(device)
    return s, s.sum(1, keepdim=True)
class Trainer:
    def __init__(self, get_batch):
        self.get_batch, self.net, self.opt = get_batch, net, opt
    def train_step(self):
        s, wanted = self.get_batch(6)
        loss = F.mse_loss(self.net(s), wanted)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()
trainer = Trainer(get_batch)
args = ()
def f():
    loss = trainer.train_step()
    return loss
"""


def test_a_ratio_that_a_counter_of_the_step_lowers_is_known_before_the_launch(tmp_path: Path) -> None:
    # GIVEN a coin in each round, whose ratio falls with what the step counts at its end WHEN it is rewritten
    fix = rewritten(TEACH, tmp_path)
    # THEN the coins are thrown before the launch, with the ratio, and it is counted once, behind it
    assert fix.complete, fix
    assert "asked.append(torch.as_tensor(random.random() < ratio * 0.6).clone())" in lines_of(fix)
    assert "word = torch.where(next(given), target[:, t], scores.argmax(1))" in lines_of(fix)


def test_a_loop_whose_batch_comes_part_by_part_is_looked_at(tmp_path: Path) -> None:
    # GIVEN a loop in which a generator brings the parts of a batch WHEN it is rewritten THEN that comes to an end
    fix = rewritten(PARTS, tmp_path)
    assert fix.instead or fix.complete or fix.alone, fix
    assert "AttributeError" not in str(fix)


@pytest.mark.parametrize("mask", ["ends.any(dim=1)", "ends.any(1)", "ends.any(-1)"])
def test_a_mask_that_is_asked_in_place_is_one(mask: str, tmp_path: Path) -> None:
    # GIVEN assignments at `ends.any(dim=1)` and at `torch.isnan(x)` WHEN rewritten
    fix = rewritten(ENDS.format(mask=mask), tmp_path)
    # THEN both choose between all of both
    assert fix.complete, fix
    assert f"first.copy_(torch.where({mask}, ends.int().argmax(dim=1), first))" in lines_of(fix)
    assert "x.copy_(torch.where(torch.isnan(x), x.square(), x))" in lines_of(fix)


def test_a_mask_of_another_shape_than_what_it_is_for_is_left(tmp_path: Path) -> None:
    # GIVEN one that keeps its dimension WHEN rewritten THEN nothing is made of it
    fix = rewritten(ENDS.format(mask="ends.any(dim=1, keepdim=True).squeeze(1)"), tmp_path)
    assert not any("first.copy_" in line for line in lines_of(fix)), fix


def test_the_number_of_a_row_has_no_dimensions_on_the_device_either(tmp_path: Path) -> None:
    # GIVEN the only number of a row, as a Python number WHEN it stays on the device THEN it is a scalar there
    fix = rewritten(ROW, tmp_path)
    assert fix.complete, fix
    assert "R = critic(last).detach().squeeze()" in lines_of(fix)


def test_what_trains_is_not_told_to_be_the_hosts(tmp_path: Path) -> None:
    # GIVEN a method that fetches and trains WHEN it is rewritten THEN nobody says that all of it is the host's
    fix = rewritten(TRAINER, tmp_path)
    assert "all that `trainer.train_step()` does" not in str(fix), fix


COUNTS = """
net = nn.Linear(4, 3).to(device)
args = (torch.randn(2, 6, 4, device=device), torch.randint(0, 3, (2, 6), device=device))
def f(x, y):
    corrects = [0 for _ in range(2)]
    for i in range(2):
        correct = torch.eq(net(x[i]).argmax(1), y[i]).sum().item()
        corrects[i] = corrects[i] + correct
    accs = np.array(corrects) / 6
    return accs
"""
PICKED = """
net = nn.Linear(4, 3).to(device)
args = (torch.randn(4, 7, 4, device=device), torch.tensor([7, 5, 6, 3]))
def score(x, ends):
    hidden = net(x)
    return hidden[torch.arange(len(x)), ends - 1]
def f(x, lengths):
    return score(x, lengths) - score(-x, lengths)
"""


def test_counts_that_an_array_is_made_of_are_told_to_be_read_behind_the_launch(tmp_path: Path) -> None:
    # GIVEN numbers of each round, of which numpy makes an array in the end WHEN they are rewritten
    fix = rewritten(COUNTS, tmp_path)
    # THEN one round is a graph, and what the array is made of is read beside it
    assert not fix.complete
    assert fix.alone == "f_round", fix


def test_an_index_of_two_is_told_to_be_on_the_device_with_both(tmp_path: Path) -> None:
    # GIVEN an index that is made on the CPU, and one that is given there WHEN it is rewritten
    fix = rewritten(PICKED, tmp_path)
    # THEN both are told, or what comes before is a graph
    told = "`torch.arange(len(x), device=hidden.device)`; give it `ends` on the device, too"
    assert told in " ".join(fix.instead) or fix.alone, fix
