"""Pools over the fake store, for the tests of BufferPool."""

from __future__ import annotations

import time

from fake_store import FakeStore
from mooncake.store._buffer_pool import BufferPool

KIB = 1024


def make(local: int = 64 * KIB, **settings: object) -> tuple[FakeStore, BufferPool]:
    store = FakeStore(local)
    settings.setdefault("alignment", 4096)
    return store, BufferPool(store, **settings)  # type: ignore[arg-type]


def wait_until(what: object, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not what():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.001)
