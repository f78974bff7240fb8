"""What is said of numbers of the host's that several results of one call give names and attributes."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any

import pytest

from paramgraph_kit.rewrite.advised.host.from_host import _returned_by


@pytest.mark.parametrize("target", ["y, self.h", "y, *self.rest", "y, self.rows[0]"])
def test_a_name_that_is_only_read_among_several_targets_is_no_result(target: str) -> None:
    # GIVEN an assignment of a call's results to an attribute among others, which reads the object's name for that
    made: Any = ast.parse(f"{target} = net(x)").body[0]
    place: Any = SimpleNamespace(source=SimpleNamespace(tree=ast.parse("def net(x):\n    return x, draw()")))
    # WHEN it is asked where that name comes from THEN no result is that, and nothing is raised
    assert _returned_by(place, "self", made) is None
