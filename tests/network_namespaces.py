"""Hosts of a network of their own: namespaces of this machine, plugged into one switch."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest

_PREFIX = "sgl-omni-test"
_SWITCH = "switch"
_numbers = itertools.count()
# Bounds a command of `ip`, which answers at once or hangs in the kernel.
_PATIENCE_S = 60


class Network:
    """Hosts on one network, each with the address ``address(name)``, reachable by each other alone.

    What runs in a host is on this machine in every other respect: it sees the same files and processes.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._addresses = {name: f"10.83.0.{number}" for number, name in enumerate(hosts, start=1)}
        self._number = next(_numbers)
        self._processes: list[subprocess.Popen[Any]] = []

    def address(self, host: str) -> str:
        return self._addresses[host]

    def namespace(self, host: str) -> str:
        """The file by which a process enters it: see setns(2)."""
        return f"/run/netns/{self._namespace(host)}"

    def popen(self, host: str, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program in a host: the process itself, which ends with the network."""
        process = subprocess.Popen(["ip", "netns", "exec", self._namespace(host), *command], **options)
        self._processes.append(process)
        return process

    def unplug(self, host: str) -> None:
        """Cut its cable at the switch: what it sends and what is sent to it is gone, and nobody is told."""
        _ip("-n", self._namespace(_SWITCH), "link", "set", _port(host), "nomaster")

    def plug(self, host: str) -> None:
        """Make good ``unplug``."""
        _ip("-n", self._namespace(_SWITCH), "link", "set", _port(host), "master", "br0")

    def link_down(self, host: str) -> None:
        """Take down its interface: it knows at once that it reaches nobody."""
        _ip("-n", self._namespace(host), "link", "set", "eth0", "down")

    def link_up(self, host: str) -> None:
        """Make good ``link_down``."""
        _ip("-n", self._namespace(host), "link", "set", "eth0", "up")

    def _namespace(self, host: str) -> str:
        return f"{_PREFIX}-{os.getpid()}-{self._number}-{host}"

    def _create(self) -> None:
        for name in (_SWITCH, *self._addresses):
            _ip("netns", "add", self._namespace(name))
            _ip("-n", self._namespace(name), "link", "set", "lo", "up")
        switch = self._namespace(_SWITCH)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for name, address in self._addresses.items():
            host, port = self._namespace(name), _port(name)
            _ip("-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", switch)
            _ip("-n", switch, "link", "set", port, "master", "br0", "up")
            _ip("-n", host, "address", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", host, "link", "set", "eth0", "up")

    def _remove(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for name in (_SWITCH, *self._addresses):
            namespace = self._namespace(name)
            listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
            for pid in listed.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)


@contextlib.contextmanager
def network(*hosts: str) -> Iterator[Network]:
    """A network of these hosts. With it end the processes in it, in whatever way it is left."""
    made = Network(hosts)
    try:
        made._create()
        yield made
    finally:
        made._remove()


def require_namespaces() -> None:
    """Skip where there can be no such network, but not in `make test` and CI, where all tests must run."""
    if why := _why_not():
        if "CI" in os.environ or "SGLANG_OMNI_TEST_ALL" in os.environ:
            pytest.fail(why)
        pytest.skip(why)


@cache
def _why_not() -> str | None:
    if shutil.which("ip") is None:
        return "tests of several hosts need the program `ip`: apt-get install iproute2"
    _remove_leftovers()
    try:
        with network("probe"):
            return None
    except subprocess.CalledProcessError as error:
        return (
            "tests of several hosts make network namespaces, which takes root (CAP_SYS_ADMIN and "
            f"CAP_NET_ADMIN): `{' '.join(error.cmd)}`: {error.stderr.strip()}"
        )


def _remove_leftovers() -> None:
    """Of runs that were killed."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    for name in (line.split()[0] for line in listed.stdout.splitlines() if line.startswith(_PREFIX)):
        pid = name.removeprefix(_PREFIX).split("-")[1]
        if not os.path.exists(f"/proc/{pid}"):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _port(host: str) -> str:
    return f"to-{host}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=_PATIENCE_S)
