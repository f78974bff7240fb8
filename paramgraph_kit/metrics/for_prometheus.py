"""The account as a collector of ``prometheus_client``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

from paramgraph_kit._version import __version__
from paramgraph_kit.driver.select import driver
from paramgraph_kit.metrics.account import Account, Values
from paramgraph_kit.metrics.table import METRICS


class Collector:
    """Gives the totals to a registry whenever it is scraped."""

    def __init__(self, registry: Any = None) -> None:
        self._registry = REGISTRY if registry is None else registry
        source = driver().source()
        self._source = {
            "version": __version__,
            "device": source.device,
            "driver": source.driver,
            "torch": source.torch,
            "origin": source.origin.value,
        }
        self._account = Account()
        self._registry.register(self)

    def describe(self) -> Iterator[Any]:
        """The families without values: registering need not read anything."""
        yield from self._families({})

    def collect(self) -> Iterator[Any]:
        """The families with today's values."""
        info = InfoMetricFamily("paramgraph", "What launches, and on what.")
        info.add_metric((), self._source)
        yield info
        yield from self._families(self._account.read())

    def close(self) -> None:
        """Take the metrics back from the registry."""
        self._registry.unregister(self)
        self._account.close()

    def _families(self, values: Values) -> Iterator[Any]:
        for metric in METRICS:
            kind = CounterMetricFamily if metric.counter else GaugeMetricFamily
            family = kind(metric.prometheus, metric.text, labels=metric.labels)
            for labels, value in sorted(values.get(metric.name, {}).items()):
                family.add_metric(labels, value)
            yield family
