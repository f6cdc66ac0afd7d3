"""Quotas of tenants (ME-07): what is over one is refused and counted; nobody loses anything."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import scrape
from mooncake.store import ReplicateConfig
from support import MIB, at_most, eventually, value_of

OWNER = {"global_segment_size": 32 * MIB, "local_buffer_size": MIB, "routed_writes": True}
SIZE = 64 * 1024
QUOTA = 20 * SIZE


def in_store(store: Any, keys: list[str], tenant: str) -> list[str]:
    found = store.batch_is_exist(keys, tenant=tenant)
    return [key for key, one in zip(keys, found) if one == 1]


def counted(nodes: list[Any], name: str, **labels: str) -> float:
    return sum(scrape.value(scrape.parse(node.metrics_text()), name, **labels) for node in nodes)


def reservations(nodes: list[Any], result: str) -> float:
    return counted(nodes, "tenant_quota_reservation_total", result=result)


def test_a_tenant_over_its_quota_is_refused(
    metadata_url: str, open_store: Callable[..., Any], node: Callable[..., Any]
) -> None:
    """ME-07, with every way to put, on every metadata service."""
    one = open_store(metadata_url, stable_id="one", **OWNER)
    two = node(metadata_url, stable_id="two", **OWNER)
    nodes = [one, two]
    for result in ("ok", "conflict", "error"):
        for each in nodes:  # The series is there before anything was counted.
            assert f'tenant_quota_reservation_total{{result="{result}"' in each.metrics_text()
        assert reservations(nodes, result) == 0
    others = [f"b{i}" for i in range(100)]
    for key in others:
        assert one.put(key, value_of(key, size=SIZE), tenant="b") == 0

    version = one.set_tenant_policy("a", max_bytes=QUOTA)
    assert two.get_tenant_policy("a")["quota"]["max_bytes"] == QUOTA
    keys = [f"a{i}" for i in range(40)]
    codes = [
        (one, two)[i % 2].put(key, value_of(key, size=SIZE), tenant="a")
        for i, key in enumerate(keys)
    ]
    assert sorted(codes) == [-1] * 20 + [0] * 20, "the call of one value tells no code"
    stored = [key for key, code in zip(keys, codes) if code == 0]
    assert in_store(two, keys, "a") == stored
    assert reservations(nodes, "ok") == 20 and reservations(nodes, "conflict") == 20
    assert counted(nodes, "tenant_quota_finalize_total", result="ok") == 20
    assert counted(nodes, "soft_failure_total", operation="put", reason="over_quota") == 20
    assert counted(nodes, "eviction_total") == 0, "nobody has lost anything"
    assert in_store(one, others, "b") == others

    first, second = stored[0], stored[-1]
    assert one.put(first, value_of(first, 1, SIZE), tenant="a") == 0, "it does not grow"
    assert one.put(first, value_of(first, 2, SIZE + 1), tenant="a") == -1
    assert two.get(first, tenant="a") == value_of(first, 1, SIZE)
    assert two.remove(second, tenant="a") == 0
    assert two.put("room again", b"x" * SIZE, tenant="a") == 0
    assert one.put("no more", b"x", tenant="a") == -1
    assert one.put("no more", b"x" * SIZE, tenant="b") == 0, "tenant b has none"

    assert one.delete_tenant_policy("a", expected_version=version) is True
    assert two.put("no more", b"x" * SIZE, tenant="a") == 0


def test_items_of_a_batch_have_the_code(redis: Any, open_store: Callable[..., Any]) -> None:
    """ME-07: -5 for each item over the quota, and only for those."""
    store = open_store(redis.url, stable_id="one", **OWNER)
    buffer = bytearray(SIZE * 8)
    pointer = buffer_address(buffer)
    assert store.register_buffer(pointer, len(buffer)) == 0
    store.set_tenant_policy("a", max_bytes=5 * SIZE)
    keys = [f"k{i}" for i in range(8)]
    pointers = [pointer + i * SIZE for i in range(8)]
    for policy in (None, ReplicateConfig()):
        codes = store.batch_put_from(keys, pointers, [SIZE] * 8, policy, tenant="a")
        assert codes == [0] * 5 + [-5] * 3, "the same ones the second time: they are there already"
    assert in_store(store, keys, "a") == keys[:5]
    assert store.put("k9", b"x", ReplicateConfig(), tenant="a") == -1
    assert counted([store], "soft_failure_total", reason="over_quota") == 7
    assert store.unregister_buffer(pointer) == 0


def test_replicas_count(redis: Any, node: Callable[..., Any]) -> None:
    """A value of two copies takes twice its size, also where the writer stores nothing."""
    owners = [node(redis.url, stable_id=name, **OWNER) for name in ("a", "b", "c")]
    writer = node(
        redis.url,
        global_segment_size=0,
        local_buffer_size=MIB,
        labels={"storage": "false"},
        routed_writes=True,
    )
    writer.set_tenant_policy("a", max_bytes=10 * SIZE)
    two = ReplicateConfig()
    two.replica_num, two.prefer_local = 2, False
    codes = [writer.put(f"k{i}", value_of("v", i, SIZE), two, tenant="a") for i in range(8)]
    assert codes == [0] * 5 + [-1] * 3
    assert sum(int(row["used_bytes"]) for o in owners for row in o.list_segments()) == 10 * SIZE
    # A writer that dies gives back what it had reserved; its values stay and count.
    writer.kill()
    assert owners[0].put("late", b"x", tenant="a") == -1
    assert owners[0].remove("k0", tenant="a") == 0
    assert owners[1].put("late", value_of("late", 0, 2 * SIZE), tenant="a") == 0


def test_the_tenants_oldest_make_room(redis: Any, node: Callable[..., Any]) -> None:
    """With evict_within_tenant no put is refused, and nobody else loses anything."""
    one = node(redis.url, stable_id="one", **OWNER)
    two = node(redis.url, stable_id="two", **OWNER)
    nodes = [one, two]
    others = [f"b{i}" for i in range(50)]
    for key in others:
        assert one.put(key, value_of(key, size=SIZE), tenant="b") == 0
    one.set_tenant_policy("a", max_bytes=QUOTA, evict_within_tenant=True)
    assert two.get_tenant_policy("a")["quota"]["evict_within_tenant"] is True

    def used() -> int:
        return sum(int(row["used_bytes"]) for n in nodes for row in n.list_segments())

    elsewhere = len(others) * SIZE
    keys = [f"a{i}" for i in range(60)]
    for i, key in enumerate(keys):
        assert nodes[i % 2].put(key, value_of(key, size=SIZE), tenant="a") == 0
        assert len(in_store(two, keys, "a")) <= 20
    stored = in_store(one, keys, "a")
    # The clocks that tell the age count milliseconds.
    assert len(stored) == 20 and set(keys[-15:]) <= set(stored)
    for key in stored:
        assert two.get(key, tenant="a") == value_of(key, size=SIZE)
    assert two.get(keys[0], tenant="a") == b""
    eventually(lambda: used() <= elsewhere + QUOTA)
    assert counted(nodes, "tenant_local_eviction_total", result="ok") == 40
    assert counted(nodes, "eviction_total", result="ok") == 40
    assert reservations(nodes, "conflict") == 0

    too_large = value_of("large", size=QUOTA + 1)
    assert one.put("large", too_large, tenant="a") == -1
    assert in_store(two, keys, "a") == stored
    assert two.put("large", too_large[1:], tenant="a") == 0, "all that there is makes room"
    assert in_store(one, keys, "a") == []
    assert in_store(two, others, "b") == others
    for key in others:
        assert two.get(key, tenant="b") == value_of(key, size=SIZE)


def test_policies_are_read_and_written(redis: Any, open_store: Callable[..., Any]) -> None:
    store = open_store(redis.url, stable_id="one", **OWNER)
    assert store.get_tenant_policy("a") is None
    assert store.delete_tenant_policy("a") is False
    version = store.set_tenant_policy("a", max_objects=2, expected_version=0)
    policy = store.get_tenant_policy("a")
    assert policy["version"] == version and policy["updated_by"] == "one:1"
    assert policy["quota"] == {"max_bytes": None, "max_objects": 2, "evict_within_tenant": False}
    with pytest.raises(RuntimeError, match="version"):
        store.set_tenant_policy("a", max_objects=3, expected_version=version + 1)
    with pytest.raises(ValueError, match="evict_within_tenant"):
        store.set_tenant_policy("a", evict_within_tenant=True)
    with pytest.raises(ValueError, match="tenant"):
        store.set_tenant_policy("", max_objects=3)
    with pytest.raises(TypeError, match="max_bytes"):
        store.set_tenant_policy("a", max_bytes="1")
    assert [store.put(f"k{i}", b"v", tenant="a") for i in range(3)] == [0, 0, -1]
    assert store.delete_tenant_policy("a") is True
    assert store.get_tenant_policy("a") is None
    assert store.put("k2", b"v", tenant="a") == 0


def test_a_quota_outlives_an_outage_of_the_metadata(
    redis: Any, open_store: Callable[..., Any]
) -> None:
    """P6: puts go on, refused or not; a service that comes back empty gets the policy back."""
    store = open_store(redis.url, stable_id="one", lease_ttl_ms=3_000, **OWNER)
    store.set_tenant_policy("a", max_objects=2)
    assert store.put("k0", b"v", tenant="a") == 0
    redis.stop()
    with at_most(5):
        assert store.put("k1", b"v", tenant="a") == 0
        assert store.put("k2", b"v", tenant="a") == -1
    redis.start()  # Empty.
    eventually(lambda: policy_of(store, "a") is not None)
    assert policy_of(store, "a")["quota"]["max_objects"] == 2
    # A node that takes slots over counts their objects right after, so one put may come between.
    keys = (f"after {i}" for i in range(1_000))
    eventually(lambda: store.put(next(keys), b"v", tenant="a") == -1)
    assert store.put("k3", b"v", tenant="a") == -1


def policy_of(store: Any, tenant: str) -> Any:
    try:
        return store.get_tenant_policy(tenant)
    except RuntimeError:  # The service does not answer yet.
        return None


def buffer_address(buffer: bytearray) -> int:
    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))
