"""The tensor-parallel short forms: rank, size and split_dim instead of axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._tensor_format import TensorReadResult
from ._tensor_parallel import AXIS_TP, ParallelAxis, ReadTarget, TensorParallelism
from ._tensor_write import Put, plan_all_shards, raw_source, tensor_source
from ._tensors_base import check_put, keys_of, numbers, spread
from ._tensors_parallel import ParallelTensorMethods

__all__ = ["TpTensorMethods"]


class TpTensorMethods(ParallelTensorMethods):
    """The ``_with_tp`` family. A put stores ALL shards of the full tensor, whatever ``tp_rank``."""

    def put_tensor_with_tp(
        self,
        key: str,
        tensor: Any,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
        *,
        tenant: str | None = None,
        config: Any = None,
    ) -> int:
        """Split a full tensor along ``split_dim`` and store every shard.

        Args:
            tp_rank: checked against ``tp_size``; all shards are stored whatever it is.
            tp_size: number of shards; 1 stores the whole at ``key``.

        Returns:
            0.

        Raises:
            ValueError: rank outside [0, tp_size), or a dimension that does not divide.
            RuntimeError: the store refused a shard; with its status.

        Example:
            >>> store.put_tensor_with_tp("w", full, tp_size=4)      # doctest: +SKIP
            0
        """
        plans = _plans(key, tensor, tp_rank, tp_size, split_dim)
        return check_put(key, self._write(plans, tenant, config, False))

    def upsert_tensor_with_tp(
        self,
        key: str,
        tensor: Any,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
        *,
        tenant: str | None = None,
        config: Any = None,
    ) -> int:
        """``put_tensor_with_tp``, and another layout of ``key`` is removed after it.

        Example:
            >>> store.upsert_tensor_with_tp("w", full, tp_size=4)  # doctest: +SKIP
            0
        """
        plans = _plans(key, tensor, tp_rank, tp_size, split_dim)
        return check_put(key, self._write(plans, tenant, config, True))

    def pub_tensor_with_tp(
        self,
        key: str,
        tensor: Any,
        config: Any = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
        *,
        tenant: str | None = None,
    ) -> int:
        """``put_tensor_with_tp`` with the replication policy as third argument.

        Example:
            >>> store.pub_tensor_with_tp("w", full, ReplicateConfig(), 0, 4)  # doctest: +SKIP
            0
        """
        return self.put_tensor_with_tp(
            key, tensor, tp_rank, tp_size, split_dim, tenant=tenant, config=config
        )

    def batch_put_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[Any],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
        *,
        tenant: str | None = None,
        config: Any = None,
    ) -> list[int]:
        """``put_tensor_with_tp`` for several keys; one status per key, 0 or negative.

        Raises:
            ValueError: before anything is written, as the single call.

        Example:
            >>> store.batch_put_tensor_with_tp(["a", "b"], [one, two], tp_size=2)  # doctest: +SKIP
            [0, 0]
        """
        base_keys = keys_of(base_keys, "base_keys")
        items = zip(base_keys, spread("tensors_list", tensors_list, len(base_keys)))
        plans = [_plans(key, tensor, tp_rank, tp_size, split_dim) for key, tensor in items]
        return [self._write(plan, tenant, config, False) for plan in plans]

    def batch_upsert_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[Any],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
        *,
        tenant: str | None = None,
        config: Any = None,
    ) -> list[int]:
        """``upsert_tensor_with_tp`` for several keys; one status per key.

        Example:
            >>> store.batch_upsert_tensor_with_tp(["w"], [full], tp_size=4)  # doctest: +SKIP
            [0]
        """
        base_keys = keys_of(base_keys, "base_keys")
        items = zip(base_keys, spread("tensors_list", tensors_list, len(base_keys)))
        plans = [_plans(key, tensor, tp_rank, tp_size, split_dim) for key, tensor in items]
        return [self._write(plan, tenant, config, True) for plan in plans]

    def batch_pub_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[Any],
        config: Any = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
        *,
        tenant: str | None = None,
    ) -> list[int]:
        """``batch_put_tensor_with_tp`` with the replication policy as third argument.

        Example:
            >>> store.batch_pub_tensor_with_tp(["w"], [full], config, tp_size=4)  # doctest: +SKIP
            [0]
        """
        return self.batch_put_tensor_with_tp(
            base_keys, tensors_list, tp_rank, tp_size, split_dim, tenant=tenant, config=config
        )

    def put_tensor_with_tp_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
        *,
        tenant: str | None = None,
        config: Any = None,
    ) -> int:
        """``put_tensor_with_tp`` from a registered buffer of header and data.

        A full tensor in the buffer is split and every shard stored. A buffer that holds one shard
        of this split (as ``get_tensor_with_tp_into`` leaves it) stores that shard.

        Raises:
            ValueError: a bad header, or a shard of another split.
            RuntimeError: the store refused; with its status.

        Example:
            >>> store.put_tensor_with_tp_from("w", lease.ptr, lease.size, 0, 4)  # doctest: +SKIP
            0
        """
        plans = _raw_plans(key, buffer_ptr, size, tp_rank, tp_size, split_dim)
        return check_put(key, self._write(plans, tenant, config, False))

    def batch_put_tensor_with_tp_from(
        self,
        base_keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
        *,
        tenant: str | None = None,
        config: Any = None,
    ) -> list[int]:
        """``put_tensor_with_tp_from`` for several keys; one status per key.

        Example:
            >>> store.batch_put_tensor_with_tp_from(["w"], [ptr], [size], tp_size=4)
            [0]
        """
        base_keys = keys_of(base_keys, "base_keys")
        count = len(base_keys)
        ptrs, lengths = numbers("buffer_ptrs", buffer_ptrs, count), numbers("sizes", sizes, count)
        plans = [
            _raw_plans(*row, tp_rank, tp_size, split_dim) for row in zip(base_keys, ptrs, lengths)
        ]
        return [self._write(plan, tenant, config, False) for plan in plans]

    def get_tensor_with_tp(
        self,
        key: str,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
        *,
        tensor: Any = None,
        framework: str | None = None,
        tenant: str | None = None,
    ) -> Any:
        """Shard ``tp_rank`` of ``tp_size``, or the whole tensor for ``tp_size`` 1.

        Returns:
            A tensor that owns its memory; None when nothing is stored for the key.

        Raises:
            ValueError: rank outside [0, tp_size), or a shape that does not divide.
            RuntimeError: damaged or missing shards (named).

        Example:
            >>> store.get_tensor_with_tp("w", 1, 4)                 # doctest: +SKIP
        """
        target = _target(tp_rank, tp_size, split_dim)
        return self.get_tensor_with_parallelism(
            key, target=target, tensor=tensor, framework=framework, tenant=tenant
        )

    def batch_get_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
        *,
        tensors: Sequence[Any] | None = None,
        framework: str | None = None,
        tenant: str | None = None,
    ) -> list[Any]:
        """``get_tensor_with_tp`` for several keys; None per missing or damaged item.

        Example:
            >>> store.batch_get_tensor_with_tp(["a", "b"], 1, 4)    # doctest: +SKIP
        """
        base_keys = keys_of(base_keys, "base_keys")
        targets = [_target(tp_rank, tp_size, split_dim)] * len(base_keys)
        return self.batch_get_tensor_with_parallelism(
            base_keys, targets=targets, tensors=tensors, framework=framework, tenant=tenant
        )

    def get_tensor_with_tp_into(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
        *,
        tenant: str | None = None,
    ) -> TensorReadResult | None:
        """``get_tensor_with_tp`` into registered memory: header of 304 bytes, then data.

        Raises:
            ValueError: the destination is too small, or as ``get_tensor_with_tp``.

        Example:
            >>> store.get_tensor_with_tp_into("w", lease.ptr, lease.size, 1, 4)  # doctest: +SKIP
        """
        target = _target(tp_rank, tp_size, split_dim)
        return self.get_tensor_with_parallelism_into(
            key, buffer_ptr, size, target=target, tenant=tenant
        )

    def batch_get_tensor_with_tp_into(
        self,
        base_keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
        *,
        tenant: str | None = None,
    ) -> list[TensorReadResult | None]:
        """``get_tensor_with_tp_into`` for several keys; None per missing or damaged item.

        Example:
            >>> store.batch_get_tensor_with_tp_into(["w"], [ptr], [size], tp_rank=1, tp_size=4)
        """
        base_keys = keys_of(base_keys, "base_keys")
        targets = [_target(tp_rank, tp_size, split_dim)] * len(base_keys)
        return self.batch_get_tensor_with_parallelism_into(
            base_keys, buffer_ptrs, sizes, targets=targets, tenant=tenant
        )


def _target(rank: int, size: int, split_dim: int) -> ReadTarget:
    _check_rank(rank, size)
    if size == 1:
        return ReadTarget("full")
    return ReadTarget("shard", TensorParallelism([ParallelAxis(AXIS_TP, rank, size, split_dim)]))


def _check_rank(rank: int, size: int) -> None:
    if size < 1:
        raise ValueError(f"tp_size must be positive, not {size}")
    if not 0 <= rank < size:
        raise ValueError(f"tp_rank {rank} is outside [0, {size})")


def _plans(key: str, tensor: Any, rank: int, size: int, split_dim: int) -> list[Put]:
    _check_rank(rank, size)
    return plan_all_shards(key, tensor_source(key, tensor), size, split_dim)


def _raw_plans(key: str, ptr: int, size: int, rank: int, count: int, dim: int) -> list[Put]:
    _check_rank(rank, count)
    return plan_all_shards(key, raw_source(key, ptr, size), count, dim)
