"""The examples of the API page, cut out of its text and run as they are printed.

The page is no part of this repository. Where no ``shared/`` folder with it lies beside the checkout
the tests are skipped; ``test_basic_real.py`` then still has the same calls.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mooncake.store import MooncakeDistributedStore
from services import DAEMON, daemon_program, free_port

PAGE = next(
    (
        page
        for folder in Path(__file__).resolve().parents
        if (page := folder / "shared" / "spec" / "python-api-page.txt").exists()
    ),
    None,
)
pytestmark = pytest.mark.skipif(PAGE is None, reason="no copy of the API page")


def section(title: str) -> list[str]:
    """The lines after a heading; headings end with a sign for their link."""
    assert PAGE is not None
    lines = PAGE.read_text().splitlines()
    return lines[lines.index(f"{title}#") + 1 :]


def program(title: str, first: str) -> str:
    """The program in a section that begins with the line ``first``: as long as it is Python."""
    lines = section(title)
    lines = lines[lines.index(first) :]
    longest = ""
    for end in range(1, min(len(lines), 60) + 1):
        text = "\n".join(lines[:end])
        try:
            ast.parse(text)
        except SyntaxError:
            continue
        longest = text
    assert longest
    return longest


def run(text: str, names: dict[str, Any], **changes: str) -> None:
    """Runs a program of the page; what it says about the machine is replaced."""
    for old, new in changes.items():
        old = REPLACED[old]
        assert old in text
        text = text.replace(old, new)
    exec(compile(text, "the page", "exec"), names)


REPLACED = {
    "url": "redis://127.0.0.1:6380/0",
    "pool_url": "redis://127.0.0.1:6379/0",
    "node_port": "17111",
    "daemon": "127.0.0.1:16590",
    "no_setup": "store = MooncakeDistributedStore()\n",
    "close": "pool.close()",
}
IMPORT = "from mooncake.store import MooncakeDistributedStore"


def test_the_basic_example(metadata_url: str) -> None:
    names: dict[str, Any] = {}
    text = program("Basic Real-Mode Example", IMPORT)
    run(text, names, url=metadata_url, node_port=str(free_port()))
    assert names["store"].query_route("hello")["key"].startswith("default::ns/sglang-chat/")
    names["store"].close()


def test_the_routed_example(metadata_url: str, node: Callable[..., Any]) -> None:
    for name in ("store-a", "store-b"):
        node(metadata_url, stable_id=name, labels={"pool": "pool-a"}, routed_writes=True)
    names: dict[str, Any] = {}
    run(program("Routed Writes", f"{IMPORT}, ReplicateConfig"), names, url=metadata_url)
    store = names["store"]
    assert store.get("key") == b"payload"
    route = store.query_route("key")
    owners = [replica["owner"].rpartition(":")[0] for replica in route["replicas"]]
    assert sorted(owners) == ["store-a", "store-b"]
    store.close()


def test_the_pool_examples(metadata_url: str) -> None:
    names: dict[str, Any] = {}
    run(program("BufferPool", "from mooncake import BufferPool"), names)
    basic = program("BufferPool", "from mooncake.store import BufferPool, MooncakeDistributedStore")
    run(basic, names, pool_url=metadata_url, close="")
    assert names["value"] == names["payload"]
    run(program("BufferPool", "with pool.acquire(4096) as lease:"), names)
    assert names["value"] == names["payload"]
    names["pool"].close()
    names["store"].close()


def test_the_structured_examples(store: MooncakeDistributedStore) -> None:
    np = pytest.importorskip("numpy")
    names: dict[str, Any] = {"store": store}
    run(program("Main types", "from mooncake.store.rs.structured_object_store import ("), names)
    # Its store is not set up in the text.
    write = program("Structured object write and full read", "import numpy as np")
    run(write, names, no_setup="")
    assert (names["tokens"] == np.arange(24, dtype=np.int32).reshape(6, 4)).all()
    assert names["prompt_ids"] == b"sample-ids"
    assert names["metadata"]["step"] == 7 and names["metadata"]["layout"] == "rollout"
    run(program("Partial reads", "spec = ("), names)
    assert names["selected_tokens"].tolist() == names["tokens"][2:5].tolist()
    first = "destination = np.empty((3, 4), dtype=np.int32)"
    run(program("Reusing caller-owned destinations", first), names)
    assert names["destination"].tolist() == names["tokens"][2:5].tolist()


def test_the_dummy_example(sqlite_url: str) -> None:
    lines = section("Basic Dummy-Mode Example")
    begin = lines.index("mooncake-store-rs-client \\")
    end = next(i for i in range(begin, len(lines)) if not lines[i].endswith("\\"))
    address = f"127.0.0.1:{free_port()}"
    command = "\n".join(lines[begin : end + 1]).replace(DAEMON, daemon_program(), 1)
    for old, new in (("url", sqlite_url), ("daemon", address)):
        assert REPLACED[old] in command
        command = command.replace(REPLACED[old], new)
    daemon = subprocess.Popen(["bash", "-c", f"exec {command}"], stderr=subprocess.PIPE, text=True)
    try:
        assert daemon.stderr is not None
        assert any(" started " in line for line in iter(daemon.stderr.readline, ""))
        names: dict[str, Any] = {}
        text = program("Basic Dummy-Mode Example", f"{IMPORT}, MooncakeHostMemAllocator")
        run(text, names, daemon=address)
        assert names["store"].batch_put_from(["k"], [names["ptr"]], [4096]) == [0]
        names["store"].close()
        daemon.terminate()
        daemon.communicate(timeout=15)
        assert daemon.returncode == 0
    finally:
        daemon.kill()
        daemon.communicate()


def test_the_allocator_example() -> None:
    text = program(
        "Host Allocator and Hugepages", "from mooncake.store import MooncakeHostMemAllocator"
    )
    with open("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages") as file:
        free = int(file.read())
    if free > 0:
        run(text, {})
        return
    with pytest.raises(RuntimeError, match="huge"):  # The page: the kernel must have them.
        run(text, {})
