"""Tensor methods over the fake store, NumPy path."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_store import put_at
from mooncake.store._tensor_format import TENSOR_METADATA_WIRE_SIZE, TensorFormatError
from mooncake.store._tensors import TensorReadResult
from tensor_store import FULL, NUMPY, Buffer, TensorStore, grid, same, shard, tp

PREAMBLE = f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}\n"
PLAIN_DTYPES = ["f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?", "f2"]


# --- Plain ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", PLAIN_DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (4, 6), (2, 1, 3, 1, 2, 1, 2, 1)])
def test_every_type_and_shape_comes_back(dtype: str, shape: tuple[int, ...]) -> None:
    store, value = TensorStore(), grid(*shape, dtype=dtype)
    assert store.put_tensor("k", value) == 0
    got = store.get_tensor("k", **NUMPY)
    same(got, value)
    assert got.flags.writeable
    assert got.flags.owndata or got.base is not None


@pytest.mark.parametrize(
    "value",
    [grid(4, 6).T, grid(4, 6)[::2, ::-1], np.asfortranarray(grid(3, 4)), grid(4).astype(">i4")],
)
def test_strided_and_foreign_order_arrays_are_stored_by_value(value: Any) -> None:
    store = TensorStore()
    store.put_tensor("k", value)
    same(store.get_tensor("k", **NUMPY), np.ascontiguousarray(value).astype("<i4"))


def test_the_stored_object_is_header_and_data() -> None:
    store = TensorStore()
    store.put_tensor("k", grid(2, 3))
    raw = store.get("k")
    assert len(raw) == TENSOR_METADATA_WIRE_SIZE + 24
    assert raw[304:] == grid(2, 3).tobytes()
    assert raw[:4] == struct.pack("<I", 0x4D4F4F4E)


def test_buffers_and_dlpack_objects_are_tensors() -> None:
    class OnlyDlpack:
        def __init__(self, array: Any) -> None:
            self._array = array

        def __dlpack__(self, **kwargs: Any) -> Any:
            return self._array.__dlpack__(**kwargs)

        def __dlpack_device__(self) -> Any:
            return self._array.__dlpack_device__()

    store = TensorStore()
    store.put_tensor("a", bytearray(b"abc"))
    store.put_tensor("b", OnlyDlpack(grid(2, 2)))
    same(store.get_tensor("a", **NUMPY), np.frombuffer(b"abc", np.uint8))
    same(store.get_tensor("b", **NUMPY), grid(2, 2))


class DuckTensor:
    """The six attributes that the store needs of a torch tensor."""

    def __init__(self, array: Any, dtype: str, contiguous: bool = True) -> None:
        self._array, self.dtype, self.shape = array, dtype, array.shape
        self._contiguous = contiguous

    def data_ptr(self) -> int:
        return int(self._array.ctypes.data)

    def numel(self) -> int:
        return int(self._array.size)

    def element_size(self) -> int:
        return int(self._array.itemsize)

    def is_contiguous(self) -> bool:
        return self._contiguous


@pytest.mark.parametrize(
    ("name", "raw"),
    [("bfloat16", "u2"), ("float8_e4m3fn", "u1"), ("float8_e5m2", "u1")],
)
def test_types_that_numpy_lacks_keep_their_bits(name: str, raw: str) -> None:
    store, bits = TensorStore(), grid(2, 3, dtype=raw)
    store.put_tensor("k", DuckTensor(bits, f"torch.{name}"))
    got = store.get_tensor("k", **NUMPY)
    assert got.dtype.name in (name, np.dtype(raw).name)
    assert got.view(raw).tolist() == bits.tolist()
    into = np.zeros((2, 3), raw)
    assert store.get_tensor("k", tensor=into) is into
    assert into.tolist() == bits.tolist()


def test_what_is_no_tensor_is_refused_with_the_key() -> None:
    store = TensorStore()
    for value, kind in [
        ([1, 2], TypeError),
        (None, TypeError),
        (np.zeros(2, "c8"), ValueError),
        (np.array(["a"]), ValueError),
        (np.array([object()]), ValueError),
        (np.zeros((1,) * 9), ValueError),
        (DuckTensor(grid(2), "torch.complex64"), ValueError),
        (DuckTensor(grid(2), "torch.int32", contiguous=False), ValueError),
        (DuckTensor(grid(2), "torch.int64"), ValueError),
    ]:
        with pytest.raises(kind, match="'the-key'"):
            store.put_tensor("the-key", value)
    assert not store.data


def test_a_missing_tensor_is_none_in_every_form() -> None:
    store = TensorStore()
    buffer = Buffer(store, 400)
    for target in (None, FULL, shard(0, 2)):
        assert store.get_tensor_with_parallelism("k", target=target, **NUMPY) is None
        assert store.get_tensor_with_parallelism_into("k", buffer.ptr, 400, target=target) is None
    assert store.get_tensor("k", **NUMPY) is None
    assert store.get_tensor_into("k", buffer.ptr, 400) is None
    assert store.get_tensor_with_tp("k", 0, 2, **NUMPY) is None
    assert store.batch_get_tensor(["k", "l"], **NUMPY) == [None, None]


def test_a_failed_write_raises_with_its_status_and_a_batch_reports_it_per_item() -> None:
    store = TensorStore()
    store.fail["put_parts"] = [-200, None, -5]
    with pytest.raises(RuntimeError, match="'k' failed with status -200"):
        store.put_tensor("k", grid(2))
    assert store.batch_put_tensor(["a", "b", "c"], [grid(1), grid(2), grid(3)]) == [0, -5, 0]


def test_a_destination_is_checked_before_anything_is_copied() -> None:
    store = TensorStore()
    store.put_tensor("k", grid(2, 3))
    frozen = np.zeros((2, 3), "i4")
    frozen.flags.writeable = False
    for bad in (np.zeros((3, 2), "i4"), np.zeros((2, 3), "u4"), np.zeros(7, "i4"), frozen):
        before = bad.copy()
        with pytest.raises(ValueError, match="'k': the destination"):
            store.get_tensor("k", tensor=bad)
        assert (bad == before).all()
    strided = np.zeros((3, 2), "i4").T
    assert store.get_tensor("k", tensor=strided, **NUMPY) is strided
    assert (strided == grid(2, 3)).all()


def test_into_reads_header_and_data_in_place() -> None:
    store = TensorStore()
    store.put_tensor("k", grid(2, 3))
    buffer = Buffer(store, 304 + 24)
    result = store.get_tensor_into("k", buffer.ptr, buffer.size)
    assert result == TensorReadResult(buffer.ptr + 304, 24, (2, 3), 6, 328)
    same(buffer.data(result, "i4"), grid(2, 3))
    for size, text in ((303, "no room"), (327, "328 bytes do not fit 327")):
        with pytest.raises(ValueError, match=text):
            store.get_tensor_into("k", buffer.ptr, size)
    with pytest.raises(RuntimeError, match="failed with code -2"):
        store.get_tensor_into("k", buffer.ptr + 1, buffer.size)


def test_put_from_takes_a_tensor_or_a_raw_buffer() -> None:
    store = TensorStore()
    assert store.put_tensor_from("a", grid(3)) == 0
    buffer = Buffer(store, 1000)
    buffer.array[: 304 + 12] = np.frombuffer(store.get("a"), np.uint8)
    assert store.put_tensor_from("b", buffer.ptr, 1000) == 0
    assert store.get("b") == store.get("a")
    buffer.array[6:8] = 0  # header_size, as some writers leave it
    assert store.batch_put_tensor_from(["c"], [buffer.ptr], [1000]) == [0]
    same(store.get_tensor("c", **NUMPY), grid(3))
    with pytest.raises(TypeError, match="needs the size"):
        store.put_tensor_from("d", buffer.ptr)
    with pytest.raises(ValueError, match="ends at byte 316 of an object of 315"):
        store.put_tensor_from("d", buffer.ptr, 315)
    with pytest.raises(ValueError, match="no room"):
        store.put_tensor_from("d", buffer.ptr, 303)
    for address in (8, 2**47 - 4096):
        with pytest.raises(ValueError, match="cannot be read"):
            store.put_tensor_from("d", address, 1000)
    buffer.array[0] = 0
    with pytest.raises(ValueError, match="'d': tensor: bad magic"):
        store.put_tensor_from("d", buffer.ptr, 1000)
    other = np.frombuffer(store.get("a"), np.uint8).copy()
    with pytest.raises(RuntimeError, match="status -1"):
        store.put_tensor_from("d", int(other.ctypes.data), other.size)


def test_the_memory_of_a_device_is_not_written_to() -> None:
    store, into = TensorStore(), np.zeros(3, np.int32)
    store.put_tensor("k", grid(3))
    duck: Any = DuckTensor(into, "torch.int32")
    assert store.get_tensor("k", tensor=duck) is duck
    same(into, grid(3))
    duck.device = SimpleNamespace(type="cuda")
    with pytest.raises(TypeError, match="cannot write into"):
        store.get_tensor("k", tensor=duck)


def test_addresses_may_be_any_integers_but_no_others() -> None:
    store = TensorStore()
    store.put_tensor("a", grid(3))
    buffer = Buffer(store, 316)
    buffer.array[:316] = np.frombuffer(store.get("a"), np.uint8)
    assert store.put_tensor_from("b", np.uint64(buffer.ptr), np.int64(316)) == 0
    ptrs, sizes = np.array([buffer.ptr], np.uint64), np.array([316])
    assert store.batch_put_tensor_from(["c"], ptrs, sizes) == [0]
    assert store.put_tensor_with_tp_from("d", np.uint64(buffer.ptr), np.int64(316)) == 0
    assert store.batch_get_tensor_into(["b"], ptrs, sizes) != [None]
    assert len({store.get(key) for key in "abcd"}) == 1
    for wrong in (float(buffer.ptr), str(buffer.ptr), True, None):
        with pytest.raises(TypeError, match=r"ptrs\[0\] must be int"):
            store.batch_put_tensor_from(["e"], [wrong], [316])
        with pytest.raises(TypeError, match="ptr must be int"):
            store.put_tensor_with_tp_from("e", wrong, 316)
        with pytest.raises(TypeError, match="ptr must be int"):
            store.get_tensor_into("a", wrong, 316)
    with pytest.raises(ValueError, match="from 0 to"):
        store.put_tensor_from("e", buffer.ptr + (1 << 64), 316)
    for tensor in (grid(3), np.array(buffer.ptr)):
        with pytest.raises(TypeError, match="size is for an address"):
            store.put_tensor_from("e", tensor, 316)
    assert ("default", "e") not in store.data


WRONG_KEYS = [("", ValueError), (5, TypeError), (b"w", TypeError), (None, TypeError)]
WRONG_KEYS += [("k" * 65537, ValueError), ("\ud800", ValueError)]


@pytest.mark.parametrize(("key", "error"), WRONG_KEYS)
def test_every_call_checks_its_keys_before_it_writes(key: Any, error: type[Exception]) -> None:
    store, full, axes = TensorStore(), grid(4, 4), tp(0, 2)
    store.put_tensor("good", full)
    buffer = Buffer(store, 1000)
    store.get_tensor_into("good", buffer.ptr, 1000)
    store.data.clear()
    raw = (buffer.ptr, 1000)
    rows = [[value] * 2 for value in raw]
    two = ["good", key]
    calls = [
        lambda: store.put_tensor(key, full),
        lambda: store.put_tensor_from(key, *raw),
        lambda: store.put_tensor_with_tp(key, full, tp_size=2),
        lambda: store.put_tensor_with_tp_from(key, *raw, 0, 2),
        lambda: store.put_tensor_with_parallelism(key, full, parallelism=axes),
        lambda: store.upsert_tensor_with_parallelism(key, full, writer_partition=(0, 2, 0)),
        lambda: store.put_tensor_with_parallelism_from(key, *raw, parallelism=axes),
        lambda: store.batch_put_tensor(two, [full] * 2),
        lambda: store.batch_put_tensor_from(two, *rows),
        lambda: store.batch_put_tensor_with_tp(two, [full] * 2, tp_size=2),
        lambda: store.batch_put_tensor_with_tp_from(two, *rows, 0, 2),
        lambda: store.batch_put_tensor_with_parallelism(two, [full] * 2),
        lambda: store.batch_put_tensor_with_parallelism_from(two, *rows),
        lambda: store.get_tensor_with_tp(key, 0, 2),
        lambda: store.batch_get_tensor(two),
        lambda: store.batch_get_tensor_into(two, *rows),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(error):
            call()
        assert not store.data, number


def test_one_text_is_no_list_of_keys() -> None:
    store, full = TensorStore(), grid(4, 4)
    for call in (store.batch_put_tensor, store.batch_put_tensor_with_tp):
        with pytest.raises(TypeError, match="keys must be a list, not str"):
            call("abc", [full] * 3)
    with pytest.raises(TypeError, match="keys must be a list, not str"):
        store.batch_get_tensor("abc")
    assert not store.data
    longest = "k" * 65536
    assert store.upsert_tensor(longest, full) == 0
    with pytest.raises(ValueError, match="at most 65536"):  # The shards' keys would be longer.
        store.put_tensor_with_tp(longest, full, tp_size=2)
    assert list(store.data) == [("default", longest)]


def test_batches_isolate_missing_and_damaged_items() -> None:
    store = TensorStore()
    assert store.batch_put_tensor(["a", "b"], [grid(2), grid(3)]) == [0, 0]
    put_at(store, "bad", b"x" * 400)
    got = store.batch_get_tensor(["a", "none", "bad", "b"], **NUMPY)
    assert [None if one is None else one.shape for one in got] == [(2,), None, None, (3,)]
    with pytest.raises(TensorFormatError, match="'bad': tensor: bad magic"):
        store.get_tensor("bad", **NUMPY)
    buffers = [Buffer(store, 400) for _ in range(4)]
    results = store.batch_get_tensor_into(
        ["a", "none", "bad", "b"], [b.ptr for b in buffers], [b.size for b in buffers]
    )
    assert [one.shape if one else None for one in results] == [(2,), None, None, (3,)]
    assert store.batch_get_tensor([], **NUMPY) == []


def test_call_shapes_are_checked() -> None:
    store = TensorStore()
    with pytest.raises(ValueError, match="tensors has 1 items for 2 keys"):
        store.batch_put_tensor(["a", "b"], [grid(1)])
    with pytest.raises(ValueError, match="sizes has 0"):
        store.batch_get_tensor_into(["a"], [1], [])
    with pytest.raises(TypeError, match=r"keys\[0\] must be str"):
        store.get_tensor(b"k", **NUMPY)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is empty"):
        store.get_tensor("", **NUMPY)
    with pytest.raises(ValueError, match=r"keys\[0\] is '\\ud800', which is not valid UTF-8"):
        store.get_tensor("\ud800", **NUMPY)
    with pytest.raises(ValueError, match="framework"):
        store.get_tensor("k", framework="jax")


def test_tenant_and_config_reach_the_store() -> None:
    store, config = TensorStore(), object()
    store.put_tensor("k", grid(2), tenant="t", config=config)
    store.pub_tensor("p", grid(2), config)
    assert store.get_tensor("k", **NUMPY) is None
    same(store.get_tensor("k", tenant="t", **NUMPY), grid(2))
    assert store.configs == [config, config]


def test_the_methods_import_without_numpy_and_torch() -> None:
    program = (
        "import conftest, sys, mooncake.store._tensors, mooncake.store.rs._bundle_read as r\n"
        "print(sorted({'numpy', 'torch'} & set(sys.modules)))\n"
        "sys.modules['numpy'] = None\n"
        "try: r.describe('m', b'')\n"
        "except ImportError as error: print('structured' in str(error))\n"
    )
    command = [sys.executable, "-S", "-c", PREAMBLE + program]
    run = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    assert (run.stdout.split("\n")[:2], run.returncode) == (["[]", "True"], 0), run.stderr
