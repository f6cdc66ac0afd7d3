"""What a process says about itself, over HTTP and in the trace, against what really happened."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import mooncake.store
import pytest
from mooncake.store import MooncakeDistributedStore
from scrape import Series, fetch, parse, status_of, value
from services import free_port
from support import MIB, eventually

ALIGNMENT = 64


@pytest.fixture
def server() -> Iterator[str]:
    address = mooncake.store.start_metrics_server()
    yield address
    mooncake.store.stop_metrics_server()


class Model:
    """A store in memory that counts as ours should."""

    def __init__(self, store: MooncakeDistributedStore, address: int) -> None:
        self.store = store
        self.address = address
        self.values: dict[str, int] = {}
        self.calls: Counter[tuple[str, str]] = Counter()
        self.items: Counter[tuple[str, str]] = Counter()
        self.bytes_in: Counter[str] = Counter()
        self.bytes_out: Counter[str] = Counter()

    def note(self, operation: str, outcomes: list[str]) -> None:
        worst = max(outcomes, key=["ok", "miss", "conflict", "error"].index, default="ok")
        self.calls[operation, worst] += 1
        self.items.update((operation, outcome) for outcome in outcomes)

    def put(self, key: str, size: int) -> None:
        assert self.store.put(key, b"x" * size) == 0
        self.values[key] = size
        self.bytes_in["put"] += size
        self.note("put", ["ok"])

    def batch_put(self, keys: list[str], size: int) -> None:
        assert self.store.put_batch(keys, [b"x" * size] * len(keys)) == 0
        self.values.update(dict.fromkeys(keys, size))
        self.bytes_in["put_batch"] += size * len(keys)
        self.note("put_batch", ["ok"] * len(keys))

    def put_from(self, key: str, size: int, registered: bool) -> None:
        address = self.address if registered else self.address + MIB
        assert self.store.put_from(key, address, size) == (0 if registered else -1)
        if registered:
            self.values[key] = size
            self.bytes_in["put_from"] += size
        self.note("put_from", ["ok" if registered else "error"])

    def batch_put_from(self, keys: list[str], size: int, last_registered: bool) -> None:
        ptrs = [self.address] * len(keys)
        good = len(keys) if last_registered else len(keys) - 1
        ptrs[good:] = [self.address + MIB] * (len(keys) - good)
        codes = self.store.batch_put_from(keys, ptrs, [size] * len(keys))
        assert [code == 0 for code in codes] == [i < good for i in range(len(keys))]
        for key in keys[:good]:
            self.values.setdefault(key, size)
        self.bytes_in["batch_put_from"] += size * good
        self.note("batch_put_from", ["ok"] * good + ["error"] * (len(keys) - good))

    def reads(self, operation: str, keys: list[str]) -> None:
        if operation == "get":
            got = [self.store.get(keys[0])]
        elif operation == "batch_get":
            got = self.store.batch_get(keys)
        else:
            self.reads_into(keys)
            return
        keys = keys[: len(got)]
        assert [len(v) for v in got] == [self.values.get(key, 0) for key in keys]
        self.bytes_out[operation] += sum(map(len, got))
        self.note(operation, [self.found(key) for key in keys])

    def reads_into(self, keys: list[str]) -> None:
        got = self.store.batch_get_into(keys, [self.address] * len(keys), [MIB] * len(keys))
        assert got == [self.values.get(key, -1) for key in keys]
        self.bytes_out["batch_get_into"] += sum(n for n in got if n > 0)
        self.note("batch_get_into", [self.found(key) for key in keys])

    def looks(self, keys: list[str]) -> None:
        assert self.store.is_exist(keys[0]) == (keys[0] in self.values)
        self.note("is_exist", [self.found(keys[0])])
        assert self.store.batch_is_exist(keys) == [int(key in self.values) for key in keys]
        self.note("batch_is_exist", [self.found(key) for key in keys])
        assert self.store.get_size(keys[0]) == self.values.get(keys[0], -1)
        self.note("get_size", [self.found(keys[0])])

    def removes(self, keys: list[str]) -> None:
        self.note("remove", [self.found(keys[0])])
        assert self.store.remove(keys[0]) == (0 if self.values.pop(keys[0], None) else -1)
        self.note("batch_remove", [self.found(key) for key in keys])
        self.store.batch_remove(keys)
        for key in keys:
            self.values.pop(key, None)

    def found(self, key: str) -> str:
        return "ok" if key in self.values else "miss"


def run_workload(model: Model, steps: int) -> None:
    chance = random.Random(7)
    keys = [f"key-{i}" for i in range(40)]
    for _ in range(steps):
        size = chance.randint(1, 20_000)
        some = chance.sample(keys, chance.randint(1, 6))
        step = chance.randrange(9)
        if step == 0:
            model.put(some[0], size)
        elif step == 1:
            model.batch_put(some, size)
        elif step == 2:
            model.put_from(some[0], size, chance.random() < 0.7)
        elif step == 3:
            model.batch_put_from(some, size, chance.random() < 0.7)
        elif step == 4:
            model.looks(some)
        elif step == 5:
            model.removes(some)
        else:
            model.reads(("get", "batch_get", "batch_get_into")[step - 6], some)


def check_against(model: Model, before: Series, after: Series) -> None:
    def grown(name: str, **labels: str) -> int:
        return round(value(after, name, **labels) - value(before, name, **labels))

    operations = {operation for operation, _ in model.calls}
    for operation in operations:
        for result in ("ok", "miss", "conflict", "error"):
            labels = {"operation": operation, "result": result}
            calls = model.calls[operation, result]
            assert grown("operation_total", **labels) == calls, labels
            assert grown("request_total", **labels) == calls, labels
            assert grown("request_duration_seconds_count", **labels) == calls, labels
            items = model.items[operation, result]
            assert grown("operation_items_total", **labels) == items, labels
        assert grown("operation_bytes_in_total", operation=operation) == model.bytes_in[operation]
        assert grown("operation_bytes_out_total", operation=operation) == model.bytes_out[operation]
        absent = grown("soft_failure_total", operation=operation, reason="absent")
        assert absent == model.items[operation, "miss"], operation
        refused = grown("soft_failure_total", operation=operation, reason="invalid_argument")
        assert refused == model.items[operation, "error"], operation
        assert value(after, "request_inflight", operation=operation) == 0
    assert grown("operation_total") == sum(model.calls.values())
    used = sum(-(-size // ALIGNMENT) * ALIGNMENT for size in model.values.values())
    assert value(after, "object_routes") == len(model.values)
    assert value(after, "segment_used_bytes") == used
    assert value(after, "segment_capacity_bytes") == 64 * MIB


def test_counters_and_gauges_equal_a_model(store: MooncakeDistributedStore, buffer: int) -> None:
    before = parse(store.metrics_text())
    model = Model(store, buffer)
    run_workload(model, 600)
    check_against(model, before, parse(store.metrics_text()))


def test_the_server_shows_what_the_store_says(store: MooncakeDistributedStore, server: str) -> None:
    assert store.put("k", b"v" * 100) == 0
    assert store.get("missing") == b""
    over_http = parse(fetch(server, "/metrics"))
    labels = {"operation": "get", "result": "miss"}
    own = value(parse(store.metrics_text()), "operation_total", **labels)
    assert own == 1
    assert value(over_http, "operation_total", **labels) >= own  # Other stores' are in the sum.
    assert fetch(server, "/healthz") == "ok\n"
    stats = json.loads(fetch(server, "/stats"))
    assert stats["schema_version"] == 1
    rows = {(row["operation"], row["result"]): row for row in stats["operations"]}
    assert rows["put", "ok"]["bytes_in_total"] >= 100
    assert rows["get", "miss"]["calls_total"] >= 1
    assert [row["state"] for row in stats["runtimes"]] == ["active"]
    # From the beginning: joining is the first heartbeat.
    assert value(parse(store.metrics_text()), "heartbeat_last_success_ms") > 1.6e12
    breakdown = json.loads(fetch(server, "/breakdown"))
    reasons = {(row["operation"], row["reason"]) for row in breakdown["soft_failures"]}
    assert ("get", "absent") in reasons
    assert breakdown["segments"]["used_bytes"] >= 100
    assert status_of(server, "/nothing") == 404


def test_functions_and_methods_share_one_server() -> None:
    store = MooncakeDistributedStore()
    assert store.metrics_server_address() is None
    address = store.start_metrics_server("127.0.0.1:0")
    try:
        assert mooncake.store.metrics_server_address() == address
        assert mooncake.store.start_metrics_server() == address
        with pytest.raises(RuntimeError, match="already"):
            mooncake.store.start_metrics_server("127.0.0.1:1")
        assert fetch(address, "/livez") == "ok\n"
        assert "process_open_fds" in mooncake.store.metrics_text()
    finally:
        mooncake.store.stop_metrics_server()
    store.stop_metrics_server()
    assert store.metrics_server_address() is None
    with pytest.raises(ValueError, match="nonsense"):
        mooncake.store.start_metrics_server("nonsense")


def test_counts_of_closed_stores_stay(open_store: Callable[..., Any], sqlite_url: str) -> None:
    labels = {"operation": "put", "result": "ok"}
    before = value(parse(mooncake.store.metrics_text()), "operation_total", **labels)
    for tenant in ("zebra", "default"):
        store = open_store(sqlite_url, tenant=tenant)
        assert store.put("k", b"v") == 0
        store.close()
    after = parse(mooncake.store.metrics_text())
    assert value(after, "operation_total", **labels) == before + 2
    assert value(after, "segment_used_bytes") == 0


@pytest.mark.parametrize(
    ("setting", "variables"),
    [
        ({"enable_client_http_server": True, "client_http_port": 0}, {}),
        ({"client_http_port": free_port()}, {}),
        ({}, {"MC_STORE_RS_METRICS_ADDR": "127.0.0.1:0"}),
    ],
)
def test_setup_starts_the_server(
    setting: dict[str, Any],
    variables: dict[str, str],
    open_store: Callable[..., Any],
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    store = open_store(sqlite_url, **setting)
    try:
        address = store.metrics_server_address()
        assert address.startswith("127.0.0.1:")
        assert fetch(address, "/healthz") == "ok\n"
    finally:
        store.stop_metrics_server()


def test_a_lost_metadata_service_shows(redis: Any, open_store: Callable[..., Any]) -> None:
    store = open_store(redis.url, lease_ttl_ms=1_000)
    fresh = parse(store.metrics_text())
    assert value(fresh, "runtime_status", state="active") == 1
    assert value(fresh, "runtime_status", state="draining") == 0
    assert value(fresh, "reachable_peers") == 0
    assert value(fresh, "membership_nodes") == 1
    redis.stop()

    def shows() -> bool:
        now = parse(store.metrics_text())
        return value(now, "runtime_lease_age_ms") > 2_000 and (
            value(now, "heartbeat_consecutive_failures") > 0
        )

    eventually(shows)


def test_the_server_stays_out_of_a_child(store: MooncakeDistributedStore, server: str) -> None:
    assert store.put("k", b"v") == 0
    code = os.fork()
    if code == 0:
        # The child has no server; it may start its own.
        good = mooncake.store.metrics_server_address() is None
        good = good and fetch(mooncake.store.start_metrics_server(), "/healthz") == "ok\n"
        mooncake.store.stop_metrics_server()
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(code, 0)[1]) == 0
    assert fetch(server, "/healthz") == "ok\n"
