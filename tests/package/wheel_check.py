"""Tries a repaired wheel: contents, a clean environment, every executable, import beside others.

usage: python wheel_check.py WHEEL     (with the interpreter that the wheel is for)

Needs readelf, redis-server for a part of it, and PyPI for the packages that the wheel is imported
beside.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

IMPORT_MS_MAX = 60
NEIGHBOURS = ["numpy", "grpcio", "protobuf"]
MODULES = ["numpy", "grpc", "google.protobuf.message", "mooncake.store"]
EXECUTABLES = ["mooncake-store-rs-client", "mooncake-store-rs-bench", "mooncake-store-rs-admin"]
# What a machine may lack, or has in another version.
FOREIGN = re.compile(r"cuda|nvidia|ibverbs|rdmacm|hiredis|nghttp2|grpc|protobuf|libstdc\+\+")
EXAMPLE = """
from mooncake.store import MooncakeDistributedStore
import mooncake.store._native as native
assert native.native.__file__.startswith({prefix!r}), native.native.__file__
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 32 << 20, 16 << 20, "tcp", "", {url!r}) == 0
assert store.put("hello", b"world") == 0 and store.get("hello") == b"world"
assert store.metrics_text()
store.close()
print("ran")
"""


def run(*command: str, **environment: str) -> str:
    clean = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "LD_", "MC_"))}
    done = subprocess.run(
        command, env={**clean, **environment}, text=True, capture_output=True, timeout=300
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def check_libraries(wheel: Path, folder: Path) -> None:
    """No absolute search path, and nothing foreign that the wheel does not carry."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    carried = {path.name for path in folder.rglob("*") if path.is_file()}
    objects = 0
    for path in folder.rglob("*"):
        if not path.is_file() or path.read_bytes()[:4] != b"\x7fELF":
            continue
        objects += 1
        dynamic = run("readelf", "-d", str(path))
        for search in re.findall(r"(?:RPATH|RUNPATH).*\[(.*)\]", dynamic):
            for entry in search.split(":"):
                assert entry.startswith("$ORIGIN"), f"{path.name}: search path {entry}"
        for needed in re.findall(r"NEEDED.*\[(.*)\]", dynamic):
            foreign = FOREIGN.search(needed) and not needed.startswith("libstdc++")
            assert needed in carried or not foreign, f"{path.name} needs {needed}"
    assert objects >= 2
    print(f"  {objects} objects; every search path is relative")


def make_environment(folder: Path, wheel: Path, *others: str) -> Path:
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    run(*pip, "--no-deps", str(wheel))
    if others:
        run(*pip, *others)
    return python


@contextlib.contextmanager
def private_redis(folder: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    server = subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.DEVNULL)
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.kill()
        server.wait()


def check_redis(python: Path, folder: Path) -> None:
    """The wheel needs no other package for it. Setup itself waits for the server to answer."""
    if shutil.which("redis-server") is None:
        print("  not tried with Redis: there is no redis-server")
        return
    with private_redis(folder) as url:
        example = EXAMPLE.format(url=url, prefix=str(python.parents[1]))
        assert run(str(python), "-c", example).strip() == "ran"
    print("  ran with Redis")


def check_executables(binaries: Path, url: str) -> None:
    present = [name for name in EXECUTABLES if (binaries / name).exists()]
    assert "mooncake-store-rs-client" in present and "mooncake-store-rs-bench" in present
    for name in present:
        text = run(str(binaries / name), "--help")
        assert name in text and "--help" in text, text
    seconds = int(os.environ.get("MC_WHEEL_DAEMON_S", "5"))
    command = [str(binaries / "mooncake-store-rs-client"), "run", "--local-hostname", "127.0.0.1"]
    command += ["--metadata-url", url, "--storage-bytes", "32MB"]
    daemon = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        time.sleep(seconds)
        assert daemon.poll() is None, daemon.communicate()[1]
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(15) == 0
    finally:
        daemon.kill()
        daemon.communicate()
    print(f"  {', '.join(present)}; the daemon ran for {seconds} s and ended with 0")


def check_import_orders(python: Path) -> None:
    for order in itertools.permutations(MODULES):
        run(str(python), "-c", f"import {', '.join(order)}")
    print(f"  imported beside {', '.join(NEIGHBOURS)} in every order")


def import_ms(python: Path) -> tuple[float, float]:
    """What importing the store takes at best: by the clock, and of the processor."""
    program = (
        "import time; clock, cpu = time.perf_counter(), time.process_time()\n"
        "from mooncake.store import MooncakeDistributedStore, BufferPool, ReplicateConfig\n"
        "print(time.perf_counter() - clock, time.process_time() - cpu)"
    )
    runs = [tuple(map(float, run(str(python), "-c", program).split())) for _ in range(7)]
    clock, cpu = (min(column) * 1000 for column in zip(*runs))
    return clock, cpu


def main() -> None:
    wheel = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        url = f"sqlite://{folder}/cluster.db"
        check_libraries(wheel, folder / "unpacked")
        python = make_environment(folder / "clean", wheel)
        example = EXAMPLE.format(url=url, prefix=str(folder / "clean"))
        assert run(str(python), "-c", example).strip() == "ran"
        check_redis(python, folder)
        check_executables(folder / "clean" / "bin", f"sqlite://{folder}/daemon.db")
        clock, cpu = import_ms(python)
        # Said, not required: others may be busy on this machine.
        remark = (
            "" if cpu <= IMPORT_MS_MAX else f"; more than {IMPORT_MS_MAX}: is the machine idle?"
        )
        print(f"  import mooncake.store: {clock:.0f} ms, {cpu:.0f} ms of the processor{remark}")
        beside = make_environment(folder / "beside", wheel, *NEIGHBOURS)
        check_import_orders(beside)
        example = "import numpy, grpc, google.protobuf.message\n" + EXAMPLE.format(
            url=f"sqlite://{folder}/beside.db", prefix=str(folder / "beside")
        )
        assert run(str(beside), "-c", example).strip() == "ran"
    print(f"  {wheel.name} is good")


if __name__ == "__main__":
    main()
