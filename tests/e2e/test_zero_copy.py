"""Values go between the caller's memory and the network without a copy in this process.

A preloaded library counts the bytes of every memcpy and memmove, whoever calls it. The process has
no storage of its own, so that a value goes nowhere but through a socket.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or platform.machine() != "x86_64", reason="needs cc on x86-64"
)
SIZE = 8 << 20
# Messages, keys and what the interpreter does by itself.
OTHER_MAX = SIZE // 16

PROGRAM = f"""
import ctypes, json, os, sys
from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator
SIZE = {SIZE}
count = ctypes.CDLL(sys.argv[2]).copied_bytes
count.restype = ctypes.c_ulong
store = MooncakeDistributedStore()
store.setup({{"local_hostname": "127.0.0.1", "metadata_url": sys.argv[1],
             "global_segment_size": 0, "local_buffer_size": "4MB", "routed_writes": True}})
base = MooncakeHostMemAllocator().alloc(4 * SIZE)
assert store.register_buffer(base, 4 * SIZE) == 0
ctypes.memset(base, 65, 4 * SIZE)
value = bytes(SIZE)
half = SIZE // 2
into = base + 2 * SIZE
calls = {{
    "put_from": lambda: store.put_from("a", base, SIZE),
    "batch_put_from": lambda: store.batch_put_from(["b", "c"], [base] * 2, [SIZE] * 2),
    "batch_put_from_multi_buffers": lambda: store.batch_put_from_multi_buffers(
        ["d"], [[base, base + SIZE]], [[half, half]]),
    "put": lambda: store.put("e", value),
    "put_parts": lambda: store.put_parts("f", value, value),
    "get_into": lambda: store.get_into("a", into, SIZE),
    "batch_get_into": lambda: store.batch_get_into(["b", "c"], [into, into + SIZE], [SIZE] * 2),
    "batch_get_into_multi_buffers": lambda: store.batch_get_into_multi_buffers(
        ["d"], [[into, into + SIZE]], [[half, half]]),
    "get_into_ranges": lambda: store.get_into_ranges(
        [into], [["a"]], [[[0, half]]], [[[half, 0]]], [[[half, half]]]),
    "get": lambda: len(store.get("a")),
    "batch_get": lambda: len(store.batch_get(["b", "c"])),
}}
counts = {{}}
for name, call in calls.items():
    before = count()
    answer = call()
    counts[name] = [count() - before, answer]
before = count()
bytes(memoryview(value))
counts["a copy"] = [count() - before, 0]
print(json.dumps(counts))
store.close()
"""


def test_no_call_copies_payload(node: Callable[..., Any], sqlite_url: str, tmp_path: Path) -> None:
    library = tmp_path / "count_copies.so"
    source = Path(__file__).with_name("count_copies.c")
    flags = ["-O1", "-fno-builtin", "-fno-tree-loop-distribute-patterns", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, "-o", str(library), str(source)], check=True)
    node(sqlite_url, global_segment_size="256MB")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, sqlite_url, str(library)],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts.pop("a copy")[0] >= SIZE, "the library counts"
    answers = {name: answer for name, (_, answer) in counts.items()}
    assert answers == {
        "put_from": 0,
        "batch_put_from": [0, 0],
        "batch_put_from_multi_buffers": [0],
        "put": 0,
        "put_parts": 0,
        "get_into": SIZE,
        "batch_get_into": [SIZE, SIZE],
        "batch_get_into_multi_buffers": [SIZE],
        "get_into_ranges": [[[SIZE // 2, SIZE // 2]]],
        "get": SIZE,
        "batch_get": 2,
    }
    copied = {name: count for name, (count, _) in counts.items()}
    assert all(count < OTHER_MAX for count in copied.values()), copied
