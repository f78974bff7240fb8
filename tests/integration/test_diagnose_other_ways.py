"""What stands in branches that no call takes, and that a later one may, is told; nothing that is done there stays."""

from __future__ import annotations

import builtins
import random
from collections import deque
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import paramgraph_kit as pgk
from paramgraph_kit.doctor.diagnosis import Diagnosis
from paramgraph_kit.rewrite import rewriting
from paramgraph_kit.trace.model import Failure
from tests.integration.apart import APART

pytestmark = [APART, pytest.mark.usefixtures("recovered")]
DEVICE = pgk.device()


def told(found: Diagnosis) -> set[tuple[str, str]]:
    """The class and the line of each problem."""
    return {(failure.code, failure.frame.text) for failure in found if failure.frame}


def test_a_reset_that_no_environment_has_come_to_is_told_with_what_it_reads() -> None:
    # GIVEN environments, of which none is done in these calls, one reset by a branch and one by a loop
    steps, x, log = torch.zeros(4, dtype=torch.long, device=DEVICE), torch.zeros(4, 2, device=DEVICE), list[float]()

    def reset(ids: torch.Tensor) -> None:
        if len(ids) == 0:
            return
        log.append(x[ids].mean().item())

    def branch(a: torch.Tensor) -> None:
        steps.add_(1)
        done = steps > 200
        if done.any():
            log.append(x[done].sum().item())

    def loop(a: torch.Tensor) -> None:
        steps.add_(1)
        for i in torch.where(steps > 200)[0].tolist():
            log.append(float(x[i].norm()))

    def early(a: torch.Tensor) -> None:
        steps.add_(1)
        reset((steps > 200).nonzero().flatten())

    # WHEN diagnosed THEN what the branch, the loop and the rest of a function have is told, and nothing of it stays
    a = torch.randn(4, 2, device=DEVICE)
    found = pgk.diagnose(branch, a)
    assert ("sync-item", "log.append(x[done].sum().item())") in told(found), found
    assert any("no call came here by itself" in each.message for each in found)
    assert ("sync-item", "log.append(float(x[i].norm()))") in told(pgk.diagnose(loop, a))
    assert ("sync-item", "log.append(x[ids].mean().item())") in told(pgk.diagnose(early, a))
    assert (log, int(steps.sum())) == ([], 0)


def test_a_scale_that_doubles_long_after_these_calls_is_told_where_it_is_read() -> None:
    # GIVEN a scale that a count of good steps doubles
    state = {"scale": 8.0, "good": 0}

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * state["scale"]
        state["good"] += 1
        if state["good"] == 50:
            state["scale"] *= 2.0
            state["good"] = 0
        return y

    # WHEN diagnosed THEN the number, the branch and the line that doubles it are told, and all is as before
    found = told(pgk.diagnose(f, torch.ones(2, device=DEVICE)))
    assert ("scalar-frozen", 'y = x * state["scale"]') in found
    assert ("branch-frozen", 'if state["good"] == 50:') in found
    assert ("host-counter", 'state["scale"] *= 2.0') in found
    assert state == {"scale": 8.0, "good": 0}


def test_a_memory_that_is_not_warm_yet_is_told_with_what_trains_on_it() -> None:
    # GIVEN a memory that is drawn from once it has more than any of these calls has put there
    memory, weight = deque[torch.Tensor](maxlen=100), torch.ones(2).to(DEVICE)

    def f(x: torch.Tensor) -> torch.Tensor:
        memory.append(x.detach())
        if len(memory) > 32:
            loss = (torch.stack(random.sample(list(memory), 32)) * weight).sum()
            print(loss.item())
        return x * 2

    # WHEN diagnosed THEN the branch and what it reads back are told, and the memory is as before
    found = told(pgk.diagnose(f, torch.ones(2, device=DEVICE)))
    assert ("branch-frozen", "if len(memory) > 32:") in found
    assert ("sync-item", "print(loss.item())") in found
    assert not memory


def test_branches_that_never_turn_are_no_problem() -> None:
    # GIVEN guards, options and modes, whose other ways would wait
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.debug, self.cache = torch.nn.Linear(3, 3), False, None

        def forward(self, x: torch.Tensor, mask: Any = None, stats: bool = False) -> Any:
            if x.dim() != 2:
                raise ValueError(f"bad shape {tuple(x.shape)}")
            y = self.fc(x)
            if self.debug or x.shape[0] > 100:
                print(y.mean().item())
            if mask is not None:
                y = y[mask]
            if self.cache is not None:
                y = y + float(self.cache)
            return (y, y.mean().item()) if stats else y

    # WHEN diagnosed THEN nothing is told
    assert not pgk.diagnose(Net().to(DEVICE), torch.ones(2, 3, device=DEVICE))


def test_nothing_reaches_out_where_a_call_is_led(tmp_path: Path) -> None:
    # GIVEN a step that saves, sends and deletes now and then, beside what it reads back
    kept = tmp_path / "kept.txt"
    kept.write_text("mine", encoding="utf-8")
    wire = (tmp_path / "sent.txt").open("w", encoding="utf-8")
    layer = torch.nn.Linear(2, 2).to(DEVICE).requires_grad_(False)
    state = {"n": 0}

    def f(x: torch.Tensor) -> Any:
        y = layer(x)
        state["n"] += 1
        if state["n"] % 100 == 0:
            layer.requires_grad_(True)
            print("loss", y.mean().item())
            torch.save(y, tmp_path / "y.pt")
            kept.unlink()
            wire.write(str(y.sum().item()))
        return y

    before = f.__code__

    # WHEN diagnosed THEN what is read back is told, and neither files, nor parameters, nor functions are touched
    found = told(pgk.diagnose(f, torch.ones(1, 2, device=DEVICE)))
    assert ("sync-item", 'print("loss", y.mean().item())') in found
    assert ("sync-item", "wire.write(str(y.sum().item()))") in found
    wire.close()
    assert {each.name: each.read_text(encoding="utf-8") for each in tmp_path.iterdir()} == {
        "kept.txt": "mine",
        "sent.txt": "",
    }
    assert (state, layer.weight.requires_grad) == ({"n": 0}, False)
    assert f.__code__ is before
    assert not any(name.startswith("__pgk") for name in vars(builtins))


def test_a_line_that_no_trial_runs_is_not_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN codes that are revived each hundredth call, as many as are dead
    codes, usage, state = torch.randn(4, 2).to(DEVICE), torch.zeros(4, device=DEVICE), {"n": 0}

    def f(z: torch.Tensor) -> torch.Tensor:
        usage.add_(z.mean())
        state["n"] += 1
        if state["n"] % 100 == 0:
            dead = usage < 1.0
            codes[dead] = z[: int(dead.sum())]
        return codes + z

    given = list[Failure]()

    def rewrite(function: Any, args: Any, kwargs: Any, failures: Any, **options: Any) -> None:
        given.extend(failures)
        raise RuntimeError("no more is asked")

    # WHEN it is to be fixed THEN the line is told, and not among those that are rewritten; its branch is
    monkeypatch.setattr(rewriting, "rewrite", rewrite)
    found = pgk.diagnose(f, torch.randn(4, 2).to(DEVICE), fix=True)
    line = "codes[dead] = z[: int(dead.sum())]"
    assert line in {text for _, text in told(found)}
    assert {each.frame.text for each in given if each.frame} == {'state["n"] += 1', 'if state["n"] % 100 == 0:'}


def test_what_a_decorated_helper_brings_and_one_list_of_several_are_told_and_a_state_that_is_made_once_is_not() -> None:
    # GIVEN an evaluation at each fourth step, by a helper without gradients, and a state that only the first call makes
    net = torch.nn.Linear(2, 1).to(DEVICE)
    log: dict[str, list[Any]] = {"loss": [], "best": []}
    kept = SimpleNamespace(state={"x": dict[str, Any]()})
    texts: dict[str, str] = {}
    count = [0]

    @torch.no_grad()
    def evaluate(x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(net(x)).mean()

    def step(x: torch.Tensor) -> None:
        state = kept.state["x"]
        if len(state) == 0:
            state["mean"], state["step"] = torch.zeros_like(x), 0
        if len(texts) == 0:
            state["offset"] = torch.zeros_like(x)
        texts["at"] = f"{count[0]}"
        state["step"] += 1
        state["mean"] = 0.9 * state["mean"] + 0.1 * x
        log["loss"].append(state["mean"].clone())
        count[0] += 1
        if count[0] % 100 == 0:
            best = evaluate(x)
            if best > 0:
                log["best"].append(best.item())

    # WHEN diagnosed THEN what the helper's result decides is told, and the list beside the one of each call
    lines = told(found := pgk.diagnose(step, torch.randn(4, 2, device=DEVICE)))
    assert ("data-dependent-branch", "if best > 0:") in lines, found
    assert {"sync-item", "host-counter"} <= {c for c, text in lines if text == 'log["best"].append(best.item())'}, found
    # AND the branches that make the state are not
    assert not any(text.startswith("if len(") for _, text in lines), found


def test_an_image_pool_that_none_of_these_calls_fills_is_told_with_what_it_exchanges_and_draws() -> None:
    # GIVEN a pool of 40 images, from which a draw picks one that is exchanged
    images = list[torch.Tensor]()

    def pooled(fake: torch.Tensor) -> torch.Tensor:
        out = []
        for image in fake:
            if len(images) < 40:
                images.append(image)
                out.append(image)
            else:
                p = random.uniform(0, 1)
                if p > 0.5:
                    k = random.randint(0, 39)
                    kept = images[k].clone()
                    images[k] = image
                    out.append(kept)
                else:
                    out.append(image)
        return torch.stack(out) * 2.0

    # WHEN diagnosed THEN the exchange, the draw that picks, and the branch on a draw are told; nothing stays
    found = told(pgk.diagnose(pooled, torch.randn(2, 3).to(DEVICE)))
    assert ("output-alias", "images[k] = image") in found, found
    assert ("host-random", "kept = images[k].clone()") in found, found
    assert ("branch-frozen", "if p > 0.5:") in found, found
    assert ("branch-frozen", "if len(images) < 40:") in found, found
    assert not images


def test_a_mask_that_has_none_has_one_where_a_call_is_led_to_what_it_picks() -> None:
    # GIVEN a mask of large values, of which these calls have none, and a mask of an object's
    log, x = list[float](), torch.zeros(4, 2, device=DEVICE)
    state = SimpleNamespace(done=torch.zeros(4, dtype=torch.bool, device=DEVICE))

    def pick(a: torch.Tensor) -> None:
        large = a > 100.0
        if large.any():
            best = a[large].max()
            log.append(best.item())

    def reset(a: torch.Tensor) -> torch.Tensor:
        if torch.any(state.done):
            worst = x[state.done].amin(0)
            log.append(worst.sum().item())
        return x * a

    # WHEN diagnosed THEN what is read behind the maximum of what is picked is told, and the mask is as before
    a = torch.ones(4, 2, device=DEVICE)
    assert ("sync-item", "log.append(best.item())") in told(found := pgk.diagnose(pick, a)), found
    assert ("sync-item", "log.append(worst.sum().item())") in told(found := pgk.diagnose(reset, a)), found
    assert (log, int(state.done.sum())) == ([], 0)


def test_ways_within_expressions_are_led_into_as_those_of_statements_are() -> None:
    # GIVEN a counter that a local name asks for, and what an `and`, a comprehension and an empty list keep from running
    state, best, left = {"n": 0}, [1e9], list[float]()
    x, steps = torch.ones(3, device=DEVICE), torch.zeros(3, device=DEVICE)

    def choose(y: torch.Tensor) -> torch.Tensor:
        state["n"] += 1
        late = state["n"] > 20
        return y.exp() if late else y.sin()

    def short(y: torch.Tensor) -> torch.Tensor:
        state["n"] += 1
        loss = (x * y).sum()
        if state["n"] > 30 and loss.item() < best[0]:
            best[0] = 0.0
        return loss

    def ended(y: torch.Tensor) -> torch.Tensor:
        steps.add_(1)
        done = (steps > 40).nonzero().flatten().tolist()
        left.extend([y[i].item() for i in done])
        if done:
            steps[done] = 0.0
        return steps + y

    # WHEN diagnosed THEN each is told at its line, and nothing of it stays
    assert ("branch-frozen", "return y.exp() if late else y.sin()") in told(found := pgk.diagnose(choose, x)), found
    found = pgk.diagnose(short, x)
    assert ("sync-item", 'if state["n"] > 30 and loss.item() < best[0]:') in told(found), found
    lines = told(found := pgk.diagnose(ended, x))
    assert ("sync-item", "left.extend([y[i].item() for i in done])") in lines, found
    assert ("cpu-index", "steps[done] = 0.0") in lines, found
    assert (state, best, left) == ({"n": 0}, [1e9], [])


def test_a_choice_of_words_for_a_log_is_no_way_of_the_device() -> None:
    # GIVEN a text that a counter chooses, and an `and` of two numbers of the host's
    state, said = {"n": 0, "quiet": False}, list[str]()

    def f(y: torch.Tensor) -> torch.Tensor:
        state["n"] += 1
        late = state["n"] > 20 and not state["quiet"]
        said.append("late" if late else "early")
        return y * 2.0

    # WHEN diagnosed THEN what it counts and says is told, and no branch
    found = pgk.diagnose(f, torch.ones(3, device=DEVICE))
    assert {code for code, _ in told(found)} == {"host-counter"}, found


class _Flipping:
    """A trainer that draws what it gives to a part of its step."""

    def __init__(self) -> None:
        self.count = torch.zeros((), device=DEVICE)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        flip = random.random() < 0.3
        return _flipped(flip, self, x)


def _flipped(flip: bool, owner: _Flipping, x: torch.Tensor) -> torch.Tensor:
    owner.count.add_(1)
    return x * torch.full((2,), 0.1 if flip else 0.9, device=x.device)


def test_what_a_partial_binds_does_not_turn_by_a_caller_that_no_call_comes_to() -> None:
    # GIVEN a part of a step, for which the step draws a flag, and an object that has both
    trainer, x = _Flipping(), torch.ones(2, device=DEVICE)

    # WHEN the part is diagnosed with its flag bound THEN it is no problem, and where the step draws it is one
    assert not (found := pgk.diagnose(partial(_flipped, False, trainer), x)), found
    assert {f.code for f in pgk.diagnose(trainer.step, x)} == {"host-random"}


class Gate:
    """Takes loud inputs as they are, and some behind each; the level follows quiet ones."""

    def __init__(self) -> None:
        self.level = torch.ones(4, device=DEVICE)
        self.left = 0

    def is_open(self, x: torch.Tensor) -> bool:
        if x.pow(2).mean().item() > 0.1:
            self.left = 3
            return True
        if self.left > 0:
            self.left -= 1
            return True
        return False

    def step(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_open(x):
            self.level = 0.9 * self.level + 0.1 * x.abs()
        return x / self.level


@pytest.mark.parametrize("loud", [1.0, 0.01])
def test_what_a_branch_exchanges_that_a_function_of_its_own_decides_is_told_for_every_input(loud: float) -> None:
    # GIVEN a tensor that is exchanged where a counter has run down, which a function answers by constants
    x = torch.full((4,), loud, device=DEVICE)
    # WHEN diagnosed with an input that is loud, or quiet
    found = pgk.diagnose(Gate().step, x)
    # THEN the exchange is told either way
    assert "stale-input" in found.codes, found


def test_a_parameters_memory_that_a_branch_exchanges_behind_its_first_calls_is_told() -> None:
    # GIVEN an average that is copied at first, and given other memory once a count has passed; the twin writes in place
    model, average = torch.nn.Linear(3, 3).to(DEVICE), torch.nn.Linear(3, 3).to(DEVICE).requires_grad_(False)
    count = SimpleNamespace(steps=0)

    def follow(a: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(a)
        if count.steps < 8:
            average.load_state_dict(model.state_dict())
            count.steps += 1
            return out
        for kept, now in zip(average.parameters(), model.parameters(), strict=True):
            kept.data = kept.data * 0.9 + now.data * 0.1
        return out

    def in_place(a: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(a)
        if count.steps < 8:
            average.load_state_dict(model.state_dict())
            count.steps += 1
            return out
        for kept, now in zip(average.parameters(), model.parameters(), strict=True):
            kept.data.mul_(0.9).add_(now.data * 0.1)
        return out

    # WHEN diagnosed cold THEN the exchange is told, and the twin's lines are not; the parameters are as they were
    before = [each.data_ptr() for each in average.parameters()]
    a = torch.randn(2, 3, device=DEVICE)
    assert ("parameter-rebound", "kept.data = kept.data * 0.9 + now.data * 0.1") in told(pgk.diagnose(follow, a))
    assert not any(code == "parameter-rebound" for code, _ in told(pgk.diagnose(in_place, a)))
    assert [each.data_ptr() for each in average.parameters()] == before


def test_the_state_that_an_optimizer_makes_in_its_first_step_is_none_of_a_branch_that_is_led() -> None:
    # GIVEN a step that has a branch for later, and leaves at each call what was drawn for it
    net, other = (torch.nn.Linear(4, 2).to(DEVICE) for _ in range(2))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2, capturable=DEVICE.type != "cpu")
    rows, count = np.ones(8), [0]

    def learn(x: torch.Tensor) -> None:
        loss = (net(x) - other(x)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            p.grad.clamp_(-1, 1)  # type: ignore[union-attr]
        opt.step()
        rows[np.random.choice(8, 3)] = loss.item()
        count[0] += 1
        if count[0] % 50 == 0:
            other.load_state_dict(net.state_dict())

    # WHEN it is diagnosed
    found = told(pgk.diagnose(learn, torch.randn(8, 4, device=DEVICE)))

    # THEN the branch is told, and nothing of the loop over the gradients
    assert ("branch-frozen", "if count[0] % 50 == 0:") in found
    assert not any("net.parameters" in line or "clamp_" in line for _, line in found), found


class _Pairs:
    def __init__(self, x: torch.Tensor, *, close: bool) -> None:
        self.x, self.close = x, close
        self.reference: torch.Tensor | None = x.clone()
        self.pairs = torch.zeros(2, 1, dtype=torch.long, device=DEVICE)

    def __call__(self, v: torch.Tensor) -> torch.Tensor:
        self.x.add_(v)
        if self.reference is not None:
            with torch.no_grad():
                if self.close or (self.x - self.reference).abs().max() < 5:
                    return self.x[self.pairs].sum()
        self.pairs = (self.x[:, None] - self.x[None]).abs().lt(1).nonzero().T
        return self.x[self.pairs].sum()


@pytest.mark.parametrize("close", [False, True], ids=["asks", "never-asks"])
def test_what_is_behind_the_statements_around_a_branch_that_leaves_is_told(close: bool) -> None:
    # GIVEN a neighbour list that is built anew behind an `if` within which these calls leave, or which always leaves
    step = _Pairs(torch.randn(4, device=DEVICE), close=close)
    # WHEN diagnosed THEN the line behind both is told where a later call may come to it
    found = told(pgk.diagnose(step, torch.full((4,), 1e-3, device=DEVICE)))
    built = "self.pairs = (self.x[:, None] - self.x[None]).abs().lt(1).nonzero().T"
    assert (("dynamic-shape", built) in found) is not close
    assert bool(found) is not close
