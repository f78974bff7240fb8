"""A state that is written in place now, and of which another name has the memory, is told with what to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from paramgraph_kit.doctor.restore.holder import Holder
from paramgraph_kit.rewrite.shared_states import told_shared


def told(written: str, space: dict[str, Any], *held: Any) -> list[str]:
    """What is told of a path where the function moves what ``held`` has."""
    return told_shared({written}, [Holder("container", "state", each) for each in held], space)


def test_a_state_that_began_as_a_name_of_the_users_is_told() -> None:
    # GIVEN a filter that was given its first state, which its steps write in place now
    x0 = torch.zeros(3)
    f = SimpleNamespace(x=x0)
    # WHEN names are looked through THEN the state is to get memory of its own, by its name where the program has it
    (text,) = told("self.x", {"x0": x0, "f": f}, vars(f))
    assert text.startswith("`f.x` is written in place now, and `x0` has its memory, too: ")
    assert text.endswith("before the first call, `f.x = f.x.clone()`")


def test_an_entry_of_a_dictionary_is_told_also_where_the_name_has_a_view() -> None:
    # GIVEN a dictionary with a view of what a list of the user's has WHEN looked through THEN it is told
    first = torch.zeros(2, 3)
    state = {"v": first[0]}
    (text,) = told('state["v"]', {"kept": [first], "state": state}, state)
    assert "`state['v']` is written" in text
    assert "`kept[0]` has" in text


def test_a_state_of_its_own_and_one_that_is_not_written_are_not_told() -> None:
    # GIVEN a state with memory of its own, beside one that is shared and that no new line writes
    x0 = torch.zeros(3)
    f = SimpleNamespace(x=torch.zeros(3), y=x0)
    # WHEN looked through THEN nothing is told
    assert told("self.x", {"x0": x0, "f": f}, vars(f)) == []


def test_another_name_of_the_same_object_is_no_other_memory() -> None:
    # GIVEN two names of one object, of which both have its state WHEN looked through THEN nothing is told
    f = SimpleNamespace(x=torch.zeros(3))
    assert told("self.x", {"f": f, "g": f}, vars(f)) == []
