"""MooncakeHostMemAllocator where the native module is missing."""

from __future__ import annotations

import ctypes
import importlib
import mmap
import sys
from pathlib import Path

import pytest

host = importlib.import_module("mooncake.store._host_allocator")
MIB = 1 << 20


@pytest.fixture(autouse=True)
def without_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import of the module fails, as it does where it was not built."""
    monkeypatch.setitem(sys.modules, "mooncake._store", None)
    monkeypatch.delattr(sys.modules["mooncake"], "_store", raising=False)
    for name in ("MC_STORE_USE_HUGEPAGE", "MC_STORE_HUGEPAGE_SIZE"):
        monkeypatch.delenv(name, raising=False)


def mapped(address: int) -> bool:
    """Whether the address lies in memory of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, _, end = line.split()[0].partition("-")
        if int(begin, 16) <= address < int(end, 16):
            return True
    return False


def test_memory_comes_from_mmap() -> None:
    allocator = host.MooncakeHostMemAllocator()
    address = allocator.alloc(3 * MIB + 1)
    assert address % mmap.PAGESIZE == 0
    assert ctypes.string_at(address, 3 * MIB + 1) == bytes(3 * MIB + 1)
    ctypes.memset(address, 7, 3 * MIB + 1)
    other = allocator.alloc(MIB)
    assert ctypes.string_at(address, 3 * MIB + 1) == bytes([7]) * (3 * MIB + 1)
    assert host.MooncakeHostMemAllocator().free(address) == 0
    assert allocator.free(other) == 0


def test_free_gives_it_back() -> None:
    allocator = host.MooncakeHostMemAllocator()
    address = allocator.alloc(256 * MIB)
    assert mapped(address + 128 * MIB)
    allocator.free(address)
    assert not mapped(address + 128 * MIB)
    for unknown in (address, address + 1, 0):
        with pytest.raises(KeyError):
            allocator.free(unknown)


def test_what_it_refuses_is_what_the_native_one_refuses() -> None:
    allocator = host.MooncakeHostMemAllocator()
    for bad in (0, -1):
        with pytest.raises(ValueError, match=f"size.*{bad}"):
            allocator.alloc(bad)
    with pytest.raises(TypeError, match="size"):
        allocator.alloc("1MB")
    for huge in (1 << 50, 1 << 63, 1 << 70):
        with pytest.raises(RuntimeError, match=str(huge)) as refused:
            allocator.alloc(huge)
        assert isinstance(refused.value, MemoryError)


def test_there_are_no_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [
        host.MooncakeHostMemAllocator(use_hugepage=True),
        host.MooncakeHostMemAllocator(hugepage_size="1GB"),
    ]
    monkeypatch.setenv("MC_STORE_USE_HUGEPAGE", "true")
    asked.append(host.MooncakeHostMemAllocator())
    for allocator in asked:
        with pytest.raises(RuntimeError, match="huge pages need the native module"):
            allocator.alloc(MIB)
    assert host.MooncakeHostMemAllocator(use_hugepage=False).alloc(MIB) > 0
