"""Random programs against a model, in a process of its own and in a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from mooncake.store import MooncakeHostMemAllocator
from random_programs import BUFFER, PROGRAMS, SETTINGS, run
from support import eventually


def registered(store: Any) -> int:
    address = MooncakeHostMemAllocator().alloc(BUFFER)
    assert store.register_buffer(address, BUFFER) == 0
    return address


@pytest.mark.timeout(0)
@pytest.mark.parametrize("cache", ["", "1MB"], ids=["plain", "hot cache"])
def test_programs_in_real_mode(
    cache: str, open_store: Callable[..., Any], node: Callable[..., Any], redis: Any
) -> None:
    """Half of the keys are another node's."""
    node(redis.url)
    hot = {"local_hot_cache_size": cache, "local_hot_block_size": "16KB"} if cache else {}
    store = open_store(redis.url, routed_writes=True, **hot)
    eventually(lambda: len(store.list_segments(all=True)) == 2)
    address = registered(store)

    @SETTINGS
    @given(PROGRAMS)
    def check(program: Any) -> None:
        run(store, address, program)

    check()
