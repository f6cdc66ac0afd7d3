"""Every read into memory tells what happened by the same numbers, in both modes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
from mooncake.store import MooncakeHostMemAllocator
from support import MIB

NOT_FOUND, REFUSED, TOO_SMALL = -1, -2, -11

# A read of one value into one range, by each of the calls that can.
FORMS: dict[str, Callable[[Any, str, int, int], int]] = {
    "get_into": lambda s, key, ptr, size: s.get_into(key, ptr, size),
    "batch_get_into": lambda s, key, ptr, size: s.batch_get_into([key], [ptr], [size])[0],
    "batch_get_into, items": lambda s, key, ptr, size: s.batch_get_into([(key, ptr, size)])[0],
    "multi": lambda s, key, ptr, size: s.batch_get_into_multi_buffers(
        [key], [[ptr, ptr + size // 2]], [[size // 2, size - size // 2]]
    )[0],
    "multi, items": lambda s, key, ptr, size: s.batch_get_into_multi_buffers(
        [(key, [(ptr, size)])]
    )[0],
    "ranges": lambda s, key, ptr, size: s.get_into_ranges(
        [ptr], [[key]], [[[0]]], [[[0]]], [[[5]]], buffer_sizes=[size]
    )[0][0][0],
}


@pytest.fixture(params=["real", "dummy"])
def any_store(request: pytest.FixtureRequest) -> Any:
    if request.param == "real":
        return request.getfixturevalue("store")
    return request.getfixturevalue("dummy")(request.getfixturevalue("start_daemon")().address)


@pytest.mark.parametrize("form", FORMS)
def test_a_read_into_memory_says_what_happened(any_store: Any, form: str) -> None:
    read = FORMS[form]
    ptr = MooncakeHostMemAllocator().alloc(MIB)
    assert any_store.register_buffer(ptr, MIB) == 0
    assert any_store.put("k", b"value") == 0
    assert read(any_store, "k", ptr, 5) == 5
    assert ctypes.string_at(ptr, 5) == b"value"
    ctypes.memset(ptr, 0xEE, MIB)
    assert read(any_store, "missing", ptr, 5) == NOT_FOUND
    assert read(any_store, "k", ptr, 4) == TOO_SMALL
    assert any_store.unregister_buffer(ptr) == 0
    assert read(any_store, "k", ptr, 5) == REFUSED
    assert ctypes.string_at(ptr, MIB) == b"\xee" * MIB


def test_a_fragment_outside_the_value_is_too_small(any_store: Any) -> None:
    ptr = MooncakeHostMemAllocator().alloc(4096)
    assert any_store.register_buffer(ptr, 4096) == 0
    assert any_store.put("k", b"value") == 0
    answers = any_store.get_into_ranges([ptr], [["k"]], [[[0, 9]]], [[[5, 2]]], [[[1, 3]]])
    assert answers == [[[TOO_SMALL, 3]]]


@pytest.mark.parametrize("name", ["put_from", "upsert_from"])
def test_a_put_of_one_value_fails_with_one_number(any_store: Any, name: str) -> None:
    ptr = MooncakeHostMemAllocator().alloc(4096)
    assert getattr(any_store, name)("k", ptr, 8) == -1
    assert any_store.batch_put_from(["k"], [ptr], [8]) == [REFUSED]
    assert any_store.batch_put_from_multi_buffers(["k"], [[ptr]], [[8]]) == [REFUSED]
