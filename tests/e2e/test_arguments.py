"""Wrong calls raise at once, and the text names the argument."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np
import pytest
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from support import MIB

LONGEST = "k" * (64 * 1024)


def config_of(**attributes: Any) -> ReplicateConfig:
    return ReplicateConfig(**attributes)


# Methods whose first argument is a key, with arguments that would be right after it.
KEY_METHODS: list[tuple[str, tuple[Any, ...]]] = [
    ("put", (b"v",)),
    ("upsert", (b"v",)),
    ("put_parts", (b"v",)),
    ("put_from", (0, 0)),
    ("upsert_from", (0, 0)),
    ("get", ()),
    ("get_buffer", ()),
    ("get_into", (0, 0)),
    ("get_size", ()),
    ("is_exist", ()),
    ("query_route", ()),
    ("remove", ()),
]

# Methods whose first argument is a list of keys, with what would be right for one key.
LIST_METHODS: list[tuple[str, tuple[Any, ...]]] = [
    ("batch_get", ()),
    ("get_batch", ()),
    ("batch_get_buffer", ()),
    ("batch_is_exist", ()),
    ("batch_remove", ()),
    ("put_batch", ([b"v"],)),
    ("upsert_batch", ([b"v"],)),
    ("batch_put_from", ([0], [0])),
    ("batch_get_into", ([0], [0])),
    ("batch_put_from_multi_buffers", ([[0]], [[0]])),
    ("batch_get_into_multi_buffers", ([[0]], [[0]])),
]


@pytest.mark.parametrize(("name", "rest"), KEY_METHODS)
def test_keys_are_checked(
    store: MooncakeDistributedStore, name: str, rest: tuple[Any, ...]
) -> None:
    method = getattr(store, name)
    for bad in (None, 1, b"k", ["k"]):
        with pytest.raises(TypeError, match=rf"{name}.*key.*str"):
            method(bad, *rest)
    for bad in ("", LONGEST + "k", "\ud800"):
        with pytest.raises(ValueError, match=f"{name}.*key "):
            method(bad, *rest)
    with pytest.raises(TypeError):
        method()
    with pytest.raises(TypeError, match="surprise"):
        method("k", *rest, surprise=1)
    with pytest.raises(TypeError, match="tenant"):
        method("k", *rest, tenant=1)
    with pytest.raises(ValueError, match=f"{name}: tenant is "):
        method("k", *rest, tenant="\ud800")


@pytest.mark.parametrize(("name", "rest"), LIST_METHODS)
def test_lists_of_keys_are_checked(
    store: MooncakeDistributedStore, name: str, rest: tuple[Any, ...]
) -> None:
    method = getattr(store, name)
    for bad in (None, 1, "k", b"k"):
        with pytest.raises(TypeError):
            method(bad, *rest)
    with pytest.raises(TypeError, match=r"keys\[0\].*str"):
        method([1], *rest)
    for bad in ("", LONGEST + "k", "\ud800"):
        with pytest.raises(ValueError, match=r"keys\[0\]"):
            method([bad], *rest)
    with pytest.raises(TypeError, match="tenant"):
        method(["k"], *rest, tenant=b"t")
    if rest:
        with pytest.raises(ValueError, match="length.* 2 and 1"):
            method(["a", "b"], *rest)


@pytest.mark.parametrize("name", ["put", "upsert", "put_parts"])
def test_values_are_buffers(store: MooncakeDistributedStore, name: str) -> None:
    method = getattr(store, name)
    for bad in ("text", 1, None, [b"v"]):
        with pytest.raises(TypeError, match=rf"{name}.*(value|parts\[0\]).*bytes"):
            method("k", bad)
    with pytest.raises(TypeError, match="contiguous"):
        method("k", memoryview(b"abcdef")[::2])


@pytest.mark.parametrize("name", ["put", "put_batch", "put_from", "batch_put_from"])
def test_config_is_checked(store: MooncakeDistributedStore, name: str) -> None:
    method = getattr(store, name)
    rest: dict[str, tuple[Any, ...]] = {
        "put": ("k", b"v"),
        "put_batch": (["k"], [b"v"]),
        "put_from": ("k", 0, 0),
        "batch_put_from": (["k"], [0], [0]),
    }
    for bad in (1, "x", {"replica_num": 1}):
        with pytest.raises(TypeError, match="config.*ReplicateConfig"):
            method(*rest[name], bad)
    for config, field in [
        (ReplicateConfig(replica_num=0), "replica_num"),
        (ReplicateConfig(replica_num=-1), "replica_num"),
        (ReplicateConfig(replica_num="2"), "replica_num"),  # type: ignore[arg-type]
        (ReplicateConfig(preferred_segment=1), "preferred_segment"),  # type: ignore[arg-type]
        (ReplicateConfig(preferred_segments="ab"), "preferred_segments"),  # type: ignore[arg-type]
        (ReplicateConfig(preferred_storage_owners=[1]), "preferred_storage_owners"),  # type: ignore[list-item]
    ]:
        with pytest.raises((TypeError, ValueError), match=field):
            method(*rest[name], config=config)
    with pytest.raises(TypeError, match="config must be an instance of ReplicateConfig, got type"):
        method(*rest[name], ReplicateConfig)


def test_what_an_attribute_of_a_config_raises_is_what_the_caller_sees(
    store: MooncakeDistributedStore,
) -> None:
    class Broken:
        @property
        def replica_num(self) -> int:
            raise ZeroDivisionError("of the attribute")

    with pytest.raises(ZeroDivisionError, match="of the attribute"):
        store.put("k", b"v", Broken())  # type: ignore[arg-type]


def test_a_number_of_copies_out_of_range_is_told_the_range(store: MooncakeDistributedStore) -> None:
    for bad in (-1, 0, 65, 1 << 70):
        with pytest.raises(ValueError, match=rf"replica_num must be from 1 to 64, got {bad}$"):
            store.put("k", b"v", ReplicateConfig(replica_num=bad))


@pytest.mark.parametrize("flag", ["prefer_local", "with_soft_pin", "prefer_alloc_in_same_node"])
def test_flags_are_true_or_false(store: MooncakeDistributedStore, flag: str) -> None:
    for good in (True, False, 0, 1, np.True_, np.False_, None):
        assert store.upsert("k", b"v", config_of(**{flag: good})) == 0
    for bad in ("false", "no", "", b"", 1.0, [], [1]):
        with pytest.raises(TypeError, match=f"put: {flag} must be bool, got "):
            store.put("k", b"v", config_of(**{flag: bad}))
    for number in (2, -1):
        with pytest.raises(ValueError, match=f"{flag} must be from 0 to 1, got {number}"):
            store.put("k", b"v", config_of(**{flag: number}))


@pytest.mark.parametrize("names", ["preferred_segments", "preferred_storage_owners"])
def test_lists_of_preferences_hold_texts(store: MooncakeDistributedStore, names: str) -> None:
    for bad in (None, 5, b"x", ["x"]):
        with pytest.raises(TypeError, match=rf"put: {names}\[1\] must be str, got "):
            store.put("k", b"v", config_of(**{names: ["x", bad]}))
    with pytest.raises(ValueError, match=rf"put: {names}\[0\] is '\\ud800'; allowed"):
        store.put("k", b"v", config_of(**{names: ["\ud800"]}))


@pytest.mark.parametrize("name", ["put_from", "get_into", "upsert_from"])
def test_pointers_and_sizes_are_checked(store: MooncakeDistributedStore, name: str) -> None:
    method = getattr(store, name)
    for bad in (-1, 1 << 64):
        with pytest.raises(ValueError, match="ptr"):
            method("k", bad, 1)
        with pytest.raises(ValueError, match="size"):
            method("k", 1, bad)
    for bad in ("1", 1.0, None, True, b"1"):
        with pytest.raises(TypeError, match="ptr"):
            method("k", bad, 1)
        with pytest.raises(TypeError, match="size"):
            method("k", 1, bad)


@pytest.mark.parametrize("name", ["batch_put_from", "batch_get_into"])
def test_raw_batches_are_checked(store: MooncakeDistributedStore, name: str) -> None:
    method = getattr(store, name)
    with pytest.raises(TypeError, match=r"ptrs\[1\]"):
        method(["a", "b"], [1, "2"], [1, 1])
    with pytest.raises(ValueError, match=r"sizes\[0\]"):
        method(["a", "b"], [1, 2], [-1, 1])
    with pytest.raises(ValueError, match="sizes"):
        method(["a", "b"], [1, 2], [1])
    with pytest.raises(TypeError, match="ptrs and sizes"):
        method(["a"], [1])
    with pytest.raises(ValueError, match=r"items\[0\].*3"):
        method([("a", 1)])
    with pytest.raises(TypeError):
        method([1])


@pytest.mark.parametrize("name", ["batch_put_from_multi_buffers", "batch_get_into_multi_buffers"])
def test_multi_buffer_rows_are_checked(store: MooncakeDistributedStore, name: str) -> None:
    method = getattr(store, name)
    with pytest.raises(ValueError) as unequal:
        method(["a", "b"], [[1], [1, 2]], [[1], [1]])
    assert str(unequal.value) == f"{name}: ptrs[1] and sizes[1] must be of one length, got 2 and 1"
    with pytest.raises(TypeError, match=r"ptrs\[0\]"):
        method(["a"], [1], [1])
    with pytest.raises(TypeError, match=r"sizes\[0\]\[1\]"):
        method(["a"], [[1, 2]], [[1, "2"]])
    with pytest.raises(ValueError, match=r"items\[0\]"):
        method([("a",)])


def test_batch_put_takes_one_form(store: MooncakeDistributedStore) -> None:
    for args, kwargs in [
        ((), {}),
        (([("k", b"v")],), {"keys": ["k"], "values": [b"v"]}),
        ((), {"keys": ["k"]}),
        ((), {"values": [b"v"]}),
    ]:
        with pytest.raises(TypeError, match="items"):
            store.batch_put(*args, **kwargs)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="length"):
        store.batch_put(keys=["a", "b"], values=[b"v"])
    with pytest.raises(ValueError, match=r"items\[0\]"):
        store.batch_put([("k",)])
    with pytest.raises(TypeError, match=r"values\[1\]"):
        store.batch_put([("a", b""), ("b", 1)])


def test_ranges_are_checked(store: MooncakeDistributedStore) -> None:
    with pytest.raises(ValueError, match="all_keys"):
        store.get_into_ranges([1], [], [], [], [])
    with pytest.raises(ValueError, match="buffer_sizes"):
        store.get_into_ranges([1], [["k"]], [[[0]]], [[[0]]], [[[1]]], buffer_sizes=[])
    with pytest.raises(TypeError, match="buffer_ptrs"):
        store.get_into_ranges(["x"], [["k"]], [[[0]]], [[[0]]], [[[1]]])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="all_sizes"):
        store.get_into_ranges([1], [["k"]], [[[0]]], [[[0]]], [[]])


def test_registration_is_checked(store: MooncakeDistributedStore) -> None:
    with pytest.raises(TypeError, match="size"):
        store.register_buffer(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="ptr"):
        store.register_buffer("x", 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size"):
        store.register_buffer(1, -1)
    with pytest.raises(TypeError, match="ptr"):
        store.unregister_buffer(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="size"):
        store.local_buffer_pool_try_acquire(-1)


@pytest.mark.parametrize("names", ["preferred_segments", "preferred_storage_owners"])
def test_preferences_are_names(store: MooncakeDistributedStore, names: str) -> None:
    with pytest.raises(ValueError, match=rf"put: {names}\[1\] is ''; allowed: a name"):
        store.put("k", b"v", config_of(**{names: ["x", ""]}))
    for bad in ({names: ["a\0b"]}, {names.removesuffix("s"): "a\0b"}):
        text = r"put: \w+(\[0\])? is 'a\\x00b'; allowed: text without"
        with pytest.raises(ValueError, match=text):
            store.put("k", b"v", config_of(**bad))


def test_what_the_store_checks_names_the_argument(store: MooncakeDistributedStore) -> None:
    with pytest.raises(ValueError, match=r"expand_local_memory: storage_bytes is 0; allowed"):
        store.expand_local_memory(0)
    for late in (2**63, int(time.time() * 1000) + 8 * 24 * 3600 * 1000):
        text = rf"expires_at_ms {late}: expected .* at most 604800000"
        with pytest.raises(ValueError, match=text):
            store.heartbeat(late)
    assert store.heartbeat() == 0  # The lease is as long as before.


@pytest.mark.parametrize("name", ["drain_segment", "retire_segment"])
def test_a_segment_may_be_named_by_either_keyword(
    store: MooncakeDistributedStore, name: str
) -> None:
    for keyword in ("segment_name", "name"):
        with pytest.raises(KeyError, match="segment 'nope'"):
            getattr(store, name)(**{keyword: "nope"})


@pytest.mark.parametrize("name", ["drain_segment", "retire_segment"])
def test_names_of_segments_are_checked(store: MooncakeDistributedStore, name: str) -> None:
    method = getattr(store, name)
    for bad in (None, 1, b"x", ["x"]):
        with pytest.raises(TypeError, match=f"{name}: segment_name must be str, got "):
            method(bad)
    for bad in ("\ud800", "a\0b"):
        with pytest.raises(ValueError, match=f"{name}: segment_name is '.*'; allowed: text") as e:
            method(bad)
        assert repr(bad) in str(e.value)
    with pytest.raises(KeyError, match="segment 'nope'"):
        method("nope")


@pytest.mark.parametrize("name", ["set_tenant_policy", "get_tenant_policy", "delete_tenant_policy"])
def test_names_of_tenants_are_checked(store: MooncakeDistributedStore, name: str) -> None:
    for bad in (None, 1, b"t"):
        with pytest.raises(TypeError, match=f"{name}: tenant must be str, got "):
            getattr(store, name)(bad)
    with pytest.raises(ValueError, match=f"{name}: tenant is "):
        getattr(store, name)("\ud800")


def test_a_message_shows_what_it_can_of_any_key(open_store: Any, sqlite_url: str) -> None:
    leaver = open_store(sqlite_url, stable_id="leaver")
    open_store(sqlite_url, stable_id="small", global_segment_size=MIB)
    key = "x\0" + "ab" * 10 + "clé" * 100  # Cut within a character.
    for odd in (key, "y" + key):
        assert leaver.upsert(odd, b"v" * (2 * MIB)) == 0
        with pytest.raises(RuntimeError, match="1 objects of .* remain") as raised:
            leaver.evacuate_owned_replicas()
        assert odd[:60] in str(raised.value)
        assert leaver.activate() == 0
        assert leaver.remove(odd) == 0


def test_memory_is_expanded_by_a_size_as_setup_takes_it(store: MooncakeDistributedStore) -> None:
    for size, number in (("1MB", MIB), (" 1.5 MiB ", 3 * MIB // 2), ("8192", 8192), (8192, 8192)):
        assert store.expand_local_memory(size)["capacity_bytes"] == number
    for bad in (True, None, 1.5, b"1MB"):
        with pytest.raises(TypeError, match="storage_bytes must be int, or str such as "):
            store.expand_local_memory(bad)  # type: ignore[arg-type]
    for text in ("", "-1", "abc", "50%", "1 parsec", "\ud800"):
        with pytest.raises(ValueError, match="expand_local_memory: storage_bytes.*allowed"):
            store.expand_local_memory(text)
    for number in (-1, 1 << 64):
        with pytest.raises(ValueError, match="storage_bytes must be from 0 to "):
            store.expand_local_memory(number)
    for small in (0, 4095, "1k"):
        with pytest.raises(ValueError, match="storage_bytes is [0-9]+; allowed: at least 4096"):
            store.expand_local_memory(small)
    with pytest.raises(RuntimeError, match=f"storage_bytes is {1 << 50}; allowed: .*cannot map"):
        store.expand_local_memory(1 << 50)
    assert len(store.list_segments()) == 5


def test_odd_keys_round_trip(store: MooncakeDistributedStore) -> None:
    keys = ["a\0b", "/", ":", "{x}", "клю́ч", "鍵", " ", "\n", "a::b", "default::x", LONGEST, "🥮"]
    for i, key in enumerate(keys):
        assert store.put(key, str(i).encode()) == 0
    assert store.batch_get(keys) == [str(i).encode() for i in range(len(keys))]
    assert [store.get(key) for key in keys] == store.batch_get(keys)
    assert store.batch_is_exist(keys) == [1] * len(keys)


def test_empty_lists_are_fine(store: MooncakeDistributedStore) -> None:
    assert store.batch_put([]) == 0
    assert store.put_batch([], []) == 0
    assert store.batch_get([]) == []
    assert store.batch_get_buffer([]) == []
    assert store.batch_is_exist([]) == []
    assert store.batch_remove([]) == []
    assert store.batch_put_from([], [], []) == []
    assert store.batch_get_into([], [], []) == []
    assert store.batch_put_from_multi_buffers([], [], []) == []
    assert store.batch_get_into_multi_buffers([], [], []) == []
    assert store.get_into_ranges([], [], [], [], []) == []


def test_any_iterable_of_ints_will_do(store: MooncakeDistributedStore, buffer: int) -> None:
    ctypes.memset(buffer, 7, 64)
    numbers = (ctypes.c_uint64 * 2)(buffer, buffer + 32)
    assert store.batch_put_from(("a", "b"), numbers, (n for n in (32, 16))) == [0, 0]
    assert store.batch_get({"a": 1, "b": 2}.keys()) == [b"\7" * 32, b"\7" * 16]
