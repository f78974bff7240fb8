"""Places that lists of the host's pick, and parts that its numbers bound beside a mask, have words that can be done."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paramgraph_kit.rewrite.advised.advice import hint
from paramgraph_kit.rewrite.source.edits import Source
from paramgraph_kit.rewrite.source.place import Form, Place
from paramgraph_kit.trace.model import Failure

MASKED = "logits.copy_(torch.where(marked_in, {}, logits))"
PICKED = {
    "a branch": (
        (
            "    for i, seen in enumerate(lists):\n        if seen:\n            idx = torch.tensor(seen)\n"
            "            logits[i, idx] = logits[i, idx] / penalty"
        ),
        ("branch-frozen", 5),
        ("marked[i, idx] = True", MASKED.format("logits / penalty")),
    ),
    "rows of a tensor": (
        "    for row, seen in zip(logits, lists):\n        idx = torch.tensor(seen)\n        row[idx] -= 0.5",
        ("tensor-literal", 5),
        ("through `marked` in place of `logits`", "row[idx] = True", MASKED.format("logits - 0.5")),
    ),
    "a list itself": (
        "    for i in range(len(lists)):\n        logits[i, lists[i]] = logits[i, lists[i]] * 0.9",
        ("cpu-index", 5),
        ("marked[i, lists[i]] = True", MASKED.format("logits * 0.9")),
    ),
    "by its sign": (
        (
            "    for i, seen in enumerate(lists):\n        idx = torch.tensor(seen)\n"
            "        s = logits[i, idx]\n        s = torch.where(s < 0, s * 1.2, s / 1.2)\n        logits[i, idx] = s"
        ),
        ("tensor-literal", 5),
        ("`s = logits; s = torch.where(s < 0, s * 1.2, s / 1.2); " + MASKED.format("s"),),
    ),
    "no loop": (
        "    seen = torch.tensor(lists[0], device=x.device)\n    logits[:, seen] = -1e9",
        ("tensor-literal", 4),
        ("line 5 with nothing but `marked[:, seen] = True`", MASKED.format("-1e9")),
    ),
}
OTHERS = {
    "by rounds": "    for i, seen in enumerate(lists):\n        k = torch.tensor(seen)\n        logits[i, k] *= w[i]",
    "by counting": "    for i, seen in enumerate(lists):\n        idx = torch.tensor(seen)\n"
    "        logits[i, idx] -= torch.arange(len(seen))",
    "twice": "    for seen in lists:\n        idx = torch.tensor(seen)\n        logits[:, idx] *= 0.9",
    "by a tensor": "    for i, seen in enumerate(lists):\n        k = torch.tensor(seen)\n        logits[i, k] += bias",
}
HEAD = "def f(x, lists, penalty, w, bias, lengths):\n    bias = bias * 2\n    logits = net(x)\n"


def _told(tmp_path: Path, text: str, code: str, line: int, head: str = HEAD) -> str:
    file = tmp_path / "program.py"
    file.write_text(f"{head}{text}\n    return logits\n")
    source = Source.of(str(file))
    assert source is not None
    statement = source.statement(line)
    assert statement is not None
    tensors = {"logits": Form.of(torch.zeros(3, 12)), "bias": Form.of(torch.zeros(12))}
    return hint(Place(source, statement, Failure(code, "", ""), "device", {"torch": torch}, tensors=tensors))


@pytest.mark.parametrize("name", PICKED)
def test_places_that_lists_pick_are_given_as_a_mask(name: str, tmp_path: Path) -> None:
    # GIVEN lines that change what lists of the host's pick, all alike
    text, (code, line), wanted = PICKED[name]
    # WHEN it is told what to do THEN the host fills a mask, and one line changes where it is set
    told = _told(tmp_path, text, code, line)
    assert "Once `marked_in = torch.zeros(3, 12, dtype=torch.bool, device=device)`" in told
    for each in wanted:
        assert each in told


@pytest.mark.parametrize("name", OTHERS)
def test_places_that_are_not_changed_alike_have_no_mask(name: str, tmp_path: Path) -> None:
    # GIVEN the same with what each round, each place, or each that picks a place too changes otherwise
    # WHEN it is told what to do THEN no mask stands for them
    assert "marked" not in _told(tmp_path, OTHERS[name], "tensor-literal", 5)


CUTS = {
    "in one line": (
        (
            "    n = max(lengths) + 1\n    mask = torch.arange(n, device=x.device)[None] <= at[:, None]\n"
            "    logits = attend(x, self.k[:, :, :n], self.v[:, :, :n], mask)"
        ),
        6,
        ("`self.k` and `self.v` in line 6", "`torch.arange(n, device=x.device)` (line 5)"),
    ),
    "by its names": (
        (
            "    keys, values = self.k[:, :end], self.v[:, :end]\n    steps = torch.arange(0, end)\n"
            "    logits = attend(x, keys, values, steps > at[:, None])"
        ),
        4,
        ("`torch.arange(self.k.shape[1], device=self.k.device)` for `torch.arange(0, end)` (line 5)",),
    ),
    "with another part": (
        "    n = max(lengths)\n    keys = self.k[:4, :n]\n    logits = attend(x, keys, torch.arange(n)[None] < at)",
        6,
        ("`self.k[:4]` in line 5",),
    ),
}
HEAD_OF_CUTS = "def f(self, x, at, lengths, end):\n    at = at + 1\n    x = net(x)\n"


@pytest.mark.parametrize("name", CUTS)
def test_parts_beside_a_mask_of_their_length_have_their_full_length(name: str, tmp_path: Path) -> None:
    # GIVEN parts of a buffer that a number of the host's ends, and a mask that counts to it
    text, line, wanted = CUTS[name]
    # WHEN it is told what to do THEN both have their full length
    told = _told(tmp_path, text, "size-frozen", line, HEAD_OF_CUTS)
    assert told.startswith("leave the cuts out: ")
    for each in wanted:
        assert each in told


@pytest.mark.parametrize(
    "text",
    [
        "    n = max(lengths)\n    keys = self.k[:, :n]\n    logits = attend(x, keys) + self.pos(torch.arange(n))",
        "    n = max(lengths)\n    logits = x.view(n, -1) + self.k[:n] * (torch.arange(n) < at)",
    ],
)
def test_parts_that_no_mask_follows_keep_their_ends(text: str, tmp_path: Path) -> None:
    # GIVEN the same where a range is no mask, or where a number is read otherwise, too
    # WHEN it is told what to do THEN no full length is promised
    told = [_told(tmp_path, text, "size-frozen", line, HEAD_OF_CUTS) for line in (5, 6) if text.count("\n") + 3 >= line]
    assert not any("leave the cuts out" in each for each in told)


def test_a_softmax_over_a_part_is_told_a_mask(tmp_path: Path) -> None:
    # GIVEN attention over a part that the host ends, without any mask
    text = "    n = max(lengths) + 1\n    logits = F.scaled_dot_product_attention(x, self.k[:, :n], self.v[:, :n])"
    # WHEN it is told what to do THEN zeros in its place are not all
    told = _told(tmp_path, text, "size-frozen", 5, HEAD_OF_CUTS)
    assert "attn_mask=(torch.arange(self.k.shape[1], device=self.k.device) < n_in)[None]" in told


def test_a_range_takes_no_tensor_for_its_end(tmp_path: Path) -> None:
    # GIVEN a range whose end is the host's
    text = "    n = max(lengths) + 1\n    logits = x[torch.arange(n)]"
    # WHEN it is told what to do THEN it is no tensor's
    assert "n_in" not in _told(tmp_path, text, "size-frozen", 5, HEAD_OF_CUTS)
