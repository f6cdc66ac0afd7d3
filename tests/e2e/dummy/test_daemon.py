"""The command line of mooncake-store-rs-client."""

from __future__ import annotations

import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

PROGRAM = "mooncake-store-rs-client"


def test_no_argument_prints_help_and_fails(run_program) -> None:
    done = run_program()
    assert done.returncode == 2
    assert "usage:" in done.stderr
    for argument in ("--help", "-h", "help"):
        done = run_program(argument)
        assert done.returncode == 0
        assert "--client-server-address" in done.stdout
        assert "--metadata-url" in done.stdout
        assert "--global-segment-size, --storage-bytes (default 64MB)\n" in done.stdout
        assert "--local-buffer-size, --scratch-bytes (default 4MB)\n" in done.stdout
        assert "--labels, --label\n" in done.stdout
    assert PROGRAM in run_program("--version").stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--lease-ttl-ms", "0"], "lease-ttl-ms"),
        (["--scratch-bytes", "0"], "scratch"),
        (["--storage-bytes", "0", "--label", "storage=true"], "storage"),
        (["--route-topk", "1"], "route-topk"),
        (["--cold-tier-id", "x"], "cold"),
        (["--no-such-flag"], "no-such-flag"),
        (["--stable-ids", "x"], "stable-id"),
        (["--tenant"], "tenant"),
        (["stray"], "stray"),
        (["--metadata-url", "http://x"], "metadata"),
        (["--trace-filter", "loud"], "trace-filter"),
        (["--client-server-address", "127.0.0.1"], "port"),
    ],
)
def test_wrong_arguments_are_named(
    run_program, arguments: list[str], named: str, sqlite_url: str
) -> None:
    base = ["--local-hostname", "127.0.0.1"]
    if "--metadata-url" not in arguments:
        base += ["--metadata-url", sqlite_url]
    done = run_program(*base, *arguments)
    assert done.returncode in (1, 2)
    assert named.replace("-", "_") in done.stderr.replace("-", "_")


def test_a_port_in_use_is_named(run_program, sqlite_url: str) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        done = run_program(
            *("--local-hostname", "127.0.0.1", "--metadata-url", sqlite_url),
            *("--client-server-address", address),
        )
    assert done.returncode == 1
    assert address in done.stderr


def test_flags_win_over_environment_and_that_over_the_file(
    run_program, tmp_path: Path, sqlite_url: str
) -> None:
    config = tmp_path / "daemon.conf"
    config.write_text(
        "# A comment\n"
        f"metadata-url = {sqlite_url}\n"
        "tenant = from-file\ndomain = from-file\nobject_set = from-file\n"
        "routed_writes = true\n"
    )
    done = run_program(
        *("--config", str(config), "--print-config", "--tenant=flag", "--storage_bytes", "1MB"),
        *("--label", "pool=a", "--label", "rack=7", "--local-hostname", "h"),
        MC_STORE_RS_TENANT="environment",
        MC_STORE_RS_DOMAIN="environment",
        MC_STORE_RS_CLUSTER_SECRET="s3cret",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "tenant = flag  # given" in lines
    assert "domain = environment  # environment" in lines
    assert "object_set = from-file  # given" in lines
    assert "labels = pool=a,rack=7  # given" in lines
    assert "global_segment_size = 1MB  # given" in lines
    assert "routed_writes = true  # given" in lines
    assert "local_buffer_size = 4MB  # default" in lines
    assert "s3cret" not in done.stdout
    config.write_text("tenants = x\n")
    done = run_program(
        "--config", str(config), "--local-hostname", "h", "--metadata-url", sqlite_url
    )
    assert done.returncode == 2
    assert "line 1" in done.stderr


def test_metrics_over_http(start_daemon, run_program) -> None:
    daemon = start_daemon("--metrics-addr", "127.0.0.1:0")
    address = daemon.started("metrics_addr")
    for form in ([], ["--json"], ["--breakdown"], ["--breakdown", "--json"]):
        done = run_program("stats", "--server", address, *form)
        assert done.returncode == 0, done.stderr
        assert "schema_version" in done.stdout or "segments" in done.stdout
    taken = run_program(
        *("--local-hostname", "127.0.0.1", "--metadata-url", "memory://own"),
        *("--metrics-addr", address),
    )
    assert taken.returncode == 1
    assert "--metrics-addr" in taken.stderr


def test_signals(start_daemon) -> None:
    daemon = start_daemon("--stable-id", "d")
    assert daemon.started("stable_id") == "d"
    assert daemon.started("epoch") == "1"
    assert daemon.started("metrics_addr") == "disabled"
    socket_path = Path(daemon.started("socket"))
    assert socket_path.exists()
    assert socket_path.parent.stat().st_mode & 0o777 == 0o700
    start = time.monotonic()
    assert daemon.terminate() == 0
    assert time.monotonic() - start < 10
    assert not socket_path.exists()
    assert f"{PROGRAM} stopped stable_id=d\n" in daemon.lines
    # The name is free again, with the next epoch; SIGINT is as good.
    daemon.start()
    assert daemon.started("epoch") == "2"
    daemon.process.send_signal(signal.SIGINT)
    assert daemon.process.wait(10) == 0


def test_a_name_that_was_made_up_is_told_to_the_end(start_daemon) -> None:
    daemon = start_daemon()
    name = daemon.started("stable_id")
    assert daemon.terminate() == 0
    assert f"{PROGRAM} stopped stable_id={name}\n" in daemon.lines


def test_stats_says_what_is_missing(run_program, port) -> None:
    done = run_program("stats")
    assert done.returncode == 2
    assert "--server" in done.stderr
    done = run_program("stats", "--server", f"127.0.0.1:{port}")
    assert done.returncode == 1
    assert str(port) in done.stderr


def test_stats_prints_what_the_server_says(run_program) -> None:
    body = b'{"schema_version":1,"operations":[]}'
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        done = pool.submit(run_program, "stats", "--server", address, "--json")
        connection, _ = server.accept()
        with connection:
            assert connection.recv(4096).startswith(b"GET /stats HTTP/1.")
            connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body)
        assert done.result().stdout.strip().encode() == body
        assert done.result().returncode == 0


def line_of(daemon, what: str) -> str:
    """The daemon's line that says so; empty: there is none yet."""
    return next((text for text in daemon.lines if text.startswith(f"{PROGRAM} {what} ")), "")


def test_a_successor_takes_over_the_values_and_the_address(
    start_daemon, dummy, eventually, port: int
) -> None:
    flags = ("--stable-id", "gateway", "--client-server-address", f"127.0.0.1:{port}")
    old = start_daemon(*flags, "--drain-on-exit")
    store = dummy(f"127.0.0.1:{port}")
    assert store.put("k", b"v" * 100_000) == 0
    new = start_daemon(*flags, "--initial-state", "standby")
    # The address is still its predecessor's.
    assert new.started("client_server_address") == "disabled"
    assert new.started("initial_state") == "standby"
    assert old.terminate() == 0
    assert "to_runtime=gateway:2" in line_of(old, "handoff")
    upgraded = line_of(old, "upgraded")
    assert "from_epoch=1 to_epoch=2 migrated_routes=1" in upgraded
    promoted = eventually(lambda: line_of(new, "promoted"))
    assert "stable_id=gateway epoch=2 from_epoch=1 kind=HotUpgrade" in promoted
    # The client goes on by itself.
    eventually(lambda: store.get("k") == b"v" * 100_000)
    assert store.put("after", b"1") == 0


def test_a_daemon_without_a_successor_leaves_its_values_to_the_others(
    start_daemon, node, sqlite_url: str
) -> None:
    other = node(sqlite_url, routed_writes=True)
    daemon = start_daemon("--drain-on-exit", "--stable-id", "leaver", "--routed-writes")
    for i in range(20):
        assert other.put(f"k{i}", b"v" * 1000) == 0
    assert daemon.terminate() == 0
    moved = line_of(daemon, "drained")
    assert "stable_id=leaver" in moved
    assert 0 < int(moved.rsplit("=", 1)[1]) < 20
    for i in range(20):
        assert other.get(f"k{i}") == b"v" * 1000


def test_a_daemon_is_refused_beside_a_live_one_of_its_name(
    start_daemon, run_program, sqlite_url: str
) -> None:
    start_daemon("--stable-id", "twin")
    second = run_program(
        "--local-hostname", "127.0.0.1", "--metadata-url", sqlite_url, "--stable-id", "twin"
    )
    assert second.returncode == 1
    assert "twin:1 at 127.0.0.1:" in second.stderr
    assert "initial_state=standby" in second.stderr


def test_a_daemon_empties_itself_while_the_metadata_service_is_away(
    start_daemon, redis, node
) -> None:
    other = node(redis.url, routed_writes=True)
    where = ("--metadata-url", redis.url, "--routed-writes")
    daemon = start_daemon(*where, "--stable-id", "leaver", "--drain-on-exit")
    keys = [f"k{i}" for i in range(40)]
    assert [other.put(key, b"v" * 1000) for key in keys] == [0] * len(keys)
    there = sum(other.query_route(key)["replicas"][0]["owner"] == "leaver:1" for key in keys)
    assert there > 0
    redis.stop()
    assert daemon.terminate() == 0
    assert int(line_of(daemon, "drained").rsplit("=", 1)[1]) == there


def test_a_successor_that_stands_still_is_not_said_to_have_taken_over(
    start_daemon, node, sqlite_url
) -> None:
    other = node(sqlite_url, routed_writes=True)
    flags = ("--stable-id", "gateway", "--routed-writes")
    old = start_daemon(*flags, "--drain-on-exit", "--request-timeout-ms", "6000")
    keys = [f"k{i}" for i in range(20)]
    assert [other.put(key, b"v" * 1000) for key in keys] == [0] * len(keys)
    new = start_daemon(*flags, "--initial-state", "standby")
    new.stop()
    try:
        assert old.terminate() == 0
    finally:
        new.cont()
    assert line_of(old, "upgraded") == ""
    assert "stable_id=gateway" in line_of(old, "drained")
    assert [other.get(key) for key in keys] == [b"v" * 1000] * len(keys)


def test_a_daemon_that_cannot_empty_itself_says_so(start_daemon, dummy) -> None:
    daemon = start_daemon("--drain-on-exit", "--drain-timeout-ms", "1500")
    assert dummy(daemon.address).put("k", b"v") == 0
    assert daemon.terminate() == 3
    assert line_of(daemon, "drain") != ""
