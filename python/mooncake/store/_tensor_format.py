"""The bytes of a stored tensor: a 304-byte little-endian header, then row-major data.

Everything read here may come from a hostile writer: each field is checked before it is used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = [
    "DTYPES",
    "TENSOR_METADATA_WIRE_SIZE",
    "AxisRecord",
    "DType",
    "Manifest",
    "TensorFormatError",
    "TensorHeader",
    "TensorReadResult",
]

TENSOR_METADATA_WIRE_SIZE = 304
MANIFEST_WIRE_SIZE = 88
NDIM_MAX = 8
AXES_MAX = 4
SHARDS_MAX = 1024
LAYOUT_FULL = 0
LAYOUT_SHARD = 1

_MAGIC = 0x4D4F4F4E
_VERSION = 1
_HEADER = struct.Struct("<IHHiiIIQQ8q8qII")
_AXIS = struct.Struct("<6iq")
_MANIFEST = struct.Struct("<IHHiiii8q")
_BYTES_MAX = (1 << 63) - 1


class TensorFormatError(RuntimeError, ValueError):
    """Bytes that are not a tensor or not a manifest; the text says which field is wrong."""


class DType(NamedTuple):
    """One element type: wire ``code``, ``name`` (of torch; NumPy's too, or ml_dtypes'), bytes."""

    code: int
    name: str
    itemsize: int


DTYPES: tuple[DType, ...] = tuple(
    DType(code, name, size)
    for code, (name, size) in enumerate(
        [
            ("float32", 4),
            ("float64", 8),
            ("int8", 1),
            ("uint8", 1),
            ("int16", 2),
            ("uint16", 2),
            ("int32", 4),
            ("uint32", 4),
            ("int64", 8),
            ("uint64", 8),
            ("bool", 1),
            ("float16", 2),
            ("bfloat16", 2),
            ("float8_e4m3fn", 1),
            ("float8_e5m2", 1),
        ]
    )
)
DTYPE_BY_NAME = {dtype.name: dtype for dtype in DTYPES}


@dataclass(frozen=True)
class AxisRecord:
    """One parallel axis of a shard, with checked values."""

    kind: int
    rank: int
    count: int
    split_dim: int = 0
    expert_id: int = 0
    stage_id: int = 0


@dataclass
class TensorReadResult:
    """What an ``_into`` read left in the caller's buffer.

    Attributes:
        data_ptr: address of the first element.
        data_bytes: bytes of the elements.
        shape: lengths of the dimensions.
        dtype: wire code, an index into ``DTYPES``: 0 float32, 1 float64, 2 int8, 3 uint8,
            4 int16, 5 uint16, 6 int32, 7 uint32, 8 int64, 9 uint64, 10 bool, 11 float16,
            12 bfloat16, 13 float8_e4m3fn, 14 float8_e5m2.
        total_bytes_read: header and data, bytes.

    Example:
        >>> TensorReadResult(0x1000, 8, (2,), 0, 312).dtype
        0
    """

    data_ptr: int
    data_bytes: int
    shape: tuple[int, ...]
    dtype: int
    total_bytes_read: int


def dtype_of(code: int) -> DType:
    """The element type of a wire code.

    Raises:
        TensorFormatError: an unknown code.

    Example:
        >>> dtype_of(12).name
        'bfloat16'
    """
    if not 0 <= code < len(DTYPES):
        raise TensorFormatError(f"tensor: unknown dtype code {code}")
    return DTYPES[code]


def byte_count(dtype: DType, shape: Sequence[int]) -> int:
    """Bytes of a tensor of this type and shape.

    Example:
        >>> byte_count(dtype_of(0), (2, 3))
        24
    """
    return dtype.itemsize * math.prod(shape)


@dataclass(frozen=True)
class TensorHeader:
    """The parsed 304 bytes before a tensor's data."""

    dtype: DType
    global_shape: tuple[int, ...]
    shape: tuple[int, ...]  # Of the data that follows.
    layout: int = LAYOUT_FULL
    axes: tuple[AxisRecord, ...] = field(default=())
    data_offset: int = TENSOR_METADATA_WIRE_SIZE

    @property
    def data_bytes(self) -> int:
        """Bytes of the data that follows."""
        return byte_count(self.dtype, self.shape)

    @property
    def total_bytes(self) -> int:
        """Bytes from the start of the header to the end of the data."""
        return self.data_offset + self.data_bytes

    def pack(self) -> bytes:
        """The 304 header bytes; the data belongs right behind them.

        Example:
            >>> len(TensorHeader(dtype_of(0), (2,), (2,)).pack())
            304
        """
        fixed = _HEADER.pack(
            _MAGIC,
            _VERSION,
            TENSOR_METADATA_WIRE_SIZE,
            self.dtype.code,
            len(self.shape),
            self.layout,
            0,
            TENSOR_METADATA_WIRE_SIZE,
            self.data_bytes,
            *_padded(self.global_shape),
            *_padded(self.shape),
            len(self.axes),
            0,
        )
        axes = [
            _AXIS.pack(a.kind, 0, a.rank, a.count, a.split_dim, a.expert_id, a.stage_id)
            for a in self.axes
        ]
        return (fixed + b"".join(axes)).ljust(TENSOR_METADATA_WIRE_SIZE, b"\0")

    @classmethod
    def parse(cls, head: bytes | memoryview, object_bytes: int) -> TensorHeader:
        """Check and read a header.

        Args:
            head: at least the first 304 bytes of the object.
            object_bytes: length of the whole object, bytes.

        Raises:
            TensorFormatError: with the field and its value.

        Example:
            >>> raw = TensorHeader(dtype_of(3), (2,), (2,)).pack() + b"ab"
            >>> TensorHeader.parse(raw, len(raw)).shape
            (2,)
        """
        if len(head) < TENSOR_METADATA_WIRE_SIZE:
            raise TensorFormatError(f"tensor: {len(head)} bytes are too short for a header")
        values = _HEADER.unpack_from(head)
        magic, version, header_size, code, ndim, layout, _, offset, data_bytes = values[:9]
        _check(magic == _MAGIC, "magic", magic)
        _check(version == _VERSION, "version", version)
        # Some writers leave header_size zero.
        _check(header_size in (0, TENSOR_METADATA_WIRE_SIZE), "header_size", header_size)
        _check(0 <= ndim <= NDIM_MAX, "ndim", ndim)
        _check(layout in (LAYOUT_FULL, LAYOUT_SHARD), "layout_kind", layout)
        axis_count = values[25]
        _check(axis_count <= AXES_MAX, "axis_count", axis_count)
        dtype = dtype_of(code)
        global_shape = _shape("global shape", values[9 : 9 + ndim])
        local_shape = _shape("local shape", values[17 : 17 + ndim])
        # A full tensor's local shape says the same as its global one, or nothing.
        shape = local_shape if layout == LAYOUT_SHARD else global_shape
        _check(offset >= TENSOR_METADATA_WIRE_SIZE, "data_offset", offset)
        _check(byte_count(dtype, shape) == data_bytes, "data_bytes", data_bytes)
        if offset + data_bytes > object_bytes:
            raise TensorFormatError(
                f"tensor: data ends at byte {offset + data_bytes} of an object of {object_bytes}"
            )
        return cls(dtype, global_shape, shape, layout, _axes(head, axis_count), offset)


@dataclass(frozen=True)
class Manifest:
    """How a tensor was split: type, global shape, dimension and number of shards."""

    dtype: DType
    split_dim: int
    count: int
    shape: tuple[int, ...]

    def pack(self) -> bytes:
        """The 88 manifest bytes.

        Example:
            >>> len(Manifest(dtype_of(0), 0, 2, (4,)).pack())
            88
        """
        return _MANIFEST.pack(
            _MAGIC,
            _VERSION,
            0,
            self.dtype.code,
            len(self.shape),
            self.split_dim,
            self.count,
            *_padded(self.shape),
        )

    @classmethod
    def parse(cls, raw: bytes | memoryview) -> Manifest:
        """Check and read a manifest.

        Raises:
            TensorFormatError: with the field and its value.

        Example:
            >>> Manifest.parse(Manifest(dtype_of(0), 0, 2, (4,)).pack()).count
            2
        """
        if len(raw) != MANIFEST_WIRE_SIZE:
            raise TensorFormatError(f"tensor manifest: {len(raw)} bytes, not {MANIFEST_WIRE_SIZE}")
        magic, version, _, code, ndim, split_dim, count, *dims = _MANIFEST.unpack(raw)
        _check(magic == _MAGIC, "magic", magic)
        _check(version == _VERSION, "version", version)
        _check(0 <= ndim <= NDIM_MAX, "ndim", ndim)
        _check(1 <= count <= SHARDS_MAX, "shard_count", count)
        _check(0 <= split_dim < ndim, "split_dim", split_dim)
        shape = _shape("global shape", dims[:ndim])
        _check(shape[split_dim] % count == 0, "shard_count", count)
        return cls(dtype_of(code), split_dim, count, shape)


def _axes(head: bytes | memoryview, count: int) -> tuple[AxisRecord, ...]:
    axes = []
    for index in range(count):
        kind, _, rank, size, split_dim, expert, stage = _AXIS.unpack_from(
            head, _HEADER.size + index * _AXIS.size
        )
        _check(0 <= kind <= 3, "axis kind", kind)
        _check(size > 0, "axis shard_count", size)
        _check(0 <= rank < size, "axis shard_rank", rank)
        axes.append(AxisRecord(kind, rank, size, split_dim, expert, stage))
    return tuple(axes)


def _shape(name: str, dims: Sequence[int]) -> tuple[int, ...]:
    total = 1
    for dim in dims:
        _check(dim >= 0, name, tuple(dims))
        total *= max(dim, 1)
    _check(total <= _BYTES_MAX // 8, name, tuple(dims))
    return tuple(dims)


def _padded(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(shape) + (0,) * (NDIM_MAX - len(shape))


def _check(good: bool, name: str, value: object) -> None:
    if not good:
        raise TensorFormatError(f"tensor: bad {name} {value!r}")
