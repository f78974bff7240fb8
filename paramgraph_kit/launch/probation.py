"""What a new graph has to show before its calls go straight to it: right results (``verify``), less time (``measure``).

Both run the ungraphed code beside the graph for some calls, so each of these calls has a right result either way. That
a graph may cost more than it saves is PyGraph's finding: 29 of 116 were slower than no graph (arXiv:2503.19779).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paramgraph_kit.capture.pair import Captured, Kind, is_seed_on_host
from paramgraph_kit.driver.api import Driver
from paramgraph_kit.driver.spread import BEYOND_NUMBERS, Apart, beyond, distance
from paramgraph_kit.driver.tensors import bits_of, extent, lazily, same_bits, same_layout
from paramgraph_kit.trace.model import Reason

SAMPLES, MOST = 4, 12  # timed calls of each way, the first of which is dropped; more where it is not clear
CLEAR = 1.25  # times between which it is not
EVEN = 1.03  # a graph that takes up to so much longer stays: by this much calls differ from one another
Call = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """Microseconds of one call, the device's work included: medians of ``samples`` calls each way, in turns."""

    graph_us: float
    ungraphed_us: float
    samples: int

    @property
    def label(self) -> str:
        """In words."""
        return f"{self.graph_us:,.0f} us from a graph, {self.ungraphed_us:,.0f} us without (medians of {self.samples})"


class Probation:
    """Calls of one variant until it has shown what was asked for; ``over`` says that it has."""

    def __init__(
        self,
        driver: Driver,
        captured: Captured,
        launch: Call,
        ungraphed: Call,
        run: Call,  # the same, but no call of the user's that is counted
        *,
        verify: str,
        measure: bool,
    ) -> None:
        self._driver, self._captured = driver, captured
        self._launch, self._ungraphed, self._run = launch, ungraphed, run
        self._first, self._always = verify != "off", verify == "always"
        self._times: dict[bool, list[float]] | None = {True: [], False: []} if measure else None
        self.measured: Measured | None = None
        self.verified = 0  # launches that were compared with the ungraphed code and were equal
        self.unordered = 0  # launches that differed only where the ungraphed code differs from itself
        self.failed: Reason | None = None  # why there must be no further launch

    @property
    def over(self) -> bool:
        """Whether calls may go straight to the graph, or to the ungraphed code if ``failed``."""
        return self.failed is not None or not (self._first or self._always or self._times)

    def __call__(self, inputs: list[Any]) -> Any:
        """One call, with a right result in any case."""
        if self._first or (self._always and not self._times):
            self._first = False
            return self._verified(inputs)
        return self._timed(inputs, self._times) if self._times else self._launch(inputs)

    def _timed(self, inputs: list[Any], times: dict[bool, list[float]]) -> Any:
        graphed = len(times[True]) <= len(times[False])
        self._driver.wait()
        start = time.perf_counter()
        outputs = (self._launch if graphed else self._ungraphed)(inputs)
        self._driver.wait()
        times[graphed].append((time.perf_counter() - start) * 1e6)
        if (count := len(times[False])) == len(times[True]) >= SAMPLES:
            graph, plain = (statistics.median(times[way][1:]) for way in (True, False))
            if count == MOST or not plain < graph * CLEAR < plain * CLEAR**2:
                self.measured = found = Measured(graph, plain, count - 1)
                self._times = None
                if plain * EVEN < graph:
                    self.failed = Reason("slower-as-graph", f"one call took {found.label}")
        return outputs

    @torch.no_grad()
    def _verified(self, inputs: list[Any]) -> Any:
        """Launch, and compare results and written inputs with those of the ungraphed code, bit for bit."""
        given, before = list(inputs), self._copies(inputs)
        if before is None:
            return self._launch(inputs)
        state = self._driver.random_state()
        plain, expected = self._plainly(before, state)
        self._driver.set_random_state(state)
        found = self._launch(inputs)
        if not (differing := _differing(found, given, expected, plain)):
            self.verified += 1
            return found
        after = self._driver.random_state()

        def again() -> dict[str, Apart]:
            given_again, expected_again = self._plainly(before, state)
            return _differing(expected_again, given_again, expected, plain)

        sure = beyond(differing, again)
        self._driver.set_random_state(after)
        if not sure:  # no farther from the ungraphed code than that is from itself: sums in no fixed order
            self.unordered += 1
            return found
        text = f"{', '.join(sorted(sure))} differed from the ungraphed code's, which this call returned"
        self.failed = Reason("wrong-result", text)
        for mine, right in zip(given, plain, strict=True):
            if isinstance(mine, torch.Tensor) and not same_bits(mine, right):
                mine.copy_(right)
        kept = (Kind.INPUT, Kind.ARGUMENT)  # of the caller's own memory, which holds what is right now
        results = [
            a if output.kind in kept else b
            for output, a, b in zip(self._captured.outputs, found, expected, strict=True)
        ]
        return tuple(results) if self._captured.returns_tuple else results

    def _plainly(self, before: Sequence[Any], state: Any) -> tuple[list[Any], Any]:
        """Copies of what was given after the ungraphed code has run on them, and what it returned."""
        self._driver.set_random_state(state)
        given = self._copies(before) or []
        return given, self._run(list(given))

    def _copies(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Copies with the same strides and alignments; tensors that have memory in common have it in their copies.

        None where that memory belongs to several storages, of which no copy can be made.
        """
        copies = list(inputs)
        spans = []
        for k, x in enumerate(inputs):
            if isinstance(x, torch.Tensor) and x.numel():
                at = self._driver.address_of(x)
                spans.append((at, at + extent(x.shape, x.stride()) * x.element_size(), k))
        spans.sort()
        while spans:
            start, end, _ = spans[0]
            together = []
            while spans and spans[0][0] < end:
                end = max(end, spans[0][1])
                together.append(spans.pop(0))
            storage = inputs[together[0][2]].untyped_storage()
            offset = start - storage.data_ptr()
            if offset < 0 or offset + end - start > storage.nbytes():
                return None
            memory = torch.empty(start % 512 + end - start, dtype=torch.uint8, device=self._driver.device)[
                start % 512 :
            ]
            memory.copy_(
                torch.tensor([], dtype=torch.uint8, device=memory.device).set_(storage, offset, (end - start,), (1,))
            )
            for at, until, k in together:
                x = inputs[k]
                flat = memory[at - start : until - start].view(x.dtype)
                copies[k] = lazily(flat.as_strided(x.shape, x.stride(), flat.storage_offset()), bits_of(x))
        return copies


def _differing(
    found: Sequence[Any], given: Sequence[Any], expected: Sequence[Any], plain: Sequence[Any]
) -> dict[str, Apart]:
    """What differs in any bit, and how far it is off."""
    pairs = {f"output {k}": pair for k, pair in enumerate(zip(found, expected, strict=True))}
    pairs |= {f"input {k}": pair for k, pair in enumerate(zip(given, plain, strict=True))}
    return {
        name: distance(a, b) if same_layout(a, b) else BEYOND_NUMBERS
        for name, (a, b) in pairs.items()
        if not same_bits(a, b, layout=True) and not is_seed_on_host(b)
    }
