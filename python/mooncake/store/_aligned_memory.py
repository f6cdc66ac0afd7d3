"""Anonymous memory at a chosen alignment, unmapped only when told to.

``mmap.mmap`` cannot be used for registered memory: it chooses its own alignment and unmaps itself
when the interpreter shuts down, while a transfer may still use the pages.
"""

from __future__ import annotations

import ctypes
import mmap
import os

__all__ = ["AlignedMemory"]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.restype = ctypes.c_int
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value
_ADDRESS_SPACE = 1 << 47


class AlignedMemory:
    """Private zeroed pages that start at a multiple of ``alignment``.

    The pages stay mapped until ``unmap()``: dropping the object leaks them on purpose, because the
    owner decides when nobody (a transfer, a registration) can reach them any more.

    Args:
        size: bytes wanted, at least 1; rounded up to whole pages.
        alignment: bytes, a power of two.

    Raises:
        MemoryError: the kernel gives no such mapping; the text names size and errno.

    Example:
        >>> memory = AlignedMemory(4096, 1 << 20)
        >>> memory.address % (1 << 20)
        0
        >>> memory.unmap()
    """

    __slots__ = ("address", "size")

    def __init__(self, size: int, alignment: int) -> None:
        page = mmap.PAGESIZE
        length = -(-size // page) * page
        alignment = max(alignment, page)
        span = length + alignment - page
        if span >= _ADDRESS_SPACE:
            raise MemoryError(f"cannot map {size} bytes: more than the address space")
        base = _libc.mmap(
            None,
            span,
            mmap.PROT_READ | mmap.PROT_WRITE,
            mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
            -1,
            0,
        )
        if base is None or base == _MAP_FAILED:
            reason = os.strerror(ctypes.get_errno())
            raise MemoryError(f"cannot map {size} bytes aligned to {alignment}: {reason}")
        address = -(-base // alignment) * alignment
        _unmap(base, address - base)
        _unmap(address + length, base + span - address - length)
        self.address: int = address
        self.size: int = length

    def unmap(self) -> None:
        """Give the pages back to the kernel; a second call does nothing.

        Example:
            >>> AlignedMemory(1, 64).unmap()
        """
        size, self.size = self.size, 0
        _unmap(self.address, size)


def _unmap(address: int, size: int) -> None:
    if size > 0:
        _libc.munmap(address, size)
