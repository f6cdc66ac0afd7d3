"""Many threads and many processes at once (cases CR, DI-03)."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import time
from collections.abc import Callable
from typing import Any

import case_jobs
import scrape
from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator
from support import LONG, MIB, eventually, settle, value_of

OWNER = {"global_segment_size": 64 * MIB, "local_buffer_size": MIB}
ROUTER = {**OWNER, "global_segment_size": 0, "labels": {"storage": "false"}, "routed_writes": True}
FAST = {"lease_ttl_ms": 3000, "transfer_stall_timeout_ms": 2000}


def test_racing_inserts_agree_on_one_whole_version(redis: Any, node: Callable[..., Any]) -> None:
    """Rule: concurrent puts of one key are insert-if-absent: all succeed, one version wins."""
    racers = [node(redis.url, **OWNER) for _ in range(2)] + [node(redis.url, **ROUTER)]
    size = 4_000 if LONG else 20_000  # Room for all that the racers bring: nothing is evicted.

    def race(turn: int) -> set[int]:
        """The racers that won a key."""
        keys = [f"race {turn} {n}" for n in range(2000 if LONG else 150)]
        at, batch = time.time() + 0.5, (1, 50, len(keys))[turn % 3]
        for number, racer in enumerate(racers):
            # Large batches meet by themselves; single inserts begin somewhere else.
            first = number * len(keys) // len(racers) if batch == 1 else 0
            own = keys[first:] + keys[:first]
            racer.send("run", case_jobs.race_to_insert, own, number, size, at, batch)
        answers = [racer.receive() for racer in racers]
        views = [racer.batch_get(keys) for racer in racers]
        assert views[0] == views[1] == views[2]
        for number, (codes, seen) in enumerate(answers):
            assert codes == [0] * len(keys)
            first = number * len(keys) // len(racers) if batch == 1 else 0
            assert seen == views[0][first:] + views[0][:first], "what won has won for good"
        winners = set()
        for key, value in zip(keys, views[0]):
            possible = [value_of(key, number, size) for number in range(len(racers))]
            assert value in possible, key
            winners.add(possible.index(value))
        # A later insert is a success too, and changes nothing.
        again = racers[2].run(case_jobs.race_to_insert, keys, 99, size, 0.0, len(keys))
        assert again == ([0] * len(keys), views[0])
        for racer in racers:
            assert scrape.value(scrape.parse(racer.metrics_text()), "eviction_total") == 0
        assert racers[2].batch_remove(keys) == [0] * len(keys)
        return winners

    turns = itertools.count()
    for _ in range(30 if LONG else 3):
        race(next(turns))
    eventually(lambda: len(race(next(turns))) > 1)  # A busy machine may run one after the other.


def test_many_threads_share_one_store(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., MooncakeDistributedStore]
) -> None:
    """CR-03. Every status of every thread agrees with what that thread did itself."""
    node(redis.url, **OWNER)
    store = open_store(redis.url, **OWNER)
    threads, rounds = 512, 600 if LONG else 3
    size = 512
    start = MooncakeHostMemAllocator().alloc(threads * 4 * size)
    assert store.register_buffer(start, threads * 4 * size) == 0

    def work(number: int) -> None:
        at = start + number * 4 * size
        for turn in range(rounds):
            keys = [f"{number}/{turn}/{n}" for n in range(2)]
            absent = [key + "/absent" for key in keys]
            assert store.batch_is_exist(keys + absent) == [0] * 4
            for n, key in enumerate(keys):
                ctypes.memmove(at + n * size, value_of(key, turn, size), size)
            rows = [[at, at + 100], [at + size, at + size + 7]]
            pieces = [[100, size - 100], [7, size - 7]]
            assert store.batch_put_from_multi_buffers(keys, rows, pieces) == [0, 0]
            assert store.batch_is_exist(absent + keys) == [0, 0, 1, 1]
            target = [at + 2 * size, at + 3 * size, at + 3 * size]
            got = store.batch_get_into(keys + absent[:1], target, [size] * 3)
            assert got == [size, size, -1]
            for n, key in enumerate(keys):
                assert ctypes.string_at(target[n], size) == value_of(key, turn, size)
            assert store.batch_remove([*keys, absent[0]]) == [0, 0, -1]

    case_jobs.in_threads(threads, work)
    assert store.remove_all() == 0


def test_readers_of_a_peer_that_keeps_restarting(
    redis: Any, node: Callable[..., Any], spawn: Callable[[], Any], settings: Callable[..., Any]
) -> None:
    """CR-04. Sixteen threads read all the while: exact values or misses, and no growth."""
    reader = node(redis.url, stable_id="reader", **OWNER, **FAST)
    keys = [f"k{n}" for n in range(20)]

    def life(seconds: float) -> None:
        peer = spawn()
        assert peer.setup(settings(redis.url, stable_id="peer", **OWNER, **FAST)) == 0
        assert case_jobs.put_at(peer, "peer", keys, 50_000) == 0
        settle(seconds)
        peer.kill()

    reader.run(case_jobs.read_for_ever, 16, keys, 50_000)
    life(1)
    descriptors, threads = reader.view.descriptors(), reader.view.threads()
    for _ in range(150 if LONG else 3):
        life(2 if LONG else 0.7)
    seen = reader.run(case_jobs.reads_so_far)
    assert seen["wrong"] == 0 and seen["right"] > 0 and seen["missing"] > 0
    # Connections to the dead one end with the next call that would use them.
    eventually(lambda: reader.view.descriptors() <= descriptors + 16)
    assert reader.view.threads() <= threads


def test_a_hot_copy_never_outlives_the_truth(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., MooncakeDistributedStore]
) -> None:
    """Rule: a local accelerator never outlives the truth it copied."""
    owner = node(redis.url, stable_id="owner", **OWNER, **FAST)
    node(redis.url, stable_id="stays", **OWNER, **FAST)
    hot = {"local_hot_cache_size": 8 * MIB, "local_hot_block_size": MIB}
    reader = open_store(redis.url, **ROUTER, **FAST, **hot)
    (target,) = case_jobs.filled_buffer(reader, [bytes(100_000)])

    def every_form(key: str) -> list[bytes]:
        got = reader.get_into(key, target, 100_000)
        buffer = reader.get_buffer(key)
        into = ctypes.string_at(target, got) if got >= 0 else b""
        return [reader.get(key), reader.batch_get([key])[0], into, bytes(buffer or b"")]

    for turn in range(2000 if LONG else 100):
        key, value = f"k{turn % 7}", value_of(f"k{turn % 7}", turn, 30_000)
        assert owner.put(key, value) == 0
        for _ in range(3):  # The later ones may come from the cache.
            assert every_form(key) == [value] * 4, turn
        if turn % 3 == 0:
            assert owner.remove(key) == 0
            assert every_form(key) == [b""] * 4, turn
            assert reader.is_exist(key) is False
    assert "hot_cache_total{" in reader.metrics_text()
    assert case_jobs.put_at(owner, "owner", ["dies"], 1000) == 0
    assert every_form("dies") == every_form("dies") == [value_of("dies")] * 4
    owner.kill()
    eventually(lambda: reader.batch_is_exist(["dies"]) == [0])
    assert every_form("dies") == [b""] * 4


def test_a_slow_read_gives_the_bytes_of_its_key_or_fails(
    redis: Any, node: Callable[..., Any]
) -> None:
    """Rule: success means the bytes of that key, however slow the read was."""
    owner = node(redis.url, stable_id="owner", **OWNER, **FAST)
    other = node(redis.url, stable_id="other", **ROUTER, **FAST)
    size = 24 * MIB
    outcomes = []
    for turn in range(40 if LONG else 3):
        reader = node(redis.url, **ROUTER, **FAST)
        assert owner.run(case_jobs.put_at, "owner", ["k"], size, turn) == 0
        assert reader.is_exist("k")
        reader.send("run", case_jobs.one_read, "k", size, turn)
        settle(0.01 + turn % 4 * 0.02)
        reader.stop()
        # The space is used again while the reader stands still in the middle of its read.
        assert other.remove("k") == 0
        assert other.run(case_jobs.put_at, "owner", ["x", "y"], size) in (0, -1)
        settle(0.3 if turn % 2 else 2.5)
        reader.cont()
        outcomes.append(reader.receive())
        reader.end()
        other.remove_all()
    assert set(outcomes) <= {"right", "failed"}


def test_a_hundredfold_mix_of_transfers_keeps_every_hash(
    redis: Any, node: Callable[..., Any], open_store: Callable[..., MooncakeDistributedStore]
) -> None:
    """DI-03. 1,024 items at once, of 2.4 MB and 16 KiB; sources hashed before and after, targets
    when the call has returned."""
    owners = ("a", "b")
    for name in owners:
        node(redis.url, stable_id=name, global_segment_size=448 * MIB, local_buffer_size=MIB)
    store = open_store(redis.url, **ROUTER)
    sizes = ([2_400_000] * 2 + [16 * 1024] * 62) if not LONG else ([2_400_000] * 8 + [16384] * 56)
    threads = 16
    end = time.monotonic() + (3600 if LONG else 2)

    def digest(at: int, size: int) -> bytes:
        return hashlib.blake2b((ctypes.c_char * size).from_address(at), digest_size=16).digest()

    def work(number: int) -> int:
        total = sum(sizes)
        area = MooncakeHostMemAllocator().alloc(2 * total)
        assert store.register_buffer(area, 2 * total) == 0
        places = [area + sum(sizes[:n]) for n in range(len(sizes))]
        targets = [place + total for place in places]
        turn = 0
        while turn == 0 or time.monotonic() < end:
            seed = value_of(f"{number}/{turn}", 0, 4096)
            for place, size in zip(places, sizes):
                ctypes.memmove(place, (seed * (size // 4096 + 1))[:size], size)
                ctypes.memmove(place, place.to_bytes(8, "little"), 8)
            before = [digest(place, size) for place, size in zip(places, sizes)]
            keys = [f"{number}/{turn % 2}/{n}" for n in range(len(sizes))]
            store.batch_remove(keys, True)
            assert store.batch_put_from(keys, places, sizes) == [0] * len(sizes)
            ctypes.memset(area + total, 0xEE, total)
            got = store.batch_get_into(keys, targets, sizes)
            hashes = [digest(target, size) for target, size in zip(targets, sizes)]
            for item, size in enumerate(sizes):
                assert got[item] in (size, -1), (number, turn, item, got[item])
                assert got[item] == -1 or hashes[item] == before[item], (number, turn, item)
            assert [digest(place, size) for place, size in zip(places, sizes)] == before
            turn += 1
        return turn

    assert sum(case_jobs.in_threads(threads, work)) >= threads
