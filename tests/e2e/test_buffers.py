"""Registered memory, the allocator and leases of the pool."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mooncake.store import (
    MooncakeDistributedStore,
    MooncakeHostMemAllocator,
    ParallelAxis,
    TensorParallelism,
)

MIB = 1 << 20


def test_unregistered_memory_is_refused(
    store: MooncakeDistributedStore, buffer: int, capfd: pytest.CaptureFixture[str]
) -> None:
    stray = ctypes.create_string_buffer(b"stray", 64)
    address = ctypes.addressof(stray)
    store.put("k", b"value")
    assert store.put_from("x", address, 64) < 0
    assert store.get_into("k", address, 64) < 0
    assert store.put_from("x", buffer + MIB - 10, 11) < 0
    assert store.get_into("k", buffer + MIB - 4, 5) < 0
    assert store.put_from("x", 0, 1) < 0
    assert store.put_from("x", (1 << 64) - 1, 5) < 0
    assert store.batch_put_from(["x", "y"], [address, buffer], [8, 8])[0] < 0
    assert store.batch_put_from_multi_buffers(["x"], [[buffer, address]], [[1, 1]])[0] < 0
    assert store.get_into_ranges([address], [["k"]], [[[0]]], [[[0]]], [[[5]]])[0][0][0] < 0
    assert stray.raw[:5] == b"stray" and not store.is_exist("x") and store.is_exist("y")
    assert hex(address) in capfd.readouterr().err


@pytest.mark.parametrize("dim", [0, 1])
def test_shards_are_cut_out_of_registered_memory_alone(
    store: MooncakeDistributedStore, buffer: int, dim: int
) -> None:
    np = pytest.importorskip("numpy")
    full = np.arange(100 * 8, dtype=np.int32).reshape(100, 8)
    store.put_tensor("full", full)
    raw = store.get("full")
    stray = ctypes.create_string_buffer(raw)
    ctypes.memmove(buffer, raw, len(raw))
    for rank in range(2):
        axes = TensorParallelism([ParallelAxis("tp", rank, 2, split_dim=dim)])
        with pytest.raises(RuntimeError, match="status -1"):
            store.put_tensor_with_parallelism_from(
                "w", ctypes.addressof(stray), len(raw), parallelism=axes
            )
        store.put_tensor_with_parallelism_from("w", buffer, len(raw), parallelism=axes)
        got = store.get_tensor_with_tp("w", rank, 2, dim, framework="numpy")
        assert (got == np.split(full, 2, dim)[rank]).all()


def test_registrations_nest(store: MooncakeDistributedStore) -> None:
    address = MooncakeHostMemAllocator().alloc(4096)
    assert store.register_buffer(address, 4096) == 0
    assert store.register_buffer(address, 4096) == 0
    assert store.unregister_buffer(address) == 0
    assert store.put_from("k", address, 4096) == 0
    assert store.unregister_buffer(address, 4096) == 0
    assert store.put_from("k", address, 4096) == -1
    assert store.unregister_buffer(address) == -1
    assert store.register_buffer(0, 4096) == -1
    assert store.unregister_buffer(12345) == -1


def test_many_threads_register(store: MooncakeDistributedStore) -> None:
    address = MooncakeHostMemAllocator().alloc(64 * 4096)
    failures: list[str] = []

    def work(seed: int) -> None:
        for i in range(200):
            base = address + (seed * 7 + i) % 32 * 4096
            size = (1 + (seed + i) % 3) * 4096
            if store.register_buffer(base, size) != 0 or store.unregister_buffer(base) != 0:
                failures.append(f"{seed} {i}")

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []
    assert store.put_from("k", address, 1) == -1


def test_unregister_with_a_size_is_for_that_size(store: MooncakeDistributedStore) -> None:
    address = MooncakeHostMemAllocator().alloc(MIB)
    assert store.register_buffer(address, MIB) == store.register_buffer(address, 4096) == 0
    assert store.unregister_buffer(address, 12345) == -1
    assert store.unregister_buffer(address, MIB) == 0
    assert store.put_from("k", address + MIB - 100, 100) == -1
    assert store.put_from("k", address, 100) == 0
    assert store.unregister_buffer(address, size=4096) == 0
    assert store.put_from("k", address, 100) == -1


def test_unregister_waits_for_calls_that_have_only_looked(sqlite_url: str) -> None:
    program = Path(__file__).with_name("unregister_race.py")
    command = [sys.executable, str(program), sqlite_url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and ended.stdout == "survived\n", ended.stderr


def test_read_only_memory_is_a_source_and_no_target(
    store: MooncakeDistributedStore, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "values").write_bytes(b"v" * 4096)
    with (tmp_path / "values").open("rb") as file:
        memory = mmap.mmap(file.fileno(), 4096, access=mmap.ACCESS_READ)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    assert store.register_buffer(address, 4096) == 0
    assert store.put_from("a", address, 4096) == 0 and store.get("a") == b"v" * 4096
    assert store.batch_put_from(["b"], [address], [10]) == [0]
    assert store.get_into("a", address, 4096) == -2
    assert store.batch_get_into(["a", "nope"], [address] * 2, [4096] * 2) == [-2, -2]
    assert store.batch_get_into_multi_buffers(["a"], [[address]], [[4096]]) == [-2]
    assert store.get_into_ranges([address], [["a"]], [[[0]]], [[[0]]], [[[10]]]) == [[[-2]]]
    assert "reading only" in capfd.readouterr().err
    assert store.unregister_buffer(address) == 0


def test_freed_memory_is_registered_nowhere(
    open_store: Callable[..., MooncakeDistributedStore], sqlite_url: str
) -> None:
    stores = [open_store(sqlite_url, stable_id=name) for name in ("a", "b")]
    allocator = MooncakeHostMemAllocator()
    address, other = allocator.alloc(MIB), allocator.alloc(MIB)
    for store in stores:
        assert store.register_buffer(address, MIB) == store.register_buffer(other, MIB) == 0
        assert store.register_buffer(address + 4096, 4096) == 0
    assert stores[0].put_from("k", address, 64) == 0
    allocator.free(address)
    for store in stores:
        assert store.put_from("x", address, 64) == -1
        assert store.get_into("k", address + 4096, 64) == -2
        assert store.unregister_buffer(address) == -1
        assert store.get_into("k", other, 64) == 64
    with pytest.raises(KeyError):
        allocator.free(address)


def test_new_memory_at_an_old_address(store: MooncakeDistributedStore) -> None:
    allocator = MooncakeHostMemAllocator()
    address = allocator.alloc(MIB)
    assert store.register_buffer(address, MIB) == 0
    ctypes.memset(address, 1, MIB)
    assert store.put_from("old", address, MIB) == 0
    assert store.unregister_buffer(address) == 0
    allocator.free(address)
    again = allocator.alloc(MIB)
    ctypes.memset(again, 2, MIB)
    assert store.register_buffer(again, MIB) == 0
    assert store.put_from("new", again, MIB) == 0
    assert store.get("new") == b"\2" * MIB and store.get("old") == b"\1" * MIB


def test_memory_that_was_mapped_anew_is_read_as_it_is(
    store: MooncakeDistributedStore, sqlite_url: str, node: Callable[..., Any]
) -> None:
    """BR-06: a pool that goes and comes at one address, registered again or not."""
    reader = node(sqlite_url)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    fixed = 0x10  # MAP_FIXED

    def mapped(at: int | None, fill: int) -> int:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (0 if at is None else fixed)
        address = libc.mmap(at, MIB, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        assert address not in (None, ctypes.c_void_p(-1).value)
        ctypes.memset(address, fill, MIB)
        return int(address)

    address = mapped(None, 1)
    assert store.register_buffer(address, MIB) == 0
    assert store.put_from("k", address, MIB) == 0
    for fill, again in ((2, False), (3, True), (4, False)):
        libc.munmap(address, MIB)
        assert mapped(address, fill) == address
        if again:
            assert store.unregister_buffer(address) == store.register_buffer(address, MIB) == 0
        assert store.put_from("k", address, MIB) == 0
        for one in (store, reader):
            assert one.get("k") == bytes([fill]) * MIB
        assert store.get_into("k", address, MIB) == MIB
    assert store.unregister_buffer(address) == 0
    assert store.put_from("k", address, MIB) == -1
    libc.munmap(address, MIB)


def test_leases_outlive_the_store(store: MooncakeDistributedStore) -> None:
    assert store.local_buffer_pool_capacity() == 16 * MIB
    lease = store.local_buffer_pool_try_acquire(4096)
    assert lease is not None and lease.size == 4096
    assert store.put_from("k", lease.ptr, 4096) == 0
    assert store.local_buffer_pool_try_acquire(17 * MIB) is None
    store.close()
    ctypes.memset(lease.ptr, 1, 4096)
    lease.release()
    lease.release()
    with pytest.raises(RuntimeError, match="closed"):
        _ = lease.ptr


def test_leases_come_back_when_collected(store: MooncakeDistributedStore) -> None:
    for _ in range(64):
        lease = store.local_buffer_pool_try_acquire(8 * MIB)
        assert lease is not None
        del lease
        gc.collect(0)


def test_a_store_without_a_pool(
    open_store: Callable[..., MooncakeDistributedStore], sqlite_url: str
) -> None:
    store = open_store(sqlite_url, local_buffer_size=0)
    assert store.local_buffer_pool_capacity() == 0
    assert store.local_buffer_pool_try_acquire(1) is None
    assert store.put("k", b"v") == 0 and store.get("k") == b"v"


def test_allocator() -> None:
    allocator = MooncakeHostMemAllocator()
    address = allocator.alloc(5000)
    assert address % mmap.PAGESIZE == 0
    ctypes.memset(address, 255, 5000)
    assert MooncakeHostMemAllocator().free(address) == 0
    with pytest.raises(KeyError):
        allocator.free(address)
    with pytest.raises(KeyError):
        allocator.free(address + 1)
    for bad in (0, -1):
        with pytest.raises(ValueError, match=f"size.*{bad}"):
            allocator.alloc(bad)
    with pytest.raises(TypeError, match="size"):
        allocator.alloc("1MB")  # type: ignore[arg-type]
    for huge in (1 << 50, 1 << 63, 1 << 70):
        with pytest.raises((RuntimeError, ValueError), match=str(huge)):
            allocator.alloc(huge)
    with pytest.raises(RuntimeError) as refused:
        allocator.alloc(1 << 50)
    assert isinstance(refused.value, MemoryError)


def test_allocated_memory_is_a_shared_memory_file() -> None:
    allocator = MooncakeHostMemAllocator()
    address = allocator.alloc(5000)
    lines = Path("/proc/self/maps").read_text().splitlines()
    line = next(line for line in lines if line.startswith(f"{address:x}-"))
    assert line.split()[1] == "rw-s" and "/memfd:mooncake" in line
    allocator.free(address)


def test_allocator_gives_everything_back() -> None:
    allocator = MooncakeHostMemAllocator()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(1000):
        allocator.free(allocator.alloc(64 * 1024))
    assert len(os.listdir("/proc/self/fd")) == before


def test_hugepage_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ("3MB", 12345, True, "1TB"):
        with pytest.raises(ValueError, match="2MB.*1GB"):
            MooncakeHostMemAllocator(hugepage_size=bad)
    with monkeypatch.context() as environment:
        environment.setenv("MC_STORE_USE_HUGEPAGE", "maybe")
        with pytest.raises(ValueError, match=r"MC_STORE_USE_HUGEPAGE.*maybe.*true or false"):
            MooncakeHostMemAllocator()
        assert MooncakeHostMemAllocator(use_hugepage=False).alloc(1) > 0
        for no in ("off", " No ", "0", "f", ""):
            environment.setenv("MC_STORE_USE_HUGEPAGE", no)
            assert MooncakeHostMemAllocator().alloc(1) > 0
    kernel = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
    free = int(kernel.read_text()) if kernel.exists() else 0
    allocator = MooncakeHostMemAllocator(use_hugepage=True, hugepage_size="2MB")
    if free >= 2:
        address = allocator.alloc(3 * MIB)
        ctypes.memset(address, 1, 3 * MIB)
        allocator.free(address)
    elif free == 0:
        with pytest.raises(RuntimeError, match="3145728.*huge"):
            allocator.alloc(3 * MIB)
        monkeypatch.setenv("MC_STORE_HUGEPAGE_SIZE", "1GB")
        with pytest.raises(RuntimeError, match="huge"):
            MooncakeHostMemAllocator().alloc(1)
        monkeypatch.delenv("MC_STORE_HUGEPAGE_SIZE")
        monkeypatch.setenv("MC_STORE_USE_HUGEPAGE", "1")
        with pytest.raises(RuntimeError, match="pages of 2 MiB"):
            MooncakeHostMemAllocator().alloc(1)
        monkeypatch.setenv("MC_STORE_USE_HUGEPAGE", "false")
        monkeypatch.setenv("MC_STORE_HUGEPAGE_SIZE", "1GB")
        assert MooncakeHostMemAllocator().alloc(1) > 0
    assert MooncakeHostMemAllocator(use_hugepage=False).alloc(1) > 0


def test_the_gil_is_free_during_calls(store: MooncakeDistributedStore, buffer: int) -> None:
    """Another thread makes progress while a long batch runs."""
    keys = [f"k{i}" for i in range(20_000)]
    ticks = 0
    done = threading.Event()

    def work() -> None:
        store.batch_put_from(keys, [buffer] * len(keys), [64] * len(keys))
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    while not done.wait(0.001):
        ticks += 1
    worker.join()
    assert ticks > 0
