"""Makes every call of the module a few times, with hits, misses and wrong arguments.

usage: python every_call.py FOLDER     (for scripts/memcheck)
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from typing import Any

import mooncake.store
from mooncake.store import BufferPool, MooncakeDistributedStore, MooncakeHostMemAllocator

MIB = 1 << 20


def values(store: Any, ptr: int) -> None:
    for turn in range(3):
        value = bytes([turn]) * (5_000 + turn)
        assert store.put("k", value) == 0 and store.get("k") == value
        assert store.put_parts("p", value, b"", bytearray(b"tail")) == 0
        assert store.batch_put([("a", value), ("b", b"")]) == 0
        assert store.put_from("f", ptr, 4096) == 0
        assert store.batch_put_from(["g", "h", "i"], [ptr, ptr, 8], [64, 4096, 64])[:2] == [0, 0]
        for runs in ((0, 2, 8, 16), (9, 100, 8, 16)):
            assert store._put_cut_from("c", b"head", ptr, 4096, *runs) == 0
        assert store._put_cut_from("c", b"head", 8, 4096, 0, 1, 8, 0) == -1
        assert store._copy_into(ptr, 64, 8, value[:56]) == 0 and store._copy_into(8, 8, 0, b"") < 0
        assert store._copy_out(ptr + 8, 56) == value[:56] and store._copy_out(8, 8) is None
        rows = [[ptr, ptr + 4096]]
        assert store.batch_put_from_multi_buffers([f"m{turn}"], rows, [[100, 100]]) == [0]
        assert store.get_into("k", ptr, 65536) == len(value)
        assert store.get_into("k", ptr, 16) < 0
        assert store.batch_get_into(["a", "gone"], [ptr] * 2, [65536] * 2)[1] == -1
        store.batch_get_into_multi_buffers(["k"], rows, [[100, 30_000]])
        store.get_into_ranges([ptr], [["k", "gone"]], [[[0], [9]]], [[[7], [0]]], [[[90], [1]]])
        view = store.get_buffer("k")
        assert view is not None and bytes(view) == value
        store.batch_get_buffer(["k", "gone"])
        store.batch_get(["k", "gone"])
        assert store.batch_is_exist(["k", "gone"]) == [1, 0]
        assert store.get_size("k") == len(value) and store.query_route("k") is not None
        store.put("too large", bytes(40 * MIB))
    store.list_segments(all=True)
    store.metrics_text()
    for call in (store.put, store.get, store.batch_get, store.get_into, store.remove):
        for wrong in ((), (1,), ("", b""), (None, None), ("k", 1, 2, 3, 4, 5, 6)):
            with contextlib.suppress(TypeError, ValueError):
                call(*wrong)
    store.batch_remove(["a", "gone"])
    store.remove("k")
    assert store.remove_all() > 0


def main() -> None:
    store = MooncakeDistributedStore()
    for wrong in ({}, {"local_hostname": "h"}, {"local_hostname": "h", "metadata_url": "x://"}):
        with contextlib.suppress(TypeError, ValueError):
            store.setup(wrong)
    settings = {
        "local_hostname": "127.0.0.1",
        "metadata_url": f"sqlite://{sys.argv[1]}/cluster.db",
        "global_segment_size": 32 * MIB,
        "local_buffer_size": 4 * MIB,
        "trace_jsonl_file": f"{sys.argv[1]}/trace.jsonl",
        "otlp_endpoint": "http://127.0.0.1:1/v1/traces",
    }
    for _ in range(2):
        store.setup(settings)
        allocator = MooncakeHostMemAllocator()
        ptr = allocator.alloc(MIB)
        assert store.register_buffer(ptr, MIB) == 0
        threads = [threading.Thread(target=values, args=(store, ptr + i * MIB // 2)) for i in (0,)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pool = BufferPool(store)
        lease = pool.acquire(4096)
        view = lease.buffer
        store.expand_local_memory(MIB)
        mooncake.store.start_metrics_server()
        assert store.unregister_buffer(ptr) == 0
        allocator.free(ptr)
        store.close()
        view[0] = 1  # A view stays valid.
        del view
        lease.release()
        pool.close()
    mooncake.store.stop_metrics_server()
    del store, pool, lease
    gc.collect()


if __name__ == "__main__":
    main()
