"""Reads tensors: as stored, one shard, or whole, into new memory or into the caller's.

A tensor that is stored as shards is put together by ranged reads of all requests at once: one
call for the shards' headers, one for the data. Where that is not possible (memory that cannot be
registered, another split dimension, very many small pieces) whole shards are read and cut here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._numpy import np
from ._tensor_format import (
    LAYOUT_FULL,
    LAYOUT_SHARD,
    TENSOR_METADATA_WIRE_SIZE,
    TensorFormatError,
    TensorHeader,
    TensorReadResult,
    byte_count,
)
from ._tensor_host import HostTensor, cut
from ._tensor_layout import (
    Layout,
    Request,
    direct_is_stale,
    direct_matches,
    kwargs_of,
    load_manifests,
    resolve,
)
from ._tensor_parallel import (
    READ_MODE_AS_STORED,
    READ_MODE_FULL,
    READ_MODE_SHARD,
    Overlap,
    overlap,
    tp_axis,
)

if TYPE_CHECKING:
    from ._tensor_host import Bytes

_log = logging.getLogger("mooncake.store.tensors")
_HEAD = TENSOR_METADATA_WIRE_SIZE
_FRAGMENTS_MAX = 4096  # Per tensor; beyond that, whole shards move fewer messages.
_TRUSTED_BYTES = 16 << 20
_MISSING = -1
_TOO_SMALL = -11
_kept: list[Any] = []  # Memory that could not be unregistered: leaked rather than freed.


@dataclass
class _Job:
    """One request that is read by ranges into ``[header | data]`` at ``ptr``."""

    request: Request
    layout: Layout
    ptr: int
    size: int
    headers: list[TensorHeader]
    overlaps: list[Overlap | None]


def read_new(store: Any, requests: Sequence[Request], tenant: str | None) -> None:
    """Set each ``outcome`` to a HostTensor in memory of its own, None, or an exception."""
    shards = [request for request in requests if request.mode == READ_MODE_SHARD]
    load_manifests(store, shards, tenant)
    open_ = [r for r in requests if r.outcome is None and not direct_is_stale(r)]
    raws = store.batch_get_buffer([r.direct_key for r in open_], **kwargs_of(tenant))
    done: set[int] = set()
    for request, raw in zip(open_, raws):
        if raw is not None and len(raw) and _take_object(request, raw):
            done.add(id(request))
    rest = [r for r in requests if id(r) not in done and _can_reconstruct(r)]
    if not rest:
        return
    resolve(store, rest, tenant)
    _reconstruct(store, [request for request in rest if request.layout is not None], tenant)


def _reconstruct(store: Any, requests: Sequence[Request], tenant: str | None) -> None:
    """Tensors from shards into new memory, by ranges where the store takes that memory."""
    regions: list[tuple[Request, Bytes]] = []
    whole: list[Request] = []
    try:
        for request in requests:
            region = _new_region(store, request, tenant)
            if region is None:
                whole.append(request)
            else:
                regions.append((request, region))
        wanted = [(request, region.ctypes.data, region.size) for request, region in regions]
        _read_ranged(store, wanted, tenant)
        for request, region in regions:
            if request.outcome is None:
                request.outcome = _host(request, region[_HEAD:])
    finally:
        for _, region in regions:
            _drop_region(store, region)
    for request in whole:
        if request.outcome is None:
            _guard(request, lambda r=request: _host(r, _assemble(store, r, tenant)))


def read_into(store: Any, requests: Sequence[Request], tenant: str | None) -> None:
    """Set each ``outcome`` to a TensorReadResult, None, or an exception.

    The caller's memory must be registered; it receives header and data.
    """
    shards = [request for request in requests if request.mode == READ_MODE_SHARD]
    load_manifests(store, shards, tenant)
    open_ = [r for r in requests if r.outcome is None and not direct_is_stale(r)]
    codes = store.batch_get_into(
        [r.direct_key for r in open_],
        [r.ptr for r in open_],
        [r.size for r in open_],
        **kwargs_of(tenant),
    )
    done: set[int] = set()
    for request, code in zip(open_, codes):
        if _take_into(store, request, int(code), tenant):
            done.add(id(request))
    rest = [r for r in requests if id(r) not in done and _can_reconstruct(r)]
    if not rest:
        return
    resolve(store, rest, tenant)
    rest = [r for r in rest if r.layout is not None and _fits(r)]
    whole = _read_ranged(store, [(r, r.ptr, r.size) for r in rest], tenant)
    for request in whole:
        _guard(request, lambda r=request: _copy_into(store, r, tenant))
    for request in rest:
        if request.outcome is None:
            _guard(request, lambda r=request: _finish_into(store, r))


# --- The object that answers alone ------------------------------------------------------------


def _can_reconstruct(request: Request) -> bool:
    return request.outcome is None and request.mode != READ_MODE_AS_STORED


def _take_object(request: Request, raw: Any) -> bool:
    """Whether the request is settled by this object."""
    try:
        header = TensorHeader.parse(raw, len(raw))
    except TensorFormatError as error:
        request.outcome = TensorFormatError(f"{request.direct_key!r}: {error}")
        return True
    if not direct_matches(request, header):
        return False
    data = np.frombuffer(raw, np.uint8, header.data_bytes, header.data_offset).copy()
    request.outcome = HostTensor(data, header.dtype, header.shape)
    return True


def _take_into(store: Any, request: Request, code: int, tenant: str | None) -> bool:
    if code == _MISSING:
        # Some stores say -1 for every failure; the route tells a miss from the rest.
        stored = int(store.get_size(request.direct_key, **kwargs_of(tenant)))
        code = _TOO_SMALL if stored > request.size else code
        if stored <= 0 or (stored <= request.size and request.mode != READ_MODE_AS_STORED):
            return False
    if code == _TOO_SMALL and request.mode == READ_MODE_SHARD:
        return False
    if code < 0:
        size = store.get_size(request.direct_key, **kwargs_of(tenant))
        request.outcome = (
            ValueError(f"{request.key!r}: {size} bytes do not fit {request.size}")
            if code == _TOO_SMALL
            else RuntimeError(f"{request.key!r}: reading failed with code {code}")
        )
        return True
    try:
        header = TensorHeader.parse(_memory(store, request.ptr, min(code, _HEAD)), code)
    except TensorFormatError as error:
        request.outcome = TensorFormatError(f"{request.direct_key!r}: {error}")
        return True
    if not direct_matches(request, header):
        return False
    request.outcome = TensorReadResult(
        request.ptr + header.data_offset, header.data_bytes, header.shape, header.dtype.code, code
    )
    return True


# --- Ranged reads -----------------------------------------------------------------------------


def _read_ranged(
    store: Any, wanted: Sequence[tuple[Request, int, int]], tenant: str | None
) -> list[Request]:
    """Fill ``[header | data]`` regions from shards; returns those to be read in another way."""
    jobs, others = [], []
    for request, ptr, size in wanted:
        layout = request.layout
        assert layout is not None
        parts = _overlaps(layout)
        if layout.objects is not None or parts is None:
            others.append(request)
        else:
            jobs.append(_Job(request, layout, ptr, size, [], parts))
    if not jobs:
        return others
    _read_headers(store, jobs, tenant)
    jobs = [job for job in jobs if job.request.outcome is None]
    codes = _ranges(
        store,
        jobs,
        [job.layout.keys for job in jobs],
        [[_pieces(job, at) for at in range(len(job.layout.keys))] for job in jobs],
        tenant,
    )
    for job, per_key in zip(jobs, codes):
        for key, got, part in zip(job.layout.keys, per_key, job.overlaps):
            if part is not None and any(code != part.run for code in got):
                bad = next(code for code in got if code != part.run)
                job.request.outcome = RuntimeError(f"reading a part of {key!r} gave {bad}")
    return others


def _overlaps(layout: Layout) -> list[Overlap | None] | None:
    """Per source; None when ranges do not suit."""
    if layout.target.split_dim != layout.sources[0].split_dim or not layout.shape:
        return None
    parts = [
        overlap(layout.shape, layout.dtype.itemsize, source, layout.target)
        for source in layout.sources
    ]
    return parts if sum(part.rows for part in parts if part) <= _FRAGMENTS_MAX else None


def _pieces(job: _Job, at: int) -> tuple[list[int], list[int], list[int]]:
    part = job.overlaps[at]
    if part is None:
        return [], [], []
    dst, src, sizes = part.fragments()
    data = job.headers[at].data_offset
    return [_HEAD + offset for offset in dst], [data + offset for offset in src], sizes


def _read_headers(store: Any, jobs: Sequence[_Job], tenant: str | None) -> None:
    """Read and check the header of every source, through the start of each target region."""
    open_ = list(jobs)
    while open_:
        room = [job.size // _HEAD for job in open_]
        keys = [
            job.layout.keys[len(job.headers) : len(job.headers) + fit]
            for job, fit in zip(open_, room)
        ]
        pieces = [[([at * _HEAD], [0], [_HEAD]) for at in range(len(names))] for names in keys]
        codes = _ranges(store, open_, keys, pieces, tenant)
        for job, names, got in zip(open_, keys, codes):
            raw = _memory(store, job.ptr, _HEAD * len(names)) if _all_read(got) else b""
            for at, (key, code) in enumerate(zip(names, got)):
                head = raw[at * _HEAD : (at + 1) * _HEAD]
                _check_source(job, key, code[0], head)
        open_ = [
            job
            for job in open_
            if job.request.outcome is None and len(job.headers) < len(job.layout.keys)
        ]


def _memory(store: Any, ptr: int, size: int) -> bytes:
    """What a read has left there; nothing when the memory was unregistered meanwhile."""
    return store._copy_out(ptr, size) or b""


def _all_read(codes: Sequence[Sequence[int]]) -> bool:
    return all(code == _HEAD for per_key in codes for code in per_key)


def _check_source(job: _Job, key: str, code: int, head: bytes) -> None:
    if job.request.outcome is not None:
        return
    if code != _HEAD or not head:
        job.request.outcome = RuntimeError(f"reading the header of {key!r} gave {code}")
        return
    try:
        # The store itself refuses a range beyond the end of the object.
        header = TensorHeader.parse(head, 1 << 62)
        _check_shard(key, header, job.layout)
    except TensorFormatError as error:
        job.request.outcome = error
        return
    job.headers.append(header)


def _check_shard(key: str, header: TensorHeader, layout: Layout) -> None:
    source = layout.sources[0]
    expected = list(layout.shape)
    if expected:
        expected[source.split_dim] //= source.count
    if header.dtype != layout.dtype or header.shape != tuple(expected):
        raise TensorFormatError(
            f"{key!r} holds {header.dtype.name} of shape {header.shape}; the tensor's shards are "
            f"{layout.dtype.name} of shape {tuple(expected)}"
        )
    stored = tp_axis(header.axes)
    if stored is not None and (stored.count, stored.split_dim) != (source.count, source.split_dim):
        raise TensorFormatError(f"{key!r} belongs to another split: {stored}")


def _ranges(
    store: Any,
    jobs: Sequence[_Job],
    keys: Sequence[list[str]],
    pieces: Sequence[list[tuple[list[int], list[int], list[int]]]],
    tenant: str | None,
) -> list[list[list[int]]]:
    if not jobs:
        return []
    result: list[list[list[int]]] = store.get_into_ranges(
        [job.ptr for job in jobs],
        list(keys),
        [[piece[0] for piece in row] for row in pieces],
        [[piece[1] for piece in row] for row in pieces],
        [[piece[2] for piece in row] for row in pieces],
        buffer_sizes=[job.size for job in jobs],
        **kwargs_of(tenant),
    )
    return result


# --- Whole shards -----------------------------------------------------------------------------


def _assemble(store: Any, request: Request, tenant: str | None) -> Bytes:
    """The target's data from whole shards."""
    layout = request.layout
    assert layout is not None
    objects = layout.objects
    if objects is None:
        objects = store.batch_get_buffer(layout.keys, **kwargs_of(tenant))
    sources = []
    for key, raw in zip(layout.keys, objects):
        if raw is None or not len(raw):
            raise RuntimeError(f"{request.key!r}: shard {key!r} is gone")
        header = TensorHeader.parse(raw, len(raw))
        _check_shard(key, header, layout)
        sources.append(np.frombuffer(raw, np.uint8, header.data_bytes, header.data_offset))
    if len(sources) == 1 and layout.sources[0].count == 1:
        whole = HostTensor(sources[0], layout.dtype, layout.shape)
        return cut(request.key, whole, layout.target).data.copy()
    dim = layout.sources[0].split_dim
    shard = [*layout.shape]
    shard[dim] //= layout.sources[0].count
    joined = np.concatenate(
        [source.view(f"V{layout.dtype.itemsize}").reshape(shard) for source in sources], axis=dim
    )
    # Where both are cut along one dimension, only the shards in question were read.
    first = layout.sources[0].rank * shard[dim] if dim == layout.target.split_dim else 0
    index = [slice(None)] * len(shard)
    cut_dim, length = layout.target.split_dim, layout.target_shape[layout.target.split_dim]
    start = layout.target.rank * length - (first if cut_dim == dim else 0)
    index[cut_dim] = slice(start, start + length)
    part = np.ascontiguousarray(joined[tuple(index)])
    data: Bytes = part.reshape(-1).view(np.uint8)
    return data


def _copy_into(store: Any, request: Request, tenant: str | None) -> Any:
    _copy(store, request, _HEAD, _assemble(store, request, tenant))
    return None


def _copy(store: Any, request: Request, offset: int, data: Any) -> None:
    """Into the caller's memory, which only the store's own calls touch.

    Raises:
        RuntimeError: the memory is not registered.
    """
    layout = request.layout
    assert layout is not None
    used = _HEAD + _target_bytes(layout)
    code = store._copy_into(request.ptr, used, offset, data)
    if code != 0:
        raise RuntimeError(f"{request.key!r}: the destination was refused with code {code}")


# --- Results ----------------------------------------------------------------------------------


def _target_bytes(layout: Layout) -> int:
    return byte_count(layout.dtype, layout.target_shape)


def _host(request: Request, data: Bytes) -> HostTensor:
    layout = request.layout
    assert layout is not None
    return HostTensor(data, layout.dtype, layout.target_shape)


def _fits(request: Request) -> bool:
    assert request.layout is not None
    needed = _HEAD + _target_bytes(request.layout)
    if needed > request.size:
        request.outcome = ValueError(
            f"{request.key!r}: {needed} bytes (header and data) do not fit {request.size}"
        )
    return request.outcome is None


def _finish_into(store: Any, request: Request) -> TensorReadResult:
    layout = request.layout
    assert layout is not None
    shard = request.mode != READ_MODE_FULL
    header = TensorHeader(
        layout.dtype,
        layout.shape,
        layout.target_shape,
        LAYOUT_SHARD if shard else LAYOUT_FULL,
        request.axes if shard else (),
    )
    _copy(store, request, 0, header.pack())
    return TensorReadResult(
        request.ptr + _HEAD,
        header.data_bytes,
        header.shape,
        header.dtype.code,
        header.total_bytes,
    )


def _guard(request: Request, step: Any) -> None:
    try:
        request.outcome = step()
    except (ValueError, RuntimeError) as error:
        request.outcome = error


def _new_region(store: Any, request: Request, tenant: str | None) -> Bytes | None:
    """Registered memory for header and data; None when whole shards are to be read instead."""
    layout = request.layout
    assert layout is not None
    if layout.objects is not None or _overlaps(layout) is None:
        return None
    size = _HEAD + _target_bytes(layout)
    if size > _TRUSTED_BYTES:
        # Never allocate on the word of a manifest alone.
        stored = int(store.get_size(layout.keys[0], **kwargs_of(tenant)))
        if stored * len(layout.keys) < _target_bytes(layout):
            request.outcome = TensorFormatError(
                f"{request.key!r}: a shard of {stored} bytes cannot be part of {size} bytes"
            )
            return None
    region = np.empty(size, np.uint8)
    try:
        return region if store.register_buffer(region.ctypes.data, size) == 0 else None
    except RuntimeError:
        return None


def _drop_region(store: Any, region: Bytes) -> None:
    try:
        status = store.unregister_buffer(region.ctypes.data)
    except RuntimeError as error:
        status = error
    if status != 0:
        _kept.append(region)
        _log.warning("%d bytes stay allocated: unregistering gave %s", region.size, status)
