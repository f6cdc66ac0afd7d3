"""BufferPool: its settings and its leases, over the fake store."""

from __future__ import annotations

import gc

import pytest
from fake_store import FakeStore
from mooncake.store._buffer_pool import BufferPool, BufferPoolError
from pools import KIB, make

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
