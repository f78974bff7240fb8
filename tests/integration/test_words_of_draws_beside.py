"""What the host draws within an expression of the device is what moves there, and no number beside it that stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.integration.test_own_lines import parts
from tests.integration.test_words_followed import _Around
from tests.programs.running import captured, differences, eager

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device"),
    pytest.mark.usefixtures("recovered"),
]
DRAWN = """
class Filter:
    def __init__(self):
        self.n, self.rng, self.x = 4, np.random.default_rng(0), torch.ones(4, device=device)
    def step(self):
        if self.x.sum() > LIMIT:
            u = (torch.arange(self.n, device=device) + DRAW) / self.n
            self.x.add_(u)
        return self.x * 2
f = Filter().step
args = ()
"""


PLAIN = DRAWN.replace("if self.x.sum() > LIMIT:", "with torch.no_grad():")


@pytest.mark.parametrize("limit", ["1", "1e9"])
@pytest.mark.parametrize("draw", ["self.rng.random()", "self.rng.uniform(0.0, 2.0)"])
def test_what_a_generator_of_an_object_draws_is_told(draw: str, limit: str, tmp_path: Path) -> None:
    # GIVEN a step that draws one number by a generator of its object, and divides by one that stays
    text = DRAWN.replace("DRAW", draw).replace("LIMIT", limit)
    names = run(text, tmp_path)

    # WHEN it is diagnosed
    found = {parts(each.fix)[0]: parts(each.fix)[1] for each in pgk.diagnose(names["f"])}
    said = found[f"u = (torch.arange(self.n, device=device) + {draw}) / self.n"]

    # THEN the drawn number has a tensor, and the other none
    assert f"before each launch `drawn_in.fill_({draw})`, and here `drawn_in` for `{draw}`" in said
    assert "n_in.fill_(self.n)" not in said.replace("drawn_in", "")
    assert f"`if self.x.sum() > {limit}`, takes that way, so that a draw ahead of each launch gives other" in said


def test_words_for_a_draw_give_the_numbers_of_the_program(tmp_path: Path) -> None:
    # GIVEN a step that draws one number in each call
    line, draw = "u = (torch.arange(self.n, device=device) + self.rng.random()) / self.n", "self.rng.random()"
    text = PLAIN.replace("DRAW", draw)
    truth, names = eager(run(text, tmp_path), "f"), run(text, tmp_path)

    # WHEN the words are followed to the letter
    said = {parts(each.fix)[0]: parts(each.fix)[1] for each in pgk.diagnose(names["f"])}[line]
    once = "drawn_in = torch.zeros((), device=device)"
    assert f"once `{once}`, before each launch `drawn_in.fill_({draw})`, and here `drawn_in` for `{draw}`" in said
    followed = text.replace(line, line.replace(draw, "drawn_in")).replace("class Filter", f"{once}\nclass Filter")
    followed = followed.replace("f = Filter().step", "own = Filter()\nf = own.step")
    names = run(followed, tmp_path)

    # THEN a graph has eager's numbers
    around: Any = _Around(names, f"drawn_in.fill_({draw.replace('self', 'own')})", "")
    assert not differences(truth, captured(names, "f", around), set())


@pytest.mark.parametrize("held", ["", "self."])
def test_a_generator_of_the_cpu_is_given_to_no_draw_of_the_device(held: str, tmp_path: Path) -> None:
    # GIVEN numbers that a helper draws with a generator of the CPU, a variable or its object's, and copies
    text = f"""
gen = torch.Generator().manual_seed(0)
class Sampler:
    def __init__(self):
        self.gen = gen
    def __call__(self, k):
        return torch.randint(20, (k,), generator={held}gen).to(device)
pick, z = Sampler(), torch.randn(20, 4, device=device)
def f(x):
    return (x * z[pick(6)]).sum()
args = (torch.randn(6, 4, device=device),)
"""
    names = run(text, tmp_path)
    # WHEN it is diagnosed THEN no draw of the device is told to take it, which raises
    (told,) = (f for f in pgk.diagnose(names["f"], *names["args"]).failures if f.code == "copy-to-gpu")
    assert "a generator of the CPU draws nothing on the device" in told.fix
    assert "device=device)`" not in told.fix
