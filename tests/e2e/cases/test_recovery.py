"""Restarts, drains and losses: what comes back, and what is cleanly gone (cases LC, MD)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import case_jobs
import pytest
from mooncake.store import ReplicateConfig
from support import LONG, MIB, OWNS, ROUTES, at_most, eventually, quick_node, settle, value_of

LEASE_S = 2.0
SLACK_S = 5.0
FAST = quick_node(LEASE_S)
OWNER = {**FAST, **OWNS}
ROUTER = {**FAST, **ROUTES}


def memory(*names: str) -> int:
    """Bytes of these kinds together, as the kernel counts them for the whole machine."""
    rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    found = {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows}
    return sum(found[name] for name in names)


def stalls_in_the_kernel_log() -> int:
    """Lines of a processor or a task that did not go on; none where the log is not readable."""
    try:
        log = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    stalled = re.compile("soft lockup|hard LOCKUP|blocked for more than|detected stalls", re.I)
    return len(stalled.findall(log))


# --- Killed, restarted --------------------------------------------------------------------------


def test_a_killed_owner_gives_its_memory_back(redis: Any, node: Callable[..., Any]) -> None:
    """LC-04. All of it, in seconds, nothing in /dev/shm, and the name can start again."""
    size = memory("MemAvailable") // 2 if LONG else 512 * MIB
    big = {**FAST, "global_segment_size": size, "stable_id": "big"}
    shared_before, stalls = set(os.listdir("/dev/shm")), stalls_in_the_kernel_log()
    owner = node(redis.url, **big)
    value = 8 * MIB
    keys = [f"k{n}" for n in range(size * 8 // 10 // value)]
    assert owner.put_all(keys, 0, value) == [0] * len(keys)
    assert owner.view.rss() > size * 7 // 10
    full, in_use = memory("MemAvailable"), memory("AnonPages", "Shmem")
    with at_most(10):
        owner.kill()
    eventually(lambda: memory("AnonPages", "Shmem") < in_use - size * 4 // 10, 10)
    if LONG:  # Of half of the machine's, other programs take no such share meanwhile.
        eventually(lambda: memory("MemAvailable") > full + size * 4 // 10, 10)
    assert set(os.listdir("/dev/shm")) <= shared_before
    assert stalls_in_the_kernel_log() <= stalls, "the machine stood still"
    with at_most(10):
        again = node(redis.url, **big)
    assert again.put_all(keys[:3]) == [0] * 3
    assert again.read_all(keys[:3])["right"] == keys[:3]
    assert again.batch_is_exist(keys[3:]) == [0] * (len(keys) - 3)


def test_an_unfinished_write_hinders_nobody(redis: Any, node: Callable[..., Any]) -> None:
    """Rule: it is invisible, blocks nobody for longer than a lease, and gives its space back."""
    owner = node(redis.url, stable_id="owner", **{**FAST, "global_segment_size": 512 * MIB})
    other = node(redis.url, stable_id="other", **ROUTER)
    size = 192 * MIB
    unfinished = 0
    for turn in range(10):
        key = f"k{turn}"
        writer = node(redis.url, stable_id=f"w{turn}", **ROUTER)
        writer.send("run", case_jobs.put_zeros, key, size)
        eventually(lambda: owner.list_segments()[0]["used_bytes"] > 0)
        writer.stop()
        unfinished += other.batch_is_exist([key]) == [0]
        with at_most(LEASE_S + SLACK_S):  # Neither a read nor a write of the key waits for it.
            assert other.get_size(key) in (-1, size)
            assert other.put_all([key], turn) == [0]
            assert other.read_all([key], turn)["right"] == [key]
            assert owner.read_all([key], turn)["right"] == [key]
        if turn % 2:
            writer.kill()
        # Also of one that only stands still.
        eventually(lambda: owner.list_segments()[0]["used_bytes"] < MIB, 2 * LEASE_S + SLACK_S)
        assert other.read_all([key], turn)["right"] == [key]
        assert other.remove(key) == 0
        eventually(lambda: owner.list_segments()[0]["used_bytes"] == 0)
        writer.kill()
        if unfinished == (10 if LONG else 2):
            break
    assert unfinished > 0, "each had been written before it stood still"


def test_a_rolling_restart_costs_no_key(
    redis: Any, spawn: Callable[..., Any], node: Callable[..., Any], settings: Callable[..., Any]
) -> None:
    """MD-09. The service first, empty; then each of four nodes in turn, drained first."""
    names = ("a", "b", "c", "d")
    nodes = {name: node(redis.url, stable_id=name, **OWNER) for name in names}
    reader = node(redis.url, stable_id="reader", **ROUTER)
    keys = {name: [f"on {name} {n}" for n in range(50)] for name in names}
    for name in names:
        assert case_jobs.put_at(reader, name, keys[name], 1000) == 0
    every_key = [key for own in keys.values() for key in own]

    def check() -> None:
        for store in (*nodes.values(), reader):
            found = store.read_all(every_key)
            assert found["right"] == every_key, found

    check()
    redis.stop()
    redis.start()
    check()
    eventually(lambda: redis.keys() > 0)
    settle(LEASE_S)
    check()
    for name in names:
        leaver = nodes.pop(name)
        assert leaver.evacuate_owned_replicas() >= 50
        check()
        leaver.close()
        leaver.end()
        check()
        nodes[name] = node(redis.url, stable_id=name, **OWNER)
        check()
    assert reader.put_all(every_key, 1) == [0] * len(every_key)
    assert nodes["a"].read_all(every_key, 1)["right"] == every_key


def test_keys_of_a_dead_owner_never_come_back_by_themselves(
    redis: Any, node: Callable[..., Any]
) -> None:
    """MD-10. Gone for everybody within a lease, and gone for good, until they are put again."""
    owner = node(redis.url, stable_id="owner", **OWNER)
    others = [node(redis.url, stable_id=f"o{n}", **OWNER) for n in range(2)]
    clients = [*others, node(redis.url, stable_id="client", **ROUTER)]
    keys = [f"k{n}" for n in range(100)]
    assert case_jobs.put_at(clients[2], "owner", keys, 1000) == 0
    for client in clients:
        assert client.batch_is_exist(keys) == [1] * 100
    owner.kill()
    killed, gone = time.monotonic(), set()
    while time.monotonic() < killed + (30 if LONG else 2) * LEASE_S:
        for number, client in enumerate(clients):
            answers = client.batch_is_exist(keys)
            for key, answer in zip(keys, answers):
                if answer == 0:
                    gone.add((number, key))
                else:
                    assert answer < 0 or (number, key) not in gone, "it had been gone"
                    assert time.monotonic() < killed + LEASE_S + SLACK_S
        settle(0.1)
    assert len(gone) == len(clients) * len(keys)
    for client in clients:
        assert client.batch_get(keys) == [b""] * 100
    assert clients[0].put_all(keys, 1) == [0] * 100
    for client in clients:
        assert client.read_all(keys, 1)["right"] == keys


def test_a_process_that_holds_its_interpreter_stays_alive_to_others(
    redis: Any, node: Callable[..., Any]
) -> None:
    """Rule: proving that one is alive depends on nothing a caller can do."""
    busy = node(redis.url, stable_id="busy", **OWNER)
    other = node(redis.url, stable_id="other", **OWNER)
    keys = [f"k{n}" for n in range(50)]
    assert case_jobs.put_at(other, "busy", keys, 1000) == 0
    busy.send("run", case_jobs.hold_the_interpreter, 2.5 * LEASE_S)
    end = time.monotonic() + 2 * LEASE_S
    while time.monotonic() < end:
        assert other.read_all(keys)["right"] == keys
        assert other.batch_is_exist(keys) == [1] * 50
        owners = {row["owner"] for row in other.list_segments(all=True)}
        assert owners == {"busy:1", "other:1"}
    busy.receive()
    assert busy.read_all(keys)["right"] == keys
    assert busy.list_segments()[0]["owner"] == "busy:1"


def test_an_old_incarnation_changes_nothing(redis: Any, node: Callable[..., Any]) -> None:
    """Rule: everything that names an owner carries its incarnation; a stale one is refused."""
    old = node(redis.url, stable_id="twin", **OWNER)
    other = node(redis.url, stable_id="other", **OWNER)
    keys = [f"k{n}" for n in range(30)]
    assert case_jobs.put_at(other, "twin", keys, 1000) == 0
    old.stop()
    new = node(redis.url, stable_id="twin", **OWNER)  # Waits for the silent one's lease.
    assert new.list_segments()[0]["owner"] == "twin:2"
    eventually(lambda: other.batch_is_exist(keys) == [0] * 30, LEASE_S + SLACK_S)
    assert case_jobs.put_at(other, "twin:2", keys, 1000, 1) == 0
    old.cont()
    for _ in range(20):
        assert other.read_all(keys, 1)["right"] == keys
        assert new.read_all(keys, 1)["right"] == keys
        found = old.read_all(keys, 1)
        assert found["wrong"] == [], "what it held before is nobody's value any more"
        assert set(old.put_all(["from the old one"])) <= {0, -1}
    eventually(lambda: old.health_check() == 1, LEASE_S)  # It is no member any more, and says so.
    assert new.health_check() == 0
    owners = {row["owner"] for row in other.list_segments(all=True)}
    assert owners == {"twin:2", "other:1"}
    with at_most(12):
        old.close()
    assert other.read_all(keys, 1)["right"] == keys
    assert {row["owner"] for row in other.list_segments(all=True)} == {"twin:2", "other:1"}


# --- Draining -----------------------------------------------------------------------------------


def test_a_draining_node_takes_nothing_and_says_what_is_left(
    redis: Any, node: Callable[..., Any]
) -> None:
    """Rule: draining is observable, refuses new copies, never reports completion too early."""
    leaver = node(redis.url, stable_id="leaver", **OWNER)
    small = node(redis.url, stable_id="small", **{**OWNER, "global_segment_size": 4 * MIB})
    client = node(redis.url, stable_id="client", **ROUTER)
    keys = [f"k{n}" for n in range(60)]
    size = 256 * 1024  # Of 15 MiB only 4 have room elsewhere.
    assert case_jobs.put_at(client, "leaver", keys, size) == 0
    with pytest.raises(RuntimeError) as refused:
        leaver.evacuate_owned_replicas()
    assert any(word.isdigit() and int(word) > 0 for word in str(refused.value).split())
    used = leaver.list_segments()[0]["used_bytes"]
    assert used > 8 * MIB
    assert client.read_all(keys, 0, size)["right"] == keys, "nothing is lost meanwhile"
    status = re.findall(r"runtime_status{.*state=\"draining\".*} (\d)", leaver.metrics_text())
    assert status == ["1"]
    assert client.run(case_jobs.put_at, "leaver", ["new"], 1000) == 0
    assert client.query_route("new")["replicas"][0]["owner"] == "small:1"
    assert leaver.put("own", b"value", ReplicateConfig(prefer_local=True)) == 0
    assert client.query_route("own")["replicas"][0]["owner"] == "small:1"
    assert leaver.list_segments()[0]["used_bytes"] <= used
    node(redis.url, stable_id="large", **OWNER)
    eventually(lambda: len(client.list_segments(all=True)) == 3)
    assert leaver.evacuate_owned_replicas() > 0
    eventually(lambda: leaver.list_segments()[0]["used_bytes"] == 0)
    leaver.close()
    assert client.read_all(keys, 0, size)["right"] == keys
    assert small.list_segments()[0]["used_bytes"] <= 4 * MIB


def test_a_draining_segment_is_retired_only_when_empty(
    redis: Any, node: Callable[..., Any]
) -> None:
    owner = node(redis.url, stable_id="owner", **{**OWNER, "global_segment_size": 8 * MIB})
    keys = [f"k{n}" for n in range(40)]
    size = 150 * 1024  # 6 MiB.
    assert owner.put_all(keys, 0, size) == [0] * 40
    first = owner.list_segments()[0]["segment_name"]
    with pytest.raises(RuntimeError):
        owner.drain_segment(first)  # The only one.
    extra = owner.expand_local_memory(2 * MIB)["segment_name"]
    assert owner.drain_segment(first) == 0  # There is no room for all.
    assert owner.retire_segment(first) is False
    assert owner.read_all(keys, 0, size)["right"] == keys
    states = {row["segment_name"]: row for row in owner.list_segments()}
    assert str(states[first]["state"]).lower() == "draining" and states[first]["used_bytes"] > 0
    owner.expand_local_memory(16 * MIB)
    assert owner.drain_segment(first) == 0
    eventually(lambda: owner.retire_segment(first) is True)
    assert owner.read_all(keys, 0, size)["right"] == keys
    assert extra in {row["segment_name"] for row in owner.list_segments()}


@pytest.mark.parametrize("what", ["node", "segment"])
def test_draining_loses_no_value_of_any_namespace(
    redis: Any, node: Callable[..., Any], what: str
) -> None:
    """Rule: what is moved is of many tenants and object sets, and all of it arrives."""
    leaver = node(redis.url, stable_id="leaver", **OWNER)
    part = {**ROUTER, "object_set": "part"}
    clients = [node(redis.url, stable_id="whole", **ROUTER), node(redis.url, stable_id="s", **part)]
    places = [(client, tenant) for client in clients for tenant in ("A", "B", "C")]
    keys = [f"k{n}" for n in range(20)]
    values = {}
    for key in keys:  # By turns: neighbours in memory are of different namespaces.
        for number, (client, tenant) in enumerate(places):
            values[number, key] = value_of(key, number)
            assert client.put(key, values[number, key], tenant=tenant) == 0
    node(redis.url, stable_id="other", **OWNER)
    if what == "node":
        assert leaver.evacuate_owned_replicas() == len(values)
    else:
        first = leaver.list_segments()[0]["segment_name"]
        leaver.expand_local_memory(8 * MIB)
        assert leaver.drain_segment(first) == 0
        eventually(lambda: leaver.retire_segment(first) is True)

    def found() -> dict[tuple[int, str], bytes]:
        return {
            (number, key): client.get(key, tenant=tenant)
            for number, (client, tenant) in enumerate(places)
            for key in keys
        }

    assert found() == values
    if what == "node":
        leaver.close()
        assert found() == values


# --- What is held beyond close() ---

HELD = """
    import ctypes, gc, itertools, re, sys
    from mooncake.store import BufferPool, MooncakeDistributedStore, ReplicateConfig
    size = 300_000
    value = bytes(range(250)) * (size // 250)
    at_origin = ReplicateConfig(preferred_storage_owners=["origin"], prefer_local=False)

    def hold():
        store = MooncakeDistributedStore()
        store.setup({"local_hostname": "127.0.0.1", "metadata_url": sys.argv[1],
                     "global_segment_size": "8MB", "local_buffer_size": "1MB",
                     "local_hot_cache_size": "4MB", "local_hot_block_size": "1MB",
                     "routed_writes": True})
        assert store.put("own", value, ReplicateConfig(prefer_local=True)) == 0
        assert store.put("remote", value, at_origin) == 0
        assert store.get("remote") == value
        pool = BufferPool(store)
        lease = pool.acquire(size)
        ctypes.memmove(lease.ptr, value, size)
        views = {"lease": lease.buffer, "hot": store.get_buffer("remote"),
                 "own": store.get_buffer("own")}
        assert re.search('hot_cache_total{.*"hit".*} 1', store.metrics_text())
        return store, pool, lease, views

    for order in itertools.permutations(["lease", "hot", "own", "store"]):
        store, pool, lease, views = hold()
        if order.index("store") % 2:
            store.put("own", bytes(size))  # The place may be used again.
            store.remove("remote")
        store.close()
        for name in order:
            for held in views:
                assert bytes(views[held][:size]) == value, held
            if "lease" in views:
                views["lease"][0] = value[0]
            if name == "store":
                del store
            else:
                del views[name]
            gc.collect()
        try:
            pool.close()
        except RuntimeError as error:
            assert "1 active leases (300000 bytes)" in str(error), error
        else:
            raise AssertionError("a pool closed under a live lease")
        lease.release()
        pool.close()
"""


def test_what_is_held_stays_whole_after_close(redis: Any, node: Callable[..., Any]) -> None:
    """LC-02. Leases, views and results of the hot cache, let go in every order."""
    node(redis.url, stable_id="origin", **OWNER)
    command = [sys.executable, "-c", textwrap.dedent(HELD), redis.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


# --- Stopping, starting -------------------------------------------------------------------------

STOPPED = """
    import sys
    from mooncake.store import MooncakeDistributedStore
    store = MooncakeDistributedStore()
    store.setup({"local_hostname": "127.0.0.1", "metadata_url": sys.argv[1],
                 "global_segment_size": "16MB", "local_buffer_size": "1MB"})
    store.put("k", b"value")
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("fault", ["none", "metadata gone", "metadata hung", "peer hung"])
@pytest.mark.parametrize("way", ["SIGTERM", "SIGINT", "exit"])
def test_every_way_to_stop_is_bounded(
    redis: Any, node: Callable[..., Any], fault: str, way: str
) -> None:
    """Rule: every way of stopping is bounded, whatever else is broken."""
    if not LONG and (fault, way) not in {
        ("none", "SIGTERM"),
        ("metadata gone", "SIGINT"),
        ("none", "exit"),
    }:
        pytest.skip("the other combinations run with MC_E2E_LONG=1")
    peer = node(redis.url, **OWNER)
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(STOPPED), redis.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert program.stdin is not None and program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    if fault == "metadata gone":
        redis.stop()
    elif fault == "metadata hung":
        redis.signal(signal.SIGSTOP)
    elif fault == "peer hung":
        peer.stop()
    with at_most(12):
        if way == "exit":
            program.stdin.write("go\n")
            program.stdin.flush()
        else:
            program.send_signal(getattr(signal, way))
        program.wait(15)
    assert program.returncode == 0 if way == "exit" else program.returncode != 0
    program.stdin.close()
    program.stdout.close()
    if fault == "metadata hung":
        redis.signal(signal.SIGCONT)


def test_eight_that_start_before_their_service(
    redis: Any, spawn: Callable[..., Any], settings: Callable[..., Any]
) -> None:
    """MD-08. Each does a put and a get right after its setup; nobody is asked too early."""
    redis.stop()
    clients = [spawn() for _ in range(8)]
    for number, client in enumerate(clients):
        wanted = settings(redis.url, stable_id=f"c{number}", startup_timeout_ms=40_000, **OWNER)
        client.send("run", case_jobs.set_up_and_use, wanted, f"first of {number}")
    settle(20 if LONG else 1.5)
    redis.start()
    for client in clients:
        report = client.receive()
        assert report["put"] == 0 and report["right"]
        assert report["ticks"] > report["seconds"] * 5, "the interpreter was free all the while"
    keys = [f"first of {number}" for number in range(8)]
    for client in clients:
        assert client.read_all(keys)["right"] == keys
