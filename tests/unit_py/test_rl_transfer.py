"""The calls of RL frameworks: nested dicts without pickle."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_store import FakeStore
from hypothesis import given
from hypothesis import strategies as st
from mooncake.store.rs.structured_object_store import (
    MooncakeBundleTransfer,
    StructuredObjectPayload,
)
from mooncake.structured_object_store import FieldSchema
from mooncake.structured_object_store import MooncakeBundleTransfer as SameTransfer
from tensor_store import TensorStore

NUMPY = {"framework": "numpy"}


def make() -> tuple[FakeStore, MooncakeBundleTransfer]:
    store = FakeStore()
    return store, MooncakeBundleTransfer(store, "rl")


def equal(one: Any, two: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and one.shape == two.shape and one.tolist() == two.tolist()
    if isinstance(one, dict):
        return list(one) == list(two) and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(two) and all(map(equal, one, two)) and len(one) == len(two)
    return type(one) is type(two) and bool(one == two)


def test_both_modules_have_the_same_class() -> None:
    assert SameTransfer is MooncakeBundleTransfer


def test_a_nested_dict_comes_back_with_its_types() -> None:
    store, transfer = make()
    value = {
        "tokens": np.arange(6, dtype=np.int64).reshape(2, 3),
        "prompts": np.array(["a", "b", None, 3], dtype=object).reshape(2, 2),
        "nested": {"list": [1, 2.5, "x", None, True], "tuple": (b"raw", np.float32(2.5))},
        3: {},
        "scalar": np.int16(4),
        "empty": np.zeros((0, 2)),
    }
    ref = transfer.put(value, type="dict", partition="step-1")
    got = transfer.get(ref, **NUMPY)
    assert equal({k: v for k, v in value.items()}, got)
    transfer.release_result(got)
    transfer.remove_bundle(ref)
    assert not store.data


def test_scalars_of_numpy_keep_their_types() -> None:
    store, transfer = make()
    date = np.datetime64("2020-02-29", "D")
    scalars = (np.float64(0.1), np.str_("é"), np.bytes_(b"x"), np.bool_(True), np.str_(""), date)
    scalars += (np.str_("long " * 100), np.complex64(1j), np.longdouble(3))
    got = transfer.get(transfer.put({"scalars": scalars}), **NUMPY)["scalars"]
    assert [(type(one), one) for one in got] == [(type(one), one) for one in scalars]
    assert sum("/buffer/" in key for _, key in store.data) == 1  # The long one alone.


def test_a_masked_array_is_refused_before_its_mask_is_lost() -> None:
    _, transfer = make()
    masked = np.ma.masked_array([1, 2, 3], mask=[0, 1, 0])
    with pytest.raises(TypeError, match="/batch/x: a masked array"):
        transfer.put({"batch": {"x": masked}})
    with pytest.raises(TypeError, match="masked array"):
        transfer.put_bundle(b"", {"x": masked})
    with pytest.raises(TypeError, match="masked array"):
        transfer.put_structured_object(StructuredObjectPayload(buffers={"x": masked}))
    with pytest.raises(TypeError, match="masked array"):
        TensorStore().put_tensor("x", masked)


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
trees = st.dictionaries(
    st.text() | st.integers(),
    st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.tuples(inner, inner)
            | st.dictionaries(st.text(), inner, max_size=3)
        ),
        max_leaves=10,
    ),
    max_size=4,
)


@given(trees)
def test_any_tree_of_plain_values_comes_back(value: dict[Any, Any]) -> None:
    _, transfer = make()
    assert equal(transfer.get(transfer.put(value), **NUMPY), value)


def test_a_dataproto_is_stored_as_its_three_parts() -> None:
    _, transfer = make()
    proto = SimpleNamespace(
        batch={"ids": np.arange(4)},
        non_tensor_batch={"uid": np.array(["a", "b"], dtype=object)},
        meta_info={"step": 3},
    )
    ref = transfer.put(proto, type="dataproto")
    got = transfer.get(ref, type="dataproto", **NUMPY)
    with pytest.raises(ValueError, match="stored as 'dataproto', not as 'dict'"):
        transfer.get(ref, "dict")
    with pytest.raises(ValueError, match="'dict' or 'dataproto'"):
        transfer.get(ref, "pickle")
    assert got["meta_info"] == {"step": 3}
    assert equal(got["batch"], proto.batch)
    assert equal(got["non_tensor_batch"], proto.non_tensor_batch)


def test_the_other_names_of_put_check_a_schema() -> None:
    store, transfer = make()
    data = SimpleNamespace(batch={"ids": np.zeros((2, 3), "i8")}, non_tensor_batch={}, meta_info={})
    schema = [
        FieldSchema("batch/ids", np.int64, (None, 3)),
        FieldSchema("meta_info/x", None, None, False),
    ]
    ref = transfer.put_dataproto(data, "step-1", schema=schema)
    assert ref.manifest_key.startswith("rl/step-1/")
    assert equal(transfer.get(ref, **NUMPY)["batch"], data.batch)
    ref = transfer.put_legacy_dict({"a": {"b": 1}}, schema=[FieldSchema("a/b")])
    assert transfer.get(ref) == {"a": {"b": 1}}
    store.data.clear()
    for wrong, text in [
        (FieldSchema("batch/no"), "'batch/no' is missing"),
        (FieldSchema("batch/ids/deeper"), "is missing"),
        (FieldSchema("batch/ids", "int32"), "type int64, not int32"),
        (FieldSchema("batch/ids", shape=(2,)), "shape"),
        (FieldSchema("batch/ids", shape=(2, 4)), "shape"),
        (FieldSchema("meta_info", "int64"), "type None"),
    ]:
        with pytest.raises(ValueError, match=text):
            transfer.put_dataproto(data, schema=[wrong])
    assert not store.data


def test_what_json_cannot_say_is_refused_with_its_path() -> None:
    store, transfer = make()
    with pytest.raises(TypeError, match="/a/1: a object cannot be stored"):
        transfer.put({"a": [1, object()]})
    with pytest.raises(TypeError, match="key of type tuple"):
        transfer.put({(1, 2): 3})
    with pytest.raises(ValueError, match="'dict' or 'dataproto'"):
        transfer.put({}, type="pickle")
    with pytest.raises(TypeError, match="a dict is needed"):
        transfer.put([1])
    deep: Any = 1
    for _ in range(100):
        deep = {"d": deep}
    with pytest.raises(ValueError, match="nested deeper than 64"):
        transfer.put(deep)
    assert not store.data


@pytest.mark.parametrize(
    "tree",
    [
        None,
        5,
        ["value", 5],
        ["dict", [["k"]]],
        ["dict", [[[], ["value", 1]]]],
        ["dict", [["k", ["array", "absent"]]]],
        ["dict", [["k", ["array", []]]]],
        ["dict", [["k", ["tensor", "m0", "object", [1]]]]],
        ["dict", [["k", ["tensor", "m0", "uint8", [2**40]]]]],
        ["dict", [["k", ["objects", [2**40], []]]]],
        ["dict", [["k", ["exec", "x"]]]],
        ["dict", [["k", ["scalar", "|O", "00" * 8]]]],
        ["dict", [["k", ["scalar", "<f8", "00" * 7]]]],
        ["dict", [["k", ["scalar", "<f8", 5]]]],
    ],
)
def test_a_damaged_tree_is_a_value_error(tree: Any) -> None:
    _, transfer = make()
    specs = {"m0": {"encoding": "bytes"}}
    meta = {"layout": "dict", "tree": tree, "__mooncake_structured_fields__": specs}
    ref = transfer.put_bundle(meta, {"m0": b"x"})
    with pytest.raises(ValueError):
        transfer.get(ref, **NUMPY)
