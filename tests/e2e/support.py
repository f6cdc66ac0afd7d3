"""What both the tests and the processes they start use: values, load, a look into a process."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MIB = 1 << 20

# What owns storage, and what only uses that of others: with the times of ``quick_node``.
OWNS = {"global_segment_size": 32 * MIB, "routed_writes": True}
ROUTES = {"global_segment_size": 0, "labels": {"storage": "false"}, "routed_writes": True}

# The long forms of the tests, which take minutes each.
LONG = os.environ.get("MC_E2E_LONG", "") not in ("", "0")


def eventually(
    check: Callable[[], Any], timeout_s: float = 20.0, what: Callable[[], str] | None = None
) -> Any:
    """The first true answer of ``check``; fails when there is none in time, and says ``what``."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = check()
        if answer:
            return answer
        late = time.monotonic() >= deadline
        assert not late, f"not within {timeout_s} s" + (f": {what()}" if what else "")
        time.sleep(0.02)


def settle(seconds: float) -> None:
    """Lets time pass in which something may go on, or go wrong, that no condition tells of."""
    time.sleep(seconds)


def quick_node(lease_s: float, stall_s: float = 2.0) -> dict[str, Any]:
    """Settings of a node that notices losses within seconds."""
    return {
        "lease_ttl_ms": int(lease_s * 1000),
        "transfer_stall_timeout_ms": int(stall_s * 1000),
        "request_timeout_ms": 20_000,
        "local_buffer_size": MIB,
    }


def value_of(key: str, version: int = 0, size: int = 1000) -> bytes:
    """Bytes that follow from key, version and offset, so that a stray one shows."""
    return hashlib.shake_128(f"{key}\0{version}".encode("utf-8", "surrogatepass")).digest(size)


class Load:
    """Threads that put keys of their own, read them back and check every byte.

    One thread alone writes a key, so a read right after a put has one right answer.
    """

    def __init__(self, store: Any, prefix: str, threads: int, keys: int, size: int) -> None:
        self._store, self._size = store, size
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._times: deque[float] = deque(maxlen=100_000)
        self.report: dict[str, Any] = {
            "calls": 0,
            "failed_puts": 0,
            "most_failed_puts": 0,  # Of one thread.
            "misses": 0,
            "wrong": [],
            "errors": [],
            "slowest_s": 0.0,
        }
        self._threads = [
            threading.Thread(target=self._run, args=([f"{prefix}/{t}/{k}" for k in range(keys)],))
            for t in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> dict[str, Any]:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        times = sorted(self._times)
        return {**self.report, "p99_s": times[len(times) * 99 // 100] if times else 0.0}

    def _run(self, keys: list[str]) -> None:
        possible: dict[str, list[bytes]] = {key: [] for key in keys}
        version = failed = 0
        while not self._stop.is_set():
            key, version = random.choice(keys), version + 1
            try:
                failed += not self._round(key, value_of(key, version, self._size), possible)
            except Exception as error:
                self._note("errors", repr(error))
                return
            with self._lock:
                most = max(self.report["most_failed_puts"], failed)
                self.report["most_failed_puts"] = most

    def _round(self, key: str, value: bytes, possible: dict[str, list[bytes]]) -> bool:
        """Whether the put worked."""
        done = self._timed(self._store.put, key, value) == 0
        if done:
            possible[key] = [value]
        else:  # It may still have taken effect.
            possible[key].append(value)
            self._count("failed_puts")
        got = self._timed(self._store.get, key)
        if got == b"":
            self._count("misses")
        elif got not in possible[key]:
            self._note("wrong", f"{key}: {len(got)} bytes")
        return done

    def _timed(self, call: Callable[..., Any], *args: Any) -> Any:
        start = time.monotonic()
        answer = call(*args)
        taken = time.monotonic() - start
        with self._lock:
            self._times.append(taken)
            self.report["calls"] += 1
            self.report["slowest_s"] = max(self.report["slowest_s"], taken)
        return answer

    def _count(self, name: str) -> None:
        with self._lock:
            self.report[name] += 1

    def _note(self, name: str, text: str) -> None:
        with self._lock:
            self.report[name].append(text)


class ProcessView:
    """What the kernel says about a process."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def descriptors(self) -> int:
        return len(os.listdir(self._folder / "fd"))

    def threads(self) -> int:
        return len(os.listdir(self._folder / "task"))

    def mappings(self) -> int:
        return (self._folder / "maps").read_text().count("\n")

    def rss(self) -> int:
        pages = int((self._folder / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu_s(self) -> float:
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def at_most(limit_s: float) -> Iterator[None]:
    """The block takes no longer."""
    start = time.monotonic()
    yield
    taken = time.monotonic() - start
    assert taken <= limit_s, f"{taken:.1f} s instead of {limit_s} s"


def rate_beside(call: Callable[[], Any]) -> float:
    """Ticks a second of another thread while ``call`` runs; one tick takes a little Python."""
    ticks, done = 0, threading.Event()

    def count() -> None:
        nonlocal ticks
        while not done.is_set():
            sum(range(100))
            ticks += 1

    counter = threading.Thread(target=count)
    counter.start()
    start = time.monotonic()
    call()
    taken = time.monotonic() - start
    counted = ticks
    done.set()
    counter.join()
    return counted / taken
