"""NumPy on first use: the package imports without it, and says what to install if it is missing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _LazyNumpy:
        """Resolves attributes on the real module and keeps them."""

        def __getattr__(self, name: str) -> Any:
            try:
                module = importlib.import_module("numpy")
            except ImportError as error:
                raise ImportError(
                    "tensors and structured objects need NumPy: "
                    "pip install 'mooncake-store[structured]'"
                ) from error
            value = getattr(module, name)
            setattr(self, name, value)
            return value

    np = _LazyNumpy()
