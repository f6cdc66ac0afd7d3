"""Memory that the kernel limits: huge pages (BR-09), locked memory, containers (BR-07)."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator
from services import daemon_program, settings_for
from support import eventually

MIB = 1 << 20
PAGES = "/sys/kernel/mm/hugepages/hugepages-2048kB/"


def pages(what: str) -> int:
    with open(PAGES + what) as file:
        return int(file.read())


def set_pages(count: int) -> None:
    with open(PAGES + "nr_hugepages", "w") as file:
        file.write(str(count))


@pytest.fixture
def reserve() -> Iterator[Callable[[int], None]]:
    """Reserves pages of 2 MiB until the end of the test."""
    before = pages("nr_hugepages")

    def reserve(count: int) -> None:
        try:
            set_pages(before + count)
        except OSError as error:
            pytest.skip(f"huge pages cannot be reserved here: {error}")
        if pages("free_hugepages") < count:
            pytest.skip(f"the kernel has no {count} huge pages for us")

    yield reserve
    if pages("nr_hugepages") != before:
        set_pages(before)


def whole_travels(store: MooncakeDistributedStore, base: int, key: str, size: int) -> None:
    ctypes.memset(base, 3, size - 1)
    ctypes.memset(base + size - 1, 9, 1)
    assert store.put_from(key, base, size) == 0
    ctypes.memset(base, 0, size)
    assert store.get_into(key, base, size) == size
    assert ctypes.string_at(base, size) == bytes([3]) * (size - 1) + b"\x09"


def test_a_dummy_and_its_daemon_with_huge_pages(start_daemon, dummy, reserve) -> None:
    reserve(24)
    free = pages("free_hugepages")
    daemon = start_daemon("--use-hugepage", "--storage-bytes", "16MB", "--scratch-bytes", "4MB")
    assert pages("free_hugepages") <= free - 8 or pages("resv_hugepages") >= 8
    store = dummy(daemon.address)
    allocator = MooncakeHostMemAllocator(use_hugepage=True, hugepage_size="2MB")
    size = 3 * MIB  # Rounded to two pages of which the caller sees nothing.
    base = allocator.alloc(size)
    assert store.register_buffer(base, size) == 0
    whole_travels(store, base, "k", size)
    assert store.put_from("x", base, size + 1) < 0
    assert store.unregister_buffer(base) == 0
    allocator.free(base)
    assert daemon.terminate() == 0
    store.close()
    assert pages("free_hugepages") == free, "all pages are given back"


def test_a_real_store_with_huge_pages(sqlite_url: str, reserve) -> None:
    reserve(24)
    free = pages("free_hugepages")
    store = MooncakeDistributedStore()
    given = dict(use_hugepage=True, hugepage_size="2MB")
    assert store.setup("127.0.0.1", "", 15 * MIB, 3 * MIB, "tcp", "", sqlite_url, **given) == 0
    assert pages("resv_hugepages") + free - pages("free_hugepages") >= 10
    base = MooncakeHostMemAllocator(**given).alloc(3 * MIB)
    assert store.register_buffer(base, 3 * MIB) == 0
    whole_travels(store, base, "k", 3 * MIB)
    MooncakeHostMemAllocator().free(base)
    store.close()
    assert pages("free_hugepages") == free


def test_huge_pages_that_nobody_reserved(run_program, sqlite_url: str) -> None:
    if pages("free_hugepages") > 0:
        pytest.skip("there are huge pages")
    with pytest.raises(RuntimeError, match=r"sysctl .*vm\.nr_hugepages"):
        MooncakeHostMemAllocator(use_hugepage=True).alloc(3 * MIB)
    store = MooncakeDistributedStore()
    with pytest.raises(RuntimeError, match=r"sysctl .*vm\.nr_hugepages"):
        store.setup("127.0.0.1", "", 8 * MIB, MIB, "tcp", "", sqlite_url, use_hugepage=True)
    given = settings_for(sqlite_url, use_hugepage=True, hugepage_size="2MB")
    with pytest.raises(RuntimeError, match=r"sysctl .*vm\.nr_hugepages"):
        store.setup(given)
    assert store.health_check() == 1
    done = run_program(
        *("--local-hostname", "127.0.0.1", "--metadata-url", sqlite_url, "--use-hugepage"),
        *("--storage-bytes", "8MB", "--client-server-address", "127.0.0.1:0"),
    )
    assert done.returncode == 1
    assert "vm.nr_hugepages" in done.stderr


def test_locked_memory_is_no_limit(start_daemon) -> None:
    """BR-07: 1 GiB under a limit of 8 MiB; nothing is locked."""
    code = """
        import resource, sys
        from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (8 << 20, 8 << 20))
        store = MooncakeDistributedStore()
        store.setup_dummy(0, 0, sys.argv[1])
        base = MooncakeHostMemAllocator().alloc(1 << 30)
        assert store.register_buffer(base, 1 << 30) == 0
        assert store.put_from("k", base + (1 << 30) - 4096, 4096) == 0
        store.close()
        store.setup("127.0.0.1", "", 1 << 30, 1 << 20, "tcp", "", sys.argv[2])
        assert store.put("k", b"v") == 0
        store.close()
        """
    daemon = start_daemon(launcher=("prlimit", f"--memlock={8 * MIB}:{8 * MIB}"))
    command = [sys.executable, "-c", textwrap.dedent(code), daemon.address, "memory://own"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_region_that_the_daemon_cannot_map(start_daemon, dummy, capfd) -> None:
    """BR-07: refused with the size in the log, and nothing of it stays."""
    daemon = start_daemon()
    store = dummy(daemon.address)
    pid = daemon.process.pid
    assert store.put("k", b"v" * 100_000) == 0  # Its staging is there already.
    before = store.metrics_text()
    with open(f"/proc/{pid}/status") as file:
        mapped = int(re.search(r"VmSize:\s+(\d+) kB", file.read())[1]) << 10
    resource.prlimit(pid, resource.RLIMIT_AS, (mapped + 256 * MIB, resource.RLIM_INFINITY))
    base = MooncakeHostMemAllocator().alloc(1 << 30)
    assert store.register_buffer(base, 1 << 30) == -1
    log = capfd.readouterr().err
    assert "cannot map 1073741824 bytes" in log
    assert f"ulimit -v: {mapped + 256 * MIB} bytes" in log
    assert store.put_from("x", base, 4096) < 0
    gauge = "mooncake_store_dummy_regions{"
    assert lines(store.metrics_text(), gauge) == lines(before, gauge)
    resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert store.register_buffer(base, 1 << 30) == 0


def huge_bytes(pid: int) -> int:
    """What a process sees of our shared memory through huge pages."""
    total, ours = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = "/memfd:mooncake" in line
        elif ours and line.startswith("ShmemPmdMapped:"):
            total += int(line.split()[1]) << 10
    return total


def collapses() -> bool:
    """Whether the kernel makes huge pages of shared memory on request (Linux 6.1, not "never")."""
    modes = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    major, minor = (int(number) for number in platform.release().split(".")[:2])
    return (major, minor) >= (6, 1) and modes.exists() and "[never]" not in modes.read_text()


@pytest.mark.skipif(not collapses(), reason="no huge pages for shared memory here")
def test_shared_memory_that_is_used_has_huge_pages(
    start_daemon, dummy, node, sqlite_url: str
) -> None:
    """The client's pool at once; of the daemon's, what holds a value or a hot copy."""
    before = huge_bytes(os.getpid())
    base = MooncakeHostMemAllocator().alloc(8 * MIB)
    assert huge_bytes(os.getpid()) == before + 8 * MIB
    daemon = start_daemon("--storage-bytes", "64MB")
    assert huge_bytes(daemon.process.pid) == 0
    store = dummy(daemon.address)
    assert store.register_buffer(base, 8 * MIB) == 0
    assert store.put_from("stored", base, MIB) == 0
    assert huge_bytes(daemon.process.pid) >= 2 * MIB
    gateway = start_daemon(
        *("--storage-bytes", "0", "--routed-writes"),
        MC_STORE_LOCAL_HOT_CACHE_SIZE=str(16 * MIB),
        MC_STORE_LOCAL_HOT_CACHE_USE_SHM="1",
    )
    reader = dummy(gateway.address)
    assert huge_bytes(gateway.process.pid) == 0
    assert reader.get("stored") == bytes(MIB)
    assert huge_bytes(gateway.process.pid) >= 2 * MIB
    MooncakeHostMemAllocator().free(base)


# Runs a program in the control group whose folder is the first argument.
IN_GROUP = ("sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"')
GROUP_BYTES = 256 * MIB


def group_folders() -> Iterator[tuple[Path, str]]:
    """Where a group below this process's own would be, and the name of its limit."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield Path("/sys/fs/cgroup/memory" + path), "memory.limit_in_bytes"
        elif controllers == "":
            yield Path("/sys/fs/cgroup" + path), "memory.max"


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group that may use GROUP_BYTES of memory."""
    for parent, limit in group_folders():
        folder = parent / f"mooncake-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit).write_text(str(GROUP_BYTES))
            yield folder
            return
        except OSError:
            continue
        finally:
            # Its processes have ended; the kernel may still be busy with them.
            eventually(lambda folder=folder: folder.rmdir() or True if is_empty(folder) else False)
    pytest.skip("no control group with a memory limit can be made here")


def is_empty(group: Path) -> bool:
    return (group / "cgroup.procs").read_text() == ""


def test_a_container_that_is_too_small(small_group, sqlite_url: str) -> None:
    """BR-07: an exception with size, limit and what to change, not a killed process."""
    code = """
        import os, sys
        from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator

        def held():
            with open("/proc/self/maps") as maps:
                shared = maps.read().count("mooncake_store")
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), shared

        def refused(call):
            before = held()
            try:
                call()
            except RuntimeError as error:
                text = str(error)
            assert str(1 << 30) in text and "limit of %d bytes" % (256 << 20) in text, text
            assert "raise it, or ask for less" in text and "cgroup" in text, text
            assert held() == before, (before, held())

        store = MooncakeDistributedStore()
        where = ("tcp", "", sys.argv[1])
        assert store.setup("127.0.0.1", "", 1 << 20, 1 << 20, *where) == 0  # Loads all there is.
        store.close()
        refused(lambda: store.setup("127.0.0.1", "", 1 << 30, 1 << 20, *where))
        assert store.health_check() == 1
        refused(lambda: MooncakeHostMemAllocator().alloc(1 << 30))
        assert store.setup("127.0.0.1", "", 32 << 20, 1 << 20, *where) == 0
        base = MooncakeHostMemAllocator().alloc(32 << 20)
        assert store.register_buffer(base, 32 << 20) == 0
        assert store.put_from("k", base, 1 << 20) == 0
        refused(lambda: store.expand_local_memory(1 << 30))
        store.close()
        """
    command = [*IN_GROUP, str(small_group), sys.executable, "-c", textwrap.dedent(code), sqlite_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_daemon_in_a_container_that_is_too_small(
    small_group, start_daemon, dummy, sqlite_url: str
) -> None:
    """BR-07: its storage has to fit; memory of its clients is not its own."""
    inside = (*IN_GROUP, str(small_group))
    words = [daemon_program(), "--local-hostname", "127.0.0.1", "--metadata-url", sqlite_url]
    words += ["--client-server-address", "127.0.0.1:0", "--storage-bytes", "1GB"]
    command = [*inside, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"1073741824 bytes are more than the memory limit of {GROUP_BYTES} bytes" in done.stderr
    daemon = start_daemon("--storage-bytes", "32MB", launcher=inside)
    store = dummy(daemon.address)
    base = MooncakeHostMemAllocator().alloc(1 << 30)
    assert store.register_buffer(base, 1 << 30) == 0
    assert store.put_from("k", base + (1 << 30) - 4096, 4096) == 0
    store.close()
    MooncakeHostMemAllocator().free(base)
    assert daemon.terminate() == 0


def lines(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(start)]
