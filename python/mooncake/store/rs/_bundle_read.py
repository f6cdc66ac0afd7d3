"""Reads members of structured objects, whole or by rows, into new or the caller's memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._numpy import np
from .._tensor_format import DTYPE_BY_NAME
from .._tensor_host import numpy_dtype
from ._bundle_types import (
    DUPLICATE_REGISTRATION_ERROR,
    Payload,
    StructuredMemberSlice,
    succeeded,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_KINDS = "biufcmMSU"
_NDIM_MAX = 64
_TRUSTED_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class FieldSpec:
    """How one member is encoded; ``dtype`` and ``shape`` for ndarrays."""

    dtype: Any = None
    shape: tuple[int, ...] = ()

    @property
    def is_array(self) -> bool:
        """Whether the member is an ndarray."""
        return self.dtype is not None


def describe(name: str, value: Any) -> dict[str, Any]:
    """The field spec that is stored for a member.

    Raises:
        TypeError: an element type that cannot be named in JSON.

    Example:
        >>> describe("m", np.zeros((2, 3), np.int8))
        {'encoding': 'ndarray', 'dtype': '|i1', 'shape': [2, 3]}
    """
    if not isinstance(value, np.ndarray):
        return {"encoding": "bytes"}
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"member {name!r}: a masked array would lose its mask")
    dtype = value.dtype
    text = dtype.name if dtype.name in DTYPE_BY_NAME and dtype.kind == "V" else dtype.str
    if dtype.kind not in _KINDS and text != dtype.name:
        raise TypeError(f"member {name!r}: element type {dtype} is not supported")
    return {"encoding": "ndarray", "dtype": text, "shape": list(value.shape)}


def parse_spec(name: str, raw: Any, payload: Payload) -> FieldSpec:
    """A checked field spec that agrees with the payload's size.

    Raises:
        ValueError: unknown encoding, bad dtype or shape; names the member.

    Example:
        >>> parse_spec("m", {"encoding": "bytes"}, Payload("k", 0, ())).is_array
        False
    """
    encoding = raw.get("encoding") if isinstance(raw, Mapping) else None
    if encoding == "bytes":
        return FieldSpec()
    if encoding != "ndarray":
        raise ValueError(f"member {name!r}: unsupported structured field encoding {encoding!r}")
    text, shape = raw.get("dtype"), raw.get("shape")
    good = isinstance(shape, list) and len(shape) <= _NDIM_MAX
    if not good or not all(type(dim) is int and 0 <= dim < 1 << 62 for dim in shape):
        raise ValueError(f"member {name!r}: bad shape {shape!r}")
    dtype = named_dtype(name, text)
    if math.prod(shape) * dtype.itemsize != payload.size:
        raise ValueError(
            f"member {name!r}: {dtype} of shape {shape} does not have {payload.size} bytes"
        )
    return FieldSpec(dtype, tuple(shape))


def named_dtype(name: str, text: Any) -> Any:
    """The element type of a field spec.

    Raises:
        ValueError: unknown, or no plain type; names the member.

    Example:
        >>> named_dtype("m", "<f4").name
        'float32'
    """
    if isinstance(text, str) and len(text) <= 32:
        known = DTYPE_BY_NAME.get(text)
        if known is not None:
            return np.dtype(numpy_dtype(known))
        try:
            dtype = np.dtype(text)
        except (TypeError, ValueError):
            dtype = None
        # Only plain types: no objects, no records, nothing that runs code.
        if dtype is not None and dtype.kind in _KINDS and dtype.str == text:
            return dtype
    raise ValueError(f"member {name!r}: bad dtype {text!r}")


@dataclass(frozen=True)
class Rows:
    """The rows of a member that are wanted, and the covering range that is read for them."""

    shape: tuple[int, ...]
    start: int  # First row, and number of rows, of the covering range.
    count: int
    step: int


def rows_of(name: str, spec: FieldSpec, chosen: StructuredMemberSlice | None) -> Rows | None:
    """What a slice selects; None means the whole member.

    Raises:
        ValueError: a slice that the member does not support; names it.

    Example:
        >>> rows_of("m", FieldSpec(np.dtype("i1"), (9,)), StructuredMemberSlice(0, 2, 7, 2)).shape
        (3,)
    """
    if chosen is None:
        return None
    if not spec.is_array:
        raise ValueError(f"member {name!r} holds bytes and does not support slicing")
    if chosen.axis != 0 or not spec.shape:
        raise ValueError(f"member {name!r} of shape {spec.shape} can only be sliced on axis=0")
    if chosen.step <= 0:
        raise ValueError(f"member {name!r}: step must be positive, not {chosen.step}")
    picked = range(spec.shape[0])[chosen.start : chosen.end : chosen.step]
    start, end = (picked[0], picked[-1] + 1) if picked else (0, 0)
    return Rows((len(picked), *spec.shape[1:]), start, end - start, chosen.step)


def check_destination(name: str, spec: FieldSpec, shape: tuple[int, ...], array: Any) -> None:
    """Refuse a destination that the member does not fit exactly.

    Raises:
        TypeError: not an ndarray.
        ValueError: dtype, shape, layout or flags; names the member.
    """
    if not spec.is_array:
        raise ValueError(f"member {name!r} holds bytes and cannot have a destination")
    if not isinstance(array, np.ndarray):
        raise TypeError(f"member {name!r}: the destination must be an ndarray")
    if array.dtype != spec.dtype:
        raise ValueError(f"member {name!r}: dtype mismatch: {array.dtype}, not {spec.dtype}")
    if array.shape != shape:
        raise ValueError(f"member {name!r}: shape mismatch: {array.shape}, not {shape}")
    if not array.flags.c_contiguous:
        raise ValueError(f"member {name!r}: the destination must be C-contiguous")
    if not array.flags.writeable:
        raise ValueError(f"member {name!r}: the destination must be writeable")


def read_array(
    store: Any, name: str, payload: Payload, spec: FieldSpec, rows: Rows | None, into: Array | None
) -> Array:
    """An ndarray member, or rows of it; ``into`` has been checked.

    Raises:
        RuntimeError: a chunk is missing or has another length.
    """
    shape = spec.shape if rows is None else rows.shape
    strided = rows is not None and rows.step > 1
    read_shape = (rows.count, *spec.shape[1:]) if rows is not None else spec.shape
    check_stored(store, name, payload)
    target = np.empty(read_shape, spec.dtype) if into is None or strided else into
    row_bytes = math.prod(spec.shape[1:]) * spec.dtype.itemsize
    offset = 0 if rows is None else rows.start * row_bytes
    if target.nbytes:
        _fill(store, name, payload, offset, target.reshape(-1).view(np.uint8))
    if strided and rows is not None:
        target = target[:: rows.step]
        if into is None:
            return np.ascontiguousarray(target)
        into[...] = target
        return into
    return target.reshape(shape) if into is None else into


def check_stored(store: Any, name: str, payload: Payload) -> None:
    """Never allocate much on the word of a manifest alone.

    Raises:
        RuntimeError: the stored chunks are not as long as the manifest says.
    """
    if payload.size <= _TRUSTED_BYTES or not hasattr(store, "get_size"):
        return
    for chunk in payload.chunks:
        size = store.get_size(chunk.key)
        if size != chunk.size:
            raise RuntimeError(
                f"member {name!r}: chunk {chunk.key!r} has {size} bytes, not {chunk.size}"
            )


def _pieces(payload: Payload, offset: int, size: int) -> list[tuple[str, int, int, int, int]]:
    """(key, chunk size, offset in it, offset in the target, bytes) of what a range covers."""
    pieces, start = [], 0
    for chunk in payload.chunks:
        low, high = max(offset, start), min(offset + size, start + chunk.size)
        if low < high:
            pieces.append((chunk.key, chunk.size, low - start, low - offset, high - low))
        start += chunk.size
    return pieces


def _fill(
    store: Any, name: str, payload: Payload, offset: int, target: npt.NDArray[np.uint8]
) -> None:
    pieces = _pieces(payload, offset, target.size)
    whole_chunk = len(pieces) == 1 and pieces[0][1] == target.size
    call = "get_into" if whole_chunk else "get_into_ranges"
    if _can_register(store) and hasattr(store, call):
        held = _register(store, target)
        if held is not None:
            try:
                _fill_registered(store, name, pieces, target, whole_chunk)
            finally:
                if held:
                    store.unregister_buffer(target.ctypes.data)
            return
    for key, chunk_size, src, dst, size in pieces:
        value = store.get(key)
        _check_length(name, key, len(value), chunk_size)
        target[dst : dst + size] = np.frombuffer(value, np.uint8, size, src)


def _fill_registered(
    store: Any, name: str, pieces: Sequence[Any], target: npt.NDArray[np.uint8], whole: bool
) -> None:
    if whole:
        key = pieces[0][0]
        got = store.get_into(key, target.ctypes.data, target.size)
        _check_length(name, key, got, target.size)
        return
    result = store.get_into_ranges(
        [target.ctypes.data],
        [[piece[0] for piece in pieces]],
        [[[piece[3]] for piece in pieces]],
        [[[piece[2]] for piece in pieces]],
        [[[piece[4]] for piece in pieces]],
    )
    if len(result) != 1 or len(result[0]) != len(pieces):
        raise RuntimeError(f"member {name!r}: get_into_ranges gave a result of another shape")
    for piece, got in zip(pieces, result[0]):
        _check_length(name, piece[0], got[0] if len(got) == 1 else -1, piece[4])


def read_bytes(store: Any, name: str, payload: Payload) -> bytes:
    """A bytes member, or the metadata, whole.

    Raises:
        RuntimeError: a chunk is missing or has another length.
    """
    check_stored(store, name, payload)
    if payload.size and _can_register(store) and hasattr(store, "batch_get_into"):
        buffer = np.empty(payload.size, np.uint8)
        held = _register(store, buffer)
        if held is not None:
            try:
                _read_chunks(store, name, payload, buffer)
            finally:
                if held:
                    store.unregister_buffer(buffer.ctypes.data)
            return buffer.tobytes()
    parts = []
    for chunk in payload.chunks:
        value = store.get(chunk.key)
        _check_length(name, chunk.key, len(value), chunk.size)
        parts.append(bytes(value))
    return b"".join(parts)


def _read_chunks(store: Any, name: str, payload: Payload, buffer: npt.NDArray[np.uint8]) -> None:
    ptr, ptrs = buffer.ctypes.data, []
    for chunk in payload.chunks:
        ptrs.append(ptr)
        ptr += chunk.size
    keys = [chunk.key for chunk in payload.chunks]
    result = list(store.batch_get_into(keys, ptrs, [chunk.size for chunk in payload.chunks]))
    if len(result) != len(keys):
        raise RuntimeError(
            f"member {name!r}: batch_get_into gave {len(result)} results for {len(keys)} keys"
        )
    for chunk, got in zip(payload.chunks, result):
        _check_length(name, chunk.key, got, chunk.size)


def _check_length(name: str, key: str, got: int, wanted: int) -> None:
    if got != wanted:
        raise RuntimeError(f"member {name!r}: reading {key!r} gave {got}, not {wanted} bytes")


def _can_register(store: Any) -> bool:
    return hasattr(store, "register_buffer") and hasattr(store, "unregister_buffer")


def _register(store: Any, buffer: npt.NDArray[np.uint8]) -> bool | None:
    """True: registered by us; False: it was already; None: the store does not take it."""
    status = store.register_buffer(buffer.ctypes.data, buffer.size)
    if succeeded(status):
        return True
    return False if status == DUPLICATE_REGISTRATION_ERROR else None
