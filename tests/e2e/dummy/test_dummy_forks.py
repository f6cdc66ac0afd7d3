"""LC-10 in dummy mode: what a forked child does leaves its parent alone."""

from __future__ import annotations

import subprocess
import sys
import textwrap

PROGRAM = """
    import ctypes, gc, multiprocessing, os, signal, sys, threading, time
    from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator
    ADDRESS = sys.argv[1]
    SIZE = 1 << 20
    store = MooncakeDistributedStore()
    store.setup_dummy(0, 0, ADDRESS)
    base = MooncakeHostMemAllocator().alloc(2 * SIZE)
    assert store.register_buffer(base, 2 * SIZE) == 0
    ctypes.memset(base, 7, SIZE)
    fork = multiprocessing.get_context("fork")

    def exits():
        pass

    def collects():
        global store
        del store
        gc.collect()

    def calls():
        for call in (lambda: store.get("k"), lambda: store.put("k", b""), store.remove_all,
                     lambda: store.put_from("k", base, 10), store.metrics_text,
                     lambda: store.register_buffer(base, 10)):
            start = time.monotonic()
            try:
                call()
            except RuntimeError as error:
                assert "fork" in str(error), error
            else:
                raise AssertionError("a call in a forked child")
            assert time.monotonic() - start < 1
        assert store.health_check() == 1
        store.close()

    def sets_up():
        mine = MooncakeDistributedStore()
        mine.setup_dummy(0, 0, ADDRESS)
        own = MooncakeHostMemAllocator().alloc(SIZE)
        assert mine.register_buffer(own, SIZE) == 0
        assert mine.put_from(f"child {os.getpid()}", own, SIZE) == 0
        assert mine.health_check() == 0
        mine.close()

    def parent_works(key):
        assert store.put_from(key, base, SIZE) == 0
        assert store.get_into(key, base + SIZE, SIZE) == SIZE
        assert ctypes.string_at(base + SIZE, SIZE) == bytes([7]) * SIZE
        assert store.health_check() == 0
        assert store.remove(key) == 0

    def run(work, limit=20):
        child = fork.Process(target=work)
        child.start()
        child.join(limit)
        assert child.exitcode == 0, work
"""


def check(code: str, *args: str) -> None:
    program = textwrap.dedent(PROGRAM) + textwrap.dedent(code)
    command = [sys.executable, "-c", program, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_forked_children_leave_the_parent_alone(start_daemon) -> None:
    check(
        """
        for number, work in enumerate((exits, collects, calls, sets_up) * 3):
            run(work)
            parent_works(f"k{number}")
        for number in (signal.SIGKILL, signal.SIGABRT):
            child = fork.Process(target=time.sleep, args=(60,))
            child.start()
            os.kill(child.pid, number)
            child.join(20)
            parent_works("after")
        store.close()
        """,
        start_daemon().address,
    )


def test_children_with_stores_of_their_own_beside_a_busy_parent(start_daemon) -> None:
    check(
        """
        done = threading.Event()
        failed = []
        def work(number):
            while not done.is_set():
                value = bytes([number]) * 100_000
                if store.put(f"busy {number}", value) != 0 or store.get(f"busy {number}") != value:
                    failed.append(number)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads: thread.start()
        children = [fork.Process(target=sets_up) for _ in range(8)]
        for child in children: child.start()
        for child in children:
            child.join(60)
            assert child.exitcode == 0
        done.set()
        for thread in threads: thread.join()
        assert failed == []
        parent_works("k")
        """,
        start_daemon().address,
    )


def test_parent_and_child_both_find_a_restarted_daemon(start_daemon) -> None:
    """Both connect anew at one moment, and neither takes the other's answers."""
    daemon = start_daemon()
    program = """
        begun, restarted = fork.Event(), fork.Event()
        def serves():
            mine = MooncakeDistributedStore()
            mine.setup_dummy(0, 0, ADDRESS)
            begun.set()
            assert restarted.wait(60)
            until = time.monotonic() + 20
            while mine.put("child's", b"c" * 1000) != 0: assert time.monotonic() < until
            assert mine.get("child's") == b"c" * 1000
        child = fork.Process(target=serves)
        child.start()
        assert begun.wait(20)
        os.write(2, b"ready\\n")
        sys.stdin.readline()
        restarted.set()
        until = time.monotonic() + 20
        while store.put("parent's", b"p" * 1000) != 0: assert time.monotonic() < until
        child.join(30)
        assert child.exitcode == 0
        parent_works("k")
        """
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM) + textwrap.dedent(program)]
    with subprocess.Popen(
        [*command, daemon.address],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        daemon.kill()
        daemon.start()
        process.stdin.write("\n")
        process.stdin.flush()
        error = process.stderr.read()
        assert process.wait(60) == 0, error


def test_a_dead_parents_memory_is_freed_though_its_child_lives(
    start_daemon, dummy, eventually
) -> None:
    """The child has inherited the parent's connections, and holds them open."""
    daemon = start_daemon()
    survivor = dummy(daemon.address)
    program = """
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        os.write(2, f"{child}\\n".encode())
        sys.stdin.readline()
        """
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM) + textwrap.dedent(program)]
    with subprocess.Popen(
        [*command, daemon.address], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        child = int(process.stderr.readline())
        try:
            assert regions(survivor) == 1
            process.kill()
            eventually(lambda: regions(survivor) == 0)
        finally:
            subprocess.run(["kill", "-9", str(child)], check=False)


def regions(store) -> int:
    for line in store.metrics_text().splitlines():
        if line.startswith("mooncake_store_dummy_regions{"):
            return int(float(line.split()[-1]))
    return -1
