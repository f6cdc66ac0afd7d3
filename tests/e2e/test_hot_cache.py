"""The local hot cache of a store in real mode. That of a daemon: ``dummy/test_dummy.py``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from mooncake.store import MooncakeDistributedStore
from support import MIB, ROUTES


def count(store: MooncakeDistributedStore, result: str) -> int:
    for line in store.metrics_text().splitlines():
        if line.startswith("mooncake_store_hot_cache_total{") and f'"{result}"' in line:
            return int(float(line.split()[-1]))
    return 0


@pytest.fixture
def origin(node: Callable[..., Any], sqlite_url: str) -> Any:
    """The node that has the values."""
    return node(sqlite_url, routed_writes=True)


@pytest.fixture
def reader(
    open_store: Callable[..., MooncakeDistributedStore],
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
    origin: Any,
) -> MooncakeDistributedStore:
    """A store whose cache the environment asks for, with the names of the page."""
    monkeypatch.setenv("MC_STORE_LOCAL_HOT_CACHE_SIZE", str(4 * MIB))
    monkeypatch.setenv("MC_STORE_LOCAL_HOT_BLOCK_SIZE", str(MIB))
    return open_store(sqlite_url, **ROUTES)


def test_the_first_read_fills_it_and_later_ones_move_nothing(
    reader: MooncakeDistributedStore, origin: Any
) -> None:
    value = os.urandom(500_000)
    assert origin.put("k", value) == 0
    hits, misses = count(reader, "hit"), count(reader, "miss")
    assert reader.get("k") == value
    assert (count(reader, "hit"), count(reader, "miss")) == (hits, misses + 1)
    moved = moved_bytes(reader)
    assert moved > 0
    for _ in range(5):
        assert reader.get("k") == value
    assert (count(reader, "hit"), count(reader, "miss")) == (hits + 5, misses + 1)
    assert moved_bytes(reader) == moved


def moved_bytes(store: MooncakeDistributedStore) -> int:
    """Bytes of values that came from other nodes."""
    total = 0
    for line in store.metrics_text().splitlines():
        if line.startswith("mooncake_store_transport_bytes_total{") and '"read"' in line:
            total += int(float(line.split()[-1]))
    return total


def test_own_writes_and_removes_forget_the_copy(
    reader: MooncakeDistributedStore, origin: Any
) -> None:
    assert origin.put("k", b"first" * 1000) == 0
    hits = count(reader, "hit")
    for _ in range(2):
        assert reader.get("k") == b"first" * 1000
    assert reader.put("k", b"second" * 1000) == 0
    assert reader.get("k") == b"second" * 1000
    assert count(reader, "hit") == hits + 1, "what was read is not the copy"
    assert reader.get("k") == b"second" * 1000
    assert count(reader, "hit") == hits + 2
    assert reader.remove("k") == 0
    assert reader.get("k") == b""
    assert count(reader, "hit") == hits + 2
    assert count(reader, "stale") == 0, "it was forgotten, not found to be old"


def test_a_value_larger_than_a_block_bypasses_it(
    reader: MooncakeDistributedStore, origin: Any
) -> None:
    hits = count(reader, "hit")
    for size, kept in ((MIB, True), (MIB + 1, False)):
        value = os.urandom(size)
        assert origin.put(f"k{size}", value) == 0
        for _ in range(2):
            assert reader.get(f"k{size}") == value
        hits += kept
        assert count(reader, "hit") == hits


def test_a_cache_smaller_than_a_block_is_refused(
    open_store: Callable[..., MooncakeDistributedStore], sqlite_url: str
) -> None:
    small = {"local_hot_cache_size": MIB - 1, "local_hot_block_size": MIB}
    with pytest.raises((RuntimeError, ValueError), match="local_hot_cache_size.*1048575.*1048576"):
        open_store(sqlite_url, **ROUTES, **small)
