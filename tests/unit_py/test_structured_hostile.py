"""Structured objects that are damaged, tampered with or gone."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from bundle_store import TOKENS, make, rollout
from fake_store import put_at
from mooncake.store.rs.structured_object_store import (
    STRUCTURED_FIELD_SPECS_KEY,
    RemoteBundleRef,
    StructuredObjectPayload,
)


def test_a_removed_object_is_a_clear_error_not_a_part_of_it() -> None:
    store, transfer = make()
    ref = transfer.put_structured_object(rollout())
    del store.data["default", f"{ref.manifest['buffers']['mask']['key']}"]
    with pytest.raises(RuntimeError, match="'mask'.*gave -1, not 24"):
        transfer.materialize(transfer.read_spec(ref))
    assert store.registered == 0
    transfer.remove_bundle(ref)
    with pytest.raises(KeyError, match="no bundle manifest"):
        transfer.materialize(transfer.read_spec({"manifest_key": ref.manifest_key}))


def test_short_results_are_refused() -> None:
    store, transfer = make()
    ref = transfer.put_structured_object(rollout())
    for call, outcome in (("batch_get_into", [[]]), ("get_into", [3])):
        store.fail[call] = outcome
        with pytest.raises(RuntimeError):
            transfer.materialize(transfer.read_spec(ref))
    store, transfer = make(10)
    ref = transfer.put_structured_object(StructuredObjectPayload(buffers={"m": TOKENS}))
    for result in ([], [[[1]]]):
        store.fail["get_into_ranges"] = [result]
        with pytest.raises(RuntimeError, match="get_into_ranges"):
            transfer.materialize(transfer.read_spec(ref))
    assert store.registered == 0


def tampered(ref: RemoteBundleRef, path: list[Any], value: Any) -> dict[str, Any]:
    manifest = json.loads(json.dumps(ref.manifest))
    at = manifest
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return {"manifest": manifest}


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (["version"], 2, "version"),
        (["version"], True, "version"),
        (["layout"], "x", "layout"),
        (["object_id"], 5, "object_id"),
        (["object_id"], "default/other", "namespace"),
        (["buffers"], [], "buffers"),
        (["meta"], None, "meta"),
        (["meta", "key"], "demo/other/meta", "namespace"),
        (["buffers", "tokens", "chunks", 0, "key"], "secret", "namespace"),
        (["buffers", "tokens", "chunks", 0, "key"], None, "namespace"),
        (["buffers", "tokens", "chunks", 0, "bytes"], 95, "add up"),
        (["buffers", "tokens", "chunks", 0, "bytes"], -1, "bytes"),
        (["buffers", "tokens", "chunks", 0, "bytes"], 2**63, "bytes"),
        (["buffers", "tokens", "chunks", 0, "bytes"], True, "bytes"),
        (["buffers", "tokens", "chunks"], [], "add up"),
        (["buffers", "tokens", "bytes"], 2**63, "bytes"),
        (["buffers", "tokens", "bytes"], "96", "bytes"),
        (["buffers", "a/b"], {}, "member name"),
    ],
)
def test_a_tampered_manifest_is_refused(path: list[Any], value: Any, text: str) -> None:
    store, transfer = make()
    ref = transfer.put_structured_object(rollout())
    bad = tampered(ref, path, value)
    for call in (transfer.remove_bundle, lambda r: transfer.materialize(transfer.read_spec(r))):
        with pytest.raises(ValueError, match=text):
            call(bad)
    assert store.is_exist(ref.manifest_key)


def test_a_repeated_chunk_and_a_foreign_manifest_key_are_refused() -> None:
    _, transfer = make(48)
    ref, other = (transfer.put_structured_object(rollout()) for _ in range(2))
    chunks = ref.manifest["buffers"]["tokens"]["chunks"]
    bad = tampered(ref, ["buffers", "tokens", "chunks"], [chunks[0], chunks[0]])
    with pytest.raises(ValueError, match="repeated"):
        transfer.materialize(transfer.read_spec(bad))
    with pytest.raises(ValueError, match="manifest_key"):
        transfer.remove_bundle(RemoteBundleRef(other.manifest_key, ref.manifest))
    with pytest.raises(ValueError, match="namespace"):
        transfer.materialize(transfer.read_spec({"manifest_key": "secret/manifest"}))


class Bomb:
    """Fails the test if it is ever unpickled."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("code was run",))


@pytest.mark.parametrize(
    "raw",
    [pickle.dumps(Bomb()), b"[" * 200_000, b'{"version":' + b"9" * 100_000, b"\xff\xfe", b"null"],
    ids=["pickle", "nesting", "digits", "not-text", "null"],
)
def test_hostile_manifests_and_metadata_are_exceptions(raw: bytes) -> None:
    store, transfer = make()
    ref = transfer.put_structured_object(rollout())
    keep = store.get(ref.manifest_key)
    put_at(store, ref.manifest_key, raw)
    with pytest.raises(ValueError):
        transfer.materialize(transfer.read_spec({"manifest_key": ref.manifest_key}))
    put_at(store, ref.manifest_key, keep)
    bad = tampered(ref, ["meta", "bytes"], len(raw))
    bad["manifest"]["meta"]["chunks"][0]["bytes"] = len(raw)
    put_at(store, ref.manifest["meta"]["key"], raw)
    with pytest.raises(ValueError):
        transfer.materialize(transfer.read_spec(bad))


def test_lengths_that_the_store_does_not_hold_allocate_nothing() -> None:
    store, transfer = make()
    ref = transfer.put_structured_object(StructuredObjectPayload(buffers={"m": b"x"}))
    huge = 1 << 50
    bad = tampered(ref, ["buffers", "m", "bytes"], huge)
    bad["manifest"]["buffers"]["m"]["chunks"][0]["bytes"] = huge
    with pytest.raises(RuntimeError, match="has 1 bytes, not"):
        transfer.materialize(transfer.read_spec(bad))
    store.fail["get_size"] = [1 << 40]
    with pytest.raises(ValueError, match="too many"):
        transfer.materialize(transfer.read_spec({"manifest_key": ref.manifest_key}))


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ({"encoding": "pickle"}, "unsupported structured field encoding 'pickle'"),
        (None, "unsupported structured field encoding"),
        ({"encoding": "ndarray", "dtype": "|O", "shape": [12]}, "bad dtype"),
        ({"encoding": "ndarray", "dtype": "i4,i4", "shape": [12]}, "bad dtype"),
        ({"encoding": "ndarray", "dtype": 5, "shape": [12]}, "bad dtype"),
        ({"encoding": "ndarray", "dtype": "<i4", "shape": [25]}, "does not have 96 bytes"),
        ({"encoding": "ndarray", "dtype": "<i4", "shape": [-24]}, "bad shape"),
        ({"encoding": "ndarray", "dtype": "<i4", "shape": "24"}, "bad shape"),
        ({"encoding": "ndarray", "dtype": "<i4", "shape": [2**62, 2**62]}, "bad shape"),
        ({"encoding": "ndarray", "dtype": "<i4", "shape": [1] * 65}, "bad shape"),
    ],
)
def test_hostile_field_specs_name_the_member(field: Any, text: str) -> None:
    store, transfer = make()
    ref = transfer.put_bundle(
        {"layout": "x", STRUCTURED_FIELD_SPECS_KEY: {"m": field}}, {"m": TOKENS}
    )
    with pytest.raises(ValueError, match=f"'m': .*{text}"):
        transfer.materialize(transfer.read_spec(ref))
    assert store.registered == 0


def test_a_plain_bundle_is_not_a_structured_object() -> None:
    _, transfer = make()
    for meta in (b"{}", b'{"layout":"x"}', b"[]"):
        ref = transfer.put_bundle(meta, {})
        with pytest.raises(ValueError, match="structured"):
            transfer.materialize(transfer.read_spec(ref))
