"""Steps that run behind their launch for the most part: what is done again there, what stays, and what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import Fixed, lines_of, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")


def test_what_a_loop_counts_is_handed_over_and_not_begun_again(fixed: Fixed) -> None:
    # GIVEN tokens of a draft of which as many are accepted as agree: none, some and all, from step to step
    found = fixed("""
args = (torch.zeros(1, 4, dtype=torch.long, device=device), torch.zeros(1, 4, dtype=torch.long, device=device))
accepted = 0
def feed(i):
    picked = torch.zeros(1, 4, dtype=torch.long)
    picked[0, i % 5:] = 1
    return args[0], picked.to(device)
@torch.no_grad()
def f(draft, picked):
    global accepted
    n = 0
    for i in range(4):
        if picked[0, i].item() != draft[0, i].item():
            break
        n += 1
    accepted += n
    return torch.cat([draft[:, :n], picked[:, n:n + 1]], 1).sum()
""")
    # WHEN rewritten THEN the count goes from the graph to what comes behind it (ten steps are compared)
    assert found.complete, found
    assert "n = 0" not in lines_of(found)
    assert "n = torch.where(done, n, n + 1)" in lines_of(found)


def test_where_most_of_a_step_runs_behind_it_that_is_said(fixed: Fixed) -> None:
    # GIVEN values each once, in a step that Dynamo would compile anew each time
    text = """
args = (torch.randn(8, device=device),)
kept = []
@torch.no_grad()
def f(x):
    h = x.sin()
    u = torch.unique(h.round())
    kept.append(u.roll(len(kept), 0).sum().item() + len(kept))
    u = torch.cat([u, u[u > 0]]).roll(len(kept), 0)
    u = u * len(kept) + u.sum()
    return u.numel() + len(kept)
"""
    # WHEN rewritten, and nothing brings more THEN it is whole, and how little is in its graph is said
    found = fixed(text)
    assert found.complete, found
    assert "operations of a step are in the graph, the others run behind it" in str(found)
    assert "a graph does not pay here: leave the step as it is" in str(found)
    assert "for more " in str(found)
    assert not found.left


@pytest.mark.pieces
def test_what_a_step_has_kept_is_as_it_was_after_pieces_of_it_were_tried(tmp_path: Path) -> None:
    # GIVEN a step that keeps numbers, where no rewrite is whole, so that it is tried in pieces
    text = """
args = (torch.randn(8, 4, device=device),)
load = []
def f(x):
    h = (x * 2 + 1).sin()
    load.append(h.sum().item())
    u = torch.unique(h.round())
    return u.sum() * torch.svd(h).S[0] + u.numel()
"""
    names = run(text, tmp_path)
    # WHEN diagnosed
    found: Any = pgk.diagnose(names["f"], *names["args"], fix=True)
    # THEN the list is empty
    assert found.fix is not None
    assert names["load"] == []


def test_what_only_a_rewrite_shows_goes_before_the_launch_beside_what_is_behind_it(fixed: Fixed) -> None:
    # GIVEN a pick by a list of the host's that is filled with a number, and names by what is found
    found = fixed("""
bank, names = torch.randn(9, 4).to(device), list("abcdefghi")
args = (torch.randn(3, 4, device=device), [4, 7, 1])
@torch.inference_mode()
def f(queries, own):
    sims = queries @ bank.T
    sims[torch.arange(3), own] = -9.0
    scores, ids = sims.topk(2, dim=1)
    hits, seen = [], set()
    for row in ids.cpu():
        hits.append([names[i] for i in row])
        seen.update(hits[-1])
    return len(seen), scores
""")
    # WHEN rewritten THEN the list is brought before each launch, and what the host makes of the result is behind it
    assert found.complete, found
    assert found.around.before is not None
    assert found.around.after is not None
    assert "call before_f(own) before each launch, and call after_f(" in found.usage


def test_numbers_of_a_list_are_filled_on_the_device_with_what_is_done_with_them(fixed: Fixed) -> None:
    # GIVEN the logarithm of each of a list of numbers, made on the CPU WHEN rewritten
    found = fixed("""
sigmas = [4.0, 2.0, 1.0]
args = (torch.randn(2, 4, device=device),)
def f(x):
    for i, sigma in enumerate(sigmas):
        t = torch.tensor([sigma]).log().to(device)
        x = torch.cat([x, t.expand(2, 1)], 1).sin()
    return x
""")
    # THEN it is made there, and nothing is copied
    assert found.complete, found
    assert "t = torch.full((1,), sigma, device=device).log()" in lines_of(found)


def test_a_list_that_changes_is_not_taken_for_constant(fixed: Fixed) -> None:
    # GIVEN the same of a list whose numbers a step moves WHEN rewritten THEN no graph keeps what they were
    found = fixed("""
sigmas = [4.0, 2.0]
args = (torch.randn(2, 4, device=device),)
def f(x):
    for sigma in sigmas:
        x = x * torch.tensor([sigma]).log().to(device)
    sigmas[0] = sigmas[0] + 1
    return x
""")
    assert not any("torch.full((1,), sigma" in line for line in lines_of(found)), found


def test_a_box_that_the_host_draws_is_told_with_both_of_its_sides(fixed: Fixed) -> None:
    # GIVEN a helper that leaves early by chance, and erases a box WHEN rewritten
    found = fixed("""
args = (torch.rand(3, 8, 8, device=device),)
class Erase:
    def __call__(self, img):
        if random.random() > 0.7:
            return img
        y, x = random.randint(0, 5), random.randint(0, 5)
        img = img.clone()
        img[:, y:y + 3, x:x + 3] = 0.0
        return img
erase = Erase()
def f(img):
    return erase(img) * 2
""")
    # THEN each side has its own draw, and the mask is of both
    text = str(found)
    assert "`y_in.fill_(random.randint(0, 5))`" in text
    assert "(at >= y_in) & (at < y_in + 3) & (at_2 >= x_in) & (at_2 < x_in + 3)" in text


def test_what_a_loop_asks_is_told_with_the_loop_and_not_with_its_line(fixed: Fixed) -> None:
    # GIVEN windows of a signal, of which a model is asked one after the other WHEN rewritten
    found = fixed("""
model = nn.Linear(8, 1).to(device)
args = (torch.randn(32, device=device),)
@torch.no_grad()
def f(signal):
    for start in range(0, 25, 4):
        s = model(signal[start:start + 8])
        while s.item() > 1:
            s = s / 2
    return s
""")
    # THEN no launch is told to end in the middle of a loop
    assert "before line" not in str(found)
    assert found.complete or found.alone or "line 16, is what can be captured: make it a function of" in str(found), (
        found
    )


def test_a_product_in_the_graph_is_not_all_where_nearly_all_of_a_step_runs_behind_it(fixed: Fixed) -> None:
    # GIVEN one small product ahead of values each once, with which many operations compute
    text = """
args, turn = (torch.randn(8, 3, device=device),), torch.eye(3, device=device)
kept = []
@torch.no_grad()
def f(x):
    h = x @ turn
    u = torch.unique(h.round())
    for k in range(50):
        u = u.roll(len(kept) + k, 0) * 1.01
        u[u > 3] = 0
    kept.append(u.sum().item() + len(kept))
    return u.numel() + len(kept)
"""
    # WHEN rewritten, and nothing brings more THEN it is whole, and how little is in its graph is said
    found = fixed(text)
    assert found.complete, found
    assert "of a step are in the graph, the others run behind it" in str(found)
    assert "this is right, but" in str(found)
