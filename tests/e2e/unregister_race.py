"""Reads into registered memory while another thread unregisters and unmaps it.

usage: unregister_race.py METADATA_URL

A process of its own, as a fault ends it with SIGSEGV.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time

from mooncake.store import MooncakeDistributedStore
from services import settings_for

MIB = 1 << 20
ADDRESS = 0x600000000000  # Always the same: the batch's lists never change.
COUNT = 500  # Long enough a batch that its end is checked while its begin is used.
SECONDS = 3.0

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def map_and_register(store: MooncakeDistributedStore) -> None:
    read_write, private_anonymous_fixed = 3, 0x100022
    assert libc.mmap(ADDRESS, MIB, read_write, private_anonymous_fixed, -1, 0) == ADDRESS
    assert store.register_buffer(ADDRESS, MIB) == 0


def main(url: str) -> None:
    store = MooncakeDistributedStore()
    store.setup(settings_for(url))
    map_and_register(store)
    keys = [f"k{i}" for i in range(COUNT)]
    ptrs = [ADDRESS + i % 200 * 4096 for i in range(COUNT)]
    sizes = [64] * COUNT
    store.put_batch(keys, [b"x" * 64] * COUNT)
    over = threading.Event()
    done: list[int] = []

    def work() -> None:
        while not over.is_set():
            done.append(store.batch_get_into(keys, ptrs, sizes)[0])

    worker = threading.Thread(target=work)
    worker.start()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(0.001)
        assert store.unregister_buffer(ADDRESS) == 0
        libc.munmap(ADDRESS, MIB)
        time.sleep(0.002)
        map_and_register(store)
    over.set()
    worker.join()
    assert any(result >= 0 for result in done)
    store.close()
    print("survived")


if __name__ == "__main__":
    main(*sys.argv[1:])
