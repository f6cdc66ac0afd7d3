"""What a BufferPool hands out: leases, the blocks below them and the views above them."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
import threading
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from ._aligned_memory import AlignedMemory

if TYPE_CHECKING:
    from ._buffer_pool import BufferPool

_log = logging.getLogger("mooncake.store.buffer_pool")
_DROP_TRIES = 3
_NOT_SET_UP = 1  # health_check() of a store that was closed: its registrations are gone.


class BufferPoolError(RuntimeError):
    """A pool call that cannot be served; the text has the numbers."""


class BufferPoolValueError(BufferPoolError, ValueError):
    """An argument of a pool call is out of range; the text names it."""


class NativeLease(Protocol):
    """A slice of the store's local buffer, as ``local_buffer_pool_try_acquire`` gives it."""

    @property
    def ptr(self) -> int: ...
    @property
    def size(self) -> int: ...
    def release(self) -> None: ...


class PoolStore(Protocol):
    """What a pool needs from its store."""

    def local_buffer_pool_capacity(self) -> int: ...
    def local_buffer_pool_try_acquire(self, size: int) -> Any: ...
    def register_buffer(self, ptr: int, size: int, /) -> Any: ...
    def unregister_buffer(self, ptr: int, /) -> Any: ...


class Block:
    """Memory of one lease. Dies when the lease and every view are gone, and gives it back then."""

    __slots__ = (
        "address",
        "capacity",
        "charge",
        "kept",
        "memory",
        "native",
        "pid",
        "pool",
        "store",
    )

    def __init__(
        self,
        pool: BufferPool,
        store: PoolStore,
        address: int,
        capacity: int,
        charge: int,
        native: NativeLease | None = None,
        memory: AlignedMemory | None = None,
    ) -> None:
        self.pool = pool
        self.store = store
        self.address = address
        self.capacity = capacity
        self.charge = charge
        self.kept = False
        self.native = native
        self.memory = memory
        self.pid = os.getpid()

    def abandon(self) -> None:
        """Leak the memory: it may still be registered, so nobody may reuse it."""
        if self.memory is not None:
            _log.warning(
                "BufferPool: %d bytes at 0x%x stay mapped: they could not be unregistered",
                self.capacity,
                self.address,
            )
        self.native = self.memory = None

    def finish(self) -> None:
        """Give the memory back; raises BufferPoolError and changes nothing when that fails."""
        if self.native is not None:
            native, self.native = self.native, None
            native.release()
            self.pool.give_back(self.charge, None)
        elif self.memory is not None and self.kept:
            # A fresh object: this one may be in its finalizer.
            idle = Block(
                self.pool,
                self.store,
                self.address,
                self.capacity,
                self.capacity,
                memory=self.memory,
            )
            idle.kept = True
            self.memory = None
            self.pool.give_back(self.charge, idle)
        elif self.memory is not None:
            retire_block(self)
            self.pool.give_back(self.charge, None)

    def __del__(self) -> None:
        if self.native is None and self.memory is None:
            return
        # At exit the operating system takes the memory; in a forked child it is the parent's.
        if sys.is_finalizing() or os.getpid() != self.pid:
            return
        for _ in range(_DROP_TRIES):
            try:
                self.finish()
                return
            except Exception:
                continue
        self.abandon()
        self.pool.give_back(self.charge, None)


def register_overflow(store: PoolStore, size: int, alignment: int) -> AlignedMemory:
    """Map ``size`` bytes and register them; nothing is left when either fails.

    Raises:
        BufferPoolError: with size and reason.
    """
    try:
        memory = AlignedMemory(size, alignment)
    except MemoryError as error:
        raise BufferPoolError(f"BufferPool: overflow allocation failed: {error}") from error
    try:
        status = store.register_buffer(memory.address, size)
    except BaseException as error:
        memory.unmap()
        if not isinstance(error, Exception):
            raise
        raise BufferPoolError(
            f"BufferPool: registration of {size} bytes failed: {error}"
        ) from error
    if status not in (0, None):
        memory.unmap()
        raise BufferPoolError(f"BufferPool: registration of {size} bytes failed: status {status}")
    return memory


def retire_block(block: Block) -> None:
    """Unregister and unmap overflow memory; on failure it stays registered and mapped.

    Raises:
        BufferPoolError: the store refused to unregister; may be tried again.
    """
    memory = block.memory
    if memory is None:
        return
    try:
        status, cause = block.store.unregister_buffer(memory.address), None
    except Exception as error:
        status, cause = -1, error
    if status not in (0, None) and not _store_closed(block.store):
        raise BufferPoolError(
            f"BufferPool: unregistration failed for {block.capacity} bytes at "
            f"0x{memory.address:x}: {cause or f'status {status}'}"
        ) from cause
    block.memory = None
    memory.unmap()


def retire_or_abandon(blocks: Iterable[Block]) -> None:
    """Retire each; one that the store refuses to unregister is left mapped for good."""
    for block in blocks:
        try:
            retire_block(block)
        except BufferPoolError:
            block.abandon()


def _store_closed(store: Any) -> bool:
    """Whether the store says that it is closed, which ends all its registrations."""
    check = getattr(store, "health_check", None)
    if check is None:
        return False
    try:
        return bool(check() == _NOT_SET_UP)
    except Exception:
        return False


@functools.lru_cache(maxsize=256)
def _exporter_type(size: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    return type("_Exporter", (ctypes.Array,), {"_type_": ctypes.c_ubyte, "_length_": size})


class BufferLease:
    """Registered memory on loan from a ``BufferPool``.

    Attributes raise ``BufferPoolError`` ("lease is closed") after ``release()``. A lease that is
    dropped without release gives its memory back once the last view of it is gone.

    Example:
        >>> with pool.acquire(5) as lease:                          # doctest: +SKIP
        ...     lease.buffer[:] = b"hello"
        ...     store.put_from("key", lease.ptr, lease.size)
    """

    def __init__(self, block: Block, size: int) -> None:
        self._block: Block | None = block
        self._size = size
        self._exporter: weakref.ref[Any] | None = None
        self._lock = threading.Lock()

    @property
    def ptr(self) -> int:
        """Address of the first byte."""
        return self._open().address

    @property
    def size(self) -> int:
        """Bytes asked for; ``get_into`` may be given this as capacity."""
        self._open()
        return self._size

    @property
    def buffer(self) -> memoryview:
        """A new writable one-dimensional view of format ``B`` and length ``size``.

        The view (and what is made from it: slices, NumPy arrays) keeps the memory alive. Drop
        all of them before ``release()``.
        """
        with self._lock:
            block = self._open()
            exporter: Any = self._exporter() if self._exporter is not None else None
            if exporter is None:
                exporter = _exporter_type(self._size).from_address(block.address)
                exporter.block = block
                self._exporter = weakref.ref(exporter)
            return memoryview(exporter).cast("B")

    @property
    def closed(self) -> bool:
        """Whether the lease was released."""
        return self._block is None

    def release(self) -> None:
        """Give the memory back to the pool; a second call does nothing.

        Raises:
            BufferPoolError: "exported views exist" while a view lives, "unregistration failed"
                when the store keeps overflow memory. The lease stays valid: try again.

        Example:
            >>> lease.release()                                     # doctest: +SKIP
        """
        with self._lock:
            block = self._block
            if block is None:
                return
            if block.pid != os.getpid():
                self._block = None
                return
            if self._exporter is not None and self._exporter() is not None:
                raise BufferPoolError(
                    f"BufferPool: exported views exist of the lease of {self._size} bytes at "
                    f"0x{block.address:x}; drop them before release()"
                )
            block.finish()
            self._block = None

    def _open(self) -> Block:
        block = self._block
        if block is None:
            raise BufferPoolError("BufferPool: the lease is closed")
        return block

    def __enter__(self) -> BufferLease:
        self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except BufferPoolError:
            # The traceback of the caller's own error may hold the view: do not hide that error.
            if error is None:
                raise
            self._block = None

    def __repr__(self) -> str:
        block = self._block
        if block is None:
            return "<BufferLease closed>"
        return f"<BufferLease {self._size} bytes at 0x{block.address:x}>"
