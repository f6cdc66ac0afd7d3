"""Tensor methods of the store: ``class MooncakeDistributedStore(TensorMethods, ...)``.

Wire format: a 304-byte header, then the row-major elements. See ``PlainTensorMethods`` for what
counts as a tensor and what reads return, ``ParallelTensorMethods`` for shards.
"""

from __future__ import annotations

from ._tensor_format import (
    TENSOR_METADATA_WIRE_SIZE,
    TensorFormatError,
    TensorReadResult,
)
from ._tensor_parallel import (
    AXIS_DP,
    AXIS_EP,
    AXIS_PP,
    AXIS_TP,
    READ_MODE_AS_STORED,
    READ_MODE_FULL,
    READ_MODE_SHARD,
    ParallelAxis,
    ReadTarget,
    TensorParallelism,
)
from ._tensors_tp import TpTensorMethods

__all__ = [
    "AXIS_DP",
    "AXIS_EP",
    "AXIS_PP",
    "AXIS_TP",
    "READ_MODE_AS_STORED",
    "READ_MODE_FULL",
    "READ_MODE_SHARD",
    "TENSOR_METADATA_WIRE_SIZE",
    "ParallelAxis",
    "ReadTarget",
    "TensorFormatError",
    "TensorMethods",
    "TensorParallelism",
    "TensorReadResult",
]


class TensorMethods(TpTensorMethods):
    """Every tensor call of the store, to be inherited by the store class."""
