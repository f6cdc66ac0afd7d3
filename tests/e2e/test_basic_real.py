"""The examples of the API page as they are printed, with each kind of metadata service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mooncake.store import BufferPool, MooncakeDistributedStore, ReplicateConfig


def test_basic_example(metadata_url: str) -> None:
    store = MooncakeDistributedStore()
    store.setup(
        "127.0.0.1",
        "P2PHANDSHAKE",
        128 * 1024 * 1024,
        16 * 1024 * 1024,
        "tcp",
        "",
        metadata_url,
        stable_id="py-store-a",
        tenant="default",
        domain="sglang-chat",
        object_set="deepseek-r1__2026-04-19-build-44",
        labels={"pool": "pool-a", "storage": "true"},
        transport_backend="classic_te",
    )

    store.put("hello", b"world")
    assert store.get("hello") == b"world"
    store.close()


def test_routed_writes_example(metadata_url: str, node: Callable[..., Any]) -> None:
    for name in ("store-a", "store-b"):
        node(metadata_url, stable_id=name, labels={"pool": "pool-a"}, routed_writes=True)
    store = MooncakeDistributedStore()
    store.setup(
        "127.0.0.1",
        "P2PHANDSHAKE",
        128 * 1024 * 1024,
        16 * 1024 * 1024,
        "tcp",
        "",
        metadata_url,
        stable_id="router-a",
        labels={"pool": "pool-a", "storage": "false"},
        routed_writes=True,
        replica_count=2,
        route_topk=2,
    )
    policy = ReplicateConfig(
        replica_num=2,
        prefer_local=False,
        preferred_storage_owners=["store-b"],
    )
    assert store.put("key", b"payload", config=policy) == 0
    assert store.get("key") == b"payload"
    route = store.query_route("key")
    assert route is not None
    owners = {replica["owner"].rpartition(":")[0] for replica in route["replicas"]}
    assert owners == {"store-a", "store-b"}
    store.close()


def test_buffer_pool_example(metadata_url: str) -> None:
    store = MooncakeDistributedStore()
    store.setup(
        "127.0.0.1",
        "P2PHANDSHAKE",
        64 * 1024 * 1024,
        16 * 1024 * 1024,
        "tcp",
        "",
        metadata_url,
    )

    pool = BufferPool(store, max_bytes=32 * 1024 * 1024)

    payload = b"hello mooncake"
    writer = pool.acquire(len(payload))
    try:
        writer.buffer[: len(payload)] = payload
        status = store.put_from("example-key", writer.ptr, len(payload))
        if status != 0:
            raise RuntimeError(f"put_from failed: {status}")
    finally:
        writer.release()

    reader = pool.acquire(len(payload))
    try:
        bytes_read = store.get_into("example-key", reader.ptr, reader.size)
        if bytes_read < 0:
            raise RuntimeError("get_into missed or failed")
        value = bytes(reader.buffer[:bytes_read])
    finally:
        reader.release()
    assert value == payload

    with pool.acquire(4096) as lease:
        n = store.get_into("example-key", lease.ptr, lease.size)
        value = bytes(lease.buffer[:n])
    assert value == payload

    pool.close()
    store.close()


def test_a_value_crosses_processes(metadata_url: str, node: Callable[..., Any]) -> None:
    first = node(metadata_url, stable_id="a")
    second = node(metadata_url, stable_id="b")
    value = bytes(range(256)) * 4096
    assert first.put("k", value) == 0
    assert second.get("k") == value
    assert second.is_exist("k") is True and second.get_size("k") == len(value)
    address = second.registered_buffer(len(value))
    assert second.get_into("k", address, len(value)) == len(value)
    assert second.peek(address, len(value)) == value
    second.poke(address, b"changed")
    assert second.put_from("k", address, 7) == 0
    assert first.get("k") == b"changed"
    assert second.remove("k") == 0
    assert first.get("k") == b"" and first.batch_is_exist(["k"]) == [0]


def test_the_calls_of_serving_software(
    open_store: Callable[..., MooncakeDistributedStore], sqlite_url: str
) -> None:
    """Shapes that SGLang, vLLM and LMCache use."""
    store = MooncakeDistributedStore()
    done = store.setup(
        "127.0.0.1",
        "P2PHANDSHAKE",
        "64mb",
        16 << 20,
        "tcp",
        "",
        sqlite_url,
        None,
        enable_ssd_offload=False,
        ssd_offload_path="",
        tenant_id="default",
    )
    assert done == 0
    assert store.put("warmup", b"x" * 4096) == 0
    assert store.is_exist("warmup") == 1
    assert store.get("warmup") == b"x" * 4096
    config = ReplicateConfig()
    config.preferred_segment = store.get_hostname()
    lease = store.local_buffer_pool_try_acquire(4096)
    assert lease is not None
    assert store.put_from("local", lease.ptr, 4096, config) == 0
    assert store.batch_put_from(["a"], [lease.ptr], [16], ReplicateConfig()) == [0]
    assert store.put_parts("parts", b"meta", b"data") == 0
    view = store.get_buffer("parts")
    assert view is not None and bytes(view) == b"metadata"
    lease.release()
    store.close()
