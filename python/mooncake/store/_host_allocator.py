"""MooncakeHostMemAllocator: memory for buffers that are registered for long."""

from __future__ import annotations

import ctypes
import mmap
import operator
import os
import threading
from collections.abc import Callable

_PAGES = {"2M": 2 << 20, "2MB": 2 << 20, "2097152": 2 << 20}
_PAGES.update({"1G": 1 << 30, "1GB": 1 << 30, "1073741824": 1 << 30})
_TRUE = ("1", "true", "t", "yes", "y", "on")
_FALSE = ("0", "false", "f", "no", "n", "off")


class HostAllocationError(RuntimeError, MemoryError):
    """The kernel has no such memory; the text has the size and what to change."""


class MooncakeHostMemAllocator:
    """Allocates memory that stays where it is until it is freed, for ``register_buffer``.

    The memory is shared and sealed against shrinking, so that a daemon can map it too. Any
    allocator of the process may free what another one allocated; dropping an allocator frees
    nothing.

    Args:
        use_hugepage: use huge pages, which must be reserved. None: true if ``hugepage_size`` is
            given, else what ``MC_STORE_USE_HUGEPAGE`` and ``MC_STORE_HUGEPAGE_SIZE`` say.
        hugepage_size: "2MB" (the default) or "1GB", or the same in bytes.
    """

    def __init__(
        self, use_hugepage: bool | None = None, hugepage_size: int | str | None = None
    ) -> None:
        if use_hugepage is None and hugepage_size is None:
            use_hugepage = _flag_from("MC_STORE_USE_HUGEPAGE")
            hugepage_size = os.environ.get("MC_STORE_HUGEPAGE_SIZE") or None
        page = _page_size(hugepage_size)
        if use_hugepage is None:
            use_hugepage = hugepage_size is not None
        self._page = page if use_hugepage else 0
        self._alloc, self._free = _functions()

    def alloc(self, size: int) -> int:
        """Allocate ``size`` bytes, zeroed, at a page boundary. Returns the address.

        Raises:
            ValueError: ``size`` is not positive.
            RuntimeError: the kernel refuses; the text says what to change.

        Example:
            >>> ptr = MooncakeHostMemAllocator().alloc(2 << 20)  # doctest: +SKIP
        """
        try:
            size = operator.index(size)
        except TypeError:
            raise TypeError(f"alloc: size must be int, got {type(size).__name__}") from None
        if size < 1:
            raise ValueError(f"alloc: size must be at least 1, got {size}")
        try:
            return self._alloc(size, self._page)
        except RuntimeError as refused:
            raise HostAllocationError(str(refused)) from None

    def free(self, ptr: int) -> int:
        """Give back what ``alloc`` returned. Returns 0; ``KeyError`` for any other address.

        Example:
            >>> MooncakeHostMemAllocator().free(ptr)  # doctest: +SKIP
            0
        """
        return self._free(ptr)


def _flag_from(variable: str) -> bool | None:
    """What the environment says, as ``setup`` reads it; None: nothing."""
    given = os.environ.get(variable, "")
    text = given.strip().lower()
    if text and text not in _TRUE and text not in _FALSE:
        raise ValueError(f"{variable} is {given!r}; allowed: true or false (1/0, yes/no, on/off)")
    return text in _TRUE if text else None


def _page_size(size: int | str | None) -> int:
    text = "2MB" if size is None else str(size).strip().upper()
    if isinstance(size, bool) or text not in _PAGES:
        raise ValueError(f"hugepage_size is {size!r}; allowed: '2MB' or '1GB'")
    return _PAGES[text]


def _functions() -> tuple[Callable[[int, int], int], Callable[[int], int]]:
    try:
        from mooncake import _store
    except ImportError:
        return _mmap_alloc, _mmap_free
    return _store.host_alloc, _store.host_free


# Without the native module: private memory in ordinary pages.
_lock = threading.Lock()
_mappings: dict[int, tuple[mmap.mmap, ctypes.c_char]] = {}


def _mmap_alloc(size: int, page: int) -> int:
    if page:
        raise RuntimeError("huge pages need the native module mooncake._store")
    try:
        mapping = mmap.mmap(-1, size)
    except (OSError, OverflowError, ValueError) as reason:
        raise RuntimeError(f"cannot allocate {size} bytes: {reason}; ask for less") from None
    first = ctypes.c_char.from_buffer(mapping)
    address = ctypes.addressof(first)
    with _lock:
        _mappings[address] = (mapping, first)
    return address


def _mmap_free(ptr: int) -> int:
    with _lock:
        mapping, first = _mappings.pop(ptr)
    del first
    mapping.close()
    return 0
