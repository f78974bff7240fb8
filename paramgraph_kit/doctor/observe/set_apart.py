"""Words, tensors and None that lines set between calls of a step: no call can be tried with another one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.exchanged import exchanged_in
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.set_between import Setting
from paramgraph_kit.doctor.observe.source_lines import frame_at
from paramgraph_kit.trace.model import Failure

if TYPE_CHECKING:
    from paramgraph_kit.doctor.observe.examination import Examination

SET = (
    "{text} {what} at {at}, and {by} sets it, `{line}`: where that runs between launches, capture again behind it{or_}"
)


def told_apart(each: Setting, found: Examination) -> Iterator[Failure]:
    """A word, a tensor or None that another one takes the place of: no call with others can be tried."""
    use, name, by = each.use, each.use.text, f"{each.at.file}:{each.at.line}"
    at = frame_at(use.code, use.node.lineno)
    is_read = is_a(use.value(), torch.Tensor)
    if each.is_called:
        failure = BY_ID["stale-input" if is_read else "branch-frozen"].failure(each.said, at)
        written = f"{each.target}.copy_(...)" if is_read else ""
        words = f"there `{written}` in place of another tensor" if is_read else f"capture again where {by} has run"
        if is_read and (whole := exchanged_in(each.at.text)):
            words = f"there `{whole}` in place of `{each.at.text}`"
        yield replace(failure, fix=f"before  {at.text if at else name}\nafter   {words}")
    elif at is not None:
        what = "is read where it lies" if is_read else "decides a branch"
        written = exchanged_in(each.at.text) or f"{each.target}.copy_(...)"
        or_ = f", or let it write `{written}`" if is_read else ""
        found.notes.append(SET.format(text=name, what=what, at=at.label(), by=by, line=each.at.text, or_=or_))
