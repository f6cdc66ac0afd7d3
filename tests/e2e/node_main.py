"""A store in a process of its own: takes pickled calls on stdin, answers on stdout.

Started by the ``node`` fixture with the arguments of ``setup`` as the first message.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from typing import Any, BinaryIO

from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator


class Service:
    """The store's methods, and a few that only make sense inside its process."""

    def __init__(self) -> None:
        self.store = MooncakeDistributedStore()

    def registered_buffer(self, size: int) -> int:
        address = MooncakeHostMemAllocator().alloc(size)
        assert self.store.register_buffer(address, size) == 0
        return address

    def peek(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)

    def poke(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def answer(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, Any]:
        method = getattr(self, name, None) or getattr(self.store, name)
        try:
            return True, method(*args, **kwargs)
        except Exception as error:
            return False, error


def main(calls: BinaryIO, answers: BinaryIO) -> None:
    service = Service()
    while True:
        try:
            name, args, kwargs = pickle.load(calls)
        except EOFError:
            return
        pickle.dump(service.answer(name, args, kwargs), answers)
        answers.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
