"""The protocol between nodes, spoken by hand: for frames that no node would send."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import ClassVar

HELLO = struct.pack("<IHHII32x", 0x4843434D, 1, 0, 0, 0)
HEADER = struct.Struct("<IHHHHIQQII")
GET, WRITE, PUT, READ, PUBLISH, REMOVE_ALL, PULL, INVENTORY, MIRROR = 3, 7, 2, 6, 8, 10, 13, 14, 15


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def packed(field: int, values: list[int]) -> bytes:
    return text(field, b"".join(map(varint, values)))


def fixed(field: int, values: list[int]) -> bytes:
    return text(field, b"".join(struct.pack("<Q", value) for value in values))


def origin(name: str = "stranger:1", sequence: int = 0, revision: int = 0) -> bytes:
    return text(1, text(1, name) + number(2, sequence) + number(3, revision))


def scope(tenant: str = "default", domain: str = "default", object_set: str = "default") -> bytes:
    return text(1, tenant) + text(2, domain) + text(3, object_set)


def keys(names: list[str]) -> bytes:
    blobs = [name.encode() for name in names]
    return text(1, b"".join(blobs)) + packed(2, [len(blob) for blob in blobs])


def replica(owner: str, segment: int, offset: int, generation: int) -> bytes:
    return text(1, owner) + number(2, segment) + number(3, offset) + number(4, generation)


def header(
    kind: int,
    message_size: int,
    payload_size: int = 0,
    *,
    magic: int = 0x4643434D,
    flags: int = 0,
    time_left_ms: int = 5000,
) -> bytes:
    return HEADER.pack(magic, 1, 0, kind, flags, message_size, 1, payload_size, time_left_ms, 0)


def frame(kind: int, message: bytes, payload: bytes = b"") -> bytes:
    return header(kind, len(message), len(payload)) + message + payload


class RawPeer:
    """A connection to a node's port that says whatever it is told to."""

    opened: ClassVar[list[RawPeer]] = []  # Since the last close_all.

    def __init__(self, endpoint: str, timeout_s: float = 5.0) -> None:
        host, _, port = endpoint.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout_s)
        self._welcomed = False
        self.opened.append(self)

    def send(self, data: bytes) -> bool:
        """False: the node has closed the connection."""
        with contextlib.suppress(OSError):
            self.socket.sendall(data)
            return True
        return False

    def receive(self, size: int) -> bytes:
        """So many bytes, or fewer where the connection ends or stays silent."""
        data = b""
        with contextlib.suppress(OSError):
            while len(data) < size:
                more = self.socket.recv(size - len(data))
                if not more:
                    break
                data += more
        return data

    def ask(self, kind: int, message: bytes, payload: bytes = b"") -> tuple[bytes, bytes] | None:
        """The reply's message and payload; None: there was none. Begins with a hello."""
        greeting = b"" if self._welcomed else HELLO
        if not self.send(greeting + frame(kind, message, payload)):
            return None
        # The hello of the other end comes together with its first reply.
        head = self.receive(len(greeting) + HEADER.size)[len(greeting) :]
        if len(head) < HEADER.size:
            return None
        self._welcomed = True
        _, _, _, _, _, message_size, _, payload_size, _, _ = HEADER.unpack(head)
        return self.receive(message_size), self.receive(payload_size)

    def close(self) -> None:
        self.socket.close()

    @classmethod
    def close_all(cls) -> None:
        while cls.opened:
            cls.opened.pop().close()
