"""Writes tensors: whole, as one shard of a split, or from a buffer that holds header and data."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ._tensor_format import (
    LAYOUT_FULL,
    LAYOUT_SHARD,
    TENSOR_METADATA_WIRE_SIZE,
    AxisRecord,
    DType,
    Manifest,
    TensorFormatError,
    TensorHeader,
)
from ._tensor_host import HostTensor, cut, read_memory, to_host
from ._tensor_parallel import (
    AXIS_TP,
    axes_key,
    axis_records,
    check_key,
    choices,
    key_fits,
    manifest_keys,
    other_axes,
    overlap,
    shard_key,
    shard_shape,
    tp_axis,
    unsigned,
    with_tp,
    writer_key,
    writer_of,
)

__all__ = ["Put", "plan_all_shards", "plan_put", "raw_source", "run_put"]


@dataclass
class Put:
    """One object to write, and the manifest that tells about it.

    Raises:
        TypeError, ValueError: a key that the store would refuse.
    """

    key: str
    header: TensorHeader
    data: HostTensor | RawTensor
    base_key: str
    manifest_key: str | None = None
    manifest: Manifest | None = None

    def __post_init__(self) -> None:
        check_key("key", self.key)
        if self.manifest_key is not None:
            check_key("key", self.manifest_key)
        if self.has_other_axes:
            check_key("key", axes_key(self.base_key))

    @property
    def is_shard(self) -> bool:
        """Whether it lies under the key of its axes, not under the tensor's or a writer's."""
        own = shard_key(self.base_key, self.header.axes)
        return self.key == own and self.key != self.base_key

    @property
    def has_other_axes(self) -> bool:
        """Whether it is a shard of other axes than TP, which a reader may not know."""
        return self.is_shard and bool(other_axes(self.header.axes))


class Runs(NamedTuple):
    """``rows`` runs of ``run`` bytes; the first at ``start``, each ``step`` after the last."""

    start: int
    rows: int
    run: int
    step: int


@dataclass(frozen=True)
class RawTensor:
    """A tensor, or a shard of it, in a caller's registered buffer.

    Only the store's own calls touch that memory: they check that it is registered.

    Attributes:
        ptr, size: the buffer from its header to the end of its data, bytes.
        start: offset of the data of the whole tensor in it, bytes.
        runs: where the elements lie in those data.
    """

    ptr: int
    size: int
    start: int
    dtype: DType
    shape: tuple[int, ...]
    runs: Runs


@dataclass(frozen=True)
class Source:
    """A tensor to write: a whole one, or (from a raw buffer) one that is a shard already."""

    host: HostTensor | RawTensor
    global_shape: tuple[int, ...]
    axes: tuple[AxisRecord, ...] = ()


def tensor_source(key: str, tensor: Any) -> Source:
    """A whole tensor of any library.

    Raises:
        TypeError, ValueError: as ``check_key`` and ``to_host``.
    """
    check_key("key", key)
    host = to_host(key, tensor)
    return Source(host, host.shape)


def raw_source(key: str, ptr: int, size: int) -> Source:
    """The tensor in a caller's buffer of header and data.

    Args:
        ptr: address of the header.
        size: bytes of the buffer, header and data at least.

    Raises:
        TypeError: a key that is no text, or a number that is none.
        ValueError: size below 304, an unreadable header, or one that does not fit (the text names
            the field).
    """
    check_key("key", key)
    ptr, size = unsigned("ptr", ptr), unsigned("size", size)
    if size < TENSOR_METADATA_WIRE_SIZE:
        raise ValueError(
            f"{key!r}: a buffer of {size} bytes has no room for the "
            f"{TENSOR_METADATA_WIRE_SIZE}-byte header"
        )
    try:
        header = TensorHeader.parse(read_memory(ptr, TENSOR_METADATA_WIRE_SIZE), size)
    except TensorFormatError as error:
        raise TensorFormatError(f"{key!r}: {error}") from error
    axes = header.axes if header.layout == LAYOUT_SHARD else ()
    raw = RawTensor(
        ptr,
        header.total_bytes,
        header.data_offset,
        header.dtype,
        header.shape,
        Runs(0, 1, header.data_bytes, 0),
    )
    return Source(raw, header.global_shape, axes)


def plan_put(key: str, source: Source, parallelism: Any, writer: Any) -> Put:
    """What to write for one put; nothing is written yet.

    Args:
        parallelism: as ``axis_records`` takes it, or None.
        writer: (rank, size, split_dim), or None; wins over ``parallelism``.

    Raises:
        ValueError: bad axes, or a dimension that does not divide; names the key.
    """
    host = source.host
    if writer is not None:
        part = writer_of(writer)
        data = _shard(key, source, (part,), part)
        manifest = Manifest(host.dtype, part.split_dim, part.count, source.global_shape)
        header = _shard_header(data, source, (part,))
        return Put(writer_key(key, part), header, data, key, manifest_keys(key)[1], manifest)
    if parallelism is None:
        layout = LAYOUT_SHARD if source.axes else LAYOUT_FULL
        header = TensorHeader(host.dtype, source.global_shape, host.shape, layout, source.axes)
        return Put(key, header, host, key)
    axes = axis_records(parallelism)
    tp = tp_axis(axes)
    if tp is None:
        return Put(shard_key(key, axes), _shard_header(host, source, axes), host, key)
    data = _shard(key, source, axes, tp)
    return Put(
        shard_key(key, axes),
        _shard_header(data, source, axes),
        data,
        key,
        manifest_keys(key)[0],
        Manifest(host.dtype, tp.split_dim, tp.count, source.global_shape),
    )


def plan_all_shards(key: str, source: Source, size: int, split_dim: int) -> list[Put]:
    """Every shard of a tensor-parallel split; the plain tensor for ``size`` 1.

    A raw buffer that is a shard already gives only that one.

    Raises:
        ValueError: as ``plan_put``.
    """
    stored = tp_axis(source.axes)
    ranks = range(size) if stored is None else [stored.rank]
    if size == 1 and stored is None:
        return [plan_put(key, source, None, None)]
    if size < 1:
        raise ValueError(f"tp_size must be positive, not {size}")
    return [
        plan_put(key, source, with_tp(source.axes, AxisRecord(AXIS_TP, r, size, split_dim)), None)
        for r in ranks
    ]


def _shard(
    key: str, source: Source, axes: Sequence[AxisRecord], tp: AxisRecord
) -> HostTensor | RawTensor:
    """The shard to store: cut out of a whole tensor, or what a raw shard buffer holds."""
    if not source.axes:
        whole = source.host
        return cut(key, whole, tp) if isinstance(whole, HostTensor) else _cut_raw(key, whole, tp)
    stored = tp_axis(source.axes)
    if stored is None or (stored.rank, stored.count, stored.split_dim) != (
        tp.rank,
        tp.count,
        tp.split_dim,
    ):
        raise ValueError(
            f"{key!r}: the buffer holds the shard {source.axes}, which is not the shard {axes}"
        )
    return source.host


def _cut_raw(key: str, whole: RawTensor, tp: AxisRecord) -> RawTensor:
    """As ``cut``, without a look at the memory."""
    shape = shard_shape(key, whole.shape, tp)
    part = overlap(whole.shape, whole.dtype.itemsize, AxisRecord(AXIS_TP, 0, 1, tp.split_dim), tp)
    runs = Runs(part.src, part.rows, part.run, part.src_step) if part else Runs(0, 0, 0, 0)
    return replace(whole, shape=shape, runs=runs)


def _shard_header(
    data: HostTensor | RawTensor, source: Source, axes: tuple[AxisRecord, ...]
) -> TensorHeader:
    return TensorHeader(data.dtype, source.global_shape, data.shape, LAYOUT_SHARD, axes)


def run_put(store: Any, put: Put, tenant: str | None, config: Any) -> int:
    """Write the object, then what tells about it; 0 or the first failing status.

    A reader that sees the new manifest therefore finds this shard.
    """
    options: dict[str, Any] = {}
    if tenant is not None:
        options["tenant"] = tenant
    if config is not None:
        options["config"] = config
    head, data = put.header.pack(), put.data
    if isinstance(data, RawTensor):
        start, rows, run, step = data.runs
        places = (data.ptr, data.size, data.start + start, rows, run, step)
        status = int(store._put_cut_from(put.key, head, *places, **options))
    else:
        parts = [data.data] if put.header.data_bytes else []
        status = int(store.put_parts(put.key, head, *parts, **options))
    if status == 0 and put.is_shard:
        if put.has_other_axes:
            status = int(store.put(axes_key(put.base_key), head, **options))
        else:
            tenants = {} if tenant is None else {"tenant": tenant}
            store.batch_remove([axes_key(put.base_key)], force=True, **tenants)
    if status == 0 and put.manifest is not None:
        status = int(store.put(put.manifest_key, put.manifest.pack(), **options))
    return status


def drop_other_layouts(store: Any, put: Put, tenant: str | None) -> None:
    """After an upsert: remove the manifests of other layouts, and what only they name.

    Best effort. Other ranks may be writing shards of the new layout at the same time, so shards
    are removed only when the whole tensor was written.
    """
    options = {} if tenant is None else {"tenant": tenant}
    names = manifest_keys(put.base_key)
    if not key_fits(names[0]):
        return  # No split of this key can have been stored.
    axes = axes_key(put.base_key)
    stale = [name for name in names if name != put.manifest_key]
    if put.key == put.base_key:
        stale += _shards_of(store, put.base_key, tenant)
    else:
        stale.append(put.base_key)
    if not put.has_other_axes:
        stale.append(axes)
    store.batch_remove(stale, force=True, **options)


def _shards_of(store: Any, key: str, tenant: str | None) -> list[str]:
    """Keys of all shards that the manifests of a key name, damaged ones left out."""
    options = {} if tenant is None else {"tenant": tenant}
    parallel, writer, axes = store.batch_get_buffer([*manifest_keys(key), axes_key(key)], **options)
    others: list[tuple[AxisRecord, ...]] = [()]
    names: list[str] = []
    with contextlib.suppress(TensorFormatError):
        if axes is not None and len(axes):
            others += choices(other_axes(TensorHeader.parse(axes, 1 << 62).axes), ())
            names += [shard_key(key, ranks) for ranks in others if ranks]
    for raw, spell in ((parallel, shard_key), (writer, None)):
        try:
            manifest = Manifest.parse(bytes(raw)) if raw is not None and len(raw) else None
        except TensorFormatError:
            continue
        for rank in range(manifest.count if manifest else 0):
            assert manifest is not None
            part = AxisRecord(AXIS_TP, rank, manifest.count, manifest.split_dim)
            names += (
                [writer_key(key, part)]
                if spell is None
                else [spell(key, with_tp(ranks, part)) for ranks in others]
            )
    return names
