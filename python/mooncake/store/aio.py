"""Awaitable forms of the store's data calls.

Each call runs in a thread of a bounded pool; the event loop stays free. A cancelled ``await`` ends
only when its call has: until then the store may still read or write the caller's memory, so the
caller must not get control back and free it. A call that has not begun is taken back at once.
``asyncio.wait_for`` and ``asyncio.timeout`` therefore end late by at most the store's own limits.

Example:
    >>> async def main(store):                                          # doctest: +SKIP
    ...     async with AsyncDistributedStore(store) as cache:
    ...         assert await cache.put("key", b"value") == 0
    ...         return await cache.get("key")
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

__all__ = ["AsyncDistributedStore"]

_WORKERS = 8


class AsyncDistributedStore:
    """A store whose data calls are awaited. Use one per event loop; it does not close the store.

    Results, errors and arguments are those of the store's methods of the same name.

    Args:
        store: a MooncakeDistributedStore that is set up.
        max_workers: calls that run at the same time; others wait in order.

    Raises:
        ValueError: ``max_workers`` below 1.

    Example:
        >>> cache = AsyncDistributedStore(store, max_workers=16)        # doctest: +SKIP
        >>> await cache.batch_get(["a", "b"])                           # doctest: +SKIP
        [b'1', b'2']
    """

    def __init__(self, store: Any, max_workers: int = _WORKERS) -> None:
        if max_workers < 1:
            raise ValueError(f"max_workers must be at least 1, not {max_workers}")
        self._store = store
        self._pool = ThreadPoolExecutor(max_workers, "mooncake-aio")
        # The pool's own queue is unbounded; waiting here keeps it short and cancelling cheap.
        self._slots = asyncio.Semaphore(max_workers)
        self._closed = False

    @property
    def store(self) -> Any:
        """The wrapped store."""
        return self._store

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run any function (a tensor method, a bundle transfer) with the same guarantees.

        Raises:
            RuntimeError: after ``close()``, and instead of a StopIteration or a CancelledError
                of the function, which mean something else to an event loop.
            Exception: whatever else the function raises.

        Example:
            >>> await cache.call(store.get_tensor, "weights")           # doctest: +SKIP
        """
        if self._closed:
            raise RuntimeError("AsyncDistributedStore is closed")
        async with self._slots:
            if self._closed:
                raise RuntimeError("AsyncDistributedStore is closed")
            return await _finish(self._pool.submit(_run, function, args, kwargs))

    async def close(self) -> None:
        """Wait for the calls that run and end the threads; idempotent. The store stays open.

        Example:
            >>> await cache.close()                                     # doctest: +SKIP
        """
        self._closed = True
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, functools.partial(self._pool.shutdown, wait=True))

    async def __aenter__(self) -> AsyncDistributedStore:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --- Values -----------------------------------------------------------------------------

    async def put(self, key: str, value: Any, config: Any = None, **options: Any) -> int:
        """0, or -1 on a soft failure.

        Example:
            >>> await cache.put("key", b"value")
            0
        """
        return int(await self.call(self._store.put, key, value, config, **options))

    async def upsert(self, key: str, value: Any, config: Any = None, **options: Any) -> int:
        """0, or -1 on a soft failure.

        Example:
            >>> await cache.upsert("key", b"newer")
            0
        """
        return int(await self.call(self._store.upsert, key, value, config, **options))

    async def put_parts(self, key: str, *parts: Any, **options: Any) -> int:
        """0, or -1 on a soft failure.

        Example:
            >>> await cache.put_parts("key", header, body)
            0
        """
        return int(await self.call(self._store.put_parts, key, *parts, **options))

    async def put_batch(
        self, keys: Sequence[str], values: Sequence[Any], config: Any = None, **options: Any
    ) -> int:
        """One status for all: 0, or negative.

        Example:
            >>> await cache.put_batch(["a", "b"], [b"1", b"2"])
            0
        """
        return int(await self.call(self._store.put_batch, keys, values, config, **options))

    async def batch_put(self, items: Any = None, **options: Any) -> int:
        """One status for all: 0, or negative.

        Example:
            >>> await cache.batch_put([("a", b"1"), ("b", b"2")])
            0
        """
        return int(await self.call(self._store.batch_put, items, **options))

    async def get(self, key: str, **options: Any) -> bytes:
        """The value; ``b""`` on a miss.

        Example:
            >>> await cache.get("key")
            b'value'
        """
        value: bytes = await self.call(self._store.get, key, **options)
        return value

    async def get_buffer(self, key: str, **options: Any) -> Any:
        """A read-only buffer with ``len``; None on a miss.

        Example:
            >>> len(await cache.get_buffer("key"))
            5
        """
        return await self.call(self._store.get_buffer, key, **options)

    async def batch_get(self, keys: Sequence[str], **options: Any) -> list[bytes]:
        """Values in order; ``b""`` per missing item.

        Example:
            >>> await cache.batch_get(["a", "missing"])
            [b'1', b'']
        """
        values: list[bytes] = await self.call(self._store.batch_get, keys, **options)
        return values

    async def batch_get_buffer(self, keys: Sequence[str], **options: Any) -> list[Any]:
        """Buffers in order; None per missing item.

        Example:
            >>> await cache.batch_get_buffer(["missing"])
            [None]
        """
        values: list[Any] = await self.call(self._store.batch_get_buffer, keys, **options)
        return values

    # --- Keys -------------------------------------------------------------------------------

    async def is_exist(self, key: str, **options: Any) -> bool:
        """Whether the key has a value.

        Example:
            >>> await cache.is_exist("key")
            True
        """
        return bool(await self.call(self._store.is_exist, key, **options))

    async def batch_is_exist(self, keys: Sequence[str], **options: Any) -> list[int]:
        """1, 0 or negative (could not tell) per key.

        Example:
            >>> await cache.batch_is_exist(["a", "missing"])
            [1, 0]
        """
        return list(await self.call(self._store.batch_is_exist, keys, **options))

    async def get_size(self, key: str, **options: Any) -> int:
        """Bytes of the value; -1 on a miss.

        Example:
            >>> await cache.get_size("key")
            5
        """
        return int(await self.call(self._store.get_size, key, **options))

    async def remove(self, key: str, force: bool = False, **options: Any) -> int:
        """0; -1 for a missing key without ``force``.

        Example:
            >>> await cache.remove("key")
            0
        """
        return int(await self.call(self._store.remove, key, force, **options))

    async def batch_remove(
        self, keys: Sequence[str], force: bool = False, **options: Any
    ) -> list[int]:
        """One status per key.

        Example:
            >>> await cache.batch_remove(["a", "missing"])
            [0, -1]
        """
        return list(await self.call(self._store.batch_remove, keys, force, **options))

    async def remove_all(self, force: bool = False, **options: Any) -> int:
        """Number of keys removed.

        Example:
            >>> await cache.remove_all()
            2
        """
        return int(await self.call(self._store.remove_all, force, **options))

    async def query_route(self, key: str, **options: Any) -> dict[str, Any] | None:
        """The route, or None.

        Example:
            >>> (await cache.query_route("key"))["state"]
            'Active'
        """
        route: dict[str, Any] | None = await self.call(self._store.query_route, key, **options)
        return route

    # --- Registered memory ------------------------------------------------------------------

    async def register_buffer(self, ptr: int, size: int) -> int:
        """0, or -1.

        Example:
            >>> await cache.register_buffer(ptr, 1 << 20)
            0
        """
        return int(await self.call(self._store.register_buffer, ptr, size))

    async def unregister_buffer(self, ptr: int, size: int | None = None) -> int:
        """0, or -1; waits for transfers that use the range.

        Example:
            >>> await cache.unregister_buffer(ptr)
            0
        """
        return int(await self.call(self._store.unregister_buffer, ptr, size))

    async def put_from(
        self, key: str, ptr: int, size: int, config: Any = None, **options: Any
    ) -> int:
        """0, or -1 on a soft failure. The memory is untouched once this returns or raises.

        Example:
            >>> await cache.put_from("key", ptr, 4096)
            0
        """
        return int(await self.call(self._store.put_from, key, ptr, size, config, **options))

    async def get_into(self, key: str, ptr: int, size: int, **options: Any) -> int:
        """Bytes read; -1 on a miss, another negative code for what went wrong.

        The memory is untouched once this returns or raises.

        Example:
            >>> await cache.get_into("key", ptr, 4096)
            5
        """
        return int(await self.call(self._store.get_into, key, ptr, size, **options))

    async def batch_put_from(
        self,
        keys: Sequence[Any],
        ptrs: Sequence[int] | None = None,
        sizes: Sequence[int] | None = None,
        config: Any = None,
        **options: Any,
    ) -> list[int]:
        """0 or negative per item; three lists, or one of tuples, as the store takes them.

        Example:
            >>> await cache.batch_put_from(["a"], [ptr], [64])
            [0]
        """
        call = self._store.batch_put_from
        return list(await self.call(call, keys, ptrs, sizes, config, **options))

    async def batch_get_into(
        self,
        keys: Sequence[Any],
        ptrs: Sequence[int] | None = None,
        sizes: Sequence[int] | None = None,
        **options: Any,
    ) -> list[int]:
        """Bytes read or negative per item; three lists, or one of tuples.

        Example:
            >>> await cache.batch_get_into(["a", "missing"], [ptr, ptr + 64], [64, 64])
            [64, -1]
        """
        return list(await self.call(self._store.batch_get_into, keys, ptrs, sizes, **options))

    async def batch_put_from_multi_buffers(
        self,
        keys: Sequence[Any],
        ptrs: Sequence[Sequence[int]] | None = None,
        sizes: Sequence[Sequence[int]] | None = None,
        config: Any = None,
        **options: Any,
    ) -> list[int]:
        """0 or negative per item; three lists, or one of tuples, as the store takes them.

        Example:
            >>> await cache.batch_put_from_multi_buffers(["a"], [[k, v]], [[64, 64]])
            [0]
        """
        call = self._store.batch_put_from_multi_buffers
        return list(await self.call(call, keys, ptrs, sizes, config, **options))

    async def batch_get_into_multi_buffers(
        self,
        keys: Sequence[Any],
        ptrs: Sequence[Sequence[int]] | None = None,
        sizes: Sequence[Sequence[int]] | None = None,
        prefer_alloc_in_same_node: bool = False,
        **options: Any,
    ) -> list[int]:
        """Bytes read or negative per item; three lists, or one of tuples.

        Example:
            >>> await cache.batch_get_into_multi_buffers(["a"], [[k, v]], [[64, 64]])
            [128]
        """
        call = self._store.batch_get_into_multi_buffers
        return list(await self.call(call, keys, ptrs, sizes, prefer_alloc_in_same_node, **options))

    async def get_into_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[str]],
        all_dst_offsets: Sequence[Sequence[Sequence[int]]],
        all_src_offsets: Sequence[Sequence[Sequence[int]]],
        all_sizes: Sequence[Sequence[Sequence[int]]],
        **options: Any,
    ) -> list[list[list[int]]]:
        """Bytes read or negative per buffer, key and fragment.

        Example:
            >>> await cache.get_into_ranges([ptr], [["a"]], [[[0]]], [[[16]]], [[[32]]])
            [[[32]]]
        """
        lists = (buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes)
        results: list[list[list[int]]] = await self.call(
            self._store.get_into_ranges, *lists, **options
        )
        return results


def _run(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call, on a thread of the pool."""
    try:
        return function(*args, **kwargs)
    except (StopIteration, asyncio.CancelledError, CancelledError) as error:
        # No future takes a StopIteration, and who waits takes a CancelledError for its own.
        raise RuntimeError(f"the function raised {type(error).__name__}: {error}") from error


async def _finish(future: Future[Any]) -> Any:
    """The call's outcome. A cancellation goes up only when the call is over, or never began."""
    waiting = asyncio.wrap_future(future)
    cancelled: asyncio.CancelledError | None = None
    while True:
        try:
            outcome = await asyncio.shield(waiting)
        except asyncio.CancelledError as error:
            if future.cancel() or waiting.cancelled():
                raise
            # Running: wait on, however often we are cancelled.
            cancelled = error
        except BaseException:
            if cancelled is not None:
                raise cancelled from None
            raise
        else:
            if cancelled is not None:
                raise cancelled
            return outcome
