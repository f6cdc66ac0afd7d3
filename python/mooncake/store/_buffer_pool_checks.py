"""Checks of BufferPool arguments, its size classes, and the gate of a blocked acquire."""

from __future__ import annotations

import operator
import sys
import threading
import time
from typing import Any

from ._buffer_pool_block import BufferPoolError, BufferPoolValueError

_POINTER_BYTES = 8


class Waiter:
    """One blocked acquire. A raw lock is the gate: it has no Python-level critical section, so a
    finalizer that runs inside the wait can still open it."""

    __slots__ = ("gate", "granted", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.granted = False
        self.gate = threading.Lock()
        self.gate.acquire()


def wait_gate(gate: threading.Lock, timeout: float | None) -> None:
    if timeout is None:
        gate.acquire()
        return
    deadline = time.monotonic() + timeout
    while True:
        left = min(max(deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
        if gate.acquire(timeout=left) or time.monotonic() >= deadline:
            return


def local_capacity(store: Any) -> int:
    try:
        capacity = int(store.local_buffer_pool_capacity())
    except AttributeError as error:
        raise BufferPoolError(
            "BufferPool: needs a store with a local buffer pool "
            f"({type(store).__name__} has no local_buffer_pool_capacity)"
        ) from error
    if capacity <= 0:
        raise BufferPoolError(
            "BufferPool: the store has no local buffer; use a real store that was set up with "
            "local_buffer_size > 0"
        )
    return capacity


def size_class(size: int, smallest: int, largest: int) -> int:
    """The capacity in bytes of a prewarmed buffer for ``size``."""
    capacity = smallest
    while capacity < size:
        capacity *= 2
    return max(size, min(capacity, largest))


def check_settings(
    max_bytes: int,
    min_class: int,
    max_class: int | None,
    alignment: int,
    max_regions: int | None,
) -> None:
    if operator.index(max_bytes) < 0:
        raise BufferPoolValueError(f"BufferPool: max_bytes must be non-negative, not {max_bytes}")
    for name, value in (("min_size_class", min_class), ("alignment", alignment)):
        if operator.index(value) <= 0:
            raise BufferPoolValueError(f"BufferPool: {name} must be positive, not {value}")
    if alignment & (alignment - 1) or alignment < _POINTER_BYTES or alignment >= sys.maxsize // 2:
        raise BufferPoolValueError(
            f"BufferPool: alignment must be a power of two of at least {_POINTER_BYTES}, "
            f"not {alignment}"
        )
    if max_class is not None and operator.index(max_class) < min_class:
        raise BufferPoolValueError(
            f"BufferPool: max_size_class ({max_class}) is below min_size_class ({min_class})"
        )
    if max_regions is not None and operator.index(max_regions) <= 0:
        raise BufferPoolValueError(f"BufferPool: max_regions must be positive, not {max_regions}")


def check_size(size: int) -> int:
    size = operator.index(size)
    if size < 0:
        raise BufferPoolValueError(f"BufferPool: a size must be non-negative, not {size}")
    return size


def check_timeout(name: str, value: float | None) -> None:
    if value is not None and not value >= 0:
        raise BufferPoolValueError(f"BufferPool: {name} must be non-negative, not {value}")
