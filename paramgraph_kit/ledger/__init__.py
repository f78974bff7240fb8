"""Readings of device memory over time."""

from __future__ import annotations

from paramgraph_kit.ledger.ledger import HasMemory as HasMemory
from paramgraph_kit.ledger.ledger import Ledger as Ledger
from paramgraph_kit.ledger.ledger import Reading as Reading
from paramgraph_kit.ledger.pickled import is_pickled as is_pickled
from paramgraph_kit.ledger.pickled import read_snapshot as read_snapshot
from paramgraph_kit.ledger.snapshots import Snapshots as Snapshots
