"""Where a client finds its daemon, and what it says when it does not (AE-08, BR-13)."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator

import pytest
from mooncake.store import MooncakeDistributedStore, MooncakeHostMemAllocator

MIB = 1 << 20


def refused(address: str) -> str:
    """What setup_dummy says of the address."""
    with pytest.raises(RuntimeError) as caught:
        MooncakeDistributedStore().setup_dummy(0, 0, address)
    assert address in str(caught.value)
    return str(caught.value)


def use(store: MooncakeDistributedStore, key: str) -> None:
    base = MooncakeHostMemAllocator().alloc(2 * MIB)
    assert store.register_buffer(base, 2 * MIB) == 0
    assert store.put_from(key, base, MIB) == 0
    assert store.get_into(key, base + MIB, MIB) == MIB


def test_nobody_listens(port: int) -> None:
    for host in ("127.0.0.1", "localhost"):
        assert "cannot connect: Connection refused" in refused(f"{host}:{port}")
    unknown = refused(f"no-such-host.invalid:{port}")
    assert "cannot connect" in unknown or "no answer of the resolver within" in unknown


def test_something_else_listens(start_daemon) -> None:
    daemon = start_daemon("--metrics-addr", "127.0.0.1:0")
    assert "not a daemon" in refused(daemon.started("metrics_addr"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "no answer within" in refused(f"127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.parametrize("bind", ["0.0.0.0", "[::]"])
def test_a_wildcard_bind_is_reached_by_the_hosts_own_names(start_daemon, dummy, port, bind) -> None:
    start_daemon(f"--client-server-address={bind}:{port}")
    hosts = {socket.gethostname(), socket.gethostbyname(socket.gethostname()), "127.0.0.1"}
    if bind == "[::]":
        hosts |= {"[::1]", "ip6-localhost"} if has_name("ip6-localhost") else {"[::1]"}
    for host in hosts:
        use(dummy(f"{host}:{port}"), host)


def has_name(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False


@pytest.fixture
def other_network() -> Iterator[tuple[str, str]]:
    """The name of a network namespace, and its address as seen from here."""
    name = f"mc{os.getpid()}"
    here, there = f"{name}h", f"{name}t"
    commands = [
        f"ip netns add {name}",
        f"ip link add {here} type veth peer name {there} netns {name}",
        f"ip addr add 198.18.77.1/30 dev {here}",
        f"ip link set {here} up",
        f"ip -n {name} link set lo up",
        f"ip -n {name} addr add 198.18.77.2/30 dev {there}",
        f"ip -n {name} link set {there} up",
    ]
    try:
        for command in commands:
            made = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            if made.returncode != 0:
                pytest.skip(f"no network namespace can be made: {command}: {made.stderr}")
        yield name, "198.18.77.2"
    except FileNotFoundError:
        pytest.skip("there is no ip program")
    finally:
        if os.path.exists(f"/run/netns/{name}"):
            subprocess.run(["ip", "netns", "delete", name], check=False)


def test_a_daemon_in_another_network_namespace(start_daemon, dummy, other_network, port) -> None:
    """Its loopback is not ours; an address that both reach is enough, as the socket is a file."""
    name, address = other_network
    start_daemon(f"--client-server-address=0.0.0.0:{port}", launcher=("ip", "netns", "exec", name))
    assert "cannot connect: Connection refused" in refused(f"127.0.0.1:{port}")
    use(dummy(f"{address}:{port}"), "k")
