"""What every kind of call leaves behind: nothing."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from mooncake.store import (
    BufferPool,
    MooncakeDistributedStore,
    MooncakeHostMemAllocator,
    ReplicateConfig,
)
from support import LONG, MIB, ProcessView, eventually, value_of

ROUNDS = 2000 if LONG else 60
SMALL = {"global_segment_size": 32 * MIB, "local_buffer_size": 4 * MIB}
# A heap that was used by many threads keeps this much for later.
RSS_SLACK = 8 * MIB


class Footprint:
    """Of this process and of another, taken once all that is loaded on first use is there."""

    def __init__(self, other: Any) -> None:
        gc.collect()
        self._views = [ProcessView(os.getpid()), other.view]
        self._other = other
        self._before = self._take()
        self._rss = [view.rss() for view in self._views]

    def _take(self) -> list[tuple[int, int]]:
        return [(view.descriptors(), view.threads()) for view in self._views]

    def check(self, lanes: int = 0) -> None:
        """No more than before, but for ``lanes`` connections that calls at once may need."""
        gc.collect()

        def no_more() -> bool:
            return all(
                now[0] <= then[0] + lanes and now[1] <= then[1]
                for now, then in zip(self._take(), self._before)
            )

        eventually(no_more, what=lambda: f"{self._before} became {self._take()}")
        for view, before in zip(self._views, self._rss):
            assert view.rss() - before < RSS_SLACK, (view.rss(), before)


@pytest.fixture
def pair(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., MooncakeDistributedStore]
) -> tuple[MooncakeDistributedStore, Any]:
    return open_store(redis.url, **SMALL), node(redis.url, **SMALL)


def used_bytes(store: Any) -> int:
    return sum(row["used_bytes"] for row in store.list_segments())


def mixed_calls(store: MooncakeDistributedStore, other: Any, name: str, rounds: int) -> None:
    """Every method, with hits, misses and failures."""
    lease = store.local_buffer_pool_try_acquire(256 * 1024)
    assert lease is not None
    allocator = MooncakeHostMemAllocator()
    config = ReplicateConfig(replica_num=2)
    for turn in range(rounds):
        key, absent = f"{name} {turn % 10}", f"{name} absent"
        value = value_of(key, turn, 100 + turn * 997 % 60_000)
        size = len(value)
        assert store.put(key, value) == 0
        assert store.put_parts(f"{key} parts", value, b"tail") == 0
        assert store.batch_put([(f"{key} a", value), (f"{key} b", b"")]) == 0
        assert store.put(f"{key} twice", value, config) == 0
        assert store.put_from(f"{key} from", lease.ptr, size) == 0
        rows = [[lease.ptr, lease.ptr + 64]]
        store.batch_put_from([f"{key} c", f"{key} d"], [lease.ptr, 1], [size, 8])
        store.batch_put_from_multi_buffers([f"{key} e"], rows, [[64, size]])
        assert store.get(key) == value
        buffer = store.get_buffer(key)
        assert buffer is not None and bytes(buffer) == value
        store.batch_get([key, absent])
        store.batch_get_buffer([key, absent])
        assert store.get_into(key, lease.ptr, 100_000) == size
        assert store.get_into(key, lease.ptr, 10) < 0
        store.batch_get_into([key, absent], [lease.ptr] * 2, [100_000] * 2)
        store.batch_get_into_multi_buffers([key, absent], rows * 2, [[64, 100_000]] * 2)
        store.get_into_ranges([lease.ptr], [[key]], [[[0]]], [[[1]]], [[[9]]])
        store.is_exist(absent)
        store.batch_is_exist([key, absent])
        store.get_size(key)
        store.query_route(key)
        store.list_segments(all=True)
        store.metrics_text()
        address = allocator.alloc(65536)
        assert store.register_buffer(address, 65536) == 0
        assert store.unregister_buffer(address) == 0
        allocator.free(address)
        assert store.put("too big", bytes(40 * MIB) if turn % 20 == 0 else b"") in (0, -1)
        for bad in ("", 1, None):
            with pytest.raises((TypeError, ValueError)):
                store.get(bad)  # type: ignore[arg-type]
        assert store.remove(f"{key} a") == 0
        store.batch_remove([f"{key} b", absent])
    assert other.put_all([f"{name} other"]) == [0]
    assert store.get(f"{name} other") == value_of(f"{name} other")
    lease.release()


def test_mixed_calls_leave_nothing(pair: Any) -> None:
    store, other = pair

    def many_threads(rounds: int) -> None:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                mixed_calls(store, fake_other, f"t{number}", rounds)
            except BaseException as error:
                failures.append(error)

        lock = threading.Lock()

        class OneAtATime:
            def put_all(self, keys: list[str]) -> Any:
                with lock:
                    return other.put_all(keys)

        fake_other = OneAtATime()
        workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert failures == []

    many_threads(ROUNDS)
    footprint = Footprint(other)
    many_threads(ROUNDS)
    footprint.check(lanes=8)
    assert store.remove_all() > 0
    eventually(lambda: used_bytes(store) == 0 and used_bytes(other) == 0)


def test_used_space_follows_from_the_objects(pair: Any) -> None:
    store, other = pair
    empty = used_bytes(store), used_bytes(other)
    assert empty == (0, 0)
    sizes = [0, 1, 63, 64, 65, 4096, 100_000, MIB]
    for turn in range(20):
        for size in sizes:
            assert store.put(f"k{size}", value_of(str(turn), 0, size)) == 0
    assert used_bytes(store) >= sum(sizes)
    assert used_bytes(store) < 2 * sum(sizes) + 64 * len(sizes) + MIB
    assert other.put_all(["theirs"]) == [0]
    for size in sizes:
        assert store.remove(f"k{size}") == 0
    eventually(lambda: used_bytes(store) == 0)
    assert used_bytes(other) > 0
    assert store.remove_all() == 1
    eventually(lambda: used_bytes(other) == 0)


def test_a_full_node_filled_again_and_again_loses_no_space(pair: Any) -> None:
    store, _ = pair
    for turn in range(4):
        for number in range(80):
            assert store.put(f"{turn} {number}", bytes(MIB)) == 0, "eviction makes room"
        assert used_bytes(store) <= 32 * MIB
    assert store.remove_all() > 0
    eventually(lambda: used_bytes(store) == 0)
    again = [f"again {number}" for number in range(24)]  # Below the watermark.
    assert [store.put(key, bytes(MIB)) for key in again] == [0] * len(again)
    assert store.batch_is_exist(again) == [1] * len(again)


def test_stores_opened_and_closed_leave_nothing(
    redis: Any, node: Callable[..., Any], settings: Callable[..., Any]
) -> None:
    other = node(redis.url, **SMALL)

    def life() -> None:
        store = MooncakeDistributedStore()
        assert store.setup(settings(redis.url, **SMALL)) == 0
        pool = BufferPool(store, max_bytes=8 * MIB)
        lease, held = pool.acquire(4096), store.local_buffer_pool_try_acquire(4096)
        assert held is not None
        assert store.put_from("k", lease.ptr, 4096) == 0
        assert store.get_into("k", held.ptr, 4096) == 4096
        assert len(other.get("k")) == 4096
        view = store.get_buffer("k")
        lease.release()
        pool.close()
        store.close()
        ctypes.memset(held.ptr, 1, 4096)
        assert view is not None and len(view) == 4096

    for _ in range(12):  # Until the allocator of the process has what it keeps.
        life()
    keys, footprint = redis.keys(), Footprint(other)
    for _ in range(100 if LONG else 10):
        life()
    footprint.check()
    assert redis.keys() <= keys


def test_wrong_calls_leave_nothing(pair: Any) -> None:
    store, other = pair
    lease = store.local_buffer_pool_try_acquire(4096)
    assert store.put("k", b"value") == 0
    bad: list[tuple[str, tuple[Any, ...]]] = [
        ("put", ("", b"v")),
        ("put", ("k", 1)),
        ("put", ("k" * 65537, b"v")),
        ("put", ("k", b"v", "config")),
        ("put_parts", ("k", b"v", 1)),
        ("put_batch", (["a", "b"], [b"v"])),
        ("put_batch", (["a", 1], [b"v", b"v"])),
        ("batch_put", ([("a", b"v"), "b"],)),
        ("put_from", ("k", -1, 1)),
        ("put_from", ("k", 1, -1)),
        ("put_from", ("k", 1 << 70, 1)),
        ("get_into", ("k", "ptr", 1)),
        ("batch_put_from", (["a", "b"], [lease.ptr], [1])),
        ("batch_get_into", (["a"], [lease.ptr], [1, 2])),
        ("batch_put_from_multi_buffers", (["a"], [[lease.ptr]], [[1, 2]])),
        ("batch_get_into_multi_buffers", (["a"], [lease.ptr], [1])),
        ("get_into_ranges", ([lease.ptr], [["k"]], [[[0]]], [[[0]]], [[[1], [2]]])),
        ("get_into_ranges", ([lease.ptr], [["k"]], [[[0]]], [[[-1]]], [[[1]]])),
        ("batch_get", ("keys",)),
        ("batch_is_exist", ([None],)),
        ("batch_remove", ([b"k"],)),
        ("register_buffer", (-1, 10)),
        ("register_buffer", (lease.ptr, -10)),
        ("local_buffer_pool_try_acquire", (-1,)),
        ("local_buffer_pool_try_acquire", ("1",)),
        ("heartbeat", ("soon",)),
        ("no_such_method", ()),
    ]
    soft: list[tuple[str, tuple[Any, ...]]] = [
        ("put_from", ("k", 8, 8)),
        ("get_into", ("k", 8, 8)),
        ("register_buffer", (4096, 1 << 40)),
        ("unregister_buffer", (12345,)),
        ("local_buffer_pool_try_acquire", (1 << 40,)),
        ("put", ("huge", bytes(33 * MIB))),
        ("remove", ("absent",)),
    ]

    def wrong_calls(times: int) -> None:
        for _ in range(times):
            for name, args in bad:
                with pytest.raises((TypeError, ValueError, AttributeError, OverflowError)):
                    getattr(store, name)(*args)
            for name, args in soft:
                answer = getattr(store, name)(*args)
                assert answer is None or answer < 0, name

    wrong_calls(5)
    footprint, mappings = Footprint(other), ProcessView(os.getpid()).mappings()
    used, capacity = used_bytes(store), store.local_buffer_pool_capacity()
    wrong_calls(200 if LONG else 25)
    footprint.check()
    assert ProcessView(os.getpid()).mappings() <= mappings + 3
    assert used_bytes(store) == used and store.get("k") == b"value"
    lease.release()
    whole = store.local_buffer_pool_try_acquire(capacity)
    assert whole is not None
    whole.release()


def test_many_threads_share_few_connections(pair: Any) -> None:
    store, other = pair
    keys = [f"k{n}" for n in range(64)]
    assert other.put_all(keys) == [0] * 64
    view = ProcessView(os.getpid())
    before = view.descriptors()
    failures: list[str] = []

    def work(seed: int) -> None:
        for turn in range(100 if LONG else 30):
            key = keys[(seed + turn) % 64]
            if store.get(key) != value_of(key):
                failures.append(key)

    for _ in range(3):
        workers = [threading.Thread(target=work, args=(seed,)) for seed in range(64)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert failures == []
    assert view.descriptors() <= before + 64, "in proportion to threads, not to calls"
