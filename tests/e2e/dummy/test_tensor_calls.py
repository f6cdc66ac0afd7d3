"""Every tensor method, in every call shape, against a store and against a daemon."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mooncake.store import (
    MooncakeDistributedStore,
    MooncakeHostMemAllocator,
    ParallelAxis,
    ReadTarget,
    ReplicateConfig,
    TensorParallelism,
    TensorReadResult,
)
from mooncake.store._tensors import TensorMethods

np = pytest.importorskip("numpy")

FULL = np.arange(64, dtype=np.float32).reshape(8, 8)
ROOM = 304 + FULL.nbytes
NUMPY = {"framework": "numpy"}
CONFIG = ReplicateConfig()


def tp(rank: int, size: int = 2, dim: int = 0) -> TensorParallelism:
    return TensorParallelism([ParallelAxis("tp", rank, size, split_dim=dim)])


def shard(rank: int, size: int = 2, dim: int = 0) -> ReadTarget:
    return ReadTarget("shard", parallelism=tp(rank, size, dim))


# name: what stores FULL under the key k, all ranks where the caller of the method is one of them.
# s is the store, p the address of registered memory with a whole serialized tensor in it.
Write = Callable[[Any, str, int], Any]
WRITES: dict[str, Write] = {
    "put_tensor": lambda s, k, p: s.put_tensor(k, FULL, config=CONFIG),
    "upsert_tensor": lambda s, k, p: s.upsert_tensor(k, FULL),
    "pub_tensor": lambda s, k, p: s.pub_tensor(k, FULL, CONFIG),
    "upsert_pub_tensor": lambda s, k, p: s.upsert_pub_tensor(k, FULL, CONFIG),
    "put_tensor_from": lambda s, k, p: [
        s.put_tensor_from(k, FULL),
        s.put_tensor_from(k, p, ROOM),
    ],
    "upsert_tensor_from": lambda s, k, p: [
        s.upsert_tensor_from(k, FULL),
        s.upsert_tensor_from(k, p, ROOM),
    ],
    "batch_put_tensor": lambda s, k, p: s.batch_put_tensor([k, "x"], [FULL, FULL]),
    "batch_upsert_tensor": lambda s, k, p: s.batch_upsert_tensor([k], [FULL]),
    "batch_pub_tensor": lambda s, k, p: s.batch_pub_tensor([k], [FULL], CONFIG),
    "batch_upsert_pub_tensor": lambda s, k, p: s.batch_upsert_pub_tensor([k], [FULL], CONFIG),
    "batch_put_tensor_from": lambda s, k, p: s.batch_put_tensor_from([k], [p], [ROOM]),
    "batch_upsert_tensor_from": lambda s, k, p: s.batch_upsert_tensor_from([k], [p], [ROOM]),
    "put_tensor_with_parallelism": lambda s, k, p: [
        s.put_tensor_with_parallelism(k, FULL, parallelism=tp(rank), config=CONFIG)
        for rank in range(2)
    ],
    "upsert_tensor_with_parallelism": lambda s, k, p: [
        s.upsert_tensor_with_parallelism(k, FULL, writer_partition=(rank, 2, 1))
        for rank in range(2)
    ],
    "put_tensor_with_parallelism_from": lambda s, k, p: [
        s.put_tensor_with_parallelism_from(k, p, ROOM, parallelism=tp(rank, dim=1))
        for rank in range(2)
    ],
    "upsert_tensor_with_parallelism_from": lambda s, k, p: [
        s.upsert_tensor_with_parallelism_from(k, p, ROOM, parallelism=tp(rank)) for rank in range(2)
    ],
    "batch_put_tensor_with_parallelism": lambda s, k, p: s.batch_put_tensor_with_parallelism(
        [k, k], [FULL, FULL], parallelisms=[tp(0), tp(1)]
    ),
    "batch_upsert_tensor_with_parallelism": lambda s, k, p: s.batch_upsert_tensor_with_parallelism(
        [k, k], [FULL, FULL], writer_partitions=[(0, 2, 0), (1, 2, 0)]
    ),
    "batch_put_tensor_with_parallelism_from": (
        lambda s, k, p: s.batch_put_tensor_with_parallelism_from(
            [k, k], [p, p], [ROOM, ROOM], parallelisms=[tp(0), tp(1)]
        )
    ),
    "batch_upsert_tensor_with_parallelism_from": (
        lambda s, k, p: s.batch_upsert_tensor_with_parallelism_from(
            [k, k], [p, p], [ROOM, ROOM], parallelisms=[tp(0), tp(1)]
        )
    ),
    "put_tensor_with_tp": lambda s, k, p: s.put_tensor_with_tp(k, FULL, 1, 4, 1),
    "upsert_tensor_with_tp": lambda s, k, p: s.upsert_tensor_with_tp(k, FULL, 0, 2, 0),
    "pub_tensor_with_tp": lambda s, k, p: s.pub_tensor_with_tp(k, FULL, CONFIG, 0, 2, 0),
    "batch_put_tensor_with_tp": lambda s, k, p: s.batch_put_tensor_with_tp([k], [FULL], 0, 2),
    "batch_upsert_tensor_with_tp": lambda s, k, p: s.batch_upsert_tensor_with_tp([k], [FULL], 0, 2),
    "batch_pub_tensor_with_tp": lambda s, k, p: s.batch_pub_tensor_with_tp(
        [k], [FULL], CONFIG, 0, 2
    ),
    "put_tensor_with_tp_from": lambda s, k, p: s.put_tensor_with_tp_from(k, p, ROOM, 0, 2, 1),
    "batch_put_tensor_with_tp_from": lambda s, k, p: s.batch_put_tensor_with_tp_from(
        [k], [p], [ROOM], 0, 2
    ),
}

# name: what reads the key "w", which is stored in four shards, and what has to come. p is the
# address of registered memory with room for two whole tensors.
Read = Callable[[Any, int], Any]
READS: dict[str, tuple[Read, list[Any]]] = {
    "get_tensor": (
        lambda s, p: [s.get_tensor("v", **NUMPY), s.get_tensor("v", tensor=np.zeros_like(FULL))],
        [FULL, FULL],
    ),
    "batch_get_tensor": (
        lambda s, p: s.batch_get_tensor(["v", "no"], **NUMPY),
        [FULL, None],
    ),
    "get_tensor_into": (lambda s, p: [s.get_tensor_into("v", p, ROOM)], [FULL]),
    "batch_get_tensor_into": (
        lambda s, p: s.batch_get_tensor_into(["v", "no"], [p, p + ROOM], [ROOM, ROOM]),
        [FULL, None],
    ),
    "get_tensor_with_parallelism": (
        lambda s, p: [
            s.get_tensor_with_parallelism("v", target=ReadTarget("as_stored"), **NUMPY),
            s.get_tensor_with_parallelism("w", target=ReadTarget("full"), **NUMPY),
            s.get_tensor_with_parallelism("w", target=shard(1), **NUMPY),
            s.get_tensor_with_parallelism("w", target=shard(7, 8), **NUMPY),
            s.get_tensor_with_parallelism("w", target=shard(0, 2, 1), **NUMPY),
        ],
        [FULL, FULL, FULL[4:], FULL[7:], FULL[:, :4]],
    ),
    "batch_get_tensor_with_parallelism": (
        lambda s, p: s.batch_get_tensor_with_parallelism(
            ["w", "w", "no"], targets=[shard(0), ReadTarget("full"), None], **NUMPY
        ),
        [FULL[:4], FULL, None],
    ),
    "get_tensor_with_parallelism_into": (
        lambda s, p: [s.get_tensor_with_parallelism_into("w", p, ROOM, target=shard(1))],
        [FULL[4:]],
    ),
    "batch_get_tensor_with_parallelism_into": (
        lambda s, p: s.batch_get_tensor_with_parallelism_into(
            ["w", "w"], [p, p + ROOM], [ROOM, ROOM], targets=[ReadTarget("full"), shard(1, 8)]
        ),
        [FULL, FULL[1:2]],
    ),
    "get_tensor_with_tp": (
        lambda s, p: [
            s.get_tensor_with_tp("w", **NUMPY),
            s.get_tensor_with_tp("w", 1, 2, 0, **NUMPY),
            s.get_tensor_with_tp("no", 1, 2, **NUMPY),
        ],
        [FULL, FULL[4:], None],
    ),
    "batch_get_tensor_with_tp": (
        lambda s, p: s.batch_get_tensor_with_tp(["w", "no"], 1, 2, **NUMPY),
        [FULL[4:], None],
    ),
    "get_tensor_with_tp_into": (
        lambda s, p: [s.get_tensor_with_tp_into("w", p, ROOM, 3, 4, 0)],
        [FULL[6:]],
    ),
    "batch_get_tensor_with_tp_into": (
        lambda s, p: s.batch_get_tensor_with_tp_into(["w", "no"], [p, p], [ROOM] * 2, 3, 4),
        [FULL[6:], None],
    ),
}


def test_no_method_is_left_out() -> None:
    methods = {name for name in dir(TensorMethods) if "tensor" in name and name[0] != "_"}
    assert methods == WRITES.keys() | READS.keys()
    assert all(hasattr(MooncakeDistributedStore, name) for name in methods)


@pytest.fixture(params=["real", "dummy"])
def tensor_store(request: pytest.FixtureRequest) -> Iterator[tuple[Any, int]]:
    """A store, and the address of registered memory that holds FULL in its stored form."""
    if request.param == "real":
        store = request.getfixturevalue("store")
    else:
        store = request.getfixturevalue("dummy")(request.getfixturevalue("start_daemon")().address)
    address = MooncakeHostMemAllocator().alloc(4 * ROOM)
    assert store.register_buffer(address, 4 * ROOM) == 0
    assert store.put_tensor("raw", FULL) == 0
    assert store.get_into("raw", address, ROOM) == ROOM
    assert store.remove("raw") == 0
    yield store, address


def test_each_write_stores_the_whole_tensor(tensor_store: tuple[Any, int]) -> None:
    store, address = tensor_store
    for name, write in WRITES.items():
        answer = write(store, name, address)
        codes = answer if isinstance(answer, list) else [answer]
        assert codes == [0] * len(codes) and codes, name
        got = store.get_tensor_with_parallelism(name, target=ReadTarget("full"), **NUMPY)
        assert got is not None and (got == FULL).all(), name
    # An upsert of the whole takes every shard and manifest of before along.
    assert store.upsert_tensor("put_tensor_with_tp", FULL) == 0
    left = ["put_tensor_with_tp_tp_0", "put_tensor_with_tp__parallelism_manifest"]
    assert store.batch_is_exist([*left, "put_tensor_with_tp"]) == [0, 0, 1]


def elements(result: TensorReadResult, start: int) -> Any:
    """What a read into memory has left there."""
    assert start <= result.data_ptr <= start + 2 * ROOM
    raw = ctypes.string_at(result.data_ptr, result.data_bytes)
    return np.frombuffer(raw, FULL.dtype).reshape(result.shape)


def test_each_read_gives_what_was_asked_for(tensor_store: tuple[Any, int]) -> None:
    store, address = tensor_store
    room = address + ROOM
    assert store.put_tensor_with_tp("w", FULL, 0, 4) == 0
    assert store.put_tensor("v", FULL) == 0
    for name, (read, wanted) in READS.items():
        ctypes.memset(room, 0xEE, 3 * ROOM)
        answers = read(store, room)
        assert len(answers) == len(wanted), name
        for got, want in zip(answers, wanted):
            if isinstance(got, TensorReadResult):
                got = elements(got, room)
            assert (got is None) == (want is None), name
            assert want is None or ((got == want).all() and got.shape == want.shape), name
        assert ctypes.string_at(room + 2 * ROOM, ROOM) == b"\xee" * ROOM, name


def test_a_tensor_of_another_tenant_is_another_tensor(tensor_store: tuple[Any, int]) -> None:
    store, _ = tensor_store
    assert store.put_tensor("k", FULL, tenant="t") == 0
    assert store.get_tensor("k", **NUMPY) is None
    assert (store.get_tensor("k", tenant="t", **NUMPY) == FULL).all()
