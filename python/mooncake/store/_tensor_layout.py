"""Finds the objects that a tensor is stored as: manifests, shards, older spellings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ._tensor_format import (
    LAYOUT_SHARD,
    SHARDS_MAX,
    AxisRecord,
    DType,
    Manifest,
    TensorFormatError,
    TensorHeader,
)
from ._tensor_parallel import (
    AXIS_DP,
    AXIS_TP,
    READ_MODE_SHARD,
    axes_key,
    choices,
    manifest_keys,
    other_axes,
    shard_key,
    shard_shape,
    tp_axis,
    with_tp,
    writer_key,
)

_WHOLE = AxisRecord(AXIS_TP, 0, 1)
_SCAN_WINDOW = 64


@dataclass
class Request:
    """One tensor that a caller wants, and what is known of it so far.

    ``outcome`` is None for a miss, an exception, or the reader's result.
    """

    key: str
    mode: int
    axes: tuple[AxisRecord, ...]
    ptr: int = 0
    size: int = 0
    outcome: Any = None
    manifests: list[Manifest | None] | None = None
    stored: TensorHeader | None = None  # Of a shard with other axes than TP.
    layout: Layout | None = None

    @property
    def direct_key(self) -> str:
        """The object that answers the request by itself, if it fits."""
        return shard_key(self.key, self.axes) if self.mode == READ_MODE_SHARD else self.key

    def target(self) -> AxisRecord:
        """The wanted shard as a TP axis; one of one for a whole tensor."""
        tp = tp_axis(self.axes) if self.mode == READ_MODE_SHARD else None
        return tp or _WHOLE


@dataclass
class Layout:
    """Equal shards along ``split_dim``; ``keys`` and ``sources`` are the ones needed."""

    dtype: DType
    shape: tuple[int, ...]
    keys: list[str]
    sources: list[AxisRecord]
    target: AxisRecord
    target_shape: tuple[int, ...]
    objects: list[Any] | None = None  # Already read.
    others: tuple[AxisRecord, ...] = ()  # EP and PP ranks; other ranks have other tensors.


def kwargs_of(tenant: str | None) -> dict[str, Any]:
    """The keyword of the store's calls; left out when it is not given."""
    return {} if tenant is None else {"tenant": tenant}


def direct_matches(request: Request, header: TensorHeader) -> bool:
    """Whether the object at the direct key is exactly what is wanted."""
    if request.mode != READ_MODE_SHARD:
        return True
    return header.layout == LAYOUT_SHARD and _same_axes(header.axes, request.axes)


def _same_axes(stored: Iterable[AxisRecord], wanted: Iterable[AxisRecord]) -> bool:
    def plain(axes: Iterable[AxisRecord]) -> set[tuple[int, int, int, int]]:
        return {(a.kind, a.rank, a.count, a.split_dim if a.kind == AXIS_TP else 0) for a in axes}

    return plain(stored) == plain(wanted)


def direct_is_stale(request: Request) -> bool:
    """Whether a manifest says that the direct key belongs to an older split.

    Only ``<key>_tp_<rank>`` does not name its number of shards.
    """
    if request.mode != READ_MODE_SHARD or len(request.axes) != 1 or not request.manifests:
        return False
    tp, manifest = tp_axis(request.axes), request.manifests[0]
    if tp is None or manifest is None:
        return False
    if request.stored is not None:
        return True
    return (manifest.count, manifest.split_dim) != (tp.count, tp.split_dim)


def load_manifests(store: Any, requests: Sequence[Request], tenant: str | None) -> None:
    """Read the manifests of all requests in one call; a damaged one fails its request."""
    wanted = [request for request in requests if request.manifests is None]
    if not wanted:
        return
    keys = [
        name for request in wanted for name in (*manifest_keys(request.key), axes_key(request.key))
    ]
    found = store.batch_get_buffer(keys, **kwargs_of(tenant))
    for index, request in enumerate(wanted):
        *raws, axes = found[3 * index : 3 * index + 3]
        try:
            request.manifests = [
                Manifest.parse(bytes(raw)) if raw is not None and len(raw) else None for raw in raws
            ]
            if axes is not None and len(axes):
                request.stored = TensorHeader.parse(axes, 1 << 62)
        except TensorFormatError as error:
            request.outcome = TensorFormatError(f"manifest of {request.key!r}: {error}")


def resolve(store: Any, requests: Sequence[Request], tenant: str | None) -> None:
    """Set ``layout`` of each request, or its ``outcome`` when there is none."""
    load_manifests(store, requests, tenant)
    candidates: list[tuple[Request, list[Layout]]] = []
    for request in requests:
        if request.outcome is not None:
            continue
        try:
            candidates.append((request, _candidates(request)))
        except ValueError as error:
            request.outcome = error
    names = [key for _, layouts in candidates for layout in layouts for key in layout.keys]
    found = iter(store.batch_is_exist(names, **kwargs_of(tenant)) if names else ())
    for request, layouts in candidates:
        missing: list[str] = []
        seen = 0
        for layout in layouts:
            absent = [key for key in layout.keys if next(found) != 1]
            seen += len(layout.keys) - len(absent)
            if not absent and request.layout is None:
                request.layout = layout
            elif not absent and request.layout is not None:
                _check_unique(request, layout)
            missing += absent
        if request.layout is None and request.outcome is None:
            _resolve_rest(store, request, tenant, seen, missing)


def _check_unique(request: Request, other: Layout) -> None:
    """Fail the request when another layout is complete that holds another tensor."""
    layout = request.layout
    assert layout is not None
    if layout.others and other.others and layout.others != other.others:
        request.layout = None
        request.outcome = RuntimeError(
            f"{request.key!r}: several EP or PP ranks are stored, among them "
            f"{layout.keys[0]!r} and {other.keys[0]!r}; name one in the target's parallelism"
        )


def _resolve_rest(
    store: Any, request: Request, tenant: str | None, seen: int, missing: list[str]
) -> None:
    try:
        request.layout = _without_manifest(store, request, tenant)
    except (ValueError, RuntimeError) as error:
        request.outcome = error
        return
    if request.layout is None and seen:
        request.outcome = RuntimeError(f"{request.key!r}: shards are missing: {missing[:8]}")


def _candidates(request: Request) -> list[Layout]:
    """Possible layouts, the best first; whether their shards are there is not known yet."""
    parallel, writer = request.manifests or [None, None]
    wanted = other_axes(request.axes)
    ranks = [wanted]
    if request.stored is not None:
        ranks = choices(other_axes(request.stored.axes), wanted) or ranks
    layouts = []
    for others in ranks:
        layout = None
        if parallel is not None:
            layout = _split(
                request, parallel, lambda tp, axes=others: shard_key(request.key, with_tp(axes, tp))
            )
        elif others and request.stored is not None and tp_axis(request.stored.axes) is None:
            layout = _layout(request, request.stored.dtype, request.stored.shape, [_WHOLE])
            layout.keys = [shard_key(request.key, others)]
        if layout is not None:
            layout.others = tuple(axis for axis in others if axis.kind != AXIS_DP)
            layouts.append(layout)
    if writer is not None:
        layouts.append(_split(request, writer, lambda tp: writer_key(request.key, tp)))
    return layouts


def _split(request: Request, manifest: Manifest, name: Any) -> Layout:
    sources = [
        AxisRecord(AXIS_TP, rank, manifest.count, manifest.split_dim)
        for rank in range(manifest.count)
    ]
    layout = _layout(request, manifest.dtype, manifest.shape, sources)
    layout.keys = [name(source) for source in layout.sources]
    return layout


def _layout(
    request: Request, dtype: DType, shape: tuple[int, ...], sources: Sequence[AxisRecord]
) -> Layout:
    """Geometry of a request over equal shards; only the shards it needs are kept."""
    target = request.target()
    if target.count == 1:
        target = AxisRecord(AXIS_TP, 0, 1, sources[0].split_dim)
    target_shape = shard_shape(request.key, shape, target) if target.count > 1 else shape
    needed = list(sources)
    if shape and target.split_dim == sources[0].split_dim:
        length = shape[target.split_dim]
        needed = [
            source
            for source in sources
            if source.rank * target.count < (target.rank + 1) * source.count
            and target.rank * source.count < (source.rank + 1) * target.count
            and length > 0
        ]
    return Layout(dtype, shape, [], needed or list(sources[:1]), target, target_shape)


def _without_manifest(store: Any, request: Request, tenant: str | None) -> Layout | None:
    """Shards ``<key>_tp_0..`` that no manifest names, else a whole tensor at ``key``."""
    # A split with other axes is the newer one; ``_tp_`` shards are left over from before it.
    names = [] if request.stored is not None else _scan(store, request.key, tenant)
    objects = store.batch_get_buffer(names, **kwargs_of(tenant)) if names else []
    headers = []
    for raw in objects:
        if raw is None or not len(raw):
            break
        headers.append(TensorHeader.parse(raw, len(raw)))
    if headers:
        return _from_shards(request, names, headers, objects)
    others = other_axes(request.axes)
    for name in [shard_key(request.key, others)] * bool(others) + [request.key]:
        raw = store.get_buffer(name, **kwargs_of(tenant))
        if raw is not None and len(raw):
            header = TensorHeader.parse(raw, len(raw))
            layout = _layout(request, header.dtype, header.shape, [_WHOLE])
            layout.sources, layout.keys, layout.objects = [_WHOLE], [name], [raw]
            return layout
    return None


def _scan(store: Any, key: str, tenant: str | None) -> list[str]:
    names: list[str] = []
    for start in range(0, SHARDS_MAX, _SCAN_WINDOW):
        window = [f"{key}_tp_{rank}" for rank in range(start, start + _SCAN_WINDOW)]
        for name, code in zip(window, store.batch_is_exist(window, **kwargs_of(tenant))):
            if code != 1:
                return names
            names.append(name)
    return names


def _from_shards(
    request: Request, names: list[str], headers: list[TensorHeader], objects: list[Any]
) -> Layout:
    """The split that the shards' own headers tell; without axes there, the number found."""
    first = headers[0]
    stored = tp_axis(first.axes)
    wanted = tp_axis(request.axes)
    if stored is not None:
        count, dim, shape = stored.count, stored.split_dim, first.global_shape
    else:
        count, dim = len(headers), wanted.split_dim if wanted else 0
        if dim >= len(first.shape):
            raise ValueError(f"{request.key!r}: split_dim {dim} is out of range for {first.shape}")
        shape = (*first.shape[:dim], first.shape[dim] * count, *first.shape[dim + 1 :])
    if not 0 <= dim < len(shape) or shape[dim] % count:
        raise TensorFormatError(f"{request.key!r}: {count} shards do not fit shape {shape}")
    if count > len(headers):
        raise RuntimeError(f"{request.key!r}: {len(headers)} of {count} shards are there")
    sources = [AxisRecord(AXIS_TP, rank, count, dim) for rank in range(count)]
    layout = _layout(request, first.dtype, shape, sources)
    layout.keys = [names[source.rank] for source in layout.sources]
    layout.objects = [objects[source.rank] for source in layout.sources]
    return layout
