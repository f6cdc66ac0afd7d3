"""Mooncake: distributed storage for key-value caches.

The work is in :mod:`mooncake.store`. Importing this package alone loads nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mooncake.store import BufferPool

__all__ = ["BufferPool"]


def __getattr__(name: str) -> Any:
    if name != "BufferPool":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mooncake.store import BufferPool

    globals()[name] = BufferPool
    return BufferPool


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
