"""BufferPool: its limits, waiters, prewarmed memory and end, over the fake store."""

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
from pools import KIB, make, wait_until

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
