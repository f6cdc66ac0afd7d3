"""The store: :class:`MooncakeDistributedStore` and what goes with it.

``MOONCAKE_STORE_BACKEND`` may be unset, ``rs`` or ``cpp``; all of them select this implementation.
Names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._buffer_pool import BufferPool
    from ._distributed_store import MooncakeDistributedStore
    from ._host_allocator import MooncakeHostMemAllocator
    from ._observability import (
        init_tracing,
        metrics_server_address,
        metrics_text,
        start_metrics_server,
        stop_metrics_server,
    )
    from ._replicate_config import ReplicateConfig
    from ._tensors import (
        AXIS_DP,
        AXIS_EP,
        AXIS_PP,
        AXIS_TP,
        READ_MODE_AS_STORED,
        READ_MODE_FULL,
        READ_MODE_SHARD,
        TENSOR_METADATA_WIRE_SIZE,
        ParallelAxis,
        ReadTarget,
        TensorFormatError,
        TensorParallelism,
        TensorReadResult,
    )

_BACKENDS = ("rs", "cpp")
_backend = os.environ.get("MOONCAKE_STORE_BACKEND")
if _backend is not None and _backend not in _BACKENDS:
    raise ValueError(
        f"MOONCAKE_STORE_BACKEND is {_backend!r}; it must be exactly 'cpp' or 'rs', or unset"
    )

# Names of another store with this API, which programs look for.
_OTHER_STORE = frozenset(
    {
        "BufferHandle",
        "EngramStore",
        "ObjectDataType",
        "SoftPinAction",
        "TaskStatus",
        "_deserialize_tensor",
        "_get_pyclient_from_wrapper",
        "_serialize_tensor",
        "_tensor_metadata_size",
        "bind_to_numa_node",
    }
)

# Where each name comes from.
_HOMES = {
    "BufferPool": "_buffer_pool",
    "MooncakeDistributedStore": "_distributed_store",
    "MooncakeHostMemAllocator": "_host_allocator",
    "ReplicateConfig": "_replicate_config",
    "AXIS_DP": "_tensors",
    "AXIS_EP": "_tensors",
    "AXIS_PP": "_tensors",
    "AXIS_TP": "_tensors",
    "READ_MODE_AS_STORED": "_tensors",
    "READ_MODE_FULL": "_tensors",
    "READ_MODE_SHARD": "_tensors",
    "TENSOR_METADATA_WIRE_SIZE": "_tensors",
    "ParallelAxis": "_tensors",
    "ReadTarget": "_tensors",
    "TensorFormatError": "_tensors",
    "TensorParallelism": "_tensors",
    "TensorReadResult": "_tensors",
    "init_tracing": "_observability",
    "metrics_server_address": "_observability",
    "metrics_text": "_observability",
    "start_metrics_server": "_observability",
    "stop_metrics_server": "_observability",
}

__all__ = [
    "AXIS_DP",
    "AXIS_EP",
    "AXIS_PP",
    "AXIS_TP",
    "BufferPool",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ParallelAxis",
    "READ_MODE_AS_STORED",
    "READ_MODE_FULL",
    "READ_MODE_SHARD",
    "ReadTarget",
    "ReplicateConfig",
    "TENSOR_METADATA_WIRE_SIZE",
    "TensorFormatError",
    "TensorParallelism",
    "TensorReadResult",
    "init_tracing",
    "metrics_server_address",
    "metrics_text",
    "start_metrics_server",
    "stop_metrics_server",
]


def __getattr__(name: str) -> Any:
    if name in _OTHER_STORE:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}: it is of the C++ Store API alone"
        )
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
