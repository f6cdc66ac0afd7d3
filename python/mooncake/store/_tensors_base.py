"""What the tensor methods share: the store's calls, and how outcomes reach the caller."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._tensor_format import TensorFormatError
from ._tensor_layout import Request
from ._tensor_parallel import target_of

_log = logging.getLogger("mooncake.store.tensors")
_LOG_INTERVAL_S = 1.0


class StoreCalls:
    """The calls of the store that tensor methods build on; the store class defines them."""

    if TYPE_CHECKING:

        def put(self, *args: Any, **kwargs: Any) -> Any: ...
        def put_from(self, *args: Any, **kwargs: Any) -> Any: ...
        def put_parts(self, *args: Any, **kwargs: Any) -> Any: ...
        def get_buffer(self, *args: Any, **kwargs: Any) -> Any: ...
        def get_size(self, *args: Any, **kwargs: Any) -> Any: ...
        def batch_get_buffer(self, *args: Any, **kwargs: Any) -> Any: ...
        def batch_get_into(self, *args: Any, **kwargs: Any) -> Any: ...
        def get_into_ranges(self, *args: Any, **kwargs: Any) -> Any: ...
        def batch_is_exist(self, *args: Any, **kwargs: Any) -> Any: ...
        def batch_remove(self, *args: Any, **kwargs: Any) -> Any: ...
        def register_buffer(self, *args: Any, **kwargs: Any) -> Any: ...
        def unregister_buffer(self, *args: Any, **kwargs: Any) -> Any: ...


class _Limiter:
    """At most one line a second; says how many were left out."""

    def __init__(self) -> None:
        self._next = 0.0
        self._left_out = 0

    def warn(self, text: str) -> None:
        now = time.monotonic()
        if now < self._next:
            self._left_out += 1
            return
        left_out, self._left_out, self._next = self._left_out, 0, now + _LOG_INTERVAL_S
        _log.warning("%s%s", text, f" (and {left_out} more)" if left_out else "")


_limiter = _Limiter()


def check_put(key: str, status: int) -> int:
    """0, or the failure as an exception.

    Raises:
        RuntimeError: names key and status.
    """
    if status != 0:
        raise RuntimeError(f"writing the tensor {key!r} failed with status {status}")
    return 0


def spread(name: str, values: Sequence[Any] | None, count: int) -> list[Any]:
    """A per-item list, or ``count`` times None.

    Raises:
        ValueError: the length is not ``count``.
    """
    if values is None:
        return [None] * count
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} items for {count} keys")
    return list(values)


def requests_of(
    keys: Sequence[str],
    targets: Sequence[Any],
    ptrs: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
) -> list[Request]:
    """Checked read requests.

    Raises:
        TypeError, ValueError: a key that is no text, or empty; a bad target.
    """
    requests = []
    for index, (key, target) in enumerate(zip(keys, targets)):
        if not isinstance(key, str):
            raise TypeError(f"keys[{index}] must be str, not {type(key).__name__}")
        if not key:
            raise ValueError(f"keys[{index}] is empty")
        mode, axes = target_of(target)
        request = Request(key, mode, axes)
        if ptrs is not None and sizes is not None:
            request.ptr, request.size = int(ptrs[index]), int(sizes[index])
        requests.append(request)
    return requests


def one_outcome(request: Request) -> Any:
    """The result of a single read; None for a miss.

    Raises:
        RuntimeError, ValueError: what went wrong.
    """
    if isinstance(request.outcome, Exception):
        raise request.outcome
    return request.outcome


def batch_outcome(request: Request) -> Any:
    """The result of one item of a batch; None for a miss and for damaged data (logged).

    Raises:
        ValueError: the caller's own mistake, for example a destination that is too small.
    """
    error = request.outcome
    if not isinstance(error, Exception):
        return error
    if isinstance(error, ValueError) and not isinstance(error, TensorFormatError):
        raise error
    _limiter.warn(str(error))
    return None
