"""The same :class:`BufferPool` as in :mod:`mooncake.store`."""

from __future__ import annotations

from mooncake.store import BufferPool

__all__ = ["BufferPool"]
