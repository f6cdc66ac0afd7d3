"""What the tests of the user cases let other processes do: ``node.run(job, ...)``."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import random
import resource
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mooncake.store import MooncakeHostMemAllocator, ReplicateConfig
from support import value_of


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """What ``work(0)``, ``work(1)``, ... gave, each on its own thread; raises what one raised."""
    answers: list[Any] = [None] * count
    failures: list[BaseException] = []
    start = threading.Barrier(count)

    def one(number: int) -> None:
        try:
            start.wait()
            answers[number] = work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return answers


def filled_buffer(store: Any, values: list[bytes]) -> list[int]:
    """Registered memory that holds the values; where each of them begins."""
    size = max(1, sum(map(len, values)))
    start = MooncakeHostMemAllocator().alloc(size)
    assert store.register_buffer(start, size) == 0
    places = []
    for value in values:
        ctypes.memmove(start, value, len(value))
        places.append(start)
        start += len(value)
    return places


def put_at(store: Any, owner: str, keys: list[str], size: int, version: int = 0) -> int:
    """Puts the keys on one owner, by name."""
    config = ReplicateConfig(preferred_storage_owners=[owner], prefer_local=False)
    return int(store.put_batch(keys, [value_of(key, version, size) for key in keys], config))


def put_zeros(store: Any, key: str, size: int) -> int:
    return int(store.put(key, bytes(size)))


def put_batches(store: Any, batches: list[list[str]], size: int) -> list[list[int]]:
    """Each batch from a thread of its own, by ``batch_put_from``; the status of each item."""
    values = [[value_of(key, 0, size) for key in batch] for batch in batches]
    places = [filled_buffer(store, batch) for batch in values]
    return in_threads(
        len(batches),
        lambda n: list(store.batch_put_from(batches[n], places[n], [size] * len(batches[n]))),
    )


def put_distinct(store: Any, prefix: str, first: int, count: int, size: int) -> dict[int, int]:
    """Distinct keys with one small value; how often each status came."""
    (place,) = filled_buffer(store, [value_of(prefix, 0, size)])
    seen: dict[int, int] = {}
    for start in range(first, first + count, 2000):
        keys = [f"{prefix}/{n:057d}" for n in range(start, min(start + 2000, first + count))]
        for code in store.batch_put_from(keys, [place] * len(keys), [size] * len(keys)):
            seen[code] = seen.get(code, 0) + 1
    store.unregister_buffer(place)
    return seen


def race_to_insert(
    store: Any, keys: list[str], name: int, size: int, at_s: float, batch: int
) -> tuple[list[int], list[bytes]]:
    """Inserts the keys where absent, so many a call, from a moment on that all racers know.

    The status of each, and what a read right after its insert gave.
    """
    places = filled_buffer(store, [value_of(key, name, size) for key in keys])
    time.sleep(max(0.0, at_s - time.time()))
    codes, seen = [], []
    for first in range(0, len(keys), batch):
        some = keys[first : first + batch]
        codes += store.batch_put_from(some, places[first : first + batch], [size] * len(some))
        seen += store.batch_get(some)
    return codes, seen


def read_for_ever(store: Any, threads: int, keys: list[str], size: int) -> None:
    """Starts threads that read until the process ends; ``reads_so_far`` tells what they saw."""
    seen = {"right": 0, "missing": 0, "wrong": 0}
    lock = threading.Lock()

    def read() -> None:
        while True:
            key = random.choice(keys)
            value = store.get(key)
            kind = "missing" if value == b"" else "right"
            if value and value != value_of(key, 0, size):
                kind = "wrong"
            with lock:
                seen[kind] += 1

    store.reads_seen = seen
    for _ in range(threads):
        threading.Thread(target=read, daemon=True).start()


def reads_so_far(store: Any) -> dict[str, int]:
    return dict(store.reads_seen)


def hold_the_interpreter(store: Any, seconds: float) -> None:
    """Lets no Python of this process run meanwhile."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def one_read(store: Any, key: str, size: int, version: int) -> str:
    """A read into registered memory: ``right``, ``failed`` or what is wrong about it."""
    target = MooncakeHostMemAllocator().alloc(size)
    assert store.register_buffer(target, size) == 0
    answer = store.get_into(key, target, size)
    if answer < 0:
        return "failed"
    right = ctypes.string_at(target, size) == value_of(key, version, size)
    return "right" if right else f"{answer} bytes, not those of the key"


def descriptors_of_peers(port: int) -> list[int]:
    """Of this process's own TCP connections to a port on this host."""
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[2].rpartition(":")[2], 16) == port:
            inodes.add(f"socket:[{fields[9]}]")
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") in inodes:
                found.append(int(name))
        except OSError:
            continue  # Closed meanwhile.
    return found


def steady_writes(store: Any, prefix: str, seconds: float, size: int) -> dict[str, Any]:
    """Puts one key after the other; which, and the 99th percentile of the time of a put."""
    value = bytes(size)
    keys: list[str] = []
    times: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        keys.append(f"{prefix} {len(keys)}")
        start = time.monotonic()
        assert store.put(keys[-1], value) == 0
        times.append(time.monotonic() - start)
    return {"keys": keys[-2000:], "p99_s": sorted(times)[len(times) * 99 // 100]}


def limit_descriptors(store: Any, count: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def fill_with_pattern(store: Any, address: int, size: int) -> str:
    ctypes.memset(address, 0xA5, size)
    return digest_at(store, address, size)


def digest_at(store: Any, address: int, size: int) -> str:
    return hashlib.blake2b((ctypes.c_char * size).from_address(address)).hexdigest()


def sockets_at_port(port: int) -> dict[int, bool]:
    """This process's own sockets that are bound to the port; whether each of them listens."""
    inodes = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port:
            inodes[f"socket:[{fields[9]}]"] = fields[3] == "0A"
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/self/fd/{name}")
            if link in inodes:
                found[int(name)] = inodes[link]
    return found


def close_the_port(store: Any, port: int) -> None:
    """From now on the node serves nobody, while everything else of it goes on."""
    descriptors = sockets_at_port(port)
    (listener,) = [descriptor for descriptor, listens in descriptors.items() if listens]
    store.kept_listener = socket.socket(fileno=os.dup(listener))
    for descriptor in [listener, *(each for each in descriptors if each != listener)]:
        with socket.socket(fileno=os.dup(descriptor)) as twin, contextlib.suppress(OSError):
            twin.shutdown(socket.SHUT_RDWR)


def open_the_port_again(store: Any) -> None:
    store.kept_listener.listen(128)


def set_up_and_use(store: Any, settings: dict[str, Any], key: str) -> dict[str, Any]:
    """Sets the store up beside a thread that counts; then at once one put and one get."""
    done, ticks = threading.Event(), 0

    def count() -> None:
        nonlocal ticks
        while not done.wait(0.02):
            ticks += 1

    counter = threading.Thread(target=count)
    counter.start()
    start = time.monotonic()
    assert store.setup(settings) == 0
    seconds = time.monotonic() - start
    put, got = store.put(key, value_of(key)), store.get(key)
    done.set()
    counter.join()
    return {"put": put, "right": got == value_of(key), "ticks": ticks, "seconds": seconds}
