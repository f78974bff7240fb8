"""Fixes of counts that live in tensors: they hold from other numbers too, and for lines that no tried step runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.rewrite import starts
from tests.integration.rewritten import Fixed, lines_of, run

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the exact words are those of the simulated device")

MEMORY = """
class Memory:
    def __init__(self, size=24):
        self.pos, self.size = START, size
        self.k = torch.randn(2, size, 4, device=device)
mem = Memory()
args = (torch.randn(2, 1, 4, device=device),)
"""
ATTEND = """
@torch.no_grad()
def f(x):
    t = x.shape[1]
    mem.k[:, mem.pos : mem.pos + t] = x
    mem.pos += t
    k = mem.k[:, : mem.pos]
    w = x @ k.transpose(1, 2)
    MORE
    return torch.softmax(w, -1) @ k
"""
PAST = """
@torch.no_grad()
def f(x):
    k = mem.k[:, : mem.pos]
    out = torch.softmax(x @ k.transpose(1, 2), -1) @ k
    mem.k[:, mem.pos] = x[:, 0]
    mem.pos += 1
    return out + x
def clear():
    mem.pos = 0
"""
DOWN = """
def f(x):
    mem.k[:, mem.pos] = x[:, 0]
    mem.pos -= 1
    return mem.k[:, mem.pos + 1 :].sum(1)
"""
ELSEWHERE = {  # right in the steps that are tried, and not where the count may be later
    "nothing is there once it is cleared": MEMORY.replace("START", "5") + PAST,
    "it is counted down to below 0": MEMORY.replace("START", "15") + DOWN,
}
UNTRIED = {  # right for one token, and not for a prompt
    "a mask of a prompt's own": "if t > 1:\n        w = w + torch.ones(t, t, device=device).tril().log()",
    "its last places, in a choice": "w = w[..., -t:] if t > 1 else w",
}
HOLDS = {  # what reads nothing that grows, or holds for all numbers
    "another branch that does not read it": "if t > 1:\n        x = x * 2",
    "a ring that comes round later": "if mem.pos == mem.size:\n        mem.pos = 0",
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_rewrite_that_fails_from_another_number_is_not_made(name: str, fixed: Fixed) -> None:
    # GIVEN a step whose count begins where a mask is right WHEN rewritten THEN it is none that is wrong later
    found = fixed(ELSEWHERE[name])
    assert not any("there = " in line for line in lines_of(found)), found


@pytest.mark.parametrize("name", UNTRIED)
def test_a_line_that_no_step_has_run_keeps_its_part(name: str, fixed: Fixed) -> None:
    # GIVEN a line for prompts, which reads what has a part's size WHEN rewritten for one token
    found = fixed(MEMORY.replace("START", "0") + ATTEND.replace("MORE", UNTRIED[name]))
    # THEN the part stays one, for the line would get a whole
    assert not any("there = " in line for line in lines_of(found)), found


def test_attention_that_is_causal_with_other_arguments_gets_no_mask(fixed: Fixed) -> None:
    # GIVEN attention that is causal where there are several tokens WHEN rewritten for one
    text = PAST.replace("torch.softmax(x @ k.transpose(1, 2), -1) @ k", "ATTENTION").replace("def clear", "def unused")
    call = "F.scaled_dot_product_attention(x, k, k, is_causal=x.shape[1] > 1)"
    found = fixed(MEMORY.replace("START", "5") + text.replace("ATTENTION", call).replace("    mem.pos = 0", "    pass"))
    # THEN it is given no mask, which it does not take beside that
    assert not any("attn_mask" in line for line in lines_of(found)), found


@pytest.mark.parametrize("name", HOLDS)
def test_what_holds_for_all_numbers_is_rewritten(name: str, fixed: Fixed) -> None:
    # GIVEN a branch that no tried step takes, and that holds for a whole WHEN rewritten THEN all is, in one graph
    found = fixed(MEMORY.replace("START", "0") + ATTEND.replace("MORE", HOLDS[name]))
    assert found.complete, found
    assert any("there = " in line for line in lines_of(found)), found


MASKED = (
    MEMORY.replace("START", "0")
    + """
class Attend(nn.Module):
    def forward(self, x, k, mask=None):
        w = x @ k.transpose(1, 2)
        if mask is not None:
            w = w + mask
        return torch.softmax(w, -1) @ k
attend = Attend()
@torch.no_grad()
def f(x):
    mem.k[:, mem.pos : mem.pos + 1] = x
    mem.pos += 1
    return attend(CALL)
def prefill(x, k, mask):
    return HOW
"""
)


@pytest.mark.parametrize(
    ("call", "how", "is_whole"),
    [
        ("x, mem.k[:, : mem.pos]", "torch.baddbmm(mask, x, k)", True),
        ("x, mem.k[:, : mem.pos]", "attend(x, k, mask)", False),
        ("x, mem.k[:, : mem.pos]", "attend(x, k, mask=mask)", False),
        ("x, mem.k[:, : mem.pos]", "attend(*(x, k, mask))", False),
        ("x, mem.k[:, : mem.pos]", "attend(x, **dict(k=k, mask=mask))", False),
        ("x, k=mem.k[:, : mem.pos]", "mask.clamp(0, 1, out=mask)", True),
    ],
)
def test_a_line_for_an_argument_that_nobody_gives_does_not_count(
    call: str, how: str, is_whole: bool, fixed: Fixed
) -> None:
    # GIVEN a line below ``if mask is not None:`` of a module whose callers give it a mask, or do not WHEN rewritten
    found = fixed(MASKED.replace("CALL", call).replace("HOW", how))
    # THEN a whole stands for the part where nobody does
    assert any("there = " in line for line in lines_of(found)) is is_whole, found
    assert found.complete or not is_whole


COUNTED = """
class Trainer:
    def __init__(self):
        self.scale, self.n, self.every, self.calls, self.log = 1.0, 0, 9, [], []
trainer = Trainer()
n, avg = 0, torch.zeros(4, device=device)
trainer.calls.append(lambda t: setattr(t, "scale", t.scale * 0.5))
args = (torch.randn(4, device=device),)
def f(x):
    global n
    y = x * trainer.scale
    trainer.log.append(y.norm().item())
    trainer.n += 1
    n += 1
    MORE
    return y
"""
LATER = {  # right in the steps that are tried, and not where a count comes to later
    "a callback": "if trainer.n % 9 == 0:\n        for call in trainer.calls:\n            call(trainer)",
    "with a setting's number": "if trainer.n == trainer.every:\n        vars(trainer).update(scale=0.5)",
    "of a local": "count = trainer.n - 1\n    if count >= 9:\n        vars(trainer).update(scale=0.5)",
}


@pytest.mark.parametrize("name", LATER)
def test_what_is_set_as_a_count_comes_to_a_number_is_not_left_to_the_graph(name: str, fixed: Fixed) -> None:
    # GIVEN a step whose ninth call sets what others read, in a way that no line tells WHEN rewritten
    found = fixed(COUNTED.replace("MORE", LATER[name]))
    # THEN it is not whole, and the number is told
    assert not found.complete, found
    assert "comes to 9, replays of one graph would differ" in str(found)


def test_a_number_for_which_there_was_no_time_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN such a step, and no time for trials of the numbers that its count comes to WHEN rewritten
    names = run(COUNTED.replace("MORE", LATER["a callback"]), tmp_path)
    monkeypatch.setattr(starts, "LIMIT_S", 0.0)
    found = pgk.diagnose(names["f"], *names["args"], fix=True).fix
    # THEN what was not tried is named
    assert "was not tried as its count comes to 9: such trials had taken long enough" in str(found)


def test_a_count_that_comes_to_a_checkpoint_is_not_tried_and_that_is_told(fixed: Fixed, tmp_path: Path) -> None:
    # GIVEN a step that writes a file now and then, and before that something that a trial takes back
    file = tmp_path / "last.pt"
    more = f"if n % 10 == 0:\n        avg.copy_(y)\n    if n % 30 == 0:\n        torch.save(avg, {str(file)!r})"
    # WHEN it is rewritten THEN it is whole, and no trial has written the file
    found = fixed(COUNTED.replace("MORE", more))
    assert found.complete, found
    assert not file.exists()
    assert str(found).count("was not tried as its count comes there") == 1
    assert "`torch.save`" in str(found)
