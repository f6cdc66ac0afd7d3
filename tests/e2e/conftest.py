"""Fixtures for tests through the public Python API against real processes."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator
from support import MIB, ProcessView, eventually

# A run in the background inherits an ignored SIGINT, and would pass it on to every program that
# the tests start and interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

NODE_MAIN = Path(__file__).with_name("node_main.py")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Redis:
    """A private Redis server."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1"]
        command += [
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(self._folder),
            *self.arguments(),
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        eventually(self._answers)

    def arguments(self) -> list[str]:
        return []

    def _answers(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 1) as s,
        ):
            s.sendall(b"PING\r\n")
            return s.recv(16).startswith(b"+PONG")
        return False

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def command(self, *words: str) -> str:
        command = ["redis-cli", "-p", str(self.port), *words]
        return subprocess.check_output(command, text=True).strip()

    def keys(self) -> int:
        return int(self.command("DBSIZE"))

    def lose_everything(self) -> None:
        """While it runs."""
        self.command("FLUSHALL")

    def wipe(self) -> None:
        """While it is stopped; it keeps nothing anyway."""

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Etcd:
    """A private etcd of one member. What it was told survives a stop."""

    _EVERYTHING: ClassVar[dict[str, Any]] = {"key": "AA==", "range_end": "AA=="}

    def __init__(self, folder: Path) -> None:
        self.port, self._peer_port = free_port(), free_port()
        self.url = f"etcd://127.0.0.1:{self.port}"
        self._data = folder / "etcd"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.port, self._peer_port))
        command = ["etcd", "--name=one", f"--data-dir={self._data}", "--unsafe-no-fsync"]
        command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        command += [f"--initial-cluster=one={peer}", "--heartbeat-interval=20"]
        command += ["--election-timeout=200", "--logger=zap", "--log-level=error"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, **quiet)
        eventually(self._answers)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return "header" in self.command("/v3/kv/range", **self._EVERYTHING)
        return False

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def command(self, path: str, **message: Any) -> dict[str, Any]:
        data = json.dumps(message).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", data, 5) as answer:
            return dict(json.load(answer))

    def keys(self) -> int:
        found = self.command("/v3/kv/range", **self._EVERYTHING, count_only=True)
        return int(found.get("count", 0))

    def lose_everything(self) -> None:
        self.command("/v3/kv/deleterange", **self._EVERYTHING)

    def wipe(self) -> None:
        shutil.rmtree(self._data)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


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


def settings_for(url: str, **changes: Any) -> dict[str, Any]:
    """A small storage node on the loopback."""
    settings = {
        "local_hostname": "127.0.0.1",
        "metadata_url": url,
        "global_segment_size": 64 * MIB,
        "local_buffer_size": 16 * MIB,
    }
    return {**settings, **changes}


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
