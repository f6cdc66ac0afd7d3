"""The metadata services that tests start for themselves, and what a small node is set up with."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import urllib.request
from base64 import b64decode
from pathlib import Path
from typing import Any, ClassVar

from support import MIB, eventually

DAEMON = "mooncake-store-rs-client"


def daemon_program() -> str:
    """Where it is installed: on the path, or beside the interpreter."""
    beside = Path(sys.executable).with_name(DAEMON)
    found = shutil.which(DAEMON) or (str(beside) if beside.exists() else None)
    assert found, f"{DAEMON} is not installed"
    return found


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

    def contents(self) -> dict[str, bytes]:
        """All that it holds, by key, whatever its type."""
        readers = {
            "string": ("GET",),
            "hash": ("HGETALL",),
            "set": ("SMEMBERS",),
            "list": ("LRANGE", "0", "-1"),
            "zset": ("ZRANGE", "0", "-1"),
        }
        found = {}
        for key in self.command("--scan").splitlines():
            words = readers.get(self.command("TYPE", key))
            if words is None:  # It has expired meanwhile.
                continue
            command = ["redis-cli", "-p", str(self.port), words[0], key, *words[1:]]
            found[key] = subprocess.check_output(command)
        return found

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

    def contents(self) -> dict[str, bytes]:
        found = self.command("/v3/kv/range", **self._EVERYTHING).get("kvs", [])
        return {
            b64decode(pair["key"]).decode(errors="replace"): b64decode(pair.get("value", ""))
            for pair in found
        }

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


def settings_for(url: str, **changes: Any) -> dict[str, Any]:
    """A small storage node on the loopback."""
    settings = {
        "local_hostname": "127.0.0.1",
        "metadata_url": url,
        "global_segment_size": 64 * MIB,
        "local_buffer_size": 16 * MIB,
    }
    return {**settings, **changes}
