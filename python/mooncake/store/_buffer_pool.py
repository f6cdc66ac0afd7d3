"""BufferPool: pooled temporary buffers for ``put_from``, ``get_into`` and their batch forms.

A lease is a slice of the store's own registered local buffer while there is room in it, and
separately registered overflow memory after that. Whoever can still see the bytes keeps them
alive: lease -> block, view -> exporter -> block, block -> native slice or mapping, and store.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from types import TracebackType

from ._aligned_memory import AlignedMemory
from ._buffer_pool_block import (
    Block,
    BufferLease,
    BufferPoolError,
    BufferPoolValueError,
    PoolStore,
    register_overflow,
    retire_block,
    retire_or_abandon,
)
from ._buffer_pool_checks import (
    Waiter,
    check_settings,
    check_size,
    check_timeout,
    local_capacity,
    size_class,
    wait_gate,
)

__all__ = ["BufferLease", "BufferPool", "BufferPoolError", "BufferPoolValueError"]


class BufferPool:
    """Leases of registered memory for the pointer calls of a store.

    Waiting acquires are served first come, first served: nobody overtakes a waiter, so a large
    request is not starved by small ones.

    Args:
        store: a real store that is set up with ``local_buffer_size > 0`` (duck-typed:
            ``local_buffer_pool_capacity()``, ``local_buffer_pool_try_acquire(size)``,
            ``register_buffer(ptr, size)``, ``unregister_buffer(ptr)``).
        max_bytes: limit in bytes on all live leases plus prewarmed memory, taken as given;
            0 means twice the local buffer's capacity.
        min_size_class: bytes; smallest prewarmed buffer. Classes are this times 1, 2, 4, ...
        max_size_class: bytes; the largest class (None: ``max_bytes``). Larger requests are never
            served from prewarmed memory.
        alignment: bytes, a power of two; alignment of overflow memory.
        block_on_exhaustion: what ``acquire(block=None)`` does when the limits are reached.
        default_timeout: seconds that a blocking acquire waits at most; None: without limit.
        max_regions: most leases alive at once; None: no limit.
        prewarm_size, prewarm_count: ``prewarm(prewarm_size, prewarm_count)`` at construction.

    Raises:
        BufferPoolError: (a RuntimeError) no usable store, or its local buffer has no capacity.
        BufferPoolValueError: (also a ValueError) an argument is out of range; it is named.

    Example:
        >>> pool = BufferPool(store, max_bytes=32 << 20)            # doctest: +SKIP
        >>> with pool.acquire(4096) as lease:                       # doctest: +SKIP
        ...     n = store.get_into("key", lease.ptr, lease.size)
        ...     value = bytes(lease.buffer[:n])
        >>> pool.close()                                            # doctest: +SKIP
    """

    def __init__(
        self,
        store: PoolStore,
        max_bytes: int = 0,
        *,
        min_size_class: int = 64 * 1024,
        max_size_class: int | None = None,
        alignment: int = 8 * 1024 * 1024,
        block_on_exhaustion: bool = True,
        default_timeout: float | None = None,
        max_regions: int | None = None,
        prewarm_size: int | None = None,
        prewarm_count: int = 0,
    ) -> None:
        if store is None:
            raise BufferPoolError("BufferPool: the store is not initialized (None)")
        check_settings(max_bytes, min_size_class, max_size_class, alignment, max_regions)
        check_timeout("default_timeout", default_timeout)
        capacity = local_capacity(store)
        self._store = store
        self._max_bytes = max_bytes or 2 * capacity
        self._min_class = min_size_class
        self._max_class = self._max_bytes if max_size_class is None else max_size_class
        self._alignment = alignment
        self._block = bool(block_on_exhaustion)
        self._timeout = default_timeout
        self._max_regions = max_regions
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._state = "open"
        self._leases = 0  # Live leases, and admitted ones that are still being allocated.
        self._active = 0  # Bytes of those.
        self._inflight = 0
        self._idle: list[Block] = []
        self._idle_bytes = 0
        self._waiters: deque[Waiter] = deque()
        self._settled: deque[threading.Lock] = deque()
        # Finalizers may run anywhere, also while this thread holds the lock: they only append
        # here, and whoever leaves the lock books it.
        self._returns: deque[tuple[int, Block | None]] = deque()
        if prewarm_count or prewarm_size is not None:
            self.prewarm(prewarm_size or 0, prewarm_count)

    @property
    def max_bytes(self) -> int:
        """Effective limit in bytes on live leases plus prewarmed memory."""
        return self._max_bytes

    @property
    def closed(self) -> bool:
        """Whether ``close()`` has succeeded."""
        return self._state == "closed"

    def stats(self) -> dict[str, int]:
        """Current use: ``active_leases``, ``active_bytes``, ``idle_bytes`` (prewarmed and free),
        ``idle_buffers``, ``waiters`` and ``max_bytes``.

        Example:
            >>> pool.stats()["active_leases"]                       # doctest: +SKIP
            0
        """
        self._lock.acquire()
        try:
            self._book()
            return {
                "active_leases": self._leases,
                "active_bytes": self._active,
                "idle_bytes": self._idle_bytes,
                "idle_buffers": len(self._idle),
                "waiters": len(self._waiters),
                "max_bytes": self._max_bytes,
            }
        finally:
            self._leave()

    def acquire(
        self, size: int, block: bool | None = None, timeout: float | None = None
    ) -> BufferLease:
        """Lease ``size`` bytes of registered memory; contents are undefined.

        Args:
            size: bytes, 0 allowed (a lease without bytes that still counts as one).
            block: wait when the limits are reached; None: the pool's ``block_on_exhaustion``.
            timeout: seconds to wait at most; None: the pool's ``default_timeout``.

        Returns:
            The lease; give it back with ``release()`` or a ``with`` block.

        Raises:
            BufferPoolError: the size exceeds ``max_bytes``; the pool is exhausted and
                ``block`` is false, or others wait already; the timeout passed; the pool is
                closed; overflow memory could not be mapped or registered. With the numbers.
            BufferPoolValueError: negative size or timeout.

        Example:
            >>> lease = pool.acquire(4096, block=True, timeout=1.0)  # doctest: +SKIP
        """
        self._check_process()
        size = check_size(size)
        wanted = max(size, 1)
        timeout = self._timeout if timeout is None else timeout
        check_timeout("timeout", timeout)
        if wanted > self._max_bytes:
            raise BufferPoolError(
                f"BufferPool: {size} bytes exceeds pool capacity of {self._max_bytes} bytes"
            )
        self._admit(wanted, self._block if block is None else block, timeout)
        try:
            taken = self._allocate(wanted)
        except BaseException:
            self._settle()
            self.give_back(wanted, None)
            raise
        self._settle()
        return BufferLease(taken, size)

    def buffer(
        self, size: int, block: bool | None = None, timeout: float | None = None
    ) -> BufferLease:
        """The same as ``acquire``.

        Example:
            >>> with pool.buffer(4096) as lease: ...  # doctest: +SKIP
        """
        return self.acquire(size, block, timeout)

    def prewarm(self, size: int, count: int) -> None:
        """Map and register ``count`` overflow buffers now and keep them for reuse until close.

        They serve requests of the size class of ``size`` once the local buffer is exhausted,
        without registering anything. They count towards ``max_bytes``; when leases need the
        room, idle ones are given up.

        Args:
            size: bytes, 1 .. ``max_size_class``; rounded up to its size class.
            count: buffers, >= 0.

        Raises:
            BufferPoolValueError: size or count out of range.
            BufferPoolError: no room under ``max_bytes`` (then none is added), or mapping or
                registration failed (those made before stay).

        Example:
            >>> pool.prewarm(1 << 20, 4)                            # doctest: +SKIP
        """
        self._check_process()
        size, count = check_size(size), check_size(count)
        if size < 1 or size > self._max_class:
            raise BufferPoolValueError(
                f"BufferPool: prewarm size must be positive and at most max_size_class "
                f"({self._max_class}), not {size}"
            )
        capacity = size_class(size, self._min_class, self._max_class)
        self._reserve_idle(capacity, count)
        for made in range(count):
            try:
                memory = register_overflow(self._store, capacity, self._alignment)
            except BaseException:
                self._add_idle(None, -capacity * (count - made))
                raise
            self._add_idle(self._overflow_block(memory, capacity, kept=True), 0)

    def close(self) -> None:
        """Close the pool and give prewarmed memory back; idempotent.

        Waits for acquires that are being allocated. Later acquires fail.

        Raises:
            BufferPoolError: leases (or views of dropped leases) are still alive, with their
                number and bytes, or a prewarmed buffer could not be unregistered. The pool stays
                usable.

        Example:
            >>> pool.close()                                        # doctest: +SKIP
        """
        if os.getpid() != self._pid:
            return
        self._begin_close()
        failed: BufferPoolError | None = None
        while True:
            self._lock.acquire()
            try:
                self._book()
                if failed is None and self._leases:
                    failed = BufferPoolError(
                        f"BufferPool: cannot close with {self._leases} active leases "
                        f"({self._active} bytes); release them first"
                    )
                if failed is not None or not self._idle:
                    self._state = "open" if failed else "closed"
                    self._book()
                    break
                block = self._idle.pop()
                self._idle_bytes -= block.capacity
            finally:
                self._leave()
            try:
                retire_block(block)
            except BufferPoolError as error:
                self._add_idle(block, block.capacity)
                failed = error
        if failed is not None:
            raise failed

    def __enter__(self) -> BufferPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<BufferPool {self._state}: {self._leases} leases, {self._active} of "
            f"{self._max_bytes} bytes>"
        )

    # --- Called by blocks -------------------------------------------------------------------

    def give_back(self, charge: int, kept: Block | None) -> None:
        """Book the end of one lease of ``charge`` bytes and wake waiters. Safe in finalizers.

        ``kept`` is the prewarmed block that becomes idle again. Not for users.
        """
        self._returns.append((charge, kept))
        self._pump()

    # --- Admission --------------------------------------------------------------------------

    def _fits(self, size: int) -> bool:
        if self._max_regions is not None and self._leases >= self._max_regions:
            return False
        return self._active + size <= self._max_bytes

    def _take(self, size: int) -> None:
        self._leases += 1
        self._active += size
        self._inflight += 1

    def _admit(self, size: int, block: bool, timeout: float | None) -> None:
        """Reserve ``size`` bytes and one lease, or raise."""
        self._lock.acquire()
        try:
            self._book()
            self._check_open()
            if not self._waiters and self._fits(size):
                self._take(size)
                return
            if not block:
                raise BufferPoolError(self._shortage("exhausted", size))
            waiter = Waiter(size)
            self._waiters.append(waiter)
        finally:
            self._leave()
        try:
            wait_gate(waiter.gate, timeout)
        except BaseException:
            self._withdraw(waiter, "interrupted")
            raise
        if not waiter.granted:
            self._withdraw(waiter, "timed out waiting for buffer", keep_grant=True)

    def _withdraw(self, waiter: Waiter, why: str, keep_grant: bool = False) -> None:
        """Leave the queue. A grant that came meanwhile is kept or given back as asked."""
        self._lock.acquire()
        try:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            granted = waiter.granted
            if keep_grant and not granted:
                self._check_open()
                raise BufferPoolError(self._shortage(why, waiter.size))
        finally:
            self._book()
            self._leave()
        if granted and not keep_grant:
            self._settle()
            self.give_back(waiter.size, None)

    def _shortage(self, what: str, size: int) -> str:
        regions = "" if self._max_regions is None else f" of {self._max_regions}"
        return (
            f"BufferPool: {what}: {size} bytes wanted, {self._active} of {self._max_bytes} bytes "
            f"and {self._leases}{regions} leases in use, {len(self._waiters)} waiting"
        )

    def _book(self) -> None:
        """Book returns and serve waiters in order. The lock is held."""
        while self._returns:
            charge, kept = self._returns.popleft()
            self._leases -= 1
            self._active -= charge
            if kept is not None:
                self._idle.append(kept)
                self._idle_bytes += kept.capacity
        while self._waiters and self._state == "open" and self._fits(self._waiters[0].size):
            waiter = self._waiters.popleft()
            self._take(waiter.size)
            waiter.granted = True
            waiter.gate.release()
        while self._waiters and self._state == "closed":
            self._waiters.popleft().gate.release()

    def _leave(self) -> None:
        self._lock.release()
        self._pump()

    def _pump(self) -> None:
        """Book what finalizers left, unless somebody holds the lock, who then does it."""
        while self._returns and self._lock.acquire(blocking=False):
            try:
                self._book()
            finally:
                self._lock.release()

    def _settle(self) -> None:
        """One allocation has ended: drop idle memory over the limit, tell a waiting close."""
        surplus: list[Block] = []
        self._lock.acquire()
        try:
            self._inflight -= 1
            while self._idle and self._active + self._idle_bytes > self._max_bytes:
                surplus.append(self._idle.pop())
                self._idle_bytes -= surplus[-1].capacity
            if not self._inflight:
                while self._settled:
                    self._settled.popleft().release()
        finally:
            self._leave()
        retire_or_abandon(surplus)

    # --- Allocation -------------------------------------------------------------------------

    def _allocate(self, size: int) -> Block:
        native = self._store.local_buffer_pool_try_acquire(size)
        if native is not None:
            return Block(self, self._store, int(native.ptr), size, size, native=native)
        kept = self._take_idle(size)
        if kept is not None:
            return kept
        memory = register_overflow(self._store, size, self._alignment)
        return self._overflow_block(memory, size, kept=False)

    def _overflow_block(self, memory: AlignedMemory, capacity: int, kept: bool) -> Block:
        block = Block(self, self._store, memory.address, capacity, capacity, memory=memory)
        block.kept = kept
        return block

    def _take_idle(self, size: int) -> Block | None:
        if size > self._max_class:
            return None
        wanted = size_class(size, self._min_class, self._max_class)
        self._lock.acquire()
        try:
            for index, block in enumerate(self._idle):
                if block.capacity == wanted:
                    del self._idle[index]
                    # The whole buffer is in use now: the rest moves from idle to active.
                    self._idle_bytes -= block.capacity
                    self._active += block.capacity - size
                    return block
            return None
        finally:
            self._leave()

    def _reserve_idle(self, capacity: int, count: int) -> None:
        self._lock.acquire()
        try:
            self._book()
            self._check_open()
            room = self._max_bytes - self._active - self._idle_bytes
            if capacity * count > room:
                raise BufferPoolError(
                    f"BufferPool: prewarm of {count} x {capacity} bytes exceeds pool capacity: "
                    f"{room} of {self._max_bytes} bytes are free"
                )
            self._idle_bytes += capacity * count
        finally:
            self._leave()

    def _add_idle(self, block: Block | None, change: int) -> None:
        self._lock.acquire()
        try:
            if block is not None:
                self._idle.append(block)
            self._idle_bytes += change
        finally:
            self._leave()

    # --- State ------------------------------------------------------------------------------

    def _begin_close(self) -> None:
        while True:
            self._lock.acquire()
            try:
                if self._state == "closed":
                    return
                self._state = "closing"
                if not self._inflight:
                    return
                gate = threading.Lock()
                gate.acquire()
                self._settled.append(gate)
            finally:
                self._leave()
            try:
                gate.acquire()
            except BaseException:
                self._state = "open"
                raise

    def _check_open(self) -> None:
        if self._state != "open":
            raise BufferPoolError(f"BufferPool: the pool is {self._state}")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise BufferPoolError(
                f"BufferPool: made in process {self._pid}, cannot be used in its forked child "
                f"{os.getpid()}"
            )
