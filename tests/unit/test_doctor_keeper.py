"""What the doctor writes over is as before afterwards: values, and whether a graph of gradients hangs on them."""

from __future__ import annotations

import torch

from paramgraph_kit.doctor.restore.keeper import Keeper


def test_memory_that_was_written_with_gradients_lets_go_of_their_graph() -> None:
    # GIVEN a buffer, and a weight
    buffer, weight = torch.zeros(3), torch.ones(3, requires_grad=True)
    keeper = Keeper()
    # WHEN a trial writes to the buffer what has gradients, and a part of another one, and all is put back
    keeper.before_write(buffer)
    buffer.add_(weight * 2)
    other = torch.zeros(4)
    keeper.before_write(other[:2])
    other[:2].mul_(weight[:2])
    assert buffer.requires_grad
    assert other.requires_grad
    keeper.put_back()
    # THEN it holds what it held, and its graph keeps nothing alive
    assert torch.equal(buffer, torch.zeros(3))
    assert (buffer.requires_grad, buffer.grad_fn) == (False, None)
    assert (other.requires_grad, other.grad_fn) == (False, None)
    # AND what needed gradients before still does
    keeper.before_write(weight)
    with torch.no_grad():
        weight.mul_(2)
    keeper.put_back()
    assert weight.requires_grad
