"""Metrics: a real exporter is scraped while a model serves requests, and what it says is what was done."""

from __future__ import annotations

import dataclasses
import gc
import json
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import torch
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.parser import text_string_to_metric_families
from torch import Tensor, nn

import paramgraph_kit as pgk
from paramgraph_kit import metrics
from paramgraph_kit.__main__ import main
from paramgraph_kit.backend import registry as graphs
from paramgraph_kit.backend.registry import compiled_graphs
from paramgraph_kit.driver.select import driver
from paramgraph_kit.launch import launcher as launching
from paramgraph_kit.launch.code import PartitionCode
from paramgraph_kit.launch.launcher import Launcher
from paramgraph_kit.metrics import cost as costs
from paramgraph_kit.metrics.table import METRICS

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")
COUNTERS = {metric.prometheus for metric in METRICS if metric.counter}
LABELS = {metric.prometheus: metric.labels for metric in METRICS}
Samples = dict[tuple[str, tuple[str, ...]], float]  # by name and by the values of the labels


@pytest.fixture(autouse=True)
def _nothing_compiled_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    gc.collect()
    monkeypatch.setattr(graphs, "_graphs", weakref.WeakValueDictionary())  # other tests' may still be alive
    yield
    torch._dynamo.reset()


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    """A registry that has our collector."""
    registry = CollectorRegistry()
    collector = metrics.prometheus(registry)
    yield registry
    collector.close()


@pytest.fixture
def wants_alignment() -> Iterator[None]:
    """Every partition's kernels want their inputs aligned, as Inductor's do."""

    def say(launcher: Any, variant: Any) -> None:
        positions = variant.captured.input_positions
        launcher.code = dataclasses.replace(launcher.code, aligned=lambda: positions)

    launching.observers.insert(0, say)
    yield
    launching.observers.remove(say)


def samples(text: str) -> Samples:
    families = text_string_to_metric_families(text)
    found = (sample for family in families for sample in family.samples if sample.name in LABELS)
    return {(each.name, tuple(each.labels[label] for label in LABELS[each.name])): each.value for each in found}


def now(registry: CollectorRegistry) -> Samples:
    return samples(generate_latest(registry).decode())


def total(found: Samples, name: str) -> float:
    return sum(value for (each, _), value in found.items() if each == name)


class Model(nn.Module):
    """With a detour over the host, which no graph may take."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.up(x))
        return self.down(h.cpu().to(x.device))  # type: ignore[no-any-return]


@contextmanager
def service(answer: Callable[[], float]) -> Iterator[str]:
    """The address of a service that answers each request with what ``answer`` returns."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answer()).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def get(url: str) -> str:
    with urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


@pytest.mark.usefixtures("wants_alignment")
def test_a_scraped_service_shows_every_counter_moving(registry: CollectorRegistry) -> None:
    # GIVEN a model that serves requests, and an exporter, both on loopback
    device = pgk.device()
    model = Model().to(device)
    compiled: Any = pgk.compile(model)
    unaligned = torch.ones(9, device=device)[1:].view(1, 8)  # as a slice of somebody's buffer may be

    def answer() -> float:
        with torch.no_grad():
            return float(compiled(unaligned).sum())

    with torch.no_grad():
        expected = pytest.approx(float(model(unaligned).sum()), rel=1e-5)
    exporter, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    page = f"http://127.0.0.1:{exporter.server_port}/metrics"
    with service(answer) as url:
        # WHEN scraped before and while requests come
        seen = [samples(get(page))]
        for _ in range(3):
            assert json.loads(get(url)) == expected
            seen.append(samples(get(page)))
        compiled = pgk.compile(model, select="never")  # and after somebody has switched graphs off
        assert json.loads(get(url)) == expected
        seen.append(samples(get(page)))
    exporter.shutdown()
    thread.join()
    exporter.server_close()
    # THEN every counter has moved, none has gone down, and the reasons are there
    first, last = seen[0], seen[-1]
    assert {name for name in COUNTERS if total(first, name) < total(last, name)} == COUNTERS
    for before, after in pairwise(seen):
        assert all(after.get(key, 0) >= value for key, value in before.items() if key[0] in COUNTERS)
    assert last["paramgraph_launches_total", ("inference", "simulated")] == 4
    assert last["paramgraph_ungraphed_calls_total", ("inference", "first-call")] == 2
    assert last["paramgraph_ungraphed_calls_total", ("inference", "not-selected")] == 2
    assert last["paramgraph_refusals_total", ("inference", "device-copy")] == 4
    assert last["paramgraph_partitions", ("graphed",)] == last["paramgraph_executables", ("inference",)] == 2
    assert last["paramgraph_executable_bytes", ("inference",)] > 0
    assert last["paramgraph_copied_bytes_total", ("inference",)] == 2 * unaligned.nbytes  # of two launches


def test_words_are_counted_where_addresses_moved(registry: CollectorRegistry) -> None:
    # GIVEN a function of two words WHEN launched at the same and at other addresses
    double: Any = pgk.compile(lambda x: x * 2)
    kept = [double(torch.ones(4, device=pgk.device())) for _ in range(3)]
    found = now(registry)
    # THEN launches, those that patched, and their words are told apart
    (row,) = pgk.report(double).rows
    assert found["paramgraph_launches_total", ("inference", "simulated")] == row.launches == 2
    assert found["paramgraph_patched_launches_total", ("inference", "simulated")] == row.patched
    assert found["paramgraph_words_patched_total", ("inference",)] == row.patched * row.words
    assert len(kept) == 3


def test_what_a_dropped_model_has_done_stays_counted(registry: CollectorRegistry) -> None:
    # GIVEN a compiled function that was called, and nobody has scraped since
    graph = graphs.CompiledGraph("inference 0")
    code = PartitionCode("inference 0 partition 0", lambda inputs: (inputs.pop() * 2,))
    graph.launchers.append(Launcher(driver(), code))
    now(registry)
    for _ in range(5):
        graph.launchers[0]([torch.ones(4, device=pgk.device())])
    # WHEN it is gone
    del graph
    gc.collect()
    assert not compiled_graphs()
    found = now(registry)
    # THEN its launches and calls are there, and what it held is not
    assert found["paramgraph_launches_total", ("inference", "simulated")] == 4
    assert found["paramgraph_ungraphed_calls_total", ("inference", "first-call")] == 1
    assert not [key for key in found if key[0] in ("paramgraph_executables", "paramgraph_executable_bytes")]
    assert now(registry) == found


def test_nothing_is_done_at_a_launch() -> None:
    # GIVEN a graphed function
    double: Any = pgk.compile(lambda x: x * 2)
    for _ in range(2):
        double(torch.ones(4, device=pgk.device()))
    (launcher,) = compiled_graphs()[-1].launchers
    (variant,) = launcher.variants.values()
    assert variant is not None
    before = (launcher.current, variant.launch, variant.state.watch)
    # WHEN an exporter is there and scraped
    registry = CollectorRegistry()
    collector = metrics.prometheus(registry)
    now(registry)
    # THEN calls take the very same path, and what was launched before is counted
    assert (launcher.current, variant.launch, variant.state.watch) == before == (variant.launch, variant.launch, None)
    assert now(registry)["paramgraph_launches_total", ("inference", "simulated")] == 1
    # AND when it is closed nothing of it is left
    observers = len(launching.observers)
    collector.close()
    assert len(launching.observers) == observers - 1
    assert generate_latest(registry) == b""


def test_opentelemetry_says_the_same(registry: CollectorRegistry) -> None:
    # GIVEN instruments of a provider, and a model that has been called
    reader = InMemoryMetricReader()
    instruments = metrics.opentelemetry(MeterProvider([reader]))
    model: Any = pgk.compile(Model().to(pgk.device()))
    for _ in range(3):
        model(torch.ones(1, 8, device=pgk.device())).sum().backward()

    def collected() -> dict[str, Any]:
        data = reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    # WHEN collected THEN each value is that of the other exporter, in its own terms
    found, expected = collected(), now(registry)
    assert {phase for name, (phase, *_) in expected if name == "paramgraph_launches_total"} == {"forward", "backward"}
    for metric in METRICS:
        points = found[metric.instrument].data.data_points if metric.instrument in found else ()
        values = {tuple(p.attributes[f"paramgraph.{label}"] for label in metric.labels): p.value for p in points}
        assert values == {labels: v for (name, labels), v in expected.items() if name == metric.prometheus}
        if points:
            assert found[metric.instrument].unit == metric.unit
            assert getattr(found[metric.instrument].data, "is_monotonic", False) == metric.counter
    (memory, *_) = found["paramgraph.executable.memory"].data.data_points
    assert (memory.attributes["hw.type"], memory.attributes["hw.id"]) == ("gpu", str(pgk.device()))
    # AND after close nothing is said
    instruments.close()
    assert not collected()


def test_scraping_while_others_compile_is_safe(registry: CollectorRegistry) -> None:
    # GIVEN a thread that scrapes all the time
    failed: list[BaseException] = []
    done = threading.Event()

    def scrape() -> None:
        while not done.is_set():
            try:
                now(registry)
            except BaseException as error:
                failed.append(error)
                return

    thread = threading.Thread(target=scrape)
    thread.start()
    # WHEN functions are compiled, called and dropped
    for n in range(6):
        function: Any = pgk.compile(lambda x, n=n: x * n + n)
        for _ in range(3):
            function(torch.ones(4, device=pgk.device()))
        torch._dynamo.reset()
    done.set()
    thread.join()
    # THEN no scrape has failed, and nothing is missing
    assert failed == []
    assert total(now(registry), "paramgraph_launches_total") == 12


@pytest.mark.parametrize(
    ("module", "make", "name"),
    [
        ("prometheus_client", metrics.prometheus, "prometheus_client"),
        ("opentelemetry", metrics.opentelemetry, "opentelemetry-api"),
    ],
)
def test_a_missing_library_is_one_line(
    module: str, make: Callable[[], Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN an installation without the library
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"paramgraph_kit.metrics.for_{module.removesuffix('_client')}", raising=False)
    # WHEN asked for its metrics THEN the error says what to install
    with pytest.raises(
        pgk.UnsupportedError, match=rf"^{name} is not installed: pip install 'paramgraph_kit\[metrics\]'$"
    ):
        make()


def test_the_dashboard_shows_every_metric_that_there_is_and_no_other() -> None:
    # GIVEN the dashboard WHEN its queries are read
    board = json.loads(metrics.dashboard())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    shown = {name for query in queries for name in re.findall(r"paramgraph_\w+", query)}
    # THEN each names metrics that exist, and all are there; counters are rates, but those whose series begin with all
    # that they will ever count, which Prometheus takes for no increase
    assert shown == {metric.prometheus for metric in METRICS}
    begun = {f"paramgraph_{name}_total" for name in ("refusals", "captures", "capture_seconds")}
    for query in queries:
        for name in re.findall(r"paramgraph_\w+", query):
            assert (name in COUNTERS - begun) == bool(re.search(rf"(rate|increase)\({name}", query))
        # AND a share or a zero is there although nothing has been launched, refused or copied yet
        assert " / (" not in query or query.count("or vector(0)") == query.count("rate(")
        assert query.count("(") == query.count(")")
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


def test_a_query_of_the_dashboard_asks_for_labels_that_its_metric_has(registry: CollectorRegistry) -> None:
    # GIVEN the dashboard, and what a scrape of its metrics comes with: their labels, and the scraper's own
    board = json.loads(metrics.dashboard())
    scraped = {"job", "instance"}
    variables = {each["name"] for each in board["templating"]["list"]}
    for panel in board["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            # WHEN each selection, with what is asked of it and by what it is summed, is taken apart
            grouped = re.findall(r"(?:by \(([^)]*)\) )?\(?(?:rate\()?(paramgraph_\w+)\{([^}]*)\}", query)
            assert len(grouped) == query.count("paramgraph_")
            for by, name, matchers in grouped:
                wanted = set(filter(None, by.split(", ")))
                # THEN the metric has these labels, the legend names no others, and variables are the dashboard's
                assert wanted <= set(LABELS[name]), query
                assert set(re.findall(r"(\w+)=~?", matchers)) <= set(LABELS[name]) | scraped, query
                assert set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", ""))) <= wanted
            assert set(re.findall(r"\$(\w+)", query)) <= variables | {"__rate_interval"}
    # AND what variables are read from is there in a scrape, from the beginning on
    page = generate_latest(registry).decode()
    (*asked,) = re.findall(r"label_values\((\w+), (\w+)\)", json.dumps(board["templating"]))
    assert asked
    for name, label in asked:
        assert re.search(rf"^{name}\b", page, re.MULTILINE)
        assert label in scraped


def test_the_command_lists_them_and_writes_the_dashboard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN the command WHEN asked THEN one line for each metric
    assert main(["metrics"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [m.prometheus for m in METRICS]
    # AND the file is the dashboard
    assert main(["metrics", "--dashboard", str(tmp_path / "board.json")]) == 0
    assert (tmp_path / "board.json").read_text() == metrics.dashboard()
    # AND a folder that is not there is said in one line
    assert main(["metrics", "--dashboard", str(tmp_path / "no" / "board.json")]) == 1
    assert "cannot be written (No such file or directory); choose a folder that exists" in capsys.readouterr().err


def test_what_metrics_cost_is_measured_with_a_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a measurement that is short
    monkeypatch.setattr(costs, "TURNS", 5)
    monkeypatch.setattr(costs, "CALLS", 20)
    observers = list(launching.observers)
    # WHEN asked for THEN it says where, and what a call takes both ways
    assert main(["metrics", "--cost"]) == 0
    where, call, functions, scrape = capsys.readouterr().out.splitlines()
    assert where.startswith("simulated device, driver -, torch ")
    (without, exported) = (float(found) for found in re.findall(r"([\d.]+) us with", call))
    assert 0 < without < 3 * exported < 9 * without
    assert float(re.findall(r"(\d+) us", scrape)[0]) > 0
    # AND a launch calls the same functions with and without, which no load of the machine changes
    (off, on) = map(int, re.findall(r"(\d+) with", functions.replace("without metrics", "with")))
    assert off == on > 0
    # AND no exporter is left
    assert launching.observers == observers


def test_a_whole_step_is_one_phase_whatever_its_function_is_called(registry: CollectorRegistry) -> None:
    # GIVEN two steps whose functions have names of their own, of which one asks for a value
    device = pgk.device()
    model = nn.Linear(4, 4).to(device)

    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            return model(x) * 2  # type: ignore[no-any-return]

    def my_step(x: Tensor) -> float:
        return float(forward(x).sum())

    steps = [pgk.parameterize(each, state=model) for each in (forward, my_step)]
    # WHEN called THEN what they count is labelled as steps
    for _ in range(5):
        for step in steps:
            step(torch.ones(2, 4, device=device))
    found = now(registry)
    assert {labels[0] for (name, labels) in found if name in COUNTERS} == {"step"}
    assert found["paramgraph_launches_total", ("step", "simulated")] == 3
    assert found["paramgraph_ungraphed_calls_total", ("step", "first-call")] == 2
    assert found["paramgraph_ungraphed_calls_total", ("step", "sync-item")] == 5
