"""The demo: starts the processes, forwards what they say, prints the table. See scripts/demo."""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

NODE = Path(__file__).with_name("node.py")
STORAGE_PROCESSES = 2
START_LIMIT_S = 60
RUN_LIMIT_S = 240
END_LIMIT_S = 10
BAR_WIDTH = 40


class Failed(Exception):
    """What went wrong, for a person."""


class Process:
    """A child that speaks JSON lines."""

    def __init__(self, role: str, settings: dict[str, Any], events: queue.Queue[Any]) -> None:
        self.role = role
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        self.child = subprocess.Popen(
            [sys.executable, str(NODE), role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.tell(json.dumps(settings))  # Not as an argument: a URL may hold a password.
        self._events = events
        threading.Thread(target=self._forward, daemon=True).start()

    def _forward(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self._events.put((self, json.loads(line)))
        self._events.put((self, {"event": "end"}))

    def tell(self, line: str) -> None:
        assert self.child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.write(line + "\n")
            self.child.stdin.flush()

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-4000:]

    def end(self) -> None:
        """Asks, waits, kills."""
        assert self.child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.close()
        try:
            self.child.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.log.close()


class Bar:
    """Shows how far the writer and the reader are; silent where nobody looks."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._done = {"writer": 0.0, "reader": 0.0}

    def show(self, role: str, done: int, total: int) -> None:
        self._done[role] = done / total
        if not self._shown:
            return
        parts = [f"{role} {self._draw(part)}" for role, part in self._done.items()]
        sys.stderr.write("\r" + "   ".join(parts))
        sys.stderr.flush()

    def _draw(self, part: float) -> str:
        filled = round(part * BAR_WIDTH / 2)
        return "#" * filled + "." * (BAR_WIDTH // 2 - filled) + f" {part:4.0%}"

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * (2 * BAR_WIDTH + 20) + "\r")


class Demo:
    def __init__(self, options: argparse.Namespace, folder: str) -> None:
        url = options.redis or f"sqlite://{folder}/cluster.db"
        values = 2 * (2 + options.documents * (16 + 2 * 3))  # About what workload.py makes.
        size = options.layers * (32 << 10)
        self._settings = {
            "store": {
                "local_hostname": "127.0.0.1",
                "metadata_url": url,
                "keyspace": f"demo-{time.time_ns()}",
                "global_segment_size": 0,
                "local_buffer_size": 0,
            },
            # Room for all of it on either of them: nothing has to be evicted.
            "segment_bytes": max(64 << 20, values * (size + 4096)),
            "documents": options.documents,
            "layers": options.layers,
        }
        self._events: queue.Queue[tuple[Process, dict[str, Any]]] = queue.Queue()
        self._processes: list[Process] = []
        self._bar = Bar()

    def start(self, *roles: str) -> list[Process]:
        started = [Process(role, self._settings, self._events) for role in roles]
        self._processes += started
        return started

    def await_event(self, event: str, count: int, limit_s: float) -> dict[str, Any]:
        """Until so many processes have said so; what they said, by role."""
        deadline = time.monotonic() + limit_s
        found: dict[str, Any] = {}
        while count > 0:
            try:
                process, message = self._events.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                raise Failed(f"no answer within {limit_s} s") from None
            if message["event"] == event:
                found[process.role] = message
                count -= 1
            elif message["event"] == "progress":
                self._bar.show(process.role, message["done"], message["total"])
                if process.role == "writer":
                    for other in self._processes:
                        if other.role == "reader":
                            other.tell("next")
            elif message["event"] == "end" and process.role not in found:
                raise Failed(f"the {process.role} ended early:\n{process.said()}")
        return found

    def run(self) -> dict[str, Any]:
        self.start(*["storage"] * STORAGE_PROCESSES)
        self.await_event("ready", STORAGE_PROCESSES, START_LIMIT_S)
        writer, reader = self.start("writer", "reader")
        facts = self.await_event("ready", 2, START_LIMIT_S)["writer"]
        print(
            f"demo: {STORAGE_PROCESSES} storage processes "
            f"{[p.child.pid for p in self._processes[:STORAGE_PROCESSES]]}, "
            f"a writer [{writer.child.pid}], a reader [{reader.child.pid}]\n"
            f"demo: {facts['tokens']} tokens of {facts['source']}",
            flush=True,
        )
        writer.tell("go")
        try:
            return self.await_event("result", 2, RUN_LIMIT_S)
        finally:
            self._bar.clear()

    def end(self) -> None:
        # Those that use the storage first.
        for process in reversed(self._processes):
            process.end()


def table(results: dict[str, Any]) -> str:
    writer, reader = results["writer"], results["reader"]
    rows = [
        ("writer", "batch_put_from", writer["keys"], writer["bytes"], "", writer["put"]),
        ("writer", "batch_is_exist", "", None, "", writer["exist"]),
        (
            "reader",
            "batch_get_into",
            reader["keys"],
            reader["bytes"],
            f"{reader['keys'] / max(reader['wanted'], 1):.1%}",
            reader["get"],
        ),
        ("reader", "batch_is_exist", reader["wanted"], None, "", reader["exist"]),
    ]
    line = "{:<8} {:<16} {:>6} {:>10} {:>9} {:>6} {:>9} {:>9}"
    lines = [line.format("", "call", "keys", "MiB", "hit rate", "GiB/s", "p50 ms", "p99 ms")]
    for role, call, keys, moved, hits, timing in rows:
        mib = "" if moved is None else f"{moved / 2**20:.1f}"
        speed = "" if moved is None else f"{timing['gib_per_s']:.2f}"
        p50, p99 = f"{timing['p50_ms']:.2f}", f"{timing['p99_ms']:.2f}"
        lines.append(line.format(role, call, keys, mib, hits, speed, p50, p99))
    return "\n".join(lines)


def verdict(results: dict[str, Any]) -> str:
    """Empty: every byte was right."""
    writer, reader = results["writer"], results["reader"]
    faults = [
        f"{writer['failed']} values were not written" if writer["failed"] else "",
        f"{reader['wrong']} bytes were wrong" if reader["wrong"] else "",
        f"{reader['lost']} values were missing" if reader["lost"] else "",
        "nothing was read" if reader["keys"] == 0 else "",
    ]
    return ", ".join(fault for fault in faults if fault)


def main() -> int:
    parser = argparse.ArgumentParser("demo")
    parser.add_argument("--redis", metavar="URL")
    parser.add_argument("--documents", type=int, default=24)
    parser.add_argument("--layers", type=int, default=8)
    options = parser.parse_args()
    if not 1 <= options.documents <= 1000 or not 2 <= options.layers <= 32:
        parser.error("--documents is 1 to 1000, --layers 2 to 32")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mooncake-demo-") as folder:
        demo = Demo(options, folder)
        try:
            results = demo.run()
        except Failed as failure:
            print(f"demo: {failure}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        finally:
            demo.end()
    print(table(results))
    fault = verdict(results)
    right = f"every byte of {results['reader']['keys']} values was right"
    print(f"demo: {fault or right} ({time.monotonic() - start:.1f} s)")
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
