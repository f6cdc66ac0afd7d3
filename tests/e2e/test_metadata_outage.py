"""The metadata service stops, hangs, loses everything or comes late; the data goes on."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support import LONG, MIB, eventually

LEASE_S = 2.0
OUTAGE_S = 60.0 if LONG else 3 * LEASE_S
FAST = {
    "lease_ttl_ms": int(LEASE_S * 1000),
    "transfer_stall_timeout_ms": 2000,
    "global_segment_size": 32 * MIB,
    "local_buffer_size": MIB,
}
ROUTER = {**FAST, "global_segment_size": 0, "labels": {"storage": "false"}, "routed_writes": True}


class Cluster:
    """Three nodes under load: two with storage, one without."""

    def __init__(self, node: Callable[..., Any], service: Any) -> None:
        self.service = service
        self.nodes = [node(service.url, stable_id=f"n{i}", **FAST) for i in range(2)]
        self.nodes.append(node(service.url, stable_id="router", **ROUTER))
        self.keys = [[f"{i}/{k}" for k in range(20)] for i in range(3)]
        for one, keys in zip(self.nodes, self.keys):
            assert one.put_all(keys) == [0] * 20
            one.start_load(f"load {one.process.pid}")
        self.wait_for_progress()

    def wait_for_progress(self) -> None:
        for one in self.nodes:
            calls = one.load_so_far()["calls"]
            eventually(lambda one=one, calls=calls: one.load_so_far()["calls"] > calls + 20)

    def go_on_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.wait_for_progress()

    def check_that_nothing_failed(self) -> None:
        for one in self.nodes:
            report = one.load_so_far()
            found = {name: report[name] for name in ("wrong", "errors", "failed_puts", "misses")}
            assert found == {"wrong": [], "errors": [], "failed_puts": 0, "misses": 0}
            assert report["slowest_s"] < 10
        everything = [key for keys in self.keys for key in keys]
        for one in self.nodes:
            assert one.read_all(everything)["right"] == everything

    def check_that_all_are_registered(self, node: Callable[..., Any]) -> None:
        """A newcomer, who knows nothing but the service, finds every node and every key."""
        newcomer = node(self.service.url, stable_id="newcomer", **FAST)

        def owners() -> set[str]:
            rows = newcomer.list_segments(all=True)
            return {row["owner"].partition(":")[0] for row in rows}

        eventually(lambda: owners() == {"n0", "n1", "newcomer"}, 5)
        everything = [key for keys in self.keys for key in keys]
        assert newcomer.read_all(everything)["right"] == everything
        assert newcomer.put_all(["from the newcomer"]) == [0]
        for one in self.nodes:
            assert one.read_all(["from the newcomer"])["right"] == ["from the newcomer"]


@pytest.fixture
def cluster(service: Any, node: Callable[..., Any]) -> Cluster:
    return Cluster(node, service)


@pytest.mark.parametrize("kind", ["stopped", "hung", "stopped, then empty", "hung, then empty"])
def test_an_outage_fails_no_request(cluster: Cluster, node: Callable[..., Any], kind: str) -> None:
    if kind.startswith("stopped"):
        cluster.service.stop()
    else:
        cluster.service.signal(signal.SIGSTOP)
    cluster.go_on_for(OUTAGE_S)
    cluster.check_that_nothing_failed()
    if kind == "hung":
        cluster.service.signal(signal.SIGCONT)
    else:
        cluster.service.stop()
        if kind.endswith("empty"):
            cluster.service.wipe()
        cluster.service.start()
    eventually(lambda: cluster.service.keys() > 0, 5)
    cluster.go_on_for(LEASE_S)
    cluster.check_that_nothing_failed()
    cluster.check_that_all_are_registered(node)
    cluster.go_on_for(2 * LEASE_S)
    cluster.check_that_nothing_failed()


def test_segments_come_and_go_during_an_outage(redis: Any, node: Callable[..., Any]) -> None:
    """What has been done is not reported as failed, and the others hear of it afterwards."""
    owner = node(redis.url, stable_id="owner", **FAST)
    other = node(redis.url, stable_id="other", **FAST)
    first = owner.list_segments()[0]["segment_name"]
    redis.stop()
    added = owner.expand_local_memory(MIB)["segment_name"]
    assert [row["segment_name"] for row in owner.list_segments()] == [first, added]
    assert owner.drain_segment(added) == 0
    assert owner.retire_segment(added) is True
    with pytest.raises(KeyError):
        owner.retire_segment(added)
    second = owner.expand_local_memory(MIB)["segment_name"]
    redis.start()

    def seen() -> list[str]:
        rows = other.list_segments(all=True)
        return [row["segment_name"] for row in rows if row["owner"] == "owner:1"]

    eventually(lambda: seen() == [first, second], 5)


def test_losing_everything_at_once_fails_no_request(
    cluster: Cluster, node: Callable[..., Any]
) -> None:
    for _ in range(3):
        cluster.service.lose_everything()
        cluster.go_on_for(1)
    cluster.check_that_nothing_failed()
    cluster.check_that_all_are_registered(node)


@pytest.mark.parametrize("service", ["redis"], indirect=True)
def test_cut_connections_fail_no_request(cluster: Cluster, node: Callable[..., Any]) -> None:
    end = time.monotonic() + (60 if LONG else 4)
    while time.monotonic() < end:
        cluster.service.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        cluster.wait_for_progress()
    cluster.check_that_nothing_failed()
    cluster.check_that_all_are_registered(node)


def test_a_lease_that_lapsed_while_the_service_was_away_is_no_death(
    service: Any, node: Callable[..., Any]
) -> None:
    """A member that dies during an outage is gone once the service is back."""
    stays = node(service.url, stable_id="stays", **FAST)
    dies = node(service.url, stable_id="dies", **FAST)
    assert stays.put_all(["on stays"]) == dies.put_all(["on dies"]) == [0]
    assert stays.read_all(["on dies"])["right"] == ["on dies"]
    service.stop()
    dies.kill()
    start = time.monotonic()
    assert stays.get("on dies") == b""
    assert time.monotonic() - start < 8
    service.start()

    def gone() -> bool:
        owners = [row["owner"] for row in stays.list_segments(all=True)]
        return len(owners) == 1 and stays.is_exist("on dies") is False

    eventually(gone, 3 * LEASE_S + 5)
    assert stays.read_all(["on stays"])["right"] == ["on stays"]
    assert stays.put_all(["on dies"]) == [0]


def test_clients_wait_for_a_service_that_comes_late(
    service: Any, spawn: Callable[[], Any], settings: Callable[..., Any]
) -> None:
    service.stop()
    clients = [spawn() for _ in range(4)]
    for client in clients:
        client.send("setup", settings(service.url, **FAST, startup_timeout_ms=30_000))
    start = time.monotonic()
    eventually(lambda: time.monotonic() - start > (20 if LONG else 2))
    service.start()
    assert [client.receive() for client in clients] == [0] * 4
    for number, client in enumerate(clients):  # At once, while others may still be joining.
        key = f"first of {number}"
        assert client.put_all([key]) == [0]
        assert client.read_all([key])["right"] == [key]


def test_a_password_and_a_database_survive_reconnection(
    redis: Any, node: Callable[..., Any]
) -> None:
    """MD-01. Cut off again and again, under 32 threads, no lease lapses meanwhile."""
    redis.command("CONFIG", "SET", "requirepass", "s3cret:/@")
    url = f"redis://:s3cret%3A%2F%40@127.0.0.1:{redis.port}/3"
    nodes = [node(url, stable_id=f"n{i}", **FAST) for i in range(2)]
    login = ("-a", "s3cret:/@", "--no-auth-warning")

    def leases() -> list[str]:
        return redis.command(*login, "-n", "3", "HKEYS", "{mc/store-rs/v2}/leases").split()

    members = sorted(leases())
    assert len(members) == 2
    for one in nodes:
        one.start_load(f"load {one.process.pid}", threads=16)
    for _ in range(30 if LONG else 6):
        redis.command(*login, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        calls = [one.load_so_far()["calls"] for one in nodes]
        end = time.monotonic() + (2 if LONG else 0.7)
        while time.monotonic() < end:
            assert sorted(leases()) == members
        eventually(
            lambda calls=calls: all(
                one.load_so_far()["calls"] > before + 50 for one, before in zip(nodes, calls)
            )
        )
    for one in nodes:
        report = one.stop_load()
        assert (report["wrong"], report["failed_puts"], report["misses"]) == ([], 0, 0)
        assert {row["owner"] for row in one.list_segments(all=True)} == {"n0:1", "n1:1"}
    assert redis.command(*login, "-n", "0", "DBSIZE") == "0"
    assert int(redis.command(*login, "-n", "3", "DBSIZE")) > 0


class Slowness:
    """A service that stands still most of the time, so that each answer takes long."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.is_set():
            self._service.signal(signal.SIGSTOP)
            self._done.wait(0.3)
            self._service.signal(signal.SIGCONT)
            self._done.wait(0.03)


def test_a_slow_service_fails_no_request(cluster: Cluster, node: Callable[..., Any]) -> None:
    """Nor is one slow because of it: at a third of a second for each, there would be few."""
    calls = [one.load_so_far()["calls"] for one in cluster.nodes]
    with Slowness(cluster.service):
        cluster.go_on_for(OUTAGE_S if LONG else 1.5 * LEASE_S)
    for one, before in zip(cluster.nodes, calls):
        assert one.load_so_far()["calls"] > before + 200
    cluster.check_that_nothing_failed()
    cluster.check_that_all_are_registered(node)
    rows = cluster.nodes[2].list_segments(all=True)
    assert {row["owner"] for row in rows} >= {"n0:1", "n1:1"}, "nobody had to join again"


def test_an_idle_node_asks_little(redis: Any, node: Callable[..., Any]) -> None:
    node(redis.url, global_segment_size=8 * MIB, local_buffer_size=MIB)

    def commands() -> int:
        lines = redis.command("INFO", "stats").splitlines()
        return int(
            dict(line.split(":", 1) for line in lines if ":" in line)["total_commands_processed"]
        )

    done = threading.Event()
    done.wait(1)  # Whatever joining needs.
    first, start = commands(), time.monotonic()
    done.wait(4)
    per_second = (commands() - first - 1) / (time.monotonic() - start)
    assert per_second <= 6
