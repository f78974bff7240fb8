"""What launchers count, for the monitoring of a service: Prometheus metrics, OpenTelemetry instruments, a dashboard.

Everything is read when it is asked for, from what launchers count anyway: a launch costs the same with and without.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from paramgraph_kit.trace.errors import UnsupportedError

if TYPE_CHECKING:
    from paramgraph_kit.metrics.for_opentelemetry import Instruments
    from paramgraph_kit.metrics.for_prometheus import Collector


def prometheus(registry: Any = None) -> Collector:
    """Offer the metrics to whoever scrapes this process; ``close()`` of what is returned takes them back.

    Args:
        registry: a ``prometheus_client.CollectorRegistry``; the default one, which ``start_http_server`` serves, if
            None. Several processes on one machine each serve their own port: its multiprocess mode knows no collectors.

    Raises:
        UnsupportedError: prometheus_client is not installed.

    Examples:
        >>> from prometheus_client import CollectorRegistry, generate_latest
        >>> registry = CollectorRegistry()
        >>> collector = prometheus(registry)
        >>> b"# TYPE paramgraph_launches_total counter" in generate_latest(registry)
        True
        >>> collector.close()
    """
    try:
        from paramgraph_kit.metrics.for_prometheus import Collector
    except ImportError as error:
        raise _missing("prometheus_client") from error
    return Collector(registry)


def opentelemetry(provider: Any = None) -> Instruments:
    """Observable instruments for the metric readers of OpenTelemetry; ``close()`` of what is returned silences them.

    Args:
        provider: a ``MeterProvider``; the global one if None.

    Raises:
        UnsupportedError: opentelemetry-api is not installed.

    Examples:
        >>> from opentelemetry.sdk.metrics import MeterProvider
        >>> from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        >>> import torch
        >>> import paramgraph_kit as pgk
        >>> reader = InMemoryMetricReader()
        >>> instruments = opentelemetry(MeterProvider([reader]))
        >>> double = pgk.compile(lambda x: x * 2)
        >>> y = double(torch.ones(2, device=pgk.device()))
        >>> reader.get_metrics_data().resource_metrics[0].scope_metrics[0].scope.name
        'paramgraph_kit'
        >>> instruments.close()
    """
    try:
        from paramgraph_kit.metrics.for_opentelemetry import Instruments
    except ImportError as error:
        raise _missing("opentelemetry-api") from error
    return Instruments(provider)


def dashboard() -> str:
    """A Grafana dashboard of the Prometheus metrics, as the JSON that Grafana imports.

    Examples:
        >>> import json
        >>> json.loads(dashboard())["title"]
        'paramgraph_kit'
    """
    return (files(__name__) / "grafana.json").read_text(encoding="utf-8")


def _missing(distribution: str) -> UnsupportedError:
    return UnsupportedError(f"{distribution} is not installed: pip install 'paramgraph_kit[metrics]'")
