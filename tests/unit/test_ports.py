"""Ports that servers hold while they load."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from sglang_omni.supervision.ports import bind, bind_alone, listen, listens

IN_USE = r"port \d+ of 127.0.0.1 is in use; give another one, or 0 for a free one"


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


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_who_listens_over_ipv6() -> None:
    try:
        bound = bind("::1")
    except OSError:
        pytest.skip("no IPv6 address here")
    with bound:
        listen(bound, 1)
        assert listens(os.getpid(), bound.getsockname()[1])
