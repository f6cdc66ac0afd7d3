"""MooncakeDistributedStore: the native store, and ``setup`` with its many ways to be called."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, overload

from . import _settings
from ._native import native
from ._observability import ObservabilityMethods
from ._tensor_parallel import check_key, unsigned
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

    _fanout = 1  # Parts of a batch_put_from.

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
        self._fanout = width
        return status

    def batch_put_from(
        self,
        keys: Iterable[Any],
        ptrs: Iterable[int] | None = None,
        sizes: Iterable[int] | None = None,
        config: object = None,
        *,
        tenant: str | None = None,
    ) -> list[int]:
        """Store values from registered memory unless their keys have one.

        Takes three lists, or one of (key, ptr, size). With
        ``MC_STORE_RS_PY_BATCH_PUT_FROM_FANOUT=n`` in the environment of ``setup``, a batch goes out
        as n contiguous parts at once.

        Returns:
            0 or a negative code each.

        Raises:
            TypeError, ValueError: an argument is wrong; nothing was written.
            RuntimeError: the store is not set up, or closed.

        Example:
            >>> store.batch_put_from(["a", "b"], [ptr, ptr + 64], [64, 64])
            [0, 0]
        """
        put = super().batch_put_from
        if self._fanout == 1:
            return put(keys, ptrs, sizes, config, tenant=tenant)
        lists = [_list(values) for values in (keys, ptrs, sizes)]
        given = [values for values in lists if values is not None]
        even = all(isinstance(v, list) and len(v) == len(given[0]) for v in given)
        columns = _columns(*lists) if given and even and len(given) in (1, 3) else None
        if not columns or len(columns[0]) < 2:
            return put(lists[0], lists[1], lists[2], config, tenant=tenant)
        step = -(-len(columns[0]) // self._fanout)

        def put_part(start: int) -> list[int]:
            names, addresses, lengths = (column[start : start + step] for column in columns)
            return put(names, addresses, lengths, config, tenant=tenant)

        count = len(columns[0])
        start_unix_ns, start_ns = time.time_ns(), time.monotonic_ns()
        with ThreadPoolExecutor(self._fanout, thread_name_prefix="mooncake-put") as pool:
            codes = [c for part in pool.map(put_part, range(0, count, step)) for c in part]
        duration_ns = time.monotonic_ns() - start_ns
        native._trace_fanout(start_unix_ns, duration_ns, count, not any(codes))
        return codes

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
        given = {"keyspace": keyspace, "worker_scope": worker_scope}
        texts = {name: text for name, text in given.items() if text is not None}
        values = {
            name: _settings.checked_text("setup_dummy", name, text)
            for name, text in {"server_address": server_address, **texts}.items()
        }
        status = self._open_dummy(values, _settings.environment())
        self._fanout = 1
        _log.info("connected to the daemon at %s", server_address)
        return status


def _list(values: Any) -> Any:
    """A list of its own for any iterable; what is none, or one text, as it is."""
    if isinstance(values, (str, bytes, bytearray, memoryview)) or not hasattr(values, "__iter__"):
        return values
    return list(values)


def _fanout_width(environment: Mapping[str, str]) -> int:
    text = environment.get(_FANOUT, "") or "1"
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"{_FANOUT} is {text!r}; allowed: an integer of at least 1")
    return min(int(text), 4 * (os.cpu_count() or 1))


def _columns(keys: Any, ptrs: Any, sizes: Any) -> list[list[Any]] | None:
    """Keys, ptrs and sizes of a batch that may be divided; None when it is to go as one call.

    Also None for what is wrong, as the one call then says what it is, and writes nothing; and for
    keys that come again, of which the first wins.
    """
    rows = keys if ptrs is None and sizes is None else zip(keys, ptrs, sizes)
    names, addresses, lengths = [], [], []
    for row in rows:
        if isinstance(row, (str, bytes, bytearray, memoryview)):
            return None
        try:
            key, ptr, size = row
            check_key("key", key)
            addresses.append(unsigned("ptr", ptr))
            lengths.append(unsigned("size", size))
        except (TypeError, ValueError):
            return None
        names.append(key)
    return [names, addresses, lengths] if len(set(names)) == len(names) else None
