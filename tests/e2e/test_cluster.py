"""What several clients see of each other: at once, under every key, apart where they should be."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

import case_jobs
import pytest
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from mooncake.store.rs.structured_object_store import (
    MooncakeBundleTransfer,
    StructuredObjectPayload,
)
from support import LONG, MIB, eventually, value_of

CLIENTS = 32 if LONG else 8
ROUNDS = 5000 if LONG else 150
SMALL = {"global_segment_size": 16 * MIB, "local_buffer_size": MIB}
ROUTER = {"global_segment_size": 0, "labels": {"storage": "false"}, "routed_writes": True}


def test_clients_started_at_one_moment_read_each_other(
    redis: Any, spawn: Callable[[], Any], settings: Callable[..., Any]
) -> None:
    clients = [spawn() for _ in range(CLIENTS)]
    keys = [[f"client {c} key {k}" for k in range(10)] for c in range(CLIENTS)]

    def all_of_them(name: str, *args: Any) -> list[Any]:
        for number, client in enumerate(clients):
            client.send(name, *(arg(number) if callable(arg) else arg for arg in args))
        return [client.receive() for client in clients]

    assert all_of_them("setup", settings(redis.url, **SMALL)) == [0] * CLIENTS
    assert len(set(all_of_them("get_hostname"))) == CLIENTS
    assert all_of_them("put_all", lambda number: keys[number]) == [[0] * 10] * CLIENTS
    every_key = [key for own in keys for key in own]
    for found in all_of_them("read_all", every_key):
        assert (found["missing"], found["wrong"]) == ([], [])
        assert len(found["right"]) == 10 * CLIENTS


@pytest.fixture
def pair(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., MooncakeDistributedStore]
) -> tuple[MooncakeDistributedStore, Any]:
    """A store in this process and one in another, both with storage."""
    return open_store(redis.url, stable_id="here"), node(redis.url, stable_id="there")


def test_the_founder_decides_how_many_slots_there_are(
    redis: Any,
    open_store: Callable[..., MooncakeDistributedStore],
    spawn: Callable[[], Any],
    settings: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    founder = open_store(redis.url, stable_id="founder", slot_bits=18)
    assert founder.put("key", b"value") == 0
    refusal = r"asks for .*slot_bits=%d.* runs with .*slot_bits=18.*founder:1"
    for asked in (16, 21):
        with pytest.raises(ValueError, match=refusal % asked):
            spawn().setup(settings(redis.url, slot_bits=asked))
    joined = spawn()
    monkeypatch.setenv("MC_STORE_RS_SLOT_BITS", "18")
    same = spawn()
    assert joined.setup(settings(redis.url)) == 0  # Adopts what there is.
    assert same.setup(settings(redis.url)) == 0
    for number, node in enumerate((joined, same)):
        assert node.get("key") == b"value"
        keys = [f"{number}:{i}" for i in range(50)]
        assert node.put_all(keys) == [0] * 50
        found = joined.read_all(keys)
        assert (found["missing"], found["wrong"]) == ([], [])
        assert founder.batch_is_exist(keys) == [1] * 50
    founder.close()  # Its slots are the others' now.
    assert joined.read_all(["0:1", "1:1"])["wrong"] == []
    assert joined.put("later", b"x") == 0
    assert same.get("later") == b"x"


@contextlib.contextmanager
def members_coming_and_going(spawn: Callable[[], Any], settings: dict[str, Any]) -> Iterator[None]:
    """Meanwhile a member joins, writes a little and leaves, by turns politely and killed."""
    done, turns = threading.Event(), []

    def churn() -> None:
        while not done.is_set():
            member = spawn()
            member.setup(settings)
            turns.append(member.put_all(["of a passing member"]))
            if len(turns) % 2 == 0:
                member.kill()
            else:
                member.close()
                member.end()

    churner = threading.Thread(target=churn)
    churner.start()
    try:
        yield
        eventually(lambda: len(turns) >= 2, 60)
    finally:
        done.set()
        churner.join()


@pytest.mark.parametrize("churn", [False, True], ids=["at rest", "members come and go"])
def test_writes_and_removals_are_visible_elsewhere_at_once(
    redis: Any, pair: Any, spawn: Callable[[], Any], settings: Callable[..., Any], churn: bool
) -> None:
    here, there = pair
    fast_lease = settings(redis.url, lease_ttl_ms=2000, transfer_stall_timeout_ms=2000, **SMALL)
    rounds = 100_000 if LONG and not churn else ROUNDS
    meanwhile = members_coming_and_going(spawn, fast_lease) if churn else contextlib.nullcontext()
    with meanwhile:
        for turn in range(rounds):
            writer, reader = pair if turn % 2 == 0 else reversed(pair)
            key = f"k{turn % 50}"
            value = value_of(key, turn, 100 + turn)
            assert writer.put(key, value) == 0, turn
            assert reader.get(key) == value, turn
            assert writer.get_size(key) == reader.get_size(key) == len(value)
            if turn % 3 == 0:
                assert writer.remove(key) == 0, turn
                assert reader.is_exist(key) is False, turn
                assert (here.get(key), there.get(key)) == (b"", b""), turn


def test_a_read_during_a_removal_gives_the_whole_value_or_a_miss(
    redis: Any, pair: Any, node: Callable[..., Any]
) -> None:
    """CR-08. Others see a removal at once, also while reads of the value are under way."""
    here, there = pair
    reader = node(redis.url, **ROUTER)
    size = 300_000
    value = value_of("k", 0, size)
    reader.run(case_jobs.read_for_ever, 4, ["k"], size)
    for turn in range(10_000 if LONG else 1500):
        assert here.put("k", value) == 0
        assert here.remove("k") == 0
        assert there.is_exist("k") is False, turn
        assert here.is_exist("k") is False, turn
    assert here.put("k", value) == 0
    eventually(lambda: reader.run(case_jobs.reads_so_far)["right"] > 0)
    seen = reader.run(case_jobs.reads_so_far)
    assert seen["wrong"] == 0 and seen["missing"] > 0


ODD_KEYS = {
    "64 KiB": "k" * 65536,
    "64 KiB of UTF-8": "ü" * 32768,
    "NUL": "a\0b",
    "only NUL": "\0",
    "slashes": "/a//b/../c/",
    "colons": "::a:b::",
    "braces": "{a}{{b}}{",
    "percent": "%2F%00%",
    "controls": "\r\n\t\x7f\x1b[0m",
    "blank": " ",
    "non-ASCII": "ключ/鍵/🔑",
    "reserved words": "default::ns/default/default/x",
    "glob": "*?[a-z]\\",
}


@pytest.mark.parametrize("name", ODD_KEYS)
def test_odd_keys_work_in_every_form(pair: Any, name: str) -> None:
    here, there = pair
    key, value = ODD_KEYS[name], value_of(name)
    near = [key[:-1] + "~", key[1:] + "~" if len(key) > 1 else "~~"]
    with contextlib.ExitStack() as leases:
        source, target = (here.local_buffer_pool_try_acquire(4096) for _ in range(2))
        leases.callback(source.release)
        leases.callback(target.release)
        ctypes.memmove(source.ptr, value, len(value))
        puts: list[Callable[[], Any]] = [
            lambda: here.put(key, value),
            lambda: here.put_parts(key, value[:10], value[10:]),
            lambda: here.batch_put([(key, value)]),
            lambda: here.upsert(key, value),
            lambda: here.put_from(key, source.ptr, len(value)),
            lambda: here.batch_put_from([key], [source.ptr], [len(value)])[0],
            lambda: here.batch_put_from_multi_buffers([key], [[source.ptr]], [[len(value)]])[0],
            lambda: there.put(key, value),
        ]
        for put in puts:
            assert put() == 0
            for store in pair:
                assert store.get(key) == value
                assert store.batch_get([*near, key]) == [b"", b"", value]
                assert store.batch_is_exist([key, *near]) == [1, 0, 0]
                assert store.is_exist(key) is True
                assert store.get_size(key) == len(value)
                assert store.query_route(key)["replicas"][0]["length"] == len(value)
            assert bytes(here.get_buffer(key)) == value
            reads: list[Callable[[], int]] = [
                lambda: here.get_into(key, target.ptr, 4096),
                lambda: here.batch_get_into([key], [target.ptr], [4096])[0],
                lambda: here.batch_get_into_multi_buffers([key], [[target.ptr]], [[4096]])[0],
                lambda: here.get_into_ranges(
                    [target.ptr], [[key]], [[[0]]], [[[0]]], [[[len(value)]]]
                )[0][0][0],
            ]
            for read in reads:
                assert read() == len(value)
                assert ctypes.string_at(target.ptr, len(value)) == value
                ctypes.memset(target.ptr, 0, 4096)
            assert there.remove(key) == 0
            assert here.batch_remove([key]) == [-1]


def test_an_empty_value_is_no_miss_in_any_form(pair: Any) -> None:
    here, there = pair
    lease = here.local_buffer_pool_try_acquire(4096)
    assert here.put("own", b"") == 0 and there.put("other's", b"") == 0
    assert here.put_parts("parts") == here.put_parts("more parts", b"", b"") == 0
    assert here.put_from("from", lease.ptr, 0) == 0
    assert here.batch_put_from_multi_buffers([("rows", [])]) == [0]
    keys = ["own", "other's", "parts", "more parts", "from", "rows"]
    row = [*keys, "absent"]
    count = len(keys)
    for store in pair:
        assert store.batch_is_exist(row) == [1] * count + [0]
        assert [store.is_exist(key) for key in row] == [True] * count + [False]
        assert [store.get_size(key) for key in row] == [0] * count + [-1]
        assert store.batch_get(row) == [store.get(key) for key in row] == [b""] * (count + 1)
    assert here.batch_get_buffer(row) == [b""] * count + [None]
    assert [here.get_buffer(key) for key in row] == [b""] * count + [None]
    pointers, sizes = [lease.ptr] * (count + 1), [8] * (count + 1)
    assert [here.get_into(key, lease.ptr, 8) for key in row] == [0] * count + [-1]
    assert here.batch_get_into(row, pointers, sizes) == [0] * count + [-1]
    into_rows = here.batch_get_into_multi_buffers(
        row, [[pointer] for pointer in pointers], [[size] for size in sizes]
    )
    assert into_rows == [0] * count + [-1]
    for key in keys:
        zero, one = here.get_into_ranges([lease.ptr], [[key]], [[[0, 0]]], [[[0, 0]]], [[[0, 1]]])[
            0
        ][0]
        assert zero == 0 and one < 0
    assert there.batch_remove(row) == [0] * count + [-1]
    lease.release()


def test_namespaces_never_meet(
    redis: Any, open_store: Callable[..., MooncakeDistributedStore]
) -> None:
    names: list[dict[str, str]] = [
        {},
        {"tenant": "t"},
        {"domain": "d"},
        {"object_set": "o"},
        {"tenant": "t", "domain": "d", "object_set": "o"},
        {"domain": "d/o"},
        {"domain": "d", "object_set": "o/k"},
        {"tenant": "default::ns", "domain": "default", "object_set": "default"},
        {"tenant": "default::ns/d/o"},
        {"domain": "d%2Fo"},
        {"object_set": "d/default"},
    ]
    stores = [open_store(redis.url, **SMALL, **name) for name in names]
    keys = ["k", "o/k", "d/o/k", "ns/d/o/k", "t::k", "default::k", "default::ns/d/o/k"]
    for number, store in enumerate(stores):
        for key in keys:
            assert store.batch_is_exist([key]) == [0], (names[number], key)
            assert store.put(key, value_of(key, number)) == 0
    for number, store in enumerate(stores):
        assert store.batch_get(keys) == [value_of(key, number) for key in keys]
    assert stores[0].remove_all() == len(keys)
    assert stores[0].batch_is_exist(keys) == [0] * len(keys)
    for number, store in enumerate(stores[1:], 1):
        assert store.batch_get(keys) == [value_of(key, number) for key in keys]


def test_a_tenant_named_in_the_call(pair: Any) -> None:
    here, there = pair
    lease = here.local_buffer_pool_try_acquire(64)
    ctypes.memmove(lease.ptr, b"from", 4)
    assert here.put("k", b"mine") == 0
    assert here.put("k", b"hers", tenant="she") == 0
    assert here.put_from("from", lease.ptr, 4, tenant="she") == 0
    assert there.get("k") == b"mine" and there.get("k", tenant="she") == b"hers"
    assert there.batch_get(["k", "from"], tenant="she") == [b"hers", b"from"]
    assert there.batch_is_exist(["k", "from"]) == [1, 0]
    assert there.is_exist("from", tenant="she") and there.get_size("from", tenant="she") == 4
    assert here.get_into("k", lease.ptr, 64, tenant="she") == 4
    assert there.batch_remove(["from"]) == [-1]
    assert there.remove_all(tenant="she") == 2
    assert here.batch_is_exist(["k", "from"], tenant="she") == [0, 0]
    assert here.get("k") == b"mine"
    lease.release()


def test_replicas_lie_on_different_owners(redis: Any, node: Callable[..., Any]) -> None:
    for name in ("a", "b", "c"):
        node(redis.url, stable_id=name, **SMALL)
    router = node(redis.url, **{**SMALL, **ROUTER})
    for key in (f"k{n}" for n in range(20)):
        assert router.put(key, value_of(key), ReplicateConfig(replica_num=2)) == 0
        owners = [replica["owner"] for replica in router.query_route(key)["replicas"]]
        assert len(owners) == len(set(owners)) == 2


@pytest.mark.skipif(not LONG, reason="takes 18 GiB and minutes (MC_E2E_LONG=1)")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [2**31 - 1, 2**31, 2**32 - 1, 2**32 + 1])
def test_values_over_two_gibibytes(
    redis: Any, open_store: Callable[..., MooncakeDistributedStore], size: int
) -> None:
    open_store(redis.url, stable_id="owner", global_segment_size=size + 64 * MIB)
    client = open_store(redis.url, **ROUTER)
    source, target = bytearray(size), bytearray(size)
    for place in (0, 2**31 - 8, size // 2, size - 16):
        source[place : place + 16] = value_of(str(place), 0, 16)[: size - place]
    starts = [(ctypes.c_char * size).from_buffer(memory) for memory in (source, target)]
    pointers = [ctypes.addressof(start) for start in starts]
    for pointer in pointers:
        assert client.register_buffer(pointer, size) == 0
    assert client.put_from("k", pointers[0], size) == 0
    assert client.get_size("k") == size
    assert client.get_into("k", pointers[1], size) == size
    assert source == target
    ctypes.memset(pointers[1], 0, size)
    ranges = client.get_into_ranges([pointers[1]], [["k"]], [[[0]]], [[[size - 16]]], [[[16]]])
    assert ranges == [[[16]]] and target[:16] == source[-16:]
    assert client.get_into("k", pointers[1], size - 1) == -11
    assert client.remove("k") == 0
    for pointer in pointers:
        assert client.unregister_buffer(pointer) == 0
    del starts
    as_one_member(client, source, target)


def as_one_member(client: MooncakeDistributedStore, source: bytearray, target: bytearray) -> None:
    """The same bytes as a structured object whose member is a single value."""
    np = pytest.importorskip("numpy")
    size = len(source)
    transfer = MooncakeBundleTransfer(client, "large")
    payload = StructuredObjectPayload(buffers={"m": np.frombuffer(source, np.uint8)})
    ref = transfer.put_structured_object(payload, chunk_bytes=size)
    into = np.frombuffer(target, np.uint8)
    into[:] = 0
    transfer.materialize_into(transfer.read_spec(ref), {"m": into})
    assert source == target
    end = transfer.read_spec(ref).slice_member("m", 0, size - 16, size)
    assert transfer.materialize(end).objects["m"].tobytes() == source[-16:]
    transfer.remove_bundle(ref)
    assert client.remove_all() == 0
