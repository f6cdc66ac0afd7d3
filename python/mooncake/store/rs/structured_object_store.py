"""Structured objects and bundles: one logical object of several named members.

Payloads are written first and the manifest last, and the manifest is removed first, so that a
reader never sees a half-written or half-removed object. Everything is JSON and raw bytes: nothing
that is read can run code.

Example:
    >>> transfer = MooncakeBundleTransfer(store, key_prefix="demo")     # doctest: +SKIP
    >>> payload = StructuredObjectPayload({"step": 7}, {"tokens": array})  # doctest: +SKIP
    >>> ref = transfer.put_structured_object(payload)                   # doctest: +SKIP
    >>> transfer.materialize(transfer.read_spec(ref)).objects["tokens"]  # doctest: +SKIP
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping
from typing import Any

from . import _bundle_manifest as manifests
from ._bundle_read import (
    FieldSpec,
    Rows,
    check_destination,
    describe,
    parse_spec,
    read_array,
    read_bytes,
    rows_of,
)
from ._bundle_rl import RlMethods
from ._bundle_types import (
    AUTO_PARALLEL_MIN_BYTES,
    AUTO_PARALLEL_MIN_CHUNKS,
    DEFAULT_BUNDLE_CHUNK_BYTES,
    MISSING_OBJECT_ERROR,
    STRUCTURED_FIELD_SPECS_KEY,
    BundleTransferPolicy,
    FieldSchema,
    Manifest,
    Meter,
    Progress,
    RemoteBundleRef,
    StructuredMemberSlice,
    StructuredObjectPayload,
    StructuredObjectReadSpec,
    StructuredObjectResult,
    TransferProgress,
    succeeded,
)
from ._bundle_write import Part, checked_policy, flat_bytes, parts_of, remove_keys, write_parts

__all__ = [
    "AUTO_PARALLEL_MIN_BYTES",
    "AUTO_PARALLEL_MIN_CHUNKS",
    "DEFAULT_BUNDLE_CHUNK_BYTES",
    "MISSING_OBJECT_ERROR",
    "STRUCTURED_FIELD_SPECS_KEY",
    "BundleTransferPolicy",
    "FieldSchema",
    "MooncakeBundleTransfer",
    "RemoteBundleRef",
    "StructuredMemberSlice",
    "StructuredObjectPayload",
    "StructuredObjectReadSpec",
    "StructuredObjectResult",
    "TransferProgress",
]

_log = logging.getLogger("mooncake.store.structured")


class MooncakeBundleTransfer(RlMethods):
    """Reads and writes bundles and structured objects through a store.

    Args:
        store: a MooncakeDistributedStore, or anything with put, get, remove and, for the fast
            paths, register_buffer, unregister_buffer, batch_put_from, batch_get_into, get_into,
            get_into_ranges, batch_remove. Readers and writers use the same ``key_prefix``.
        key_prefix: start of every key.
        default_chunk_bytes: longer payloads are stored in pieces of this size, bytes.
        replicate_config: ReplicateConfig of every write; None: the store's default.

    Raises:
        ValueError: a bad prefix or chunk size.

    Example:
        >>> transfer = MooncakeBundleTransfer(store, key_prefix="demo/structured")  # doctest: +SKIP
    """

    def __init__(
        self,
        store: Any,
        key_prefix: str = "bundle",
        default_chunk_bytes: int = DEFAULT_BUNDLE_CHUNK_BYTES,
        *,
        replicate_config: Any = None,
    ) -> None:
        self.store = store
        self.key_prefix = manifests.checked_prefix(key_prefix)
        self.default_chunk_bytes = _checked_chunk(default_chunk_bytes)
        self.replicate_config = replicate_config

    # --- Writes -----------------------------------------------------------------------------

    def put_bundle(
        self,
        meta: Any,
        buffers: Mapping[str, Any],
        partition: str = "default",
        chunk_bytes: int | None = None,
        policy: Any = None,
        max_inflight_put: int | None = None,
        pre_registered_buffers: Collection[str] | None = None,
        *,
        progress: Progress | None = None,
    ) -> RemoteBundleRef:
        """Store a bundle of raw named payloads.

        Args:
            meta: bytes-like, or a JSON-able mapping.
            buffers: member name -> bytes-like object or ndarray.
            partition: first part of the object's id.
            chunk_bytes: piece size in bytes; None: the transfer's default.
            policy, max_inflight_put: see BundleTransferPolicy; the number wins.
            pre_registered_buffers: names of members whose memory is registered already.
            progress: called with a TransferProgress after each chunk, maybe from other threads.

        Returns:
            The reference that reads and removals take.

        Raises:
            TypeError, ValueError: bad arguments, before anything is written.
            RuntimeError: a write failed; what was written has been removed again.

        Example:
            >>> ref = transfer.put_bundle(b"header", {"body": b"..."})  # doctest: +SKIP
        """
        if isinstance(meta, Mapping):
            meta = manifests.dump(meta)
        if not isinstance(buffers, Mapping):
            raise TypeError(f"buffers must be a mapping, not {type(buffers).__name__}")
        policy = checked_policy(policy, max_inflight_put)
        chunk = _checked_chunk(self.default_chunk_bytes if chunk_bytes is None else chunk_bytes)
        partition = manifests.checked_name("partition", partition)
        registered = set(pre_registered_buffers or ())
        if registered - set(buffers):
            raise ValueError(
                f"pre_registered_buffers names no members: {registered - set(buffers)}"
            )
        object_id = f"{partition}/{uuid.uuid4().hex}"
        base = f"{self.key_prefix}/{object_id}"
        data = flat_bytes("meta", meta)
        copy = policy.copy_mode == "copy"
        meta_payload = manifests.payload_of(f"{base}/meta", data.size, chunk)
        parts = parts_of("meta", meta_payload, data, copy, False)
        members = {}
        for name, value in buffers.items():
            manifests.checked_name("member", name)
            data = flat_bytes(name, value)
            members[name] = manifests.payload_of(f"{base}/buffer/{name}", data.size, chunk)
            parts += parts_of(name, members[name], data, copy, name in registered)
        manifest = Manifest(object_id, meta_payload, members)
        return self._write(f"{base}/manifest", manifest, parts, policy, progress)

    def _write(
        self,
        manifest_key: str,
        manifest: Manifest,
        parts: list[Part],
        policy: BundleTransferPolicy,
        progress: Progress | None,
    ) -> RemoteBundleRef:
        """Payloads, then the manifest; all gone again when any of it fails."""
        meter = Meter(progress, "put", sum(part.data.size for part in parts))
        stored = manifests.to_json(manifest)
        options = {} if self.replicate_config is None else {"config": self.replicate_config}
        try:
            write_parts(self.store, parts, policy, self.replicate_config, meter)
            status = self.store.put(manifest_key, manifests.dump(stored), **options)
            if not succeeded(status):
                raise RuntimeError(f"writing {manifest_key!r} failed with status {status}")
        except BaseException:
            self._clean_up([manifest_key, *manifest.keys()])
            raise
        return RemoteBundleRef(manifest_key, stored)

    def _clean_up(self, keys: list[str]) -> None:
        """Best effort: the error that led here must not be hidden by another one."""
        try:
            remove_keys(self.store, keys)
        except Exception as error:
            _log.warning("cleaning up after the failed write of %r: %s", keys[0], error)

    def put_structured_object(
        self,
        payload: StructuredObjectPayload,
        partition: str = "default",
        chunk_bytes: int | None = None,
        policy: Any = None,
        max_inflight_put: int | None = None,
        *,
        progress: Progress | None = None,
    ) -> RemoteBundleRef:
        """Store a structured object: ndarray members keep their type and shape.

        Args:
            payload: metadata and members. Arrays that are not C-contiguous are stored by value.
            partition, chunk_bytes, policy, max_inflight_put, progress: as ``put_bundle``.

        Raises:
            TypeError: metadata that is no mapping or not JSON-able, members that are neither
                bytes-like nor arrays of plain types.
            ValueError: metadata with the reserved key, a layout that is no text, bad names.
            RuntimeError: a write failed; what was written has been removed again.

        Example:
            >>> ref = transfer.put_structured_object(
            ...     StructuredObjectPayload(buffers={"tokens": array}))  # doctest: +SKIP
        """
        metadata = payload.metadata
        if not isinstance(metadata, Mapping):
            raise TypeError(f"metadata must be a mapping, not {type(metadata).__name__}")
        if STRUCTURED_FIELD_SPECS_KEY in metadata:
            raise ValueError(
                f"metadata must not have the reserved key {STRUCTURED_FIELD_SPECS_KEY}"
            )
        if not isinstance(payload.buffers, Mapping):
            raise TypeError(f"buffers must be a mapping, not {type(payload.buffers).__name__}")
        stored = {"layout": "structured", **metadata}
        if not isinstance(stored["layout"], str):
            raise ValueError(f"metadata layout must be a str, not {stored['layout']!r}")
        stored[STRUCTURED_FIELD_SPECS_KEY] = {
            manifests.checked_name("member", name): describe(name, value)
            for name, value in payload.buffers.items()
        }
        meta = manifests.dump(stored)
        if len(meta) > manifests.MANIFEST_BYTES_MAX:
            raise ValueError(
                f"metadata of {len(meta)} bytes; at most {manifests.MANIFEST_BYTES_MAX}: "
                "bulk data belongs into members"
            )
        return self.put_bundle(
            meta,
            payload.buffers,
            partition,
            chunk_bytes,
            policy,
            max_inflight_put,
            progress=progress,
        )

    def remove_bundle(self, ref: Any, *, strict: bool = True) -> None:
        """Remove a bundle or structured object: its manifest first, then everything in one batch.

        Parts that are gone already are no error.

        Args:
            ref: RemoteBundleRef, or a dict with ``manifest`` or ``manifest_key``.
            strict: raise when something could not be removed.

        Raises:
            ValueError: a manifest that is not valid, or does not belong to ``manifest_key``.
            RuntimeError: ``strict``, and keys are left; with their number and the first one.

        Example:
            >>> transfer.remove_bundle(ref)                         # doctest: +SKIP
        """
        manifest = self._load(ref)
        manifest_key = f"{self.key_prefix}/{manifest.object_id}/manifest"
        if hasattr(self.store, "remove"):
            self._hide(manifest_key)
        left = remove_keys(self.store, [manifest_key, *manifest.keys()])
        if left and strict:
            raise RuntimeError(f"{len(left)} keys could not be removed, first {left[0]!r}")

    def _hide(self, key: str) -> None:
        """Remove the manifest before its payloads, so that no later reader finds half of them."""
        try:
            self.store.remove(key, True)
        except (KeyError, RuntimeError, TypeError):
            return  # The batch that follows tries again and reports.

    # --- Reads ------------------------------------------------------------------------------

    def read_spec(self, ref: Any) -> StructuredObjectReadSpec:
        """The spec that reads everything; narrow it with ``select_members``, ``slice_member``.

        Raises:
            TypeError: not a reference.

        Example:
            >>> spec = transfer.read_spec(ref).select_members(["tokens"])  # doctest: +SKIP
        """
        manifests.ref_parts(ref)
        return StructuredObjectReadSpec(ref)

    def materialize(
        self, spec: StructuredObjectReadSpec, *, progress: Progress | None = None
    ) -> StructuredObjectResult:
        """Read what the spec selects into new memory.

        Returns:
            ``metadata`` and ``objects``: ndarray members as arrays, others as bytes.

        Raises:
            KeyError: no such object, or unknown members.
            ValueError: a damaged manifest or metadata, an impossible slice, no members selected.
            RuntimeError: parts are missing, for example because the object was removed meanwhile.

        Example:
            >>> transfer.materialize(transfer.read_spec(ref)).objects  # doctest: +SKIP
        """
        return self.materialize_into(spec, {}, progress=progress)

    def materialize_into(
        self,
        spec: StructuredObjectReadSpec,
        destinations: Mapping[str, Any],
        *,
        progress: Progress | None = None,
    ) -> StructuredObjectResult:
        """Read into the caller's arrays; members without a destination get new memory.

        Args:
            destinations: member name -> C-contiguous writeable ndarray of exactly the selected
                type and shape. All are checked before anything is read. After an exception
                their contents are undefined.

        Returns:
            As ``materialize``; ``objects[name] is destinations[name]``.

        Raises:
            TypeError, ValueError: a destination that does not fit; names the member.
            KeyError, ValueError, RuntimeError: as ``materialize``.

        Example:
            >>> transfer.materialize_into(spec, {"tokens": array})  # doctest: +SKIP
        """
        manifest = self._load(spec.ref)
        metadata = self._metadata(manifest)
        plan = _plan(spec, manifest, metadata, destinations)
        total = manifest.meta.size + sum(size for _, _, size in plan.values())
        meter = Meter(progress, "get", total)
        meter.add("meta", manifest.meta.size)
        objects: dict[str, Any] = {}
        for name, (field, rows, size) in plan.items():
            payload = manifest.buffers[name]
            if field.is_array:
                into = destinations.get(name)
                objects[name] = read_array(self.store, name, payload, field, rows, into)
            else:
                objects[name] = read_bytes(self.store, name, payload)
            meter.add(name, size)
        return StructuredObjectResult(metadata, objects)

    def get_bundle(self, ref: Any) -> tuple[bytes, dict[str, bytes]]:
        """The raw metadata and members of a bundle.

        Raises:
            KeyError, ValueError, RuntimeError: as ``materialize``.

        Example:
            >>> meta, members = transfer.get_bundle(ref)            # doctest: +SKIP
        """
        manifest = self._load(ref)
        meta = read_bytes(self.store, "meta", manifest.meta)
        return meta, {
            name: read_bytes(self.store, name, payload)
            for name, payload in manifest.buffers.items()
        }

    def _load(self, ref: Any) -> Manifest:
        """The checked manifest of a reference, from the store if it has none."""
        key, raw = manifests.ref_parts(ref)
        if raw is None:
            raw = self._fetch(str(key))
        manifest = manifests.parse(self.key_prefix, raw)
        expected = f"{self.key_prefix}/{manifest.object_id}/manifest"
        if key is not None and key != expected:
            raise ValueError(f"manifest_key {key!r} does not match the manifest's {expected!r}")
        return manifest

    def _fetch(self, key: str) -> Any:
        if not key.startswith(f"{self.key_prefix}/") or not key.endswith("/manifest"):
            raise ValueError(f"manifest_key {key!r} is outside the namespace {self.key_prefix!r}")
        if hasattr(self.store, "get_size"):
            size = self.store.get_size(key)
            if size > manifests.MANIFEST_BYTES_MAX:
                raise ValueError(f"the manifest at {key!r} has {size} bytes: too many")
        raw = self.store.get(key)
        if not raw:
            raise KeyError(f"no bundle manifest at {key!r}")
        return manifests.load(f"the manifest at {key!r}", raw)

    def _metadata(self, manifest: Manifest) -> dict[str, Any]:
        if manifest.meta.size > manifests.MANIFEST_BYTES_MAX:
            raise ValueError(f"metadata of {manifest.meta.size} bytes: too many")
        metadata = manifests.load("metadata", read_bytes(self.store, "meta", manifest.meta))
        if not isinstance(metadata, dict) or not isinstance(metadata.get("layout"), str):
            raise ValueError("metadata must be an object with a layout: not a structured object")
        if not isinstance(metadata.get(STRUCTURED_FIELD_SPECS_KEY), dict):
            raise ValueError(f"metadata has no {STRUCTURED_FIELD_SPECS_KEY}: not structured")
        return metadata


def _plan(
    spec: StructuredObjectReadSpec,
    manifest: Manifest,
    metadata: dict[str, Any],
    destinations: Mapping[str, Any],
) -> dict[str, tuple[FieldSpec, Rows | None, int]]:
    """Field, rows and bytes per selected member; everything about the call has been checked."""
    fields = metadata[STRUCTURED_FIELD_SPECS_KEY]
    names = list(manifest.buffers) if spec.member_names is None else list(spec.member_names)
    if spec.member_names is not None and not names:
        raise ValueError("the read spec selected no members")
    asked = [*names, *dict(spec.member_slices), *destinations]
    unknown = [name for name in asked if name not in manifest.buffers or name not in fields]
    if unknown:
        raise KeyError(f"unknown members: {', '.join(map(repr, dict.fromkeys(unknown)))}")
    unused = [name for name in asked if name not in names]
    if unused:
        raise ValueError(f"slice or destination of members that are not selected: {unused}")
    plan = {}
    for name in names:
        payload = manifest.buffers[name]
        field = parse_spec(name, fields[name], payload)
        rows = rows_of(name, field, spec.member_slice(name))
        shape = field.shape if rows is None else rows.shape
        if name in destinations:
            check_destination(name, field, shape, destinations[name])
        size = payload.size
        if rows is not None and field.shape[0]:
            size = payload.size // field.shape[0] * rows.count
        plan[name] = (field, rows, size)
    return plan


def _checked_chunk(chunk_bytes: Any) -> int:
    if isinstance(chunk_bytes, bool) or not isinstance(chunk_bytes, int) or chunk_bytes <= 0:
        raise ValueError(f"chunk_bytes must be a positive integer, not {chunk_bytes!r}")
    return chunk_bytes
