"""BufferPool and its leases over the fake store."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from fake_store import FakeStore
from mooncake.store._buffer_pool import BufferPool, BufferPoolError

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


# --- construction -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"min_size_class": 0}, "min_size_class must be positive"),
        ({"alignment": 0}, "alignment must be positive"),
        ({"alignment": 3000}, "alignment must be a power of two"),
        ({"alignment": 4}, "alignment"),
        ({"default_timeout": -1}, "default_timeout must be non-negative"),
        ({"default_timeout": float("nan")}, "default_timeout must be non-negative"),
        ({"max_bytes": -1}, "max_bytes must be non-negative"),
        ({"max_regions": 0}, "max_regions must be positive"),
        ({"max_size_class": 10}, "max_size_class"),
        ({"prewarm_count": 1}, "prewarm size"),
    ],
)
def test_a_bad_setting_is_named(settings: dict[str, object], text: str) -> None:
    with pytest.raises(RuntimeError, match=text) as caught:
        make(**settings)
    assert isinstance(caught.value, ValueError)


def test_no_store_is_refused() -> None:
    with pytest.raises(RuntimeError, match="not initialized"):
        BufferPool(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("store", [FakeStore(0), FakeStore(4096, dummy=True), object()])
def test_a_store_without_local_buffer_is_refused(store: object) -> None:
    with pytest.raises(RuntimeError, match="local buffer"):
        BufferPool(store)  # type: ignore[arg-type]


def test_max_bytes_is_taken_as_given_and_zero_means_twice_the_local_buffer() -> None:
    assert make(64 * KIB, max_bytes=1000)[1].max_bytes == 1000
    assert make(64 * KIB)[1].max_bytes == 128 * KIB


def test_a_pool_smaller_than_the_local_buffer_keeps_its_own_limit() -> None:
    _, pool = make(64 * KIB, max_bytes=1000)
    with pytest.raises(BufferPoolError, match="1001 bytes exceeds pool capacity of 1000"):
        pool.acquire(1001)
    lease = pool.acquire(1000)
    with pytest.raises(BufferPoolError, match="exhausted: 1 bytes wanted, 1000 of 1000"):
        pool.acquire(1, block=False)
    lease.release()


# --- leases -------------------------------------------------------------------------------------


def test_a_local_lease_round_trips_through_the_store_without_any_registration() -> None:
    store, pool = make()
    with pool.acquire(5) as writer:
        writer.buffer[:] = b"hello"
        assert store.put_from("key", writer.ptr, writer.size) == 0
    with pool.buffer(9) as reader:
        assert store.get_into("key", reader.ptr, reader.size) == 5
        assert bytes(reader.buffer[:5]) == b"hello"
    pool.close()
    assert store.calls["register_buffer"] == store.calls["unregister_buffer"] == 0


def test_a_buffer_is_a_new_writable_byte_view_each_time() -> None:
    _, pool = make()
    with pool.acquire(7) as lease:
        one, two = lease.buffer, lease.buffer
        assert one is not two
        assert (one.format, one.ndim, one.shape, one.readonly) == ("B", 1, (7,), False)
        one[0] = 9
        assert two[0] == 9
        del one, two


@pytest.mark.parametrize("size", [0, 1, 128 * KIB + 1])
def test_a_lease_reports_the_size_that_was_asked_for(size: int) -> None:
    _, pool = make(64 * KIB, max_bytes=1 << 20)
    with pool.acquire(size) as lease:
        assert (lease.size, len(lease.buffer)) == (size, size)
        assert lease.ptr % 64 == 0


@pytest.mark.parametrize("size", [1 << 64, (1 << 64) - 1, 1 << 47])
def test_an_absurd_size_is_refused(size: int) -> None:
    _, pool = make()
    with pytest.raises(BufferPoolError, match="exceeds pool capacity"):
        pool.acquire(size)


def test_a_mapping_that_the_kernel_refuses_leaves_the_pool_usable() -> None:
    _, pool = make(64 * KIB, max_bytes=1 << 62)
    with pytest.raises(BufferPoolError, match="overflow allocation failed"):
        pool.acquire(1 << 50)
    assert pool.stats()["active_bytes"] == 0
    pool.acquire(10).release()


@pytest.mark.parametrize(("size", "kind"), [(-1, ValueError), ("7", TypeError), (1.5, TypeError)])
def test_a_bad_size_is_refused(size: object, kind: type[Exception]) -> None:
    _, pool = make()
    with pytest.raises(kind):
        pool.acquire(size)  # type: ignore[arg-type]


def test_a_released_lease_is_closed_and_a_second_release_does_nothing() -> None:
    _, pool = make()
    lease = pool.acquire(8)
    lease.release()
    lease.release()
    for name in ("ptr", "size", "buffer"):
        with pytest.raises(RuntimeError, match="lease is closed"):
            getattr(lease, name)
    assert pool.stats()["active_leases"] == 0


@pytest.mark.parametrize("local", [64 * KIB, 16])
def test_release_under_a_live_view_is_refused_and_works_once_the_view_is_gone(local: int) -> None:
    _, pool = make(local, max_bytes=4096)
    lease = pool.acquire(100)
    part = lease.buffer[10:20]
    with pytest.raises(RuntimeError, match="exported views exist"):
        lease.release()
    part[0] = 1
    assert lease.size == 100
    part.release()
    lease.release()


def test_with_does_not_hide_the_callers_error_behind_a_live_view() -> None:
    _, pool = make()
    with pytest.raises(KeyError), pool.acquire(10) as lease:
        view = lease.buffer
        raise KeyError("mine")
    assert view[0] is not None
    del view
    assert pool.stats()["active_leases"] == 0


def test_with_reports_a_live_view() -> None:
    _, pool = make()
    with pytest.raises(RuntimeError, match="exported views exist"), pool.acquire(10) as lease:
        view = lease.buffer
    del view
    lease.release()


@pytest.mark.parametrize("local", [64 * KIB, 16])
def test_a_dropped_lease_is_reclaimed_when_its_last_view_dies(local: int) -> None:
    store, pool = make(local, max_bytes=4096)
    lease = pool.acquire(100)
    view = lease.buffer
    del lease
    gc.collect()
    view[99] = 7
    assert pool.stats()["active_leases"] == 1
    with pytest.raises(RuntimeError, match="active leases"):
        pool.close()
    del view
    assert pool.stats()["active_leases"] == 0
    assert store.registered == 0
    pool.close()


def test_overflow_is_registered_once_per_lease_and_unregistered_on_release() -> None:
    store, pool = make(64, max_bytes=1 << 20, alignment=1 << 16)
    for _ in range(2):
        with pool.acquire(5000) as lease:
            assert lease.ptr % (1 << 16) == 0
            lease.buffer[4999] = 3
            assert store.put_from("k", lease.ptr, 5000) == 0
    assert store.calls["register_buffer"] == store.calls["unregister_buffer"] == 2


def test_failed_registration_frees_the_memory_and_the_reservation() -> None:
    store, pool = make(64, max_bytes=1 << 20)
    store.fail["register_buffer"] = [-1, OSError("no")]
    for text in ("status -1", "no"):
        with pytest.raises(BufferPoolError, match=f"registration of 5000 bytes failed: {text}"):
            pool.acquire(5000)
    assert pool.stats()["active_bytes"] == 0


def test_failed_unregistration_keeps_the_lease_open_and_can_be_tried_again() -> None:
    store, pool = make(64, max_bytes=1 << 20)
    lease = pool.acquire(5000)
    store.fail["unregister_buffer"] = [-1, RuntimeError("busy")]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="unregistration failed"):
            lease.release()
        lease.buffer[0] = 1
    lease.release()
    assert store.registered == 0


def test_dropping_a_lease_retries_the_unregistration() -> None:
    store, pool = make(64, max_bytes=1 << 20)
    lease = pool.acquire(5000)
    store.fail["unregister_buffer"] = [-1, -1]
    del lease
    assert store.registered == 0
    assert pool.stats()["active_leases"] == 0


def test_memory_that_stays_registered_is_leaked_not_freed() -> None:
    store, pool = make(64, max_bytes=1 << 20)
    lease = pool.acquire(5000)
    ptr = lease.ptr
    store.fail["unregister_buffer"] = [-1, -1, -1]
    del lease
    assert pool.stats()["active_leases"] == 0
    assert store.put_from("k", ptr, 5000) == 0  # Still mapped: reading it does not fault.


# --- admission ----------------------------------------------------------------------------------


def test_max_regions_bounds_live_leases() -> None:
    _, pool = make(max_regions=1)
    lease = pool.acquire(1)
    with pytest.raises(RuntimeError, match="exhausted: 1 bytes wanted.*1 of 1 leases"):
        pool.acquire(1, False)
    lease.release()
    pool.acquire(1, False).release()


def test_a_timeout_is_bounded_and_says_so() -> None:
    _, pool = make(max_regions=1, default_timeout=0.02)
    lease = pool.acquire(1)
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="timed out waiting for buffer"):
        pool.acquire(1)
    with pytest.raises(RuntimeError, match="timed out waiting for buffer"):
        pool.acquire(1, True, 0)
    assert time.monotonic() - start < 2
    with pytest.raises(RuntimeError, match="non-negative"):
        pool.acquire(1, True, -1)
    assert pool.stats()["waiters"] == 0
    lease.release()


def test_a_waiting_acquire_gets_a_late_release() -> None:
    _, pool = make(max_regions=1)
    lease = pool.acquire(1)
    timer = threading.Timer(0.05, lease.release)
    timer.start()
    pool.acquire(1, timeout=10).release()
    timer.join()


def test_a_dropped_lease_wakes_a_waiter() -> None:
    _, pool = make(max_regions=1)
    leases = [pool.acquire(1)]
    timer = threading.Timer(0.05, leases.clear)
    timer.start()
    pool.acquire(1, timeout=10).release()
    timer.join()


def test_waiters_are_served_in_order_and_nobody_overtakes() -> None:
    _, pool = make(64 * KIB, max_bytes=1000)
    held = [pool.acquire(500), pool.acquire(500)]
    order: list[int] = []

    def wait(name: int, size: int) -> None:
        lease = pool.acquire(size)
        order.append(name)
        lease.release()

    threads = []
    for name, size in enumerate([900, 200, 10]):
        threads.append(threading.Thread(target=wait, args=(name, size)))
        threads[-1].start()
        wait_until(lambda: pool.stats()["waiters"] == len(threads))
    held.pop().release()
    time.sleep(0.02)
    assert order == []  # 500 bytes are free, but the head of the queue wants 900.
    with pytest.raises(RuntimeError, match="exhausted"):
        pool.acquire(10, block=False)
    held.pop().release()
    for thread in threads:
        thread.join(5)
    assert order[0] == 0
    assert sorted(order) == [0, 1, 2]


def test_a_timed_out_head_lets_the_next_waiter_through() -> None:
    _, pool = make(64 * KIB, max_bytes=1000)
    held = pool.acquire(500)
    done = threading.Event()

    def small() -> None:
        pool.acquire(10).release()
        done.set()

    def big() -> None:
        with pytest.raises(RuntimeError, match="timed out"):
            pool.acquire(900, timeout=0.2)

    first = threading.Thread(target=big)
    first.start()
    wait_until(lambda: pool.stats()["waiters"] == 1)
    second = threading.Thread(target=small)
    second.start()
    assert done.wait(5)
    first.join()
    second.join()
    held.release()


def test_an_interrupted_wait_leaves_the_queue() -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    _, pool = make(max_regions=1)
    lease = pool.acquire(1)
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(Stop):
            pool.acquire(1)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert pool.stats()["waiters"] == 0
    lease.release()
    pool.acquire(1, False).release()
    pool.close()


def test_many_threads_never_pass_the_limits_and_leave_nothing() -> None:
    store, pool = make(4096, max_bytes=8192, max_regions=3)
    peak: list[int] = []

    def work(seed: int) -> None:
        for step in range(100):
            with pool.acquire((seed * 37 + step * 101) % 4000) as lease:
                peak.append(pool.stats()["active_bytes"])
                assert pool.stats()["active_leases"] <= 3
                lease.buffer[:] = bytes(lease.size)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert max(peak) <= 8192
    assert pool.stats()["active_leases"] == pool.stats()["active_bytes"] == 0
    assert store.registered == 0
    pool.close()


def test_many_acquires_register_nothing() -> None:
    store, pool = make()
    for _ in range(20_000):
        pool.acquire(4096).release()
    assert store.calls["register_buffer"] == 0


# --- prewarm ------------------------------------------------------------------------------------


def test_prewarmed_buffers_are_registered_once_and_reused() -> None:
    store, pool = make(64, max_bytes=1 << 20, min_size_class=4096)
    pool.prewarm(5000, 2)
    assert store.calls["register_buffer"] == 2
    for _ in range(5):
        with pool.acquire(5000), pool.acquire(8192):
            assert pool.stats()["idle_buffers"] == 0
    assert store.calls["register_buffer"] == 2
    assert pool.stats()["idle_bytes"] == 16384
    pool.close()
    assert store.registered == 0


def test_prewarm_at_construction_and_a_dropped_prewarmed_lease_returns() -> None:
    store, pool = make(
        64, max_bytes=1 << 20, min_size_class=4096, prewarm_size=4096, prewarm_count=1
    )
    lease = pool.acquire(100)
    assert pool.acquire(3000).ptr != lease.ptr
    del lease
    assert pool.stats()["idle_buffers"] == 1
    pool.close()
    assert store.registered == 0


def test_prewarm_beyond_the_limit_is_refused_with_the_numbers() -> None:
    _, pool = make(64, max_bytes=8192, min_size_class=4096)
    with pytest.raises(RuntimeError, match="3 x 4096 bytes exceeds.*8192 of 8192"):
        pool.prewarm(4096, 3)
    with pytest.raises(ValueError, match="prewarm size"):
        pool.prewarm(8193, 1)
    assert pool.stats()["idle_bytes"] == 0


def test_a_failed_prewarm_keeps_what_was_made() -> None:
    store, pool = make(64, max_bytes=1 << 20, min_size_class=4096)
    store.fail["register_buffer"] = [None, -1]
    with pytest.raises(RuntimeError, match="registration"):
        pool.prewarm(4096, 3)
    assert pool.stats()["idle_bytes"] == 4096
    assert pool.stats()["idle_buffers"] == 1


def test_idle_prewarmed_memory_makes_room_for_leases() -> None:
    store, pool = make(64, max_bytes=16384, min_size_class=4096)
    pool.prewarm(4096, 4)
    with pool.acquire(16384):
        assert pool.stats()["idle_bytes"] == 0
    assert store.registered == 0


# --- close, fork, exit --------------------------------------------------------------------------


def test_close_with_leases_out_is_refused_and_the_pool_stays_usable() -> None:
    _, pool = make()
    lease = pool.acquire(10)
    with pytest.raises(RuntimeError, match=r"1 active leases \(10 bytes\)"):
        pool.close()
    pool.acquire(10).release()
    lease.release()
    pool.close()
    pool.close()
    assert pool.closed
    with pytest.raises(RuntimeError, match="closed"):
        pool.acquire(1)


def test_close_waits_for_an_acquire_that_is_being_allocated() -> None:
    store, pool = make(64, max_bytes=1 << 20)
    entered, go = threading.Event(), threading.Event()
    register = store.register_buffer

    def slow(ptr: int, size: int) -> int:
        entered.set()
        assert go.wait(5)
        return register(ptr, size)

    store.register_buffer = slow  # type: ignore[method-assign]
    leases: list[object] = []
    thread = threading.Thread(target=lambda: leases.append(pool.acquire(5000)))
    thread.start()
    assert entered.wait(5)
    refused: list[BaseException] = []

    def close() -> None:
        with pytest.raises(RuntimeError, match="active leases") as caught:
            pool.close()
        refused.append(caught.value)

    closer = threading.Thread(target=close)
    closer.start()
    time.sleep(0.02)
    assert closer.is_alive()
    with pytest.raises(RuntimeError, match="closing"):
        pool.acquire(1)
    go.set()
    thread.join(5)
    closer.join(5)
    assert len(refused) == 1
    leases.clear()
    pool.close()


def test_a_pool_closes_after_its_store() -> None:
    store, pool = make(64, max_bytes=1 << 20)
    lease = pool.acquire(5000)
    view = lease.buffer
    store.close()
    view[0] = 1
    del view
    lease.release()
    pool.close()


def test_views_survive_every_order_of_dropping() -> None:
    import itertools

    for order in itertools.permutations(["store", "pool", "lease", "view"]):
        held: dict[str, object] = {}
        store, pool = make(64, max_bytes=1 << 20)
        local, over = pool.acquire(8), pool.acquire(5000)
        held.update(store=store, pool=pool, lease=(local, over), view=(local.buffer, over.buffer))
        del store, pool, local, over
        for name in order:
            if name == "store":
                held["store"].close()  # type: ignore[attr-defined]
            views = held.get("view")
            if views is not None:
                views[1][4999] = views[0][7] = 5  # type: ignore[index]
            del views, held[name]
            gc.collect()


def test_a_forked_child_cannot_use_the_pool_and_does_not_disturb_it() -> None:
    store, pool = make(64, max_bytes=1 << 20)
    lease = pool.acquire(5000)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            pool.acquire(1)
        except RuntimeError as error:
            code = 0 if "forked child" in str(error) else 2
        lease.release()
        pool.close()
        os._exit(code if store.registered == 1 else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lease.release()
    pool.close()


def test_interpreter_exit_with_everything_alive_is_clean() -> None:
    here = Path(__file__).parent
    program = textwrap.dedent(
        """
        import conftest, atexit
        from fake_store import FakeStore
        from mooncake.store._buffer_pool import BufferPool
        store = FakeStore(64)
        pool = BufferPool(store, max_bytes=1 << 20, min_size_class=4096)
        pool.prewarm(4096, 1)
        local, over, kept = pool.acquire(8), pool.acquire(9000), pool.acquire(100)
        views = [local.buffer, over.buffer[10:], kept.buffer]
        cycle = [views, pool]
        cycle.append(cycle)
        atexit.register(lambda: views[1].__setitem__(0, 1))
        """
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=here, capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stderr, run.stdout) == (0, "", "")
