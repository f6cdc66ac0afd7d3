"""Writes and removes the payloads of bundles."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for_all
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._numpy import np
from ._bundle_types import (
    AUTO_PARALLEL_MIN_BYTES,
    AUTO_PARALLEL_MIN_CHUNKS,
    COPY_MODES,
    DUPLICATE_REGISTRATION_ERROR,
    MISSING_OBJECT_ERROR,
    PUT_MODES,
    BundleTransferPolicy,
    Chunk,
    Meter,
    Payload,
    succeeded,
)

if TYPE_CHECKING:
    import numpy.typing as npt

_log = logging.getLogger("mooncake.store.structured")
_GROUP_BYTES = 1024 * 1024 * 1024  # Bounds what one batch keeps registered.


@dataclass(frozen=True)
class Part:
    """One chunk and the memory that it is written from."""

    chunk: Chunk
    name: str
    data: npt.NDArray[np.uint8]
    registered: bool  # By the caller.


class NotRegistrable(Exception):
    """The store does not take this kind of memory at all."""


def checked_policy(policy: Any, max_inflight_put: int | None) -> BundleTransferPolicy:
    """The policy to use; the argument wins over the policy's own number.

    Raises:
        ValueError: an unknown mode, or a number below 1.

    Example:
        >>> checked_policy(None, 3).max_inflight_put
        3
    """
    policy = BundleTransferPolicy() if policy is None else policy
    inflight = policy.max_inflight_put if max_inflight_put is None else max_inflight_put
    if isinstance(inflight, bool) or not isinstance(inflight, int) or inflight < 1:
        raise ValueError(f"max_inflight_put must be at least 1, not {inflight!r}")
    copy_mode = getattr(policy, "copy_mode", "auto")
    for name, value, allowed in (
        ("put_mode", policy.put_mode, PUT_MODES),
        ("copy_mode", copy_mode, COPY_MODES),
    ):
        if value not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return BundleTransferPolicy(inflight, policy.put_mode, copy_mode)


def flat_bytes(name: str, value: Any) -> npt.NDArray[np.uint8]:
    """A member's memory as bytes, in place where it is contiguous.

    Raises:
        TypeError: not bytes-like.

    Example:
        >>> flat_bytes("m", b"ab").tolist()
        [97, 98]
    """
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError(f"member {name!r}: arrays of objects are not supported")
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError(f"member {name!r}: a masked array would lose its mask")
        flat: npt.NDArray[np.uint8] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        return flat
    try:
        view = memoryview(value)
    except TypeError as error:
        raise TypeError(
            f"member {name!r} must be bytes-like or an ndarray, not {type(value).__name__}"
        ) from error
    if not view.c_contiguous:
        view = memoryview(view.tobytes())
    if view.nbytes == 0:
        return np.empty(0, np.uint8)
    return np.frombuffer(view.cast("B"), np.uint8)


def parts_of(
    name: str, payload: Payload, data: npt.NDArray[np.uint8], copy: bool, registered: bool
) -> list[Part]:
    """The chunks of one payload with their memory."""
    if copy and data.size:
        data, registered = data.copy(), False
    parts, offset = [], 0
    for chunk in payload.chunks:
        parts.append(Part(chunk, name, data[offset : offset + chunk.size], registered))
        offset += chunk.size
    return parts


def write_parts(
    store: Any,
    parts: Sequence[Part],
    policy: BundleTransferPolicy,
    config: Any,
    meter: Meter,
) -> None:
    """Write every chunk; on failure the caller removes what may have been written.

    Raises:
        RuntimeError: a write failed, with key and status. Nothing stays registered.
    """
    registered = all(
        hasattr(store, name) for name in ("register_buffer", "unregister_buffer", "batch_put_from")
    )
    filled = [part for part in parts if part.data.size] if registered else []
    if filled:
        try:
            _write_registered(store, filled, policy, config, meter)
        except NotRegistrable:
            filled = []
    for part in parts:
        if not filled or not part.data.size:
            options = {} if config is None else {"config": config}
            _check(part.chunk.key, store.put(part.chunk.key, part.data.data, **options))
            meter.add(part.name, part.data.size)


def _write_registered(
    store: Any, parts: Sequence[Part], policy: BundleTransferPolicy, config: Any, meter: Meter
) -> None:
    total = sum(part.data.size for part in parts)
    parallel = policy.put_mode == "parallel" or (
        policy.put_mode == "auto"
        and policy.max_inflight_put >= 2
        and len(parts) >= AUTO_PARALLEL_MIN_CHUNKS
        and total >= AUTO_PARALLEL_MIN_BYTES
    )
    workers = min(policy.max_inflight_put, len(parts)) if parallel else 1
    groups = _groups(parts, workers)
    if workers == 1:
        for index, group in enumerate(groups):
            _write_group(store, group, config, meter, first=index == 0)
        return
    with ThreadPoolExecutor(workers, "mooncake-bundle-put") as pool:
        futures = [pool.submit(_write_group, store, group, config, meter, True) for group in groups]
        # All of them end before the first error goes up: they use the caller's memory.
        wait_for_all(futures)
    errors = [error for error in (future.exception() for future in futures) if error]
    for error in errors:
        if not isinstance(error, NotRegistrable):
            raise error
    if errors:
        raise errors[0]


def _groups(parts: Sequence[Part], workers: int) -> list[list[Part]]:
    """Consecutive chunks, at least one group per worker, of about ``_GROUP_BYTES`` at most."""
    per_worker = -(-len(parts) // workers)
    groups: list[list[Part]] = []
    size = 0
    for part in parts:
        if not groups or len(groups[-1]) >= per_worker or size + part.data.size > _GROUP_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += part.data.size
    return groups


def _write_group(store: Any, group: Sequence[Part], config: Any, meter: Meter, first: bool) -> None:
    held: list[int] = []
    try:
        for part in group:
            if not part.registered:
                _register(store, part, held, first and part is group[0])
        keys = [part.chunk.key for part in group]
        ptrs = [part.data.ctypes.data for part in group]
        options = {} if config is None else {"config": config}
        result = store.batch_put_from(keys, ptrs, [part.data.size for part in group], **options)
    finally:
        for ptr in reversed(held):
            store.unregister_buffer(ptr)
    statuses = [result] * len(keys) if result is None or isinstance(result, int) else list(result)
    if len(statuses) != len(keys):
        raise RuntimeError(f"batch_put_from gave {len(statuses)} results for {len(keys)} keys")
    for part, status in zip(group, statuses):
        _check(part.chunk.key, status)
        meter.add(part.name, part.data.size)


def _register(store: Any, part: Part, held: list[int], first: bool) -> None:
    ptr, size = part.data.ctypes.data, part.data.size
    status = store.register_buffer(ptr, size)
    if succeeded(status):
        held.append(ptr)
    elif status != DUPLICATE_REGISTRATION_ERROR:
        if first:
            # Refused from the start: a store that only takes memory of its own allocator.
            raise NotRegistrable
        raise RuntimeError(f"registering {size} bytes of {part.name!r} failed: status {status}")


def _check(key: str, status: Any) -> None:
    if not succeeded(status):
        raise RuntimeError(f"writing {key!r} failed with status {status}")


def remove_keys(store: Any, keys: Sequence[str]) -> list[str]:
    """Remove keys in one batch, the failed ones again one by one; returns what is left."""
    statuses: list[Any]
    try:
        statuses = list(_forced(store.batch_remove, list(keys)))
    except (AttributeError, RuntimeError):
        statuses = []
    if len(statuses) != len(keys):
        statuses = [-1] * len(keys)
    failed = [key for key, status in zip(keys, statuses) if not _gone(status)]
    return [key for key in failed if not _remove_one(store, key)]


def _remove_one(store: Any, key: str) -> bool:
    try:
        if _gone(_forced(store.remove, key)):
            return True
        return hasattr(store, "is_exist") and not store.is_exist(key)
    except KeyError:
        return True
    except RuntimeError as error:
        _log.warning("removing %r failed: %s", key, error)
        return False


def _forced(call: Any, what: Any) -> Any:
    try:
        return call(what, force=True)
    except TypeError:
        return call(what)


def _gone(status: Any) -> bool:
    return succeeded(status) or status == MISSING_OBJECT_ERROR
