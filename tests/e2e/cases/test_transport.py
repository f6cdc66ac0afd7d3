"""Links that break, peers that fall silent, and what traffic costs (cases TF)."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import case_jobs
import pytest
from mooncake.store import MooncakeDistributedStore
from support import LONG, MIB, OWNS, ROUTES, at_most, eventually, quick_node, settle, value_of

LEASE_S = 3.0
STALL_S = 2.0
SLACK_S = 5.0
FAST = quick_node(LEASE_S, STALL_S)
OWNER = {**FAST, **OWNS}
ROUTER = {**FAST, **ROUTES}


def port_of(node: Any) -> int:
    return int(node.get_hostname().rpartition(":")[2])


def owner_of(store: Any, key: str) -> str:
    return str(store.query_route(key)["replicas"][0]["owner"]).rpartition(":")[0]


# --- Silent peers -------------------------------------------------------------------------------


def test_half_of_the_peers_silent_costs_one_limit(redis: Any, node: Callable[..., Any]) -> None:
    """TF-05. One batch touches all; it ends within one limit, and the live half is served."""
    count = 32 if LONG else 6
    peers = [node(redis.url, stable_id=f"p{n}", **OWNER) for n in range(count)]
    client = node(redis.url, stable_id="client", **ROUTER)
    keys = [f"k{n}" for n in range(count * 12)]
    assert client.put_all(keys) == [0] * len(keys)
    assert client.read_all(keys)["right"] == keys
    owners = {key: owner_of(client, key) for key in keys}
    assert len(set(owners.values())) == count
    silent = {f"p{n}" for n in range(count // 2)}
    for peer in peers[: count // 2]:
        peer.stop()
    live = [key for key in keys if owners[key] not in silent]
    with at_most(STALL_S + SLACK_S):
        found = client.read_all(keys)
    assert found["wrong"] == [] and set(live) <= set(found["right"])
    for _ in range(3):
        with at_most(STALL_S):
            assert set(live) <= set(client.read_all(keys)["right"])
    with at_most(STALL_S + SLACK_S):
        assert client.put_all(live, 1) == [0] * len(live)
    for peer in peers[: count // 2]:
        peer.cont()
    eventually(lambda: client.put_all(keys, 2) == [0] * len(keys), 2 * LEASE_S + SLACK_S)
    assert client.read_all(keys, 2)["right"] == keys


class FarHost:
    """A network of its own for a process, with one link to here that can lose everything."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        number = next(self._numbers)
        self.name = f"mcfar{os.getpid()}-{number}"
        self.here, self.there = f"10.213.{number}.1", f"10.213.{number}.2"
        self._link = f"mcl{os.getpid() % 100_000}-{number}"

    def __enter__(self) -> FarHost:
        self._ip("netns", "add", self.name)
        self._ip(
            "link", "add", self._link, "type", "veth", "peer", "name", "far", "netns", self.name
        )
        self._ip("addr", "add", f"{self.here}/24", "dev", self._link)
        self._ip("link", "set", self._link, "up")
        self._ip("-n", self.name, "addr", "add", f"{self.there}/24", "dev", "far")
        self._ip("-n", self.name, "link", "set", "far", "up")
        self._ip("-n", self.name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        self._ip("netns", "del", self.name)  # And its end of the link, so the link too.

    def lose_everything(self) -> None:
        """Both ends drop what they would send: no refusal, no reset, only silence."""
        self._ip("-n", self.name, "route", "add", "blackhole", self.here)

    def heal(self) -> None:
        self._ip("-n", self.name, "route", "del", "blackhole", self.here)

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, stderr=subprocess.PIPE)


@pytest.fixture
def far_host() -> Iterator[FarHost]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs ip and root for a network namespace")
    with contextlib.ExitStack() as stack:
        try:
            host = stack.enter_context(FarHost())
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr!r}")
        yield host


def test_a_host_that_vanishes_from_the_network(
    redis: Any,
    far_host: FarHost,
    node: Callable[..., Any],
    far_node: Callable[..., Any],
) -> None:
    """Its packets are lost: connections stay open and new ones get no answer."""
    redis.command("CONFIG", "SET", "bind", f"127.0.0.1 {far_host.here}")
    redis.command("CONFIG", "SET", "protected-mode", "no")
    far_url = redis.url.replace("127.0.0.1", far_host.here)
    here = {"local_hostname": far_host.here}
    near = node(redis.url, stable_id="near", **OWNER, **here)
    far = far_node(far_host, far_url, stable_id="far", **OWNER)
    client = node(redis.url, stable_id="client", **ROUTER, **here)
    on_near, on_far = ([f"on {name} {n}" for n in range(30)] for name in ("near", "far"))
    assert client.run(case_jobs.put_at, "near", on_near, 1000) == 0
    assert client.run(case_jobs.put_at, "far", on_far, 1000) == 0
    assert client.read_all(on_near + on_far)["right"] == on_near + on_far

    far_host.lose_everything()
    with at_most(STALL_S + SLACK_S):
        found = client.read_all(on_near + on_far)
    assert found["wrong"] == [] and found["missing"] != []
    eventually(lambda: client.read_all(on_near)["right"] == on_near, LEASE_S + SLACK_S)
    for _ in range(3):
        with at_most(STALL_S):
            assert client.read_all(on_near + on_far)["right"] == on_near
    eventually(lambda: client.batch_is_exist(on_far) == [0] * 30, LEASE_S + SLACK_S)
    with at_most(SLACK_S):
        assert near.put_all(["new"]) == [0]

    far_host.heal()

    def together() -> bool:
        owners = {row["owner"].partition(":")[0] for row in client.list_segments(all=True)}
        return owners == {"near", "far"}

    eventually(together, 3 * LEASE_S + 2 * SLACK_S)
    assert client.run(case_jobs.put_at, "far", on_far, 1000, 1) == 0
    for store in (near, far, client):
        eventually(lambda store=store: store.read_all(on_far, 1)["right"] == on_far, SLACK_S)
        assert store.read_all(on_near)["right"] == on_near


@pytest.fixture
def far_node(spawn: Callable[..., Any], settings: Callable[..., Any]) -> Callable[..., Any]:
    def start(host: FarHost, url: str, **changes: Any) -> Any:
        process = spawn(["ip", "netns", "exec", host.name])
        wanted = settings(url, **changes)
        wanted["local_hostname"] = host.there
        assert process.setup(wanted) == 0
        return process

    return start


def test_a_late_answer_touches_no_memory_of_the_caller(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., MooncakeDistributedStore]
) -> None:
    """Rule: when a call returns, for whatever reason, the store is done with the memory."""
    size = 24 * MIB
    owner = node(redis.url, stable_id="owner", **FAST, global_segment_size=64 * MIB)
    reader = node(redis.url, stable_id="reader", **ROUTER)
    assert owner.put_all(["k"], 0, size) == [0]
    for turn in range(20 if LONG else 2):
        target = reader.registered_buffer(size)
        reader.send("get_into", "k", target, size)
        settle(0.003 + 0.004 * turn)
        owner.stop()  # Most likely in the middle of its answer.
        with at_most(STALL_S + SLACK_S):
            got = reader.receive()
        assert got == size or got < 0
        before = reader.run(case_jobs.fill_with_pattern, target, size)
        owner.cont()
        settle(0.5)
        assert reader.run(case_jobs.digest_at, target, size) == before
        # And it reads again as soon as its peer is back.
        eventually(lambda: reader.read_all(["k"], 0, size)["right"] == ["k"], LEASE_S + SLACK_S)


def test_a_write_that_was_given_up_looks_at_no_memory_later(
    redis: Any, node: Callable[..., Any]
) -> None:
    """The same rule for what is written: the caller uses its memory again at once."""
    size = 24 * MIB
    owner = node(redis.url, stable_id="owner", **FAST, global_segment_size=128 * MIB)
    writer = node(redis.url, stable_id="writer", **ROUTER)
    source = writer.registered_buffer(size)
    failed, turns = 0, 0
    while turns < (20 if LONG else 1) or (failed == 0 and turns < 6):
        turns += 1
        writer.run(case_jobs.fill_with_pattern, source, size)
        writer.send("put_from", f"k{turns}", source, size)
        settle(0.002 * turns)
        owner.stop()
        with at_most(STALL_S + SLACK_S):
            code = writer.receive()
        failed += code != 0
        writer.poke(source, bytes(size))
        owner.cont()
        settle(0.5)
        eventually(lambda: writer.put_all(["back"]) == [0], LEASE_S + SLACK_S)
        found = writer.get(f"k{turns}")
        assert found == b"\xa5" * size or (found == b"" and code != 0)
        writer.remove(f"k{turns}")
    assert failed > 0


# --- Links --------------------------------------------------------------------------------------


def test_an_idle_link_that_died_costs_no_call(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., MooncakeDistributedStore]
) -> None:
    """Rule: an idle link that died costs one reconnect, never a failed operation."""
    owner = node(redis.url, stable_id="owner", **OWNER)
    store = open_store(redis.url, **ROUTER)
    keys = [f"k{n}" for n in range(10)]
    for turn in range(50 if LONG else 6):
        assert store.put_batch(keys, [value_of(key, turn) for key in keys]) == 0
        case_jobs.in_threads(8, lambda n: store.get(keys[n]))
        links = case_jobs.descriptors_of_peers(port_of(owner))
        assert links
        # By turns the whole link at once, then only one direction of it.
        how = (socket.SHUT_RDWR, socket.SHUT_WR, socket.SHUT_RD)[turn % 3]
        for link in links:
            with socket.socket(fileno=os.dup(link)) as twin:
                twin.shutdown(how)
        if turn % 2:
            settle(0.3)
        assert store.put("one", b"value") == 0
        assert store.batch_get(keys) == [value_of(key, turn) for key in keys]
        assert store.get("one") == b"value"
        assert store.batch_is_exist(keys) == [1] * 10
        assert store.remove("one") == 0


def test_ten_gigabytes_over_one_connection(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., MooncakeDistributedStore]
) -> None:
    """TF-06. Past every limit of 32 bits, the connection is still the first one."""
    size = (5 << 30) if LONG else 192 * MIB
    total = (10 << 30) if LONG else (4 << 30) + (256 << 20)
    owner = node(redis.url, **{**FAST, "global_segment_size": size + 64 * MIB})
    store = open_store(redis.url, **{**ROUTER, "request_timeout_ms": 120_000})
    (target,) = case_jobs.filled_buffer(store, [bytes(size)])
    small = [f"small {n}" for n in range(100)]
    assert owner.put_all(small, 0, 4096) == [0] * 100
    assert store.put_from("big", target, size) == 0
    (link,) = case_jobs.descriptors_of_peers(port_of(owner))
    inode = os.readlink(f"/proc/self/fd/{link}")
    moved = 0
    while moved < total:
        assert store.get_into("big", target, size) == size
        assert store.batch_get(small) == [value_of(key, 0, 4096) for key in small]
        moved += size + 100 * 4096
    links = case_jobs.descriptors_of_peers(port_of(owner))
    assert [os.readlink(f"/proc/self/fd/{each}") for each in links] == [inode]


def sockets_of_ports(ports: set[int]) -> int:
    """In every state, also those that wait for nothing but time."""
    count = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        ends = line.split()[1:3]
        count += any(int(end.rpartition(":")[2], 16) in ports for end in ends)
    return count


def test_sockets_follow_peers_and_threads_not_reads(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., MooncakeDistributedStore]
) -> None:
    """TF-07. Many small reads over four peers; sockets counted in every state."""
    peers = [node(redis.url, stable_id=f"p{n}", **OWNER) for n in range(4)]
    store = open_store(redis.url, **ROUTER)
    keys = [f"k{n}" for n in range(200)]
    assert peers[0].put_all(keys, 0, 4096) == [0] * 200
    ports = {port_of(peer) for peer in peers}
    threads, reads = 8, (300_000 if LONG else 8_000) // 8

    def read(number: int) -> None:
        for turn in range(reads):
            key = keys[(number * 31 + turn) % 200]
            assert len(store.get(key)) == 4096

    case_jobs.in_threads(threads, read)
    first = sockets_of_ports(ports)
    case_jobs.in_threads(threads, read)
    # Two entries for each connection, as both ends are here; and the peers know each other.
    most = 2 * (len(ports) * (threads + 4) + len(ports) ** 2)
    assert first <= most and sockets_of_ports(ports) <= most


# --- Owners that cannot move data ---------------------------------------------------------------


def test_an_owner_that_moves_no_data_is_avoided_and_forgiven(
    redis: Any, node: Callable[..., Any]
) -> None:
    """Rule: an owner that cannot move data is avoided, whatever its heartbeat says."""
    with socket.socket() as probe:  # A fixed port, so that it can be listened at again.
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    deaf = node(redis.url, stable_id="deaf", transport_rpc_port=port, **OWNER)
    node(redis.url, stable_id="well", **OWNER)
    client = node(redis.url, stable_id="client", **ROUTER)
    keys = [f"k{n}" for n in range(60)]
    assert client.put_all(keys) == [0] * 60
    deaf.run(case_jobs.close_the_port, port)
    with at_most(LEASE_S + SLACK_S):
        codes = client.put_all(keys, 1)
    assert codes.count(-1) <= 1, "at most one write finds out"
    for turn in (2, 3):
        with at_most(SLACK_S):
            assert client.put_all(keys, turn) == [0] * 60
            assert client.read_all(keys, turn)["right"] == keys
    assert {owner_of(client, key) for key in keys} == {"well"}

    deaf.run(case_jobs.open_the_port_again)

    def takes_part() -> bool:
        codes = client.put_all(keys, 4)
        return codes == [0] * 60 and "deaf" in {owner_of(client, key) for key in keys}

    eventually(takes_part, 10 + 2 * LEASE_S + SLACK_S)
    assert client.read_all(keys, 4)["right"] == keys


def test_a_port_that_changed_hands_serves_nobody_elses_bytes(
    redis: Any,
    node: Callable[..., Any],
    open_store: Callable[..., MooncakeDistributedStore],
    spawn: Callable[..., Any],
    settings: Callable[..., Any],
) -> None:
    """Rule: a local shortcut needs proof that the memory is ours, not a matching address."""
    first = node(redis.url, stable_id="first", **OWNER)
    node(redis.url, stable_id="stays", **OWNER)
    store = open_store(redis.url, **ROUTER)
    keys = [f"k{n}" for n in range(30)]
    assert case_jobs.put_at(store, "first", keys, 1000) == 0
    assert store.batch_get(keys) == [value_of(key) for key in keys]
    port = port_of(first)
    first.kill()
    # Another cluster's node gets the same port, and holds the same keys at the same places.
    stranger = spawn()
    elsewhere = settings(
        redis.url, stable_id="first", keyspace="elsewhere", transport_rpc_port=port, **OWNER
    )
    eventually(lambda: sets_up(stranger, elsewhere))
    assert stranger.put_all(keys, 7) == [0] * 30
    for _ in range(20):
        found = store.batch_get(keys)
        assert set(found) <= {b""} | {value_of(key) for key in keys}
    eventually(lambda: store.batch_is_exist(keys) == [0] * 30)
    assert store.batch_get(keys) == [b""] * 30
    assert store.put_batch(keys, [value_of(key, 2) for key in keys]) == 0
    assert store.batch_get(keys) == [value_of(key, 2) for key in keys]
    assert stranger.read_all(keys, 7)["right"] == keys


def sets_up(process: Any, wanted: dict[str, Any]) -> bool:
    with contextlib.suppress(RuntimeError, ValueError):
        return bool(process.setup(wanted) == 0)
    return False


def test_one_of_four_dies_under_load(redis: Any, node: Callable[..., Any]) -> None:
    """TF-11. The other three go on, without failures once it is known, and without storms."""
    nodes = [node(redis.url, stable_id=f"n{n}", **OWNER) for n in range(4)]
    for one in nodes:
        one.start_load(f"load {one.process.pid}", threads=4, keys=10)
    settle(30 if LONG else 0.7)
    start, calls = time.monotonic(), [one.load_so_far()["calls"] for one in nodes]
    settle(15 if LONG else 1)
    former = sum(one.load_so_far()["calls"] - before for one, before in zip(nodes, calls)) / (
        time.monotonic() - start
    )
    nodes.pop().kill()
    settle(15 if LONG else STALL_S + 0.5)
    before = [one.load_so_far() for one in nodes]
    links = [one.view.descriptors() for one in nodes]
    start = time.monotonic()
    settle(30 if LONG else 1)
    after = [one.load_so_far() for one in nodes]
    for then, now in zip(before, after):
        assert now["wrong"] == [] and now["errors"] == []
        assert now["calls"] > then["calls"] + 50
        assert now["failed_puts"] == then["failed_puts"], "nothing fails once it is known"
    if LONG:
        rate = sum(now["calls"] - then["calls"] for then, now in zip(before, after))
        assert rate / (time.monotonic() - start) > 0.7 * 0.75 * former
    for one, count in zip(nodes, links):
        assert one.view.descriptors() <= count + 4


def test_a_cluster_without_owners_costs_no_wait_each_time(
    redis: Any, node: Callable[..., Any]
) -> None:
    """Once it is known that nobody is left, calls say so at once."""
    owner = node(redis.url, **OWNER)
    client = node(redis.url, **ROUTER)
    assert client.put_all(["k"]) == [0]
    owner.kill()
    eventually(lambda: client.list_segments(all=True) == [], 2 * LEASE_S + SLACK_S)
    client.get("k")
    with at_most(1.0):
        assert client.get("k") == b""
    node(redis.url, **OWNER)
    eventually(lambda: client.put_all(["k"]) == [0])


def test_connections_that_rest_are_closed_also_amid_others(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., MooncakeDistributedStore]
) -> None:
    """TF-12. After a burst of threads one thread goes on: the surplus of its pool goes."""
    if not LONG:
        pytest.skip("takes two minutes (MC_E2E_LONG=1); the short form is unit.transfer's")
    owner = node(redis.url, stable_id="owner", **OWNER)
    store = open_store(redis.url, **ROUTER)
    assert owner.put_all(["k"], 0, 8 * MIB) == [0]
    case_jobs.in_threads(32, lambda _: [store.get("k") for _ in range(5)])
    assert len(case_jobs.descriptors_of_peers(port_of(owner))) > 4
    end = time.monotonic() + 90
    while time.monotonic() < end:
        assert len(store.get("k")) == 8 * MIB
        settle(1)
    assert len(case_jobs.descriptors_of_peers(port_of(owner))) <= 4
    used, since = owner.view.cpu_s(), time.monotonic()
    settle(30)
    assert owner.view.cpu_s() - used < 0.05 * (time.monotonic() - since)
