"""Tensors divided over ranks, over the fake store, NumPy path."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from fake_store import put_at
from hypothesis import given
from hypothesis import strategies as st
from mooncake.store._tensors import ParallelAxis, ReadTarget, TensorParallelism
from tensor_store import FULL, NUMPY, Buffer, TensorStore, grid, piece, same, shard, tp


def write_tp(store: TensorStore, key: str, full: Any, size: int, dim: int = 0) -> None:
    for rank in range(size):
        store.put_tensor_with_parallelism(key, full, parallelism=tp(rank, size, dim))


def check_shard(store: TensorStore, key: str, full: Any, rank: int, size: int, dim: int) -> None:
    """One shard in all four read forms."""
    wanted, target = piece(full, rank, size, dim), shard(rank, size, dim)
    same(store.get_tensor_with_parallelism(key, target=target, **NUMPY), wanted)
    out = np.zeros_like(wanted)
    assert store.get_tensor_with_parallelism(key, target=target, tensor=out) is out
    same(out, wanted)
    buffer = Buffer(store, 304 + wanted.nbytes)
    result = store.get_tensor_with_parallelism_into(key, buffer.ptr, buffer.size, target=target)
    same(buffer.data(result, wanted.dtype), wanted)
    # What an _into read left is a tensor object itself.
    assert store.put_tensor_from("copy", buffer.ptr, buffer.size) == 0
    same(store.get_tensor("copy", **NUMPY), wanted)


def test_a_tp_put_cuts_the_callers_shard_of_the_full_tensor() -> None:
    store, full = TensorStore(), grid(8, 4)
    assert store.put_tensor_with_parallelism("w", full, parallelism=tp(1, 4)) == 0
    assert sorted(key for _, key in store.data) == ["w__parallelism_manifest", "w_tp_1"]
    same(store.get_tensor("w_tp_1", **NUMPY), full[2:4])
    with pytest.raises(RuntimeError, match="shards are missing.*w_tp_0"):
        store.get_tensor_with_parallelism("w", target=FULL, **NUMPY)
    assert store.batch_get_tensor_with_parallelism(["w"], targets=[FULL], **NUMPY) == [None]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(("writers", "readers"), [(4, 4), (4, 8), (8, 4), (2, 16), (1, 2), (4, 1)])
def test_any_ratio_of_writers_to_readers_works(dim: int, writers: int, readers: int) -> None:
    store, full = TensorStore(), grid(16, 32, dtype="i2")
    write_tp(store, "w", full, writers, dim)
    for rank in range(readers):
        check_shard(store, "w", full, rank, readers, dim)
    same(store.get_tensor_with_parallelism("w", target=FULL, **NUMPY), full)
    assert store.registered == 2 * readers or store.registered == readers


@given(
    before=st.lists(st.integers(1, 3), max_size=2),
    after=st.lists(st.integers(1, 3), max_size=2),
    writers=st.sampled_from([1, 2, 3, 4, 6]),
    readers=st.sampled_from([1, 2, 3, 4, 6]),
    dtype=st.sampled_from(["i1", "i2", "f4", "f8"]),
    ranges=st.booleans(),
    writer_form=st.booleans(),
)
def test_shards_of_any_split_are_the_numpy_slices(
    before: list[int],
    after: list[int],
    writers: int,
    readers: int,
    dtype: str,
    ranges: bool,
    writer_form: bool,
) -> None:
    store, dim = TensorStore(), len(before)
    store.dummy = not ranges  # Memory cannot be registered: whole shards are read.
    full = grid(*before, 12, *after, dtype=dtype)
    for rank in range(writers):
        form = (
            {"writer_partition": (rank, writers, dim)}
            if writer_form
            else {"parallelism": tp(rank, writers, dim)}
        )
        store.put_tensor_with_parallelism("w", full, **form)
    targets = [shard(rank, readers, dim) for rank in range(readers)]
    got = store.batch_get_tensor_with_parallelism(["w"] * readers, targets=targets, **NUMPY)
    for rank in range(readers):
        same(got[rank], piece(full, rank, readers, dim))
    same(np.concatenate(got, axis=dim), full)
    assert store.registered == 0


def test_a_split_along_another_dimension_is_read_from_whole_shards() -> None:
    store, full = TensorStore(), grid(8, 12)
    write_tp(store, "w", full, 4, 0)
    for rank in range(3):
        check_shard(store, "w", full, rank, 3, 1)


def test_very_many_small_pieces_are_read_from_whole_shards() -> None:
    store, full = TensorStore(), grid(5000, 4, dtype="i1")
    write_tp(store, "w", full, 2, 1)
    check_shard(store, "w", full, 3, 4, 1)


def axis(kind: str, rank: int, size: int) -> ParallelAxis:
    return ParallelAxis(kind, rank, size)


def test_copies_of_dp_ranks_are_found_without_their_names() -> None:
    store, full = TensorStore(), grid(8, 4)
    write_tp(store, "w", full + 9, 2)  # An older split, which its shards do not name.
    for dp, rank in ((dp, rank) for dp in range(2) for rank in range(2)):
        axes = tp(rank, 2, 0, axis("dp", dp, 2), axis("pp", 1, 3))
        store.put_tensor_with_parallelism("w", full, parallelism=axes)
    same(store.get_tensor_with_parallelism("w", target=FULL, **NUMPY), full)
    check_shard(store, "w", full, 1, 2, 0)
    check_shard(store, "w", full, 3, 4, 1)
    # One rank's copy is enough, also for a reader of another number of ranks.
    store.remove("w__dp_0of2__tp_1of2_sd0__pp_1of3")
    target = shard(1, 2, 0, axis("dp", 0, 5), axis("pp", 1, 3))
    same(store.get_tensor_with_parallelism("w", target=target, **NUMPY), full[4:])
    store.remove("w__dp_1of2__tp_0of2_sd0__pp_1of3")
    with pytest.raises(RuntimeError, match="shards are missing"):
        store.get_tensor_with_parallelism("w", target=FULL, **NUMPY)
    # A later split without other axes wins; a whole tensor leaves nothing else.
    write_tp(store, "w", full + 1, 2)
    same(store.get_tensor_with_parallelism("w", target=FULL, **NUMPY), full + 1)
    store.put_tensor_with_parallelism("w", full, parallelism=tp(0, 2, 0, axis("dp", 0, 2)))
    store.upsert_tensor("w", full)
    assert not [key for _, key in store.data if "__dp_0of2__tp" in key and "pp" not in key]
    assert ("default", "w__parallelism_axes") not in store.data


def test_ranks_with_tensors_of_their_own_have_to_be_named() -> None:
    store = TensorStore()
    for rank in range(2):
        one = TensorParallelism([axis("ep", rank, 2)])
        store.put_tensor_with_parallelism("w", grid(4) + rank, parallelism=one)
        if rank == 0:
            same(store.get_tensor_with_parallelism("w", target=FULL, **NUMPY), grid(4))
    with pytest.raises(RuntimeError, match="several EP or PP ranks"):
        store.get_tensor_with_parallelism("w", target=FULL, **NUMPY)
    target = ReadTarget("full", one)
    same(store.get_tensor_with_parallelism("w", target=target, **NUMPY), grid(4) + 1)


def test_a_whole_tensor_answers_shard_reads() -> None:
    store, full = TensorStore(), grid(8, 4)
    store.put_tensor("w", full)
    check_shard(store, "w", full, 2, 4, 1)
    same(store.get_tensor_with_tp("w", 1, 2, **NUMPY), full[4:])


def test_shards_of_older_writers_without_manifest_or_axes_are_found() -> None:
    store, full = TensorStore(), grid(8, 4)
    for rank in range(4):
        store.put_tensor(f"w_tp_{rank}", piece(full, rank, 4))
    check_shard(store, "w", full, 1, 2, 0)
    same(store.get_tensor_with_parallelism("w", target=FULL, **NUMPY), full)
    write_tp(store, "v", full, 4, 1)
    store.remove("v__parallelism_manifest")
    check_shard(store, "v", full, 0, 2, 1)


def test_other_axes_store_the_tensor_as_given() -> None:
    store, full = TensorStore(), grid(4)
    axes = [ParallelAxis("pp", 1, 2, stage_id=5), ParallelAxis("ep", 0, 2, expert_id=3)]
    store.put_tensor_with_parallelism("w", full, parallelism=axes)
    assert [key for _, key in store.data] == ["w__ep_0of2__pp_1of2", "w__parallelism_axes"]
    for mode in ("shard", "full"):
        target = ReadTarget(mode, axes)  # type: ignore[arg-type]
        same(store.get_tensor_with_parallelism("w", target=target, **NUMPY), full)


def test_data_parallel_copies_of_shards_are_told_apart() -> None:
    store, full = TensorStore(), grid(8, 4)
    for dp in range(2):
        for rank in range(4):
            axes = tp(rank, 4, 0, ParallelAxis("dp", dp, 2))
            store.put_tensor_with_parallelism("w", full + dp, parallelism=axes)
    assert "w__dp_0of2__tp_1of4_sd0" in [key for _, key in store.data]
    for dp in range(2):
        axis = ParallelAxis("dp", dp, 2)
        got = store.get_tensor_with_parallelism("w", target=shard(1, 2, 0, axis), **NUMPY)
        same(got, (full + dp)[4:])
        target = ReadTarget("full", parallelism=tp(0, 1, 0, axis))
        same(store.get_tensor_with_parallelism("w", target=target, **NUMPY), full + dp)


def test_writer_partitions_have_their_own_keys_and_manifest() -> None:
    store, full = TensorStore(), grid(8, 4)
    for rank in range(4):
        store.put_tensor_with_parallelism("w", full, writer_partition=(rank, 4, 1))
    keys = {key for _, key in store.data}
    assert keys == {"w__writer_manifest", *(f"w__writer_{rank}of4_sd1" for rank in range(4))}
    same(store.get_tensor_with_parallelism("w", target=FULL, **NUMPY), full)
    check_shard(store, "w", full, 1, 2, 1)
    check_shard(store, "w", full, 1, 2, 0)
    with pytest.raises(ValueError, match="writer_partition must be"):
        store.put_tensor_with_parallelism("w", full, writer_partition=(0, 4))


def test_a_writer_partition_wins_over_parallelism_and_batches_refuse_both() -> None:
    store, full = TensorStore(), grid(4)
    store.put_tensor_with_parallelism("w", full, parallelism=tp(0, 2), writer_partition=(0, 2, 0))
    assert store.is_exist("w__writer_0of2_sd0")
    assert not store.is_exist("w_tp_0")
    with pytest.raises(ValueError, match="not both"):
        store.batch_put_tensor_with_parallelism(
            ["w"], [full], parallelisms=[tp(0, 2)], writer_partitions=[(0, 2, 0)]
        )


@pytest.mark.parametrize(
    ("size", "dim", "text"),
    [(3, 0, "dimension 0 of shape .8, 4. does not divide by 3"), (2, 2, "split_dim 2 is out of")],
)
def test_an_impossible_split_names_the_key(size: int, dim: int, text: str) -> None:
    store, full = TensorStore(), grid(8, 4)
    for call in (
        lambda: store.put_tensor_with_parallelism("w", full, parallelism=tp(0, size, dim)),
        lambda: store.put_tensor_with_tp("w", full, 0, size, dim),
        lambda: store.batch_put_tensor_with_tp(["v", "w"], [grid(6, 6, 6), full], 0, size, dim),
    ):
        with pytest.raises(ValueError, match=f"'w': {text}"):
            call()
    assert not store.data
    store.put_tensor("w", full)
    with pytest.raises(ValueError, match=f"'w': {text}"):
        store.get_tensor_with_parallelism("w", target=shard(0, size, dim), **NUMPY)


def test_a_newer_split_of_one_key_hides_the_older_one() -> None:
    store, old, new = TensorStore(), grid(8, 2), grid(8, 2) + 100
    write_tp(store, "w", old, 8)
    for rank in range(2):
        store.upsert_tensor_with_parallelism("w", new, parallelism=tp(rank, 2))
    for rank in range(8):
        check_shard(store, "w", new, rank, 8, 0)
    store.upsert_tensor("w", old)
    assert sorted(key for _, key in store.data if key != "copy") == [
        "w",
        *(f"w_tp_{rank}" for rank in range(2, 8)),
    ]
    same(store.get_tensor_with_parallelism("w", target=FULL, **NUMPY), old)


def test_upsert_of_shards_replaces_a_whole_tensor_and_another_manifest() -> None:
    store, new = TensorStore(), grid(4)
    store.put_tensor("w", grid(6))
    store.put_tensor_with_parallelism("w", grid(6), writer_partition=(0, 1, 0))
    for rank in range(2):
        store.upsert_tensor_with_parallelism("w", new, parallelism=tp(rank, 2))
    same(store.get_tensor_with_parallelism("w", target=FULL, **NUMPY), new)
    assert not store.is_exist("w__writer_manifest")


def test_a_destination_that_is_too_small_is_refused_before_copying() -> None:
    store, full = TensorStore(), grid(8, 4)
    write_tp(store, "w", full, 4)
    buffer = Buffer(store, 304 + 127)
    for target in (FULL, shard(0, 1)):
        with pytest.raises(ValueError, match="432 bytes .header and data. do not fit 431"):
            store.get_tensor_with_parallelism_into("w", buffer.ptr, buffer.size, target=target)
    assert (buffer.array == 0xEE).all()
    small = Buffer(store, 304 + 31)
    with pytest.raises(ValueError, match="do not fit"):
        store.get_tensor_with_parallelism_into("w", small.ptr, small.size, target=shard(0, 4))


@pytest.mark.parametrize("dim", [0, 1])
def test_memory_that_is_not_registered_is_refused_untouched(dim: int) -> None:
    store, full = TensorStore(), grid(8, 4)
    write_tp(store, "w", full, 4)
    memory = np.zeros(1000, np.uint8)
    target = shard(0, 2, dim)
    with pytest.raises(RuntimeError, match="-2"):
        store.get_tensor_with_parallelism_into("w", memory.ctypes.data, 1000, target=target)
    assert not memory.any()


def test_a_batch_into_shares_its_ranged_reads() -> None:
    store, full = TensorStore(), grid(16, 4)
    names = [f"w{index}" for index in range(5)]
    for index, name in enumerate(names):
        write_tp(store, name, full + index, 4)
    store.put_tensor("plain", full)
    buffers = [Buffer(store, 4 * 304) for _ in range(6)]
    store.calls.clear()
    results = store.batch_get_tensor_with_parallelism_into(
        [*names, "plain"],
        [b.ptr for b in buffers],
        [b.size for b in buffers],
        targets=[FULL, shard(1, 2), shard(0, 8), FULL, shard(3, 4), FULL],
    )
    wanted = [full, piece(full + 1, 1, 2), piece(full + 2, 0, 8), full + 3, piece(full + 4, 3, 4)]
    for buffer, result, value in zip(buffers, results, [*wanted, full], strict=True):
        same(buffer.data(result, "i4"), value)
    assert store.calls["get_into_ranges"] == 2
    assert store.calls["batch_get_into"] == 1
    assert store.calls["batch_is_exist"] == 1
    assert store.calls["register_buffer"] == 0


def test_raw_buffers_are_cut_and_shard_buffers_are_stored_again() -> None:
    store, full = TensorStore(), grid(8, 4)
    store.put_tensor("full", full)
    buffer = Buffer(store, 500)
    assert store.get_tensor_into("full", buffer.ptr, 500) is not None
    for rank in range(4):
        store.put_tensor_with_parallelism_from("w", buffer.ptr, 500, parallelism=tp(rank, 4))
    check_shard(store, "w", full, 1, 2, 0)
    store.get_tensor_with_parallelism_into("w", buffer.ptr, 500, target=shard(1, 2))
    assert store.put_tensor_with_tp_from("v", buffer.ptr, 500, 1, 2) == 0
    same(store.get_tensor("v_tp_1", **NUMPY), full[4:])
    with pytest.raises(ValueError, match="which is not the shard"):
        store.put_tensor_with_parallelism_from("v", buffer.ptr, 500, parallelism=tp(0, 2))
    store.get_tensor_into("full", buffer.ptr, 500)
    assert (
        store.upsert_tensor_with_parallelism_from("u", buffer.ptr, 500, writer_partition=(0, 1, 0))
        == 0
    )
    same(store.get_tensor_with_parallelism("u", target=FULL, **NUMPY), full)
    assert store.batch_upsert_tensor_with_parallelism_from(["t"], [buffer.ptr], [500]) == [0]
    same(store.get_tensor("t", **NUMPY), full)


@pytest.mark.parametrize("dim", [0, 1])
def test_raw_buffers_that_are_not_registered_are_refused(dim: int) -> None:
    store = TensorStore()
    store.put_tensor("full", grid(8, 4))
    raw = np.frombuffer(store.get("full"), np.uint8).copy()
    ptr, size, axes = int(raw.ctypes.data), raw.size, tp(0, 2, dim)
    single = [
        lambda: store.put_tensor_with_parallelism_from("w", ptr, size),
        lambda: store.put_tensor_with_parallelism_from("w", ptr, size, parallelism=axes),
        lambda: store.upsert_tensor_with_parallelism_from(
            "w", ptr, size, writer_partition=(0, 2, dim)
        ),
        lambda: store.put_tensor_with_tp_from("w", ptr, size, 0, 2, dim),
    ]
    for call in single:
        with pytest.raises(RuntimeError, match="status -1"):
            call()
    assert store.batch_put_tensor_with_parallelism_from(
        ["w"], [ptr], [size], parallelisms=[axes]
    ) == [-1]
    assert store.batch_put_tensor_with_tp_from(["w"], [ptr], [size], 0, 2, dim) == [-1]
    assert list(store.data) == [("default", "full")]


def test_a_destination_with_a_hole_is_refused() -> None:
    store = TensorStore()
    store.put_tensor_with_tp("w", grid(8, 800), 0, 2, 1)
    into = np.zeros(304 + 25600, np.uint8)
    for start, size in ((0, 1000), (into.size - 1000, 1000)):
        store.register_buffer(int(into.ctypes.data) + start, size)
    with pytest.raises(RuntimeError, match="refused|gave -2"):
        store.get_tensor_with_parallelism_into(
            "w", int(into.ctypes.data), into.size, target=shard(0, 1)
        )
    with pytest.raises(RuntimeError, match="refused"):
        store.get_tensor_with_parallelism_into(
            "w", int(into.ctypes.data), into.size, target=shard(0, 2, 0)
        )
    assert not into[1000:-1000].any()


def test_the_with_tp_family_stores_all_shards() -> None:
    store, one, two = TensorStore(), grid(8, 4), grid(4, 8)
    assert store.put_tensor_with_tp("a", one, 3, 4, 1) == 0
    assert store.batch_put_tensor_with_tp(["b", "c"], [one, two], 0, 2) == [0, 0]
    assert store.pub_tensor_with_tp("d", one, None, tp_size=1) == 0
    same(store.get_tensor_with_tp("a", 2, 4, 1, **NUMPY), piece(one, 2, 4, 1))
    same(store.get_tensor_with_tp("a", **NUMPY), one)
    got = store.batch_get_tensor_with_tp(["b", "none", "c"], 1, 2, **NUMPY)
    same(got[0], one[4:])
    assert got[1] is None
    same(got[2], two[2:])
    same(store.get_tensor("d", **NUMPY), one)
    buffer = Buffer(store, 500)
    result = store.get_tensor_with_tp_into("b", buffer.ptr, 500, 0, 4)
    same(buffer.data(result, "i4"), one[:2])
    results = store.batch_get_tensor_with_tp_into(["b"], [buffer.ptr], [500], 1, 2)
    same(buffer.data(results[0], "i4"), one[4:])
    for rank, size in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="tp_rank|tp_size"):
            store.get_tensor_with_tp("b", rank, size, **NUMPY)


# --- Damaged stores -------------------------------------------------------------------------


@pytest.mark.parametrize("into", [False, True])
def test_a_shard_that_does_not_fit_its_manifest_is_refused(into: bool) -> None:
    store, full = TensorStore(), grid(8, 4)
    write_tp(store, "w", full, 4)
    store.put_tensor("w_tp_2", grid(2, 4, dtype="f4"))
    buffer = Buffer(store, 1000)
    for target in (FULL, shard(1, 2)):
        with pytest.raises(RuntimeError, match="w_tp_2.*float32"):
            if into:
                store.get_tensor_with_parallelism_into("w", buffer.ptr, 1000, target=target)
            else:
                store.get_tensor_with_parallelism("w", target=target, **NUMPY)
    same(store.get_tensor_with_parallelism("w", target=shard(0, 2), **NUMPY), full[:4])


def test_a_manifest_with_a_monstrous_shape_allocates_nothing() -> None:
    store, full = TensorStore(), grid(8, 4)
    write_tp(store, "w", full, 4)
    manifest = bytearray(store.get("w__parallelism_manifest"))
    struct.pack_into("<q", manifest, 24, 1 << 40)
    put_at(store, "w__parallelism_manifest", bytes(manifest))
    with pytest.raises(RuntimeError, match="cannot be part of"):
        store.get_tensor_with_parallelism("w", target=FULL, **NUMPY)
    put_at(store, "w__parallelism_manifest", b"\x80\x04pickle")
    with pytest.raises(RuntimeError, match="manifest of 'w'"):
        store.get_tensor_with_parallelism("w", target=FULL, **NUMPY)
    assert store.batch_get_tensor_with_parallelism(["w"], targets=[FULL], **NUMPY) == [None]


def test_a_failed_fragment_fails_only_its_tensor() -> None:
    store, full = TensorStore(), grid(8, 4)
    write_tp(store, "a", full, 4)
    write_tp(store, "b", full, 4)
    put_at(store, "a_tp_1", store.get("a_tp_1")[:-1])
    got = store.batch_get_tensor_with_parallelism(["a", "b"], targets=[FULL, FULL], **NUMPY)
    assert got[0] is None
    same(got[1], full)
    with pytest.raises(RuntimeError, match="a_tp_1"):
        store.get_tensor_with_parallelism("a", target=FULL, **NUMPY)
    assert store.registered == 0
