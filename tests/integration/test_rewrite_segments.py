"""Rows that are split by lengths of the device's, and loops over the experts that were chosen, stay in the graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.integration.rewritten import lines_of, rewritten

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

HEAD = """
E, D = 3, 4
experts = nn.ModuleList(nn.Sequential(nn.Linear(D, 6), nn.SiLU(), nn.Linear(6, D)) for _ in range(E)).to(device)
gate = nn.Linear(D, E).to(device)
args = (torch.randn(9, D, device=device),)
@torch.no_grad()
"""
# Mixtral's way to the experts that some token has chosen.
CHOSEN = """
def f(x):
    weight, top = gate(x).softmax(-1).topk(2, dim=-1)
    out = torch.zeros_like(x)
    mask = F.one_hot(top, num_classes=E).permute(2, 1, 0)
    hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
    for e in hit:
"""
STEPS = {
    "parts by a split, joined again, and means of them": (
        """
def f(x):
    top = gate(x).argmax(-1)
    order = top.argsort()
    counts = torch.bincount(top, minlength=E)
    parts = x[order].split(counts.tolist())
    out = torch.empty_like(x)
    out[order] = torch.cat([experts[e](part) for e, part in enumerate(parts)])
    return out, torch.stack([part.sum(0) for part in parts])
""",
        [
            "torch.stack([torch.where(own.view(-1, *[1] * (rows.dim() - 1)), experts[e](rows), 0)",
            "torch.stack([torch.where(own, rows.movedim(0, -1), 0).sum(-1) for own in inside])",
        ],
    ),
    "a loop that cuts the segments itself": (
        """
def f(x):
    weight, top = gate(x).softmax(-1).topk(2, dim=-1)
    counts = top.new_zeros((len(x), E)).scatter_(1, top, 1).sum(0)
    order = top.view(-1).argsort()
    tokens = x[order // 2]
    numbers = counts.cpu().numpy()
    outs, start = [], 0
    for i, n in enumerate(numbers):
        end = start + n
        if n == 0:
            continue
        expert = experts[i]
        done = expert(tokens[start:end])
        outs.append(done)
        start = end
    every = torch.cat(outs, dim=0) if len(outs) else tokens.new_empty(0)
    back = torch.empty_like(every)
    back[order] = every
    return (back.view(len(x), 2, D) * weight[..., None]).sum(1)
""",
        [
            "for i, own in enumerate(inside):",
            "done = expert(tokens)",
            "outs.append(torch.where(own[:, None], done, 0))",
        ],
    ),
    "a loop over the experts that were chosen": (
        CHOSEN
        + """\
        k, rows = torch.where(mask[e].squeeze(0))
        state = x[None, rows].reshape(-1, D)
        done = experts[e[0]](state) * weight[rows, k, None]
        out.index_add_(0, rows, done.to(x.dtype))
    return out
""",
        ["for e in range(len(mask.sum(dim=(-1, -2)))):"],
    ),
    "a loop that gives each expert a name": (
        CHOSEN
        + """\
        layer = experts[e]
        k, rows = torch.where(mask[e].squeeze(0))
        done = layer(x[None, rows].reshape(-1, D)) * weight[rows, k, None]
        out.index_add_(0, rows, done)
    return out
""",
        ["(weight * ((mask[e]).T)).sum(-1)[:, None]"],
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_rows_in_segments_of_the_device_s_are_computed_for_each_and_chosen(name: str, tmp_path: Path) -> None:
    # GIVEN rows that lengths of the device split WHEN rewritten THEN it is whole in one graph, compared over ten steps
    text, lines = STEPS[name]
    found = rewritten(HEAD + text, tmp_path)
    assert found.complete, found
    assert found.around.after is None, found
    shown = "\n".join(lines_of(found))
    assert not [line for line in lines if line not in shown], shown


CLASSES = """
centers, counts = torch.zeros(4, 4, device=device), torch.zeros(5, device=device)
args = (torch.randn(9, 4, device=device),)
def f(x):
    label = x[:, 0].abs().long().clamp(max=2)
    for c in label.unique():
        mask = label == c
        delta = x[mask].mean(dim=0) - centers[c]
        centers[c] = centers[c] + 0.5 * delta
        counts[int(c)] += mask.sum()
    return x - centers[label]
"""


def test_rows_of_classes_that_are_not_there_stay(tmp_path: Path) -> None:
    # GIVEN rows that are moved by the classes that are there WHEN rewritten
    found = rewritten(CLASSES, tmp_path)
    # THEN all rows are gone through, and those of no class keep what they have
    assert found.complete, found
    assert {
        "for c in range(len(centers)):  # no number is below zero",
        "centers[c] = torch.where(there, centers[c] + 0.5 * delta, centers[c])",
        "counts[c] += torch.where(there, mask.sum(), 0)",
    } <= {line.strip() for line in lines_of(found)}, found
