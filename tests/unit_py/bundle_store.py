"""A bundle transfer over the fake store, and an object to move."""

from __future__ import annotations

import numpy as np
from fake_store import FakeStore
from mooncake.store.rs.structured_object_store import (
    MooncakeBundleTransfer,
    StructuredObjectPayload,
)

TOKENS = np.arange(24, dtype=np.int32).reshape(6, 4)


def make(chunk: int = 1 << 20) -> tuple[FakeStore, MooncakeBundleTransfer]:
    store = FakeStore()
    return store, MooncakeBundleTransfer(store, "/demo/", chunk)


def rollout() -> StructuredObjectPayload:
    return StructuredObjectPayload(
        metadata={"step": 7, "layout": "rollout"},
        buffers={"tokens": TOKENS, "mask": np.ones((6, 4), np.int8), "ids": b"sample-ids"},
    )


def stored(store: FakeStore) -> set[str]:
    return {key for _, key in store.data}
