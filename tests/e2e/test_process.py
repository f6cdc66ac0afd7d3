"""Forks, signals, threads and the end of the program: what the process around a store does."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mooncake.store import MooncakeDistributedStore
from support import MIB, at_most, eventually, rate_beside, settle

SMALL = {"global_segment_size": 16 * MIB, "local_buffer_size": MIB}
ROUTER = {"global_segment_size": 0, "labels": {"storage": "false"}, "routed_writes": True}


# --- Forks ------------------------------------------------------------------------------------


def python(code: str, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_program(code: str, *args: str) -> None:
    program = python(code, *args)
    try:
        out, err = program.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        program.kill()
        raise
    assert (program.returncode, out) == (0, ""), err


FORK = """
    import gc, multiprocessing, os, sys, time
    from mooncake.store import MooncakeDistributedStore, ReplicateConfig
    store = MooncakeDistributedStore()
    store.setup("127.0.0.1", "", 8 << 20, 1 << 20, "tcp", "", sys.argv[1], lease_ttl_ms=2000,
                stable_id="parent")
    lease = store.local_buffer_pool_try_acquire(4096)
    assert store.put("k", b"v" * 1000) == 0
    fork = multiprocessing.get_context("fork")

    def exits():
        pass

    def collects():
        global store, lease
        del lease, store
        gc.collect()

    def calls():
        for call in (lambda: store.get("k"), lambda: store.put("k", b""), store.remove_all,
                     lambda: store.put_from("k", lease.ptr, 10), store.get_hostname):
            try:
                call()
            except RuntimeError as error:
                assert "fork" in str(error), error
            else:
                raise AssertionError("a call in a forked child")
        assert store.health_check() == 1
        store.close()

    def sets_up():
        mine = MooncakeDistributedStore()
        mine.setup("127.0.0.1", "", 8 << 20, 1 << 20, "tcp", "", sys.argv[1], lease_ttl_ms=2000)
        assert mine.get("k") == b"v" * 1000, "the parent's"
        assert mine.put("child's", b"w") == 0
        mine.close()
"""


def test_forked_children_leave_the_parent_alone(
    node: Callable[..., Any], metadata_url: str
) -> None:
    other = node(metadata_url, lease_ttl_ms=2000, **SMALL)
    check_program(
        FORK
        + """
    for work in (exits, collects, calls, sets_up) * 2:
        child = fork.Process(target=work)
        child.start()
        child.join(20)
        assert child.exitcode == 0, work
    end = time.monotonic() + 3  # Longer than the lease.
    while time.monotonic() < end:
        assert store.get("k") == b"v" * 1000
        time.sleep(0.05)
    assert store.heartbeat() == 0
    assert len(store.list_segments(all=True)) == 2
    assert store.put_from("from", lease.ptr, 4096) == 0
    lease.release()
    store.close()
    """,
        metadata_url,
    )
    assert other.batch_is_exist(["k", "from", "child's"]) == [0, 0, 0]


def test_a_child_that_dies_takes_nothing_along(metadata_url: str) -> None:
    check_program(
        FORK
        + """
    import signal
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGABRT):
        child = fork.Process(target=time.sleep, args=(60,))
        child.start()
        os.kill(child.pid, number)
        child.join(20)
        assert child.exitcode == -number
        assert store.get("k") == b"v" * 1000 and store.put("l", b"w") == 0
    """,
        metadata_url,
    )


def test_a_pool_of_forked_workers_beside_a_busy_store(metadata_url: str) -> None:
    check_program(
        FORK
        + """
    import threading
    done = threading.Event()
    def work():
        while not done.is_set():
            assert store.put("busy", b"x" * 100_000) == 0
            assert store.get("busy") == b"x" * 100_000
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads: thread.start()
    with fork.Pool(4) as pool:
        assert pool.map(abs, range(-200, 0)) == list(range(200, 0, -1))
    for work in (calls, exits, collects) * 3:
        child = fork.Process(target=work)
        child.start()
        child.join(20)
        assert child.exitcode == 0, work
    done.set()
    for thread in threads: thread.join()
    """,
        metadata_url,
    )


# --- Signals and the interpreter lock -----------------------------------------------------------


INTERRUPTED = """
    import ctypes, sys
    from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator
    store = MooncakeDistributedStore()
    store.setup("127.0.0.1", "", 0, 1 << 20, "tcp", "", sys.argv[1], routed_writes=True,
                labels={"storage": "false"}, transfer_stall_timeout_ms=60_000)
    target = MooncakeHostMemAllocator().alloc(1000)
    assert store.register_buffer(target, 1000) == 0
    assert store.get_into("k", target, 1000) == 1000
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        print("waiting", flush=True)
        store.get_into("k", target, 1000)
    except KeyboardInterrupt:
        ctypes.memset(target, 0xA5, 1000)
        print("interrupted", flush=True)
    sys.stdin.readline()
    assert ctypes.string_at(target, 1000) == b"\\xA5" * 1000, "written after the call"
"""


def test_a_second_interrupt_ends_a_long_call(redis: Any, node: Callable[..., Any]) -> None:
    owner = node(redis.url, stable_id="owner", **SMALL)
    assert owner.put_all(["k"]) == [0]
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED), redis.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None and program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    owner.stop()
    program.stdin.write("go\n")
    program.stdin.flush()
    assert program.stdout.readline() == "waiting\n"
    start = time.monotonic()
    eventually(lambda: time.monotonic() - start > 0.5)
    assert program.poll() is None
    for _ in range(2):
        program.send_signal(signal.SIGINT)
        pause = time.monotonic() + 0.1
        eventually(lambda pause=pause: time.monotonic() > pause)
    with at_most(1.5):
        assert program.stdout.readline() == "interrupted\n"
    owner.cont()
    settle(0.3)  # For an answer that comes late.
    program.stdin.close()
    assert program.wait(15) == 0
    program.stdout.close()


# Threads whose calls come back when the interpreter is ending; CPython lets none of them go on.
ENDS_IN_CALLS = """
    import os, signal, sys, threading, time
    from mooncake.store import MooncakeDistributedStore
    store = MooncakeDistributedStore()
    store.setup("127.0.0.1", "", 64 << 20, 1 << 20, "tcp", "", "sqlite://" + sys.argv[1])
    large = b"x" * (16 << 20)
    store.put("k", b"v" * 100_000)
    class Index:
        def __index__(self):
            return sum(range(1000))
    def work():
        while True:
            {call}
    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    time.sleep(0.2)
"""


@pytest.mark.parametrize(
    "call",
    [
        'store.get("k")',
        'store.get_buffer("k")',
        'store.put("l", b"v")',
        'store.put("large", large)',
        'store.batch_is_exist(["k"] * 50)',
        "store.local_buffer_pool_try_acquire(Index())",
    ],
)
def test_the_program_ends_while_daemon_threads_are_in_calls(tmp_path: Path, call: str) -> None:
    for attempt in range(6):
        check_program(ENDS_IN_CALLS.format(call=call), str(tmp_path / f"{attempt}.db"))


ENDS_WAITING = """
    import sys, threading, time
    from mooncake.store import MooncakeDistributedStore
    store = MooncakeDistributedStore()
    store.setup("127.0.0.1", "", 0, 1 << 20, "tcp", "", sys.argv[1], routed_writes=True,
                labels={"storage": "false"}, transfer_stall_timeout_ms=60_000)
    threading.Thread(target=store.get, args=("k",), daemon=True).start()
    time.sleep(0.5)
"""


def test_the_program_ends_while_a_daemon_thread_waits(redis: Any, node: Callable[..., Any]) -> None:
    owner = node(redis.url, stable_id="owner", **SMALL)
    assert owner.put_all(["k"]) == [0]
    owner.stop()
    with at_most(30):
        check_program(ENDS_WAITING, redis.url)
    owner.cont()


@pytest.mark.parametrize("name", ["put", "get", "get_buffer", "put_from", "get_into"])
def test_another_thread_goes_on_during_a_big_call(
    redis: Any,
    node: Callable[..., Any],
    open_store: Callable[..., MooncakeDistributedStore],
    name: str,
) -> None:
    size = 64 * MIB
    node(redis.url, global_segment_size=200 * MIB, local_buffer_size=MIB)
    store = open_store(redis.url, **{**SMALL, **ROUTER, "local_buffer_size": size})
    value = bytes(size)
    assert store.put("k", value) == 0
    lease = store.local_buffer_pool_try_acquire(size)
    assert lease is not None
    call: Callable[[], Any] = {
        "put": lambda: store.put("k", value),
        "get": lambda: store.get("k"),
        "get_buffer": lambda: store.get_buffer("k"),
        "put_from": lambda: store.put_from("k", lease.ptr, size),
        "get_into": lambda: store.get_into("k", lease.ptr, size),
    }[name]
    idle = rate_beside(lambda: threading.Event().wait(0.1))
    assert max(rate_beside(call) for _ in range(5)) > idle / 10
    lease.release()
