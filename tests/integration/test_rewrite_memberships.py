"""Numbers of the device of which the host asks whether they are in a list: words that can be followed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from tests.integration.rewritten import run
from tests.programs.running import captured, differences, eager

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

HIDDEN = """
net = nn.Sequential(nn.Embedding(12, 6), nn.Linear(6, 12)).to(device)
SPECIAL = {numbers}
def f(scores):
    ids = scores.argmax(-1)
    special = [[token {sign} SPECIAL for token in row] for row in ids.tolist()]
    chance = torch.full(ids.shape, 0.5).to(ids.device)
    chance = chance.masked_fill(torch.tensor(special, dtype=torch.bool).to(ids.device), 0.0)
    return net(ids).mean(-1) * chance
args = (torch.randn(3, 5, 12, device=device),)
"""


@pytest.mark.words
@pytest.mark.parametrize(("numbers", "sign", "tilde"), [("[0, 1, 7]", "in", ""), ("{2: 'a', 3: 'b'}", "not in", "~")])
def test_what_is_in_a_list_the_device_can_ask(numbers: str, sign: str, tilde: str, tmp_path: Path) -> None:
    # GIVEN a step that goes through its tokens on the host, to know which are special
    text = HIDDEN.replace("{numbers}", numbers).replace("{sign}", sign)
    names = run(text, tmp_path)
    # WHEN its fixes are told
    told = str(pgk.diagnose(names["f"], *names["args"], fix=True))
    # THEN the line has one for the device
    once, here = (
        "special_on_device = torch.tensor(list(SPECIAL), device=device)",
        (f"special = {tilde}torch.isin(ids, special_on_device)"),
    )
    assert f"once `{once}`" in told
    assert f"here `{here}`, and `special` for `torch.tensor(special, dtype=torch.bool)` at line 17" in told
    # AND followed, with what the diff has, it captures and gives what it gave
    own = next(line for line in text.splitlines() if "special = [[" in line)
    mended = text.replace(own, f"    {here}").replace("torch.tensor(special, dtype=torch.bool)", "special")
    mended = mended.replace("def f(", f"{once}\ndef f(").replace("0.5).to(ids.device)", "0.5, device=ids.device)")
    expected = eager(run(text, tmp_path), "f")
    assert not differences(expected, captured(run(mended, tmp_path), "f"), set())
