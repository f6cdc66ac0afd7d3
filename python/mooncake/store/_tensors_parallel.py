"""Tensors divided over ranks: any axes to write, any ratio to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._tensor_format import TensorReadResult
from ._tensor_write import plan_put, raw_source, tensor_source
from ._tensors_base import (
    batch_outcome,
    check_put,
    keys_of,
    numbers,
    one_outcome,
    requests_of,
    spread,
)
from ._tensors_plain import PlainTensorMethods

__all__ = ["ParallelTensorMethods"]


class ParallelTensorMethods(PlainTensorMethods):
    """Tensor calls with a parallelism, a writer partition or a read target.

    A put with a TP axis, or with a writer partition, takes the FULL tensor and stores one shard
    of it: the caller's rank. Each rank makes the same call with its own rank; a manifest next to
    the shards tells readers how the tensor was divided. A put with other axes only stores the
    tensor as it is, under the key of those axes.
    """

    def put_tensor_with_parallelism(
        self,
        key: str,
        tensor: Any,
        *,
        parallelism: Any = None,
        writer_partition: Any = None,
        tenant: str | None = None,
        config: Any = None,
    ) -> int:
        """Store the caller's shard of a full tensor.

        Args:
            tensor: the full tensor.
            parallelism: TensorParallelism of the shard to store; None stores the whole at ``key``.
            writer_partition: (rank, size, split_dim); wins over ``parallelism``.

        Returns:
            0.

        Raises:
            ValueError: bad axes, or a dimension that does not divide by the number of ranks.
            RuntimeError: the store refused; with its status.

        Example:
            >>> axes = TensorParallelism([ParallelAxis("tp", 1, 4)])    # doctest: +SKIP
            >>> store.put_tensor_with_parallelism("w", full, parallelism=axes)  # doctest: +SKIP
            0
        """
        plan = plan_put(key, tensor_source(key, tensor), parallelism, writer_partition)
        return check_put(key, self._write([plan], tenant, config, False))

    def upsert_tensor_with_parallelism(
        self,
        key: str,
        tensor: Any,
        *,
        parallelism: Any = None,
        writer_partition: Any = None,
        tenant: str | None = None,
        config: Any = None,
    ) -> int:
        """The same put, and the manifest (or whole tensor) of another layout is removed after it.

        Example:
            >>> store.upsert_tensor_with_parallelism("w", full, parallelism=axes)  # doctest: +SKIP
            0
        """
        plan = plan_put(key, tensor_source(key, tensor), parallelism, writer_partition)
        return check_put(key, self._write([plan], tenant, config, True))

    def put_tensor_with_parallelism_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        *,
        parallelism: Any = None,
        writer_partition: Any = None,
        tenant: str | None = None,
        config: Any = None,
    ) -> int:
        """The put from a registered buffer of header and data.

        The header says what the buffer holds: a full tensor is cut as by
        ``put_tensor_with_parallelism``; a shard must be the one that is asked for, and is stored
        as it is, so that what an ``_into`` read left can be put again.

        Raises:
            ValueError: a bad header, or another shard than the one asked for.
            RuntimeError: the store refused; with its status.

        Example:
            >>> store.put_tensor_with_parallelism_from(
            ...     "w", lease.ptr, lease.size, parallelism=axes)   # doctest: +SKIP
            0
        """
        statuses = self.batch_put_tensor_with_parallelism_from(
            [key],
            [buffer_ptr],
            [size],
            parallelisms=None if writer_partition is not None else [parallelism],
            writer_partitions=None if writer_partition is None else [writer_partition],
            tenant=tenant,
            config=config,
        )
        return check_put(key, statuses[0])

    def upsert_tensor_with_parallelism_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        *,
        parallelism: Any = None,
        writer_partition: Any = None,
        tenant: str | None = None,
        config: Any = None,
    ) -> int:
        """``put_tensor_with_parallelism_from`` that also removes another layout's manifest.

        Example:
            >>> store.upsert_tensor_with_parallelism_from("w", ptr, size, parallelism=tp)
            0
        """
        statuses = self.batch_upsert_tensor_with_parallelism_from(
            [key],
            [buffer_ptr],
            [size],
            parallelisms=None if writer_partition is not None else [parallelism],
            writer_partitions=None if writer_partition is None else [writer_partition],
            tenant=tenant,
            config=config,
        )
        return check_put(key, statuses[0])

    def batch_put_tensor_with_parallelism(
        self,
        keys: Sequence[str],
        tensors: Sequence[Any],
        *,
        parallelisms: Sequence[Any] | None = None,
        writer_partitions: Sequence[Any] | None = None,
        tenant: str | None = None,
        config: Any = None,
    ) -> list[int]:
        """The put for several keys; one status per item, 0 or negative.

        Raises:
            ValueError: both lists given, lengths that differ, or as the single call; before
                anything is written.

        Example:
            >>> store.batch_put_tensor_with_parallelism(
            ...     ["a", "b"], [one, two], parallelisms=[axes, axes])  # doctest: +SKIP
            [0, 0]
        """
        keys = keys_of(keys)
        items = zip(keys, spread("tensors", tensors, len(keys)))
        sources = [tensor_source(key, tensor) for key, tensor in items]
        return self._put_all(keys, sources, parallelisms, writer_partitions, tenant, config, False)

    def batch_upsert_tensor_with_parallelism(
        self,
        keys: Sequence[str],
        tensors: Sequence[Any],
        *,
        parallelisms: Sequence[Any] | None = None,
        writer_partitions: Sequence[Any] | None = None,
        tenant: str | None = None,
        config: Any = None,
    ) -> list[int]:
        """The upsert for several keys; one status per item.

        Example:
            >>> store.batch_upsert_tensor_with_parallelism(["w"], [full], parallelisms=[tp])
            [0]
        """
        keys = keys_of(keys)
        items = zip(keys, spread("tensors", tensors, len(keys)))
        sources = [tensor_source(key, tensor) for key, tensor in items]
        return self._put_all(keys, sources, parallelisms, writer_partitions, tenant, config, True)

    def batch_put_tensor_with_parallelism_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        *,
        parallelisms: Sequence[Any] | None = None,
        writer_partitions: Sequence[Any] | None = None,
        tenant: str | None = None,
        config: Any = None,
    ) -> list[int]:
        """The put from registered buffers for several keys; one status per item.

        Example:
            >>> store.batch_put_tensor_with_parallelism_from(["w"], [ptr], [size])
            [0]
        """
        return self._batch_from(
            keys, buffer_ptrs, sizes, parallelisms, writer_partitions, tenant, config, False
        )

    def batch_upsert_tensor_with_parallelism_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        *,
        parallelisms: Sequence[Any] | None = None,
        writer_partitions: Sequence[Any] | None = None,
        tenant: str | None = None,
        config: Any = None,
    ) -> list[int]:
        """The upsert from registered buffers for several keys; one status per item.

        Example:
            >>> store.batch_upsert_tensor_with_parallelism_from(["w"], [ptr], [size])
            [0]
        """
        return self._batch_from(
            keys, buffer_ptrs, sizes, parallelisms, writer_partitions, tenant, config, True
        )

    def _batch_from(
        self,
        keys: Sequence[str],
        ptrs: Sequence[int],
        sizes: Sequence[int],
        parallelisms: Sequence[Any] | None,
        writers: Sequence[Any] | None,
        tenant: str | None,
        config: Any,
        upsert: bool,
    ) -> list[int]:
        keys = keys_of(keys)
        count = len(keys)
        rows = zip(keys, numbers("buffer_ptrs", ptrs, count), numbers("sizes", sizes, count))
        sources = [raw_source(*row) for row in rows]
        return self._put_all(keys, sources, parallelisms, writers, tenant, config, upsert)

    def get_tensor_with_parallelism(
        self,
        key: str,
        *,
        target: Any = None,
        tensor: Any = None,
        framework: str | None = None,
        tenant: str | None = None,
    ) -> Any:
        """Read a tensor as stored, one shard of it, or all of it, however it was divided.

        Args:
            target: ReadTarget. SHARD gives the exact shard if it is there, else cuts and joins
                what is there, at any ratio of writers to readers. FULL gives the object at
                ``key`` if there is one, else all shards joined. None: as stored. Other axes
                may be left out: of DP ranks any copy will do; where several EP or PP ranks
                are stored, the target has to name one.
            tensor, framework: as ``get_tensor``.

        Returns:
            A tensor that owns its memory; None when nothing is stored for the key.

        Raises:
            ValueError: bad target, a shape that does not divide, ``tensor`` does not fit.
            RuntimeError: damaged objects, some of the shards are missing (named), or several EP
                or PP ranks to choose from.

        Example:
            >>> store.get_tensor_with_parallelism("w", target=ReadTarget("full"))  # doctest: +SKIP
        """
        destinations = None if tensor is None else [tensor]
        requests = requests_of(keys_of([key]), [target])
        return self._get_all(requests, destinations, framework, tenant, one_outcome)[0]

    def batch_get_tensor_with_parallelism(
        self,
        keys: Sequence[str],
        *,
        targets: Sequence[Any] | None = None,
        tensors: Sequence[Any] | None = None,
        framework: str | None = None,
        tenant: str | None = None,
    ) -> list[Any]:
        """The read for several keys, in common calls; None per missing or damaged item.

        Example:
            >>> store.batch_get_tensor_with_parallelism(["a"], targets=[t])  # doctest: +SKIP
        """
        keys = keys_of(keys)
        requests = requests_of(keys, spread("targets", targets, len(keys)))
        return self._get_all(requests, tensors, framework, tenant, batch_outcome)

    def get_tensor_with_parallelism_into(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        *,
        target: Any = None,
        tenant: str | None = None,
    ) -> TensorReadResult | None:
        """The read into registered host memory: a header of 304 bytes, then the data.

        Args:
            buffer_ptr: address of the destination.
            size: its bytes: 304 plus the target's data at least.

        Returns:
            Where the data is and what it is; None when nothing is stored for the key.

        Raises:
            ValueError: the destination is too small (checked before copying), bad target.
            RuntimeError: as ``get_tensor_with_parallelism``; memory that is not registered.

        Example:
            >>> store.get_tensor_with_parallelism_into(
            ...     "w", lease.ptr, lease.size, target=ReadTarget("full"))  # doctest: +SKIP
        """
        requests = requests_of(keys_of([key]), [target], [buffer_ptr], [size])
        result: TensorReadResult | None = self._get_all_into(requests, tenant, one_outcome)[0]
        return result

    def batch_get_tensor_with_parallelism_into(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        *,
        targets: Sequence[Any] | None = None,
        tenant: str | None = None,
    ) -> list[TensorReadResult | None]:
        """The read into registered memory for several keys.

        Look-ups are shared, and all ranged reads of the batch go out as one call.

        Returns:
            One result per key; None per missing or damaged item.

        Raises:
            ValueError: lengths that differ, bad target, a destination that is too small.

        Example:
            >>> store.batch_get_tensor_with_parallelism_into(
            ...     ["a"], [lease.ptr], [lease.size], targets=[t])      # doctest: +SKIP
        """
        keys = keys_of(keys)
        count = len(keys)
        ptrs, lengths = numbers("buffer_ptrs", buffer_ptrs, count), numbers("sizes", sizes, count)
        requests = requests_of(keys, spread("targets", targets, count), ptrs, lengths)
        return self._get_all_into(requests, tenant, batch_outcome)
