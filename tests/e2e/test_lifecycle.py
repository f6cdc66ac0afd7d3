"""Joining, leaving, being replaced, and what a failed setup leaves behind."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import pytest
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from support import MIB, ProcessView, at_most, value_of

SMALL = {"global_segment_size": 16 * MIB, "local_buffer_size": MIB}
ROUTER = {"global_segment_size": 0, "labels": {"storage": "false"}, "routed_writes": True}


# --- close() ----------------------------------------------------------------------------------


def test_values_outlive_the_writer_without_storage(redis: Any, node: Callable[..., Any]) -> None:
    second = node(redis.url, **SMALL)
    writer = node(redis.url, **ROUTER)
    keys = [f"k{n}" for n in range(50)]
    assert writer.put_all(keys) == [0] * 50
    writer.close()
    assert second.read_all(keys)["right"] == keys
    newcomer = node(redis.url, **ROUTER)
    assert newcomer.read_all(keys)["right"] == keys


def test_local_values_leave_with_their_node_at_once(redis: Any, node: Callable[..., Any]) -> None:
    first, second, third = (node(redis.url, **SMALL) for _ in range(3))
    keys = [f"k{n}" for n in range(100)]
    local = ReplicateConfig(prefer_local=True)
    assert first.put_batch(keys, [value_of(key) for key in keys], local) == 0
    assert second.put_all(["stays"]) == [0]
    assert third.read_all(keys)["right"] == keys
    with at_most(10):
        first.close()
    for store in (second, third):
        with at_most(5):
            assert store.batch_is_exist(keys) == [0] * 100
            assert store.read_all(keys)["missing"] == keys
            assert [store.get_size(key) for key in keys[:5]] == [-1] * 5
        assert store.read_all(["stays"])["right"] == ["stays"]
    assert second.put_all(keys) == [0] * 100
    assert third.read_all(keys)["right"] == keys


@pytest.mark.parametrize("fault", ["metadata gone", "metadata hung", "peers hung"])
def test_close_is_bounded_whatever_is_broken(
    service: Any, node: Callable[..., Any], fault: str
) -> None:
    peer, leaver = (node(service.url, **SMALL) for _ in range(2))
    assert leaver.put_all(["a", "b"]) == [0, 0] and peer.put_all(["c"]) == [0]
    if fault == "peers hung":
        peer.stop()
    elif fault == "metadata gone":
        service.stop()
    else:
        service.signal(signal.SIGSTOP)
    with at_most(12 if fault == "peers hung" else 4):
        leaver.close()
    assert leaver.health_check() == 1
    if fault == "metadata hung":
        service.signal(signal.SIGCONT)


# --- One name after the other -----------------------------------------------------------------


def test_a_restart_after_a_crash_takes_the_name_over_at_once(
    redis: Any, node: Callable[..., Any]
) -> None:
    other = node(redis.url, stable_id="other", **SMALL)
    for epoch in (1, 2, 3):
        with at_most(10):  # Its lease of 30 s has not lapsed.
            one = node(redis.url, stable_id="one", **SMALL)
        assert one.list_segments()[0]["owner"] == f"one:{epoch}"
        assert other.batch_is_exist(["k"]) == [0], "the former incarnation's"
        assert one.put_all(["k"]) == [0]
        assert other.read_all(["k"])["right"] == ["k"]
        one.kill()
    owners = {row["owner"] for row in other.list_segments(all=True)}
    assert "one:1" not in owners and "one:2" not in owners


def test_a_live_holder_keeps_its_name(
    redis: Any, spawn: Callable[[], Any], node: Callable[..., Any], settings: Callable[..., Any]
) -> None:
    holder = node(redis.url, stable_id="held", **SMALL)
    assert holder.put_all(["k"]) == [0]
    rival = spawn()
    with at_most(10), pytest.raises(RuntimeError) as refused:
        rival.setup(settings(redis.url, stable_id="held", **SMALL))
    for part in ("held:1", holder.get_hostname(), "stable_id"):
        assert part in str(refused.value)
    assert rival.setup(settings(redis.url, stable_id="free", **SMALL)) == 0
    assert rival.read_all(["k"])["right"] == ["k"]
    assert holder.put_all(["l"]) == [0]


def test_a_silent_holder_keeps_its_name_for_one_lease(
    redis: Any, spawn: Callable[[], Any], node: Callable[..., Any], settings: Callable[..., Any]
) -> None:
    fast = {**SMALL, "lease_ttl_ms": 3000}
    holder = node(redis.url, stable_id="held", **fast)
    holder.stop()
    rival = spawn()
    with at_most(12):
        assert rival.setup(settings(redis.url, stable_id="held", **fast)) == 0
    assert rival.list_segments()[0]["owner"] == "held:2"
    assert rival.put_all(["k"]) == [0]
    holder.cont()
    assert holder.get("k") in (b"", value_of("k"))
    assert rival.read_all(["k"])["right"] == ["k"]


# --- Failed setups ----------------------------------------------------------------------------


def test_a_hundred_failed_setups_leave_nothing(
    redis: Any, settings: Callable[..., Any], open_store: Callable[..., MooncakeDistributedStore]
) -> None:
    open_store(redis.url, stable_id="holder", **SMALL)
    store, here = MooncakeDistributedStore(), ProcessView(os.getpid())
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        bad: list[tuple[dict[str, Any], str]] = [
            ({"metadata_url": "nonsense://x"}, "metadata_url"),
            ({"transport_rpc_port": port}, f"transport_rpc_port is {port}; allowed.*free"),
            ({"local_hostname": "192.0.2.1"}, 'local_hostname is "192.0.2.1"'),
            ({"global_segment_size": "1000TB"}, "global_segment_size is 1099511627776000"),
            ({"local_buffer_size": "1000TB"}, "local_buffer_size is 1099511627776000"),
            ({"local_hot_cache_size": "1000TB"}, "local_hot_cache_size is 1099511627776000"),
            ({"metadata_url": "redis://127.0.0.1:1/abc"}, "metadata_url.*'abc'"),
            ({"trace_file": "/proc/none/x"}, "trace_file .*'/proc/none/x'"),
            ({"trace_jsonl_file": "/proc/none/x"}, "trace_jsonl_file .*'/proc/none/x'"),
            ({"tenant": "\ud800"}, r"tenant is '\\ud800', which is not valid UTF-8"),
            (
                {"eviction_high_watermark_percent": 10, "eviction_low_watermark_percent": 90},
                "eviction_low_watermark_percent",
            ),
            ({"stable_id": "holder"}, "stable_id 'holder'"),
        ]

        def fail(times: int) -> None:
            for changes, text in bad * times:
                with pytest.raises((ValueError, RuntimeError), match=text):
                    store.setup({**settings(redis.url, **SMALL), **changes})
                assert store.health_check() == 1

        fail(2)  # Whatever is loaded on first use is loaded now.
        gc.collect()
        before = here.descriptors(), here.threads(), here.mappings(), redis.keys()
        memory, shared = here.rss(), os.listdir("/dev/shm")
        fail(20)
        gc.collect()
        after = here.descriptors(), here.threads(), here.mappings(), redis.keys()
        assert after[0] <= before[0] and after[1] <= before[1] and after[3] <= before[3]
        assert after[2] <= before[2] + 3, "mappings"
        assert here.rss() < memory + 8 * MIB
        assert set(os.listdir("/dev/shm")) <= set(shared)
    assert store.setup(settings(redis.url, **SMALL)) == 0
    assert store.put("k", b"v") == 0 and store.get("k") == b"v"
    store.close()


@pytest.mark.parametrize("others", ["other", ""])
@pytest.mark.parametrize("own", ["secret", ""])
def test_a_stranger_to_the_cluster_is_not_set_up(
    redis: Any,
    node: Callable[..., Any],
    settings: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    own: str,
    others: str,
) -> None:
    member = node(redis.url, stable_id="member", cluster_secret=others, **SMALL)
    stranger = MooncakeDistributedStore()
    monkeypatch.setenv("MC_STORE_RS_CLUSTER_SECRET", own)
    if own == others:
        assert stranger.setup(settings(redis.url, **SMALL)) == 0
        stranger.close()
        return
    # "at its holder's address": it cannot replace a member either.
    for changes in ({}, {"stable_id": "member", "startup_timeout_ms": 500}):
        with at_most(10), pytest.raises(RuntimeError, match="cluster_secret") as refused:
            stranger.setup({**settings(redis.url, **SMALL), **changes})
        assert not own or f"'{own}'" not in str(refused.value)
        assert stranger.health_check() == 1
        assert [s["owner"] for s in member.list_segments(all=True)] == ["member:1"]
    assert member.put_all([f"k{n}" for n in range(20)]) == [0] * 20


def test_silent_members_keep_nobody_out(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., MooncakeDistributedStore]
) -> None:
    member = node(redis.url, stable_id="member", cluster_secret="s", lease_ttl_ms=60_000, **SMALL)
    member.stop()
    with at_most(10):
        store = open_store(redis.url, cluster_secret="s", **SMALL)
    assert store.health_check() == 0
    member.cont()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"stable_id": "x" * 5000}, "stable_id is 5000 bytes long, at most"),
        ({"local_segment_name": "x" * 5000}, "local_segment_name is 5000 bytes long, at most"),
        ({"labels": {"k" * 5000: "v"}}, "a name in labels is 5000 bytes long, at most"),
        ({"labels": {f"k{n}": "v" for n in range(2000)}}, "2002 labels"),
    ],
)
def test_what_no_lease_can_hold_fails_at_once(
    sqlite_url: str, settings: Callable[..., Any], changes: dict[str, Any], text: str
) -> None:
    with at_most(10), pytest.raises(ValueError, match=text):
        MooncakeDistributedStore().setup({**settings(sqlite_url, **SMALL), **changes})


def test_setup_waits_for_a_locked_file_as_for_any_service(
    sqlite_url: str, settings: Callable[..., Any]
) -> None:
    # In another process: locks of one process do not exclude its own copies of SQLite.
    code = """
    import sqlite3, sys
    holder = sqlite3.connect(sys.argv[1], isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    print("held", flush=True)
    sys.stdin.readline()
    """
    command = [sys.executable, "-c", textwrap.dedent(code), sqlite_url.removeprefix("sqlite://")]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    store = MooncakeDistributedStore()
    with pytest.raises(RuntimeError, match="stayed locked"):
        store.setup({**settings(sqlite_url, **SMALL), "startup_timeout_ms": 1})
    with ThreadPoolExecutor() as pool:
        setup = pool.submit(store.setup, settings(sqlite_url, **SMALL))
        with pytest.raises(FutureTimeout):  # Longer than one attempt waits.
            setup.result(timeout=5)
        holder.communicate("\n", timeout=30)
        assert setup.result(timeout=30) == 0
    store.close()
