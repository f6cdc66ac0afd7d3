"""Structured objects and bundles: the classes of ``mooncake.store.rs.structured_object_store``."""

from __future__ import annotations

from .store.rs.structured_object_store import (
    AUTO_PARALLEL_MIN_BYTES,
    AUTO_PARALLEL_MIN_CHUNKS,
    DEFAULT_BUNDLE_CHUNK_BYTES,
    MISSING_OBJECT_ERROR,
    STRUCTURED_FIELD_SPECS_KEY,
    BundleTransferPolicy,
    FieldSchema,
    MooncakeBundleTransfer,
    RemoteBundleRef,
    StructuredMemberSlice,
    StructuredObjectPayload,
    StructuredObjectReadSpec,
    StructuredObjectResult,
    TransferProgress,
)

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
