"""What each method returns for what happened; the table of the contract."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import pytest
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

MIB = 1 << 20
NOT_FOUND, TOO_SMALL, NO_SPACE = -1, -11, -200


def fill(address: int, data: bytes) -> None:
    ctypes.memmove(address, data, len(data))


def read(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def test_put_and_get(store: MooncakeDistributedStore) -> None:
    assert store.put("k", b"one") == 0
    assert store.get("k") == b"one"
    assert store.put("k", b"second") == 0
    assert store.get("k") == b"second"
    assert store.upsert("k", b"3") == 0
    assert store.get("k") == b"3"


def test_every_kind_of_buffer_is_a_value(store: MooncakeDistributedStore) -> None:
    np = pytest.importorskip("numpy")
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    for value in (b"v", bytearray(b"bytearray"), memoryview(b"view"), array, (ctypes.c_int * 3)(1)):
        assert store.put("k", value) == 0
        assert store.get("k") == bytes(value)
    with pytest.raises(TypeError, match="contiguous"):
        store.put("k", array.T)
    assert store.put_parts("p", b"head", array, b"") == 0
    assert store.get("p") == b"head" + array.tobytes()


def test_a_value_may_change_after_put(store: MooncakeDistributedStore) -> None:
    value = bytearray(b"a" * 100_000)
    assert store.put("k", value) == 0
    value[:] = b"b" * len(value)
    value.clear()
    assert store.get("k") == b"a" * 100_000


def test_misses(store: MooncakeDistributedStore, buffer: int) -> None:
    assert store.get("no") == b""
    assert store.get_buffer("no") is None
    assert store.batch_get(["no", "no"]) == [b"", b""]
    assert store.batch_get_buffer(["no"]) == [None]
    assert store.is_exist("no") is False
    assert store.batch_is_exist(["no"]) == [0]
    assert store.get_size("no") == NOT_FOUND
    assert store.get_into("no", buffer, 10) == NOT_FOUND
    assert store.batch_get_into(["no"], [buffer], [10]) == [NOT_FOUND]
    assert store.batch_get_into_multi_buffers(["no"], [[buffer]], [[10]]) == [NOT_FOUND]
    assert store.query_route("no") is None


def test_an_empty_value_is_a_value(store: MooncakeDistributedStore, buffer: int) -> None:
    assert store.put("empty", b"") == 0
    assert store.batch_put_from(["empty too"], [buffer], [0]) == [0]
    for key in ("empty", "empty too"):
        assert store.is_exist(key) is True
        assert store.batch_is_exist([key, "no"]) == [1, 0]
        assert store.get_size(key) == 0
        assert store.get(key) == b""
        view = store.get_buffer(key)
        assert view is not None and len(view) == 0
        assert store.get_into(key, buffer, 10) == 0
        assert store.batch_get_into([key, "no"], [buffer] * 2, [10, 10]) == [0, NOT_FOUND]


def test_batches_report_each_item(store: MooncakeDistributedStore, buffer: int) -> None:
    assert store.batch_put([("a", b"1"), ("b", b"22")]) == 0
    assert store.batch_put(keys=["c"], values=[b"333"]) == 0
    assert store.put_batch(["d"], [b"4444"], ReplicateConfig()) == 0
    assert store.upsert_batch(["d"], [b"44444"]) == 0
    assert store.batch_get(["a", "no", "b"]) == [b"1", b"", b"22"]
    assert store.get_batch(["c", "d"]) == [b"333", b"44444"]
    assert store.batch_get_buffer(["a", "no"]) == [b"1", None]
    assert store.batch_is_exist(["no", "a", "a"]) == [0, 1, 1]
    sizes = store.batch_get_into(["a", "no", "d"], [buffer, buffer, buffer + 8], [8, 8, 2])
    assert sizes == [1, NOT_FOUND, TOO_SMALL]
    assert store.batch_remove(["a", "no", "a"]) == [0, -1, -1]


def test_a_repeated_key_in_batch_put_keeps_the_last(store: MooncakeDistributedStore) -> None:
    assert store.batch_put([("k", b"first"), ("x", b"x"), ("k", b"last")]) == 0
    assert store.get("k") == b"last"


def test_batch_put_from_inserts_if_absent(store: MooncakeDistributedStore, buffer: int) -> None:
    fill(buffer, b"firstothers")
    statuses = store.batch_put_from(["k", "k"], [buffer, buffer + 5], [5, 6])
    assert type(statuses) is list and statuses == [0, 0]
    assert store.get("k") == b"first"
    assert store.batch_put_from([("k", buffer + 5, 6)]) == [0]
    assert store.get("k") == b"first"
    assert store.put_from("k", buffer + 5, 6) == 0
    assert store.get("k") == b"others"
    assert store.upsert_from("k", buffer, 5, ReplicateConfig()) == 0
    assert store.get("k") == b"first"


def test_get_into_leaves_the_rest_alone(store: MooncakeDistributedStore, buffer: int) -> None:
    fill(buffer, b"-" * 16)
    store.put("k", b"value")
    assert store.get_into("k", buffer, 16) == 5
    assert read(buffer, 16) == b"value" + b"-" * 11
    assert store.get_into("k", buffer, 4) == TOO_SMALL


def test_get_buffer_is_read_only(store: MooncakeDistributedStore) -> None:
    store.put("k", b"value")
    view = store.get_buffer("k")
    assert view is not None and view.readonly and len(view) == 5 and bytes(view) == b"value"
    store.close()
    assert bytes(view) == b"value"


def test_multi_buffers_gather_and_scatter(store: MooncakeDistributedStore, buffer: int) -> None:
    fill(buffer, bytes(range(100)))
    put = store.batch_put_from_multi_buffers
    assert put(["a"], [[buffer, buffer + 10]], [[10, 90]], ReplicateConfig()) == [0]
    assert put([("b", [buffer], [3]), ("c", [(buffer, 1), (buffer + 1, 2)])]) == [0, 0]
    assert put([("d", [b"x", b"", b"yz"]), ("e", [])]) == [0, 0]
    assert store.batch_get(["a", "b", "c", "d", "e"]) == [
        bytes(range(100)),
        b"\0\1\2",
        b"\0\1\2",
        b"xyz",
        b"",
    ]
    get, at = store.batch_get_into_multi_buffers, buffer + 1000
    fill(at, b"\xff" * 128)
    assert get(["a"], [[at, at + 64]], [[64, 64]]) == [100]
    assert read(at, 128) == bytes(range(100)) + b"\xff" * 28
    assert get(["a", "b"], [[at, at + 50], [at]], [[50, 49], [10]], False) == [TOO_SMALL, 3]
    assert get(["b"], [[at, at, at + 2]], [[2, 0, 5]]) == [3]


def test_ranges_fail_one_by_one(store: MooncakeDistributedStore, buffer: int) -> None:
    store.put("a", bytes(range(100)))
    store.put("b", b"b" * 10)
    fill(buffer, b"\0" * 256)
    result = store.get_into_ranges(
        [buffer, buffer + 128],
        [["a", "b"], ["no", "a", "a"]],
        [[[0, 10, 0], [20]], [[0, 0], [0], [0, 100]]],
        [[[5, 95, 0], [0]], [[0, 0], [0, 1], [50, 0]]],
        [[[5, 5, 0], [10]], [[1, 0], [1], [4, 29]]],
        buffer_sizes=[64, 128],
    )
    assert result[0] == [[5, 5, 0], [10]]
    assert result[1][0] == [NOT_FOUND, 0]
    assert all(code < 0 for code in result[1][1])
    assert result[1][2] == [4, TOO_SMALL]
    assert read(buffer, 30) == b"\5\6\7\10\11" + b"\0" * 5 + bytes(range(95, 100)) + b"\0" * 5 + (
        b"b" * 10
    )
    assert read(buffer + 128, 4) == bytes(range(50, 54))
    over = store.get_into_ranges([buffer], [["a"]], [[[0]]], [[[99]]], [[[2]]])
    assert over[0][0][0] < 0


def test_removal(store: MooncakeDistributedStore) -> None:
    store.put("k", b"v")
    assert store.remove("k") == 0
    assert store.remove("k") == -1
    assert store.remove("k", True) == 0
    assert store.remove("k", force=True) == 0
    assert store.batch_remove(["k"], True) == [0]
    assert store.is_exist("k") is False and store.get("k") == b""


def test_remove_all_counts_the_namespace(
    open_store: Callable[..., MooncakeDistributedStore], metadata_url: str
) -> None:
    first = open_store(metadata_url, object_set="one", global_segment_size=8 * MIB)
    second = open_store(metadata_url, object_set="two", global_segment_size=8 * MIB)
    first.put("k", b"1")
    first.put("l", b"1")
    second.put("k", b"2")
    assert first.get("k") == b"1" and second.get("k") == b"2"
    assert first.remove_all() == 2
    assert first.remove_all(True) == 0
    assert first.batch_is_exist(["k", "l"]) == [0, 0]
    assert second.get("k") == b"2"


def test_tenants_are_apart(store: MooncakeDistributedStore, buffer: int) -> None:
    store.put("k", b"default")
    store.put("k", b"other", tenant="t")
    assert store.get("k") == b"default" == store.get("k", tenant="default")
    assert store.get("k", tenant="t") == b"other"
    assert store.batch_get(["k"], tenant="t") == [b"other"]
    assert store.get_into("k", buffer, 10, tenant="t") == 5
    assert store.get_size("k", tenant="t") == 5
    assert store.remove("k", tenant="t") == 0
    assert store.is_exist("k", tenant="t") is False and store.is_exist("k")


def test_no_space(store: MooncakeDistributedStore, buffer: int) -> None:
    assert store.put("big", b"x" * (65 * MIB)) == -1
    assert store.is_exist("big") is False
    huge = bytearray(65 * MIB)
    address = ctypes.addressof(ctypes.c_char.from_buffer(huge))
    assert store.register_buffer(address, len(huge)) == 0
    codes = store.batch_put_from(["big", "small"], [address, address], [len(huge), 10])
    assert codes == [NO_SPACE, 0]
    assert store.unregister_buffer(address) == 0


def test_views(store: MooncakeDistributedStore) -> None:
    store.put("a/b=c:d", b"value")
    route = store.query_route("a/b=c:d")
    assert route is not None
    assert route["key"] == "default::a/b=c:d"
    assert route["state"] == "Active" and isinstance(route["version"], int)
    (replica,) = route["replicas"]
    assert {"owner", "segment_name", "offset", "segment_offset", "length", "priority", "tier"} <= (
        replica.keys()
    )
    (segment,) = store.list_segments()
    assert segment["segment_name"] == replica["segment_name"]
    assert segment["owner"] == replica["owner"] and ":" in segment["owner"]
    assert segment["capacity_bytes"] >= 63 * MIB and segment["used_bytes"] > 0
    assert segment in store.list_segments(all=True)
    store.put("a/b=c:d", b"value")
    again = store.query_route("a/b=c:d")
    assert again is not None and again["version"] > route["version"]
    assert store.get_hostname().startswith("127.0.0.1:")
    assert "mooncake_store" in store.metrics_text()


def test_route_keys_of_other_namespaces_are_encoded(
    open_store: Callable[..., MooncakeDistributedStore], sqlite_url: str
) -> None:
    store = open_store(sqlite_url, domain="d=1", object_set="o:2/3", tenant="t")
    store.put("k/1", b"v")
    route = store.query_route("k/1")
    assert route is not None and route["key"] == "t::ns/d%3D1/o%3A2%2F3/k%2F1"


def test_lifecycle_calls(store: MooncakeDistributedStore) -> None:
    assert store.heartbeat() == 0
    assert store.heartbeat(int(time.time() * 1000) + 20_000) == 0
    with pytest.raises(ValueError, match="expires_at_ms 5: expected a time after now"):
        store.heartbeat(5)
    assert store.enter_standby() == 0
    assert store.activate() == 0
    assert store.put("k", b"v") == 0
    assert store.enter_draining() == 0
    assert store.health_check() == 0
    assert store.activate() == 0
    assert store.get("k") == b"v"


CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("put", ("k", b"v")),
    ("put_parts", ("k", b"v")),
    ("batch_put", ([],)),
    ("put_batch", ([], [])),
    ("upsert", ("k", b"v")),
    ("upsert_batch", ([], [])),
    ("upsert_from", ("k", 0, 0)),
    ("get", ("k",)),
    ("get_buffer", ("k",)),
    ("batch_get", (["k"],)),
    ("get_batch", (["k"],)),
    ("batch_get_buffer", (["k"],)),
    ("is_exist", ("k",)),
    ("batch_is_exist", (["k"],)),
    ("get_size", ("k",)),
    ("remove", ("k",)),
    ("batch_remove", (["k"],)),
    ("remove_all", ()),
    ("query_route", ("k",)),
    ("register_buffer", (4096, 1)),
    ("unregister_buffer", (4096,)),
    ("put_from", ("k", 0, 0)),
    ("get_into", ("k", 0, 0)),
    ("batch_put_from", ([], [], [])),
    ("batch_get_into", ([], [], [])),
    ("batch_put_from_multi_buffers", ([], [], [])),
    ("batch_get_into_multi_buffers", ([], [], [])),
    ("get_into_ranges", ([], [], [], [], [])),
    ("list_segments", ()),
    ("get_hostname", ()),
    ("metrics_text", ()),
    ("activate", ()),
    ("enter_standby", ()),
    ("enter_draining", ()),
    ("heartbeat", ()),
    ("local_buffer_pool_capacity", ()),
    ("local_buffer_pool_try_acquire", (1,)),
]


@pytest.mark.parametrize(("name", "args"), CALLS)
def test_calls_before_setup_and_after_close_say_so(
    store: MooncakeDistributedStore, name: str, args: tuple[Any, ...]
) -> None:
    fresh = MooncakeDistributedStore()
    with pytest.raises(RuntimeError, match=f"{name}: .*not set up"):
        getattr(fresh, name)(*args)
    store.close()
    with pytest.raises(RuntimeError, match=f"{name}: .*closed"):
        getattr(store, name)(*args)
