"""What one call has shown: each problem once, at its line, with the words of its class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.known.match import recognise
from paramgraph_kit.doctor.observe.constant_tables import Made, made_of
from paramgraph_kit.doctor.observe.places import Place, Places
from paramgraph_kit.doctor.observe.refusals import NUMBER
from paramgraph_kit.driver.files import is_library
from paramgraph_kit.trace.model import Failure, Frame

SCALAR = "a CPU tensor of value "  # in a message
MOST_SCALARS = 4


class Findings:
    """The problems of one call, in the order in which they were seen."""

    def __init__(self, places: Places, device: str) -> None:
        self.places = places
        self.failures: dict[tuple[Any, ...], Failure] = {}
        self.device = device
        self.makers: dict[tuple[Any, ...], Made | None] = {}  # of lines with numbers of the CPU's
        self.read_by_entry: set[Frame | None] = set()  # where a constructor does, and copies what it has made behind

    def add(self, failure: Failure) -> None:
        """Keep a problem, unless that line has it already."""
        frame = failure.frame
        self.failures.setdefault((failure.code, frame and (frame.file, frame.line)), failure)

    def refused(
        self,
        message: str,
        code: int | None,
        operation: str,
        place: Place | None = None,
        what: str = "",
        file: str = "",
        sure: bool = False,
    ) -> None:
        """A capture would raise ``message`` here; ``sure``: because of ``operation``, whatever the line looks like."""
        place = place or self.places.here()
        kind = "AcceleratorError" if code is not None else "RuntimeError"
        evidence = place.evidence(kind, message, code, operation, self.places.names(place), file)
        if sure:
            evidence = replace(evidence, operations=(operation,), exact=True)
        elif operation == NUMBER and self.device != "cuda" and evidence.operations[0] != NUMBER:
            return
        each = recognise(evidence) or recognise(evidence, vague=True)
        if each is None or (each.id == "tensor-literal" and evidence.frame in self.read_by_entry):
            return
        said = f'{what or operation + "()"}: in a capture "{message.split(". ")[0].removeprefix("CUDA error: ")}"'
        self.add(each.failure(said + _inside(place), evidence.frame, (*evidence.operations, operation)))

    def stale(self, what: str) -> None:
        """A backward pass runs something on the default stream, because it was made there."""
        self.refused(
            "stale reference to the default stream", None, "backward", self.places.here(), f"{what} was made there"
        )

    def silent(self, code: str, said: str, place: Place) -> None:
        """A replay would go wrong here and nobody would tell."""
        self.add(BY_ID[code].failure(said + _inside(place), place.frame()))

    def scalar(self, value: Any, operation: str, place: Place) -> None:
        """A number in a tensor of the CPU's, of which a line may have several."""
        self.silent("cpu-scalar-frozen", f"{SCALAR}{value} in {operation}", place)
        frame = place.frame()
        key = "cpu-scalar-frozen", frame and (frame.file, frame.line)
        self._note_makers(key, place)
        told = self.failures[key]
        if f"{SCALAR}{value} in " not in told.message and told.message.count(SCALAR) < MOST_SCALARS:
            self.failures[key] = replace(told, message=f"{told.message}, {SCALAR}{value} in {operation}")

    def _note_makers(self, key: tuple[Any, ...], place: Place) -> None:
        """What a line's numbers are made of, where it is a line of the user's that runs now."""
        if self.makers.get(key, frozenset()) is not None:
            own = bool(place.stack) and place.stack[-1] == place.user
            made = made_of(place.stack, self.places.names_in) if own else None
            self.makers[key] = made if made is None else made | (self.makers.get(key) or frozenset())

    def silent_if_own(self, code: str, said: str) -> None:
        """The same, unless a library does it."""
        place = self.places.here()
        if place.stack and not is_library(place.stack[-1][0].co_filename) and not through_torch(place):
            self.silent(code, said, place)


def through_torch(place: Place) -> bool:
    """Whether something of torch's stands between the user's line and what runs."""
    return any("/torch/" in file for file in place.files)


def _inside(place: Place) -> str:
    library = place.library()
    return f", inside {library}" if library else ""
