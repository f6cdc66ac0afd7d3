"""The trace of a process: its spans in a file, in the log and at a collector."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mooncake.store
import pytest
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from scrape import fetch, parse, status_of, value
from support import eventually, value_of


@pytest.fixture
def server() -> Iterator[str]:
    address = mooncake.store.start_metrics_server()
    yield address
    mooncake.store.stop_metrics_server()


def test_tracing_from_the_server(
    store: MooncakeDistributedStore, server: str, tmp_path: Path
) -> None:
    path = tmp_path / "sub" / "trace.jsonl"
    status = json.loads(fetch(server, f"/tracing?enabled=on&file={path}"))
    assert status["enabled"] is True
    try:
        assert store.put("k", b"value") == 0
        assert store.get("k") == b"value"
        assert store.get("missing") == b""
    finally:
        assert json.loads(fetch(server, "/tracing/off"))["enabled"] is False
    store.get("k")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    parts = [line for line in lines if line["role"] == "stage"]
    lines = [line for line in lines if line["role"] == "root" and line["phase"] == "api"]
    assert [(line["span_name"], line["result"]) for line in lines] == [
        ("store.put", "ok"),
        ("store.get", "ok"),
        ("store.get", "miss"),
    ]
    assert lines[1]["bytes_out"] == 5
    assert len({line["request_id"] for line in lines}) == 3
    # What a call consists of shares its id.
    assert [(part["span_name"], part["request_id"]) for part in parts] == [
        ("control.placement_rank", lines[0]["request_id"]),
        ("control.allocate", lines[0]["request_id"]),
        ("data.local_write", lines[0]["request_id"]),
        ("control.route_publish", lines[0]["request_id"]),
        ("python.bridge", lines[0]["request_id"]),
        ("data.local_read", lines[1]["request_id"]),
        ("python.bridge", lines[1]["request_id"]),
        ("data.local_read", lines[2]["request_id"]),
        ("python.bridge", lines[2]["request_id"]),
    ]
    longest = {line["request_id"]: line["duration_us"] for line in lines}
    inside = [part for part in parts if part["phase"] != "python"]  # That comes after the call.
    assert all(part["duration_us"] <= longest[part["request_id"]] for part in inside)
    assert status_of(server, "/tracing?enabled=perhaps") == 400


PROGRAM = """
import sys
from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator
store = MooncakeDistributedStore()
store.setup({"local_hostname": "127.0.0.1", "metadata_url": sys.argv[1]})
buffer = MooncakeHostMemAllocator().alloc(4096)
store.register_buffer(buffer, 4096)
keys = ["model_0_1_k", "model_0_1_v"]
assert store.batch_put_from(keys, [buffer, buffer + 100], [100, 50]) == [0, 0]
assert store.batch_get_into([*keys, "gone"], [buffer] * 3, [4096] * 3) == [100, 50, -1]
store.close()
"""


@pytest.mark.parametrize("mode", ["hash", "full"])
def test_tracing_from_the_environment(mode: str, sqlite_url: str, tmp_path: Path) -> None:
    trace, log = tmp_path / "a" / "trace.jsonl", tmp_path / "b" / "client.log"
    environment = {
        **os.environ,
        "MC_STORE_RS_TRACE": "1",
        "MC_STORE_RS_TRACE_FILE": str(log),
        "MC_STORE_RS_TRACE_FILTER": "mooncake_store=info",
        "MC_STORE_RS_TRACE_JSONL_FILE": str(trace),
        "MC_STORE_RS_TRACE_ITEM_METADATA": "1",
        "MC_STORE_RS_TRACE_KEY_MODE": mode,
        "MC_STORE_RS_METRICS_ADDR": "127.0.0.1:0",
    }
    command = [sys.executable, "-c", PROGRAM, sqlite_url]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "metrics are served" in log.read_text()
    assert "metrics are served" not in done.stderr
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    spans = {line["root_operation"]: line for line in lines if line.get("role") == "root"}
    assert spans["batch_put_from"]["attributes"]["mooncake.item_count"] == 2
    assert spans["batch_get_into"]["result"] == "miss"
    puts, gets = (line for line in lines if line.get("record_type") == "store.api_items.v1")
    assert puts["operation"] == "batch_put_from"
    assert puts["batch_bytes"] == 150
    assert puts["trace_request_id"] == spans["batch_put_from"]["request_id"]
    first = puts["items"][0]
    assert (first["tp_rank"], first["kv_kind"], first["size"]) == (1, "k", 100)
    assert first["key"] == ("model_0_1_k" if mode == "full" else None)
    assert [item["read_len"] for item in gets["items"]] == [100, 50, None]
    assert [item["status"] for item in gets["items"]] == [0, 0, -1]


class Collector:
    """Takes OTLP exports; ``delay_s`` and ``status`` say how."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.resource: dict[str, Any] = {}
        self.headers: dict[str, str] = {}
        self.path = ""
        self.requests = 0
        self.status = 200
        self.delay_s = 0.0
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                collector.take(self.path, dict(self.headers), body)
                time.sleep(collector.delay_s)
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> None:
        self.path, self.headers = path, headers
        self.requests += 1
        for group in body["resourceSpans"]:
            self.resource = self.attributes(group["resource"])
            if self.status == 200:
                self.spans += [span for scope in group["scopeSpans"] for span in scope["spans"]]

    @staticmethod
    def attributes(holder: dict[str, Any]) -> dict[str, Any]:
        return {a["key"]: next(iter(a["value"].values())) for a in holder["attributes"]}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    taken = Collector()
    yield taken
    taken.close()


EXPORTS = """
import sys, time
import mooncake.store
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
store.setup({"local_hostname": "127.0.0.1", "metadata_url": sys.argv[1]})
start = time.monotonic()
for i in range(int(sys.argv[2])):
    assert store.put(f"k{i}", b"value") == 0
    assert store.get(f"k{i}") == b"value"
print("calls_s", time.monotonic() - start)
store.close()
print(mooncake.store.metrics_text())
"""


def run_exporting(url: str, calls: int, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", EXPORTS, url, str(calls)]
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_batch_that_is_split_over_threads_is_one_span_too(
    monkeypatch: pytest.MonkeyPatch, settings: Any, sqlite_url: str, tmp_path: Path, server: str
) -> None:
    monkeypatch.setenv("MC_STORE_RS_PY_BATCH_PUT_FROM_FANOUT", "3")
    store = MooncakeDistributedStore()
    assert store.setup(settings(sqlite_url)) == 0
    lease = store.local_buffer_pool_try_acquire(4096)
    assert lease is not None
    path = tmp_path / "trace.jsonl"
    fetch(server, f"/tracing?enabled=on&file={path}")
    try:
        keys = [f"k{i}" for i in range(10)]
        assert store.batch_put_from(keys, [lease.ptr] * 10, [1] * 10) == [0] * 10
    finally:
        fetch(server, "/tracing/off")
    lease.release()
    store.close()
    spans = [json.loads(line) for line in path.read_text().splitlines()]
    roots = [span for span in spans if span["role"] == "root" and span["flow"] == "put"]
    names = sorted(span["span_name"] for span in roots)
    assert names == ["python.batch_put_from_fanout"] + ["store.batch_put_from"] * 3
    whole = next(span for span in roots if span["phase"] == "python")
    assert whole["attributes"]["mooncake.item_count"] == 10 and whole["result"] == "ok"
    assert all(whole["duration_us"] >= s["duration_us"] for s in roots if s["phase"] == "api")


def test_spans_are_exported_over_otlp(collector: Collector, sqlite_url: str) -> None:
    done = run_exporting(
        sqlite_url,
        3,
        MC_STORE_RS_OTLP_ENDPOINT=f"http://{collector.address}",
        MC_STORE_RS_OTLP_SERVICE_INSTANCE_ID="engine-7",
        OTEL_SERVICE_NAME="engine",
        OTEL_RESOURCE_ATTRIBUTES="deployment=blue,zone=a%20b",
        OTEL_EXPORTER_OTLP_HEADERS="X-Token=secret%3D1",
    )
    assert done.returncode == 0, done.stderr
    assert collector.path == "/v1/traces"
    assert collector.headers["X-Token"] == "secret=1"
    assert collector.resource == {
        "service.name": "engine",
        "service.instance.id": "engine-7",
        "deployment": "blue",
        "zone": "a b",
    }
    roots = [span for span in collector.spans if span["name"].startswith("store.")]
    assert [span["name"] for span in roots] == ["store.put", "store.get"] * 3
    by_id = {span["spanId"]: span for span in collector.spans}
    assert len(by_id) == len(collector.spans)
    parts = [span for span in collector.spans if span["name"].startswith("data.local")]
    assert len(parts) == 6
    for part in parts:
        root = by_id[part["parentSpanId"]]
        assert root["traceId"] == part["traceId"]
        assert int(root["startTimeUnixNano"]) <= int(part["startTimeUnixNano"])
        assert int(part["endTimeUnixNano"]) <= int(root["endTimeUnixNano"])
    assert abs(int(roots[0]["startTimeUnixNano"]) / 1e9 - time.time()) < 60
    # The service of the metadata is asked by calls and in the background.
    assert any(span["name"].startswith("metadata.") for span in collector.spans)
    attributes = Collector.attributes(roots[1])
    assert attributes["mooncake.bytes_out"] == "5"
    assert attributes["mooncake.result"] == "ok"


@pytest.mark.parametrize("fault", ["nobody listens", "refused", "too slow"])
def test_a_bad_collector_costs_no_call(fault: str, collector: Collector, sqlite_url: str) -> None:
    calls = 10_000
    endpoint = f"http://{collector.address}"
    if fault == "nobody listens":
        collector.close()
    collector.status = 400 if fault == "refused" else 200
    collector.delay_s = 1.5 if fault == "too slow" else 0.0
    done = run_exporting(sqlite_url, calls, MC_STORE_RS_OTLP_ENDPOINT=endpoint)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[1]) < 15
    series = parse(done.stdout.partition("\n")[2].strip())
    dropped = value(series, "trace_dropped_total", reason="queue_full")
    refused = value(series, "trace_dropped_total", reason="refused")
    assert dropped + refused > 0, "what was not sent is counted"
    if fault == "refused":
        assert refused > 0
    assert "were dropped" in done.stderr or fault == "too slow"
    assert done.stderr.count("trace.otlp") < 20


def test_standard_variables_alone_start_nothing(collector: Collector, sqlite_url: str) -> None:
    base = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.address}/base/"}
    assert run_exporting(sqlite_url, 1, **base).returncode == 0
    assert collector.requests == 0
    wrong = {"OTEL_TRACES_SAMPLER_ARG": "often", "MC_STORE_RS_OTLP_TRACE": "1"}
    done = run_exporting(sqlite_url, 1, **base, **wrong)
    assert done.returncode == 0
    assert "OTEL_TRACES_SAMPLER_ARG" in done.stderr
    assert collector.path == "/base/v1/traces"


def test_a_sample_leaves_whole_calls_out(collector: Collector, sqlite_url: str) -> None:
    endpoint = {"MC_STORE_RS_OTLP_ENDPOINT": f"http://{collector.address}/v1/traces"}
    done = run_exporting(sqlite_url, 400, **endpoint, MC_STORE_RS_OTLP_SAMPLE_RATIO="0.2")
    assert done.returncode == 0, done.stderr
    roots = {s["spanId"] for s in collector.spans if s["name"].startswith("store.")}
    assert 60 < len(roots) < 280
    parts = [s for s in collector.spans if s["name"].startswith("data.local")]
    assert {s["parentSpanId"] for s in parts} == roots


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MC_STORE_RS_OTLP_ENDPOINT", "localhost:4318"),
        ("MC_STORE_RS_OTLP_SAMPLE_RATIO", "2"),
        ("MC_STORE_RS_OTLP_TIMEOUT_MS", "0"),
        ("MC_STORE_RS_TRACE_SPAN_EVENTS", "open"),
    ],
)
def test_a_wrong_setting_of_the_export_is_named(name: str, text: str, sqlite_url: str) -> None:
    done = run_exporting(sqlite_url, 1, **{name: text})
    assert done.returncode != 0
    assert name in done.stderr and text in done.stderr


def test_spans_in_the_log(sqlite_url: str) -> None:
    done = run_exporting(sqlite_url, 2, MC_STORE_RS_TRACE_SPAN_EVENTS="close")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "close store.get" in line]
    assert len(lines) == 2 and all("result=ok" in line for line in lines)


def test_an_export_that_runs_stays_as_it_is(collector: Collector, sqlite_url: str) -> None:
    """From the metrics server, in a process of its own: an export cannot be taken back."""
    program = f"""
import json, sys, urllib.error, urllib.request
import mooncake.store
from mooncake.store import MooncakeDistributedStore
address = mooncake.store.start_metrics_server()
def ask(query):
    try:
        with urllib.request.urlopen(f"http://{{address}}/tracing{{query}}", timeout=10) as reply:
            return json.loads(reply.read())
    except urllib.error.HTTPError as refused:
        return refused.code
assert ask("?endpoint=nonsense") == 400
on = ask("?enabled=on&endpoint=http://{collector.address}/v1/traces&service_name=late")
assert on["enabled"] and on["provider_ready"] and on["service_name"] == "late", on
assert ask("?endpoint=http://127.0.0.1:1/v1/traces") == 400
assert ask("?service_name=other") == 400
assert ask("?sample_ratio=0.5") == 400
store = MooncakeDistributedStore()
store.setup({{"local_hostname": "127.0.0.1", "metadata_url": sys.argv[1]}})
store.put("k", b"v")
assert ask("/flush")["spans_exported"] > 0
assert ask("/off")["enabled"] is False
"""
    command = [sys.executable, "-c", program, sqlite_url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert collector.resource["service.name"] == "late"
    assert "store.put" in {span["name"] for span in collector.spans}


def test_copies_and_reads_of_copies_are_parts_of_calls(
    redis: Any,
    node: Callable[..., Any],
    open_store: Callable[..., Any],
    server: str,
    tmp_path: Path,
) -> None:
    path = tmp_path / "trace.jsonl"
    other = node(redis.url, stable_id="b")
    store = open_store(redis.url, stable_id="a", routed_writes=True)
    eventually(lambda: len(store.list_segments(all=True)) == 2)
    keys = [f"k{i}" for i in range(20)]
    assert other.put_all(keys) == [0] * 20
    config = ReplicateConfig(replica_num=2)

    def spans() -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text().splitlines()]

    def in_background() -> set[str]:
        return {span["span_name"] for span in spans() if span["flow"] == "background"}

    fetch(server, f"/tracing?enabled=on&file={path}")
    try:
        assert [store.put(f"c{i}", b"value", config) for i in range(4)] == [0] * 4
        assert [store.get(key) for key in keys] == [value_of(key) for key in keys]
        eventually(
            lambda: in_background() >= {"control.membership_refresh", "control.replica_track"}
        )
    finally:
        fetch(server, "/tracing/off")
    names = {
        *("control.placement_rank", "control.allocate", "control.route_publish"),
        *("data.local_write", "data.transfer_write", "data.transfer_read", "python.bridge"),
        # Keys that this node answers for, whose bytes the other one has.
        "control.readable_replica_select",
    }
    roots = {span["request_id"]: span["span_name"] for span in spans() if span["role"] == "root"}
    parts = [span for span in spans() if span["span_name"] in names]
    assert {span["span_name"] for span in parts} == names
    assert {roots[span["request_id"]] for span in parts} == {"store.put", "store.get"}
