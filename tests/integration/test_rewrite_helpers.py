"""What helpers of a step draw on the host is drawn before the launch, in the same order."""

from __future__ import annotations

import pytest
import torch

from tests.integration.rewritten import Fixed, lines_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the lines are those of the simulated device")

NET = """
net = nn.Linear(6, 6).to(device)
args = (torch.randn(2, 6, device=device),)
"""
FLIP = """
def flip(x, p=0.5):
    if random.random() < p:
        x = x.flip(-1)
    return x
"""


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            FLIP + "def f(x):\n    return net(flip(x))\n",
            ["p = 0.5", "given_in.fill_(random.random() < p)", "x = torch.where(given_in, x.flip(-1), x)"],
        ),
        (
            FLIP + "def f(x, q=0.4):\n    x = flip(x, p=q)\n    return net(x)\n",
            ["def before_flip(q):  # before each launch", "p = q"],
        ),
        (
            (
                "def drop(x):\n    if random.random() < 0.5:\n        return x + 1\n    return x\n"
                "def f(x):\n    return net(drop(x))\n"
            ),
            ["return torch.where(given_in, x + 1, x)"],
        ),
        (
            (
                "def mix(x, a=0.4):\n    lam = np.random.beta(a, a)\n    return lam * x + (1 - lam) * x.flip(0), lam\n"
                "def f(x):\n    m, lam = mix(x)\n    return net(m).sum() * lam\n"
            ),
            ["lam = np.random.beta(a, a)", "return lam_in * x + (1 - lam_in) * x.flip(0), lam_in"],
        ),
        (  # a name that the helper gives back in another line, in the place of the step's own argument
            (
                "def mix(x, a=0.4):\n    lam = np.random.beta(a, a)\n    i = torch.randperm(x.size()[0]).to(x.device)\n"
                "    mixed = lam * x + (1 - lam) * x[i, :]\n    return mixed, lam\n"
                "def weigh(a, b, lam):\n    return lam * a + (1 - lam) * b\n"
                "def f(x):\n    x, lam = mix(x)\n    return weigh(net(x).sum(), x.sum(), lam)\n"
            ),
            ["def before_mix(x):  # before each launch", "return mixed, lam_in"],
        ),
        (
            (
                "def crop(x, size=4):\n    i = random.randint(0, x.shape[-1] - size)\n    return x[..., i:i + size]\n"
                "def f(x):\n    return crop(x) * 2\n"
            ),
            ["def before_crop(x):  # before each launch", "i_in.fill_(i)"],
        ),
        (
            (
                "def scale(x):\n    if random.random() < 0.5:\n        x = x * random.uniform(0.8, 1.2)\n    return x\n"
                "def f(x):\n    return net(scale(x))\n"
            ),
            ["chosen = random.random() < 0.5", "if chosen:", "x = torch.where(given_in, x * given_in_2, x)"],
        ),
        (  # a part of what the step is given has the helper's name for it, which is the step's own, too
            (
                "def mix(x, y):\n    lam = torch.tensor(np.random.random((x.size(0), 1)), dtype=torch.float32, "
                "device=x.device)\n    return lam * x + (1 - lam) * y\n"
                "def f(x):\n    return net(mix(x.data, x.flip(0).data)).sum()\n"
            ),
            ["def before_mix(x):  # before each launch", "x = x.data"],
        ),
    ],
    ids=["default", "argument", "return", "number", "returned", "crop", "nested", "named alike"],
)
def test_a_draw_of_a_helper_is_drawn_before_the_launch(fixed: Fixed, text: str, lines: list[str]) -> None:
    # GIVEN a step whose helper draws on the host WHEN rewritten
    found = fixed(NET + text)
    # THEN the host draws before the launch, and the helper reads a tensor
    assert found.complete, found
    assert set(lines) <= set(lines_of(found)), found


@pytest.mark.parametrize(
    "text",
    [
        (
            "def scale(x, low, high):\n    s = random.uniform(low, high)\n    return x * s\n"
            "def f(x):\n    x = flip(x)\n    x = scale(x, 0.9, high=1.1)\n    return net(x)\n"
        ),
        "def f(x):\n    x = flip(x)\n    s = random.uniform(0.9, 1.1)\n    return net(x) * s\n",
        "def f(x):\n    s = random.uniform(0.9, 1.1)\n    return flip(net(x) * s)\n",
    ],
    ids=["two helpers", "a helper and the step", "the step and a helper"],
)
def test_draws_of_several_functions_keep_their_order(fixed: Fixed, text: str) -> None:
    # GIVEN draws in more than one function WHEN rewritten
    found = fixed(NET + FLIP + text)
    # THEN one function draws all of them, in the order of the step
    assert found.complete, found
    assert "def before_f():  # before each launch" in lines_of(found)


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    return net(flip(x)) + net(flip(x * 2))\n",
        "def f(x):\n    for _ in range(3):\n        x = flip(x)\n    return net(x)\n",
        "def f(x):\n    if random.random() < 0.5:\n        x = flip(x)\n    return net(x)\n",
        "def f(x):\n    s = random.random()\n    x = flip(x)\n    return net(x) * s * random.random()\n",
    ],
    ids=["twice", "loop", "branch", "between"],
)
def test_a_helper_that_does_not_draw_once_in_each_step_is_left(fixed: Fixed, text: str) -> None:
    # GIVEN a helper that draws several times in each step, or in some, or between other draws WHEN rewritten
    found = fixed(NET + FLIP + text)
    # THEN nothing is said to be whole that draws in another order
    assert not found.complete, found
    assert "p = 0.5" not in lines_of(found), found


BRANCHES = {
    "names within names": (
        """
def f(x):
    a, alpha = random.random(), random.uniform(0.5, 2.0)
    if random.random() < 0.5:
        x = rescale(x * alpha, s=a)
    return net(x)
""",
        "x = torch.where(given_in, rescale(x * alpha_in, s=a_in), x)",
    ),
    "two alike": (
        """
def f(x):
    if random.random() < 0.5:
        x = x * random.uniform(0.5, 2.0)
    if random.random() < 0.5:
        x = x * random.uniform(0.5, 2.0)
    return net(x)
""",
        "x = torch.where(given_in_3, x * given_in_4, x)",
    ),
}


@pytest.mark.parametrize("title", BRANCHES)
def test_what_a_branch_reads_is_given_under_its_own_name(fixed: Fixed, title: str) -> None:
    # GIVEN branches that read what the host draws WHEN rewritten
    text, line = BRANCHES[title]
    found = fixed(NET + "def rescale(x, s):\n    return x * s + 1\n" + text)
    # THEN each reads its own
    assert found.complete, found
    assert line in lines_of(found), found


def test_what_a_branch_has_not_drawn_yet_spoils_no_gradient(fixed: Fixed) -> None:
    # GIVEN a branch that divides by what it alone draws
    text = """
def f(x):
    y = net(x)
    if random.random() < 0.5:
        y = y / random.uniform(0.5, 2.0)
    return torch.autograd.grad(y.square().sum(), net.weight)[0]
"""
    # WHEN rewritten THEN what stands there before the first draw is a number that was drawn
    found = fixed(NET + text)
    assert found.complete, found
    assert "given_in_2 = torch.full((), " in "".join(lines_of(found)), found


def test_what_a_branch_draws_twice_in_the_same_words_is_left(fixed: Fixed) -> None:
    # GIVEN / WHEN / THEN
    draws = "x * random.random() + random.random()"
    found = fixed(f"{NET}def f(x):\n    if random.random() < 0.5:\n        x = {draws}\n    return net(x)\n")
    assert not found.complete
    assert not lines_of(found), found


WARMED_UP = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(6, 2), nn.Linear(2, 6)
        self.beta = 0.0
    def forward(self, x):
        z = self.enc(x)
        self.beta = min(1.0, self.beta + 0.1)
        error = (self.dec(z) - x).square().sum()
        return error + self.beta * z.square().sum(), {"error": error.item()}
net = Net().to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
logs = []
def size(model):
    return sum(p.numel() for p in model.parameters())
print(net, size(net))
args = (torch.randn(4, 6, device=device),)
def f(x):
    loss, parts = net(x)
    opt.zero_grad()
    loss.backward()
    opt.step()
    logs.append(parts)
    return loss.detach()
"""


def test_what_a_forward_counts_and_tells_goes_around_the_launch_of_its_step(fixed: Fixed) -> None:
    # GIVEN a module that warms a weight up and returns numbers, which the step keeps
    # WHEN a fix is asked for
    fix = fixed(WARMED_UP)
    # THEN the host counts before the launch, and keeps what is told behind it
    assert fix.complete, fix
    lines = {line.strip() for line in lines_of(fix)}
    assert {"net.beta = min(1.0, net.beta + 0.1)", "beta_in.fill_(net.beta)"} <= lines
    assert "parts = {key: each.clone() for key, each in parts.items()}" in lines


@pytest.mark.parametrize(
    "other",
    [
        "def test(x):\n    return net(x)[0]\n",
        "def test(model, x):\n    return model(x)[0]\ndef tests(x):\n    return test(net, x)\n",
        "both = nn.Sequential(net, nn.Identity())\n",
        (
            "class Mean:\n    def __init__(self, net):\n        self.kept = net.eval()\n"
            "    def get(self, x):\n        return self.kept(x)\nmean = Mean(net)\n"
        ),
        "others = [Net() for _ in range(2)]\n",
        "def test(outer, x):\n    for child in outer.children():\n        x = child(x)\n    return x\n",
        "import copy\ndef twin(outer):\n    return copy.deepcopy(outer)\n",
    ],
)
def test_a_module_that_is_called_elsewhere_too_keeps_its_count(fixed: Fixed, other: str) -> None:
    # GIVEN the same, and what may call the module, or another of its class, in the file WHEN a fix is asked for
    fix = fixed(WARMED_UP + other)
    # THEN what it counts does not go to the step that is looked at
    assert not {"net.beta = min(1.0, net.beta + 0.1)"} & {line.strip() for line in lines_of(fix)}, fix


def test_a_count_that_a_result_is_computed_with_is_told_once(fixed: Fixed) -> None:
    # GIVEN the same where the host draws what the device needs, which no rule moves
    text = WARMED_UP.replace("z = self.enc(x)", "z = self.enc(x)\n        z = z + torch.randn(z.shape).to(x.device)")
    # WHEN a fix is asked for THEN the two lines say the same of where the host counts
    said = str(fixed(text))
    assert "belongs before each launch: line 20 reads it there from a tensor" in said, said
    assert "before each launch that line and `beta_in.fill_(self.beta)`, here `beta_in` for `self.beta`" in said
