"""An in-memory store with the results that docs promise of the real one.

Every raw pointer is checked against the registered ranges and pool leases before it is touched,
so a test that passes here does not rely on memory that the real store would refuse.
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from typing import Any

MISSING, TRANSPORT, TOO_SMALL, INVALID = -1, -4, -11, -2


class FakeLease:
    """A slice of the fake store's local buffer."""

    def __init__(self, store: FakeStore, ptr: int, size: int) -> None:
        self._store, self.ptr, self.size = store, ptr, size
        self._live = True

    def release(self) -> None:
        if self._live:
            self._live = False
            self._store._free_slice(self.ptr)

    def __del__(self) -> None:
        self.release()


class FakeStore:
    """Section 5 of the contract in a dict."""

    def __init__(self, local_bytes: int = 0, dummy: bool = False) -> None:
        self.data: dict[tuple[str, str], bytes] = {}
        self.calls: Counter[str] = Counter()
        self.log: list[tuple[str, Any]] = []
        self.fail: dict[str, list[Any]] = {}
        self.dummy = dummy
        self.closed = False
        self.configs: list[Any] = []
        self._regions: list[tuple[int, int]] = []
        self._slices: dict[int, int] = {}
        self._local_bytes = local_bytes
        self._local = ctypes.create_string_buffer(local_bytes + 64)
        base = ctypes.addressof(self._local)
        self._base = -(-base // 64) * 64
        self._mutex = threading.RLock()

    # --- helpers ----------------------------------------------------------------------------

    def _note(self, name: str, detail: Any = None) -> Any:
        """Counts the call; returns or raises what a test planted for it."""
        self.calls[name] += 1
        self.log.append((name, detail))
        planted = self.fail.get(name)
        if not planted:
            return None
        outcome = planted.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _known(self, ptr: int, size: int) -> bool:
        ranges = [*self._regions, *self._slices.items()]
        return any(base <= ptr and ptr + size <= base + length for base, length in ranges)

    def _take(self, ptr: int, size: int) -> bytes | None:
        return ctypes.string_at(ptr, size) if self._known(ptr, size) else None

    def _at(self, key: str, tenant: str | None) -> tuple[str, str]:
        if not isinstance(key, str):
            raise TypeError(f"key must be str, not {type(key).__name__}")
        if not key:
            raise ValueError("key is empty")
        return (tenant or "default", key)

    def _same_length(self, *lists: Any) -> None:
        if len({len(one) for one in lists}) > 1:
            raise ValueError(f"lists differ in length: {[len(one) for one in lists]}")

    # --- plain values -----------------------------------------------------------------------

    def put(self, key: str, value: Any, config: Any = None, *, tenant: str | None = None) -> int:
        planted = self._note("put", key)
        if planted is not None:
            return planted
        self.configs.append(config)
        with self._mutex:
            self.data[self._at(key, tenant)] = bytes(memoryview(value).cast("B"))
        return 0

    upsert = put

    def put_parts(
        self, key: str, *parts: Any, config: Any = None, tenant: str | None = None
    ) -> int:
        planted = self._note("put_parts", key)
        if planted is not None:
            return planted
        self.configs.append(config)
        with self._mutex:
            self.data[self._at(key, tenant)] = b"".join(
                bytes(memoryview(part).cast("B")) for part in parts
            )
        return 0

    def batch_put(
        self,
        items: Any = None,
        *,
        keys: Any = None,
        values: Any = None,
        tenant: str | None = None,
        config: Any = None,
    ) -> int:
        self._note("batch_put")
        pairs = list(items) if items is not None else list(zip(keys, values, strict=True))
        for key, value in pairs:
            self.data[self._at(key, tenant)] = bytes(value)
        return 0

    def put_batch(
        self, keys: Any, values: Any, config: Any = None, *, tenant: str | None = None
    ) -> int:
        return self.batch_put(keys=keys, values=values, tenant=tenant, config=config)

    def get(self, key: str, *, tenant: str | None = None) -> bytes:
        planted = self._note("get", key)
        if planted is not None:
            return planted
        return self.data.get(self._at(key, tenant), b"")

    def get_buffer(self, key: str, *, tenant: str | None = None) -> memoryview | None:
        self._note("get_buffer", key)
        value = self.data.get(self._at(key, tenant))
        return None if value is None else memoryview(value)

    def batch_get(self, keys: Any, *, tenant: str | None = None) -> list[bytes]:
        self._note("batch_get", list(keys))
        return [self.data.get(self._at(key, tenant), b"") for key in keys]

    def batch_get_buffer(self, keys: Any, *, tenant: str | None = None) -> list[Any]:
        self._note("batch_get_buffer", list(keys))
        found = [self.data.get(self._at(key, tenant)) for key in keys]
        return [None if value is None else memoryview(value) for value in found]

    def is_exist(self, key: str, *, tenant: str | None = None) -> bool:
        self._note("is_exist", key)
        return self._at(key, tenant) in self.data

    def batch_is_exist(self, keys: Any, *, tenant: str | None = None) -> list[int]:
        self._note("batch_is_exist", list(keys))
        return [int(self._at(key, tenant) in self.data) for key in keys]

    def get_size(self, key: str, *, tenant: str | None = None) -> int:
        planted = self._note("get_size", key)
        if planted is not None:
            return planted
        value = self.data.get(self._at(key, tenant))
        return MISSING if value is None else len(value)

    def remove(self, key: str, force: bool = False, *, tenant: str | None = None) -> int:
        planted = self._note("remove", key)
        if planted is not None:
            return planted
        gone = self.data.pop(self._at(key, tenant), None)
        return 0 if force or gone is not None else MISSING

    def batch_remove(
        self, keys: Any, force: bool = False, *, tenant: str | None = None
    ) -> list[int]:
        planted = self._note("batch_remove", list(keys))
        if planted is not None:
            return planted
        gone = [self.data.pop(self._at(key, tenant), None) for key in keys]
        return [0 if force or value is not None else MISSING for value in gone]

    # --- registered memory ------------------------------------------------------------------

    def register_buffer(self, ptr: int, size: int) -> int:
        planted = self._note("register_buffer", (ptr, size))
        if planted is not None:
            return planted
        if self.dummy:
            return -1
        with self._mutex:
            self._regions.append((ptr, size))
        return 0

    def unregister_buffer(self, ptr: int, size: int | None = None) -> int:
        planted = self._note("unregister_buffer", ptr)
        if planted is not None:
            return planted
        with self._mutex:
            for index in reversed(range(len(self._regions))):
                if self._regions[index][0] == ptr:
                    del self._regions[index]
                    return 0
        return -1

    @property
    def registered(self) -> int:
        """Ranges registered now."""
        return len(self._regions)

    def put_from(
        self, key: str, ptr: int, size: int, config: Any = None, *, tenant: str | None = None
    ) -> int:
        planted = self._note("put_from", key)
        if planted is not None:
            return planted
        self.configs.append(config)
        value = self._take(ptr, size)
        if value is None:
            return -1
        self.data[self._at(key, tenant)] = value
        return 0

    def batch_put_from(
        self,
        keys: Any,
        ptrs: Any,
        sizes: Any,
        config: Any = None,
        *,
        tenant: str | None = None,
    ) -> list[int]:
        planted = self._note("batch_put_from", list(keys))
        if planted is not None:
            return planted
        self._same_length(keys, ptrs, sizes)
        codes = []
        for key, ptr, size in zip(keys, ptrs, sizes, strict=True):
            value = self._take(ptr, size)
            if value is not None:
                self.data.setdefault(self._at(key, tenant), value)
            codes.append(INVALID if value is None else 0)
        return codes

    def batch_put_from_multi_buffers(
        self, keys: Any, ptrs: Any, sizes: Any, config: Any = None, *, tenant: str | None = None
    ) -> list[int]:
        self._note("batch_put_from_multi_buffers", list(keys))
        self._same_length(keys, ptrs, sizes)
        codes = []
        for key, row, lengths in zip(keys, ptrs, sizes, strict=True):
            parts = [self._take(ptr, size) for ptr, size in zip(row, lengths, strict=True)]
            whole = None if None in parts else b"".join(part for part in parts if part)
            if whole is not None:
                self.data.setdefault(self._at(key, tenant), whole)
            codes.append(INVALID if whole is None else 0)
        return codes

    def _put_cut_from(
        self,
        key: str,
        head: bytes,
        ptr: int,
        size: int,
        start: int,
        rows: int,
        run: int,
        step: int,
        config: Any = None,
        *,
        tenant: str | None = None,
    ) -> int:
        self._note("_put_cut_from", key)
        whole = self._take(ptr, size)
        if whole is None:
            return -1
        places = [start + row * step for row in range(rows)]
        assert not places or places[-1] + run <= size
        pieces = b"".join(whole[at : at + run] for at in places)
        self.configs.append(config)
        self.data[self._at(key, tenant)] = head + pieces
        return 0

    def _copy_into(self, ptr: int, size: int, offset: int, data: Any) -> int:
        if not self._known(ptr, size):
            return INVALID
        raw = bytes(memoryview(data).cast("B"))
        assert offset + len(raw) <= size
        ctypes.memmove(ptr + offset, raw, len(raw))
        return 0

    def _copy_out(self, ptr: int, size: int) -> bytes | None:
        return self._take(ptr, size)

    def get_into(self, key: str, ptr: int, size: int, *, tenant: str | None = None) -> int:
        planted = self._note("get_into", key)
        if planted is not None:
            return planted
        return self._into(key, ptr, size, tenant)

    def _into(self, key: str, ptr: int, size: int, tenant: str | None) -> int:
        value = self.data.get(self._at(key, tenant))
        if value is None:
            return MISSING
        if len(value) > size:
            return TOO_SMALL
        if not self._known(ptr, size):
            return INVALID
        ctypes.memmove(ptr, value, len(value))
        return len(value)

    def batch_get_into(
        self, keys: Any, ptrs: Any, sizes: Any, *, tenant: str | None = None
    ) -> list[int]:
        planted = self._note("batch_get_into", list(keys))
        if planted is not None:
            return planted
        self._same_length(keys, ptrs, sizes)
        rows = zip(keys, ptrs, sizes, strict=True)
        return [self._into(key, ptr, size, tenant) for key, ptr, size in rows]

    def batch_get_into_multi_buffers(
        self,
        keys: Any,
        ptrs: Any,
        sizes: Any,
        prefer_alloc_in_same_node: bool = False,
        *,
        tenant: str | None = None,
    ) -> list[int]:
        self._note("batch_get_into_multi_buffers", list(keys))
        results = []
        for key, row, lengths in zip(keys, ptrs, sizes, strict=True):
            value = self.data.get(self._at(key, tenant))
            if value is None:
                results.append(MISSING)
                continue
            if sum(lengths) < len(value):
                results.append(TOO_SMALL)
                continue
            offset = 0
            for ptr, size in zip(row, lengths, strict=True):
                piece = value[offset : offset + size]
                ctypes.memmove(ptr, piece, len(piece))
                offset += len(piece)
            results.append(len(value))
        return results

    def get_into_ranges(
        self,
        buffer_ptrs: Any,
        all_keys: Any,
        all_dst_offsets: Any,
        all_src_offsets: Any,
        all_sizes: Any,
        *,
        buffer_sizes: Any = None,
        tenant: str | None = None,
    ) -> list[list[list[int]]]:
        planted = self._note("get_into_ranges", [list(keys) for keys in all_keys])
        if planted is not None:
            return planted
        self._same_length(buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes)
        results = []
        for index, base in enumerate(buffer_ptrs):
            room = None if buffer_sizes is None else buffer_sizes[index]
            per_key = []
            for at, key in enumerate(all_keys[index]):
                value = self.data.get(self._at(key, tenant))
                fragments = zip(
                    all_dst_offsets[index][at],
                    all_src_offsets[index][at],
                    all_sizes[index][at],
                    strict=True,
                )
                per_key.append(
                    [self._range(value, base, room, *fragment) for fragment in fragments]
                )
            results.append(per_key)
        return results

    def _range(
        self, value: bytes | None, base: int, room: int | None, dst: int, src: int, size: int
    ) -> int:
        if value is None:
            return MISSING
        if src + size > len(value) or (room is not None and dst + size > room):
            return TOO_SMALL
        if not self._known(base + dst, size):
            return INVALID
        ctypes.memmove(base + dst, value[src : src + size], size)
        return size

    # --- local buffer pool ------------------------------------------------------------------

    def local_buffer_pool_capacity(self) -> int:
        return 0 if self.dummy else self._local_bytes

    def local_buffer_pool_try_acquire(self, size: int) -> FakeLease | None:
        self._note("local_buffer_pool_try_acquire", size)
        if self.closed:
            raise RuntimeError("the store is not set up")
        with self._mutex:
            at = self._base
            for ptr, length in sorted(self._slices.items()):
                if at + size <= ptr:
                    break
                at = -(-(ptr + length) // 64) * 64
            if at + size > self._base + self._local_bytes:
                return None
            self._slices[at] = size
            return FakeLease(self, at, size)

    def _free_slice(self, ptr: int) -> None:
        with self._mutex:
            self._slices.pop(ptr, None)

    def health_check(self) -> int:
        return 1 if self.closed else 0

    def close(self) -> None:
        self.closed = True
        self._regions.clear()


def put_at(store: FakeStore, key: str, value: bytes) -> None:
    """Stores ``value`` without counting a call."""
    store.data["default", key] = value
