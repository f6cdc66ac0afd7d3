"""Makes the pure-Python modules importable with or without the native module."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

from hypothesis import settings

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent.parent / "python" / "mooncake"

sys.path.insert(0, str(HERE))

# Deadlines measure the machine, not the code.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


def _stand_in(name: str, folder: Path) -> None:
    """A package object over the source folder whose __init__ is not run."""
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module


try:
    importlib.import_module("mooncake.store")
except (ImportError, OSError):
    for loaded in [name for name in sys.modules if name.split(".")[0] == "mooncake"]:
        del sys.modules[loaded]
    for stand_in in ("mooncake", "mooncake.store", "mooncake.store.rs"):
        _stand_in(stand_in, PACKAGE.joinpath(*stand_in.split(".")[1:]))
