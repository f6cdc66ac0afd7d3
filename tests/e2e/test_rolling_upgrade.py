"""Five storage processes are replaced one after the other, under load."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from services import daemon_program
from support import LONG, MIB, eventually, value_of

NODES = 5
KEYS = 2000 if LONG else 400
SIZE = 16_000
ROUTER = {
    "global_segment_size": 0,
    "local_buffer_size": 16 * MIB,
    "labels": {"storage": "false"},
    "routed_writes": True,
}


class Storage:
    """A storage daemon; its lines on stderr are kept."""

    def __init__(self, metadata_url: str, stable_id: str, segment: str, *flags: str) -> None:
        self.lines: list[str] = []
        command = [
            daemon_program(),
            "--metadata-url",
            metadata_url,
            "--local-hostname",
            "127.0.0.1",
        ]
        command += ["--stable-id", stable_id]
        command += ["--local-segment-name", segment, "--global-segment-size", "64MB"]
        self.process = subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        eventually(lambda: self.line("started") or self.process.poll() is not None)
        assert self.line("started"), "".join(self.lines)

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(self.process.stderr)

    def line(self, word: str) -> str:
        """The program's line that begins with a word; empty: it has not said it."""
        return next((text for text in self.lines if f"rs-client {word} " in text), "")

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.end(60)

    def end(self, limit_s: float = 15) -> int:
        if self.process.poll() is None and limit_s == 15:
            self.process.kill()
        code = self.process.wait(limit_s)
        self._reader.join(15)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@pytest.fixture
def storage() -> Iterator[Callable[..., Storage]]:
    with ExitStack() as running:

        def start(*arguments: str) -> Storage:
            daemon = Storage(*arguments)
            running.callback(daemon.end)
            return daemon

        yield start


class Traffic:
    """A thread that reads batches of known keys and one that writes batches of new ones."""

    def __init__(self, store: Any, known: list[str], policy: ReplicateConfig) -> None:
        self.failed: list[str] = []
        self.written: list[str] = []
        self.batches = 0
        self._store, self._known, self._policy = store, known, policy
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(f,)) for f in self._forms()]
        for thread in self._threads:
            thread.start()

    def _forms(self) -> list[Callable[[int], None]]:
        return [self._read, self._write]

    def _run(self, form: Callable[[int], None]) -> None:
        number = 0
        while not self._stop.wait(0.005):
            form(number)
            number += 1

    def _read(self, number: int) -> None:
        first = number * 37 % len(self._known)
        keys = (self._known + self._known)[first : first + 50]
        values = self._store.batch_get(keys)
        self.failed += [
            f"{time.monotonic():.2f} read {key}: {len(value)} bytes"
            for key, value in zip(keys, values)
            if value != value_of(key, 0, SIZE)
        ]
        self.batches += 1

    def _write(self, number: int) -> None:
        if len(self.written) >= len(self._known):
            return
        keys = [f"new/{number}/{n}" for n in range(10)]
        status = self._store.put_batch(keys, [value_of(k, 0, SIZE) for k in keys], self._policy)
        if status == 0:
            self.written += keys
        else:
            self.failed.append(f"{time.monotonic():.2f} write {keys[0]}: {status}")

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def read_all(store: Any, keys: list[str]) -> list[str]:
    """Those that are not there with their bytes."""
    values = store.batch_get(keys)
    return [key for key, value in zip(keys, values) if value != value_of(key, 0, SIZE)]


@pytest.mark.parametrize("replicas", [1, 2])
def test_five_nodes_are_upgraded_under_load(
    redis: Any,
    storage: Callable[..., Storage],
    open_store: Callable[..., MooncakeDistributedStore],
    replicas: int,
) -> None:
    nodes = [storage(redis.url, f"n{n}", f"n{n}-first", "--drain-on-exit") for n in range(NODES)]
    store = open_store(redis.url, **ROUTER)
    policy = ReplicateConfig(replica_num=replicas, prefer_local=False)
    known = [f"known/{n}" for n in range(KEYS)]
    assert store.put_batch(known, [value_of(k, 0, SIZE) for k in known], policy) == 0
    traffic = Traffic(store, known, policy)
    try:
        for n in range(NODES):
            flags = "--drain-on-exit", "--initial-state", "standby"
            successor = storage(redis.url, f"n{n}", f"n{n}-second", *flags)
            assert "epoch=2 initial_state=standby" in successor.line("started")
            code = nodes[n].terminate()
            assert code == 0, "".join(nodes[n].lines)
            assert f"stable_id=n{n} from_epoch=1 to_runtime=n{n}:2" in nodes[n].line("handoff")
            assert re.search(r"to_epoch=2 migrated_routes=\d+", nodes[n].line("upgraded"))
            eventually(lambda one=successor: one.line("promoted"))
            nodes[n] = successor
    finally:
        traffic.stop()
    assert traffic.failed == []
    assert traffic.batches > NODES and traffic.written
    newcomer = open_store(redis.url, **ROUTER)
    for one in (store, newcomer):
        assert read_all(one, known + traffic.written) == []
    owners = {replica["owner"] for key in known for replica in store.query_route(key)["replicas"]}
    assert owners == {f"n{n}:2" for n in range(NODES)}


def test_nodes_leave_without_a_successor_and_lose_nothing(
    redis: Any,
    storage: Callable[..., Storage],
    open_store: Callable[..., MooncakeDistributedStore],
) -> None:
    nodes = [storage(redis.url, f"n{n}", f"n{n}-first", "--drain-on-exit") for n in range(3)]
    store = open_store(redis.url, **ROUTER)
    policy = ReplicateConfig(prefer_local=False)
    known = [f"known/{n}" for n in range(KEYS)]
    assert store.put_batch(known, [value_of(k, 0, SIZE) for k in known], policy) == 0
    traffic = Traffic(store, known, policy)
    try:
        for leaver in nodes[:2]:
            assert leaver.terminate() == 0, "".join(leaver.lines)
            assert re.search(r"evacuated_routes=[1-9]\d*", leaver.line("drained"))
    finally:
        traffic.stop()
    assert traffic.failed == []
    assert read_all(store, known + traffic.written) == []


def test_a_drain_has_a_limit_of_its_own(
    redis: Any,
    storage: Callable[..., Storage],
    open_store: Callable[..., MooncakeDistributedStore],
) -> None:
    """It is not that of requests: the only other node stands still for longer than one may take."""
    limits = "--drain-on-exit", "--request-timeout-ms", "1000", "--drain-timeout-ms", "30000"
    leaver = storage(redis.url, "leaver", "leaver-first", *limits)
    store = open_store(redis.url, **ROUTER)
    known = [f"known/{n}" for n in range(50)]
    assert store.put_batch(known, [value_of(k, 0, SIZE) for k in known]) == 0
    other = storage(redis.url, "other", "other-first")
    other.process.send_signal(signal.SIGSTOP)
    try:
        leaver.process.send_signal(signal.SIGTERM)
        time.sleep(3)
        assert leaver.process.poll() is None, "".join(leaver.lines)
    finally:
        other.process.send_signal(signal.SIGCONT)
    assert leaver.end(60) == 0, "".join(leaver.lines)
    assert read_all(store, known) == []
