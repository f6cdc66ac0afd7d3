"""What the package offers, and what importing it costs."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import mooncake
import mooncake.buffer_pool
import mooncake.store
import mooncake.store.rs.buffer_pool
import mooncake.store.rs.store
import pytest
from mooncake.store import (
    BufferPool,
    MooncakeDistributedStore,
    MooncakeHostMemAllocator,
    ReplicateConfig,
)
from mooncake.store.aio import AsyncDistributedStore


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_import_mooncake_is_cheap() -> None:
    code = (
        "import sys; before = set(sys.modules); import mooncake;"
        "new = {m for m in sys.modules if m.startswith('mooncake')};"
        "assert new == {'mooncake'}, new;"
        "assert 'numpy' not in sys.modules and 'torch' not in sys.modules"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_import_of_the_store_loads_no_array_library_and_prints_nothing() -> None:
    code = (
        "import sys, mooncake.store; from mooncake.store import MooncakeDistributedStore;"
        "MooncakeDistributedStore();"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    done = run(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_export_set_is_sorted() -> None:
    assert mooncake.store.__all__ == sorted(set(mooncake.store.__all__))


def test_one_object_under_all_names() -> None:
    assert mooncake.BufferPool is mooncake.store.BufferPool
    assert mooncake.buffer_pool.BufferPool is mooncake.store.BufferPool
    assert mooncake.store.rs.buffer_pool.BufferPool is mooncake.store.BufferPool
    for name in mooncake.store.__all__:
        assert getattr(mooncake.store.rs.store, name) is getattr(mooncake.store, name)
    assert set(mooncake.store.__all__) <= set(dir(mooncake.store))


def test_names_that_do_not_exist() -> None:
    for module in (mooncake, mooncake.store, mooncake.buffer_pool, mooncake.store.rs.store):
        assert not hasattr(module, "RegisteredBufferPool")
    assert not hasattr(mooncake.store, "EngramStore")
    with pytest.raises(ImportError):
        importlib.import_module("mooncake.engine")
    assert not hasattr(MooncakeDistributedStore(), "no_such_method")


@pytest.mark.parametrize("backend", ["rs", "cpp"])
def test_both_backend_names_select_this_store(backend: str) -> None:
    code = (
        "from mooncake.store import MooncakeDistributedStore as S; assert S().health_check() == 1"
    )
    assert run(code, MOONCAKE_STORE_BACKEND=backend).returncode == 0


@pytest.mark.parametrize("backend", ["", "CPP", "store-rs", "rust"])
def test_other_backend_names_are_refused(backend: str) -> None:
    done = run("import mooncake.store", MOONCAKE_STORE_BACKEND=backend)
    assert done.returncode != 0
    assert "ValueError" in done.stderr and "must be exactly 'cpp' or 'rs'" in done.stderr


def test_the_class_can_be_extended() -> None:
    class Store(MooncakeDistributedStore):
        def __init__(self, label: str) -> None:
            super().__init__()
            self.label = label

        def get(self, key: str, *, tenant: str | None = None) -> bytes:
            return b"mine"

    store = Store("x")
    assert store.label == "x" and store.get("k") == b"mine" and store.health_check() == 1
    reference = weakref.ref(store)
    del store
    assert reference() is None
    with pytest.raises(TypeError):
        MooncakeDistributedStore(1)  # type: ignore[call-arg]


def test_methods_have_signatures_and_documentation() -> None:
    for name, method in inspect.getmembers(MooncakeDistributedStore, callable):
        if not name.startswith("_"):
            assert inspect.getdoc(method), name
            assert inspect.signature(method), name
    put = inspect.signature(MooncakeDistributedStore.put)
    assert list(put.parameters) == ["self", "key", "value", "config", "tenant"]


@pytest.mark.parametrize("name", ["EngramStore", "_serialize_tensor", "bind_to_numa_node"])
def test_names_of_the_other_store_say_so(name: str) -> None:
    assert not hasattr(mooncake.store, name)
    with pytest.raises(AttributeError, match=r"C\+\+ Store API"):
        getattr(mooncake.store, name)


def test_every_public_method_has_an_example_and_its_types() -> None:
    stub = (Path(mooncake.store.__file__).parents[1] / "_store.pyi").read_text()
    typed = set(re.findall(r"def (\w+)\(", stub))
    classes = (MooncakeDistributedStore, BufferPool, MooncakeHostMemAllocator, ReplicateConfig)
    for cls in (*classes, AsyncDistributedStore):
        for name, method in inspect.getmembers(cls, callable):
            if name.startswith("_") or name == "give_back":  # Of leases, not of users.
                continue
            text = inspect.getdoc(method) or ""
            assert ">>> " in text, f"{cls.__name__}.{name} has no example"
            assert name in typed or inspect.signature(method).return_annotation, name
    for name, method in inspect.getmembers(MooncakeDistributedStore, inspect.ismethoddescriptor):
        if not name.startswith("_") and name not in ("close", "health_check"):
            assert "Error" in inspect.getdoc(method), f"{name} does not say what it raises"


def test_the_store_class_has_the_types_of_its_calls(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    names = [
        *("put", "put_from", "put_parts", "get_buffer", "get_size", "batch_get_buffer"),
        *("batch_get_into", "get_into_ranges", "batch_is_exist", "batch_remove", "get"),
        *("register_buffer", "unregister_buffer", "batch_put_from", "setup", "close"),
    ]
    program = tmp_path / "program.py"
    program.write_text(
        "from mooncake.store import MooncakeDistributedStore\n"
        "store = MooncakeDistributedStore()\n"
        + "".join(f"store.{name}(nonsense=1)\n" for name in names)
    )
    words = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), str(program)]
    told = subprocess.run(words, capture_output=True, text=True, timeout=300).stdout
    accepted = [name for at, name in enumerate(names, 3) if f"program.py:{at}: error" not in told]
    assert not accepted, told


def test_a_store_says_what_it_is(sqlite_url: str) -> None:
    store = MooncakeDistributedStore()
    assert repr(store) == "<MooncakeDistributedStore, not set up>"
    store.setup({"local_hostname": "127.0.0.1", "metadata_url": sqlite_url})
    assert repr(store) == f"<MooncakeDistributedStore at {store.get_hostname()}>"
    store.close()
    assert "not set up" in repr(store)


def test_replicate_config() -> None:
    config = ReplicateConfig(replica_num=2, preferred_segments=["a"])
    twin = config.copy()
    assert twin == config
    twin.preferred_segments.append("b")
    assert config.preferred_segments == ["a"] and config.prefer_local is True
    config.group_ids = ["g"]  # type: ignore[attr-defined]
    assert not hasattr(ReplicateConfig(), "group_ids")


@pytest.mark.parametrize("wrong", [5, b"x", None, "\ud800"])
@pytest.mark.parametrize("name", ["server_address", "keyspace", "worker_scope"])
def test_a_wrong_text_for_dummy_mode_is_named(name: str, wrong: Any) -> None:
    if wrong is None and name != "server_address":
        return
    arguments: dict[str, Any] = {"server_address": "127.0.0.1:1", name: wrong}
    with pytest.raises((TypeError, ValueError), match=f"setup_dummy: {name} "):
        MooncakeDistributedStore().setup_dummy(1, 1, **arguments)


def test_a_text_that_is_not_utf8_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    store, settings = MooncakeDistributedStore(), {"local_hostname": "h", "metadata_url": "x"}
    with pytest.raises(ValueError, match="setup: tenant is"):
        store.setup({**settings, "tenant": "\ud800"})
    monkeypatch.setenv("MC_STORE_RS_TENANT", "\udcff")
    with pytest.raises(ValueError, match="MC_STORE_RS_TENANT is"):
        store.setup(settings)


def test_dummy_mode_without_a_daemon_names_its_address() -> None:
    with pytest.raises(RuntimeError, match="127.0.0.1:1"):
        MooncakeDistributedStore().setup_dummy(1, 1, "127.0.0.1:1")
