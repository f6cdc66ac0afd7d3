"""One process of the demo: ``node.py storage|writer|reader``, JSON lines in and out.

The first line in is its settings.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

import numpy as np
import workload
from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator


def say(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


class Timer:
    """Durations of calls, and of nothing else."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds.append(time.perf_counter() - self._start)

    def summary(self, moved: int = 0) -> dict[str, float]:
        ordered = sorted(self.seconds) or [0.0]
        total = sum(ordered)
        return {
            "calls": len(self.seconds),
            "p50_ms": ordered[(len(ordered) - 1) // 2] * 1e3,
            "p99_ms": ordered[int((len(ordered) - 1) * 0.99)] * 1e3,
            "gib_per_s": moved / 2**30 / total if total else 0.0,
        }


class Client:
    """A store without storage of its own, and registered memory for one request."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.layers: int = settings["layers"]
        self.size = workload.value_size(self.layers)
        self.store = MooncakeDistributedStore()
        self.store.setup({**settings["store"], "routed_writes": True})
        self.requests = workload.Requests(settings["documents"])
        pages = max(len(r) for r in self.requests.writer + self.requests.reader)
        self._bytes = 2 * pages * self.size
        self._address = MooncakeHostMemAllocator().alloc(self._bytes)
        if self.store.register_buffer(self._address, self._bytes) != 0:
            raise RuntimeError("the buffer cannot be registered")
        memory = (ctypes.c_ubyte * self._bytes).from_address(self._address)
        self.memory = np.frombuffer(memory, np.uint8)

    def place(self, item: int) -> np.ndarray:
        return self.memory[item * self.size : (item + 1) * self.size]

    def pointers(self, count: int) -> list[int]:
        return [self._address + item * self.size for item in range(count)]


def keys_of(pages: list[workload.Page]) -> list[str]:
    return [key for page in pages for key in page.keys]


def run_storage(settings: dict[str, Any]) -> None:
    store = MooncakeDistributedStore()
    store.setup({**settings["store"], "global_segment_size": settings["segment_bytes"]})
    say("ready")
    sys.stdin.read()  # Until the demo is over, however that comes.
    store.close()


def run_writer(settings: dict[str, Any]) -> None:
    client = Client(settings)
    requests = client.requests
    say("ready", source=requests.source, tokens=requests.token_count)
    sys.stdin.readline()
    put, exist = Timer(), Timer()
    written = failed = 0
    for number, pages in enumerate(requests.writer):
        with exist:
            present = client.store.batch_is_exist(keys_of(pages))
        fresh = [p for i, p in enumerate(pages) if min(present[2 * i : 2 * i + 2]) != 1]
        for i, page in enumerate(fresh):
            workload.fill(page, False, client.layers, client.place(2 * i))
            workload.fill(page, True, client.layers, client.place(2 * i + 1))
        keys = keys_of(fresh)
        with put:
            codes = client.store.batch_put_from(
                keys, client.pointers(len(keys)), [client.size] * len(keys)
            )
        failed += sum(code != 0 for code in codes)
        written += len(keys)
        say("progress", done=number + 1, total=len(requests.writer))
    moved = written * client.size
    say(
        "result", keys=written, bytes=moved, failed=failed,
        put=put.summary(moved), exist=exist.summary(),
    )  # fmt: skip
    client.store.close()


def run_reader(settings: dict[str, Any]) -> None:
    """Serves request n once the writer has said that its own n-th is written."""
    client = Client(settings)
    requests = client.requests
    say("ready")
    exist, get = Timer(), Timer()
    wanted = hits = wrong = lost = 0
    expected_bytes = np.empty(client.size, np.uint8)
    known: set[bytes] = set()
    for number, pages in enumerate(requests.reader):
        if not sys.stdin.readline():
            return
        known.update(page.hash for page in requests.writer[number])
        with exist:
            present = client.store.batch_is_exist(keys_of(pages))
        there = [min(present[2 * i : 2 * i + 2]) == 1 for i in range(len(pages))]
        prefix = pages[: there.index(False)] if False in there else pages
        keys = keys_of(prefix)
        with get:
            sizes = client.store.batch_get_into(
                keys, client.pointers(len(keys)), [client.size] * len(keys)
            )
        lost += sum(size != client.size for size in sizes)
        lost += sum(page.hash in known for page in pages[len(prefix) :]) * 2
        for item, size in enumerate(sizes):
            if size != client.size:
                continue
            workload.fill(prefix[item // 2], item % 2 == 1, client.layers, expected_bytes)
            wrong += int(np.count_nonzero(client.place(item) != expected_bytes))
        wanted += 2 * len(pages)
        hits += len(keys)
        say("progress", done=number + 1, total=len(requests.reader))
    moved = hits * client.size
    say(
        "result", keys=hits, wanted=wanted, bytes=moved, wrong=wrong, lost=lost,
        get=get.summary(moved), exist=exist.summary(),
    )  # fmt: skip
    client.store.close()


if __name__ == "__main__":
    roles = {"storage": run_storage, "writer": run_writer, "reader": run_reader}
    roles[sys.argv[1]](json.loads(sys.stdin.readline()))
