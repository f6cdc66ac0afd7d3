"""Why a value was missed: one count under each reason (``soft_failure_total``, ``/breakdown``)."""

from __future__ import annotations

import ctypes
import json
import os
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mooncake.store import MooncakeDistributedStore
from scrape import parse, value
from support import MIB, eventually, value_of


def reasons(store: Any, operation: str) -> dict[str, int]:
    """What the store has counted for this operation, by reason."""
    return {
        dict(labels)["reason"]: round(count)
        for (name, labels), count in parse(store.metrics_text()).items()
        if name == "soft_failure_total" and ("operation", operation) in labels and count > 0
    }


def test_absent_evicted_and_too_small(
    open_store: Callable[..., Any], sqlite_url: str, tmp_path: Path
) -> None:
    store = open_store(sqlite_url, global_segment_size=4 * MIB)
    for i in range(32):
        assert store.put(f"k{i}", value_of(f"k{i}", size=MIB // 4)) == 0
    assert store.get("never") == b""
    gone = [i for i in range(32) if store.batch_is_exist([f"k{i}"]) == [0]]
    assert gone
    for i in gone:
        assert store.get(f"k{i}") == b""
    assert reasons(store, "get") == {"absent": 1, "evicted": len(gone)}
    assert reasons(store, "batch_is_exist") == {"evicted": len(gone)}
    assert store.get_size(f"k{gone[0]}") == -1
    assert reasons(store, "get_size") == {"evicted": 1}
    # Put again and removed, it is absent like any other key.
    assert store.put(f"k{gone[0]}", b"again") == 0
    assert store.remove(f"k{gone[0]}") == 0
    assert store.get(f"k{gone[0]}") == b""
    assert reasons(store, "get") == {"absent": 2, "evicted": len(gone)}
    pool = store.local_buffer_pool_try_acquire(4096)
    assert store.put("large", b"x" * 5000) == 0
    assert store.get_into("large", pool.ptr, 4096) == -11
    assert reasons(store, "get_into") == {"too_small": 1}
    assert store.put("huge", b"x" * (5 * MIB)) == -1
    assert reasons(store, "put") == {"too_large": 1}


def test_a_dead_owner(open_store: Callable[..., Any], node: Callable[..., Any], redis: Any) -> None:
    lease = {"lease_ttl_ms": 2_000, "transfer_stall_timeout_ms": 700}
    left, right = node(redis.url, **lease), node(redis.url, **lease)
    reader = open_store(
        redis.url, global_segment_size=0, routed_writes=True, request_timeout_ms=5_000, **lease
    )
    eventually(lambda: len(reader.list_segments(all=True)) == 2)
    keys = [f"k{i}" for i in range(20)]
    for key in keys:
        assert reader.put(key, value_of(key)) == 0
    there = {key: reader.query_route(key)["replicas"][0]["segment_name"] for key in keys}
    names = {n: n.list_segments()[0]["segment_name"] for n in (left, right)}
    lost = [key for key in keys if there[key] == names[left]]
    assert lost and len(lost) < len(keys)
    # The next node in rank hears of what this one answers for.
    eventually(lambda: value(parse(right.metrics_text()), "object_routes") == len(keys))
    left.kill()
    for key in lost:
        assert reader.get(key) == b""
    counted = reasons(reader, "get")
    assert counted == {"owner_dead": len(lost)}
    # Long after, the node that took over still knows.
    eventually(lambda: len(reader.list_segments(all=True)) == 1)
    before = counted["owner_dead"]
    assert reader.get(lost[-1]) == b""
    assert reasons(reader, "get")["owner_dead"] == before + 1


def test_a_silent_owner(
    open_store: Callable[..., Any], node: Callable[..., Any], redis: Any
) -> None:
    owner = node(redis.url)
    reader = open_store(
        redis.url,
        global_segment_size=0,
        routed_writes=True,
        transfer_stall_timeout_ms=700,
        request_timeout_ms=2_000,
    )
    assert reader.put("k", b"value") == 0
    owner.stop()
    try:
        assert reader.get("k") == b""
        assert reasons(reader, "get") == {"timeout": 1}
    finally:
        owner.cont()


def test_another_scope(
    open_store: Callable[..., Any], node: Callable[..., Any], redis: Any
) -> None:
    node(redis.url)
    stores = [
        open_store(redis.url, global_segment_size=0, routed_writes=True, object_set=name)
        for name in ("new", "old")
    ]
    assert stores[0].put("k", b"value") == 0
    assert stores[1].get("k") == b""
    assert stores[1].batch_is_exist(["k", "other"]) == [0, 0]
    assert reasons(stores[1], "get") == {"other_scope": 1}
    assert reasons(stores[1], "batch_is_exist") == {"other_scope": 1, "absent": 1}
    assert stores[0].get("k", tenant="somebody else") == b""
    assert reasons(stores[0], "get") == {"other_scope": 1}
    assert stores[0].remove("k") == 0
    assert stores[1].get("k") == b""
    assert reasons(stores[1], "get") == {"other_scope": 1, "absent": 1}


def spoil(pattern: bytes, but_not_at: int) -> int:
    """Flips a byte wherever this process has ``pattern``, but for one place."""
    found = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        match = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
        if not match or "[v" in line or "[stack]" in line:
            continue
        begin, end = int(match[1], 16), int(match[2], 16)
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            memory.seek(begin)
            content = memory.read(end - begin)
        at = content.find(pattern)
        del content
        if at >= 0 and begin + at != but_not_at:
            ctypes.memset(begin + at + 1000, pattern[1000] ^ 1, 1)
            found += 1
    return found


def test_spoiled_bytes_are_a_checksum_failure(store: MooncakeDistributedStore) -> None:
    secret = os.urandom(8192)
    held = ctypes.create_string_buffer(secret, len(secret))
    assert store.put("k", held) == 0
    pattern = bytes(bytearray(secret))
    address = ctypes.addressof(held)
    ctypes.memset(address, 0, len(secret))
    del secret
    head = pattern[:4096]
    assert spoil(head, but_not_at=id(head) + bytes.__basicsize__ - 1) >= 1
    assert store.get("k") == b""
    assert reasons(store, "get") == {"checksum": 1}
    series = parse(store.metrics_text())
    # Once for each try to find a good replica.
    assert value(series, "checksum_validation_total", result="mismatch") >= 1


def test_the_breakdown_has_the_reasons(open_store: Callable[..., Any], sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    store.get("absent")
    address = store.start_metrics_server()
    try:
        with urllib.request.urlopen(f"http://{address}/breakdown", timeout=5) as reply:
            rows = json.loads(reply.read())["soft_failures"]
    finally:
        store.stop_metrics_server()
    assert {("get", "absent")} <= {(row["operation"], row["reason"]) for row in rows}


@pytest.mark.parametrize("name", ["get", "put"])
def test_a_node_without_a_cluster_says_so(
    name: str, open_store: Callable[..., Any], sqlite_url: str
) -> None:
    store = open_store(
        sqlite_url, global_segment_size=0, routed_writes=True, request_timeout_ms=1_500
    )
    assert (store.get("k") == b"") if name == "get" else (store.put("k", b"v") == -1)
    assert set(reasons(store, name)) <= {"owner_dead", "timeout", "no_space"}
