"""Credentials and TLS of the metadata service, and what clients leave behind in it."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from services import Redis, free_port
from support import LONG, MIB, at_most, eventually

# A password that breaks URLs, protocols and logs that are careless.
PASSWORD = "p@ss:w/rd %41\"'\\{}?#&="
SMALL = {"global_segment_size": 16 * MIB, "local_buffer_size": MIB, "lease_ttl_ms": 2000}


class SecureRedis(Redis):
    """With a user, a password, and TLS on both sides."""

    def __init__(self, folder: Path) -> None:
        self.tls_port = free_port()
        self._files = folder
        for name in ("ca", "server", "client"):
            self._make(name)
        super().__init__(folder)
        self.command("ACL", "SETUSER", "us:er", "on", f">{PASSWORD}", "~*", "+@all")
        self.command("CONFIG", "SET", "requirepass", PASSWORD)

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self._files, check=True, capture_output=True)

    def _make(self, name: str) -> None:
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        key += ["-keyout", f"{name}.key", "-subj", f"/CN={name}"]
        if name == "ca":
            self._openssl("req", "-x509", "-days", "2", *key, "-out", "ca.pem")
            return
        self._openssl("req", "-new", *key, "-out", f"{name}.csr")
        (self._files / "names").write_text("subjectAltName=IP:127.0.0.1")
        signer = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"]
        self._openssl("x509", "-req", "-in", f"{name}.csr", *signer, "-out", f"{name}.pem")

    def arguments(self) -> list[str]:
        words = ["--tls-port", str(self.tls_port)]
        files = {"ca-cert": "ca.pem", "cert": "server.pem", "key": "server.key"}
        for option, file in files.items():
            words += [f"--tls-{option}-file", str(self._files / file)]
        return words

    def secure_url(self, password: str = PASSWORD, **tls: str) -> str:
        files = {"tls_ca": "ca.pem", "tls_cert": "client.pem", "tls_key": "client.key", **tls}
        query = {name: str(self._files / file) for name, file in files.items() if file}
        quoted = urllib.parse.quote(password, safe="")
        parameters = urllib.parse.urlencode(query, quote_via=urllib.parse.quote)
        return f"rediss://us%3Aer:{quoted}@127.0.0.1:{self.tls_port}/3?{parameters}"


@pytest.fixture
def secure(tmp_path: Path) -> Any:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    server = SecureRedis(tmp_path)
    yield server
    server.stop()


def spellings(password: str) -> list[str]:
    return [password, urllib.parse.quote(password, safe=""), urllib.parse.quote(password)]


def test_user_password_database_and_tls_work_together(
    secure: SecureRedis, node: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    nodes = [node(secure.secure_url(), stable_id=f"n{i}", **SMALL) for i in range(2)]
    assert nodes[0].put_all(["k"]) == [0]
    assert nodes[1].read_all(["k"])["right"] == ["k"]
    login = ("-a", PASSWORD, "--no-auth-warning")
    assert secure.command(*login, "-n", "0", "DBSIZE") == "0"
    assert int(secure.command(*login, "-n", "3", "DBSIZE")) > 0
    said = [one.metrics_text() for one in nodes]
    secure.stop()  # So that heartbeats fail, and say so.

    def complained() -> bool:
        said.append(capfd.readouterr().err)
        return "heartbeat.failed" in "".join(said)

    eventually(complained)
    assert not [word for word in spellings(PASSWORD) if word in "".join(said)]


@pytest.mark.parametrize("wrong", ["password", "ca", "no client certificate"])
def test_a_refused_setup_says_why_and_not_the_password(
    secure: SecureRedis,
    spawn: Callable[[], Any],
    settings: Callable[..., Any],
    capfd: pytest.CaptureFixture[str],
    wrong: str,
) -> None:
    url = {
        "password": lambda: secure.secure_url("another p@ss"),
        "ca": lambda: secure.secure_url(tls_ca="server.pem"),
        "no client certificate": lambda: secure.secure_url(tls_cert="", tls_key=""),
    }[wrong]()
    client = spawn()
    with pytest.raises(RuntimeError) as refused:
        client.setup(settings(url, **SMALL, startup_timeout_ms=1000))
    text = str(refused.value)
    assert re.search("rediss://127.0.0.1", text)
    assert re.search({"password": "WRONGPASS", "ca": "certificate"}.get(wrong, "."), text)
    everything = text + "".join(capfd.readouterr())
    for password in (PASSWORD, "another p@ss"):
        assert not [word for word in spellings(password) if word in everything]
    # The object can be set up again.
    assert client.setup(settings(secure.secure_url(), **SMALL)) == 0


@pytest.mark.parametrize("wrong", ["no password", "password", "database"])
def test_wrong_credentials_end_setup_at_once(
    redis: Redis, spawn: Callable[[], Any], settings: Callable[..., Any], wrong: str
) -> None:
    """No time makes them right: the 20 s for a service that starts late are not waited for."""
    password = "s3cret:/@"
    redis.command("CONFIG", "SET", "requirepass", password)
    url = {
        "no password": redis.url,
        "password": redis.url.replace("://", "://:an0ther@"),
        "database": redis.url.replace("://", "://:s3cret%3A%2F%40@").rsplit("/", 1)[0] + "/4711",
    }[wrong]
    client = spawn()
    with at_most(8.0), pytest.raises(RuntimeError) as refused:
        client.setup(settings(url, **SMALL))
    text = str(refused.value)
    assert re.search(r"127\.0\.0\.1:\d+", text)
    assert not [word for word in ("an0ther", *spellings(password)) if word in text]


class Knocks:
    """Somebody at the address of a service that is away: when clients came, on the clock."""

    def __init__(self, port: int) -> None:
        self.times: list[float] = []
        self._listener = socket.create_server(("127.0.0.1", port), backlog=128)
        self._listener.settimeout(0.1)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Knocks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while not self._done.is_set():
            with contextlib.suppress(TimeoutError):
                visitor, _ = self._listener.accept()
                self.times.append(time.monotonic())
                # No end of ours is left that would keep the service from its port.
                visitor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                visitor.close()


def test_all_are_back_soon_after_the_service(service: Any, node: Callable[..., Any]) -> None:
    """MD-06. That they come at different moments: ``Membership.ThoseThatWaitForTheService...``."""
    lasting = {**SMALL, "lease_ttl_ms": 30_000}
    nodes = [node(service.url, stable_id=f"n{i}", **lasting) for i in range(16 if LONG else 6)]
    service.stop()
    service.wipe()
    with Knocks(service.port) as knocks:
        start = time.monotonic()
        eventually(lambda: time.monotonic() - start > (60 if LONG else 4), 90)
    assert len(knocks.times) >= len(nodes), "they go on trying"
    back_ms = time.time() * 1000
    service.start()

    def renewed_ms(one: Any) -> float:
        found = re.search(
            r"^\S*heartbeat_last_success_ms\S* (\S+)", one.metrics_text(), re.MULTILINE
        )
        return float(found[1]) if found else 0.0

    eventually(lambda: min(map(renewed_ms, nodes)) > back_ms, 5)


def test_killed_clients_leave_nothing_behind(redis: Any, node: Callable[..., Any]) -> None:
    stays = node(redis.url, stable_id="stays", **SMALL)
    dies = node(redis.url, stable_id="first", **SMALL)
    dies.kill()

    def members() -> int:
        return int(redis.command("HLEN", "{mc/store-rs/v2}/leases"))

    eventually(lambda: members() == 1, 10)
    before = redis.keys()
    for number in range(200 if LONG else 8):
        dies = node(redis.url, stable_id=f"dies-{number}", **SMALL)
        assert dies.put_all([f"{number}/{k}" for k in range(10)]) == [0] * 10
        dies.kill()
    eventually(lambda: members() == 1, 10)
    assert redis.keys() == before
    assert stays.put_all(["k"]) == [0]
