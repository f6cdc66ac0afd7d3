"""Awaitable store calls: same results, a free loop, and no memory freed under a running call."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from fake_store import FakeStore
from mooncake.store.aio import AsyncDistributedStore


def run(
    body: Callable[[FakeStore, AsyncDistributedStore], Awaitable[Any]], workers: int = 4
) -> Any:
    async def main() -> Any:
        store = FakeStore()
        async with AsyncDistributedStore(store, workers) as cache:
            return await body(store, cache)

    return asyncio.run(main())


def test_every_data_call_gives_what_the_store_gives() -> None:
    memory = np.zeros(64, np.uint8)
    ptr = int(memory.ctypes.data)

    async def body(store: FakeStore, cache: AsyncDistributedStore) -> None:
        assert await cache.put("a", b"one") == 0
        assert await cache.upsert("a", b"two", tenant="t") == 0
        assert await cache.put_parts("b", b"x", b"y") == 0
        assert await cache.put_batch(["c", "d"], [b"1", b"2"]) == 0
        assert await cache.batch_put([("e", b"3")]) == 0
        assert await cache.get("a") == b"one"
        assert await cache.get("a", tenant="t") == b"two"
        assert bytes(await cache.get_buffer("b")) == b"xy"
        assert await cache.batch_get(["c", "none", "e"]) == [b"1", b"", b"3"]
        assert (await cache.batch_get_buffer(["none"])) == [None]
        assert await cache.is_exist("a") is True
        assert await cache.batch_is_exist(["a", "none"]) == [1, 0]
        assert await cache.get_size("b") == 2
        assert await cache.remove("none") == -1
        assert await cache.batch_remove(["c", "none"], True) == [0, 0]
        assert await cache.register_buffer(ptr, 64) == 0
        assert await cache.put_from("f", ptr, 8) == 0
        assert await cache.get_into("f", ptr, 64) == 8
        assert await cache.batch_put_from(["g"], [ptr], [4]) == [0]
        assert await cache.batch_get_into(["g", "none"], [ptr, ptr], [4, 4]) == [4, -1]
        assert await cache.batch_put_from_multi_buffers(["h"], [[ptr, ptr]], [[4, 4]]) == [0]
        assert await cache.batch_get_into_multi_buffers(["h"], [[ptr]], [[8]], True) == [8]
        assert await cache.get_into_ranges([ptr], [["h"]], [[[0]]], [[[0]]], [[[3]]]) == [[[3]]]
        assert await cache.unregister_buffer(ptr) == 0

    run(body)


def test_each_method_names_a_call_of_the_store() -> None:
    own = {"call", "close"}
    names = {
        name
        for name, member in inspect.getmembers(AsyncDistributedStore, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }
    assert names - own - {"remove_all", "query_route"} <= set(dir(FakeStore))


def test_errors_come_through_and_a_closed_wrapper_says_so() -> None:
    async def body(store: FakeStore, cache: AsyncDistributedStore) -> None:
        with pytest.raises(ValueError, match="empty"):
            await cache.put("", b"")
        await cache.close()
        await cache.close()
        with pytest.raises(RuntimeError, match="closed"):
            await cache.get("a")

    run(body)
    with pytest.raises(ValueError, match="max_workers"):
        AsyncDistributedStore(FakeStore(), 0)


class Slow:
    """A call that runs until it is let go, and says when it began."""

    def __init__(self) -> None:
        self.began, self.go, self.ended = threading.Event(), threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.began.set()
        assert self.go.wait(10)
        self.ended.set()
        return "done"


async def until(event: threading.Event) -> None:
    end = time.monotonic() + 10
    while not event.is_set():
        assert time.monotonic() < end
        await asyncio.sleep(0.001)


def test_a_cancelled_await_ends_only_after_its_call() -> None:
    async def body(store: FakeStore, cache: AsyncDistributedStore) -> None:
        slow = Slow()
        task = asyncio.ensure_future(cache.call(slow))
        await until(slow.began)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done()
        slow.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert slow.ended.is_set()

    run(body)


def test_wait_for_gives_the_memory_back_only_after_the_call() -> None:
    async def body(store: FakeStore, cache: AsyncDistributedStore) -> None:
        slow = Slow()
        threading.Timer(0.1, slow.go.set).start()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(cache.call(slow), 0.01)
        assert slow.ended.is_set()

    run(body)


def test_a_call_that_has_not_begun_is_taken_back_at_once() -> None:
    async def body(store: FakeStore, cache: AsyncDistributedStore) -> None:
        slow = Slow()
        first = asyncio.ensure_future(cache.call(slow))
        await until(slow.began)
        waiting = asyncio.ensure_future(cache.put("k", b"v"))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        slow.go.set()
        assert await first == "done"
        assert store.calls["put"] == 0

    run(body, workers=1)


def test_a_failing_call_of_a_cancelled_await_is_a_cancellation() -> None:
    async def body(store: FakeStore, cache: AsyncDistributedStore) -> None:
        slow = Slow()

        def fail() -> None:
            slow()
            raise RuntimeError("late")

        task = asyncio.ensure_future(cache.call(fail))
        await until(slow.began)
        task.cancel()
        await asyncio.sleep(0.01)
        slow.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(body)


def test_no_more_calls_run_than_workers_and_the_loop_stays_free() -> None:
    running, peak, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        time.sleep(0.01)
        with lock:
            running -= 1

    async def body(store: FakeStore, cache: AsyncDistributedStore) -> int:
        ticks = 0
        calls = asyncio.gather(*(cache.call(work) for _ in range(20)))
        while not calls.done():
            await asyncio.sleep(0.001)
            ticks += 1
        await calls
        return ticks

    assert run(body, workers=3) > 5
    assert peak <= 3


@pytest.mark.parametrize(
    "error", [StopIteration(3), asyncio.CancelledError(), concurrent.futures.CancelledError()]
)
def test_what_an_event_loop_would_misread_is_a_runtime_error(error: BaseException) -> None:
    def fail() -> None:
        raise error

    async def body(store: FakeStore, cache: AsyncDistributedStore) -> None:
        with pytest.raises(RuntimeError, match=type(error).__name__) as raised:
            await asyncio.wait_for(cache.call(fail), 20)
        assert raised.value.__cause__ is error
        assert await cache.put("a", b"one") == 0

    run(body)
