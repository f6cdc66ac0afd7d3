"""What the tensor methods share: the store's calls, and how outcomes reach the caller."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ._tensor_format import TensorFormatError
from ._tensor_layout import Request
from ._tensor_parallel import check_key, target_of, unsigned

_log = logging.getLogger("mooncake.store.tensors")
_LOG_INTERVAL_S = 1.0


if TYPE_CHECKING:
    # With its types: names repeated here would hide those of the store class.
    from ._native import native

    class StoreCalls(native.NativeStore):
        """The calls of the store that tensor methods build on."""

else:

    class StoreCalls:
        """The calls of the store that tensor methods build on; the store class defines them."""


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


def keys_of(keys: Iterable[str], name: str = "keys") -> list[str]:
    """Checked keys of a batch.

    Raises:
        TypeError: one text instead of several, or a key that is no text.
        ValueError: a key that is empty or too long.
    """
    names = _items(name, keys)
    for index, key in enumerate(names):
        check_key(f"{name}[{index}]", key)
    return names


def spread(name: str, values: Iterable[Any] | None, count: int) -> list[Any]:
    """A per-item list, or ``count`` times None.

    Raises:
        TypeError: not a list.
        ValueError: the length is not ``count``.
    """
    if values is None:
        return [None] * count
    items = _items(name, values)
    if len(items) != count:
        raise ValueError(f"{name} has {len(items)} items for {count} keys")
    return items


def _items(name: str, values: Iterable[Any]) -> list[Any]:
    if isinstance(values, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"{name} must be a list, not {type(values).__name__}")
    try:
        return list(values)
    except TypeError as error:
        raise TypeError(f"{name} must be a list, not {type(values).__name__}") from error


def numbers(name: str, values: Iterable[Any] | None, count: int) -> list[int]:
    """Addresses or sizes, one for each of ``count`` keys.

    Raises:
        TypeError, ValueError: not a list of that length, or an item that is no such number.
    """
    if values is None:
        raise TypeError(f"{name} must be a list, not None")
    items = spread(name, values, count)
    return [unsigned(f"{name}[{index}]", value) for index, value in enumerate(items)]


def requests_of(
    keys: Sequence[str],
    targets: Sequence[Any],
    ptrs: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
) -> list[Request]:
    """Read requests for checked keys.

    Raises:
        TypeError, ValueError: a bad target, address or size.
    """
    requests = []
    for index, (key, target) in enumerate(zip(keys, targets)):
        mode, axes = target_of(target)
        request = Request(key, mode, axes)
        if ptrs is not None and sizes is not None:
            request.ptr = unsigned("ptr", ptrs[index])
            request.size = unsigned("size", sizes[index])
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
