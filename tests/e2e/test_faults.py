"""Processes that are killed, stopped or hostile, and what the others may notice of it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from support import LONG, MIB, ProcessView, at_most, eventually, settle, value_of

LEASE_S = 3.0
STALL_S = 2.0
# A busy machine may take this long for what needs no wait at all.
SLACK_S = 5.0
FAST = {
    "lease_ttl_ms": int(LEASE_S * 1000),
    "transfer_stall_timeout_ms": int(STALL_S * 1000),
    "request_timeout_ms": 20_000,
    "global_segment_size": 32 * MIB,
    "local_buffer_size": MIB,
}
ROUTER = {
    **FAST,
    "global_segment_size": 0,
    "labels": {"storage": "false"},
    "routed_writes": True,
}


class Cluster:
    """A writer and a reader without storage, and two storage nodes, "a" and "b"."""

    def __init__(self, node: Callable[..., Any], url: str) -> None:
        self.a, self.b = (node(url, stable_id=name, **FAST) for name in ("a", "b"))
        self.writer, self.reader = (node(url, stable_id=name, **ROUTER) for name in ("w", "r"))

    def put_on(self, owner: str, keys: list[str], size: int = 1000) -> None:
        config = ReplicateConfig(preferred_storage_owners=[owner], prefer_local=False)
        values = [value_of(key, 0, size) for key in keys]
        assert self.writer.put_batch(keys, values, config) == 0
        for key in keys:
            (replica,) = self.writer.query_route(key)["replicas"]
            assert replica["owner"].startswith(f"{owner}:")


@pytest.fixture
def cluster(redis: Any, node: Callable[..., Any]) -> Cluster:
    return Cluster(node, redis.url)


def keys_of(name: str, count: int = 100) -> list[str]:
    return [f"{name} {number}" for number in range(count)]


def segments_of(store: Any) -> set[str]:
    return {segment["owner"].partition(":")[0] for segment in store.list_segments(all=True)}


def test_a_killed_storage_node_costs_only_its_own_keys(cluster: Cluster) -> None:
    on_a, on_b = keys_of("on a"), keys_of("on b")
    cluster.put_on("a", on_a)
    cluster.put_on("b", on_b)
    for client in (cluster.writer, cluster.reader):
        client.start_load(f"load {client.process.pid}")
    eventually(lambda: cluster.reader.load_so_far()["calls"] > 50)

    cluster.a.kill()
    killed = time.monotonic()
    for store in (cluster.reader, cluster.writer, cluster.b):
        with at_most(STALL_S + SLACK_S):
            found = store.read_all(on_a + on_b)
        assert found["wrong"] == [] and set(found["missing"]) <= set(on_a)
        eventually(lambda store=store: store.read_all(on_b)["right"] == on_b, LEASE_S + SLACK_S)
        eventually(
            lambda store=store: store.batch_is_exist(on_a) == [0] * len(on_a), LEASE_S + SLACK_S
        )
        assert store.batch_is_exist(on_b) == [1] * len(on_b)
        assert store.read_all(on_a)["missing"] == on_a
        eventually(lambda store=store: "a" not in segments_of(store), LEASE_S + SLACK_S)
    assert time.monotonic() - killed < LEASE_S + 4 * SLACK_S

    assert cluster.writer.put_all(on_a) == [0] * len(on_a)
    assert cluster.reader.read_all(on_a)["right"] == on_a
    for client in (cluster.writer, cluster.reader):
        report = client.stop_load()
        assert (report["wrong"], report["errors"]) == ([], [])
        assert report["failed_puts"] <= 2, "one for each thread"
        assert report["slowest_s"] < STALL_S + SLACK_S
    assert cluster.writer.remove_all() > 0
    eventually(lambda: cluster.b.list_segments()[0]["used_bytes"] == 0, LEASE_S + SLACK_S)


def test_a_writer_killed_in_the_middle_gives_its_space_back(
    redis: Any, cluster: Cluster, spawn: Callable[[], Any], settings: Callable[..., Any]
) -> None:
    before = keys_of("before", 10)
    cluster.put_on("a", before)
    used = cluster.a.list_segments()[0]["used_bytes"]
    for turn in range(3):
        victim = spawn()
        assert victim.setup(settings(redis.url, **ROUTER)) == 0
        config = ReplicateConfig(preferred_storage_owners=["a"], prefer_local=False)
        victim.send("put_batch", [f"big {turn} {n}" for n in range(8)], [bytes(MIB)] * 8, config)
        eventually(lambda: cluster.a.list_segments()[0]["used_bytes"] > used)
        victim.kill()
        for key in (f"big {turn} {n}" for n in range(8)):
            assert cluster.reader.get(key) in (b"", bytes(MIB))
    left = [f"big {turn} {n}" for turn in range(3) for n in range(8)]
    cluster.reader.batch_remove(left, True)
    eventually(lambda: cluster.a.list_segments()[0]["used_bytes"] == used, 2 * LEASE_S + SLACK_S)
    assert cluster.reader.batch_is_exist(left) == [0] * len(left)
    assert cluster.reader.read_all(before)["right"] == before


def test_a_node_that_stood_still_longer_than_its_lease_comes_back(cluster: Cluster) -> None:
    on_a, on_b = keys_of("on a"), keys_of("on b")
    cluster.put_on("a", on_a)
    cluster.put_on("b", on_b)
    cluster.writer.start_load("load")
    cluster.a.stop()
    eventually(lambda: "a" not in segments_of(cluster.reader), 2 * LEASE_S + SLACK_S)
    assert cluster.reader.read_all(on_b)["right"] == on_b
    overwritten = on_a[:50]
    assert cluster.writer.put_all(overwritten, 1) == [0] * 50
    removed = on_b[:10]
    assert cluster.writer.batch_remove(removed) == [0] * 10

    cluster.a.cont()
    everyone = (cluster.a, cluster.b, cluster.reader, cluster.writer)
    for store in everyone:  # Also right after the rest: never what is out of date.
        found = store.read_all(overwritten, 1)
        assert found["wrong"] == []
        found = store.read_all(on_a[50:] + on_b[10:])
        assert found["wrong"] == []
        assert store.batch_is_exist(removed) == [0] * 10
    eventually(lambda: all("a" in segments_of(store) for store in everyone), 2 * LEASE_S + SLACK_S)

    def agreed() -> bool:
        answers = [
            (
                store.read_all(on_a[50:]),
                store.batch_is_exist(on_a[50:]),
                store.read_all(overwritten, 1)["right"],
                store.read_all(on_b[10:])["right"],
            )
            for store in everyone
        ]
        rest, exist, new, others = answers[0]
        whole = rest["wrong"] == [] and new == overwritten and others == on_b[10:]
        consistent = sum(exist) == len(rest["right"])
        return whole and consistent and all(answer == answers[0] for answer in answers)

    eventually(agreed, 2 * LEASE_S + SLACK_S)
    report = cluster.writer.stop_load()
    assert (report["wrong"], report["errors"]) == ([], [])
    on_a_again = ReplicateConfig(preferred_storage_owners=["a"], prefer_local=False)

    def takes_part() -> bool:
        assert cluster.writer.put("again", b"x", on_a_again) == 0
        return cluster.reader.query_route("again")["replicas"][0]["owner"].startswith("a:")

    eventually(takes_part, LEASE_S + SLACK_S)


def test_a_node_that_stands_still_slows_the_others_for_one_stall(cluster: Cluster) -> None:
    """After the stall limit and a second the p99 of the others is what it was."""

    cluster.a.stop()
    reports = []
    for name, seconds in (("meanwhile", STALL_S + 1), ("after", 57 if LONG else 2 * LEASE_S)):
        cluster.writer.start_load(name, threads=4)
        settle(seconds)
        reports.append(cluster.writer.stop_load())
        assert (reports[-1]["wrong"], reports[-1]["errors"]) == ([], [])
    # Far below what one more wait for the silent node would take.
    assert reports[-1]["calls"] > 20 and reports[-1]["p99_s"] < STALL_S / 4
    cluster.a.cont()
    on_a = ReplicateConfig(preferred_storage_owners=["a"], prefer_local=False)

    def serves_again() -> bool:
        assert cluster.writer.put("again", b"x", on_a) == 0
        return cluster.reader.query_route("again")["replicas"][0]["owner"].startswith("a:")

    eventually(serves_again, 2 * LEASE_S + SLACK_S)
    assert cluster.reader.get("again") == b"x"


def test_a_silent_peer_costs_its_limit_once(cluster: Cluster) -> None:
    on_a, on_b = keys_of("on a", 20), keys_of("on b", 20)
    cluster.put_on("a", on_a)
    cluster.put_on("b", on_b)
    assert cluster.reader.read_all(on_a + on_b)["right"] == on_a + on_b
    cluster.a.stop()
    with at_most(STALL_S + SLACK_S):
        first = cluster.reader.read_all(on_a + on_b)
    assert first["wrong"] == []
    eventually(lambda: cluster.reader.read_all(on_b)["right"] == on_b, LEASE_S + SLACK_S)
    for _ in range(5):
        with at_most(STALL_S):
            again = cluster.reader.read_all(on_a + on_b)
        assert (again["wrong"], again["missing"]) == ([], on_a)
    with at_most(STALL_S + SLACK_S):
        assert cluster.reader.put("new", b"value") in (0, -1)


def test_writers_go_elsewhere_when_a_node_dies(cluster: Cluster) -> None:
    """TF-10. Also of the keys that had been on it."""
    cluster.writer.start_load("load", threads=32, keys=10)
    eventually(lambda: cluster.writer.load_so_far()["calls"] > 400)
    cluster.a.kill()
    killed_at = cluster.writer.load_so_far()["calls"]
    eventually(lambda: cluster.writer.load_so_far()["calls"] > killed_at + 1000, 40)
    report = cluster.writer.stop_load()
    assert (report["wrong"], report["errors"]) == ([], [])
    assert report["most_failed_puts"] <= 1, "of each thread"
    assert report["slowest_s"] < STALL_S + LEASE_S + SLACK_S
    written = [f"load/{thread}/{key}" for thread in range(32) for key in range(10)]
    assert cluster.writer.put_all(written) == [0] * 320
    for key in written:
        (replica,) = cluster.writer.query_route(key)["replicas"]
        assert replica["owner"].startswith("b:")


def test_readers_killed_after_one_read_leave_nothing(
    redis: Any, node: Callable[..., Any], spawn: Callable[[], Any], settings: Callable[..., Any]
) -> None:
    source = node(redis.url, stable_id="source", **FAST)
    keys = keys_of("k", 10)
    assert source.put_all(keys) == [0] * 10

    def short_life() -> None:
        reader = spawn()
        assert reader.setup(settings(redis.url, **ROUTER)) == 0
        assert reader.read_all(keys)["right"] == keys
        assert reader.put("mine", b"value") == 0
        reader.kill()

    def at_rest() -> bool:
        return redis.keys() <= rest_keys and source.view.descriptors() <= descriptors

    short_life()
    rest_keys, descriptors = redis.keys(), source.view.descriptors()
    eventually(lambda: len(source.list_segments(all=True)) == 1, 3 * LEASE_S + SLACK_S)
    threads, memory = source.view.threads(), source.view.rss()
    for _ in range(200 if LONG else 8):
        short_life()
    eventually(at_rest, 3 * LEASE_S + SLACK_S)
    assert source.view.threads() <= threads
    assert source.view.rss() < memory + 16 * MIB
    last = node(redis.url, **ROUTER)
    with at_most(SLACK_S):
        assert last.read_all(keys)["right"] == keys


def garbage() -> list[bytes]:
    chance = random.Random(7)
    return [
        b"",
        b"\0" * 4096,
        b"\xff" * 4096,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        *(chance.randbytes(chance.choice([1, 3, 16, 40, 4096, 100_000])) for _ in range(40)),
    ]


def test_hostile_bytes_do_no_harm(redis: Any, node: Callable[..., Any]) -> None:
    target = node(redis.url, stable_id="target", **FAST)
    friend = node(redis.url, stable_id="friend", **ROUTER)
    keys = keys_of("k", 50)
    assert target.put_all(keys, 0, 20_000) == [0] * 50
    assert friend.read_all(keys, 0, 20_000)["right"] == keys
    host, _, port = target.get_hostname().rpartition(":")
    descriptors, memory = target.view.descriptors(), target.view.rss()
    open_ends = []
    for data in garbage():
        for patient in (False, True):
            end = socket.create_connection((host, int(port)), 5)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            with contextlib.suppress(OSError):  # It may have closed the connection: right.
                end.sendall(data)
            open_ends.append(end) if patient else end.close()
    assert friend.read_all(keys, 0, 20_000)["right"] == keys
    assert friend.put("new", b"value") == 0 and target.get("new") == b"value"
    used, since = target.view.cpu_s(), time.monotonic()
    eventually(lambda: time.monotonic() - since > 2)
    assert target.view.cpu_s() - used < 0.4, "busy without work"
    for end in open_ends:
        end.close()
    eventually(lambda: target.view.descriptors() <= descriptors)
    assert target.view.rss() < memory + 32 * MIB
    assert "rejected" in target.metrics_text()
    assert friend.read_all(keys, 0, 20_000)["right"] == keys


def test_connections_that_say_nothing_are_closed_in_time(
    redis: Any, node: Callable[..., Any]
) -> None:
    target = node(redis.url, **FAST)
    host, _, port = target.get_hostname().rpartition(":")
    descriptors = target.view.descriptors()
    ends = [socket.create_connection((host, int(port)), 5) for _ in range(50)]
    eventually(lambda: target.view.descriptors() >= descriptors + 50)
    eventually(lambda: target.view.descriptors() <= descriptors, 60)
    for end in ends:
        end.close()


def test_a_restarting_peer_costs_no_descriptors(
    redis: Any, node: Callable[..., Any], spawn: Callable[[], Any], settings: Callable[..., Any]
) -> None:
    """Under readers that go on, a peer comes and goes under one name (CR-04)."""
    reader = node(redis.url, stable_id="reader", **FAST)
    keys = keys_of("k", 20)

    def life() -> None:
        peer = spawn()
        assert peer.setup(settings(redis.url, stable_id="peer", **FAST)) == 0
        assert peer.put_all(keys) == [0] * 20
        eventually(lambda: reader.read_all(keys)["right"] == keys, LEASE_S + SLACK_S)
        peer.kill()

    life()
    view = ProcessView(reader.process.pid)
    descriptors, threads = view.descriptors(), view.threads()
    for _ in range(30 if LONG else 4):
        life()
        assert reader.read_all(keys)["wrong"] == []
    eventually(lambda: view.descriptors() <= descriptors + 2, SLACK_S)
    assert view.threads() <= threads


def test_a_signal_of_the_shell_ends_no_call(
    redis: Any, open_store: Callable[..., MooncakeDistributedStore]
) -> None:
    """Signals that the program handles itself interrupt no I/O."""
    store, other = open_store(redis.url, **FAST), open_store(redis.url, **FAST)
    value = value_of("k", 0, 8 * MIB)
    caught = []
    former = signal.signal(signal.SIGUSR1, lambda *_: caught.append(1))
    done = threading.Event()

    def shower() -> None:
        while not done.wait(0.001):
            os.kill(os.getpid(), signal.SIGUSR1)

    sender = threading.Thread(target=shower)
    sender.start()
    try:
        for _ in range(20):
            assert store.put("k", value) == 0
            assert other.get("k") == value
    finally:
        done.set()
        sender.join()
        signal.signal(signal.SIGUSR1, former)
    assert caught
