"""MooncakeDistributedStore: the native store, and ``setup`` with its many ways to be called."""

from __future__ import annotations

import functools
import logging
import os
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, overload

from . import _settings
from ._native import native
from ._observability import ObservabilityMethods
from ._tensors import TensorMethods

_log = logging.getLogger("mooncake.store.rs.store")
_FANOUT = "MC_STORE_RS_PY_BATCH_PUT_FROM_FANOUT"


class MooncakeDistributedStore(TensorMethods, ObservabilityMethods, native.NativeStore):
    """A client of the distributed store, and with storage of its own a node of it.

    All methods may be called from many threads at once. Data calls never raise for what can
    happen to a cache: a missing value, a peer that died, no space. They return what their
    documentation says, and a line in the log has the reason. A wrong argument is a ``TypeError``
    or ``ValueError``, a call before ``setup`` or after ``close`` a ``RuntimeError``.

    Example:
        >>> store = MooncakeDistributedStore()                                 # doctest: +SKIP
        >>> store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "",
        ...             "sqlite:///var/tmp/cluster.db")                        # doctest: +SKIP
        0
        >>> store.put("key", b"value")                                         # doctest: +SKIP
        0
        >>> store.get("key")                                                   # doctest: +SKIP
        b'value'
    """

    def __init__(self) -> None:
        super().__init__()

    def __repr__(self) -> str:
        name = type(self).__name__
        try:
            return f"<{name} at {self.get_hostname()}>"
        except RuntimeError:  # Not set up, closed, or a parent's.
            return f"<{name}, not set up>"

    @overload
    def setup(self, config: Mapping[str, Any], /) -> int: ...

    @overload
    def setup(
        self,
        local_hostname: str,
        transport_metadata_url: str = ...,
        global_segment_size: int | str = ...,
        local_buffer_size: int | str = ...,
        protocol: str = "tcp",
        device_name: str = "",
        metadata_url: str = "",
        engine: object = None,
        **settings: Any,
    ) -> int: ...

    def setup(self, *args: Any, **kwargs: Any) -> int:
        """Join the cluster.

        ``setup(local_hostname, transport_metadata_url, global_segment_size, local_buffer_size,
        protocol="tcp", device_name="", metadata_url="", engine=None, **settings)`` or
        ``setup({...})`` with the same names. ``docs/configuration.md`` lists all settings, their
        other names, environment variables and defaults.

        Returns:
            0. A store that is already set up is closed first.

        Raises:
            ValueError, TypeError: an argument is wrong; the text names it and what is allowed.
            RuntimeError: the cluster cannot be joined. Nothing is left behind.

        Example:
            >>> store.setup({"local_hostname": "127.0.0.1", "metadata_url": "sqlite:///var/tmp/c.db"})
            0
        """
        values, environment = _settings.settings_of(args, kwargs)
        width = _fanout_width(environment)
        status = self._open(values, environment)
        _log.info("joined the cluster as %s", self.get_hostname())
        self.__dict__.pop("batch_put_from", None)
        if width > 1:
            fanned = functools.partial(_put_fanned, weakref.ref(self), width)
            self.__dict__["batch_put_from"] = fanned
        return status

    def setup_dummy(
        self,
        mem_pool_size: int,
        local_buffer_size: int,
        server_address: str,
        *,
        keyspace: str | None = None,
        worker_scope: str | None = None,
    ) -> int:
        """Become a client of a daemon (``mooncake-store-rs-client``) on this host.

        The process is then no node of the cluster: the daemon reads and writes for it, and both
        share memory. Registered buffers have to come from ``MooncakeHostMemAllocator``. After a
        restart of the daemon the store connects again and registers its buffers by itself.

        Args:
            mem_pool_size, local_buffer_size: accepted for callers of ``setup``, and unused.
            server_address: "host:port" of the daemon's ``--client-server-address``.
            keyspace: the daemon's; else ``MC_STORE_RS_KEYSPACE``.
            worker_scope: which clients share the hot cache; else the keyspace, else "worker-1".

        Returns:
            0. A store that is already set up is closed first.

        Raises:
            ValueError, TypeError: an argument is wrong.
            RuntimeError: the daemon is not there or refuses; the text says at which step and why.

        Example:
            >>> store.setup_dummy(64 << 20, 16 << 20, "127.0.0.1:16590")  # doctest: +SKIP
            0
        """
        del mem_pool_size, local_buffer_size
        values = {"server_address": server_address}
        for name, text in (("keyspace", keyspace), ("worker_scope", worker_scope)):
            if text is not None:
                values[name] = text
        status = self._open_dummy(values, _settings.environment())
        self.__dict__.pop("batch_put_from", None)
        _log.info("connected to the daemon at %s", server_address)
        return status


def _fanout_width(environment: Mapping[str, str]) -> int:
    text = environment.get(_FANOUT, "") or "1"
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"{_FANOUT} is {text!r}; allowed: an integer of at least 1")
    return min(int(text), 4 * (os.cpu_count() or 1))


def _put_fanned(
    reference: weakref.ref[MooncakeDistributedStore],
    width: int,
    keys: Any,
    ptrs: Any = None,
    sizes: Any = None,
    config: Any = None,
    *,
    tenant: str | None = None,
) -> list[int]:
    """``batch_put_from`` in contiguous parts, each on a thread of its own."""
    store = reference()
    assert store is not None, "the caller holds it"
    put = type(store).batch_put_from
    lists = [list(part) for part in (keys, ptrs, sizes) if part is not None]
    count = len(lists[0])
    step = -(-count // width)
    options: dict[str, Any] = {"config": config, "tenant": tenant}
    if step == 0 or any(len(part) != count for part in lists):
        return put(store, keys, ptrs, sizes, **options)

    def put_part(start: int) -> list[int]:
        parts = [part[start : start + step] for part in lists]
        return put(store, *parts, **options)

    start_unix_ns, start_ns = time.time_ns(), time.monotonic_ns()
    with ThreadPoolExecutor(width, thread_name_prefix="mooncake-put") as pool:
        codes = [code for part in pool.map(put_part, range(0, count, step)) for code in part]
    duration_ns = time.monotonic_ns() - start_ns
    native._trace_fanout(start_unix_ns, duration_ns, count, not any(codes))
    return codes
