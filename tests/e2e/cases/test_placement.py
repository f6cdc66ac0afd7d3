"""Where values go, and what moving them costs (PF-05, PF-02, PF-04)."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import case_jobs
import pytest
from mooncake.store import (
    MooncakeDistributedStore,
    MooncakeHostMemAllocator,
    ReplicateConfig,
)
from support import LONG, MIB, rate_beside, value_of

OWNER = {"global_segment_size": 16 * MIB, "local_buffer_size": MIB, "routed_writes": True}
ROUTER = {**OWNER, "global_segment_size": 0, "labels": {"storage": "false"}}


def metric(store: Any, name: str, *labels: str) -> float:
    """The sum of the rows that have these labels, such as ``direction="read"``."""
    rows = re.findall(rf"^mooncake_store_{name}({{.*}})? (\S+)$", store.metrics_text(), re.M)
    return sum(float(value) for found, value in rows if all(label in found for label in labels))


def owners_of(store: Any, key: str) -> list[str]:
    rows = store.query_route(key)["replicas"]
    return sorted(row["owner"].rpartition(":")[0] for row in rows)


def put_on(store: Any, owners: list[str], key: str, size: int = 1000) -> int:
    config = ReplicateConfig(preferred_storage_owners=owners, prefer_local=False)
    return int(store.put(key, value_of(key, 0, size), config))


def test_copies_lie_on_different_hosts_while_there_are_any(
    redis: Any, node: Callable[..., Any]
) -> None:
    """The label ``host`` says what fails together."""
    for host in ("x", "y"):
        for number in range(2):
            node(redis.url, stable_id=f"{host}{number}", labels={"host": host}, **OWNER)
    client = node(redis.url, stable_id="client", **ROUTER)
    two = ReplicateConfig(replica_num=2)
    for n in range(40):
        assert client.put(f"k{n}", value_of(f"k{n}"), two) == 0
        assert [owner[0] for owner in owners_of(client, f"k{n}")] == ["x", "y"]
    # One owner of a host is full of what cannot go: its neighbour takes its place.
    pins = ReplicateConfig(preferred_storage_owners=["x0"], prefer_local=False, with_soft_pin=True)
    assert [client.put(f"pin {n}", bytes(MIB), pins) for n in range(15)] == [0] * 15
    for n in range(40):
        assert client.put(f"l{n}", value_of(f"l{n}"), two) == 0
        assert [owner[0] for owner in owners_of(client, f"l{n}")] == ["x", "y"]


def test_a_preference_is_kept_or_its_loss_is_counted(redis: Any, node: Callable[..., Any]) -> None:
    for name in ("a", "b"):
        node(redis.url, stable_id=name, **OWNER)
    client = node(redis.url, stable_id="client", **ROUTER)
    for name in ("a", "b"):
        for n in range(10):
            assert put_on(client, [name], f"{name} {n}") == 0
            assert owners_of(client, f"{name} {n}") == [name]
    assert metric(client, "preferred_segment_skip_total") == 0
    assert put_on(client, ["nobody", "b"], "k") == 0
    assert owners_of(client, "k") == ["b"]
    assert metric(client, "preferred_segment_skip_total", 'reason="unavailable"') == 1
    assert put_on(client, ["a"], "too big for a", 20 * MIB) == -1
    node(redis.url, stable_id="large", **{**OWNER, "global_segment_size": 64 * MIB})
    assert put_on(client, ["a"], "too big for a", 20 * MIB) == 0
    assert owners_of(client, "too big for a") == ["large"]
    assert metric(client, "preferred_segment_skip_total", 'reason="no_copy"') == 1


def test_a_local_copy_is_read_without_the_network(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., MooncakeDistributedStore]
) -> None:
    store = open_store(redis.url, stable_id="here", **OWNER)
    other = node(redis.url, stable_id="there", **OWNER)
    keys = [f"k{n}" for n in range(50)]
    size = 100_000
    local = ReplicateConfig(prefer_local=True)
    for key in keys:
        assert store.put(key, value_of(key, 0, size), local) == 0
        assert owners_of(store, key) == ["here"]
    before = metric(store, "transport_bytes_total")
    for key in keys:
        assert store.get(key) == value_of(key, 0, size)
    assert store.batch_get(keys) == [value_of(key, 0, size) for key in keys]
    assert metric(store, "transport_bytes_total") - before == 0
    # With a copy on both, each reads its own.
    both = ReplicateConfig(replica_num=2)
    for key in keys:
        assert other.put(key, value_of(key, 1, size), both) == 0
        assert owners_of(store, key) == ["here", "there"]
    before = metric(store, "transport_bytes_total")
    assert store.batch_get(keys) == [value_of(key, 1, size) for key in keys]
    assert metric(store, "transport_bytes_total") - before == 0


def test_a_pool_is_not_left(redis: Any, node: Callable[..., Any]) -> None:
    """Owners with another label ``pool`` get nothing, also when their own pool is full."""
    for name in ("p1", "p2", "q1"):
        node(redis.url, stable_id=name, labels={"pool": name[0]}, **OWNER)
    client = node(redis.url, **{**ROUTER, "labels": {"storage": "false", "pool": "p"}})
    for n in range(100):
        assert client.put(f"k{n}", bytes(500_000)) == 0  # More than the pool holds.
        assert owners_of(client, f"k{n}")[0][0] == "p"


# --- What other threads notice ------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["setup", "register_buffer", "batch_get", "batch_is_exist", "remove_all", "close"]
)
def test_long_calls_leave_the_interpreter_to_others(
    redis: Any,
    node: Callable[..., Any],
    settings: Callable[..., Any],
    name: str,
) -> None:
    """PF-02."""
    if name in ("batch_get", "batch_is_exist", "remove_all"):
        node(redis.url, **{**OWNER, "global_segment_size": 256 * MIB})
    store = MooncakeDistributedStore()
    wanted = settings(redis.url, **(ROUTER if name != "setup" else OWNER))
    size = (4 << 30) if LONG else 512 * MIB
    if name == "setup":
        wanted["global_segment_size"] = size
    else:
        assert store.setup(wanted) == 0
    address = MooncakeHostMemAllocator().alloc(size) if name == "register_buffer" else 0
    keys = [f"k{n}" for n in range(20_000)]
    if name in ("batch_get", "batch_is_exist", "remove_all"):
        (place,) = case_jobs.filled_buffer(store, [bytes(4000)])
        assert set(store.batch_put_from(keys, [place] * 20_000, [4000] * 20_000)) == {0}
    calls: dict[str, Callable[[], Any]] = {
        "setup": lambda: store.setup(wanted),
        "register_buffer": lambda: store.register_buffer(address, size),
        "batch_get": lambda: store.batch_get(keys),
        "batch_is_exist": lambda: [store.batch_is_exist(keys) for _ in range(20)],
        "remove_all": lambda: store.remove_all(),
        "close": lambda: store.close(),
    }
    idle = rate_beside(lambda: threading.Event().wait(0.1))
    beside = rate_beside(calls[name])
    store.close()
    # Two cores for everybody: the long form is for a quiet machine.
    assert beside > idle * (0.8 if LONG and name in ("setup", "register_buffer") else 0.05)


def test_a_batch_is_served_in_few_round_trips(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., MooncakeDistributedStore]
) -> None:
    """PF-04. Counted in frames, as times differ; the times themselves in the long form."""
    node(redis.url, **{**OWNER, "global_segment_size": 64 * MIB})
    store = open_store(redis.url, **ROUTER)
    count, size = 1000, 16 * 1024
    (place,) = case_jobs.filled_buffer(store, [bytes(size * count)])
    keys = [f"k{n}" for n in range(count)]
    places = [place + n * size for n in range(count)]

    def calls() -> float:
        return metric(store, "transport_operation_total")

    before, start = calls(), time.monotonic()
    assert store.batch_put_from(keys, places, [size] * count) == [0] * count
    assert store.batch_get_into(keys, places, [size] * count) == [size] * count
    batch_s = time.monotonic() - start
    assert calls() - before <= 4
    start = time.monotonic()
    for key, at in zip(keys, places):
        assert store.batch_put_from([key + "/"], [at], [size]) == [0]
        assert store.get_into(key + "/", at, size) == size
    loop_s = time.monotonic() - start
    many = [f"absent {n}" for n in range(10_000)]
    start = time.monotonic()
    assert store.batch_is_exist(many) == [0] * 10_000
    if LONG:
        assert time.monotonic() - start < 0.05
        assert loop_s > 3 * batch_s
