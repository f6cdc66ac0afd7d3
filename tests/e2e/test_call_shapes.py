"""The call shapes that callers rely on, and the ways to say the same thing to ``setup``."""

from __future__ import annotations

import asyncio
import inspect
import socket
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from mooncake.store.aio import AsyncDistributedStore
from scrape import parse, value
from support import MIB, eventually, quick_node

Settings = Callable[..., dict[str, Any]]

# What callers pass by position.
POSITIONAL: dict[str, tuple[Any, ...]] = {
    "put": ("key", b"value", None),
    "upsert": ("key", b"value", None),
    "put_from": ("key", 0, 0, None),
    "upsert_from": ("key", 0, 0, None),
    "put_batch": (["key"], [b"value"], None),
    "upsert_batch": (["key"], [b"value"], None),
    "put_parts": ("key", b"a", b"b", b"c"),
    "batch_put": ([("key", b"value")],),
    "batch_put_from": (["key"], [0], [0], None),
    "batch_put_from_multi_buffers": (["key"], [[0]], [[0]], None),
    "get_into": ("key", 0, 0),
    "batch_get_into": (["key"], [0], [0]),
    "batch_get_into_multi_buffers": (["key"], [[0]], [[0]], False),
    "get_into_ranges": ([0], [["key"]], [[[0]]], [[[0]]], [[[0]]]),
    "remove": ("key", False),
    "batch_remove": (["key"], False),
    "remove_all": (False,),
    "register_buffer": (0, 0),
    "unregister_buffer": (0, None),
    "put_tensor_from": ("key", 0, 400),
    "put_tensor_with_tp": ("key", None, 0, 1, 0),
    "pub_tensor_with_tp": ("key", None, None, 0, 1, 0),
    "get_tensor_with_tp": ("key", 0, 1, 0),
    "get_tensor_with_tp_into": ("key", 0, 400, 0, 1, 0),
    "batch_get_tensor_with_tp_into": (["key"], [0], [400], 0, 1),
    "setup_dummy": (0, 0, "127.0.0.1:1"),
    "start_metrics_server": ("127.0.0.1:0",),
}


@pytest.mark.parametrize("name", POSITIONAL)
def test_what_callers_pass_by_position_is_taken_so(name: str) -> None:
    method = getattr(MooncakeDistributedStore(), name)
    assert inspect.signature(method).bind(*POSITIONAL[name])


def test_the_lists_of_many_buffers_have_two_names(
    store: MooncakeDistributedStore, buffer: int
) -> None:
    names = {"all_ptrs": [[buffer, buffer]], "all_sizes": [[3, 4]]}
    assert store.batch_put_from_multi_buffers(["k"], **names) == [0]
    assert store.batch_get_into_multi_buffers(["k"], **names) == [7]
    both = {"ptrs": [[buffer]], "all_ptrs": [[buffer]], "sizes": [[1]]}
    for call in (store.batch_put_from_multi_buffers, store.batch_get_into_multi_buffers):
        assert {"ptrs", "sizes", *names} <= set(inspect.signature(call).parameters)
        with pytest.raises(TypeError, match="multiple values"):
            call(["k"], **both)
    with pytest.raises(TypeError, match="unexpected keyword argument 'all_ptrs'"):
        store.batch_put_from(["k"], all_ptrs=[buffer], sizes=[1])  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "name", ["put", "get", "batch_get", "is_exist", "remove", "get_into", "batch_get_into"]
)
def test_the_tenant_is_a_keyword_only(name: str) -> None:
    tenant = inspect.signature(getattr(MooncakeDistributedStore, name)).parameters["tenant"]
    assert tenant.kind is inspect.Parameter.KEYWORD_ONLY and tenant.default is None


def test_a_config_is_any_object_with_the_attributes(store: MooncakeDistributedStore) -> None:
    config = SimpleNamespace(replica_num=1, preferred_segment=store.get_hostname(), other=1)
    assert store.put("k", b"v", config) == 0
    assert store.get("k") == b"v"
    with pytest.raises(TypeError, match="replica_num"):
        store.put("k", b"v", SimpleNamespace(replica_num="two"))


def test_a_singular_preference_comes_before_the_plural(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., Any]
) -> None:
    for name in ("a", "b"):
        node(redis.url, stable_id=name, routed_writes=True)
    writer = open_store(
        redis.url, routed_writes=True, labels={"storage": "false"}, global_segment_size=0
    )
    eventually(lambda: len(writer.list_segments(all=True)) == 2)

    def owners(key: str, **wishes: Any) -> list[str]:
        config = ReplicateConfig(prefer_local=False, **wishes)
        assert writer.put(key, b"v", config) == 0
        return [one["owner"].rpartition(":")[0] for one in writer.query_route(key)["replicas"]]

    for first, second in (("a", "b"), ("b", "a")):
        wishes = {"preferred_storage_owner": first, "preferred_storage_owners": [second]}
        assert owners(f"owner {first}", **wishes) == [first]
        segments = {"preferred_segment": f"{first}-segment", "preferred_segments": []}
        assert owners(f"segment {first}", **segments) == [first]
    # With the incarnation, too.
    assert owners("epoch", preferred_storage_owner="b:1") == ["b"]


def test_without_routed_writes_preferences_are_about_the_own_node(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., Any]
) -> None:
    node(redis.url, stable_id="b")
    store = open_store(redis.url, stable_id="a")
    eventually(lambda: len(store.list_segments(all=True)) == 2)

    def counted(name: str) -> float:
        return value(parse(store.metrics_text()), name)

    for segment in ("nope", "b-segment"):
        must = ReplicateConfig(preferred_segment=segment)
        assert store.put("k", b"v", must) == -1
        assert store.put_batch(["k"], [b"v"], must) == -1
        assert not store.is_exist("k") and counted("preferred_segment_skip_total") == 0
    assert store.put("k", b"v", ReplicateConfig(preferred_segment="a-segment")) == 0
    assert store.put("k", b"v", ReplicateConfig(preferred_segment="nope", with_soft_pin=True)) == 0
    assert store.put("k", b"v", ReplicateConfig(preferred_storage_owner="b")) == 0
    assert counted("preferred_segment_skip_total") == 2
    assert counted("replica_shortfall_total") == 0
    assert store.put("k", b"v", ReplicateConfig(replica_num=2)) == 0
    assert counted("replica_shortfall_total") == 1
    assert [one["segment_name"] for one in store.query_route("k")["replicas"]] == ["a-segment"]


SAME: list[dict[str, Any]] = [
    {"initial_state": "ACTIVE"},
    {"initial_state": " active "},
    {"state": "active"},
    {"route_control": "embedded-wrh"},
    {"route_control": "wrh"},
    {"route_control": "EMBEDDED_WRH"},
    {"transport_backend": "classic"},
    {"transport_backend": "classic-te"},
    {"transport_backend": "te"},
    {"protocol": "auto"},
    {"transport_metadata_url": ""},
    {"rpc_server_port": 0},
    {"route_topk": "2"},
    {"replica_count": 0},
    {"labels": {"pool": 7, "storage": True}},
    {"use_hugepage": False},
    {"engine": object()},
    {"expires_at_ms": str(int(time.time() * 1000) + 3_600_000)},
]


@pytest.mark.parametrize("changes", SAME, ids=lambda changes: next(iter(changes)))
def test_other_spellings_are_taken(
    settings: Settings, sqlite_url: str, changes: dict[str, Any]
) -> None:
    for call in ("dict", "keywords"):
        store = MooncakeDistributedStore()
        plain = settings(sqlite_url, **changes)
        assert (store.setup(plain) if call == "dict" else store.setup(**plain)) == 0
        assert store.put("k", b"v") == 0 and store.get("k") == b"v"
        store.close()


@pytest.mark.parametrize("state", ["standby", "Draining", "sealed"])
def test_a_node_may_start_in_another_state(settings: Settings, sqlite_url: str, state: str) -> None:
    store = MooncakeDistributedStore()
    assert store.setup(settings(sqlite_url, initial_state=state)) == 0
    assert f'state="{state.lower()}"' in "".join(
        line
        for line in store.metrics_text().lower().splitlines()
        if line.startswith("mooncake_store_runtime_status") and line.endswith(" 1")
    )
    assert store.activate() == 0
    assert store.put("k", b"v") == 0
    store.close()


def test_a_port_may_follow_an_ipv6_host(settings: Settings, sqlite_url: str) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
        port = probe.getsockname()[1]
    store = MooncakeDistributedStore()
    assert store.setup(settings(sqlite_url, local_hostname=f"[::1]:{port}")) == 0
    assert store.get_hostname() == f"[::1]:{port}"
    store.close()


BAD_VARIABLES = {
    "MC_STORE_RS_INITIAL_STATE": "asleep",
    "MC_STORE_RS_ROUTED_WRITES": "maybe",
    "MC_STORE_RS_REPLICA_COUNT": "-1",
    "MC_STORE_RS_ROUTE_TOPK": "1",
    "MC_STORE_RS_ROUTE_CONTROL": "x",
    "MC_STORE_RS_TRANSPORT_RPC_PORT": "70000",
    "MC_STORE_RS_TRANSPORT_BACKEND": "x",
    "MC_STORE_RS_EXPIRES_AT_MS": "soon",
    "MC_STORE_RS_EVICTION_HIGH_WATERMARK_PERCENT": "0",
    "MC_STORE_RS_EVICTION_LOW_WATERMARK_PERCENT": "300",
    "MC_STORE_RS_LABELS": "pool",
    "MC_STORE_RS_REQUEST_TIMEOUT_MS": "x",
    "MC_STORE_USE_HUGEPAGE": "maybe",
    "MC_STORE_HUGEPAGE_SIZE": "3MB",
}


@pytest.mark.parametrize("name", BAD_VARIABLES)
def test_each_variable_is_read_and_named(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, sqlite_url: str, name: str
) -> None:
    monkeypatch.setenv(name, BAD_VARIABLES[name])
    store = MooncakeDistributedStore()
    named = "expires_at_ms" if name.endswith("EXPIRES_AT_MS") else name
    with pytest.raises(ValueError, match=named):
        store.setup(settings(sqlite_url))
    monkeypatch.setenv(name, "")  # As good as absent.
    assert store.setup(settings(sqlite_url)) == 0
    store.close()


def test_texts_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, sqlite_url: str
) -> None:
    texts = {
        "STABLE_ID": "me",
        "TENANT": "t",
        "DOMAIN": "d",
        "OBJECT_SET": "o",
        "KEYSPACE": "team/a",
        "LOCAL_SEGMENT_NAME": "mine",
        "LABELS": "pool=p, rack=r",
    }
    for name, text in texts.items():
        monkeypatch.setenv(f"MC_STORE_RS_{name}", text)
    store = MooncakeDistributedStore()
    assert store.setup(settings(sqlite_url)) == 0
    assert store.put("k", b"v") == 0
    route = store.query_route("k")
    assert route is not None and route["key"] == "t::ns/d/o/k"
    (segment,) = store.list_segments()
    assert segment["owner"].startswith("me:") and segment["segment_name"] == "mine"
    other = MooncakeDistributedStore()
    elsewhere = settings(sqlite_url, keyspace="team/b", stable_id="me", local_segment_name="mine")
    assert other.setup(elsewhere) == 0  # The same name, in a keyspace of its own.
    assert other.get("k") == b"" and len(other.list_segments(all=True)) == 1
    other.close()
    store.close()


def test_a_handoff_is_planned_for_the_standby_of_the_same_name(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., Any]
) -> None:
    store = open_store(redis.url, stable_id="s", **quick_node(20))
    with pytest.raises(RuntimeError, match="standby"):
        store.plan_handoff()
    node(redis.url, stable_id="s", initial_state="standby", **quick_node(20))
    plan = eventually(lambda: planned(store))
    assert {name: plan[name] for name in ("stable_id", "from_epoch", "to_epoch")} == {
        "stable_id": "s",
        "from_epoch": 1,
        "to_epoch": 2,
    }
    now_ms = time.time_ns() // 1_000_000
    assert now_ms < plan["deadline_ms"] <= now_ms + 20_000  # As long as the lease.
    again = store.plan_handoff(2, deadline_ms=60_000)
    assert again["to_epoch"] == 2 and again["deadline_ms"] >= now_ms + 60_000
    assert store.plan_handoff(deadline_ms=now_ms + 70_000)["deadline_ms"] == now_ms + 70_000
    with pytest.raises(ValueError, match="after now"):
        store.plan_handoff(deadline_ms=now_ms - 1)
    with pytest.raises(RuntimeError):
        store.plan_handoff(7)
    for wrong in ({"deadline_ms": "soon"}, {"successor_epoch": "two"}):
        with pytest.raises(TypeError):
            store.plan_handoff(**wrong)


def planned(store: MooncakeDistributedStore) -> Any:
    try:
        return store.plan_handoff()
    except RuntimeError:
        return None


def test_a_node_grows_and_shrinks(store: MooncakeDistributedStore) -> None:
    (first,) = store.list_segments()
    grown = store.expand_local_memory(8 * MIB)
    assert grown["capacity_bytes"] == 8 * MIB and grown["owner"] == first["owner"]
    assert {
        *("owner", "segment_name", "transport_endpoint", "capacity_bytes", "used_bytes"),
        *("state", "alignment_bytes", "tags"),
    } <= grown.keys()
    assert len(store.list_segments()) == 2
    with pytest.raises(ValueError, match="storage_bytes is 4095"):
        store.expand_local_memory(4095)
    assert store.drain_segment(grown["segment_name"]) == 0
    assert eventually(lambda: store.retire_segment(grown["segment_name"])) is True
    assert [one["segment_name"] for one in store.list_segments()] == [first["segment_name"]]
    with pytest.raises(KeyError, match="no such"):
        store.retire_segment("no such")
    with pytest.raises(RuntimeError, match=first["segment_name"]):
        store.drain_segment(first["segment_name"])
    assert store.put("k", b"v") == 0
    with pytest.raises(RuntimeError, match="1 objects .*no other storage node is active"):
        store.evacuate_owned_replicas()
    assert store.get("k") == b"v"


def test_awaited_calls_take_and_give_what_the_calls_do(
    store: MooncakeDistributedStore, buffer: int
) -> None:
    async def main() -> None:
        async with AsyncDistributedStore(store, max_workers=2) as cache:
            assert await cache.put("k", b"value") == 0
            assert await cache.batch_put(keys=["l"], values=[b"other"]) == 0
            assert await cache.get("k") == b"value"
            assert await cache.unregister_buffer(buffer, MIB) == 0
            assert await cache.register_buffer(buffer, MIB) == 0
            assert await cache.get_into("k", buffer, 4) == -11
            assert await cache.get_into("k", buffer, 5) == 5
            assert await cache.batch_put_from([("a", buffer, 5)]) == [0]
            assert await cache.batch_get_into([("a", buffer, 8), ("no", buffer, 8)]) == [5, -1]
            rows = [("b", [buffer, buffer + 8], [2, 3])]
            assert await cache.batch_put_from_multi_buffers(rows) == [0]
            assert await cache.batch_get_into_multi_buffers([("b", [(buffer, 8)])]) == [5]
            ranges = ([buffer], [["k"]], [[[0]]], [[[1]]], [[[4]]])
            assert await cache.get_into_ranges(*ranges, buffer_sizes=[8]) == [[[4]]]
            route = await cache.query_route("k")
            assert route is not None and route["key"] == "default::k"
            assert await cache.call(store.list_segments) == store.list_segments()
            assert await cache.remove_all() == 4
        with pytest.raises(RuntimeError, match="closed"):
            await cache.get("k")
        assert store.get("k") == b""  # The store itself stays open.

    asyncio.run(main())
