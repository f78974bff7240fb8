"""What a graph keeps of the host's that is given another value behind its launch, by the text of a file."""

from __future__ import annotations

import pytest

from paramgraph_kit.rewrite.reads import frozen, moved_around


@pytest.mark.parametrize(
    ("begins", "moves", "told"),
    [
        ("self.pos = torch.tensor(0)", "self.pos += 1", ""),
        ("self.pos, self.n = torch.tensor(0), 0", "self.pos += 1", ""),
        ("self.pos = 0", "self.pos += 1", "pos"),
        ("self.pos = torch.tensor(0)", "self.pos = self.pos + 1", "pos"),
        ("self.pos = torch.tensor(0)\n        self.pos = 0", "self.pos += 1", "pos"),
    ],
)
def test_what_is_always_a_tensor_may_be_added_to_behind_a_launch(begins: str, moves: str, told: str) -> None:
    # GIVEN a place that a launch reads and a function behind it moves WHEN it is asked for what a graph keeps
    text = f"""\
class Engine:
    def __init__(self):
        {begins}
    def decode(self, x):
        return x[self.pos]
    def after_decode(self):
        {moves}
"""
    name = frozen(text.splitlines(keepends=True), ["after_decode"], ["Engine.decode"], [])
    # THEN it is that only where it is no tensor that is written where it lies
    assert name.lstrip(".") == told


@pytest.mark.parametrize(
    ("begins", "told"),
    [("torch.where(torch.arange(9) < 4, 1.0, -1.0).to(device)", ""), ("[1.0] * 9", "s"), ("start()", "s")],
)
def test_what_a_loop_writes_into_a_tensor_beside_its_round_is_seen_by_that(begins: str, told: str) -> None:
    # GIVEN a loop that writes one entry of an attribute around a round that reads it
    text = f"""\
class Spins:
    def __init__(self):
        self.s = {begins}
    def step(self, u):
        for i in range(9):
            dE = step_round(self, i)
            if u[i] < dE:
                self.s[i] = -self.s[i]
def step_round(self, i):
    return self.s[i] * self.s.sum()
"""
    # WHEN it is asked what the round would keep THEN it is that only where it is no tensor for certain
    found = moved_around(text.splitlines(keepends=True), "step", "step_round", ["s"], [], ["step_round"])
    assert found[0].lstrip(".") == told


@pytest.mark.parametrize(
    ("made", "body", "told"),
    [
        ("crit = Loss(6).to(device)", "return s - t", ""),
        ("crit = Loss(6)", "return s * self.sched[epoch]", "ep"),
        ("crit = make()", "return s - t", "ep"),
        ("crit = Loss(6)\ncrit = Other(6)", "return s - t", "ep"),
    ],
)
def test_what_an_object_is_called_with_and_does_not_read_is_kept_by_no_graph(made: str, body: str, told: str) -> None:
    # GIVEN a step that calls an object of one of the file's classes with a number that moves behind the launch
    text = f"""\
class Loss(nn.Module):
    def forward(self, s, t, epoch):
        {body}
class Other(nn.Module):
    def forward(self, s, t, epoch):
        return s * epoch
{made}
def step(a, b):
    return crit(a, b, ep)
def after_step():
    global ep
    ep += 1
"""
    # WHEN it is asked what a graph keeps THEN it is that number only where what is called may read it
    ran = ["step", "Loss.forward", "Other.forward"]
    assert frozen(text.splitlines(keepends=True), ["after_step"], ran, []) == told


@pytest.mark.parametrize(
    ("other", "more", "told"),
    [
        ("self.n = 2", "", ""),
        ("self.n = 2", "class Both(Trainer, Augment):\n    pass\n", "n"),  # one object's
        ("pass", "", "n"),  # whoever sets it may have the trainer's
        ("self.n = 2", "def show(augment):\n    print(augment.n)\n", ""),  # which no step comes to
        ("self.n = 2", "def part(augment):\n    return augment.n\n", "n"),
    ],
)
def test_an_attribute_that_two_classes_have_each_for_itself_is_two(other: str, more: str, told: str) -> None:
    # GIVEN a counter that moves behind a launch, and a number of that name that an object of another class has
    text = f"""\
class Augment:
    def __init__(self):
        {other}
    def forward(self, x):
        for _ in range(self.n):
            x = x + 1
        return x
class Trainer:
    def __init__(self):
        self.n = 0
    def step(self, x):
        return self.augment(x)
    def after_step(self):
        self.n += 1
{more}"""
    # WHEN it is asked what a graph keeps
    ran = ["Trainer.step", "Augment.forward", "part"]
    name = frozen(text.splitlines(keepends=True), ["after_step"], ran, [])
    # THEN the counter is none of the graph's
    assert name.lstrip(".") == told


@pytest.mark.parametrize(("told", "left"), [("self.losses.append(x)", ""), ("self.losses[-1] += x", ".losses")])
def test_a_list_that_a_part_only_adds_to_is_none_that_it_reads(told: str, left: str) -> None:
    # GIVEN a part that trains with `opt.step()`, called by a `step` that adds to the list that the part adds to
    text = f"""\
def critic_part(self, x):
    self.opt.step()
    self.note(x)
class Trainer:
    def note(self, x):
        {told}
    def critic(self, x):
        critic_part(self, x)
        self.losses.append(0)
    def step(self, x):
        self.critic(x)
        print(self.losses[-1])
"""
    lines, ran = text.splitlines(keepends=True), ["critic_part", "Trainer.note"]
    # WHEN it is asked what the part would keep THEN it is the list only where the part reads it: it calls no `step`
    assert moved_around(lines, "critic", "critic_part", ["losses"], [".losses"], ran)[0] == left


@pytest.mark.parametrize(
    ("reads", "moves", "lists", "told"),
    [
        ("torch.arange(len(self.last))", "self.last[i] = t", ["last"], ""),
        ("torch.arange(len(self.last))", "self.last[0] += 1", ["last"], ""),
        ("torch.arange(len(self.last))", "self.last[:i] = []", ["last"], "last"),
        ("torch.arange(len(self.last))", "self.last.append(t)", ["last"], "last"),
        ("torch.arange(len(self.last))", "self.last = [t]", ["last"], "last"),
        ("torch.arange(len(self.last))", "self.last[i] = t", [], "last"),  # a dictionary may get one more
        ("torch.arange(len(self.last)) + self.last[0]", "self.last[i] = t", ["last"], "last"),
    ],
)
def test_how_many_a_list_has_stays_where_its_entries_are_others(
    reads: str, moves: str, lists: list[str], told: str
) -> None:
    # GIVEN a step that asks how many slots there are, and lines behind the launch that give one of them another token
    text = f"""\
class Engine:
    def step(self):
        return {reads}
    def after_step(self, i, t):
        {moves}
"""
    # WHEN it is asked for what the graph keeps THEN it is the list only where it may have another length
    name = frozen(text.splitlines(keepends=True), ["after_step"], ["Engine.step"], ["last"], lists=lists)
    assert name.lstrip(".") == told


@pytest.mark.parametrize(("also", "told"), [("", ""), (" + self.heat", "n")])
def test_what_a_property_reads_is_kept_only_where_a_graph_asks_for_it(also: str, told: str) -> None:
    # GIVEN a property of a count, asked ahead of the launch, and in it or not
    text = f"""\
class Heated:
    @property
    def heat(self):
        return 0.1 * self.n
    def before_step(self):
        kick_in.fill_(self.heat)
    def step(self, x):
        return x * kick_in{also}
    def after_step(self):
        self.n += 1
"""
    # WHEN it is asked for what a graph keeps THEN it is the count only where the graph asks for it
    ran = ["Heated.step", "Heated.heat"]
    assert frozen(text.splitlines(keepends=True), ["before_step", "after_step"], ran, []).lstrip(".") == told
