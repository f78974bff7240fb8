"""The simulator against cards in programs of many steps: what each raised or gave, also behind an error."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.integration.sequences import NOT_COMPARED
from tests.integration.single_operations import (
    BLIND,
    OBSERVED,
    SEQUENCES,
    USERS,
    have_fresh_processes,
    seen_and_recorded,
)

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")
have_fresh_processes()


@pytest.mark.parametrize("name", sorted({*SEQUENCES, *USERS, *OBSERVED, *BLIND} - {*NOT_COMPARED}))
def test_the_simulator_does_step_by_step_what_a_card_did(name: str, cuda: Any) -> None:
    # GIVEN a program whose steps a card has taken WHEN it runs on the simulator
    seen, recorded = seen_and_recorded(name, cuda)
    # THEN chain of errors, outcome and output are the same
    assert seen == recorded
