"""Words for a part of a buffer that an index takes one layer of write, and read, that layer alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.integration.test_own_lines import parts
from tests.programs.running import captured, differences, eager

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
LAYERS = """
class Cache:
    def __init__(self):
        self.k = torch.zeros(2, 3, 32, 4, device=device)
        self.pos = 0
    def write(self, layer, x):
        n = x.shape[1]
        self.k[PARTS] = x
    def step(self, x):
        for layer in range(2):
            self.write(layer, x * (layer + 1))
        self.pos += x.shape[1]
        return self.k * 2
f = Cache().step
args = (torch.ones(3, 2, 4, device=device),)
"""
READ = """
class Cache:
    def __init__(self):
        self.k, self.pos = torch.ones(2, 3, 32, 4, device=device), 2
    def part(self, layer):
        end = self.pos + 1
        return self.k[layer, :, :end]
    def step(self, x):
        y = self.part(0).sum(1) + x
        self.pos += 1
        return y
f = Cache().step
args = (torch.ones(3, 4, device=device),)
"""


@pytest.mark.parametrize(
    ("index", "there", "dim"),
    [
        ("layer, :, self.pos : self.pos + n", "self.k[layer]", 1),
        ("layer, ..., self.pos : self.pos + n, :", "self.k[layer]", -2),
        ("layer, :3, self.pos : self.pos + n", "self.k[layer, :3]", 1),
    ],
)
def test_words_that_write_a_part_of_one_layer_give_eager_s_numbers(
    index: str, there: str, dim: int, tmp_path: Path
) -> None:
    # GIVEN a step that writes a part of each layer of a buffer, at a place that it counts
    text = LAYERS.replace("PARTS", index)
    line = f"self.k[{index}] = x"
    truth, names = eager(run(text, tmp_path), "f"), run(text, tmp_path)

    # WHEN the words are followed to the letter
    said = {parts(each.fix)[0]: parts(each.fix)[1] for each in pgk.diagnose(names["f"], *names["args"])}[line]
    new = f"{there}.index_copy_({dim}, self.pos + torch.arange(n, device=device), x)"
    assert f"keep `self.pos` as a tensor, `torch.zeros((), dtype=torch.long, device=device)`; here `{new}`" in said
    followed = text.replace("self.pos = 0", "self.pos = torch.zeros((), dtype=torch.long, device=device)")
    names = run(followed.replace(line, new), tmp_path)

    # THEN a graph has eager's numbers
    assert not differences(truth, captured(names, "f"), {"pos"})


def test_words_that_read_a_part_of_one_layer_read_that_layer(tmp_path: Path) -> None:
    # GIVEN a method that returns a part of one layer, up to a place of the host's
    names = run(READ, tmp_path)

    # WHEN it is diagnosed
    said = [parts(each.fix)[1] for each in pgk.diagnose(names["f"], *names["args"])]

    # THEN all of that layer is read, and what zeros count in is told
    told = next(each for each in said if "end_in.fill_" in each)
    assert "`at = torch.arange(self.k[layer].shape[1], device=self.k[layer].device)" in told
    assert "all of `self.k[layer]` with `torch.where((at < end_in), self.k[layer], 0)`" in told
    assert "zeros count in a softmax" in told
