"""What stands in a branch that a capture did not take, and that a later step does: nothing of it was refused there."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from paramgraph_kit.doctor.explain.syntax import every, spans, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.other_ways import LED
from paramgraph_kit.doctor.observe.own_regions import Region
from paramgraph_kit.driver.files import display_name
from paramgraph_kit.trace.model import Failure


def behind_turns(failures: Iterable[Failure], region: Region) -> Callable[[Failure], bool]:
    """Whether a failure is of such a line: no call came there by itself, or its branch is told."""
    uses = region.values.uses if region.values is not None else []
    files = {region.file, region.code.co_filename, *(use.code.co_filename for use in uses)}
    names = {display_name(file): file for file in files if file}
    asked = {(f.frame.file, f.frame.line) for f in failures if f.code == "branch-frozen" and f.frame is not None}

    def is_of_turn(failure: Failure) -> bool:
        frame = failure.frame
        if frame is None or failure.code not in BY_ID or BY_ID[failure.code].silent:
            return False
        tree = tree_of(names[frame.file]) if frame.file in names else None
        tests = [n for n in every(tree) if isinstance(n, ast.If) and (frame.file, n.lineno) in asked] if tree else []
        parts = (part for n in tests for part in (*n.body, *n.orelse))
        return LED in failure.message or any(spans(part, frame.line) for part in parts)

    return is_of_turn
