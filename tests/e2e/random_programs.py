"""Random programs over the data calls of a store, and the model that they must agree with.

Values are small, and so are key spaces: programs that never meet a key again say little.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# Of each test; more by MC_HYPOTHESIS_EXAMPLES.
EXAMPLES = int(os.environ.get("MC_HYPOTHESIS_EXAMPLES", "200"))
SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

BUFFER = 1 << 16  # Bytes of registered memory that programs use.
AREA = 1 << 13  # What one item of a batch may use of it.

KEYS = st.sampled_from(["a", "b/c", "::x", "ключ", "k" * 300, "ns/d/o/k"])
VALUES = st.one_of(st.just(b""), st.binary(max_size=40), st.binary(min_size=1000, max_size=1100))
TENANTS = st.sampled_from([None, None, None, "other"])
ROOM = st.sampled_from([0, 1, 39, 1050, AREA])


def lists(element: Any, most: int = 5) -> Any:
    return st.lists(element, max_size=most)


def cut(value: bytes, pieces: int) -> list[bytes]:
    """The value in this many parts, some of them empty."""
    step = len(value) // pieces
    ends = [i * step for i in range(pieces)] + [len(value)]
    return [value[a:b] for a, b in zip(ends, ends[1:])]


class Program:
    """Runs calls at a store and at a dict, and compares the answers."""

    def __init__(self, store: Any, address: int) -> None:
        self.store, self.address = store, address
        self.values: dict[tuple[str | None, str], bytes] = {}

    # One method for each kind of call; its arguments are drawn by STEPS.

    def put(self, how: str, key: str, value: bytes, tenant: str | None) -> None:
        if how == "put_from":
            code = self.store.put_from(key, self.fill(0, value), len(value), tenant=tenant)
        elif how == "put_parts":
            code = self.store.put_parts(key, *cut(value, 3), tenant=tenant)
        else:
            code = getattr(self.store, how)(key, bytearray(value), tenant=tenant)
        assert code == 0
        self.values[tenant, key] = value

    def put_batch(self, items: list[tuple[str, bytes]], pairs: bool, tenant: str | None) -> None:
        if pairs:
            assert self.store.batch_put(items, tenant=tenant) == 0
        else:
            keys, values = [k for k, _ in items], [v for _, v in items]
            assert self.store.put_batch(keys, values, tenant=tenant) == 0
        self.values.update({(tenant, key): value for key, value in items})

    def insert_batch(self, items: list[tuple[str, bytes]], multi: bool, tenant: str | None) -> None:
        keys = [key for key, _ in items]
        at = [self.fill(i, value) for i, (_, value) in enumerate(items)]
        sizes = [len(value) for _, value in items]
        if multi:
            halves = [size // 2 for size in sizes]
            rows = [[a, a + half] for a, half in zip(at, halves)]
            parts = [[half, size - half] for half, size in zip(halves, sizes)]
            codes = self.store.batch_put_from_multi_buffers(keys, rows, parts, tenant=tenant)
        else:
            codes = self.store.batch_put_from(keys, at, sizes, tenant=tenant)
        assert codes == [0] * len(items)
        for key, value in items:
            self.values.setdefault((tenant, key), value)

    def read(self, how: str, keys: list[str], tenant: str | None) -> None:
        wanted = [self.values.get((tenant, key)) for key in keys]
        if how == "get":
            got = [self.store.get(key, tenant=tenant) for key in keys]
            assert got == [value or b"" for value in wanted]
        elif how in ("batch_get", "get_batch"):
            got = getattr(self.store, how)(keys, tenant=tenant)
            assert got == [value or b"" for value in wanted]
        elif how == "get_buffer":
            got = [self.store.get_buffer(key, tenant=tenant) for key in keys]
            assert [None if g is None else bytes(g) for g in got] == wanted
        else:
            got = self.store.batch_get_buffer(keys, tenant=tenant)
            assert [None if g is None else bytes(g) for g in got] == wanted

    def read_into(self, multi: bool, items: list[tuple[str, int]], tenant: str | None) -> None:
        keys, rooms = [key for key, _ in items], [room for _, room in items]
        at = [self.fill(i, b"\xa5" * AREA) for i in range(len(items))]
        if multi:
            rows = [[a, a + room // 3] for a, room in zip(at, rooms)]
            parts = [[room // 3, room - room // 3] for room in rooms]
            got = self.store.batch_get_into_multi_buffers(keys, rows, parts, tenant=tenant)
        else:
            got = self.store.batch_get_into(keys, at, rooms, tenant=tenant)
        assert len(got) == len(items)
        for i, (key, room) in enumerate(items):
            value = self.values.get((tenant, key))
            if value is None:
                assert got[i] == -1
            elif len(value) > room:
                assert got[i] == -11
            else:
                assert got[i] == len(value)
                assert self.bytes_at(i, len(value)) == value
            # Beyond what was asked for nothing is touched.
            assert self.bytes_at(i, AREA)[room:] == b"\xa5" * (AREA - room)

    def read_ranges(
        self, key: str, fragments: list[tuple[int, int, int]], tenant: str | None
    ) -> None:
        value = self.values.get((tenant, key))
        targets = [i * 1200 + skip for i, (skip, _, _) in enumerate(fragments)]
        base = self.fill(0, b"\xa5" * AREA)
        got = self.store.get_into_ranges(
            [base],
            [[key]],
            [[targets]],
            [[[source for _, source, _ in fragments]]],
            [[[size for _, _, size in fragments]]],
            buffer_sizes=[AREA],
            tenant=tenant,
        )[0][0]
        for (_, source, size), target, count in zip(fragments, targets, got):
            if value is not None and source + size <= len(value):
                assert count == size
                assert self.bytes_at(0, AREA)[target : target + size] == value[source:][:size]
            elif size > 0:
                assert count < 0

    def look(self, keys: list[str], tenant: str | None) -> None:
        known = [self.values.get((tenant, key)) for key in keys]
        present = [value is not None for value in known]
        assert self.store.batch_is_exist(keys, tenant=tenant) == [int(p) for p in present]
        assert [self.store.is_exist(key, tenant=tenant) for key in keys] == present
        sizes = [-1 if value is None else len(value) for value in known]
        assert [self.store.get_size(key, tenant=tenant) for key in keys] == sizes

    def remove(self, keys: list[str], one: bool, force: bool, tenant: str | None) -> None:
        if one:
            codes = [self.store.remove(key, force, tenant=tenant) for key in keys]
        else:
            keys = list(dict.fromkeys(keys))
            codes = self.store.batch_remove(keys, force, tenant=tenant)
        for key, code in zip(keys, codes):
            there = self.values.pop((tenant, key), None) is not None
            assert code == (0 if there or force else -1)

    def remove_all(self, tenant: str | None) -> None:
        keys = [known for known in self.values if known[0] == tenant]
        assert self.store.remove_all(tenant=tenant) == len(keys)
        for known in keys:
            del self.values[known]

    def end(self) -> None:
        """What is left is what the model has; nothing stays for the next program."""
        for tenant in (None, "other"):
            for key in dict.fromkeys(key for _, key in self.values):
                self.read("get", [key], tenant)
            self.remove_all(tenant)

    def fill(self, area: int, content: bytes) -> int:
        at = self.address + area * AREA
        ctypes.memmove(at, content, len(content))
        return at

    def bytes_at(self, area: int, size: int) -> bytes:
        return ctypes.string_at(self.address + area * AREA, size)


def step(name: str, *arguments: Any) -> Any:
    return st.tuples(st.just(name), st.tuples(*arguments))


STEPS = st.one_of(
    step("put", st.sampled_from(["put", "upsert", "put_from", "put_parts"]), KEYS, VALUES, TENANTS),
    step("put_batch", lists(st.tuples(KEYS, VALUES)), st.booleans(), TENANTS),
    step("insert_batch", lists(st.tuples(KEYS, VALUES)), st.booleans(), TENANTS),
    step(
        "read",
        st.sampled_from(["get", "batch_get", "get_batch", "get_buffer", "batch_get_buffer"]),
        lists(KEYS),
        TENANTS,
    ),
    step("read_into", st.booleans(), lists(st.tuples(KEYS, ROOM)), TENANTS),
    step(
        "read_ranges",
        KEYS,
        lists(st.tuples(st.integers(0, 90), st.integers(0, 60), st.integers(0, 1100))),
        TENANTS,
    ),
    step("look", lists(KEYS), TENANTS),
    step("remove", lists(KEYS), st.booleans(), st.booleans(), TENANTS),
    step("remove_all", TENANTS),
)
PROGRAMS = st.lists(STEPS, max_size=15)


def run(store: Any, address: int, program: list[tuple[str, tuple[Any, ...]]]) -> None:
    state = Program(store, address)
    try:
        for name, arguments in program:
            method: Callable[..., None] = getattr(state, name)
            method(*arguments)
        state.end()
    finally:
        for tenant in (None, "other"):
            store.remove_all(tenant=tenant)
