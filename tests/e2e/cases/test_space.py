"""Full stores: what is refused, what is evicted, and what space costs (cases ME)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import case_jobs
import pytest
from mooncake.store import BufferPool, MooncakeDistributedStore, ReplicateConfig
from support import LONG, MIB, ProcessView, at_most, eventually, settle, value_of

ROUTER = {
    "global_segment_size": 0,
    "local_buffer_size": MIB,
    "labels": {"storage": "false"},
    "routed_writes": True,
}


def owner_settings(name: str, size: int) -> dict[str, Any]:
    return {"stable_id": name, "global_segment_size": size, "local_buffer_size": MIB}


def used(node: Any) -> int:
    return int(node.list_segments()[0]["used_bytes"])


def in_store(store: Any, keys: list[str]) -> list[str]:
    return [key for key, found in zip(keys, store.batch_is_exist(keys)) if found == 1]


# --- Large values -------------------------------------------------------------------------------


def test_a_value_above_the_watermark_stays(redis: Any, open_store: Callable[..., Any]) -> None:
    """ME-02's kind: what was accepted is not thrown out for its size alone."""
    owner = open_store(redis.url, **owner_settings("one", 64 * MIB))
    large = value_of("large", 0, 61 * MIB)
    assert owner.put("small", b"1") == 0
    assert owner.get("small") == b"1"  # A hit protects it longer than what is fresh.
    assert owner.put("large", large) == 0
    settle(1)  # Several looks of the evictor.
    assert owner.get("large") == large


# --- Bursts -------------------------------------------------------------------------------------


def test_a_burst_above_the_capacity_is_refused_item_by_item(
    redis: Any, node: Callable[..., Any]
) -> None:
    """ME-02. Also what cannot go, as all of it is being written, makes no other failure."""
    capacity = 2 * (256 if LONG else 24) * MIB
    owners = [node(redis.url, **owner_settings(name, capacity // 2)) for name in ("a", "b")]
    writer = node(redis.url, **ROUTER)
    size = capacity * 3 // 2 // (64 * 8)
    batches = [[f"burst {thread} {item}" for item in range(8)] for thread in range(64)]
    writer.send("run", case_jobs.put_batches, batches, size)
    end = time.monotonic() + 1
    while time.monotonic() < end:
        assert sum(map(used, owners)) <= capacity
    codes = writer.receive()
    flat = [(key, code) for keys, row in zip(batches, codes) for key, code in zip(keys, row)]
    assert {code for _, code in flat} <= {0, -200}, "done, or no space: nothing else happened"
    accepted = [key for key, code in flat if code == 0]
    found = writer.read_all(accepted, 0, size)
    assert found["wrong"] == []
    assert len(found["right"]) * size > capacity // 2, "what came last is still there"
    refused = [key for key, code in flat if code != 0]
    assert set(in_store(writer, refused)) == set(), "refused is not stored"
    again = writer.run(case_jobs.put_batches, [refused], size)
    assert again == [[0] * len(refused)]


def test_small_values_without_end_cost_a_bounded_memory(
    redis: Any, node: Callable[..., Any]
) -> None:
    """ME-04. Once the storage is full, nothing grows any more, whatever is put."""
    size = (256 if LONG else 4) * MIB
    total = 10_000_000 if LONG else 240_000
    owner = node(redis.url, **owner_settings("a", size))
    writer = node(redis.url, **ROUTER)
    first = total // 2
    assert set(writer.run(case_jobs.put_distinct, "k", 0, first, 64)) == {0}

    def figures() -> tuple[int, int]:
        return owner.view.rss(), writer.view.rss()

    before, keys, memory = figures(), redis.keys(), redis_memory(redis)
    assert set(writer.run(case_jobs.put_distinct, "k", first, total - first, 64)) == {0}
    for now, then in zip(figures(), before):
        assert now < then + max(6 * MIB, then // 20), (now, then)
    assert redis.keys() == keys
    assert redis_memory(redis) < memory + MIB
    last = [f"k/{n:057d}" for n in range(total - 1000, total)]
    assert len(in_store(writer, last)) == len(last), "the newest are there"
    removed = writer.remove_all()
    assert 0 < removed < total // 2, "evicted keys are gone from the routes"
    eventually(lambda: used(owner) == 0)


def redis_memory(redis: Any) -> int:
    lines = redis.command("INFO", "memory").splitlines()
    return int(dict(line.split(":", 1) for line in lines if ":" in line)["used_memory"])


def test_a_small_pool_makes_callers_wait(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., MooncakeDistributedStore]
) -> None:
    """ME-05. 16 MiB of scratch for 32 threads with 4 MiB each, and a value above all of it."""
    node(redis.url, **owner_settings("a", 384 * MIB))
    store = open_store(redis.url, **{**ROUTER, "local_buffer_size": 16 * MIB})
    pool = BufferPool(store, max_bytes=16 * MIB)
    size = 4 * MIB

    def work(number: int) -> None:
        key = f"k{number}"
        value = value_of(key, 0, size)
        for _ in range(20 if LONG else 2):
            assert store.put(key, value) == 0
            with pool.acquire(size, timeout=60) as lease:
                assert store.get_into(key, lease.ptr, size) == size
                assert bytes(lease.buffer[:size]) == value
                assert store.put_from(key, lease.ptr, size) == 0
            assert store.get(key) == value

    case_jobs.in_threads(32, work)
    big = value_of("big", 0, 64 * MIB)
    assert store.put("big", big) == 0 and store.get("big") == big
    with at_most(5), pytest.raises(Exception, match=str(64 * MIB)) as refused:
        pool.acquire(64 * MIB, timeout=1)
    assert str(16 * MIB) in str(refused.value), "both sizes are named"
    pool.close()


# --- What eviction takes ------------------------------------------------------------------------


def test_reading_and_asking_never_stop_a_write_from_finding_room(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., MooncakeDistributedStore]
) -> None:
    """Rule: no read-side call may stop eviction from making room."""
    node(redis.url, **owner_settings("a", 32 * MIB))
    store = open_store(redis.url, **ROUTER)
    old = [f"old {n}" for n in range(96)]
    values = {key: value_of(key, 0, 256 * 1024) for key in old}
    assert store.put_batch(old, [values[key] for key in old]) == 0
    held = [store.get_buffer(key) for key in old]
    done, wrong = threading.Event(), []

    def read(call: Callable[[], Any]) -> None:
        while not done.is_set():
            answer = call()
            for key, value in zip(old, answer if isinstance(answer[0], bytes) else []):
                if value not in (b"", values[key]):
                    wrong.append(key)

    calls: list[Callable[[], Any]] = [
        lambda: store.batch_is_exist(old),
        lambda: store.batch_get(old),
        lambda: [store.get_size(key) for key in old],
        lambda: [store.is_exist(key) for key in old],
    ]
    readers = [threading.Thread(target=read, args=(call,)) for call in calls]
    for reader in readers:
        reader.start()
    try:
        for n in range(200):
            assert store.put(f"new {n}", bytes(256 * 1024)) == 0, n
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert wrong == []
    for key, view in zip(old, held):
        assert view is not None and bytes(view) == values[key], "a held view stays as it was"


def test_an_emptied_store_is_as_good_as_a_new_one(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., MooncakeDistributedStore]
) -> None:
    """Rule: space that is reported free is usable; also after much use with all sizes."""
    capacity = 32 * MIB
    owner = node(redis.url, **owner_settings("a", capacity))
    store = open_store(redis.url, **ROUTER)
    for turn in range(6 if not LONG else 200):
        sizes = [(turn * 7919 + n * 104_729) % 200_000 + 1 for n in range(100)]
        for n, size in enumerate(sizes):
            assert store.put(f"k{n}", bytes(size)) == 0
        # Every second one goes: holes everywhere.
        assert store.batch_remove([f"k{n}" for n in range(turn % 2, 100, 2)]) == [0] * 50
    free = capacity - used(owner)
    assert store.put("half of the free space", bytes(free // 2)) == 0
    store.remove_all()
    eventually(lambda: used(owner) == 0)
    largest = capacity * 85 // 100  # Below the high watermark, or it would soon go.
    assert store.put("nearly all", value_of("nearly all", 0, largest)) == 0
    assert store.get("nearly all") == value_of("nearly all", 0, largest)
    assert store.remove("nearly all") == 0
    eventually(lambda: used(owner) == 0)


def test_pins_outlive_everything_else_and_block_nothing(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., MooncakeDistributedStore]
) -> None:
    """ME-08. Soft pins go last, oldest first; reading does not prolong them."""
    node(redis.url, **owner_settings("a", 32 * MIB))
    store = open_store(redis.url, **ROUTER)
    size = 128 * 1024
    pinned = [f"pinned {n}" for n in range(50)]  # A fifth of the capacity.
    soft = ReplicateConfig(with_soft_pin=True)
    for key in pinned:
        assert store.put(key, value_of(key, 0, size), soft) == 0
    for n in range(420):  # The rest, twice over.
        assert store.put(f"plain {n}", bytes(size)) == 0
    assert store.batch_get(pinned) == [value_of(key, 0, size) for key in pinned]

    more = [f"more {n}" for n in range(600)]
    for key in more:  # Nothing unpinned is left after a while.
        assert store.put(key, bytes(size), soft) == 0, key
        store.batch_is_exist(pinned)
        assert store.get(pinned[0]) in (b"", value_of(pinned[0], 0, size))
    assert in_store(store, pinned) == [], "the oldest pins went first, though they were read"
    left = in_store(store, more)
    assert left == more[-len(left) :], "oldest first"
    assert len(left) * size > 16 * MIB
    # An overwrite without a pin ends the pin, and reading does not bring it back.
    for key in left[-10:]:
        assert store.put(key, bytes(size)) == 0
    for n in range(250):
        assert store.put(f"last {n}", bytes(size), soft if n % 2 else None) == 0
        store.batch_get(left[-10:])
    assert in_store(store, left[-10:]) == []


def test_a_newcomer_is_not_swamped(redis: Any, node: Callable[..., Any]) -> None:
    """ME-09. Three owners are 90 % full when a fourth, empty one joins."""
    size = (256 if LONG else 32) * MIB
    owners = [node(redis.url, **owner_settings(name, size)) for name in ("a", "b", "c")]
    writer = node(redis.url, **ROUTER)
    value = 64 * 1024
    filling = [f"fill {n}" for n in range(3 * size * 9 // 10 // value)]
    assert writer.put_all(filling, 0, value) == [0] * len(filling)
    before = writes_for(writer, "before", 10 if LONG else 1, value)
    owners.append(node(redis.url, **owner_settings("d", size)))
    eventually(lambda: len(writer.list_segments(all=True)) == 4)
    after = writes_for(writer, "after", 60 if LONG else 2, value)
    new = [key for key in in_store(writer, after["keys"])]
    at_newcomer = [
        key for key in new if writer.query_route(key)["replicas"][0]["owner"].startswith("d:")
    ]
    assert 0 < len(at_newcomer) < len(new) / 2
    if LONG:
        assert after["p99_s"] < 2 * before["p99_s"]


def writes_for(writer: Any, prefix: str, seconds: float, size: int) -> dict[str, Any]:
    return dict(writer.run(case_jobs.steady_writes, prefix, seconds, size))


def test_more_copies_than_owners_evict_nothing(redis: Any, node: Callable[..., Any]) -> None:
    """ME-10. As many copies as there are owners, and a metric that says so."""
    storage = [node(redis.url, **owner_settings(name, 32 * MIB)) for name in ("a", "b")]
    writer = node(redis.url, **ROUTER)
    there = [f"there {n}" for n in range(500)]
    assert writer.put_all(there) == [0] * 500
    three = ReplicateConfig(replica_num=3)
    for n in range(100):
        assert writer.put(f"k{n}", value_of(f"k{n}"), three) == 0
        owners = {row["owner"] for row in writer.query_route(f"k{n}")["replicas"]}
        assert len(owners) == 2
    assert writer.read_all(there)["right"] == there
    assert metric(writer.metrics_text(), "replica_shortfall_total") == 100
    assert [metric(one.metrics_text(), "eviction_total") for one in storage] == [0, 0]


def metric(text: str, name: str) -> float:
    rows = [line for line in text.splitlines() if line.startswith(f"mooncake_store_{name}")]
    return sum(float(row.rpartition(" ")[2]) for row in rows)


def test_the_books_of_a_process_level_off(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., MooncakeDistributedStore]
) -> None:
    """Of a client whose keys are all refused: nothing is kept for any of them."""
    node(redis.url, **owner_settings("a", 4 * MIB))
    store = open_store(redis.url, **ROUTER)
    view = ProcessView(os.getpid())
    big = bytes(5 * MIB)
    for n in range(50):
        assert store.put(f"warm {n}", big) == -1
    before = view.rss()
    for n in range(1000 if LONG else 100):
        assert store.put(f"too big {n}", big) == -1
        assert store.is_exist(f"too big {n}") is False
    assert view.rss() < before + 6 * MIB
