"""Small programs that make exactly the calls of the serving engines, in real mode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mooncake.store import (
    BufferPool,
    MooncakeDistributedStore,
    ParallelAxis,
    ReadTarget,
    ReplicateConfig,
    TensorParallelism,
)
from mooncake.store.aio import AsyncDistributedStore
from mooncake.structured_object_store import BundleTransferPolicy, MooncakeBundleTransfer

MIB = 1 << 20
PAGE = 64 * 1024


class HostPool:
    """Pages of a host KV pool, as an engine registers them once."""

    def __init__(self, store: Any, pages: int, page_bytes: int = PAGE) -> None:
        self.array = np.zeros(pages * page_bytes, np.uint8)
        self.page_bytes = page_bytes
        self.base = int(self.array.ctypes.data)
        assert store.register_buffer(self.base, self.array.nbytes) == 0

    def ptr(self, page: int) -> int:
        return self.base + page * self.page_bytes

    def page(self, index: int) -> Any:
        return self.array[index * self.page_bytes : (index + 1) * self.page_bytes]

    def fill(self, index: int, value: int) -> None:
        self.page(index)[:] = (np.arange(self.page_bytes) + value) % 251


@pytest.fixture
def engine_store() -> Any:
    """A store that the test sets up in the engine's own way."""
    store = MooncakeDistributedStore()
    yield store
    store.close()


# --- SGLang HiCache -------------------------------------------------------------------------


def sglang_setup(store: MooncakeDistributedStore, url: str) -> None:
    status = store.setup(
        "localhost",
        "P2PHANDSHAKE",
        64 * MIB,
        16 * MIB,
        "tcp",
        "",
        url,
        None,
        tenant_id="tenant-a",
        enable_ssd_offload=False,
        ssd_offload_path="",
    )
    assert status == 0
    value = bytes(4 * 1024)
    assert store.put("sglang_mooncake_store_warmup_key", value) == 0
    assert store.is_exist("sglang_mooncake_store_warmup_key") == 1
    assert store.get("sglang_mooncake_store_warmup_key") == value


def test_sglang_moves_pages_between_pool_and_store(engine_store: Any, sqlite_url: str) -> None:
    store = engine_store
    sglang_setup(store, sqlite_url)
    pool = HostPool(store, 16)
    keys = [f"hash{page}_0_{half}" for page in range(4) for half in "kv"]
    for page in range(8):
        pool.fill(page, page)
    assert [code == 1 for code in store.batch_is_exist(keys)] == [False] * 8
    ptrs, sizes = [pool.ptr(page) for page in range(8)], [PAGE] * 8
    assert [code == 0 for code in store.batch_put_from(keys, ptrs, sizes)] == [True] * 8
    assert [code == 1 for code in store.batch_is_exist(keys)] == [True] * 8
    targets = [pool.ptr(page + 8) for page in range(8)]
    got = store.batch_get_into([*keys[:7], "missing"], targets, sizes)
    assert [length > 0 for length in got] == [True] * 7 + [False]
    for page in range(7):
        assert (pool.page(page + 8) == pool.page(page)).all()
    assert not pool.page(15).any()
    # A second writer of the same page is told that all is well.
    assert list(store.batch_put_from(keys, ptrs, sizes)) == [0] * 8
    assert store.remove_all() >= 9
    assert store.batch_is_exist(keys) == [0] * 8


def test_sglang_passes_its_config_by_position(engine_store: Any, sqlite_url: str) -> None:
    store = engine_store
    sglang_setup(store, sqlite_url)
    pool = HostPool(store, 8)
    pool.fill(0, 1)
    pool.fill(1, 2)
    config = ReplicateConfig()
    assert not hasattr(config, "group_ids")
    config.replica_num = 1
    assert list(store.batch_put_from(["a_0_k"], [pool.ptr(0)], [PAGE], config)) == [0]
    rows = [[pool.ptr(0), pool.ptr(1)]]
    sizes = [[PAGE, PAGE]]
    assert list(store.batch_put_from_multi_buffers(["mla"], rows, sizes, config)) == [0]
    into = [[pool.ptr(4), pool.ptr(5)]]
    assert list(store.batch_get_into_multi_buffers(["mla"], into, sizes)) == [2 * PAGE]
    assert (pool.page(4) == pool.page(0)).all()
    assert (pool.page(5) == pool.page(1)).all()


# --- vLLM MooncakeStoreConnector --------------------------------------------------------------


def test_vllm_sets_up_from_strings_and_moves_blocks(engine_store: Any, sqlite_url: str) -> None:
    store = engine_store
    status = store.setup(
        {
            "local_hostname": "127.0.0.1",
            "metadata_server": "P2PHANDSHAKE",
            "global_segment_size": str(64 * MIB),
            "local_buffer_size": "16MB",
            "protocol": "tcp",
            "rdma_devices": "",
            "master_server_addr": sqlite_url,
        }
    )
    assert status == 0
    pool = HostPool(store, 16)
    keys = [f"model@{block}" for block in range(4)]
    for page in range(8):
        pool.fill(page, page)
    addresses = [[pool.ptr(2 * block), pool.ptr(2 * block + 1)] for block in range(4)]
    sizes = [[PAGE, PAGE]] * 4
    assert store.batch_is_exist(keys) == [0] * 4
    assert list(store.batch_put_from_multi_buffers(keys, addresses, sizes)) == [0] * 4
    targets = [[pool.ptr(8 + 2 * block), pool.ptr(9 + 2 * block)] for block in range(4)]
    got = store.batch_get_into_multi_buffers([*keys[:3], "missing"], targets, sizes)
    assert list(got[:3]) == [2 * PAGE] * 3
    assert got[3] < 0
    assert (pool.array[8 * PAGE : 14 * PAGE] == pool.array[: 6 * PAGE]).all()


def test_vllm_sees_no_space_as_its_own_code(engine_store: Any, sqlite_url: str) -> None:
    store = engine_store
    assert (
        store.setup(
            {
                "local_hostname": "127.0.0.1",
                "global_segment_size": str(16 * MIB),
                "local_buffer_size": str(16 * MIB),
                "master_server_addr": sqlite_url,
            }
        )
        == 0
    )
    pool = HostPool(store, 2, 16 * MIB)
    codes = store.batch_put_from_multi_buffers(
        ["small", "large"],
        [[pool.ptr(0)], [pool.ptr(0), pool.ptr(1)]],
        [[PAGE], [16 * MIB, 16 * MIB]],
    )
    assert list(codes) == [0, -200]


# --- LMCache mooncakestore connector ----------------------------------------------------------


def test_lmcache_stores_chunks_near_itself(engine_store: Any, sqlite_url: str) -> None:
    store = engine_store
    store.setup("127.0.0.1", "P2PHANDSHAKE", 64 * MIB, 16 * MIB, "tcp", "", sqlite_url)
    config = ReplicateConfig()
    config.preferred_segment = store.get_hostname()
    pool = HostPool(store, 4)
    pool.fill(0, 7)
    meta = b"\x01" * 28
    assert store.put_from("vllm@chunk", pool.ptr(0), PAGE, config) == 0
    assert store.put_parts("vllm@parts", meta, memoryview(pool.page(0))) == 0
    assert store.is_exist("vllm@chunk")
    assert not store.is_exist("vllm@missing")
    assert list(store.batch_get_into(["vllm@chunk"], [pool.ptr(1)], [PAGE])) == [PAGE]
    assert (pool.page(1) == pool.page(0)).all()
    found, missing = store.batch_get_buffer(["vllm@parts", "vllm@missing"])
    assert missing is None
    assert bytes(found) == meta + pool.page(0).tobytes()
    assert len(found) == 28 + PAGE
    assert store.unregister_buffer(pool.base) == 0
    store.close()


# --- RL frameworks ----------------------------------------------------------------------------


def test_a_rollout_travels_from_producer_to_consumer(
    open_store: Callable[..., MooncakeDistributedStore], sqlite_url: str
) -> None:
    producer = MooncakeBundleTransfer(
        open_store(sqlite_url, stable_id="producer"), "rl", default_chunk_bytes=PAGE
    )
    consumer = MooncakeBundleTransfer(open_store(sqlite_url, stable_id="consumer"), "rl")
    batch = {
        "tokens": np.arange(100_000, dtype=np.int64).reshape(1000, 100),
        "reward": np.linspace(0, 1, 1000, dtype=np.float32),
        "prompts": np.array([f"prompt {index}" for index in range(8)], dtype=object),
        "step": 7,
    }
    policy = BundleTransferPolicy(max_inflight_put=2, put_mode="parallel")
    ref = consumer.import_ref(producer.export_ref(producer.put(batch, type="dict", policy=policy)))
    got = consumer.get(ref, framework="numpy")
    assert got["step"] == 7
    assert got["prompts"].tolist() == batch["prompts"].tolist()
    for name in ("tokens", "reward"):
        assert (got[name] == batch[name]).all()
    part = consumer.read_spec(ref).select_members(["m0"]).slice_member("m0", 0, 10, 500, 3)
    assert (consumer.materialize(part).objects["m0"] == batch["tokens"][10:500:3]).all()
    consumer.release_result(got)
    consumer.remove_bundle(ref)
    with pytest.raises(KeyError):
        consumer.get({"manifest_key": ref.manifest_key})
    assert producer.store.remove_all() == 0


def test_weights_are_written_with_four_ranks_and_read_with_any_number(
    open_store: Callable[..., MooncakeDistributedStore], sqlite_url: str
) -> None:
    trainer, server = open_store(sqlite_url), open_store(sqlite_url)
    full = np.arange(64 * 48, dtype=np.float32).reshape(64, 48)
    for rank in range(4):
        axes = TensorParallelism([ParallelAxis("tp", rank, 4, split_dim=1)])
        assert trainer.put_tensor_with_parallelism("layer.0", full, parallelism=axes) == 0
    for size in (2, 4, 8):
        for rank in range(size):
            target = ReadTarget(
                "shard", TensorParallelism([ParallelAxis("tp", rank, size, split_dim=1)])
            )
            got = server.get_tensor_with_parallelism("layer.0", target=target, framework="numpy")
            assert (got == np.split(full, size, axis=1)[rank]).all()
    pool = BufferPool(server)
    with pool.acquire(304 + full.nbytes) as lease:
        result = server.get_tensor_with_parallelism_into(
            "layer.0", lease.ptr, lease.size, target=ReadTarget("full")
        )
        assert result is not None
        assert result.shape == (64, 48)
        assert bytes(lease.buffer[304:]) == full.tobytes()
    pool.close()


def test_an_asyncio_program_reads_and_writes(
    store: MooncakeDistributedStore,
) -> None:
    async def main() -> None:
        async with AsyncDistributedStore(store) as cache:
            codes = await asyncio.gather(*(cache.put(f"k{n}", b"v%d" % n) for n in range(50)))
            assert codes == [0] * 50
            assert await cache.batch_get([f"k{n}" for n in range(50)]) == [
                b"v%d" % n for n in range(50)
            ]

    asyncio.run(main())


def test_pool_views_outlive_the_store(store: MooncakeDistributedStore) -> None:
    pool = BufferPool(store, max_bytes=64 * MIB)
    local, overflow = pool.acquire(PAGE), pool.acquire(32 * MIB)
    views = [local.buffer, overflow.buffer]
    store.put_from("k", local.ptr, PAGE)
    store.close()
    for view in views:
        view[-1] = 1
    del view, views
    local.release()
    overflow.release()
    pool.close()
