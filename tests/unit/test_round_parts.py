"""Which parts of nested loops get rounds of their own."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.round_parts import behind, ended, from_step, is_done
from paramgraph_kit.rewrite.round_run import Taken

CRITIC = """
for epoch in range(3):
    start()
    for n in range(5):
        critic_loss.backward()
    noise = draw()
    loss = net(noise)
    loss.backward()
    log(loss)
"""
STEPS = """
for x, y in loader:
    loss = net(x)
    loss.backward()
    if n % 2 == 0:
        opt.step()
    told += loss.item()
"""


def works(node: ast.stmt) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == "backward" for n in ast.walk(node)) or "net" in ast.dump(node)


def test_what_an_outer_loop_trains_behind_an_inner_one_is_a_part_of_its_own() -> None:
    # GIVEN a loop that trains within another one, which trains something else behind it
    (outer,) = ast.parse(CRITIC).body
    assert isinstance(outer, ast.For)
    inner = outer.body[1]
    assert isinstance(inner, ast.For)
    # WHEN the inner one has its round THEN the other part begins where the device computes next
    ((block, begin),) = behind([outer, inner], inner, works)
    assert block is outer
    assert begin is outer.body[3]
    # THEN that part has nothing to do with the inner one, and a whole round of the outer one has
    assert not is_done(outer, begin, inner)
    assert is_done(outer, outer.body[0], inner)
    assert is_done(outer, None, inner)
    # AND where nothing is trained behind it there is none
    assert not behind([outer, inner], inner, lambda node: works(node) and node is inner)


def test_a_round_may_end_before_its_optimizer_steps() -> None:
    # GIVEN a loop that steps in some of its rounds
    (loop,) = ast.parse(STEPS).body
    assert isinstance(loop, ast.For)
    # WHEN its step is left to the host THEN all from there on only tells, and what is before it computes as ever
    steps = from_step(loop)
    assert steps == loop.body[2:]
    computes, tells, _ = ended((lambda node: True, lambda node: False, lambda node: False), steps)
    assert [computes(node) for node in loop.body] == [True, True, False, False]
    assert [tells(node) for node in loop.body] == [False, False, True, True]
    # AND a step that nothing was trained for before is no end
    assert not from_step(ast.For(loop.target, loop.iter, loop.body[2:], []))


def test_numbers_that_are_others_in_each_call_are_no_ones_of_a_graph() -> None:
    # GIVEN a round that is given its layer's number, and one that is given what the function counts
    layers, counted = Taken(lambda n: n), Taken(lambda n: n)
    # WHEN the function is called twice
    for call in range(2):
        for each in (layers, counted):
            each.begin()
        for n in range(3):
            layers(n)
            counted(n + 3 * call)
    # THEN each layer has a graph, and what is counted has none that is launched again
    assert not layers.moves
    assert counted.moves
