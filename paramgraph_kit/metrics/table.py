"""Every metric: its names, its unit, its labels, and what it says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, as Prometheus and as OpenTelemetry want it named."""

    name: str  # in Prometheus "paramgraph_" before it, and "_total" after it for a counter
    instrument: str  # in OpenTelemetry, where a name has no unit
    unit: str  # of UCUM, as OpenTelemetry writes it
    text: str
    labels: tuple[str, ...] = ()
    counter: bool = True  # otherwise a gauge: what is so now

    @property
    def prometheus(self) -> str:
        """The name that Prometheus sees."""
        return f"paramgraph_{self.name}{'_total' if self.counter else ''}"


METRICS = (
    Metric(
        "launches",
        "paramgraph.launches",
        "{launch}",
        "Graphs launched, one for each stage of a partition, by who rewrites its addresses.",
        ("phase", "patching"),
    ),
    Metric(
        "patched_launches",
        "paramgraph.patched_launches",
        "{launch}",
        "Launches at other addresses than the last.",
        ("phase", "patching"),
    ),
    Metric("words_patched", "paramgraph.words_patched", "{word}", "Words of parameters rewritten.", ("phase",)),
    Metric("copied_bytes", "paramgraph.copied", "By", "Inputs copied because of their alignment.", ("phase",)),
    Metric(
        "ungraphed_calls",
        "paramgraph.ungraphed_calls",
        "{call}",
        "Calls of partitions that ran without a graph; reason first-call: the one that captures.",
        ("phase", "reason"),
    ),
    Metric(
        "refusals",
        "paramgraph.refusals",
        "{reason}",
        "Reasons found against putting something into a graph; docs/launcher.md explains each.",
        ("phase", "reason"),
    ),
    Metric("captures", "paramgraph.captures", "{capture}", "Executables made.", ("phase",)),
    Metric(
        "capture_seconds",
        "paramgraph.capture.duration",
        "s",
        "Seconds to capture, analyse, plan and instantiate them.",
        ("phase",),
    ),
    Metric(
        "partitions",
        "paramgraph.partitions",
        "{partition}",
        "Partitions that are alive: graphed, refused, or waiting for their first call.",
        ("state",),
        counter=False,
    ),
    Metric(
        "executables",
        "paramgraph.executables",
        "{executable}",
        "Executables alive.",
        ("phase",),
        counter=False,
    ),
    Metric(
        "executable_bytes",
        "paramgraph.executable.memory",
        "By",
        "Device memory that executables hold between launches.",
        ("phase",),
        counter=False,
    ),
    Metric(
        "workspace_bytes",
        "paramgraph.workspace.memory",
        "By",
        "The largest workspace: borrowed from the caching allocator for one launch, and given back.",
        ("phase",),
        counter=False,
    ),
)
FIRST_CALL = "first-call"  # the reason of an ungraphed call of a partition with nothing against it
