"""What arrives at a node's port and is no node (TF-12, rules of section 11)."""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import case_jobs
import pytest
import raw_peer
from raw_peer import GET, HELLO, PUT, READ, WRITE, RawPeer
from support import LONG, MIB, eventually, value_of

STALL_S = 2.0
OWNER = {
    "global_segment_size": 64 * MIB,
    "local_buffer_size": MIB,
    "lease_ttl_ms": 5000,
    "transfer_stall_timeout_ms": int(STALL_S * 1000),
}
ROUTER = {**OWNER, "global_segment_size": 0, "labels": {"storage": "false"}, "routed_writes": True}
KEYS = [f"k{n}" for n in range(20)]
SIZE = 30_000


class Scene:
    """A target under attack and a friend who goes on using it."""

    def __init__(self, node: Callable[..., Any], url: str) -> None:
        self.target = node(url, stable_id="target", **OWNER)
        self.friend = node(url, stable_id="friend", **ROUTER)
        assert self.target.put_all(KEYS, 0, SIZE) == [0] * len(KEYS)
        self.check()
        self.endpoint = self.target.get_hostname()
        self.descriptors = self.target.view.descriptors()
        self.rss = self.target.view.rss()

    def check(self) -> None:
        assert self.friend.read_all(KEYS, 0, SIZE)["right"] == KEYS
        assert self.friend.put("new", b"value") == 0 and self.target.get("new") == b"value"

    def check_quiet(self, seconds: float) -> None:
        used, end = self.target.view.cpu_s(), time.monotonic() + seconds
        eventually(lambda: time.monotonic() > end, seconds + 5)
        assert self.target.view.cpu_s() - used < 0.1 * seconds, "busy without work"

    def check_flat(self) -> None:
        # The friend may have needed another lane meanwhile.
        eventually(lambda: self.target.view.descriptors() <= self.descriptors + 2, 3 * STALL_S + 10)
        assert self.target.view.rss() < self.rss + 24 * MIB


@pytest.fixture
def scene(redis: Any, node: Callable[..., Any]) -> Iterator[Scene]:
    yield Scene(node, redis.url)
    RawPeer.close_all()


def starts_of_frames() -> list[bytes]:
    """Each is the beginning of something that never goes on."""
    put = raw_peer.origin(sequence=7) + raw_peer.text(2, raw_peer.scope())
    put += raw_peer.text(3, raw_peer.keys(["hostile"])) + raw_peer.packed(4, [8 * MIB])
    head = raw_peer.header
    return [
        HELLO[:20],
        HELLO[:4] + b"\xff\xff" + HELLO[6:],
        HELLO + head(GET, 0)[:25],
        HELLO + head(GET, 32 * MIB),
        HELLO + head(GET, 32 * MIB) + bytes(100_000),
        HELLO + head(GET, 2**32 - 1),
        HELLO + head(PUT, 10, 2**64 - 1) + bytes(10),
        HELLO + head(PUT, 10, 2**44) + bytes(10),
        HELLO + head(GET, 4, flags=1) + bytes(4),
        HELLO + head(GET, 4, magic=0x12345678) + bytes(4),
        HELLO + head(999, 4) + bytes(4),
        HELLO + head(PUT, len(put), 8 * MIB + 8, time_left_ms=0) + put,
        HELLO + head(PUT, len(put), 8 * MIB + 8, time_left_ms=2**32 - 1) + put + bytes(5000),
        HELLO + head(PUT, len(put), 8) + put + bytes(8),
    ]


@contextlib.contextmanager
def trickling(endpoint: str, count: int) -> Iterator[None]:
    """Peers that send a byte of a long frame now and then."""
    peers = [RawPeer(endpoint) for _ in range(count)]
    for peer in peers:
        peer.send(HELLO + raw_peer.header(GET, 16 * MIB))
    done = threading.Event()

    def trickle() -> None:
        while not done.wait(0.1):
            for peer in peers:
                peer.send(b"x")

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        for peer in peers:
            peer.close()


def test_frames_that_never_end_are_dropped_in_time(scene: Scene) -> None:
    """TF-12. Half frames, absurd lengths, and peers that trickle: little time, little memory."""
    peers = [RawPeer(scene.endpoint) for _ in range(4) for _ in starts_of_frames()]
    for peer, data in zip(peers, starts_of_frames() * 4):
        peer.send(data)
    with trickling(scene.endpoint, 20):
        scene.check()
        scene.check_quiet(120 if LONG else 2)
        scene.check()
    scene.check_flat()
    scene.check_quiet(1)
    assert scene.friend.is_exist("hostile") is False
    for peer in peers:
        peer.close()


def test_a_reader_that_takes_nothing_costs_no_memory(scene: Scene) -> None:
    """PF-04. Replies wait in the sender's segment, one for each connection, and not for ever."""
    big = 16 * MIB
    assert scene.target.put_all(["big"], 0, big) == [0]
    message = raw_peer.origin() + raw_peer.text(2, raw_peer.scope())
    message += raw_peer.text(3, raw_peer.keys(["big"])) + raw_peer.packed(4, [big])
    peers = [RawPeer(scene.endpoint) for _ in range(16)]
    before = scene.target.view.rss()
    for peer in peers:
        peer.send(HELLO + raw_peer.frame(GET, message) * 200)
    scene.check()
    assert scene.target.view.rss() < before + 24 * MIB
    scene.check_quiet(1)
    scene.check_flat()
    for peer in peers:
        peer.close()
    # What they did not read is no longer pinned.
    assert scene.friend.remove("big") == 0
    eventually(lambda: scene.target.list_segments()[0]["used_bytes"] < 2 * MIB)


def test_no_frame_reaches_bytes_that_it_does_not_name_rightly(scene: Scene) -> None:
    """Rule: nothing a peer sends is used as address, length or offset before it is checked."""
    route = scene.friend.query_route(KEYS[0])
    (place,) = route["replicas"]
    owner, segment, offset = place["owner"], 0, place["offset"]
    peer = RawPeer(scene.endpoint)

    def read(replica: bytes, key_hash: int, start: int, size: int, to: str = owner) -> bytes:
        message = raw_peer.origin() + raw_peer.text(2, to) + raw_peer.text(3, replica)
        message += raw_peer.fixed(4, [key_hash]) + raw_peer.packed(5, [start])
        message += raw_peer.packed(6, [size])
        answer = peer.ask(READ, message)
        assert answer is not None
        return answer[1]

    numbers = [0, 1, offset, SIZE, 2**31, 2**32 - 1, 2**63, 2**64 - 1]
    for at in numbers:
        for generation in numbers:
            replica = raw_peer.replica(owner, segment, at, generation)
            for start, size in ((0, SIZE), (2**64 - 8, 16), (0, 2**64 - 1)):
                assert read(replica, 0, start, size) == b""
        replica = raw_peer.replica(owner, at & 0xFFFFFFFF, 0, 1)
        assert read(replica, at, 0, 8) == b""

    def get(limits: list[int], offsets: list[int], names: list[str]) -> tuple[bytes, bytes] | None:
        message = raw_peer.origin() + raw_peer.text(2, raw_peer.scope())
        message += raw_peer.text(3, raw_peer.keys(names)) + raw_peer.packed(4, limits)
        return peer.ask(GET, message + raw_peer.packed(5, offsets))

    value = value_of(KEYS[0], 0, SIZE)
    assert get([8], [SIZE - 8], KEYS[:1])[1] == value[-8:]  # type: ignore[index]
    for limit, start in ((9, SIZE - 8), (2**64 - 1, 1), (16, 2**64 - 8), (1, SIZE), (2**63, 2**63)):
        answer = get([limit], [start], KEYS[:1])
        assert answer is not None and answer[1] == b"", (limit, start)
    # Columns that do not fit together end the connection, or serve nothing.
    for limits, offsets, names in (
        ([8], [], KEYS[:2]),
        ([8, 8], [0], KEYS[:2]),
        ([8], [0, 0], KEYS[:1]),
    ):
        other = RawPeer(scene.endpoint)
        message = raw_peer.origin() + raw_peer.text(2, raw_peer.scope())
        message += raw_peer.text(3, raw_peer.keys(names)) + raw_peer.packed(4, limits)
        answer = other.ask(GET, message + raw_peer.packed(5, offsets))
        assert answer is None or answer[1] == b""
        other.close()
    peer.close()
    scene.check()
    scene.check_flat()


def test_writes_of_strangers_touch_no_value(scene: Scene) -> None:
    """Sizes that do not add up, other incarnations, places that are somebody's: all refused."""
    used = scene.target.list_segments()[0]["used_bytes"]
    sizes = [[0], [1], [2**64 - 1], [2**63, 2**63], [SIZE, 2**64 - SIZE], [100, 100]]
    for kind in (PUT, WRITE):
        for values in sizes:
            names = [f"hostile {n}" for n in range(len(values))]
            body = raw_peer.scope()
            message = raw_peer.origin("stranger:1", 11)
            if kind == PUT:
                message += raw_peer.text(2, body) + raw_peer.text(3, raw_peer.keys(names))
                message += raw_peer.packed(4, values)
            else:
                message += raw_peer.text(2, "target:99") + raw_peer.text(3, body)
                message += raw_peer.text(4, raw_peer.keys(names)) + raw_peer.packed(5, values)
            peer = RawPeer(scene.endpoint, 1)
            peer.ask(kind, message, bytes(64))
            peer.close()
    eventually(lambda: scene.target.list_segments()[0]["used_bytes"] <= used + 4096)
    scene.check()
    scene.check_flat()


def test_a_node_out_of_descriptors_rests_and_recovers(scene: Scene) -> None:
    """More connections than the process may have: no spin, and as before once they are gone."""
    scene.target.run(case_jobs.limit_descriptors, scene.target.view.descriptors() + 20)
    peers = []
    with contextlib.suppress(OSError):
        for _ in range(60):
            peers.append(RawPeer(scene.endpoint))
    scene.check_quiet(2)
    for peer in peers:
        peer.close()
    eventually(lambda: scene.friend.read_all(KEYS, 0, SIZE)["right"] == KEYS)
    eventually(lambda: scene.target.view.descriptors() <= scene.descriptors)
    scene.check()


def test_a_thousand_connections_leave_room_for_the_friends(scene: Scene) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(3000 if LONG else 600, soft // 2)
    peers = [RawPeer(scene.endpoint) for _ in range(count)]
    scene.check()
    scene.check_quiet(1)
    eventually(lambda: scene.target.view.descriptors() <= scene.descriptors, 2 * STALL_S + 10)
    for peer in peers:
        peer.close()
    scene.check()
