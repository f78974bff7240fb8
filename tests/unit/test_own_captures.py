"""What becomes of a program's own capture where its lines are launched in pieces."""

from __future__ import annotations

import ast
from types import SimpleNamespace

import pytest

from paramgraph_kit.doctor.diagnosis import Diagnosis
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.trace.model import Frame
from paramgraph_kit.verbs._own_captures import of_captures

TAKEN_OUT = "; in place of the capture of line 7: take that out, and its replays"
BODIES = {
    "y = net(x)": "; `captured` is the body of that `with`, as `def captured():`, which returns y, and "
    "`y = captured()` stands where the replay stood",
    "self.y = self.net(x)": "; `captured` is the body of that `with`, as `def captured(self):`, which the class has "
    "then: it is compiled as `self.captured`, and `self.captured()` stands where the replay stood",
}


def captured() -> None:
    """Stands for the lines of a capture."""


def score() -> None:
    """A function of the program's that is captured as it is."""


@pytest.mark.parametrize("body", [*BODIES, ""])
def test_pieces_of_what_a_failing_capture_holds_take_its_place(body: str) -> None:
    # GIVEN a capture of some lines, or of one function, whose part has pieces as a fix
    failure = BY_ID["sync-item"].failure("it waits", Frame("program.py", 8, "f", "y = x.item()"))
    part = Diagnosis([failure], "captured: 1 problem (there)", [])
    part.fix = SimpleNamespace(pieces="some", usage="", verified=[], diff="", complete=False, instead=[])
    settings = ("cpu", False, None, False, True, False)
    region = Region(score.__code__, 7, {}, None, settings, body=ast.parse(body).body, inline=bool(body))
    region.function = captured if body else score
    # WHEN the whole is told
    found = of_captures(lambda *given: part, Diagnosis([], "f: no problems (there)", []), [region], 1.0, True)
    # THEN the capture goes, and its lines have a name that the program can have
    assert found.fix is not None
    assert found.fix.pieces == "some" + TAKEN_OUT + BODIES.get(body, "")
