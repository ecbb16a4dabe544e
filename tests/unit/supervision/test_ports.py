"""Ports that servers hold while they load."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest

from sglang_omni.supervision.ports import bind, bind_alone, listen, listens

SERVER_WITH_A_CHILD = """
import os, sys
from sglang_omni.supervision.forks import own
from sglang_omni.supervision.ports import bind_alone, listen
with bind_alone("127.0.0.1", int(sys.argv[1])) as listener:
    listen(listener, 1)
    print("listens", flush=True)
    accepted = own(listener.accept()[0])
    if not os.fork():
        print(os.getpid(), flush=True)
    sys.stdin.read()
"""
IN_USE = r"port \d+ of 127.0.0.1 is in use; give another one, or 0 for a free one"


def require_ipv6() -> None:
    try:
        bind("::1").close()
    except OSError:
        pytest.skip("no IPv6 address here")


def test_a_port_has_one_server_before_it_listens() -> None:
    with bind_alone("127.0.0.1") as first:
        port = first.getsockname()[1]
        with pytest.raises(OSError, match=IN_USE), bind_alone("127.0.0.1", port):
            pass
        # A member of the server's may have it.
        with bind("127.0.0.1", port) as member:
            listen(member, 1)
            with pytest.raises(OSError, match=IN_USE):
                listen(first, 1)
    with bind_alone("127.0.0.1", port) as next_one:
        listen(next_one, 1)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0"),
        ("::", "127.0.0.1"),
        ("0.0.0.0", "::"),
        ("::1", "::"),
    ],
)
def test_a_port_of_every_address_is_that_of_each(first: str, second: str) -> None:
    if ":" in first + second:
        require_ipv6()
    for _ in range(10):
        with bind_alone(first) as holder:
            port = holder.getsockname()[1]
            in_use = re.escape(f"port {port} of {second} is in use; give another one")
            with pytest.raises(OSError, match=in_use) as refused, bind_alone(second, port):
                pass
            assert refused.value.errno == errno.EADDRINUSE
        # Once it is free, any program of this machine may have it first.
        with suppress(OSError), bind_alone(second, port) as next_one:
            listen(next_one, 1)
            return
    pytest.fail(f"none of ten ports was free for {second} after {first}")


def test_two_addresses_have_a_port_each() -> None:
    require_ipv6()
    with bind_alone("127.0.0.1") as first:
        port = first.getsockname()[1]
        with bind_alone("127.0.0.2", port) as second, bind_alone("::1", port) as third:
            for listener in (first, second, third):
                listen(listener, 1)


def test_a_child_that_outlives_its_server_keeps_neither_port_nor_connections(held_port: int) -> None:
    command = [sys.executable, "-c", SERVER_WITH_A_CHILD, str(held_port)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stdout.readline() == b"listens\n"
    with socket.create_connection(("127.0.0.1", held_port), timeout=60) as client:
        child = int(server.stdout.readline())
        server.kill()
        server.wait()
        # Its end, and not silence.
        assert client.recv(1) == b""
    with bind_alone("127.0.0.1", held_port) as successor:
        listen(successor, 1)
    assert psutil.pid_exists(child)
    server.stdin.close()  # which ends the child


def test_who_listens() -> None:
    with bind("127.0.0.1") as bound, bind("127.0.0.1") as other, bind("127.0.0.1") as silent:
        port = bound.getsockname()[1]
        assert not listens(os.getpid(), port)
        listen(bound, 1)
        listen(other, 1)
        assert listens(os.getpid(), port)
        assert not listens(os.getpid(), silent.getsockname()[1])
        sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        assert not listens(sleeper.pid, port)
        sleeper.communicate(b"\n")
        assert not listens(sleeper.pid, port)


def test_who_listens_over_ipv6() -> None:
    require_ipv6()
    with bind("::1") as bound:
        listen(bound, 1)
        assert listens(os.getpid(), bound.getsockname()[1])
