"""Every way to call ``setup``, and what a failed one leaves behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mooncake.store import MooncakeDistributedStore

MIB = 1 << 20
Settings = Callable[..., dict[str, Any]]


def set_up(**settings: Any) -> MooncakeDistributedStore:
    store = MooncakeDistributedStore()
    assert store.setup(settings) == 0
    return store


def test_positional_arguments(sqlite_url: str) -> None:
    store = MooncakeDistributedStore()
    args = ("127.0.0.1", "P2PHANDSHAKE", "16MB", 4 * MIB, "tcp", "", sqlite_url)
    assert store.setup(*args) == 0
    assert store.put("k", b"v") == 0
    assert store.setup(*args, None) == 0  # Closes the first one.
    with pytest.raises(TypeError, match="at most 8"):
        store.setup(*args, None, None)
    with pytest.raises(TypeError, match="global_segment_size"):
        store.setup("127.0.0.1", "P2PHANDSHAKE")
    with pytest.raises(TypeError, match="multiple values.*'protocol'"):
        store.setup(*args, protocol="tcp")
    with pytest.raises(TypeError, match="not both"):
        store.setup({}, protocol="tcp")
    store.close()


def test_names_and_aliases(settings: Settings, sqlite_url: str) -> None:
    plain = settings(sqlite_url)
    url = plain.pop("metadata_url")
    for alias in ("master_server", "master_server_addr", "master_server_address", "metadata_url"):
        store = set_up(
            **plain,
            **{alias: url},
            metadata_server="P2PHANDSHAKE",
            rdma_devices="",
            state="Active ",
            tenant_id="t",
        )
        store.put("k", b"v")
        assert store.get("k", tenant="t") == b"v"
        store.close()


def test_dict_defaults_and_strings(sqlite_url: str) -> None:
    store = set_up(local_hostname="127.0.0.1", metadata_url=sqlite_url)
    assert store.local_buffer_pool_capacity() == 16 * MIB
    assert store.list_segments()[0]["capacity_bytes"] == 16 * MIB
    store.close()
    store = set_up(
        local_hostname="127.0.0.1",
        metadata_url=sqlite_url,
        global_segment_size="33554432",
        local_buffer_size="2 MiB",
        routed_writes="yes",
        replica_count="1",
    )
    assert store.local_buffer_pool_capacity() == 2 * MIB
    assert store.list_segments()[0]["capacity_bytes"] == 32 * MIB
    store.close()


@pytest.mark.parametrize(
    ("text", "size"), [(16 * MIB, 16), ("16MB", 16), (" 2 GiB ", 2048), ("1.5gb", 1536), ("8m", 8)]
)
def test_sizes(settings: Settings, sqlite_url: str, text: Any, size: int) -> None:
    store = set_up(**settings(sqlite_url, local_buffer_size=text, global_segment_size=MIB))
    assert store.local_buffer_pool_capacity() == size * MIB
    store.close()


@pytest.mark.parametrize("text", [-1, "-5", "50%", 1 << 64, "abc", "1.5.5MB", "12 parsecs"])
@pytest.mark.parametrize("form", ["positional", "dict", "environment"])
def test_bad_sizes(monkeypatch: pytest.MonkeyPatch, sqlite_url: str, text: Any, form: str) -> None:
    store = MooncakeDistributedStore()
    config = {"local_hostname": "127.0.0.1", "metadata_url": sqlite_url}
    name = "global_segment_size"
    if form == "environment":
        name = "MC_STORE_RS_STORAGE_BYTES"
        monkeypatch.setenv(name, str(text))
    elif form == "dict":
        config[name] = text
    with pytest.raises(ValueError, match=name) as raised:
        if form == "positional":
            store.setup("127.0.0.1", "", text, MIB, "tcp", "", sqlite_url)
        else:
            store.setup(config)
    assert str(text) in str(raised.value)
    assert store.health_check() == 1


BAD: list[tuple[dict[str, Any], str]] = [
    ({"metadata_url": ""}, "metadata_url.*redis://"),
    ({"metadata_url": "http://127.0.0.1:1/metadata"}, "metadata_url.*sqlite://.*etcd://"),
    ({"metadata_url": "sqlite://relative.db"}, "metadata_url"),
    ({"transport_metadata_url": "http://h"}, "transport_metadata_url.*P2PHANDSHAKE"),
    ({"protocol": "udp"}, "protocol.*udp.*tcp, rdma, auto"),
    ({"initial_state": "asleep"}, "initial_state.*asleep.*standby"),
    ({"route_control": "x"}, "route_control.*embedded_wrh"),
    ({"transport_backend": "x"}, "transport_backend.*classic_te"),
    ({"route_topk": 1}, "route_topk.*1.*2 to 64"),
    ({"slot_bits": 15}, "slot_bits.*15.*0, or 16 to 21"),
    ({"slot_bits": 22}, "slot_bits.*22.*0, or 16 to 21"),
    ({"replica_count": -1}, "replica_count.*-1"),
    ({"local_hostname": "h:99999"}, "local_hostname.*h:99999"),
    ({"local_hostname": "h:5", "transport_rpc_port": 6}, "transport_rpc_port.*6.*h:5"),
    ({"transport_rpc_port": 70000}, "transport_rpc_port.*70000.*65535"),
    ({"labels": {"storage": "true"}, "global_segment_size": 0}, "global_segment_size"),
    ({"labels": {"storage": "false"}}, "routed_writes"),
    ({"global_segment_size": 1}, "global_segment_size.*1.*at least 4096"),
    ({"labels": "pool"}, "labels.*pool"),
    ({"eviction_high_watermark_percent": 101}, "eviction_high_watermark_percent.*101"),
    ({"eviction_high_watermark_percent": 0}, "eviction_high_watermark_percent.*1 to 100"),
    (
        {"eviction_high_watermark_percent": 50, "eviction_low_watermark_percent": 50},
        "eviction_low_watermark_percent.*50.*eviction_high_watermark_percent",
    ),
    ({"hugepage_size": "3MB"}, "hugepage_size.*3MB.*2MB or 1GB"),
    ({"lease_ttl_ms": 0}, "lease_ttl_ms"),
    ({"lease_ttl_ms": 604_800_001}, "lease_ttl_ms.*604800001.*1 to 604800000"),
    ({"expires_at_ms": 1 << 60}, f"expires_at_ms is {1 << 60}; allowed: at most 604800000 ms"),
    ({"expires_at_ms": 1}, "expires_at_ms"),
    ({"routed_writes": "maybe"}, "routed_writes.*maybe"),
]


@pytest.mark.parametrize("name", ["local_hostname", "stable_id", "local_segment_name"])
def test_a_nul_in_a_text_is_refused(settings: Settings, sqlite_url: str, name: str) -> None:
    store = MooncakeDistributedStore()
    with pytest.raises(
        ValueError, match=rf"^setup: {name} is 'a\\x00b'; allowed: text without NUL"
    ):
        store.setup(settings(sqlite_url, **{name: "a\0b"}))


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:1/0", "etcd://127.0.0.1:1", "sqlite:///proc/none/cluster.db"]
)
def test_a_metadata_service_that_is_not_there_is_named(settings: Settings, url: str) -> None:
    store = MooncakeDistributedStore()
    with pytest.raises(RuntimeError, match="^Metadata: metadata_url: ") as raised:
        store.setup(settings(url, startup_timeout_ms=300))
    assert str(raised.value).count("metadata_url") == 1


@pytest.mark.parametrize(("changes", "text"), BAD)
def test_bad_values_are_named(
    settings: Settings, sqlite_url: str, changes: dict[str, Any], text: str
) -> None:
    store = MooncakeDistributedStore()
    with pytest.raises(ValueError, match=text):
        store.setup(settings(sqlite_url, **changes))
    positional = settings(sqlite_url, **changes)
    with pytest.raises(ValueError, match=text):
        store.setup(**positional)
    assert store.health_check() == 1


def test_passwords_are_never_shown(settings: Settings) -> None:
    with pytest.raises(ValueError) as raised:
        MooncakeDistributedStore().setup(settings("mysql://user:hunter2@h/0"))
    assert "hunter2" not in str(raised.value) and "***" in str(raised.value)


def test_wrong_types(settings: Settings, sqlite_url: str) -> None:
    store = MooncakeDistributedStore()
    for changes in ({"labels": [1]}, {"global_segment_size": 1.5}, {"protocol": b"tcp"}):
        with pytest.raises(TypeError, match=next(iter(changes))):
            store.setup(settings(sqlite_url, **changes))
    with pytest.raises(TypeError, match="enable_ssd_offload"):
        store.setup(settings(sqlite_url, enable_ssd_offload=True))
    with pytest.raises(TypeError, match="local_hostname"):
        store.setup({"metadata_url": sqlite_url})


def test_unknown_names(settings: Settings, sqlite_url: str) -> None:
    store = MooncakeDistributedStore()
    with pytest.warns(UserWarning, match="'replica_cuont'.*'replica_count'"):
        store.setup(settings(sqlite_url, replica_cuont=2))
    store.close()
    with pytest.raises(TypeError, match="'replica_cuont'.*'replica_count'"):
        store.setup(**settings(sqlite_url), replica_cuont=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.setup(settings(sqlite_url, engine=None, ssd_offload_path="", client_http_port=0))
    store.close()


def test_environment(monkeypatch: pytest.MonkeyPatch, settings: Settings, sqlite_url: str) -> None:
    monkeypatch.setenv("MC_STORE_RS_METADATA_URL", sqlite_url)
    monkeypatch.setenv("MC_STORE_RS_STABLE_ID", "from-environment")
    monkeypatch.setenv("MC_STORE_RS_TENANT", "t")
    monkeypatch.setenv("MC_STORE_RS_LABELS", '{"pool": "p"}')
    store = set_up(local_hostname="127.0.0.1")
    assert store.list_segments()[0]["owner"].startswith("from-environment:")
    store.put("k", b"v")
    assert store.get("k", tenant="t") == b"v"
    store.close()
    store = set_up(local_hostname="127.0.0.1", stable_id="explicit", tenant="")
    assert store.list_segments()[0]["owner"].startswith("explicit:")
    store.close()
    with pytest.raises(ValueError, match="metadata_url"):
        store.setup("127.0.0.1", "", MIB, MIB)
    monkeypatch.setenv("MC_STORE_RS_ROUTE_TOPK", "1")
    with pytest.raises(ValueError, match="MC_STORE_RS_ROUTE_TOPK"):
        store.setup(settings(sqlite_url))


def test_port_of_the_hostname(settings: Settings, sqlite_url: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store = set_up(**settings(sqlite_url, local_hostname=f"127.0.0.1:{port}"))
    assert store.get_hostname() == f"127.0.0.1:{port}"
    store.close()


def test_generated_ids_are_unique(
    open_store: Callable[..., MooncakeDistributedStore], sqlite_url: str
) -> None:
    stores = [open_store(sqlite_url, global_segment_size=MIB) for _ in range(3)]
    assert len({store.list_segments()[0]["owner"] for store in stores}) == 3


def test_a_live_holder_of_the_name_is_named(
    open_store: Callable[..., MooncakeDistributedStore], settings: Settings, sqlite_url: str
) -> None:
    open_store(sqlite_url, stable_id="taken")
    with pytest.raises(RuntimeError, match="taken"):
        MooncakeDistributedStore().setup(settings(sqlite_url, stable_id="taken"))


def test_setup_again_after_close(settings: Settings, sqlite_url: str) -> None:
    store = MooncakeDistributedStore()
    for _ in range(3):
        store.setup(settings(sqlite_url, stable_id="again"))
        assert store.put("k", b"v") == 0
        store.close()
        store.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_a_failed_setup_leaves_nothing_behind(settings: Settings, sqlite_url: str) -> None:
    store = MooncakeDistributedStore()
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        bad: list[dict[str, Any]] = [
            {"metadata_url": "nonsense://x"},
            {"transport_rpc_port": port},
            {"global_segment_size": "1000TB"},
            {"eviction_high_watermark_percent": 10, "eviction_low_watermark_percent": 90},
        ]
        for changes in bad:  # Whatever is loaded on first use is loaded now.
            with pytest.raises((ValueError, RuntimeError)):
                store.setup(settings(sqlite_url, **changes))
        before = descriptors(), threads()
        for changes in bad * 25:
            with pytest.raises((ValueError, RuntimeError)):
                store.setup(settings(sqlite_url, **changes))
        assert descriptors() <= before[0] and threads() <= before[1]
    assert store.setup(settings(sqlite_url)) == 0
    assert store.list_segments(all=True) == store.list_segments()
    store.close()
    assert descriptors() <= before[0] and threads() <= before[1]


def test_unreachable_metadata_fails_in_time(settings: Settings) -> None:
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="127.0.0.1:1"):
        MooncakeDistributedStore().setup(
            settings("redis://user:hunter2@127.0.0.1:1/0", startup_timeout_ms=1000)
        )
    assert time.monotonic() - start < 10


def test_close_while_others_call(
    open_store: Callable[..., MooncakeDistributedStore], sqlite_url: str
) -> None:
    store = open_store(sqlite_url)
    store.put("k", b"v" * 1000)
    outcomes: set[str] = set()

    def work() -> None:
        try:
            while True:
                outcomes.add(str(len(store.get("k"))))
        except RuntimeError as error:
            outcomes.add("closed" if "close" in str(error) else str(error))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    store.close()
    for worker in workers:
        worker.join(20)
    assert outcomes <= {"1000", "0", "closed"} and "closed" in outcomes


def python(code: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


SET_UP = """
    import sys, os
    from mooncake.store import MooncakeDistributedStore
    store = MooncakeDistributedStore()
    store.setup("127.0.0.1", "", 8 << 20, 1 << 20, "tcp", "", sys.argv[1])
    store.put("k", b"v")
"""


def test_exit_without_close(sqlite_url: str) -> None:
    done = python(SET_UP + "    lease = store.local_buffer_pool_try_acquire(64)\n", sqlite_url)
    out, err = done.communicate(timeout=30)
    assert (done.returncode, out) == (0, ""), err


def test_forked_children(sqlite_url: str) -> None:
    code = (
        SET_UP
        + """
    def child(work):
        pid = os.fork()
        if pid == 0:
            os._exit(work())
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def calls():
        try:
            store.get("k")
        except RuntimeError as error:
            return 3 if "fork" in str(error) else 4
        return 5

    def collects():
        global store
        assert store.health_check() == 1
        store.close()
        del store
        return 6

    assert child(lambda: 7) == 7
    assert child(calls) == 3
    assert child(collects) == 6
    pid = os.fork()
    if pid == 0:
        sys.exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 8
    assert store.get("k") == b"v" and store.health_check() == 0
    assert store.put("l", b"w") == 0 and store.get("l") == b"w"
    """
    )
    done = python(code, sqlite_url)
    _, err = done.communicate(timeout=60)
    assert done.returncode == 0, err


@pytest.mark.slow
def test_an_interrupt_ends_a_waiting_setup() -> None:
    with socket.socket() as silent:  # Accepts, and never answers.
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        code = """
            import sys
            from mooncake.store import MooncakeDistributedStore
            print("ready", flush=True)
            MooncakeDistributedStore().setup("127.0.0.1", "", 8 << 20, 0, "tcp", "", sys.argv[1])
        """
        waiting = python(code, f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        assert waiting.stdout is not None and waiting.stdout.readline() == "ready\n"
        time.sleep(1)
        start = time.monotonic()
        waiting.send_signal(signal.SIGINT)
        _, err = waiting.communicate(timeout=30)
    assert time.monotonic() - start < 5
    assert "KeyboardInterrupt" in err


def test_fanout_keeps_results_in_order(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, sqlite_url: str
) -> None:
    monkeypatch.setenv("MC_STORE_RS_PY_BATCH_PUT_FROM_FANOUT", "4")
    store = set_up(**settings(sqlite_url))
    lease = store.local_buffer_pool_try_acquire(4096)
    assert lease is not None
    keys = [f"k{i}" for i in range(33)]
    ptrs = [lease.ptr + i for i in range(33)]
    ptrs[17] = 1
    codes = store.batch_put_from(keys, ptrs, [1] * 33)
    assert [i for i, code in enumerate(codes) if code != 0] == [17]
    assert store.batch_put_from([], [], []) == []
    with pytest.raises(ValueError, match="sizes"):
        store.batch_put_from(keys, ptrs, [1])
    lease.release()
    store.close()
    monkeypatch.setenv("MC_STORE_RS_PY_BATCH_PUT_FROM_FANOUT", "x")
    with pytest.raises(ValueError, match="FANOUT"):
        store.setup(settings(sqlite_url))


def test_fanout_is_the_same_call(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, sqlite_url: str
) -> None:
    class Counting(MooncakeDistributedStore):
        calls = 0

        def batch_put_from(self, *args: Any, **kwargs: Any) -> list[int]:
            self.calls += 1
            return super().batch_put_from(*args, **kwargs)

    plain, fanned = Counting(), Counting()
    plain.setup(settings(sqlite_url))
    monkeypatch.setenv("MC_STORE_RS_PY_BATCH_PUT_FROM_FANOUT", "4")
    fanned.setup(settings(sqlite_url))

    def outcome(store: Counting, name: str, *args: Any, **kwargs: Any) -> Any:
        lease = store.local_buffer_pool_try_acquire(64)
        assert lease is not None
        rows = [(f"{name}{i}", lease.ptr, 4) for i in range(4)]
        keys, ptrs, sizes = (list(column) for column in zip(*rows))
        cases: list[Any] = [
            [None],
            ["abc", ptrs[:3], sizes[:3]],
            [b"abc"],
            [["abc", "def"]],
            [5],
            [[*keys[:3], ""], ptrs, sizes],
            [keys, [*ptrs[:3], "x"], sizes],
            [keys, ptrs, [*sizes[:3], -1]],
            [keys, ptrs],
            [keys, None, sizes],
            [keys, ptrs, sizes, None, None],
            [[*rows[:3], (keys[3], 1)]],
        ]
        told: list[Any] = []
        for case in cases:
            with pytest.raises((TypeError, ValueError)) as raised:
                store.batch_put_from(*case)
            told.append((raised.type, str(raised.value).replace(name, "")))
        assert store.batch_is_exist(keys) == [0] * 4
        store.calls = 0
        assert store.batch_put_from(iter(rows)) == [0] * 4 and store.calls == 1
        assert store.batch_put_from(keys=tuple(keys), ptrs=ptrs, sizes=iter(sizes)) == [0] * 4
        lease.release()
        return told

    assert outcome(fanned, "fanned") == outcome(plain, "plain")
    call = fanned.batch_put_from
    del fanned  # The method keeps it.
    assert call([], [], []) == []
    assert "registered memory" in (MooncakeDistributedStore.batch_put_from.__doc__ or "")
    call.__self__.close()  # type: ignore[attr-defined]
    plain.close()


def test_sqlite_folder_is_created(settings: Settings, tmp_path: Path) -> None:
    store = set_up(**settings(f"sqlite://{tmp_path}/new/folder/cluster.db"))
    assert (tmp_path / "new/folder/cluster.db").exists()
    store.close()
