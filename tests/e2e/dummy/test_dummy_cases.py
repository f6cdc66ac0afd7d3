"""What has gone wrong for users of daemons elsewhere, one test for each case."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator
from support import LONG, MIB, ProcessView


def registered(store: MooncakeDistributedStore, size: int) -> int:
    address = MooncakeHostMemAllocator().alloc(size)
    assert store.register_buffer(address, size) == 0
    return address


def metric(store: MooncakeDistributedStore, name: str, label: str = "") -> int:
    for line in store.metrics_text().splitlines():
        if line.startswith(f"mooncake_store_{name}{{") and label in line:
            return int(float(line.split()[-1]))
    return 0


def test_a_killed_client_takes_nobody_with_it(start_daemon, dummy, spawn, eventually) -> None:
    """BR-03: eight clients; one is killed in the middle of its calls."""
    daemon = start_daemon()
    others = [dummy(daemon.address) for _ in range(7)]
    bases = [registered(store, MIB) for store in others]
    view = ProcessView(daemon.process.pid)

    def work(steps: int) -> None:
        for step in range(steps):
            for number, (store, base) in enumerate(zip(others, bases)):
                ctypes.memset(base, step + number, 64 << 10)
                assert store.put_from(f"k{number}", base, 64 << 10) == 0
                assert store.get(f"k{number}") == bytes([step + number]) * (64 << 10)

    work(2)
    for turn in range(3):
        descriptors, mappings = view.descriptors(), view.mappings()
        victim: Any = spawn()
        assert victim.setup_dummy(0, 0, daemon.address) == 0
        victim.registered_buffer(8 * MIB)
        assert metric(others[0], "dummy_regions") == 8
        assert metric(others[0], "dummy_region_bytes") == 15 * MIB
        victim.start_load(f"victim {turn}", threads=4, keys=5, size=200_000)
        eventually(lambda victim=victim: victim.load_so_far()["calls"] > 20)
        victim.kill()
        work(10)
        eventually(lambda: metric(others[0], "dummy_regions") == 7)
        assert metric(others[0], "dummy_region_bytes") == 7 * MIB
        assert metric(others[0], "dummy_clients") == 7
        if turn > 0:  # What is made on first use is there.
            eventually(lambda most=descriptors: view.descriptors() <= most)
            assert view.mappings() <= mappings + 2


def test_memory_that_is_not_registered_is_refused_at_once(start_daemon, dummy) -> None:
    """BR-05: never registered, not any more, and one byte too long."""
    store = dummy(start_daemon().address)
    base = registered(store, 4096)
    assert store.put_from("k", base, 4096) == 0
    gone = registered(store, 4096)
    assert store.unregister_buffer(gone) == 0
    stray = ctypes.create_string_buffer(b"s" * 8192)
    before = stray.raw
    for address, size in ((ctypes.addressof(stray), 4096), (gone, 4096), (base, 4097)):
        assert store.put_from("x", address, size) < 0
        assert store.get_into("k", address, size) < 0
        assert store.batch_put_from(["x"], [address], [size])[0] < 0
        assert store.batch_get_into(["k"], [address], [size])[0] < 0
    assert not store.is_exist("x")
    assert stray.raw == before


def test_a_pool_that_was_made_anew_has_its_new_bytes(start_daemon, dummy) -> None:
    """BR-06: an engine frees its pool and makes another, perhaps at the same address."""
    store = dummy(start_daemon().address)
    allocator = MooncakeHostMemAllocator()
    old = allocator.alloc(MIB)
    assert store.register_buffer(old, MIB) == 0
    ctypes.memset(old, ord("o"), MIB)
    assert store.put_from("k", old, MIB) == 0
    allocator.free(old)
    new = allocator.alloc(MIB)
    ctypes.memset(new, ord("n"), MIB)
    assert store.put_from("k", new, MIB) < 0  # Not registered, whatever its address.
    assert store.register_buffer(new, MIB) == 0
    assert store.put_from("k", new, MIB) == 0
    assert store.get("k") == b"n" * MIB


def test_the_last_byte_of_every_buffer_travels(start_daemon, dummy) -> None:
    """BR-09: sizes that are no multiple of a page."""
    store = dummy(start_daemon().address)
    for size in (1, 4095, 4097, 3 * MIB - 1):
        base = registered(store, size)
        ctypes.memset(base, 0, size)
        ctypes.memset(base + size - 1, 7, 1)
        assert store.put_from(f"k{size}", base, size) == 0
        ctypes.memset(base, 1, size)
        assert store.get_into(f"k{size}", base, size) == size
        assert ctypes.string_at(base + size - 1, 1) == b"\x07"


def test_a_daemon_without_a_gpu_says_nothing_about_one(start_daemon, dummy) -> None:
    """BR-13."""
    daemon = start_daemon()
    store = dummy(daemon.address)
    registered(store, MIB)
    assert daemon.terminate() == 0
    assert not [line for line in daemon.lines if "cuda" in line.lower()]


def test_hot_blocks_of_every_size_are_used_again(start_daemon, dummy, node, sqlite_url) -> None:
    """ME-11: small values, then ones of a whole block, then one that is larger."""
    origin = node(sqlite_url, routed_writes=True)
    gateway = start_daemon(
        *("--storage-bytes", "0", "--routed-writes"),
        MC_STORE_LOCAL_HOT_CACHE_SIZE=str(8 * MIB),
        MC_STORE_LOCAL_HOT_BLOCK_SIZE=str(4 * MIB),
        MC_STORE_LOCAL_HOT_CACHE_USE_SHM="1",
    )
    store = dummy(gateway.address)
    for i in range(100):
        assert origin.put(f"small{i}", bytes([i]) * 1024) == 0
        assert store.get(f"small{i}") == bytes([i]) * 1024
    hits = metric(store, "hot_cache_total", '"hit"')
    for size, kept in ((4 * MIB - 1, True), (4 * MIB, True), (4 * MIB + 1, False)):
        value = os.urandom(size)
        assert origin.put(f"k{size}", value) == 0
        for _ in range(2):
            assert store.get(f"k{size}") == value
        hits += kept
        assert metric(store, "hot_cache_total", '"hit"') == hits, size


def test_two_daemons_with_long_scopes_share_a_folder(start_daemon, dummy) -> None:
    """SI-05."""
    scopes = ["s" * 200, "t" * 200]
    daemons = [start_daemon("--worker-scope", scope) for scope in scopes]
    assert daemons[0].started("socket") != daemons[1].started("socket")
    for daemon, scope in zip(daemons, scopes):
        assert len(daemon.started("socket")) < 100
        store = dummy(daemon.address, worker_scope=scope)
        assert store.put_from("k", registered(store, 4096), 4096) == 0
    with pytest.raises(RuntimeError, match="not served"):
        MooncakeDistributedStore().setup_dummy(0, 0, daemons[0].address, worker_scope=scopes[1])


def test_a_hidden_socket_is_named(start_daemon) -> None:
    """AE-08: the address answers, but the socket's folder is not visible here."""
    daemon = start_daemon()
    socket_path = daemon.started("socket")
    os.rename(socket_path, socket_path + ".hidden")
    try:
        with pytest.raises(RuntimeError) as caught:
            MooncakeDistributedStore().setup_dummy(0, 0, daemon.address)
    finally:
        os.rename(socket_path + ".hidden", socket_path)
    for part in (daemon.address, socket_path, "No such file", "on this host"):
        assert part in str(caught.value)


def test_a_full_descriptor_table_is_named(start_daemon) -> None:
    """AE-08."""
    daemon = start_daemon()
    code = (
        "import os, resource, sys\n"
        "from mooncake.store import MooncakeDistributedStore\n"
        "store = MooncakeDistributedStore()\n"
        "held = []\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "try:\n"
        "    while True: held.append(os.dup(2))\n"
        "except OSError: pass\n"
        "try:\n"
        "    store.setup_dummy(0, 0, sys.argv[1])\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
        "else:\n"
        "    print('worked')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, daemon.address],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Too many open files" in done.stdout or daemon.address in done.stdout
    assert "worked" not in done.stdout


def test_another_users_client_is_told_so(start_daemon) -> None:
    """AE-08, SI-05: the socket's folder is this user's alone."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    daemon = start_daemon()
    socket_path = daemon.started("socket")
    code = (
        "import os, socket, sys\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "try:\n"
        "    peer.connect(sys.argv[1])\n"
        "except PermissionError:\n"
        "    sys.exit(42)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, socket_path], timeout=60, check=False)
    assert done.returncode == 42


def test_sixty_four_clients_at_once(start_daemon, dummy) -> None:
    daemon = start_daemon("--storage-bytes", str(128 * MIB))
    stores = [dummy(daemon.address) for _ in range(64)]
    wrong: list[str] = []

    def use(number: int) -> None:
        store = stores[number]
        base = registered(store, 256 << 10)
        for step in range(5):
            ctypes.memset(base, (number + step) % 256, 64 << 10)
            if store.put_from(f"k{number}", base, 64 << 10) != 0:
                wrong.append(f"put {number}")
            if store.get_into(f"k{number}", base + (128 << 10), 64 << 10) != 64 << 10:
                wrong.append(f"get {number}")
            if ctypes.string_at(base, 64 << 10) != ctypes.string_at(base + (128 << 10), 64 << 10):
                wrong.append(f"bytes {number}")

    threads = [threading.Thread(target=use, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert metric(stores[0], "dummy_clients") == 64


def test_an_idle_daemon_stays_alive(start_daemon) -> None:
    """LC-05: it ended by itself 1.5 s after its start."""
    daemon = start_daemon()
    until = time.monotonic() + (30 if LONG else 4)
    while time.monotonic() < until:
        assert daemon.process.poll() is None
        time.sleep(0.1)
    assert daemon.terminate() == 0
