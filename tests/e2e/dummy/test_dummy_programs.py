"""Random programs against a model, through a daemon."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from mooncake.store import MooncakeHostMemAllocator
from random_programs import BUFFER, PROGRAMS, SETTINGS, run


@pytest.mark.timeout(0)
def test_programs_through_a_daemon(start_daemon: Any, dummy: Any) -> None:
    daemon = start_daemon()
    store = dummy(daemon.address)
    address = MooncakeHostMemAllocator().alloc(BUFFER)
    assert store.register_buffer(address, BUFFER) == 0

    @SETTINGS
    @given(PROGRAMS)
    def check(program: Any) -> None:
        run(store, address, program)

    check()
