"""Dummy mode: applications that leave being a node to a daemon on their host."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import Any

import pytest
from mooncake.store import BufferPool, MooncakeDistributedStore, MooncakeHostMemAllocator
from support import ROUTES

MIB = 1 << 20


def registered(store: MooncakeDistributedStore, size: int) -> int:
    address = MooncakeHostMemAllocator().alloc(size)
    assert store.register_buffer(address, size) == 0
    return address


def test_the_example_of_the_page(start_daemon, dummy) -> None:
    daemon = start_daemon(
        *("--storage-bytes", str(64 * MIB), "--scratch-bytes", str(16 * MIB)),
        *("--stable-id", "dummy-server"),
    )
    store = MooncakeDistributedStore()
    store.setup_dummy(
        64 * 1024 * 1024,
        16 * 1024 * 1024,
        daemon.address,
        keyspace="tenant-a",
        worker_scope="tenant-a-dummy-worker",
    )
    allocator = MooncakeHostMemAllocator()
    ptr = allocator.alloc(4096)
    assert store.register_buffer(ptr, 4096) == 0
    ctypes.memset(ptr, 65, 4096)
    # At once: the registration returned after the daemon had the memory.
    assert store.batch_put_from(["key"], [ptr], [4096]) == [0]
    assert store.get("key") == b"A" * 4096
    store.close()


def test_calls_and_their_other_names(start_daemon, dummy) -> None:
    store = dummy(start_daemon().address)
    assert store.health_check() == 0
    assert store.put("k", b"v") == 0
    assert store.get("k") == b"v"
    assert store.is_exist("k") is True
    assert store.get_size("k") == 1
    assert store.batch_put([("a", b"1"), ("b", b"2" * 100_000)]) == 0
    assert store.put_batch(["c"], [b"3" * MIB]) == 0
    assert store.batch_get(["a", "missing", "c"]) == [b"1", b"", b"3" * MIB]
    assert store.get_batch(["b"]) == [b"2" * 100_000]
    assert store.batch_is_exist(["a", "missing"]) == [1, 0]
    assert store.put_parts("p", b"ab", b"", b"cd") == 0
    assert bytes(store.get_buffer("p")) == b"abcd"
    assert store.get_buffer("missing") is None
    assert store.upsert("k", b"w") == 0
    assert store.get("k") == b"w"
    assert store.remove("missing") == -1
    assert store.remove("missing", True) == 0
    assert store.batch_remove(["a", "missing"]) == [0, -1]
    assert store.get("k", tenant="other") == b""
    assert "mooncake_store_" in store.metrics_text()
    assert store.remove_all() == 4
    assert store.get("k") == b""


def test_buffers_and_ranges(start_daemon, dummy) -> None:
    store = dummy(start_daemon().address)
    base = registered(store, 4 * MIB)
    data = os.urandom(MIB)
    ctypes.memmove(base + 100, data, MIB)
    assert store.put_from("one", base + 100, MIB) == 0
    assert store.get("one") == data
    assert store.batch_put_from(["one", "two"], [base, base + 100], [10, 1000]) == [0, 0]
    assert store.get("one") == data  # Insert if absent.
    assert store.get("two") == data[:1000]
    assert store.upsert_from("two", base + 100, 2000) == 0
    assert store.get_into("two", base + 3 * MIB, 1999) < 0
    assert store.get_into("two", base + 3 * MIB, 2000) == 2000
    assert ctypes.string_at(base + 3 * MIB, 2000) == data[:2000]
    assert store.batch_get_into(["two", "no"], [base + 2 * MIB] * 2, [2000] * 2) == [2000, -1]
    puts = store.batch_put_from_multi_buffers(["m"], [[base + 100, base + 200]], [[10, 20]])
    assert puts == [0]
    assert store.get("m") == data[:10] + data[100:120]
    gets = store.batch_get_into_multi_buffers(
        ["m"], [[base + 3 * MIB, base + 3 * MIB + 500]], [[7, 100]]
    )
    assert gets == [30]
    assert ctypes.string_at(base + 3 * MIB + 500, 23) == (data[:10] + data[100:120])[7:]
    ranges = store.get_into_ranges(
        [base + 2 * MIB], [["one", "no"]], [[[0], [50]]], [[[1000], [0]]], [[[50], [1]]]
    )
    assert ranges[0][0] == [50]
    assert ranges[0][1][0] < 0
    assert ctypes.string_at(base + 2 * MIB, 50) == data[1000:1050]
    # Memory that is not registered (any more) is refused, never read.
    assert store.unregister_buffer(base) == 0
    assert store.unregister_buffer(base) == -1
    assert store.put_from("x", base, 10) == -1
    assert store.get_into("one", base, MIB) < 0
    other = ctypes.create_string_buffer(4096)
    assert store.register_buffer(ctypes.addressof(other), 4096) == -1


def test_real_only_calls_say_so(start_daemon, dummy) -> None:
    store = dummy(start_daemon().address)
    for call in (
        lambda: store.query_route("k"),
        store.list_segments,
        store.activate,
        store.enter_draining,
        store.heartbeat,
        lambda: store.local_buffer_pool_try_acquire(10),
        lambda: BufferPool(store),
    ):
        with pytest.raises(RuntimeError, match="dummy mode|local buffer"):
            call()
    store.close()
    with pytest.raises(RuntimeError):
        store.get("k")
    assert store.health_check() == 1


def test_setup_dummy_names_what_is_wrong(start_daemon, port) -> None:
    store = MooncakeDistributedStore()
    for address in ("127.0.0.1", "", "127.0.0.1:x"):
        with pytest.raises(ValueError, match="server_address"):
            store.setup_dummy(0, 0, address)
    with pytest.raises(RuntimeError, match=str(port)):
        store.setup_dummy(0, 0, f"127.0.0.1:{port}")
    daemon = start_daemon("--worker-scope", "mine")
    with pytest.raises(RuntimeError, match="stranger"):
        store.setup_dummy(0, 0, daemon.address, worker_scope="stranger")
    assert store.setup_dummy(0, 0, daemon.address, worker_scope="mine") == 0
    assert store.setup_dummy(0, 0, daemon.address) == 0  # worker-1, again and again.
    assert store.put("k", b"v") == 0
    store.close()


def test_the_keyspace_is_a_scope(start_daemon, dummy, monkeypatch) -> None:
    daemon = start_daemon("--keyspace", "team/a")
    dummy(daemon.address, keyspace="team/a")
    with pytest.raises(RuntimeError, match="team/b"):
        MooncakeDistributedStore().setup_dummy(0, 0, daemon.address, keyspace="team/b")
    monkeypatch.setenv("MC_STORE_RS_KEYSPACE", "team/a")
    store = dummy(daemon.address)
    assert store.put_from("k", registered(store, 4096), 4096) == 0


@pytest.mark.parametrize("bind", ["0.0.0.0", "[::]"])
def test_a_wildcard_bind_is_reached_by_every_name(start_daemon, dummy, port, bind) -> None:
    start_daemon(f"--client-server-address={bind}:{port}")
    hosts = ["127.0.0.1", "localhost"] + (["[::1]"] if bind == "[::]" else [])
    for host in hosts:
        store = dummy(f"{host}:{port}")
        assert store.put_from(host, registered(store, 4096), 4096) == 0


def test_the_secret(start_daemon, dummy, monkeypatch) -> None:
    daemon = start_daemon(MC_STORE_RS_CLUSTER_SECRET="s3cret")
    with pytest.raises(RuntimeError, match="secret"):
        MooncakeDistributedStore().setup_dummy(0, 0, daemon.address)
    monkeypatch.setenv("MC_STORE_RS_CLUSTER_SECRET", "s3cret")
    assert dummy(daemon.address).put("k", b"v") == 0


def hot_count(store: MooncakeDistributedStore, result: str) -> int:
    for line in store.metrics_text().splitlines():
        if line.startswith("mooncake_store_hot_cache_total{") and f'"{result}"' in line:
            return int(float(line.split()[-1]))
    return 0


def test_clients_of_a_scope_share_hot_values(start_daemon, dummy, node, sqlite_url) -> None:
    origin: Any = node(sqlite_url, routed_writes=True)
    gateway = start_daemon(
        *("--storage-bytes", "0", "--routed-writes"),
        MC_STORE_LOCAL_HOT_CACHE_SIZE=str(16 * MIB),
        MC_STORE_LOCAL_HOT_BLOCK_SIZE=str(4 * MIB),
        MC_STORE_LOCAL_HOT_CACHE_USE_SHM="1",
    )
    value = os.urandom(MIB)
    assert origin.put("k", value) == 0
    first, second = (dummy(gateway.address, worker_scope="one") for _ in range(2))
    other = dummy(gateway.address, worker_scope="two")
    assert first.get("k") == value
    assert second.get("k") == value
    assert hot_count(first, "hit") == 1
    assert other.get("k") == value
    assert hot_count(first, "hit") == 1
    newer = os.urandom(MIB)
    assert origin.put("k", newer) == 0
    assert second.get("k") == newer
    assert hot_count(first, "stale") == 1


def test_the_hot_cache_stays_out_of_the_metadata(
    service: Any, node: Any, start_daemon: Any, dummy: Any, open_store: Any
) -> None:
    """Nor does a dummy client show there; routes, replicas and segments are as without a cache."""
    origin = node(service.url, routed_writes=True)
    gateway = start_daemon(
        *("--metadata-url", service.url, "--storage-bytes", "0", "--routed-writes"),
        MC_STORE_LOCAL_HOT_CACHE_SIZE=str(4 * MIB),
        MC_STORE_LOCAL_HOT_BLOCK_SIZE=str(MIB),
        MC_STORE_LOCAL_HOT_CACHE_USE_SHM="1",
    )
    hot = {"local_hot_cache_size": 4 * MIB, "local_hot_block_size": MIB}
    reader = open_store(service.url, **ROUTES, **hot)
    mark = b"bytes-of-a-hot-value"
    values = {f"hot-key-{i}": mark * (1000 + i) for i in range(8)}
    for key, value in values.items():
        assert origin.put(key, value) == 0
    before = service.contents()
    routes = {key: reader.query_route(key) for key in values}
    segments = reader.list_segments(all=True)
    client = dummy(gateway.address)
    for store in (client, reader):
        hits = hot_count(store, "hit")
        for _ in range(2):
            assert {key: store.get(key) for key in values} == values
        assert hot_count(store, "hit") == hits + len(values)
    after = service.contents()
    assert before and set(after) == set(before)
    assert not [key for key in after if "hot-key" in key]
    assert not [text for text in after.values() if mark in text or b"hot-key" in text]
    assert {key: reader.query_route(key) for key in values} == routes
    assert reader.list_segments(all=True) == segments


def test_a_silent_daemon_ends_the_call_and_touches_nothing_later(
    start_daemon, dummy, eventually
) -> None:
    daemon = start_daemon()
    store = dummy(daemon.address)
    base = registered(store, 2 * MIB)
    assert store.put("k", b"x" * MIB) == 0
    assert store.get_into("k", base, MIB) == MIB
    daemon.stop()
    start = time.monotonic()
    assert store.put_from("p", base, MIB) == -1
    assert store.get_into("k", base + MIB, MIB) < 0
    assert time.monotonic() - start < 25
    ctypes.memset(base, ord("y"), 2 * MIB)
    daemon.cont()
    eventually(lambda: store.put("after", b"1") == 0)
    assert ctypes.string_at(base, 2 * MIB) == b"y" * (2 * MIB)
    # The put that was given up did not publish what the memory holds now.
    assert store.get("p") in (b"", b"x" * MIB)


class Engine(threading.Thread):
    """Puts and reads pages back until it is told to stop, as an engine's cache does."""

    def __init__(self, address: str, number: int) -> None:
        super().__init__()
        self.number = number
        self.stopped = threading.Event()
        self.wrong = 0
        self.good_at = 0.0
        self.store = MooncakeDistributedStore()
        self.store.setup_dummy(0, 0, address)
        self.base = registered(self.store, 2 * MIB)

    def run(self) -> None:
        page = 64 << 10
        step = 0
        while not self.stopped.is_set():
            step += 1
            keys = [f"e{self.number}-{step % 7}-{i}" for i in range(8)]
            puts = [self.base + i * page for i in range(8)]
            gets = [self.base + MIB + i * page for i in range(8)]
            for i, address in enumerate(puts):
                text = f"{keys[i]}|".encode()
                ctypes.memmove(address, text * (page // len(text) + 1), page)
            codes = self.store.batch_put_from(keys, puts, [page] * 8)
            sizes = self.store.batch_get_into(keys, gets, [page] * 8)
            for key, address, size in zip(keys, gets, sizes):
                text = f"{key}|".encode()
                whole = (text * (page // len(text) + 1))[:page]
                if size >= 0 and ctypes.string_at(address, page) != whole:
                    self.wrong += 1
            if codes == [0] * 8 and sizes == [page] * 8:
                self.good_at = time.monotonic()


def test_engines_survive_a_killed_daemon(start_daemon, eventually) -> None:
    daemon = start_daemon()
    engines = [Engine(daemon.address, number) for number in range(8)]
    for engine in engines:
        engine.start()
    try:
        for _ in range(2):
            eventually(lambda: all(engine.good_at for engine in engines))
            daemon.kill()
            daemon.start()
            back = time.monotonic()
            eventually(lambda at=back: all(engine.good_at > at for engine in engines), 5.0)
    finally:
        for engine in engines:
            engine.stopped.set()
        for engine in engines:
            engine.join()
            engine.store.close()
    assert sum(engine.wrong for engine in engines) == 0


def test_a_killed_client_is_forgotten(start_daemon, dummy, spawn, eventually) -> None:
    daemon = start_daemon()
    survivor = dummy(daemon.address)
    base = registered(survivor, 4096)
    other: Any = spawn()
    assert other.setup_dummy(0, 0, daemon.address) == 0
    other.registered_buffer(8 * MIB)

    def regions() -> int:
        for line in survivor.metrics_text().splitlines():
            if line.startswith("mooncake_store_dummy_regions"):
                return int(float(line.split()[-1]))
        return -1

    assert regions() == 2
    other.kill()
    eventually(lambda: regions() == 1)
    assert survivor.put_from("k", base, 4096) == 0


def test_a_serving_engines_flow_under_eviction(start_daemon, dummy, node, sqlite_url) -> None:
    """What SGLang's HiCache does in its dummy flow, against a gateway and two storage nodes."""
    for _ in range(2):
        node(sqlite_url, routed_writes=True, global_segment_size=16 * MIB)
    gateway = start_daemon("--storage-bytes", "0", "--routed-writes")
    page, pages = 64 << 10, 64
    pool = page * pages * 2
    # The pools are allocated before the store is set up.
    base = MooncakeHostMemAllocator().alloc(pool)
    memory = (ctypes.c_char * pool).from_address(base)
    store = dummy(gateway.address)
    warm = b"w" * 4096
    assert store.put("warm-up", warm) == 0
    assert store.is_exist("warm-up") == 1
    assert store.get("warm-up") == warm
    assert store.register_buffer(base, pool) == 0

    hits = 0
    for layer in range(12):  # 48 MiB of pages into 32 MiB of storage.
        keys = [f"{layer}_{i}_0_{half}" for i in range(pages // 2) for half in "kv"]
        exist = store.batch_is_exist(keys)
        new = [i for i, code in enumerate(exist) if code != 1]
        for i in new:
            memory[i * page : (i + 1) * page] = keys[i].encode().ljust(32, b".") * (page // 32)
        codes = store.batch_put_from(
            [keys[i] for i in new], [base + i * page for i in new], [page] * len(new)
        )
        assert codes == [0] * len(new)
        far = layer // 2  # Some of these have been evicted.
        back = [f"{far}_{i}_0_{half}" for i in range(pages // 2) for half in "kv"]
        targets = [base + (pages + i) * page for i in range(pages)]
        for key, target, size in zip(
            back, targets, store.batch_get_into(back, targets, [page] * pages)
        ):
            assert size in (page, -1)
            if size == page:
                hits += 1
                assert ctypes.string_at(target, page) == key.encode().ljust(32, b".") * (page // 32)
    assert hits > 100
    assert store.remove_all() > 0
    assert store.batch_is_exist(["11_0_0_k"]) == [0]
