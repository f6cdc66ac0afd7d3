"""Loads the native module, or says why it cannot be loaded."""

from __future__ import annotations

try:
    from mooncake import _store as native
except ImportError as reason:
    raise ImportError(
        f"mooncake.store cannot load its native module mooncake._store: {reason}. Install "
        "the mooncake-store wheel for this Python version, or build it with "
        "`pip install .` (MOONCAKE_BUILD_PYTHON=ON)"
    ) from reason

__all__ = ["native"]
