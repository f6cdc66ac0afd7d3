"""mooncake-store-rs-client as a process, and clients of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import support
from mooncake.store import MooncakeDistributedStore
from services import DAEMON, daemon_program, free_port


class Daemon:
    """A running daemon; its lines on stderr are kept in ``lines``."""

    def __init__(self, *arguments: str, launcher: Sequence[str] = (), **environment: str) -> None:
        self.launcher = launcher
        self.arguments = arguments
        self.environment = environment
        self.lines: list[str] = []
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [*self.launcher, daemon_program(), *self.arguments],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **self.environment},
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if f"{DAEMON} started " in line:
                break
        assert self.process.poll() is None, "".join(self.lines)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(self.process.stderr)

    def started(self, name: str) -> str:
        """A value from the last started line."""
        line = [text for text in self.lines if " started " in text][-1]
        match = re.search(rf" {name}=(\S+)", line)
        assert match, line
        return match[1]

    @property
    def address(self) -> str:
        return self.started("client_server_address")

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self._end()

    def _end(self) -> int:
        code = self.process.wait(15)
        self._reader.join(15)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)  # Every thread stands still.

    def cont(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        if self.process.poll() is None:
            self.cont()
            self.terminate()
        elif self.process.stderr is not None and not self.process.stderr.closed:
            self._end()


@pytest.fixture
def port() -> int:
    """One that nobody listens at."""
    return free_port()


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Waits for the first true answer of a function; fails when there is none in time."""
    return support.eventually


@pytest.fixture
def run_program() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the program to its end."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [daemon_program(), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **environment},
            check=False,
        )

    return run


@pytest.fixture
def start_daemon(sqlite_url: str) -> Iterator[Callable[..., Daemon]]:
    """Starts daemons on the loopback, for dummy clients; they end after the test."""
    daemons: list[Daemon] = []

    def start(*arguments: str, launcher: Sequence[str] = (), **environment: str) -> Daemon:
        base = ["--local-hostname", "127.0.0.1"]
        if "--metadata-url" not in arguments:
            base += ["--metadata-url", sqlite_url]
        if not any(text.startswith("--client-server-address") for text in arguments):
            base += ["--client-server-address", f"127.0.0.1:{free_port()}"]
        daemons.append(Daemon(*base, *arguments, launcher=launcher, **environment))
        return daemons[-1]

    yield start
    for daemon in daemons:
        daemon.end()


@pytest.fixture
def dummy() -> Iterator[Callable[..., MooncakeDistributedStore]]:
    """Connects stores to a daemon; they are closed after the test."""
    stores: list[MooncakeDistributedStore] = []

    def connect(address: str, **scope: str) -> MooncakeDistributedStore:
        stores.append(MooncakeDistributedStore())
        assert stores[-1].setup_dummy(64 << 20, 16 << 20, address, **scope) == 0
        return stores[-1]

    yield connect
    for store in stores:
        store.close()
