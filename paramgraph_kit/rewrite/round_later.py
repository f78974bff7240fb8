"""What is around a launched part, or round, as a count of the host's comes to a number that no trial has come to.

``if step % 100 == 0: p.data = ema`` beside a part that a graph holds: the graph reads what the parameter was before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from paramgraph_kit.rewrite.proving.launches import Launches
from paramgraph_kit.rewrite.proving.proof import NOTHING, Around, Truth
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.rewrite.round_run import Run
from paramgraph_kit.rewrite.round_shown import with_its_lines
from paramgraph_kit.rewrite.starts import wrong_later
from paramgraph_kit.rewrite.ways import Ways


@dataclass(slots=True)
class _Launched:
    """The function with the part launched, which captures anew."""

    whole: Ways
    run: Run
    fix: Rewriting
    anew: Sequence[str]
    around: Around = NOTHING

    def applied(self) -> AbstractContextManager[None]:
        """While this lasts the function launches it."""
        return self._applied()

    @contextmanager
    def _applied(self) -> Iterator[None]:
        with self.run.applied() as call, self.run.as_it_was(self.anew), with_its_lines(self.whole, self.fix):
            call(Launches(self.run.made, self.fix.around, len(self.run.bound), self.anew))
            yield


def later(whole: Ways, truth: Truth, run: Run, fix: Rewriting, anew: Sequence[str]) -> list[str]:
    """What the function with a whole part from graphs does otherwise as its counts come to what it asks about."""
    if not fix.complete:
        return []
    lines = _Launched(whole, run, fix, anew)
    why, _ = wrong_later(whole, truth, lines, lambda: whole.prover.from_now().launched(whole.function))
    return [why] if why else []
