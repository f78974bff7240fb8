"""What runs between partitions stands between them: in the trace, in the text, and with its own reason."""

from __future__ import annotations

import torch
from torch import nn

import paramgraph_kit as pgk
from paramgraph_kit.explore import text


class Between(nn.Module):
    """Two copies to the host and back, between three partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        scale = h.sum().cpu().to(x.device)
        h = self.second(h) * scale
        shift = h.mean().cpu().to(x.device)
        out: torch.Tensor = self.third(h) + shift
        return out


def test_eager_work_stands_where_it_runs() -> None:
    # GIVEN a compiled model with work on the host in two places
    model = torch.compile(Between().to(pgk.device()), backend="paramgraph")
    x = torch.randn(4, 8).to(pgk.device())
    # WHEN its calls are watched
    with pgk.watch() as trace, torch.no_grad():
        for _ in range(3):
            model(x)
    # THEN graphed and ungraphed take turns, each ungraphed piece with the reason of its own line
    ordered = sorted(trace.partitions, key=lambda part: part.position)
    assert [part.graphed for part in ordered] == [True, False, True, False, True]
    pieces = [part for part in ordered if not part.graphed]
    lines = [{reason.frame.text for reason in part.reasons if reason.frame} for part in pieces]
    assert lines == [{"scale = h.sum().cpu().to(x.device)"}, {"shift = h.mean().cpu().to(x.device)"}]
    # AND the text has them in that order, the report one row for both, with all their kernels
    states = [line.split()[0] for line in text.partitions(trace.partitions).splitlines() if line.startswith("  [")]
    assert states == ["[graphed]", "[ungraphed]", "[graphed]", "[ungraphed]", "[graphed]"]
    (row,) = [row for row in pgk.report(model).rows if row.partition == "outside"]
    assert row.kernels == sum(part.kernels for part in pieces)
