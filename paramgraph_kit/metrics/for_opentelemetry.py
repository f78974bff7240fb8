"""The account as observable instruments of OpenTelemetry.

Names, units and instrument kinds follow its semantic conventions; memory names its GPU by the attributes of ``hw.*``.
None of the ``hw.gpu.*`` metrics fits: they speak of a whole device, these of what graphs hold on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from paramgraph_kit._version import __version__
from paramgraph_kit.driver.select import driver
from paramgraph_kit.metrics.account import Account
from paramgraph_kit.metrics.table import METRICS, Metric


class Instruments:
    """One observable instrument for each metric, read whenever a reader collects."""

    def __init__(self, provider: Any = None) -> None:
        target = driver()
        name = target.source().device
        self._hardware = {"hw.id": str(target.device), "hw.name": name, "hw.type": "gpu"}
        if name.startswith("NVIDIA"):
            self._hardware["hw.vendor"] = "NVIDIA"
        self._account: Account | None = Account()
        meter = metrics.get_meter("paramgraph_kit", __version__, meter_provider=provider)
        for metric in METRICS:
            make: Callable[..., Any] = (
                meter.create_observable_counter if metric.counter else meter.create_observable_up_down_counter
            )
            if metric.name == "workspace_bytes":  # a largest value: sums over processes would mean nothing
                make = meter.create_observable_gauge
            callbacks = [partial(self._observe, metric)]
            make(metric.instrument, callbacks=callbacks, unit=metric.unit, description=metric.text)

    def _observe(self, metric: Metric, _: CallbackOptions) -> Iterable[Observation]:
        account = self._account
        if account is None:
            return []
        more = self._hardware if metric.instrument.endswith(".memory") else {}
        names = [f"paramgraph.{label}" for label in metric.labels]
        values = account.read()[metric.name]
        return [Observation(v, dict(zip(names, labels, strict=True)) | more) for labels, v in sorted(values.items())]

    def close(self) -> None:
        """Report nothing from now on: OpenTelemetry cannot take an instrument back."""
        if self._account is not None:
            self._account.close()
        self._account = None
