"""The same names as in :mod:`mooncake.store`."""

from __future__ import annotations

from typing import Any

from mooncake import store as _store
from mooncake.store import *  # noqa: F403

__all__ = [*_store.__all__]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in _store.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_store, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_store.__all__})
