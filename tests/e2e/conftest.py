"""Fixtures for tests through the public Python API against real processes."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator
from services import Etcd, Redis, settings_for
from support import MIB, ProcessView

# A run in the background inherits an ignored SIGINT, and would pass it on to every program that
# the tests start and interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

NODE_MAIN = Path(__file__).with_name("node_main.py")


class NodeProcess:
    """A store in another process. Attributes are its methods: ``node.put("k", b"v")``."""

    def __init__(self, launcher: Sequence[str] = (), **environment: str) -> None:
        self.process = subprocess.Popen(
            [*launcher, sys.executable, str(NODE_MAIN)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        )

    def send(self, name: str, *args: Any, **kwargs: Any) -> None:
        assert self.process.stdin is not None
        pickle.dump((name, args, kwargs), self.process.stdin)
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout is not None
        good, answer = pickle.load(self.process.stdout)
        if not good:
            raise answer
        return answer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.send(name, *args, **kwargs)
            return self.receive()

        return call

    @property
    def view(self) -> ProcessView:
        return ProcessView(self.process.pid)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)  # Every thread stands still.

    def cont(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Lets the process end by itself, as a program does."""
        assert self.process.stdin is not None and self.process.stdout is not None
        if self.process.poll() is None:
            self.cont()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            self.process.stdout.close()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    if shutil.which("etcd") is None:
        pytest.skip("no etcd (Debian: etcd-server)")
    server = Etcd(tmp_path)
    yield server
    server.stop()


@pytest.fixture(params=["redis", "etcd"])
def service(request: pytest.FixtureRequest) -> Any:
    """A metadata server; the test runs once with each kind."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/cluster.db"


@pytest.fixture(params=["sqlite", "redis", "etcd"])
def metadata_url(request: pytest.FixtureRequest) -> str:
    """Of an empty cluster; the test runs once with each kind of metadata service."""
    if request.param != "sqlite":
        return str(request.getfixturevalue(request.param).url)
    return str(request.getfixturevalue("sqlite_url"))


@pytest.fixture
def settings() -> Callable[..., dict[str, Any]]:
    return settings_for


@pytest.fixture
def open_store() -> Iterator[Callable[..., MooncakeDistributedStore]]:
    """Opens stores in this process; they are closed after the test."""
    stores: list[MooncakeDistributedStore] = []

    def open_one(url: str, **changes: Any) -> MooncakeDistributedStore:
        store = MooncakeDistributedStore()
        stores.append(store)
        assert store.setup(settings_for(url, **changes)) == 0
        return store

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def store(
    open_store: Callable[..., MooncakeDistributedStore], sqlite_url: str
) -> MooncakeDistributedStore:
    return open_store(sqlite_url)


@pytest.fixture
def spawn() -> Iterator[Callable[..., NodeProcess]]:
    """Starts processes with a store that is not set up yet; they end after the test.

    ``launcher``: the words of a program that starts the process in its own stead.
    """
    with contextlib.ExitStack() as nodes:

        def start(launcher: Sequence[str] = ()) -> NodeProcess:
            process = NodeProcess(launcher)
            nodes.callback(process.end)
            return process

        yield start


@pytest.fixture
def node(spawn: Callable[..., NodeProcess]) -> Callable[..., NodeProcess]:
    """Starts stores in processes of their own; they end after the test."""

    def start(url: str, **changes: Any) -> NodeProcess:
        process = spawn()
        assert process.setup(settings_for(url, **changes)) == 0
        return process

    return start


@pytest.fixture
def buffer(store: MooncakeDistributedStore) -> int:
    """The address of 1 MiB of registered memory."""
    address = MooncakeHostMemAllocator().alloc(MIB)
    assert store.register_buffer(address, MIB) == 0
    return address
