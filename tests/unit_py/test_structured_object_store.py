"""Structured objects and bundles over the fake store."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest
from bundle_store import TOKENS, make, rollout, stored
from fake_store import FakeStore
from hypothesis import given
from hypothesis import strategies as st
from mooncake.store.rs.structured_object_store import (
    STRUCTURED_FIELD_SPECS_KEY,
    BundleTransferPolicy,
    MooncakeBundleTransfer,
    StructuredObjectPayload,
    TransferProgress,
)


class PlainStore:
    """Nothing but put, get and remove."""

    def __init__(self) -> None:
        self._store = FakeStore()
        self.put, self.get, self.remove = self._store.put, self._store.get, self._store.remove


# --- Round trips ----------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1 << 20, 7])
@pytest.mark.parametrize("kind", ["registered", "plain", "dummy"])
def test_an_object_comes_back_whole(chunk: int, kind: str) -> None:
    store: Any = PlainStore() if kind == "plain" else FakeStore(dummy=kind == "dummy")
    transfer = MooncakeBundleTransfer(store, "demo", chunk)
    ref = transfer.put_structured_object(rollout())
    result = transfer.materialize(transfer.read_spec(ref))
    assert result.metadata["step"] == 7
    assert result.metadata["layout"] == "rollout"
    assert result.metadata[STRUCTURED_FIELD_SPECS_KEY]["tokens"] == {
        "encoding": "ndarray",
        "dtype": "<i4",
        "shape": [6, 4],
    }
    assert result.objects["ids"] == b"sample-ids"
    assert (result.objects["tokens"] == TOKENS).all()
    assert result.objects["tokens"].dtype == np.int32
    assert result.objects["tokens"].flags.writeable
    assert list(result.objects) == ["tokens", "mask", "ids"]
    if kind == "registered":
        assert store.registered == 0


def test_keys_and_manifest_have_the_documented_form() -> None:
    store, transfer = make(16)
    ref = transfer.put_bundle(b"m", {"a": b"x" * 20, "e": b""}, partition="train")
    base = ref.manifest_key.removesuffix("/manifest")
    assert base.startswith("demo/train/")
    assert len(base) == len("demo/train/") + 32
    assert json.loads(store.get(ref.manifest_key)) == ref.manifest
    assert ref.manifest["version"] == 1
    assert ref.manifest["layout"] == "bundle"
    assert ref.manifest["object_id"] == base.removeprefix("demo/")
    assert ref.manifest["buffers"]["e"] == {
        "key": f"{base}/buffer/e",
        "bytes": 0,
        "chunks": [{"key": f"{base}/buffer/e", "bytes": 0}],
    }
    assert stored(store) == {
        f"{base}/{name}"
        for name in ("meta", "manifest", "buffer/a/chunk/0", "buffer/a/chunk/1", "buffer/e")
    }
    assert transfer.get_bundle(ref) == (b"m", {"a": b"x" * 20, "e": b""})


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((), np.float64),
        np.zeros((0, 3), np.int8),
        np.asfortranarray(TOKENS),
        TOKENS[::2, ::-1],
        np.array(["a", "long"]),
        np.array(["2026-01-01"], "M8[D]"),
        np.array([1 + 2j]),
        np.array([True, False]),
        np.arange(3, dtype=">u2"),
    ],
)
def test_arrays_of_every_plain_type_and_layout_come_back(array: Any) -> None:
    _, transfer = make()
    ref = transfer.put_structured_object(StructuredObjectPayload(buffers={"m": array}))
    got = transfer.materialize(transfer.read_spec(ref)).objects["m"]
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    assert (got == array).all()


def test_metadata_defaults_to_an_empty_structured_object() -> None:
    _, transfer = make()
    ref = transfer.put_structured_object(StructuredObjectPayload(buffers={}))
    result = transfer.materialize(transfer.read_spec(ref))
    assert result.metadata == {"layout": "structured", STRUCTURED_FIELD_SPECS_KEY: {}}
    assert result.objects == {}
    with pytest.raises(TypeError, match="buffers"):
        StructuredObjectPayload()


def test_a_reference_travels_as_json_or_as_a_manifest_key() -> None:
    store, transfer = make()
    ref = transfer.put_structured_object(rollout())
    text = json.dumps(transfer.export_ref(ref))
    other = MooncakeBundleTransfer(store, "demo")
    for given_ref in (
        other.import_ref(text),
        {"manifest": ref.manifest},
        {"manifest_key": ref.manifest_key},
    ):
        assert (other.materialize(other.read_spec(given_ref)).objects["tokens"] == TOKENS).all()
    with pytest.raises(ValueError, match="namespace"):
        MooncakeBundleTransfer(store, "elsewhere").import_ref(text)
    with pytest.raises(TypeError, match="reference"):
        transfer.read_spec("key")


# --- Partial reads --------------------------------------------------------------------------


def test_a_spec_selects_members_and_rows() -> None:
    store, transfer = make()
    ref = transfer.put_structured_object(rollout())
    spec = transfer.read_spec(ref).select_members(["tokens"]).slice_member("tokens", 0, 2, 5)
    store.log.clear()
    result = transfer.materialize(spec)
    assert list(result.objects) == ["tokens"]
    assert (result.objects["tokens"] == TOKENS[2:5]).all()
    assert not [detail for name, detail in store.log if "mask" in str(detail)]


@pytest.mark.parametrize("chunk", [1 << 20, 10])
@pytest.mark.parametrize(
    "rows",
    [slice(0, 6), slice(1, 6, 2), slice(-3, None), slice(4, 2), slice(None, 100, 5), slice(9, 12)],
)
def test_slices_have_pythons_clamping(chunk: int, rows: slice) -> None:
    _, transfer = make(chunk)
    ref = transfer.put_structured_object(rollout())
    spec = transfer.read_spec(ref).slice_member("tokens", 0, 0, 1)
    spec = spec.slice_member("tokens", 0, rows.start, rows.stop, rows.step or 1)
    got = transfer.materialize(spec).objects["tokens"]
    assert got.shape == TOKENS[rows].shape
    assert (got == TOKENS[rows]).all()
    into = np.full_like(TOKENS[rows], -1)
    result = transfer.materialize_into(spec, {"tokens": into})
    assert result.objects["tokens"] is into
    assert (into == TOKENS[rows]).all()


@given(
    length=st.integers(0, 40),
    width=st.integers(0, 3),
    chunk=st.integers(1, 50),
    start=st.integers(-50, 50),
    end=st.integers(-50, 50),
    step=st.integers(1, 7),
)
def test_any_slice_of_any_chunking_is_the_numpy_slice(
    length: int, width: int, chunk: int, start: int, end: int, step: int
) -> None:
    _, transfer = make(chunk)
    array = np.arange(length * width, dtype=np.int16).reshape(length, width)
    ref = transfer.put_structured_object(StructuredObjectPayload(buffers={"m": array}))
    spec = transfer.read_spec(ref).slice_member("m", 0, start, end, step)
    got = transfer.materialize(spec).objects["m"]
    assert got.shape == array[start:end:step].shape
    assert (got == array[start:end:step]).all()


def test_slices_and_chunked_members_use_one_ranges_call() -> None:
    store, transfer = make(10)
    ref = transfer.put_structured_object(StructuredObjectPayload(buffers={"m": TOKENS}))
    transfer.materialize(transfer.read_spec(ref))
    assert store.calls["get_into_ranges"] == 1
    transfer.materialize(transfer.read_spec(ref).slice_member("m", 0, 1, 6, 2))
    assert store.calls["get_into_ranges"] == 2
    store, transfer = make()
    ref = transfer.put_structured_object(StructuredObjectPayload(buffers={"m": TOKENS}))
    transfer.materialize(transfer.read_spec(ref))
    assert (store.calls["get_into"], store.calls["get_into_ranges"]) == (1, 0)


@pytest.mark.parametrize(
    ("narrow", "kind", "text"),
    [
        (lambda s: s.select_members([]), ValueError, "selected no members"),
        (lambda s: s.select_members(["x"]), KeyError, "unknown members: 'x'"),
        (lambda s: s.slice_member("x", 0, 0, 1), KeyError, "unknown members: 'x'"),
        (lambda s: s.slice_member("tokens", 1, 0, 1), ValueError, "axis=0"),
        (lambda s: s.slice_member("tokens", 0, 0, 1, 0), ValueError, "step must be positive"),
        (lambda s: s.slice_member("ids", 0, 0, 1), ValueError, "does not support slicing"),
        (lambda s: s.select_members(["ids"]).slice_member("mask", 0, 0, 1), ValueError, "mask"),
        (lambda s: s.select_members("tokens"), TypeError, "list of names"),
    ],
)
def test_an_impossible_selection_is_refused(narrow: Any, kind: Any, text: str) -> None:
    _, transfer = make()
    ref = transfer.put_structured_object(rollout())
    with pytest.raises(kind, match=text):
        transfer.materialize(narrow(transfer.read_spec(ref)))


def frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("destinations", "kind", "text"),
    [
        ({"tokens": [1]}, TypeError, "must be an ndarray"),
        ({"tokens": np.zeros((6, 4), np.uint32)}, ValueError, "dtype mismatch"),
        ({"tokens": np.zeros((4, 6), np.int32)}, ValueError, "shape mismatch"),
        ({"tokens": np.zeros((4, 6), np.int32).T}, ValueError, "C-contiguous"),
        ({"tokens": frozen(np.zeros((6, 4), np.int32))}, ValueError, "writeable"),
        ({"ids": np.zeros(10, np.uint8)}, ValueError, "cannot have a destination"),
        ({"x": np.zeros(1)}, KeyError, "unknown members"),
    ],
)
def test_a_destination_that_does_not_fit_is_refused(
    destinations: Any, kind: Any, text: str
) -> None:
    store, transfer = make()
    ref = transfer.put_structured_object(rollout())
    store.calls.clear()
    with pytest.raises(kind, match=text):
        transfer.materialize_into(transfer.read_spec(ref), destinations)
    assert store.calls["get_into"] == 0


# --- Validation -----------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "//", "a\x00b", "a\n"])
def test_a_bad_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="key_prefix"):
        MooncakeBundleTransfer(FakeStore(), prefix)


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"partition": "a/b"}, ValueError, "partition name"),
        ({"partition": ""}, ValueError, "partition name"),
        ({"chunk_bytes": 0}, ValueError, "chunk_bytes"),
        ({"chunk_bytes": 1.5}, ValueError, "chunk_bytes"),
        ({"max_inflight_put": 0}, ValueError, "max_inflight_put"),
        ({"policy": BundleTransferPolicy(put_mode="x")}, ValueError, "put_mode"),
        ({"policy": BundleTransferPolicy(copy_mode="x")}, ValueError, "copy_mode"),
        ({"buffers": {"a/b": b""}}, ValueError, "member name"),
        ({"buffers": {"": b""}}, ValueError, "member name"),
        ({"buffers": {1: b""}}, TypeError, "member name"),
        ({"buffers": {"a": "text"}}, TypeError, "bytes-like"),
        ({"buffers": {"a": np.array([object()])}}, TypeError, "arrays of objects"),
        ({"buffers": [b""]}, TypeError, "mapping"),
        ({"meta": 5}, TypeError, "bytes-like"),
        ({"meta": {"a": object()}}, TypeError, "JSON"),
        ({"pre_registered_buffers": ["z"]}, ValueError, "pre_registered"),
    ],
)
def test_a_bad_bundle_argument_is_refused_before_writing(
    arguments: dict[str, Any], kind: Any, text: str
) -> None:
    store, transfer = make()
    with pytest.raises(kind, match=text):
        transfer.put_bundle(**{"meta": b"", "buffers": {}, **arguments})
    assert not store.log


@pytest.mark.parametrize(
    ("metadata", "kind", "text"),
    [
        ([], TypeError, "must be a mapping"),
        ({"a": object()}, TypeError, "JSON"),
        ({"layout": 3}, ValueError, "layout"),
        ({STRUCTURED_FIELD_SPECS_KEY: {}}, ValueError, "reserved"),
    ],
)
def test_bad_metadata_is_refused(metadata: Any, kind: Any, text: str) -> None:
    _, transfer = make()
    with pytest.raises(kind, match=text):
        transfer.put_structured_object(StructuredObjectPayload(metadata, {}))


def test_records_and_deep_metadata_are_refused() -> None:
    _, transfer = make()
    records = np.zeros(2, [("a", "i4")])
    with pytest.raises(TypeError, match="element type"):
        transfer.put_structured_object(StructuredObjectPayload(buffers={"m": records}))
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TypeError, match="JSON"):
        transfer.put_structured_object(StructuredObjectPayload({"deep": deep}, {}))


# --- Writing and cleaning up ----------------------------------------------------------------


def test_the_manifest_is_written_last_and_removed_first() -> None:
    store, transfer = make()
    ref = transfer.put_structured_object(rollout())
    assert [name for name, _ in store.log][-1] == "put"
    assert store.log[-1][1] == ref.manifest_key
    store.log.clear()
    transfer.remove_bundle(ref)
    assert store.log[0] == ("remove", ref.manifest_key)
    assert not store.data


def test_remove_takes_everything_in_one_batch_and_tolerates_absence() -> None:
    store, transfer = make(7)
    ref = transfer.put_structured_object(rollout())
    transfer.remove_bundle({"manifest_key": ref.manifest_key})
    assert store.calls["batch_remove"] == 1
    assert not store.data
    transfer.remove_bundle(ref)
    store.fail["batch_remove"] = [[-704] * len(store.log[-1][1])]
    transfer.remove_bundle(ref)


def test_keys_that_cannot_be_removed_are_reported() -> None:
    store, transfer = make()
    ref = transfer.put_bundle(b"", {"a": b"x"})
    store.fail["batch_remove"] = [[0, 0, -4]]
    store.fail["remove"] = [0, -4]
    with pytest.raises(RuntimeError, match="1 keys could not be removed.*buffer/a"):
        transfer.remove_bundle(ref)
    store.fail["batch_remove"] = [RuntimeError("down")]
    transfer.remove_bundle(ref)
    assert not store.data


@pytest.mark.parametrize(
    ("call", "outcome"),
    [
        ("batch_put_from", [[0, 0, -200, 0]]),
        ("batch_put_from", [RuntimeError("down")]),
        ("batch_put_from", [[0]]),
        ("put", [-1]),
        ("register_buffer", [None, -1]),
        ("register_buffer", [None, OSError("limit")]),
    ],
)
def test_a_failed_write_leaves_nothing(call: str, outcome: list[Any]) -> None:
    store, transfer = make()
    store.fail[call] = outcome
    with pytest.raises((RuntimeError, OSError)):
        transfer.put_structured_object(rollout())
    assert not store.data
    assert store.registered == 0


def test_a_failed_cleanup_keeps_the_first_error() -> None:
    store, transfer = make()
    store.fail["put"] = [-200]
    store.fail["batch_remove"] = [ValueError("cleanup")]
    with pytest.raises(RuntimeError, match="status -200"):
        transfer.put_structured_object(rollout())


def test_an_existing_registration_is_left_alone() -> None:
    store, transfer = make()
    store.fail["register_buffer"] = [-600] * 4
    store._regions.append((0, 1 << 62))
    ref = transfer.put_structured_object(rollout())
    assert store.calls["unregister_buffer"] == 0
    store.fail["register_buffer"] = [-600] * 4
    transfer.materialize(transfer.read_spec(ref))
    assert store.calls["unregister_buffer"] == 0


def test_preregistered_members_are_not_registered_again() -> None:
    store, transfer = make()
    store.register_buffer(TOKENS.ctypes.data, TOKENS.nbytes)
    store.calls.clear()
    ref = transfer.put_bundle(b"", {"m": TOKENS}, pre_registered_buffers=["m"])
    assert store.calls["register_buffer"] == 0
    assert transfer.get_bundle(ref)[1]["m"] == TOKENS.tobytes()


def test_parallel_writes_use_several_threads_and_give_the_same_object() -> None:
    store, transfer = make(4)
    threads: set[int] = set()
    original, barrier = store.batch_put_from, threading.Barrier(3, timeout=10)

    def spy(*args: Any, **kwargs: Any) -> list[int]:
        threads.add(threading.get_ident())
        barrier.wait()
        return original(*args, **kwargs)

    store.batch_put_from = spy  # type: ignore[method-assign]
    policy = BundleTransferPolicy(max_inflight_put=3, put_mode="parallel")
    ref = transfer.put_bundle(b"", {"m": TOKENS}, policy=policy)
    assert len(threads) == 3
    assert transfer.get_bundle(ref)[1]["m"] == TOKENS.tobytes()


def test_a_failed_parallel_write_waits_for_all_and_leaves_nothing() -> None:
    store, transfer = make(4)
    store.fail["batch_put_from"] = [RuntimeError("down")]
    policy = BundleTransferPolicy(put_mode="parallel", copy_mode="copy")
    with pytest.raises(RuntimeError, match="down"):
        transfer.put_bundle(b"", {"m": TOKENS}, policy=policy, max_inflight_put=3)
    assert not store.data
    assert store.registered == 0


def test_the_replication_policy_goes_with_every_write() -> None:
    store, config = FakeStore(), object()
    transfer = MooncakeBundleTransfer(store, replicate_config=config)
    transfer.put_structured_object(rollout())
    assert set(store.configs) == {config}


def test_progress_is_told_up_to_the_total() -> None:
    _, transfer = make(16)
    told: list[TransferProgress] = []
    ref = transfer.put_structured_object(rollout(), progress=told.append)
    transfer.materialize(transfer.read_spec(ref), progress=told.append)
    for stage in ("put", "get"):
        steps = [step for step in told if step.stage == stage]
        assert steps[-1].done_bytes == steps[-1].total_bytes > TOKENS.nbytes
        assert [s.done_bytes for s in steps] == sorted(s.done_bytes for s in steps)
