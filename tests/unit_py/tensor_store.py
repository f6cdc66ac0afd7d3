"""The fake store with the tensor methods, as the real store class has them."""

from __future__ import annotations

from typing import Any

import numpy as np
from fake_store import FakeStore
from mooncake.store._tensors import ParallelAxis, ReadTarget, TensorMethods, TensorParallelism

NUMPY = {"framework": "numpy"}


class TensorStore(TensorMethods, FakeStore):
    """In-memory store for tensor tests."""


class Buffer:
    """Registered memory with guard bytes behind it."""

    def __init__(self, store: FakeStore, size: int) -> None:
        self.array = np.full(size + 64, 0xEE, np.uint8)
        self.ptr, self.size = self.array.ctypes.data, size
        assert store.register_buffer(self.ptr, size) == 0

    def data(self, result: Any, dtype: Any) -> Any:
        """The elements that a TensorReadResult points to."""
        assert (self.array[self.size :] == 0xEE).all()
        start = result.data_ptr - self.ptr
        flat = self.array[start : start + result.data_bytes]
        return flat.view(dtype).reshape(result.shape)


def tp(rank: int, size: int, dim: int = 0, *others: ParallelAxis) -> TensorParallelism:
    return TensorParallelism([ParallelAxis("tp", rank, size, split_dim=dim), *others])


def shard(rank: int, size: int, dim: int = 0, *others: ParallelAxis) -> ReadTarget:
    return ReadTarget("shard", tp(rank, size, dim, *others))


FULL = ReadTarget("full")


def piece(array: Any, rank: int, size: int, dim: int = 0) -> Any:
    """Shard ``rank`` of ``size`` of an array."""
    return np.split(array, size, axis=dim)[rank]


def grid(*shape: int, dtype: str = "i4") -> Any:
    return (np.arange(int(np.prod(shape))) % 251).astype(dtype).reshape(shape)


def same(got: Any, wanted: Any) -> None:
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    assert got.tobytes() == wanted.tobytes()
