"""torch tensors with a real store: as values, as registered memory, as what reads give."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
from mooncake.store import (
    BufferPool,
    MooncakeDistributedStore,
    MooncakeHostMemAllocator,
    ParallelAxis,
    ReadTarget,
    TensorParallelism,
)
from support import MIB

torch = pytest.importorskip("torch", reason="torch is not installed (scripts/test --torch)")
pytestmark = pytest.mark.torch


def nbytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def test_a_tensor_is_a_value(store: MooncakeDistributedStore) -> None:
    tensor = torch.arange(1000, dtype=torch.int32).reshape(10, 100)
    raw = bytes(tensor.flatten().view(torch.uint8).tolist())
    assert store.put("k", tensor) == 0
    assert store.get("k") == raw
    assert store.batch_put([("a", tensor), ("b", b"x")]) == 0
    assert store.put_parts("p", b"head", tensor) == 0
    assert store.batch_get(["a", "p"]) == [raw, b"head" + raw]
    back = torch.frombuffer(bytearray(store.get("k")), dtype=torch.int32).reshape(10, 100)
    assert torch.equal(back, tensor)
    with pytest.raises(TypeError, match="contiguous"):
        store.put("k", tensor.t())


def test_a_negated_view_is_stored_with_its_sign(store: MooncakeDistributedStore) -> None:
    conjugated = torch.complex(torch.arange(4.0), torch.arange(4.0) + 1).conj()
    for view in (conjugated.imag[:1], conjugated[1:3]):
        assert view.is_contiguous() and (view.is_neg() or view.is_conj())
        assert store.put("k", view) == 0
        plain = view.resolve_conj().resolve_neg()
        assert store.get("k") == plain.numpy().tobytes()


def test_tensors_are_registered_memory(store: MooncakeDistributedStore) -> None:
    """As engines do it: whole pools are registered once, pages are addressed by arithmetic."""
    pool = torch.zeros(16, 4096, dtype=torch.uint8)
    assert store.register_buffer(pool.data_ptr(), nbytes(pool)) == 0
    for page in range(8):
        pool[page] = page + 1
    ptrs = [pool.data_ptr() + page * 4096 for page in range(16)]
    keys = [f"page {page}" for page in range(8)]
    assert store.batch_put_from(keys, ptrs[:8], [4096] * 8) == [0] * 8
    assert store.batch_get_into(keys, ptrs[8:], [4096] * 8) == [4096] * 8
    assert torch.equal(pool[8:], pool[:8])
    assert store.unregister_buffer(pool.data_ptr()) == 0


def test_allocated_memory_is_wrapped_as_a_tensor(store: MooncakeDistributedStore) -> None:
    address = MooncakeHostMemAllocator().alloc(MIB)
    memory = torch.frombuffer((ctypes.c_byte * MIB).from_address(address), dtype=torch.float32)
    assert memory.data_ptr() == address
    assert store.register_buffer(address, MIB) == 0
    memory.copy_(torch.arange(memory.numel(), dtype=torch.float32))
    assert store.put_from("k", memory.data_ptr(), MIB) == 0
    wanted = memory.clone()
    memory.zero_()
    assert store.get_into("k", memory.data_ptr(), MIB) == MIB
    assert torch.equal(memory, wanted)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "bool", "int64"])
def test_tensors_come_back(store: MooncakeDistributedStore, name: str) -> None:
    tensor = (torch.arange(48).reshape(6, 8) % 2).to(getattr(torch, name))
    assert store.put_tensor("k", tensor) == 0
    got = store.get_tensor("k")
    assert isinstance(got, torch.Tensor) and got.dtype == tensor.dtype
    assert torch.equal(got, tensor)
    into = torch.zeros_like(tensor)
    assert store.get_tensor("k", tensor=into) is into
    assert torch.equal(into, tensor)
    assert store.put_tensor_from("f", tensor) == 0
    assert torch.equal(store.get_tensor("f"), tensor)
    assert store.get_tensor("missing") is None


def test_weights_go_from_four_ranks_to_any(
    open_store: Callable[..., MooncakeDistributedStore], sqlite_url: str
) -> None:
    trainer, server = open_store(sqlite_url), open_store(sqlite_url)
    full = torch.randn(64, 48).to(torch.bfloat16)

    def axes(rank: int, size: int) -> TensorParallelism:
        return TensorParallelism([ParallelAxis("tp", rank, size, split_dim=1)])

    for rank in range(4):
        assert trainer.put_tensor_with_parallelism("w", full, parallelism=axes(rank, 4)) == 0
    for size in (1, 2, 8):
        for rank in range(size):
            target = ReadTarget("shard", axes(rank, size))
            got = server.get_tensor_with_parallelism("w", target=target)
            assert torch.equal(got, full.chunk(size, 1)[rank])
    with BufferPool(server) as pool, pool.acquire(304 + nbytes(full)) as lease:
        result = server.get_tensor_with_parallelism_into(
            "w", lease.ptr, lease.size, target=ReadTarget("full")
        )
        assert result is not None and result.shape == (64, 48)
        view = torch.frombuffer(
            (ctypes.c_byte * result.data_bytes).from_address(result.data_ptr), dtype=full.dtype
        )
        assert torch.equal(view.reshape(64, 48), full)
