"""Shapes at their edges: rows that do not fit, keys that come again, values that are empty."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mooncake.store import MooncakeDistributedStore
from services import daemon_program, settings_for
from support import LONG, MIB, at_most, eventually, value_of

GUARD = 0xA5


@pytest.mark.parametrize(
    ("sizes", "answer"),
    [([64, 64], 100), ([50, 50], 100), ([50, 49], -11), ([100, 0], 100), ([0, 0, 100], 100)],
)
def test_scattering_into_rows_of_any_size(
    store: MooncakeDistributedStore, buffer: int, sizes: list[int], answer: int
) -> None:
    value = value_of("k", size=100)
    assert store.put("k", value) == 0
    ctypes.memset(buffer, GUARD, 4096)
    ptrs = [buffer + 1000 * i for i in range(len(sizes))]
    assert store.batch_get_into_multi_buffers(["k"], [ptrs], [sizes]) == [answer]
    rest = value if answer > 0 else b""
    for at, size in zip(ptrs, sizes):
        here, rest = rest[:size], rest[size:]
        assert ctypes.string_at(at, len(here)) == here
        assert ctypes.string_at(at + len(here), 1000 - len(here)) == bytes([GUARD]) * (
            1000 - len(here)
        )


def test_uneven_rows_are_refused_before_anything_happens(
    store: MooncakeDistributedStore, buffer: int
) -> None:
    for ptrs, sizes in [([[buffer]], [[1, 2]]), ([[buffer, buffer]], [[1]]), ([[]], [[1]])]:
        with pytest.raises(ValueError, match="length"):
            store.batch_get_into_multi_buffers(["k"], ptrs, sizes)
        with pytest.raises(ValueError, match="length"):
            store.batch_put_from_multi_buffers(["k"], ptrs, sizes)
    assert store.is_exist("k") is False


def test_a_key_that_comes_again_gives_equal_answers(
    store: MooncakeDistributedStore, buffer: int
) -> None:
    assert store.put("k", b"value") == 0
    assert store.batch_get(["k", "gone", "k", "k"]) == [b"value", b"", b"value", b"value"]
    assert store.batch_is_exist(["k", "k", "gone", "gone"]) == [1, 1, 0, 0]
    room = [buffer, buffer + 100, buffer + 200]
    assert store.batch_get_into(["k"] * 3, room, [100] * 3) == [5] * 3
    assert [ctypes.string_at(at, 5) for at in room] == [b"value"] * 3
    assert store.batch_remove(["k", "k"]) == [0, -1]


def test_fifty_thousand_keys_in_one_call(store: MooncakeDistributedStore) -> None:
    keys = [f"many/{i}" for i in range(50_000)]
    with at_most(30):
        assert store.put_batch(keys, [b"x"] * len(keys)) == 0
        assert store.batch_is_exist(keys) == [1] * len(keys)
        assert store.batch_get(keys) == [b"x"] * len(keys)
        assert store.batch_remove(keys) == [0] * len(keys)


def test_empty_absent_and_unreachable_are_told_apart(
    open_store: Callable[..., Any], node: Callable[..., Any], redis: Any
) -> None:
    """An empty value is a value; one whose owner is dead is none, after a lease at the latest."""
    quick = {"lease_ttl_ms": 2_000, "transfer_stall_timeout_ms": 500, "request_timeout_ms": 3_000}
    alive, doomed = node(redis.url, **quick), node(redis.url, **quick)
    store = open_store(redis.url, global_segment_size=0, routed_writes=True, **quick)
    eventually(lambda: len(store.list_segments(all=True)) == 2)
    lease = store.local_buffer_pool_try_acquire(4096)
    segment = doomed.list_segments()[0]["segment_name"]
    keys = [f"empty {i}" for i in range(40)]
    assert store.put_batch(keys, [b""] * len(keys)) == 0
    on_doomed = {
        key: store.query_route(key)["replicas"][0]["segment_name"] == segment for key in keys
    }
    lost = next(key for key, there in on_doomed.items() if there)
    kept = next(key for key, there in on_doomed.items() if not there)
    doomed.kill()

    def answers(key: str) -> list[Any]:
        buffers = store.batch_get_buffer([key])
        return [
            store.is_exist(key),
            store.batch_is_exist([key])[0],
            store.get_size(key),
            store.get_buffer(key) is not None,
            buffers[0] is not None,
            store.get_into(key, lease.ptr, 4096),
            store.batch_get_into([key], [lease.ptr], [4096])[0],
            store.batch_get_into_multi_buffers([key], [[lease.ptr]], [[4096]])[0],
        ]

    # Its answers move with the slots of the dead node: wait until they have.
    eventually(lambda: store.batch_is_exist([kept]) == [1])
    assert answers(kept) == [True, 1, 0, True, True, 0, 0, 0]
    assert answers("never put") == [False, 0, -1, False, False, -1, -1, -1]
    # No read gives it, at once; that it is gone is known when its owner's lease has lapsed.
    dead = answers(lost)
    assert dead[3:5] == [False, False] and all(code < 0 for code in dead[5:])
    eventually(lambda: store.batch_is_exist([lost]) == [0])
    assert answers(lost) == answers("never put")
    assert alive.health_check() == 0


@pytest.mark.parametrize("text", ["-5", "50%", "abc", "1.5.5MB", str(2**64), "12 parsecs", "0x10"])
def test_a_daemon_reads_sizes_as_setup_does(text: str, sqlite_url: str) -> None:
    command = [daemon_program(), "run", "--local-hostname", "127.0.0.1"]
    command += ["--metadata-url", sqlite_url, f"--storage-bytes={text}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode != 0
    assert "global_segment_size" in done.stderr and text in done.stderr
    with pytest.raises(ValueError, match="global_segment_size"):
        MooncakeDistributedStore().setup(settings_for(sqlite_url, global_segment_size=text))


def test_misses_log_nothing_and_an_outage_little(
    redis: Any, open_store: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    store = open_store(redis.url, lease_ttl_ms=2_000)
    assert store.put("k", b"v") == 0
    capfd.readouterr()
    keys = [f"missing/{i}" for i in range(1_000)]
    for _ in range(1_000 if LONG else 20):
        assert store.batch_get(keys) == [b""] * len(keys)
        assert store.batch_is_exist(keys) == [0] * len(keys)
    assert store.get("missing") == b"" and store.remove("missing") == -1
    assert capfd.readouterr().err == ""
    redis.stop()
    minutes = 10 if LONG else 0.2
    with pytest.raises(AssertionError):  # Until the time is up.
        eventually(lambda: store.get("k") != b"v", timeout_s=minutes * 60)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) <= 100 * max(minutes, 1), lines[:20]


def test_pickled_manifests_are_refused(store: MooncakeDistributedStore, tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    from mooncake.store.rs.structured_object_store import (
        MooncakeBundleTransfer,
        StructuredObjectPayload,
    )

    marker = tmp_path / "ran"
    transfer = MooncakeBundleTransfer(store, key_prefix="p")
    ref = transfer.put_structured_object(StructuredObjectPayload(buffers={"a": b"x" * MIB}))
    code = f"cos\nsystem\n(S'touch {marker}'\ntR.".encode()
    for hostile in (
        code,
        b"[" * 100_000,
        b'{"version":1,"bytes":9223372036854775808}',
        b"\xff" * 9,
    ):
        assert store.put(ref.manifest_key, hostile) == 0
        with at_most(5), pytest.raises((ValueError, TypeError, KeyError, RuntimeError)):
            transfer.materialize(transfer.read_spec({"manifest_key": ref.manifest_key}))
    assert not marker.exists()


class Fields(ctypes.Structure):
    _fields_ = [("O", ctypes.c_int), ("name", ctypes.c_char * 4)]


class Addresses(ctypes.Structure):
    _fields_ = [("number", ctypes.c_int), ("text", ctypes.c_char_p)]


def test_buffers_of_addresses_are_no_values(store: MooncakeDistributedStore) -> None:
    np = pytest.importorskip("numpy")
    dates = [("O", "M8[D]")]
    addresses: list[Any] = [
        np.array([object()], dtype=object),
        np.zeros(1, dtype=[("date", "M8[D]"), ("any", object)]),
        (ctypes.py_object * 2)(),
        (ctypes.c_char_p * 2)(),
        (ctypes.c_void_p * 2)(),
        (ctypes.POINTER(ctypes.c_int) * 2)(),
        Addresses(),
    ]
    for value in addresses:
        calls: list[Callable[[], Any]] = [
            lambda value=value: store.put("k", value),
            lambda value=value: store.upsert("k", value),
            lambda value=value: store.put_parts("k", b"x", value),
            lambda value=value: store.batch_put([("k", value)]),
            lambda value=value: store.put_batch(["k"], [value]),
        ]
        for call in calls:
            with pytest.raises(TypeError, match="addresses of this process"):
                call()
    assert not store.is_exist("k")
    for array in (np.arange(3) + 1j, np.zeros(2, dates), np.zeros(2, "U3"), np.zeros(2, "f2")):
        assert store.put("k", array) == 0 and store.get("k") == array.tobytes()
    for plain in (Fields(1, b"x"), (ctypes.c_wchar * 2)(), (ctypes.c_bool * 2)()):
        assert store.put("k", plain) == 0 and store.get("k") == bytes(plain)
