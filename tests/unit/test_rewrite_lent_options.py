"""Living optimizers are lent the options of a capture for a while, and have their own back."""

from __future__ import annotations

import torch

from paramgraph_kit.rewrite.counting.optimizers import prepared


def test_an_optimizer_that_was_put_back_meanwhile_has_its_own_options_in_the_end() -> None:
    # GIVEN an optimizer, and what its attributes are
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    attributes = vars(optimizer)
    before = dict(attributes)

    # WHEN a trial puts them back while it is lent fused kernels
    with prepared([attributes], torch.device("cpu"), rate=True):
        assert optimizer.param_groups[0]["fused"]
        attributes.clear()
        attributes.update(before)

    # THEN it ends as it began
    assert not optimizer.param_groups[0]["fused"]
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert "_step_supports_amp_scaling" not in attributes
