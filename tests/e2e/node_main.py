"""A store in a process of its own: takes pickled calls on stdin, answers on stdout.

Started by the ``node`` fixture with the arguments of ``setup`` as the first message.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator
from support import Load, value_of


class Service:
    """The store's methods, and a few that only make sense inside its process."""

    def __init__(self) -> None:
        self.store = MooncakeDistributedStore()
        self.load: Load | None = None

    def registered_buffer(self, size: int) -> int:
        address = MooncakeHostMemAllocator().alloc(size)
        assert self.store.register_buffer(address, size) == 0
        return address

    def peek(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size)

    def poke(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def put_all(self, keys: list[str], version: int = 0, size: int = 1000) -> list[int]:
        return [self.store.put(key, value_of(key, version, size)) for key in keys]

    def read_all(self, keys: list[str], version: int = 0, size: int = 1000) -> dict[str, list[str]]:
        """The keys by what reading them gave: ``right``, ``missing`` or ``wrong``."""
        found: dict[str, list[str]] = {"right": [], "missing": [], "wrong": []}
        for key, value in zip(keys, self.store.batch_get(keys)):
            right = value == value_of(key, version, size)
            found["missing" if value == b"" else "right" if right else "wrong"].append(key)
        return found

    def run(self, job: Callable[..., Any], *args: Any) -> Any:
        """``job(store, *args)`` in this process; a function of case_jobs.py."""
        return job(self.store, *args)

    def start_load(self, prefix: str, threads: int = 2, keys: int = 20, size: int = 4000) -> None:
        self.load = Load(self.store, prefix, threads, keys, size)

    def load_so_far(self) -> dict[str, Any]:
        assert self.load is not None
        return self.load.report

    def stop_load(self) -> dict[str, Any]:
        return {} if self.load is None else self.load.stop()

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
            service.stop_load()
            return
        pickle.dump(service.answer(name, args, kwargs), answers)
        answers.flush()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
