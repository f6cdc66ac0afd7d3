"""Metrics over HTTP and the trace of a process, as functions and as methods of the store."""

from __future__ import annotations

import os

from ._native import native


def _environment() -> dict[str, str]:
    return {n: text for n, text in os.environ.items() if n.startswith(("MC_", "OTEL_"))}


def init_tracing(filter: str | None = None) -> None:
    """Start the log and the trace of this process; may be called again.

    ``MC_STORE_RS_TRACE_FILE`` names a file for the log, ``MC_STORE_RS_TRACE_FILTER`` its level,
    ``MC_STORE_RS_TRACE_JSONL_FILE`` a file with a line of JSON for each call
    (``docs/observability.md``), and ``MC_STORE_RS_OTLP_ENDPOINT`` a collector that spans are
    exported to. ``setup`` does the same by itself when they are set.

    Args:
        filter: what is logged: trace, debug, info, warn, error or off. Overrides the variable.

    Raises:
        ValueError: a file cannot be opened, or a variable has a wrong value.

    Example:
        >>> init_tracing("warn")
    """
    native._init_tracing(filter or "", _environment())


def metrics_text() -> str:
    """The metrics of all stores of this process, in Prometheus' text format 0.0.4.

    What stores counted that are closed by now is in the sums.

    Example:
        >>> "process_open_fds" in metrics_text()
        True
    """
    return native._process_metrics_text()


def start_metrics_server(bind_addr: str = "127.0.0.1:0") -> str:
    """Serve this process over HTTP: /metrics, /stats, /breakdown, /healthz and /tracing.

    There is one server in a process; it goes on until ``stop_metrics_server``, whatever becomes of
    the stores.

    Args:
        bind_addr: "host:port"; port 0 takes any free one.

    Returns:
        The address in use, "host:port"; of the server that runs, when that is the same one.

    Raises:
        ValueError: ``bind_addr`` is not an address.
        RuntimeError: it cannot be listened at, or a server runs at another address.

    Example:
        >>> address = start_metrics_server()
        >>> address == metrics_server_address()
        True
        >>> stop_metrics_server()
    """
    if not isinstance(bind_addr, str):
        raise TypeError(
            f"start_metrics_server: bind_addr must be str, got {type(bind_addr).__name__}"
        )
    return native._start_metrics_server(bind_addr, _environment())


def stop_metrics_server() -> None:
    """Stop the server of this process; nothing happens when there is none.

    Example:
        >>> stop_metrics_server()
    """
    native._stop_metrics_server()


def metrics_server_address() -> str | None:
    """Where the metrics of this process are served, "host:port"; None when they are not.

    Example:
        >>> metrics_server_address() is None
        True
    """
    return native._metrics_server_address() or None


class ObservabilityMethods:
    """The functions above, as methods. They need no ``setup``, and concern the whole process."""

    init_tracing = staticmethod(init_tracing)
    start_metrics_server = staticmethod(start_metrics_server)
    stop_metrics_server = staticmethod(stop_metrics_server)
    metrics_server_address = staticmethod(metrics_server_address)
