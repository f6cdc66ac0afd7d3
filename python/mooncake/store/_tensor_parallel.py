"""Parallel axes, the keys of shards, and which bytes of which shard a reader needs."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ._tensor_format import AXES_MAX, AxisRecord, TensorFormatError

__all__ = [
    "AXIS_DP",
    "AXIS_EP",
    "AXIS_PP",
    "AXIS_TP",
    "READ_MODE_AS_STORED",
    "READ_MODE_FULL",
    "READ_MODE_SHARD",
    "ParallelAxis",
    "ReadTarget",
    "TensorParallelism",
]

AXIS_DP, AXIS_TP, AXIS_EP, AXIS_PP = 0, 1, 2, 3
READ_MODE_AS_STORED, READ_MODE_SHARD, READ_MODE_FULL = 0, 1, 2

CHOICES_MAX = 1024
_KEY_BYTES_MAX = 64 << 10  # As the store's.
_KINDS = ("dp", "tp", "ep", "pp")
_MODES = ("as_stored", "shard", "full")


@dataclass
class ParallelAxis:
    """One axis along which a tensor is divided over ranks.

    Attributes are settable; values are checked when the axis is used in a call.

    Args:
        kind: ``AXIS_DP``, ``AXIS_TP``, ``AXIS_EP``, ``AXIS_PP`` or "dp", "tp", "ep", "pp".
        rank: 0 .. size - 1.
        size: number of ranks, >= 1.
        split_dim: dimension that is cut; TP only.
        expert_id, stage_id: kept with the shard, not interpreted.

    Example:
        >>> ParallelAxis("tp", 0, 2, split_dim=1)
        ParallelAxis(kind='tp', rank=0, size=2, split_dim=1)
    """

    kind: int | str = AXIS_TP
    rank: int = 0
    size: int = 1
    split_dim: int = 0
    expert_id: int = 0
    stage_id: int = 0

    def __repr__(self) -> str:
        extra = "".join(
            f", {name}={getattr(self, name)}"
            for name in ("split_dim", "expert_id", "stage_id")
            if getattr(self, name)
        )
        return f"ParallelAxis(kind={self.kind!r}, rank={self.rank}, size={self.size}{extra})"


@dataclass
class TensorParallelism:
    """The axes of one shard, 1 to 4.

    Example:
        >>> len(TensorParallelism([ParallelAxis(AXIS_TP, 1, 4)]).axes)
        1
    """

    axes: list[ParallelAxis] = field(default_factory=list)


@dataclass
class ReadTarget:
    """What a reader wants of a tensor.

    Args:
        mode: ``READ_MODE_AS_STORED``, ``READ_MODE_SHARD``, ``READ_MODE_FULL``, or "as_stored",
            "shard", "full".
        parallelism: the wanted shard; required for SHARD.

    Example:
        >>> ReadTarget("full").mode
        'full'
    """

    mode: int | str = READ_MODE_AS_STORED
    parallelism: TensorParallelism | None = None


def check_key(name: str, key: Any) -> None:
    """Refuse what the store refuses as a key, before anything is made of it.

    Raises:
        TypeError: no str.
        ValueError: empty, too long, or not to be encoded as UTF-8.

    Example:
        >>> check_key("key", 5)
        Traceback (most recent call last):
        TypeError: key must be str, not int
    """
    if not isinstance(key, str):
        raise TypeError(f"{name} must be str, not {type(key).__name__}")
    if not key:
        raise ValueError(f"{name} is empty")
    try:
        fits = key_fits(key)
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is {key!r}, which is not valid UTF-8") from error
    if not fits:
        raise ValueError(f"{name} must be at most {_KEY_BYTES_MAX} bytes long in UTF-8")


def key_fits(key: str) -> bool:
    """Whether the store has keys of this length."""
    return len(key.encode()) <= _KEY_BYTES_MAX


def unsigned(name: str, value: Any) -> int:
    """An address or a size: an int, or what counts as one (NumPy's), but no bool.

    Raises:
        TypeError: not a whole number.
        ValueError: negative, or more than 64 bits.

    Example:
        >>> unsigned("size", 5)
        5
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be int, not {type(value).__name__}")
    number = operator.index(value)
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{name} must be from 0 to 2**64 - 1, not {number}")
    return number


def axis_records(parallelism: Any) -> tuple[AxisRecord, ...]:
    """Checked axes in the order DP, TP, EP, PP.

    Args:
        parallelism: TensorParallelism, an object with ``axes``, or a list of axes.

    Raises:
        ValueError: no axes, more than 4, one kind twice, a bad kind, rank, size or split_dim.

    Example:
        >>> axis_records([ParallelAxis("tp", 1, 4)])[0].count
        4
    """
    axes = list(getattr(parallelism, "axes", parallelism) or ())
    if not 1 <= len(axes) <= AXES_MAX:
        raise ValueError(f"parallelism: 1 to {AXES_MAX} axes are possible, not {len(axes)}")
    records = sorted((_record(axis) for axis in axes), key=lambda record: record.kind)
    kinds = [record.kind for record in records]
    if len(set(kinds)) != len(kinds):
        raise ValueError(f"parallelism: an axis kind is repeated in {axes!r}")
    return tuple(records)


def _record(axis: Any) -> AxisRecord:
    if isinstance(axis, AxisRecord):
        axis = ParallelAxis(
            axis.kind, axis.rank, axis.count, axis.split_dim, axis.expert_id, axis.stage_id
        )
    kind = _code("axis kind", axis.kind, _KINDS)
    rank, size = operator.index(axis.rank), operator.index(axis.size)
    if size <= 0 or size > 1 << 30:
        raise ValueError(f"parallelism: axis size must be positive, not {size}")
    if not 0 <= rank < size:
        raise ValueError(f"parallelism: rank {rank} is outside [0, {size})")
    split_dim = operator.index(getattr(axis, "split_dim", 0) or 0)
    if split_dim < 0:
        raise ValueError(f"parallelism: split_dim must be non-negative, not {split_dim}")
    expert = operator.index(getattr(axis, "expert_id", 0) or 0)
    stage = operator.index(getattr(axis, "stage_id", 0) or 0)
    return AxisRecord(kind, rank, size, split_dim, expert, stage)


def _code(what: str, value: int | str, names: Sequence[str]) -> int:
    if isinstance(value, str):
        name = value.strip().lower().replace("-", "_")
        if name in names:
            return names.index(name)
    elif not isinstance(value, bool) and 0 <= operator.index(value) < len(names):
        return operator.index(value)
    allowed = ", ".join(f"{name!r} ({code})" for code, name in enumerate(names))
    raise ValueError(f"{what} {value!r} is unknown; allowed: {allowed}")


def target_of(target: Any) -> tuple[int, tuple[AxisRecord, ...]]:
    """Checked mode and axes of a read target; None means AS_STORED.

    Raises:
        ValueError: an unknown mode, SHARD without parallelism, bad axes.

    Example:
        >>> target_of(None)
        (0, ())
    """
    if target is None:
        return READ_MODE_AS_STORED, ()
    mode = _code("read mode", target.mode, _MODES)
    parallelism = getattr(target, "parallelism", None)
    if parallelism is None:
        if mode == READ_MODE_SHARD:
            raise ValueError("read mode SHARD needs a parallelism")
        return mode, ()
    return mode, axis_records(parallelism)


def writer_of(partition: Any) -> AxisRecord:
    """Checked ``(rank, size, split_dim)`` of a writer partition, as a TP axis.

    Raises:
        ValueError: not three integers, or out of range.

    Example:
        >>> writer_of((1, 4, 0)).rank
        1
    """
    if all(hasattr(partition, name) for name in ("rank", "size", "split_dim")):
        partition = (partition.rank, partition.size, partition.split_dim)
    try:
        rank, size, split_dim = (operator.index(value) for value in partition)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"writer_partition must be (rank, size, split_dim), not {partition!r}"
        ) from error
    return _record(ParallelAxis(AXIS_TP, rank, size, split_dim))


def tp_axis(axes: Iterable[AxisRecord]) -> AxisRecord | None:
    """The TP axis, if there is one."""
    return next((axis for axis in axes if axis.kind == AXIS_TP), None)


def with_tp(axes: Iterable[AxisRecord], tp: AxisRecord) -> tuple[AxisRecord, ...]:
    """The same axes with another TP axis, in order."""
    others = [axis for axis in axes if axis.kind != AXIS_TP]
    return tuple(sorted([*others, tp], key=lambda axis: axis.kind))


def shard_key(key: str, axes: Sequence[AxisRecord]) -> str:
    """Key of one shard.

    Example:
        >>> shard_key("w", axis_records([ParallelAxis("tp", 1, 4)]))
        'w_tp_1'
        >>> shard_key("w", axis_records([ParallelAxis("tp", 1, 4), ParallelAxis("dp", 0, 2)]))
        'w__dp_0of2__tp_1of4_sd0'
    """
    if len(axes) == 1 and axes[0].kind == AXIS_TP:
        return f"{key}_tp_{axes[0].rank}"
    return key + "".join(
        f"__{_KINDS[a.kind]}_{a.rank}of{a.count}{f'_sd{a.split_dim}' if a.kind == AXIS_TP else ''}"
        for a in axes
    )


def writer_key(key: str, writer: AxisRecord) -> str:
    """Key of one writer's part.

    Example:
        >>> writer_key("w", writer_of((1, 4, 0)))
        'w__writer_1of4_sd0'
    """
    return f"{key}__writer_{writer.rank}of{writer.count}_sd{writer.split_dim}"


def manifest_keys(key: str) -> tuple[str, str]:
    """Keys of the manifests of parallel shards and of writer parts.

    Example:
        >>> manifest_keys("w")[1]
        'w__writer_manifest'
    """
    return f"{key}__parallelism_manifest", f"{key}__writer_manifest"


def axes_key(key: str) -> str:
    """Key of the header of a shard that has other axes than TP: tells readers which.

    Example:
        >>> axes_key("w")
        'w__parallelism_axes'
    """
    return f"{key}__parallelism_axes"


def other_axes(axes: Iterable[AxisRecord]) -> tuple[AxisRecord, ...]:
    """All axes but TP."""
    return tuple(axis for axis in axes if axis.kind != AXIS_TP)


def choices(
    stored: Iterable[AxisRecord], wanted: Iterable[AxisRecord]
) -> list[tuple[AxisRecord, ...]]:
    """The ranks of other axes than TP whose shards may answer a request, the best first.

    DP ranks have copies of one tensor, so any will do. EP and PP ranks have tensors of their own:
    one that the request names is the only choice.

    Raises:
        TensorFormatError: more ranks than can be looked for.

    Example:
        >>> [axes[0].rank for axes in choices([AxisRecord(AXIS_DP, 1, 3)], ())]
        [1, 0, 2]
    """
    named = {axis.kind: axis for axis in wanted}
    if any(kind != AXIS_DP for kind in named.keys() - {axis.kind for axis in stored}):
        return []
    per_axis = []
    for axis in stored:
        mine = named.get(axis.kind)
        if mine is not None and mine.count != axis.count:
            if axis.kind != AXIS_DP:
                return []
            mine = None
        first = mine or axis
        ranks = [first.rank]
        if axis.count > CHOICES_MAX:
            raise TensorFormatError(f"tensor: {axis.count} ranks, at most {CHOICES_MAX} possible")
        if mine is None or axis.kind == AXIS_DP:
            ranks += [rank for rank in range(axis.count) if rank != first.rank]
        per_axis.append([AxisRecord(axis.kind, rank, axis.count) for rank in ranks])
    if math.prod(map(len, per_axis)) > CHOICES_MAX:
        raise TensorFormatError(f"tensor: more than {CHOICES_MAX} shards to choose from")
    return list(itertools.product(*per_axis))


def shard_shape(key: str, shape: Sequence[int], axis: AxisRecord) -> tuple[int, ...]:
    """Shape of one of ``axis.count`` equal shards.

    Raises:
        ValueError: split_dim out of range, or the dimension does not divide; names the key.

    Example:
        >>> shard_shape("w", (8, 4), AxisRecord(AXIS_TP, 0, 2))
        (4, 4)
    """
    dim = axis.split_dim
    if dim >= len(shape):
        raise ValueError(f"{key!r}: split_dim {dim} is out of range for shape {tuple(shape)}")
    if shape[dim] % axis.count:
        raise ValueError(
            f"{key!r}: dimension {dim} of shape {tuple(shape)} does not divide by {axis.count}"
        )
    return (*shape[:dim], shape[dim] // axis.count, *shape[dim + 1 :])


class Overlap(NamedTuple):
    """The common part of a source shard and a target shard, as ``rows`` runs of ``run`` bytes.

    Row i lies at ``src + i * src_step`` in the source's data and ``dst + i * dst_step`` in the
    target's.
    """

    rows: int
    run: int
    src: int
    src_step: int
    dst: int
    dst_step: int

    def fragments(self) -> tuple[list[int], list[int], list[int]]:
        """Destination offsets, source offsets and sizes, bytes."""
        rows = range(self.rows)
        return (
            [self.dst + row * self.dst_step for row in rows],
            [self.src + row * self.src_step for row in rows],
            [self.run] * self.rows,
        )


def overlap(
    shape: Sequence[int], itemsize: int, source: AxisRecord, target: AxisRecord
) -> Overlap | None:
    """What a target shard needs of a source shard that is cut along the same dimension.

    Args:
        shape: global shape; its split dimension divides by both counts.
        itemsize: bytes of one element.

    Returns:
        None when they share nothing.

    Raises:
        TensorFormatError: the dimensions differ or do not divide.

    Example:
        >>> overlap((8,), 4, AxisRecord(AXIS_TP, 1, 4), AxisRecord(AXIS_TP, 0, 2)).dst
        8
    """
    dim = source.split_dim
    if dim != target.split_dim or shape[dim] % source.count or shape[dim] % target.count:
        raise TensorFormatError(f"tensor: {source} and {target} do not fit shape {tuple(shape)}")
    inner = itemsize * math.prod(shape[dim + 1 :])
    source_len, target_len = shape[dim] // source.count, shape[dim] // target.count
    low = max(source.rank * source_len, target.rank * target_len)
    high = min((source.rank + 1) * source_len, (target.rank + 1) * target_len)
    rows, run = math.prod(shape[:dim]), (high - low) * inner
    if run <= 0 or rows <= 0:
        return None
    src_step, dst_step = source_len * inner, target_len * inner
    if run == src_step == dst_step:
        rows, run = 1, rows * run
    src, dst = (low - source.rank * source_len) * inner, (low - target.rank * target_len) * inner
    return Overlap(rows, run, src, src_step, dst, dst_step)
