"""Whole tensors: put, upsert and get, single and in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._tensor_format import TENSOR_METADATA_WIRE_SIZE, TensorReadResult
from ._tensor_host import HostTensor, check_framework, copy_out, is_number, to_user
from ._tensor_layout import Request
from ._tensor_read import read_into, read_new
from ._tensor_write import (
    Put,
    RawTensor,
    Source,
    drop_other_layouts,
    plan_put,
    raw_source,
    run_put,
    tensor_source,
)
from ._tensors_base import (
    StoreCalls,
    batch_outcome,
    check_put,
    keys_of,
    numbers,
    one_outcome,
    requests_of,
    spread,
)

__all__ = ["PlainTensorMethods"]


class PlainTensorMethods(StoreCalls):
    """Tensor calls without parallelism, and the helpers that the others use.

    A tensor is a torch tensor, a NumPy array, a DLPack object in host memory or another
    buffer-protocol object; a non-contiguous or device tensor is stored by value. Reads give torch
    tensors where torch is installed, else NumPy arrays; ``framework="torch"`` or ``"numpy"``
    chooses. NumPy gets bfloat16 and float8 as ml_dtypes types where that is installed, else as the
    raw bits in uint16 and uint8.
    """

    # --- Shared steps -----------------------------------------------------------------------

    def _write(self, plans: Sequence[Put], tenant: str | None, config: Any, upsert: bool) -> int:
        """First failing status of several objects of one tensor, or 0."""
        for plan in plans:
            status = run_put(self, plan, tenant, config)
            if status != 0:
                return status
        if upsert:
            drop_other_layouts(self, plans[0], tenant)
        return 0

    def _put_all(
        self,
        keys: Sequence[str],
        sources: Sequence[Source],
        parallelisms: Sequence[Any] | None,
        writers: Sequence[Any] | None,
        tenant: str | None,
        config: Any,
        upsert: bool,
    ) -> list[int]:
        """One status per item; arguments of all items are checked before any is written."""
        count = len(keys)
        if len(sources) != count:
            raise ValueError(f"{len(sources)} tensors for {count} keys")
        if parallelisms is not None and writers is not None:
            raise ValueError("give parallelisms or writer_partitions, not both")
        rows = zip(
            keys,
            sources,
            spread("parallelisms", parallelisms, count),
            spread("writer_partitions", writers, count),
        )
        plans = [plan_put(*row) for row in rows]
        return [self._write([plan], tenant, config, upsert) for plan in plans]

    def _get_all(
        self,
        requests: Sequence[Request],
        tensors: Sequence[Any] | None,
        framework: str | None,
        tenant: str | None,
        settle: Any,
    ) -> list[Any]:
        framework = check_framework(framework)
        destinations = spread("tensors", tensors, len(requests))
        if requests:
            read_new(self, requests, tenant)
        results: list[Any] = []
        for request, destination in zip(requests, destinations):
            outcome = settle(request)
            if isinstance(outcome, HostTensor):
                outcome = (
                    to_user(outcome, framework)
                    if destination is None
                    else copy_out(request.key, outcome, destination)
                )
            results.append(outcome)
        return results

    def _get_all_into(
        self, requests: Sequence[Request], tenant: str | None, settle: Any
    ) -> list[Any]:
        for request in requests:
            if request.size < TENSOR_METADATA_WIRE_SIZE:
                raise ValueError(
                    f"{request.key!r}: a buffer of {request.size} bytes has no room for the "
                    f"{TENSOR_METADATA_WIRE_SIZE}-byte header"
                )
        if requests:
            read_into(self, requests, tenant)
        return [settle(request) for request in requests]

    def _put_all_raw(
        self,
        keys: Sequence[str],
        ptrs: Sequence[int],
        sizes: Sequence[int],
        tenant: str | None,
        config: Any,
        upsert: bool,
    ) -> list[int]:
        """One status per buffer; all of them are checked before any is written."""
        rows = _rows(keys, ptrs, sizes)
        plans = [plan_put(row[0], raw_source(*row), None, None) for row in rows]
        return [self._put_raw(plan, tenant, config, upsert) for plan in plans]

    def _put_raw(self, plan: Put, tenant: str | None, config: Any, upsert: bool) -> int:
        """Store a caller's buffer of header and data as it is; the status."""
        raw = plan.data
        assert isinstance(raw, RawTensor)
        options = {"tenant": tenant, "config": config}
        given = {name: value for name, value in options.items() if value is not None}
        status = int(self.put_from(plan.key, raw.ptr, raw.size, **given))
        if status == 0 and upsert:
            drop_other_layouts(self, plan, tenant)
        return status

    # --- Writes -----------------------------------------------------------------------------

    def put_tensor(
        self, key: str, tensor: Any, *, tenant: str | None = None, config: Any = None
    ) -> int:
        """Store a whole tensor under ``key``; overwrites.

        Returns:
            0.

        Raises:
            TypeError: not a tensor.
            ValueError: an element type or more dimensions than the format has.
            RuntimeError: the store refused; with its status.

        Example:
            >>> store.put_tensor("w", torch.ones(4, 4))             # doctest: +SKIP
            0
        """
        plan = plan_put(key, tensor_source(key, tensor), None, None)
        return check_put(key, self._write([plan], tenant, config, False))

    def upsert_tensor(
        self, key: str, tensor: Any, *, tenant: str | None = None, config: Any = None
    ) -> int:
        """``put_tensor`` that also removes shards and manifests of an older split of ``key``.

        Example:
            >>> store.upsert_tensor("w", torch.zeros(4, 4))         # doctest: +SKIP
            0
        """
        plan = plan_put(key, tensor_source(key, tensor), None, None)
        return check_put(key, self._write([plan], tenant, config, True))

    def pub_tensor(
        self, key: str, tensor: Any, config: Any = None, *, tenant: str | None = None
    ) -> int:
        """``put_tensor`` with the replication policy as third argument.

        Example:
            >>> store.pub_tensor("w", tensor, ReplicateConfig(replica_num=2))  # doctest: +SKIP
            0
        """
        return self.put_tensor(key, tensor, tenant=tenant, config=config)

    def upsert_pub_tensor(
        self, key: str, tensor: Any, config: Any = None, *, tenant: str | None = None
    ) -> int:
        """``upsert_tensor`` with the replication policy as third argument.

        Example:
            >>> store.upsert_pub_tensor("a", tensor, config)  # doctest: +SKIP
            0
        """
        return self.upsert_tensor(key, tensor, tenant=tenant, config=config)

    def put_tensor_from(
        self,
        key: str,
        tensor: Any,
        size: int | None = None,
        *,
        tenant: str | None = None,
        config: Any = None,
    ) -> int:
        """Store a tensor, or a registered buffer that holds header and data already.

        Args:
            tensor: a tensor (no headroom before it is needed), or the address of the buffer.
            size: bytes of the buffer; required with an address.

        Returns:
            0.

        Raises:
            ValueError: a bad header (names the field), or an unreadable buffer.
            TypeError: an address without a size, or a tensor with one.
            RuntimeError: the store refused, for example memory that is not registered.

        Example:
            >>> store.put_tensor_from("w", tensor)                  # doctest: +SKIP
            0
            >>> store.put_tensor_from("w", lease.ptr, lease.size)   # doctest: +SKIP
            0
        """
        return self._put_from_either(key, tensor, size, tenant, config, False)

    def upsert_tensor_from(
        self,
        key: str,
        tensor: Any,
        size: int | None = None,
        *,
        tenant: str | None = None,
        config: Any = None,
    ) -> int:
        """``put_tensor_from`` that also removes an older split of ``key``.

        Example:
            >>> store.upsert_tensor_from("a", ptr, size)  # doctest: +SKIP
            0
        """
        return self._put_from_either(key, tensor, size, tenant, config, True)

    def _put_from_either(
        self, key: str, tensor: Any, size: int | None, tenant: str | None, config: Any, up: bool
    ) -> int:
        if is_number(tensor):
            if size is None:
                raise TypeError(f"{key!r}: an address needs the size of its buffer")
            plan = plan_put(key, raw_source(key, tensor, size), None, None)
            return check_put(key, self._put_raw(plan, tenant, config, up))
        if size is not None:
            raise TypeError(f"{key!r}: size is for an address, not for a {type(tensor).__name__}")
        plan = plan_put(key, tensor_source(key, tensor), None, None)
        return check_put(key, self._write([plan], tenant, config, up))

    def batch_put_tensor(
        self,
        keys: Sequence[str],
        tensors: Sequence[Any],
        *,
        tenant: str | None = None,
        config: Any = None,
    ) -> list[int]:
        """Store whole tensors; one status per item, 0 or negative.

        Raises:
            TypeError, ValueError: before anything is written, as ``put_tensor``.

        Example:
            >>> store.batch_put_tensor(["a", "b"], [one, two])      # doctest: +SKIP
            [0, 0]
        """
        keys = keys_of(keys)
        tensors = spread("tensors", tensors, len(keys))
        sources = [tensor_source(key, tensor) for key, tensor in zip(keys, tensors)]
        return self._put_all(keys, sources, None, None, tenant, config, False)

    def batch_upsert_tensor(
        self,
        keys: Sequence[str],
        tensors: Sequence[Any],
        *,
        tenant: str | None = None,
        config: Any = None,
    ) -> list[int]:
        """``batch_put_tensor`` that also removes older splits of the keys.

        Example:
            >>> store.batch_upsert_tensor(["a"], [tensor])  # doctest: +SKIP
            [0]
        """
        keys = keys_of(keys)
        tensors = spread("tensors", tensors, len(keys))
        sources = [tensor_source(key, tensor) for key, tensor in zip(keys, tensors)]
        return self._put_all(keys, sources, None, None, tenant, config, True)

    def batch_pub_tensor(
        self,
        keys: Sequence[str],
        tensors: Sequence[Any],
        config: Any = None,
        *,
        tenant: str | None = None,
    ) -> list[int]:
        """``batch_put_tensor`` with the replication policy as third argument.

        Example:
            >>> store.batch_pub_tensor(["a", "b"], [first, second], config)  # doctest: +SKIP
            [0, 0]
        """
        return self.batch_put_tensor(keys, tensors, tenant=tenant, config=config)

    def batch_upsert_pub_tensor(
        self,
        keys: Sequence[str],
        tensors: Sequence[Any],
        config: Any = None,
        *,
        tenant: str | None = None,
    ) -> list[int]:
        """``batch_upsert_tensor`` with the replication policy as third argument.

        Example:
            >>> store.batch_upsert_pub_tensor(["a"], [tensor], config)  # doctest: +SKIP
            [0]
        """
        return self.batch_upsert_tensor(keys, tensors, tenant=tenant, config=config)

    def batch_put_tensor_from(
        self,
        keys: Sequence[str],
        ptrs: Sequence[int],
        sizes: Sequence[int],
        *,
        tenant: str | None = None,
        config: Any = None,
    ) -> list[int]:
        """Store registered buffers of header and data; one status per item.

        Raises:
            ValueError: lists of different lengths, or a bad header.

        Example:
            >>> store.batch_put_tensor_from(["a"], [lease.ptr], [lease.size])  # doctest: +SKIP
            [0]
        """
        return self._put_all_raw(keys, ptrs, sizes, tenant, config, False)

    def batch_upsert_tensor_from(
        self,
        keys: Sequence[str],
        ptrs: Sequence[int],
        sizes: Sequence[int],
        *,
        tenant: str | None = None,
        config: Any = None,
    ) -> list[int]:
        """``batch_put_tensor_from`` that also removes older splits of the keys.

        Example:
            >>> store.batch_upsert_tensor_from(["a"], [ptr], [size])  # doctest: +SKIP
            [0]
        """
        return self._put_all_raw(keys, ptrs, sizes, tenant, config, True)

    # --- Reads ------------------------------------------------------------------------------

    def get_tensor(
        self,
        key: str,
        *,
        tensor: Any = None,
        framework: str | None = None,
        tenant: str | None = None,
    ) -> Any:
        """Read the tensor stored at ``key``, as it was stored.

        Args:
            tensor: copy into this tensor or array, of any strides, and return it; its shape and
                element type must be equal.
            framework: "torch" or "numpy"; None: torch where it is installed.

        Returns:
            A tensor that owns its memory; None when the key is missing.

        Raises:
            ValueError: ``tensor`` does not fit; nothing was copied.
            RuntimeError: the object is not a valid tensor.

        Example:
            >>> store.get_tensor("w").shape                         # doctest: +SKIP
            torch.Size([4, 4])
        """
        destinations = None if tensor is None else [tensor]
        requests = requests_of(keys_of([key]), [None])
        return self._get_all(requests, destinations, framework, tenant, one_outcome)[0]

    def batch_get_tensor(
        self,
        keys: Sequence[str],
        *,
        tensors: Sequence[Any] | None = None,
        framework: str | None = None,
        tenant: str | None = None,
    ) -> list[Any]:
        """Read tensors as they were stored; None per missing or damaged item.

        Example:
            >>> store.batch_get_tensor(["a", "absent"])             # doctest: +SKIP
            [tensor([1.]), None]
        """
        keys = keys_of(keys)
        requests = requests_of(keys, [None] * len(keys))
        return self._get_all(requests, tensors, framework, tenant, batch_outcome)

    def get_tensor_into(
        self, key: str, ptr: int, size: int, *, tenant: str | None = None
    ) -> TensorReadResult | None:
        """Read header and data into registered memory, without another copy.

        Args:
            ptr: address of the destination.
            size: its bytes: 304 plus the tensor's data at least.

        Returns:
            Where the data is and what it is; None when the key is missing.

        Raises:
            ValueError: the destination is too small.
            RuntimeError: not a valid tensor, or memory that is not registered.

        Example:
            >>> store.get_tensor_into("w", lease.ptr, lease.size).shape  # doctest: +SKIP
            (4, 4)
        """
        requests = requests_of(keys_of([key]), [None], [ptr], [size])
        result: TensorReadResult | None = self._get_all_into(requests, tenant, one_outcome)[0]
        return result

    def batch_get_tensor_into(
        self,
        keys: Sequence[str],
        ptrs: Sequence[int],
        sizes: Sequence[int],
        *,
        tenant: str | None = None,
    ) -> list[TensorReadResult | None]:
        """``get_tensor_into`` for several keys in one call; None per missing or damaged item.

        Example:
            >>> store.batch_get_tensor_into(["a"], [lease.ptr], [lease.size])  # doctest: +SKIP
            [TensorReadResult(...)]
        """
        keys = keys_of(keys)
        count = len(keys)
        addresses, lengths = numbers("ptrs", ptrs, count), numbers("sizes", sizes, count)
        requests = requests_of(keys, [None] * count, addresses, lengths)
        return self._get_all_into(requests, tenant, batch_outcome)


def _rows(
    keys: Sequence[str], ptrs: Sequence[int], sizes: Sequence[int]
) -> list[tuple[str, int, int]]:
    names = keys_of(keys)
    count = len(names)
    return list(zip(names, numbers("ptrs", ptrs, count), numbers("sizes", sizes, count)))
